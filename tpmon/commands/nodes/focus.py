"""The wiring of the screen of one node of a fleet: whole Frames of its agent in, what keys ask of it out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tpmon.fleet.loop import Fleet
from tpmon.judge.folds.hot import build_tree, show_stacks
from tpmon.model.dump import DumpRequest, DumpRound, DumpState
from tpmon.model.frame import Frame, Window
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.fleet import FleetReport, FleetStacks, NodeState
from tpmon.model.results.sample import HotSample, SampleRequest, SampleState
from tpmon.report.readings import write_reading
from tpmon.ui.monitor.controls import Controls, Notice, Order, Result, ScreenOptions
from tpmon.ui.monitor.start import run_screen
from tpmon.ui.terminal_io.terminal import ScreenResult
from tpmon.view.fleet.nodes import describe_node

JUMP_NS = 5_000_000_000
"""A clock that is off by so much is another one: the agent runs anew, or its machine does."""
_COMES = Missing("not read so far")


class Focus:
    """Join one node of a fleet to one screen."""

    def __init__(self, fleet: Fleet, node: str) -> None:
        """Follow nothing until ``start``."""
        self._fleet = fleet
        self._node = node
        self._window = Window()
        self._shift_ns = 0
        """From the monotonic clock of the node to the one here, as far as the fastest line came."""
        self._state = NodeState.LIVE
        self._sink: Callable[[Update], None] = lambda _update: None
        self._results: Callable[[Result], None] = lambda _result: None

    def start(self, sink: Callable[[Update], None], results: Callable[[Result], None]) -> None:
        """Have its agent send whole Frames."""
        self._sink, self._results = sink, results
        self._fleet.follow(self._node, self._take)

    def leave(self) -> None:
        """Have it send no more of them."""
        self._fleet.unfollow(self._node, self._take)

    # In the thread of the fleet.

    def take_report(self, report: FleetReport) -> None:
        """Say it when the node does not answer, and when it does again."""
        node = next((one for one in report.nodes if one.node == self._node), None)
        if node is None or node.state is self._state:
            return
        self._state = node.state
        self._results(Notice(describe_node(node), passing=True))

    def _take(self, _node: str, frame: Frame) -> None:
        now_ns = time.monotonic_ns()
        late_ns = now_ns - frame.taken_ns - self._shift_ns
        if late_ns < 0 or late_ns > JUMP_NS:
            self._shift_ns = now_ns - frame.taken_ns
        if late_ns > JUMP_NS:
            self._window = Window()
        frame = replace(frame, taken_ns=frame.taken_ns + self._shift_ns)
        self._window.append(frame)
        self._sink(Update(frame, self._window.pulses()))

    def _take_stacks(self, request: DumpRequest, stacks: FleetStacks) -> None:
        dump = stacks.dump
        if not is_known(dump):
            why = stacks.unread[0][1] if stacks.unread else dump.reason
            state = DumpState(request, (), 0, 1, running=False, refused=f"no stacks: {why}")
            self._results(DumpUpdate(state, dump))
            return
        look = DumpRound(
            dump.host, dump.taken, time.monotonic_ns(), (), dump.errors, dump.paused_ms, dump.spy_cpu_ms
        )
        state = DumpState(request, (look,) * dump.rounds, 1, 1, running=False, refused="")
        self._results(DumpUpdate(state, dump, show_stacks(dump.groups), build_tree(dump.groups)))

    def _take_sample(self, request: SampleRequest, hot: Known[HotSample]) -> None:
        refused = "" if is_known(hot) else f"no samples: {hot.reason}"
        state = SampleState(request, _COMES, running=False, refused=refused)
        self._results(SampleUpdate(state, hot))

    # In the thread of the screen.

    def ask(self, order: Order) -> None:
        """Ask the agent for stacks or samples; other orders have no keys here."""
        if isinstance(order, DumpRequest):
            self._results(DumpUpdate(DumpState(order, (), 0, 1, running=True, refused=""), _COMES))
            self._fleet.ask_stacks((self._node,), partial(self._take_stacks, order), rounds=order.rounds)
        elif isinstance(order, SampleRequest):
            self._results(SampleUpdate(SampleState(order, _COMES, running=True, refused=""), _COMES))
            self._fleet.ask_sample(self._node, order.seconds, partial(self._take_sample, order))


def show_node(focus: Focus, node: str, *, ascii_only: bool, no_stacks: bool) -> ScreenResult:
    """Draw the screen of a node until it ends and return how it ended."""
    return run_screen(
        ScreenOptions(1.0, ascii_only, readonly=True, no_stacks=no_stacks, from_list=True, node=node),
        focus.start,
        Controls(lambda _seconds: None, focus.leave, focus.ask, write_reading, lambda path: (path,)),
    )
