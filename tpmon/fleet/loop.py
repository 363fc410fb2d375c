"""The loop of a fleet: read the nodes for a second, ask for stacks where nothing moves, join, hand on.

The only owner of the head, whose methods run in one thread. What others ask of it is done there, in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from tpmon.fleet.head import Answer, FleetHead
from tpmon.fleet.launch import AgentLaunch
from tpmon.fleet.messages import VerbName
from tpmon.judge.dumps.collectives import fold_collectives
from tpmon.judge.folds.groups import fold_dumps
from tpmon.judge.hang.detection import ANSWER_S
from tpmon.judge.nodes import (
    EVERY_S,
    ROUNDS,
    FleetMemory,
    join_fleet,
    list_watched,
    measure_still,
    name_host,
    note_answer,
    note_asked,
    observe,
    plan_look,
)
from tpmon.model.dump import Dump
from tpmon.model.frame import Frame
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.fleet import FleetReport, FleetStacks, NodeSample
from tpmon.model.results.sample import HotSample

TICK_S = 1.0
NO_ANSWER = Missing("no answer")
NOBODY = Missing("no node tells of ranks")

TakeStacks = Callable[[FleetStacks], None]
TakeCount = Callable[[int, int], None]
"""Takes how many nodes have answered, of how many that were asked."""
TakeSample = Callable[[Known[HotSample]], None]
TakeFrame = Callable[[str, Frame], None]


class _Look:
    """Gather the stacks of some nodes; those that give no answer within ``ANSWER_S`` are left out."""

    def __init__(self, nodes: Sequence[str], take: TakeStacks, count: TakeCount) -> None:
        self.asked = len(nodes)
        self.waits = set(nodes)
        self.until_s = time.monotonic() + ANSWER_S
        self.dumps: list[Dump] = []
        self.unread: list[tuple[str, str]] = []
        self.take = take
        self.count = count

    def add(self, node: str, dump: Known[Dump]) -> None:
        """Take the answer of one node."""
        if node in self.waits:
            self.waits.discard(node)
            if is_known(dump):
                self.dumps.append(name_host(dump, node))
            else:
                self.unread.append((node, dump.reason))
            self.count(self.asked - len(self.waits), self.asked)

    @property
    def is_over(self) -> bool:
        """Tell whether nobody is waited for any longer."""
        return not self.waits or time.monotonic() >= self.until_s


class Fleet:
    """Watch the job of many nodes."""

    def __init__(
        self, launches: Sequence[AgentLaunch], *, may_look: bool = True, hang_after_s: float | None = None
    ) -> None:
        """Start nothing so far. Without ``may_look`` no stacks are asked for where nothing moves.

        ``hang_after_s`` is what the user gave, None where the run's rhythm decides.
        """
        self.head = FleetHead(launches)
        self.nodes = tuple(node for launch in launches for node in launch.nodes)
        self.may_look = may_look
        self.hang_after_s = hang_after_s
        self._memory = FleetMemory(hang_after_s=hang_after_s)
        self._watch_request = 0
        """The number of the request for stacks that the hang watch made last."""
        self._looks: dict[int, _Look] = {}
        self._samples: dict[int, tuple[str, TakeSample]] = {}
        self._frames: dict[str, list[TakeFrame]] = {}
        self._orders: deque[Callable[[], None]] = deque()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def first_report(self) -> FleetReport:
        """Return what is known before it runs: all nodes are starting."""
        return join_fleet(self._memory, self.head.rows(), datetime.now().astimezone())

    def run(self, take: Callable[[FleetReport], bool]) -> None:
        """Hand on a report a second until ``take`` has enough, or ``stop``, and leave no agent behind."""
        try:
            while not (take(self._step()) or self._stopped.is_set()):
                pass
        finally:
            self.head.close()

    def start(self, take: Callable[[FleetReport], bool], on_error: Callable[[BaseException], None]) -> None:
        """Run in a daemon thread; an exception goes to ``on_error`` and ends it."""

        def loop() -> None:
            try:
                self.run(take)
            except BaseException as error:  # noqa: BLE001  # the screen shows it and ends with exit 1
                on_error(error)

        self._thread = threading.Thread(target=loop, name="tpmon-fleet", daemon=True)
        self._thread.start()

    def stop(self, within_s: float = 0.0) -> None:
        """End after the second it is in; wait for so long until no agent is left. In any thread."""
        self._stopped.set()
        self.head.wake()
        if self._thread is not None:
            self._thread.join(within_s)

    def follow(self, node: str, take: TakeFrame) -> None:
        """Hand on the whole Frames of a node from now on, in the fleet's thread; in any thread."""
        self._order(partial(self._follow, node, take))

    def unfollow(self, node: str, take: TakeFrame) -> None:
        """Hand on no more of them; in any thread."""
        self._order(partial(self._unfollow, node, take))

    def ask_stacks(
        self,
        nodes: Sequence[str],
        take: TakeStacks,
        *,
        rounds: int = 1,
        count: TakeCount = lambda _answered, _asked: None,
    ) -> None:
        """Have all stacks of these nodes read, of all that watch ranks where none is named; in any thread.

        ``take`` is called once, in the fleet's thread, when all have answered or ``ANSWER_S`` is over;
        ``count`` before that, at once and with each answer.
        """
        self._order(partial(self._ask_stacks, tuple(nodes), take, rounds, count))

    def ask_sample(self, node: str, seconds: float, take: TakeSample) -> None:
        """Have the stacks of a node sampled; ``take`` is called in the fleet's thread; in any thread."""
        self._order(partial(self._ask_sample, node, seconds, take))

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self.head.wake()

    def _follow(self, node: str, take: TakeFrame) -> None:
        self._frames.setdefault(node, []).append(take)
        self.head.ask_frames(frozenset(self._frames))

    def _unfollow(self, node: str, take: TakeFrame) -> None:
        takers = [one for one in self._frames.pop(node, []) if one != take]
        if takers:
            self._frames[node] = takers
        self.head.ask_frames(frozenset(self._frames))

    def _ask_stacks(self, nodes: tuple[str, ...], take: TakeStacks, rounds: int, count: TakeCount) -> None:
        asked = nodes or tuple(one.node for one, _ in list_watched(self.head.rows()))
        name = VerbName.DUMP if rounds == 1 else VerbName.ROUNDS
        request = self.head.ask(name, asked, count=rounds, seconds=EVERY_S)
        self._looks[request] = _Look(asked, take, count)
        count(0, len(asked))

    def _ask_sample(self, node: str, seconds: float, take: TakeSample) -> None:
        request = self.head.ask(VerbName.SAMPLE, (node,), seconds=seconds)
        self._samples[request] = (node, take)

    def _step(self) -> FleetReport:
        until_s = time.monotonic() + TICK_S
        while (left_s := until_s - time.monotonic()) > 0 and not self._stopped.is_set():
            self.head.poll(left_s)
            while self._orders:
                self._orders.popleft()()
        now_s, memory = time.monotonic(), self._memory
        for answer in self.head.take_answers():
            memory = self._hand_on(answer, memory)
        nodes = self.head.rows()
        memory = observe(memory, nodes, now_s)
        if self.may_look and (asked := plan_look(memory, nodes, now_s)):
            self._watch_request = self.head.ask(VerbName.ROUNDS, asked, count=ROUNDS, seconds=EVERY_S)
            memory = note_asked(memory, asked, now_s)
        self._memory = memory
        self._end_looks()
        return join_fleet(memory, nodes, datetime.now().astimezone())

    def _hand_on(self, answer: Answer, memory: FleetMemory) -> FleetMemory:
        """Hand an answer to who asked; the hang watch remembers what it asked for."""
        node, message = answer.node, answer.message
        if isinstance(message, Frame):
            for take_frame in self._frames.get(node, []):
                take_frame(node, message)
        elif isinstance(message, NodeSample):
            asked, take = self._samples.get(message.request, ("", None))
            if take is not None and asked == node:
                del self._samples[message.request]
                take(message.hot)
        elif message.request == self._watch_request:
            return note_answer(memory, node, message.dump)
        elif message.request in self._looks:
            self._looks[message.request].add(node, message.dump)
        return memory

    def _end_looks(self) -> None:
        """Fold what is there of the looks that are over, and hand it on."""
        for request, look in [one for one in self._looks.items() if one[1].is_over]:
            del self._looks[request]
            unread = [*look.unread, *((node, NO_ANSWER.reason) for node in sorted(look.waits))]
            folded = self._fold(look.dumps) if look.asked else NOBODY
            look.take(FleetStacks(folded, tuple(unread)))

    def _fold(self, dumps: Sequence[Dump]) -> Known[Dump]:
        if not dumps:
            return NO_ANSWER
        watch = measure_still(self.head.rows(), self._memory)
        return fold_collectives(fold_dumps(dumps, watch), dumps) if len(dumps) > 1 else dumps[0]
