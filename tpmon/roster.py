"""The loop of the live list: read all jobs cheaply, and judge one at a time, in turn.

A turn is a session of some seconds, as ``tpmon diagnose`` has it: its verdict is the one that ``attach``
would show. What turns cost decides how often they come, so that the list keeps within ``BUDGET_CORES``
however many jobs there are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tpmon.model.frame import TargetState
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.results.doctor import Update
from tpmon.model.results.roster import NOT_JUDGED_YET, JobReading, JobRow, JobsReading, Roster
from tpmon.model.verdict import Finding, Kind
from tpmon.probe.base.procread import read_apart, read_or, read_stat
from tpmon.probe.base.worker import start_thread
from tpmon.probe.collect.collector import Collector
from tpmon.probe.collect.jobs import JobsReader
from tpmon.probe.gpu.child_link import GpuProbe
from tpmon.probe.job.job import Job
from tpmon.session import Session, collect_rarely

READ_EVERY_S = 2.0
BUDGET_CORES = 0.021
"""Of a core, for all that tpmon does while the list is open; the first turns may borrow ``CREDIT_S``."""
CREDIT_S = 0.25
TURN_INTERVAL_S = 1.0
SLOW_AFTER_S = 10.0
SLOW_INTERVAL_S = 2.0
"""Of a turn that has no verdict after ``SLOW_AFTER_S``: mostly a job in which nothing moves."""
STEADY_FRAMES = 3
"""So many Frames must say the same before a turn ends with it."""
LEAST_TURN_S = 5.0
MOST_TURN_S = 45.0
"""A job that stands still is called hung after 30 s at the earliest."""
NEW_S = 30.0
KEEP_ENDED_S = 600.0
SOONER_S = 60.0
_PASSING = (Kind.STARTING, Kind.PAUSED)
_MOST_ENDED = 20
_WAIT_S = 0.25
_UNREADABLE = Missing("not judged: this user may not read it")
_UNDECIDED = Missing(f"not enough evidence in {MOST_TURN_S:g} s")


class TurnBudget:
    """Say whether there is CPU time for another turn, by what all of tpmon has used so far."""

    def __init__(
        self, child: Callable[[], Known[int]], cores: float = BUDGET_CORES, credit_s: float = CREDIT_S
    ) -> None:
        """Begin with the credit; ``child`` is the PID of the child that lives as long as the list."""
        self._child = child
        self._cores = cores
        self._credit_s = credit_s
        self._debt_s = -credit_s
        self._last = _read_clocks(child())

    def is_free(self) -> bool:
        """Tell whether what was used is paid off."""
        cpu_s, wall_s = _read_clocks(self._child())
        before_cpu_s, before_wall_s = self._last
        self._last = cpu_s, wall_s
        self._debt_s += cpu_s - before_cpu_s - self._cores * (wall_s - before_wall_s)
        self._debt_s = max(self._debt_s, -self._credit_s)
        return self._debt_s <= 0

    def forget(self) -> None:
        """Leave out what was used since the last call: another screen was shown."""
        self._last = _read_clocks(self._child())


def _read_clocks(child: Known[int]) -> tuple[float, float]:
    """Return the CPU seconds of this process, of a child and of those that have ended, and the time."""
    used = os.times()
    own_s = used.user + used.system + used.children_user + used.children_system
    child_s = read_or(0.0, lambda: read_stat(child).cpu_s) if is_known(child) else 0.0
    return own_s + child_s, time.monotonic()


@dataclass(frozen=True, slots=True)
class Judged:
    """Hold what the newest turn of a job found, and when it ended."""

    finding: Known[Finding]
    ended_ns: int


class JobsWatch:
    """Watch all jobs in two daemon threads, one that reads and one that judges, until ``close``."""

    def __init__(self, *, stacks: bool = True, hang_after_s: float | None = None) -> None:
        """Read nothing until ``start``; ``hang_after_s`` is what the user gave, if anything."""
        self._hang_after_s = hang_after_s
        self._sink: Callable[[Roster], None] = lambda _roster: None
        self._stacks = stacks
        self._gpu = GpuProbe()
        self._reader = JobsReader(self._gpu)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._awake = threading.Event()
        """Clear while another screen is shown."""
        self._awake.set()
        self._wake = threading.Event()
        self._budget = TurnBudget(self._gpu.child_pid)
        self._reading = JobsReading(0, ())
        self._judged: dict[Identity, Judged] = {}
        self._first_ns: dict[Identity, int] = {}
        self._ended: dict[Identity, tuple[int, JobReading]] = {}
        self._turn: Applicable[Identity] = NOT_APPLICABLE
        self._session: Session | None = None
        self._wanted: tuple[Identity, ...] = ()

    def start(self) -> None:
        """Start both threads."""
        collect_rarely()
        self._gpu.start()
        start_thread("jobs", self._read_on)
        start_thread("turns", self._judge_on)

    def listen(self, sink: Callable[[Roster], None]) -> None:
        """Hand the newest list, and each that follows, to this sink alone; called in any thread."""
        self._sink = sink
        if self._reading.taken_ns:
            sink(self.snapshot())

    def close(self) -> None:
        """End both threads after what they are in; never waits for them."""
        self._stopped.set()
        self.rest()
        self._awake.set()
        self._wake.set()
        self._reader.close()
        self._gpu.stop()

    def rest(self) -> None:
        """Read and judge nothing until ``resume``: another screen is shown."""
        self._awake.clear()
        with self._lock:
            if self._session is not None:
                self._session.stop()

    def resume(self) -> None:
        """Go on."""
        self._budget.forget()
        self._awake.set()
        self._wake.set()

    def prefer(self, roots: tuple[Identity, ...]) -> None:
        """Judge these jobs sooner: the cursor is on them, or a filter shows them alone."""
        self._wanted = roots

    def snapshot(self) -> Roster:
        """Return the list as it is now."""
        with self._lock:
            reading, turn = self._reading, self._turn
            rows = [self._row(one, turn) for one in reading.jobs]
            rows += [
                replace(self._row(one, turn), ended_ns=ended_ns, is_looked_at=False, is_new=False)
                for ended_ns, one in self._ended.values()
            ]
            return Roster(reading.taken_ns, tuple(rows), reading.unread, reading.unanswered)

    def _row(self, reading: JobReading, turn: Applicable[Identity]) -> JobRow:
        root = reading.root
        judged = self._judged.get(root)
        first_ns = self._first_ns.get(root, 0)
        readable = not isinstance(reading.summary.state, Missing)
        return JobRow(
            reading,
            judged.finding if judged is not None else NOT_JUDGED_YET if readable else _UNREADABLE,
            judged_ns=judged.ended_ns if judged is not None else NOT_APPLICABLE,
            is_looked_at=turn == root,
            is_new=first_ns > 0 and time.monotonic_ns() - first_ns < NEW_S * 1e9,
        )

    def _read_on(self) -> None:
        due_s = time.monotonic()
        while not self._stopped.is_set():
            self._awake.wait()
            if self._stopped.is_set():
                return
            reading = read_apart(self._reader.read)
            if is_known(reading):
                self._take(reading)
                self._sink(self.snapshot())
            due_s = max(due_s + READ_EVERY_S, time.monotonic())
            self._stopped.wait(due_s - time.monotonic())

    def _take(self, reading: JobsReading) -> None:
        """Keep a reading; note what is new in it, and what has ended."""
        now_ns = reading.taken_ns
        with self._lock:
            is_first = not self._reading.taken_ns
            there = {one.root for one in reading.jobs}
            for one in reading.jobs:
                self._first_ns.setdefault(one.root, 0 if is_first else now_ns)
                self._ended.pop(one.root, None)
            for one in self._reading.jobs:
                if one.root not in there:
                    self._ended[one.root] = now_ns, one
            kept = sorted(self._ended.items(), key=lambda entry: -entry[1][0])[:_MOST_ENDED]
            self._ended = {root: ended for root, ended in kept if now_ns - ended[0] < KEEP_ENDED_S * 1e9}
            gone = self._first_ns.keys() - there - self._ended.keys()
            for root in gone:
                del self._first_ns[root]
                self._judged.pop(root, None)
            self._reading = reading
        self._wake.set()

    def _judge_on(self) -> None:
        while not self._stopped.is_set():
            self._awake.wait()
            chosen = self._choose()
            if is_known(chosen) and self._budget.is_free():
                self._take_turn(chosen)
            else:
                self._wake.wait(_WAIT_S)
                self._wake.clear()

    def _choose(self) -> Applicable[Identity]:
        """Return the job that is judged next: one that never was, else the one whose verdict is oldest.

        Under the cursor or a filter, and where a verdict says what passes, it counts as older than it is.
        """
        with self._lock:
            roots = [one.root for one in self._reading.jobs if is_known(one.summary.state)]
            judged = {root: self._judged[root] for root in roots if root in self._judged}
        wanted = self._wanted
        if not roots:
            return NOT_APPLICABLE

        def rank(root: Identity) -> tuple[bool, bool, float]:
            if root not in judged:
                return False, root not in wanted, wanted.index(root) if root in wanted else 0.0
            last = judged[root]
            passes = is_known(last.finding) and last.finding.kind in _PASSING
            return True, False, last.ended_ns / 1e9 - SOONER_S * (passes + (root in wanted))

        return min(roots, key=rank)

    def _take_turn(self, root: Identity) -> None:
        job = self._reader.find(root)
        if not is_known(job):
            return
        with self._lock:
            self._turn = root
        self._sink(self.snapshot())
        finding = read_apart(lambda: self._look_at(job))
        with self._lock:
            self._turn, self._session = NOT_APPLICABLE, None
        if not self._awake.is_set() or self._stopped.is_set():
            return  # it was cut short
        self._keep(root, finding)
        self._sink(self.snapshot())

    def _keep(self, root: Identity, finding: Known[Finding]) -> None:
        """Keep the newest verdict; one that says the same as before holds since then."""
        with self._lock:
            before = self._judged.get(root)
            if before is not None and is_known(before.finding) and is_known(finding):
                old = before.finding
                if (old.kind, old.cause) == (finding.kind, finding.cause) and old.since < finding.since:
                    finding = replace(
                        finding, since=old.since, since_is=old.since_is, since_source=old.since_source
                    )
            self._judged[root] = Judged(finding, time.monotonic_ns())

    def _look_at(self, job: Job) -> Known[Finding]:
        """Watch one job until its verdict stands, and return it; Missing where none is reached in time."""
        turn = Turn()
        gpu = self._gpu
        session = Session(
            Collector(job, TURN_INTERVAL_S, stacks=self._stacks, gpu=gpu),
            (turn.take,),
            TURN_INTERVAL_S,
            hang_after_s=self._hang_after_s,
        )
        turn.stop, turn.slow_down = session.stop, partial(session.set_interval, SLOW_INTERVAL_S)
        with self._lock:
            self._session = session
        if not self._awake.is_set():
            session.stop()  # it was asked to rest before there was a session
        session.run()
        return turn.finding


class Turn:
    """Follow the verdicts of one session until one of them stands."""

    def __init__(self) -> None:
        self.finding: Known[Finding] = _UNDECIDED
        self.stop: Callable[[], None] = lambda: None
        self.slow_down: Callable[[], None] = lambda: None
        self._slow = False
        self._begun_ns = 0
        self._said: tuple[object, object] = (None, None)
        self._same = 0

    def take(self, update: Update) -> None:
        """Take the next Frame; end the session where it has a verdict, or none comes in time."""
        frame = update.frame
        finding = frame.verdict
        self._begun_ns = self._begun_ns or frame.taken_ns
        passed_s = (frame.taken_ns - self._begun_ns) / 1e9
        said = (finding.kind, finding.cause) if is_known(finding) else (None, None)
        self._same = self._same + 1 if said == self._said else 1
        self._said = said
        stands = self._same >= STEADY_FRAMES and passed_s >= LEAST_TURN_S
        if is_known(finding) and stands and finding.kind is not Kind.NOT_ENOUGH_EVIDENCE:
            self.finding = finding
            self.stop()
        elif passed_s >= SLOW_AFTER_S and not self._slow:
            self._slow = True
            self.slow_down()
        if passed_s >= MOST_TURN_S or frame.target.state is TargetState.ENDED:
            self.stop()
