"""The wiring of the screen of a fleet: what the fleet tells, what keys ask of it, one node after another."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tpmon.commands.command import describe_failure, write_ending
from tpmon.commands.nodes.focus import Focus, show_node
from tpmon.errors import ExitCode
from tpmon.fleet.loop import Fleet
from tpmon.fleet.record import FleetSwitch
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.fleet import FleetReport, FleetStacks
from tpmon.report.text import Output, complain
from tpmon.ui.fleet.controls import FleetControls
from tpmon.ui.fleet.start import first_fleet_view, run_fleet_screen
from tpmon.ui.fleet.state import FleetNews, FleetOrder, StacksNews
from tpmon.ui.terminal_io.terminal import ScreenResult, clear_screen

BUNDLING = "a bundle is being written already"
_LOOK_S = 0.02
LEAVE_WITHIN_S = 0.5
"""The screen, once left, ends tpmon within a second; agents that live on then end by themselves."""


class FleetWiring:
    """Join one fleet to its screen, and to that of the node that is looked at."""

    def __init__(self, fleet: Fleet) -> None:
        """Start nothing until ``start``."""
        self._fleet = fleet
        self._lock = threading.Lock()
        self.news = FleetNews(fleet.first_report())
        self.switch = FleetSwitch(fleet, self._tell_recording)
        self._bundles = False
        self._left = threading.Event()
        self._sink: Callable[[FleetNews], None] = lambda _news: None
        self.focus: Focus | None = None
        self.failure: Applicable[tuple[str, ExitCode]] = NOT_APPLICABLE
        """What ended the fleet: the lines that say so, and the exit code."""

    def start(self) -> None:
        """Start the agents."""
        self._fleet.start(self._take, self._fail)

    def stop(self) -> None:
        """End the fleet."""
        self._fleet.stop()

    def listen(self, sink: Callable[[FleetNews], None]) -> None:
        """Hand all that is told to this sink."""
        self._sink = sink
        sink(self.news)

    def ask(self, order: FleetOrder) -> None:
        """Hand an order of a key to the fleet; never waits."""
        if order is FleetOrder.STACKS:
            self._fleet.ask_stacks((), self._take_stacks, count=self._count)
        elif order is FleetOrder.RECORD:
            self.switch.turn()
        elif self._bundles:
            self._note(BUNDLING)
        else:
            from tpmon.fleet.bundle import start_fleet_bundle  # the first picture does without it

            self._bundles = True
            start_fleet_bundle(self._fleet, lambda: self.news.report, self._tell_bundle, self._left.is_set)

    def leave(self) -> list[str]:
        """End what keys began, as far as there is time, and return all that was said of it."""
        self._left.set()
        end_s = time.monotonic() + LEAVE_WITHIN_S
        self.switch.end(LEAVE_WITHIN_S)
        while self._bundles and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        unfinished = ["the bundle is not whole: tpmon was left while it was written"] if self._bundles else []
        return [*self.news.notices, *unfinished]

    # In any thread.

    def _tell(self, **changes: Any) -> None:
        with self._lock:
            self.news = replace(self.news, **changes)
            self._sink(self.news)

    def _note(self, line: str, **changes: Any) -> None:
        with self._lock:
            self.news = replace(self.news, notices=(*self.news.notices, line), **changes)
            self._sink(self.news)

    def _tell_recording(self, line: str, records: Applicable[bool]) -> None:
        self._note(line, **({"records": records} if is_known(records) else {}))

    def _tell_bundle(self, line: str) -> None:
        self._bundles = False
        self._note(line)

    # In the thread of the fleet.

    def _take(self, report: FleetReport) -> bool:
        self.switch.take(report)
        self._tell(report=report)
        if (focus := self.focus) is not None:
            focus.take_report(report)
        return False

    def _count(self, answered: int, asked: int) -> None:
        self._tell(stacks=StacksNews(answered, asked))

    def _take_stacks(self, stacks: FleetStacks) -> None:
        from tpmon.judge.folds.hot import show_stacks

        shown = show_stacks(stacks.dump.groups) if is_known(stacks.dump) else ()
        self._tell(stacks=StacksNews(0, 0, stacks, shown))

    def _fail(self, error: BaseException) -> None:
        self.failure = describe_failure(error)
        os.kill(os.getpid(), signal.SIGTERM)  # ends the screen in order; the failure is told below


def write_stacks(stacks: FleetStacks) -> str:
    """Write stacks of a fleet as text: those that were not read, then as ``tpmon fold`` prints them."""
    from tpmon.judge.dumps.describe import shorten_stack
    from tpmon.report.stacks import write_dump

    unread = [f"not read: {node}: {reason}" for node, reason in stacks.unread]
    dump = stacks.dump
    return "\n".join(
        [*unread, *(write_dump(dump, shorten_stack) if is_known(dump) else [f"no stacks: {dump.reason}"])]
    )


def watch_on_screen(fleet: Fleet, *, ascii_only: bool, no_stacks: bool, record: str | None) -> int:
    """Draw the screen of a fleet, and that of the node that is chosen, until it is left.

    With ``record`` all nodes are recorded into this folder, "" for one in the folder for recordings.
    """
    output, wiring = Output(1, ascii_only), FleetWiring(fleet)
    if record is not None:
        wiring.switch.open(record)
    controls = FleetControls(wiring.listen, wiring.ask, write_stacks, wiring.stop)
    view = first_fleet_view(wiring.news, ascii_only=ascii_only)
    wiring.start()
    try:
        while True:
            choice = run_fleet_screen(view, controls)
            if not choice.node:
                return _end(choice.screen, wiring, output)
            write_ending(choice.screen, output)
            clear_screen()
            wiring.focus = Focus(fleet, choice.node)
            shown = show_node(wiring.focus, choice.node, ascii_only=ascii_only, no_stacks=no_stacks)
            wiring.focus = None
            if not shown.goes_back:
                return _end(shown, wiring, output)
            write_ending(shown, output)
            gc.unfreeze()  # each screen froze what was there, and that of the last one is garbage now
            gc.collect()
            view = choice.view
    except SystemExit:  # before a screen was loaded
        if not is_known(wiring.failure):
            raise
        complain(wiring.failure[0])
        return wiring.failure[1]
    finally:
        for line in wiring.leave():
            complain(f"tpmon: {line}")
        fleet.stop(LEAVE_WITHIN_S)


def _end(result: ScreenResult, wiring: FleetWiring, output: Output) -> int:
    if is_known(wiring.failure):
        result = ScreenResult(wiring.failure[1], "", wiring.failure[0])
    return write_ending(result, output)
