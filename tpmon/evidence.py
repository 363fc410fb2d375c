"""Watch a job for evidence: its Frames over some seconds, and three looks at its stacks.

``OwnLook`` does it with a session of its own, ``SharedLook`` with one that runs already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tpmon.config import Options
from tpmon.model.dump import Asker, DumpRequest, DumpRound
from tpmon.model.frame import Frame, Pulse, TargetState
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.doctor import DumpUpdate, Update
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.job import Job
from tpmon.session import Session, collect_rarely

ROUNDS = 3
ROUND_LIMIT_S = 40.0
"""A round of looks is given up after 30 s."""
_WAIT_S = 0.1
_NO_STACKS = "not read: --no-stacks"

Ask = Callable[[DumpRequest], None]


class Looking(Protocol):
    """Give the Frames of a job and some looks at its stacks."""

    def start(self) -> None:
        """Begin to look."""
        ...

    def wait(self) -> None:
        """Wait until enough was seen, in bounded time."""
        ...

    def stop(self) -> None:
        """End what was begun; never waits."""
        ...

    def frames(self) -> Sequence[Frame]:
        """Return the Frames, oldest first."""
        ...

    def pulses(self) -> Sequence[Pulse]:
        """Return the main figures of the same time and of minutes before, oldest first."""
        ...

    def rounds(self) -> Known[Sequence[DumpRound]]:
        """Return the looks that are done, or why there are none."""
        ...

    def records(self) -> Applicable[CollectivesReading]:
        """Return what the job recorded of its collectives, where that was read after the last look."""
        ...


class RoundKeeper:
    """Ask a session for looks and keep them: the sink for its dumps."""

    def __init__(self, every_s: float) -> None:
        """Ask for ``ROUNDS`` looks, ``every_s`` apart, without a stop."""
        self._request = DumpRequest(Asker.KEY, rounds=ROUNDS, every_s=every_s)
        self._update: DumpUpdate | None = None
        self._free = threading.Event()
        self.done = threading.Event()

    def __call__(self, update: DumpUpdate) -> None:
        """Take what a session says of a dump; of somebody else's, only that it began or ended."""
        if update.state.request is self._request:
            self._update = update
            if not update.state.running and not update.awaits_records:
                self.done.set()
        elif self._update is not None:
            self.done.set()  # what was still read for ours does not come any more
        elif not update.state.running:
            self._free.set()

    def read(self, ask: Ask, end_s: float) -> None:
        """Ask, again when another dump had to end first, and wait at most until monotonic ``end_s``."""
        ask(self._request)
        while time.monotonic() < end_s and not self.done.wait(_WAIT_S):
            if self._free.is_set() and self._update is None:
                self._free.clear()
                ask(self._request)

    def rounds(self) -> Known[Sequence[DumpRound]]:
        """Return the looks that are done."""
        if self._update is None:
            return Missing("no dump of the stacks was done in time")
        state = self._update.state
        if not state.rounds:
            return Missing(state.refused or "no dump of the stacks was done in time")
        return state.rounds

    def records(self) -> Applicable[CollectivesReading]:
        """Return what the job recorded of its collectives, read after these looks."""
        if self._update is None or not is_known(self._update.dump):
            return NOT_APPLICABLE
        found = self._update.dump.collectives
        return (
            CollectivesReading(found.records, found.ras, found.notes) if is_known(found) else NOT_APPLICABLE
        )


class OwnLook:
    """Watch a job for some seconds with a session of one's own."""

    def __init__(self, job: Job, options: Options) -> None:
        """Watch nothing until ``start``."""
        self._seconds = options.bundle_seconds
        self._stacks = not options.no_stacks
        self._keeper = RoundKeeper(min(5.0, self._seconds / ROUNDS))
        self._frames: list[Frame] = []
        self._ended = threading.Event()
        self._end_s = 0.0
        self.failed = ""
        collect_rarely()
        collector = Collector(job, options.interval_s, stacks=self._stacks)
        self._session = Session(
            collector, (self._take,), options.interval_s, (self._keeper,), hang_after_s=options.hang_after_s
        )

    def start(self) -> None:
        """Start the session in a thread of its own."""
        self._end_s = time.monotonic() + self._seconds
        self._session.start(self._fail)

    def wait(self) -> None:
        """Wait until the seconds are over and the looks are done."""
        if self._stacks:
            self._keeper.read(self._session.ask_dump, self._end_s + ROUNDS * ROUND_LIMIT_S)
        self._ended.wait(max(0.0, self._end_s - time.monotonic()))

    def stop(self) -> None:
        """End the session."""
        self._session.stop()

    def frames(self) -> Sequence[Frame]:
        """Return the Frames so far."""
        return tuple(self._frames)

    def pulses(self) -> Sequence[Pulse]:
        """Return the main figures so far."""
        return self._session.pulses()

    def rounds(self) -> Known[Sequence[DumpRound]]:
        """Return the looks so far."""
        return self._keeper.rounds() if self._stacks else Missing(_NO_STACKS)

    def records(self) -> Applicable[CollectivesReading]:
        """Return what the job recorded of its collectives."""
        return self._keeper.records()

    def _take(self, update: Update) -> None:
        self._frames.append(update.frame)
        if update.frame.target.state is TargetState.ENDED:
            self._finish()

    def _fail(self, error: BaseException) -> None:
        self.failed = f"{type(error).__name__}: {error}"
        self._finish()

    def _finish(self) -> None:
        self._ended.set()
        self._keeper.done.set()


class SharedLook:
    """Use the Frames and the dumps of a session that runs already, as the screen does."""

    def __init__(
        self,
        frames: Callable[[], Sequence[Frame]],
        pulses: Callable[[], Sequence[Pulse]],
        keeper: RoundKeeper,
        ask: Ask,
        *,
        stacks: bool = True,
    ) -> None:
        """``keeper`` is a dump sink of that session, ``ask`` its ``ask_dump``."""
        self._frames = frames
        self._pulses = pulses
        self.stacks = stacks
        self._keeper = keeper
        self._ask = ask

    def start(self) -> None:
        """Do nothing: it runs."""

    def wait(self) -> None:
        """Wait for the looks."""
        if self.stacks:
            self._keeper.read(self._ask, time.monotonic() + ROUNDS * ROUND_LIMIT_S)

    def stop(self) -> None:
        """Do nothing: others look at it."""

    def frames(self) -> Sequence[Frame]:
        """Return the Frames that the session has kept."""
        return self._frames()

    def pulses(self) -> Sequence[Pulse]:
        """Return the main figures of the last ten minutes."""
        return self._pulses()

    def rounds(self) -> Known[Sequence[DumpRound]]:
        """Return the looks so far."""
        return self._keeper.rounds() if self.stacks else Missing(_NO_STACKS)

    def records(self) -> Applicable[CollectivesReading]:
        """Return what the job recorded of its collectives."""
        return self._keeper.records()
