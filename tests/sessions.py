"""Stand for the probe and the screen of a session: a source that hands out Frames, a sink that keeps them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from tests.frames import make_cpu, make_frame, make_target
from tpmon.model.dump import Asker, DumpRequest, DumpState
from tpmon.model.frame import Frame, TargetState
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.collectives import CollectivesReading, DumpRecords, RankRecord
from tpmon.model.results.doctor import Update


class Service:
    """Note what it is asked for, and answer with the states that a test gives, one at each call of ``tell``."""

    def __init__(self) -> None:
        self.on_change = lambda: None
        self.state: Any = NOT_APPLICABLE
        self.asked: list[Any] = []
        self.finished = 0

    def ask(self, request: object) -> None:
        self.asked.append(request)

    def finish(self) -> None:
        self.finished += 1

    def tell(self, state: object) -> None:
        self.state = state
        self.on_change()


def make_records(dump_ns: int, *records: RankRecord) -> DumpRecords:
    return DumpRecords(dump_ns, CollectivesReading(records, (), ()))


class Source:
    """Hand out numbered Frames; a test may make one slow, failing or the last."""

    def __init__(self, *, slow: dict[int, float] | None = None, ends_at: int = -1, fails_at: int = -1) -> None:
        self.dumps, self.records, self.samples = Service(), Service(), Service()
        self.times: list[float] = []
        self.intervals: list[float] = []
        self.rests: list[int] = []
        """After how many Frames the rest was read."""
        self.closed = 0
        self.open = threading.Event()
        self.open.set()
        self._slow, self._ends_at, self._fails_at = slow or {}, ends_at, fails_at

    def collect(self) -> Frame:
        number = len(self.times)
        self.times.append(time.monotonic())
        if number == self._fails_at:
            raise ZeroDivisionError("a bug in a probe")
        time.sleep(self._slow.get(number, 0))
        self.open.wait(20)
        state = TargetState.ENDED if number == self._ends_at else TargetState.RUNNING
        return make_frame(
            taken_ns=time.monotonic_ns(),
            target=make_target(state=state, world_size=8),
            cpu=make_cpu(runnable=float(number)),
        )

    def read_rest(self) -> None:
        self.rests.append(len(self.times))

    def set_interval(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def set_settled(self, *, settled: bool) -> None:
        self.settled = settled

    def close(self) -> None:
        self.closed += 1


class Sink:
    """Keep every update and wake whoever waits for the n-th."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self._changed = threading.Condition()

    def __call__(self, update: Update) -> None:
        with self._changed:
            self.updates.append(update)
            self._changed.notify_all()

    def wait_for(self, count: int, seconds: float = 5.0) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.updates) >= count, seconds)


def dump_state(**fields) -> DumpState:
    begun = DumpState(DumpRequest(Asker.KEY), (), answered=0, asked=2, running=True, refused="")
    return replace(begun, **fields)
