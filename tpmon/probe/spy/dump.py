"""Dump the stacks of every process of a job with py-spy, and measure how long each is held.

Each process has its own deadline, so one that does not answer costs only its own stacks. A process is stopped
only with ``block`` and if it could not be read otherwise; the time is measured, rather too long than too
short.

A service runs one dump at a time, for the key and for the watch; nobody waits for it. Its state grows with
the dump, so that a screen shows what has come; finished dumps of the whole job go to the next Frame.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial

from tpmon.model.dump import Asker, DeadChild, DumpRequest, DumpRound, DumpState, ErrorKind, ProcessLook
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Identity, Role
from tpmon.model.stacks import StackCount
from tpmon.probe.base.procread import PROC
from tpmon.probe.base.worker import Turns, Worker, read_within, start_thread
from tpmon.probe.job.exit_status import find_dead
from tpmon.probe.job.job import Job, Member
from tpmon.probe.job.process_facts import find_left
from tpmon.probe.proc.counters import ProcFile
from tpmon.probe.proc.pipe_peers import OtherEnds
from tpmon.probe.proc.suspended import read_freezer
from tpmon.probe.spy.dump_threads import read_threads, read_toll
from tpmon.probe.spy.failure import (
    CPU_LIMIT_S,
    NO_ANSWER,
    SLEEPS_S,
    Failure,
    Spy,
    find_gone,
    find_obstacle,
    find_sleeper,
    find_spies,
    find_spy,
    report_failure,
    yield_time_s,
)
from tpmon.probe.spy.pool import NICENESS, SpyPool, SpyRequest, dump_arguments, guard
from tpmon.probe.spy.text import is_torn, parse_dump

_EVERY_S = 0.0005
_JOIN_S = 1.0


@dataclass(slots=True)
class Pause:
    """Add up how long the process was held, and keep the longest gap between two checks."""

    paused_ms: float = 0.0
    gap_ms: float = 0.0

    @property
    def most_ms(self) -> float:
        """Return the most that a stop can have taken, even one that fell between two checks."""
        return self.paused_ms or self.gap_ms


@contextmanager
def watch_pause(pid: int, proc: str = PROC) -> Iterator[Pause]:
    """Check every half millisecond, in a thread, whether a tracer holds a process's main thread.

    Held counts from the check before the first held one to the check after the last: a late check makes the
    pause longer, never shorter. A stop between two checks is missed.
    """
    pause = Pause()
    stop = threading.Event()
    begun_ns = time.monotonic_ns()
    thread = start_thread("pause", lambda: _watch(pid, proc, pause, stop, begun_ns))
    try:
        yield pause
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _watch(pid: int, proc: str, pause: Pause, stop: threading.Event, begun_ns: int) -> None:
    """Check until ``stop``; any stop begins after ``begun_ns`` and ends before the last check."""
    try:
        file = ProcFile(f"{proc}/{pid}/task/{pid}/stat")
    except OSError:
        return  # it ended: nothing to hold
    before_ns, was_held = begun_ns, False
    try:
        while True:
            is_last = stop.is_set()
            held = is_held(file.read())
            now_ns = time.monotonic_ns()
            gap_ms = (now_ns - before_ns) / 1e6
            pause.gap_ms = max(pause.gap_ms, gap_ms)
            if held or was_held:
                pause.paused_ms += gap_ms
            if is_last:
                return
            before_ns, was_held = now_ns, held
            time.sleep(_EVERY_S)
    except (OSError, ValueError):
        return  # it ended meanwhile
    finally:
        file.close()


def is_held(stat: bytes) -> bool:
    """Tell from /proc/PID/stat whether a tracer holds the thread. Pure."""
    return stat[stat.rindex(b")") + 2 :].startswith(b"t")


MOST_AT_ONCE = 8  # on busy cores 72 processes take 5 s four at a time, 3 to 4 s eight at a time
DEADLINE_S = 5.0  # for one py-spy, which needs 10 to 40 ms of CPU: many times that on a crowded machine
ROUND_S = 30.0  # a job of 72 processes takes 2 s on an idle machine
NATIVE_ROUND_S = 300.0  # native frames take 0.1 to 1 s of CPU a process
GRACE_S = 1.0
PROGRESS_S = 0.25  # between two pictures of a round under way
MOST_NATIVE_AT_ONCE = 2  # a py-spy that reads the symbols of torch takes up to 0.6 GB of memory
NATIVE_DEADLINE_S = 20.0
NATIVE_CPU_S = 15  # for the symbols of a CUDA build of torch; those of a CPU build take 0.3 to 0.7 s
_PROC_S = 0.5
_LATE_S = 0.5
_TRIES = 3  # a running process changes its stack while it is read; the next try mostly works


def dumpable(job: Job) -> tuple[Member, ...]:
    """Return the members whose stacks are worth reading: ranks, then workers, then helpers in Python."""
    order = (Role.RANK, Role.WORKER, Role.HELPER)
    pythons = {pid for pid, fact in job.facts.items() if fact.python}
    return tuple(
        member
        for role in order
        for member in job.members
        if member.role is role and (role is not Role.HELPER or member.identity.pid in pythons)
    )


def name_member(member: Member) -> str:
    """Name a process by its part in the job: "rank 0", "worker 1 of rank 0"."""
    rank = f"rank {member.rank}" if is_known(member.rank) else ""
    if member.role is Role.RANK:
        return rank or member.label
    if member.role is Role.WORKER and is_known(member.worker):
        return f"worker {member.worker}{f' of {rank}' if rank else ''}"
    return member.label or member.role.value


WITHOUT_STOP = DumpRequest(Asker.KEY)


@dataclass(frozen=True, slots=True)
class _Round:
    """Hold the state of one round: our py-spy, those of others, who has what open, and stops."""

    spy: Known[str]
    spies: Mapping[int, tuple[Spy, ...]]
    ends: OtherEnds
    late: set[Member]  # given up, and still without an answer: nothing new is started at them
    pauses_ms: list[float]  # of each stop of the round

    def of(self, member: Member) -> tuple[Spy, ...]:
        return self.spies.get(member.identity.pid, ())


_Answer = tuple["ProcessLook | None", "Failure | None"]  # of one process; no look where it is gone


class Dumper:
    """Read rounds of stacks of one job."""

    def __init__(
        self,
        members: Sequence[Member],
        how: DumpRequest = WITHOUT_STOP,
        *,
        proc: str = PROC,
        spy: Callable[[], Known[str]] = find_spy,
        others: Sequence[Member] = (),
    ) -> None:
        """Read ``members`` in this order, as deep as ``how`` says; ``others`` only name the ends of pipes."""
        self._members = tuple(members)
        self._how = how
        self._stops = how.block or how.native
        self._names = {one.identity.pid: name_member(one) for one in (*others, *members)}
        self._proc = proc
        self._find_spy = spy
        self._host = os.uname().nodename
        self._pool = SpyPool(proc)
        self._dead: tuple[DeadChild, ...] = ()

    def stop(self) -> None:
        """End the current round and every py-spy of it, from any thread; never waits."""
        self._pool.close(kill=True)

    def read_round(
        self, limit_s: float = ROUND_S, progress: Callable[[DumpRound, int], None] | None = None
    ) -> DumpRound:
        """Read every process once; those not done within ``limit_s`` become errors.

        ``progress`` gets what has come so far, and the number of processes, a few times a second.
        """
        before_s = self._pool.cost()[0]
        self._dead = find_dead({member.identity.pid for member in self._members}, self._proc)
        turns = Turns[Member, _Answer | Failure](
            "dump", lambda member: guard(lambda: self._read(member, now))
        )
        ends = OtherEnds(self._names, self._proc)
        now = _Round(self._find_spy(), find_spies(self._proc), ends, turns.late, [])
        most = MOST_NATIVE_AT_ONCE if self._how.native else MOST_AT_ONCE
        waiting = deque(self._members)
        got: dict[Member, _Answer] = {}
        end_s = time.monotonic() + limit_s
        told, told_s = 0, time.monotonic()
        try:
            while (waiting or turns.active) and not self._pool.is_ending:
                now_s = time.monotonic()
                if progress is not None and len(got) > told and now_s - told_s >= PROGRESS_S:
                    told, told_s = len(got), now_s
                    progress(self._close(got, now, before_s), told)
                for member in turns.give_up(end_s):
                    got[member] = self._give_up(member, now, NO_ANSWER)
                if now_s >= end_s or not (waiting or turns.active):
                    break
                while waiting and len(turns.active) < most:
                    member = waiting.popleft()
                    turns.begin(member, now_s + self._timeout_s(now.of(member)))
                # Show what has come while the rest takes its time.
                tell_s = told_s + PROGRESS_S if progress is not None and len(got) > told else end_s
                if (answered := turns.wait(min(end_s, tell_s, *turns.active.values()))) is not None:
                    member, answer = answered
                    got[member] = (None, answer) if isinstance(answer, Failure) else answer
        finally:
            self._pool.kill()
        for member in waiting:
            got[member] = self._give_up(member, now, f"not reached within {limit_s:g} s")
        late_s = time.monotonic() + _LATE_S
        # py-spy was just killed at those that were given up: their stops count too.
        while self._stops and turns.late and time.monotonic() < late_s:
            turns.wait(late_s)
        return self._close(got, now, before_s)

    def _close(self, got: dict[Member, _Answer], now: _Round, before_s: float) -> DumpRound:
        ordered = [(member, got[member]) for member in self._members if member in got]
        return DumpRound(
            host=self._host,
            taken=datetime.now().astimezone(),
            taken_ns=time.monotonic_ns(),
            processes=tuple(look for _, (look, _) in ordered if look is not None),
            errors=tuple(
                report_failure(self._host, member, failure)
                for member, (_, failure) in ordered
                if failure is not None
            ),
            paused_ms=sum(now.pauses_ms, 0.0),
            spy_cpu_ms=(self._pool.cost()[0] - before_s) * 1000,
            dead=self._dead,
        )

    def _deadline_s(self) -> float:
        return NATIVE_DEADLINE_S if self._how.native else DEADLINE_S

    def _timeout_s(self, others: Sequence[Spy]) -> float:
        """Return the time for one process, its tries and the wait for somebody else's py-spy included."""
        tries = 2 if self._stops and not self._how.native else 1
        yield_s = yield_time_s(others, stops=self._stops) * tries if others else 0.0
        return self._deadline_s() * tries + GRACE_S + (SLEEPS_S if self._stops else 0.0) + yield_s

    def _give_up(self, member: Member, now: _Round, reason: str) -> _Answer:
        """Describe from /proc a process whose stacks did not come."""
        look = read_within(_PROC_S, lambda: self._look(member, Missing(reason), now.ends))
        return (look if is_known(look) else None), Failure(ErrorKind.LATE, reason)

    def _look(self, member: Member, stacks: Known[Sequence[StackCount]], ends: OtherEnds) -> ProcessLook:
        pid = member.identity.pid
        left, frozen = find_left(pid, member.loop_tid, self._proc), read_freezer(pid, self._proc)
        loop_tid = left.tid if left is not None else member.loop_tid if member.is_loop_told else 0
        held = is_known(frozen)
        threads = read_threads(
            pid,
            member.role,
            stacks,
            loop_tid=loop_tid,
            ends=ends,
            frozen=held,
            # The watch does not need the kernel functions of native threads.
            waits=self._how.asker is Asker.KEY,
            proc=self._proc,
        )
        return ProcessLook(
            pid=pid,
            start_ticks=member.identity.start_ticks,
            role=member.role,
            rank=member.rank,
            worker=member.worker,
            rank_pid=member.rank_pid,
            label=member.label,
            idle=threads.idle,
            threads=threads.looks,
            toll=read_toll(pid, self._proc),
            frozen=frozen if held else NOT_APPLICABLE,
        )

    def _read(self, member: Member, now: _Round) -> _Answer:
        found = find_gone(member.identity, self._proc) or self._read_stacks(member, now)
        if not isinstance(found, Failure):
            return self._look(member, found, now.ends), None
        failure = find_gone(member.identity, self._proc) or found
        if failure.kind is ErrorKind.GONE:
            return None, failure
        return self._look(member, Missing(failure.reason), now.ends), failure

    def _read_stacks(self, member: Member, now: _Round) -> Sequence[StackCount] | Failure:
        """Run py-spy where nothing prevents it, with a stop only as the last resort."""
        if isinstance(now.spy, Missing):
            return Failure(ErrorKind.NO_SPY, now.spy.reason)
        pid, how = member.identity.pid, self._how
        obstacle = find_obstacle(pid, now.of(member), self._proc, stops=how.native)
        if obstacle is not None:
            return obstacle
        found: Sequence[StackCount] | Failure = Failure(ErrorKind.FAILED, "not tried")
        for _ in range(0 if how.native else _TRIES):
            if self._pool.is_ending or member in now.late:
                return found
            found = self._run(pid, now.spy, nonblocking=True)
            if not (found.torn if isinstance(found, Failure) else is_torn(found)):
                return found
        # A stack that is lost each time may be of C++ and without a frame: no reason for a stop.
        named = not how.block_pids or pid in how.block_pids
        if not isinstance(found, Failure) or not (how.native or (how.block and named)):
            return found
        obstacle = find_sleeper(pid, self._proc)
        if obstacle is None and not how.native:
            obstacle = find_obstacle(pid, now.of(member), self._proc, stops=True)
        if obstacle is not None or self._pool.is_ending or member in now.late:
            return obstacle or found
        with watch_pause(pid, self._proc) as pause:
            found = self._run(pid, now.spy, nonblocking=False)
        # A py-spy that has read the stacks did stop the process, however briefly.
        now.pauses_ms.append(pause.paused_ms if isinstance(found, Failure) else pause.most_ms)
        return found

    def _run(self, pid: int, spy: str, *, nonblocking: bool) -> Sequence[StackCount] | Failure:
        how = self._how
        arguments = dump_arguments(pid, nonblocking=nonblocking, native=how.native, variables=how.variables)
        request = SpyRequest(
            pid,
            arguments,
            partial(parse_dump, pid=pid),
            self._deadline_s(),
            NATIVE_CPU_S if how.native else CPU_LIMIT_S,
            NICENESS if nonblocking else 0,
        )
        answer = self._pool.run(spy, request)
        return answer if isinstance(answer, Failure) else answer.sampled.stacks


ALREADY = "a dump is being read already"
NOBODY = "no process to read"
EARLIER_S = 600.0  # an older dump shows another part of the run
APART_S = 1.0  # even a working thread may stand still for less

Suspend = Callable[[], AbstractContextManager[None]]
MakeDumper = Callable[[Sequence[Member], DumpRequest], Dumper]


class DumpService(Worker[DumpState]):
    """Run one dump at a time. Every method returns at once."""

    def __init__(
        self,
        members: Callable[[], Sequence[Member]],
        make: MakeDumper = Dumper,
        suspends: Sequence[Suspend] = (),
    ) -> None:
        """Read nothing until ``ask``; ``members`` is called in any thread.

        ``suspends`` keep our other py-spys away from a process while a dump may stop it.
        """
        super().__init__("dump-service")
        self.paused_ms = 0.0  # how long all dumps so far have stopped processes
        self._members = members
        self._make = make
        self._suspends = tuple(suspends)
        self._finished: list[DumpRound] = []
        self._kept: tuple[frozenset[Identity], DumpRound] | None = None
        """The members of the last finished dump, and that dump."""
        self._dumper: Dumper | None = None

    def take(self) -> Applicable[tuple[DumpRound, ...]]:
        """Return the dumps of the whole job that ended since the last call."""
        with self._lock:
            finished, self._finished = tuple(self._finished), []
        return finished or NOT_APPLICABLE

    def ask(self, request: DumpRequest) -> None:
        """Start a dump, or say in ``state`` why not: one runs at a time."""
        wanted = [one for one in self._members() if not request.pids or one.identity.pid in request.pids]
        earlier, refused = self._find_earlier(request, wanted), "" if wanted else NOBODY
        first = DumpState(request, (), 0, len(wanted), bool(wanted), refused, earlier)
        with self._lock:
            if self.is_busy:
                self.change(lambda now: replace(now if is_known(now) else first, refused=ALREADY))
            elif not (wanted and self.begin(partial(self._run, first, wanted), _end, first)):
                self.change(lambda _: replace(first, running=False))

    def _find_earlier(self, request: DumpRequest, members: Sequence[Member]) -> Applicable[DumpRound]:
        """Return the dump to compare a single one with; several are compared with each other.

        Native frames make other stacks of the same place, so such dumps are compared with none.
        """
        if self._kept is None or request.rounds > 1 or request.native:
            return NOT_APPLICABLE
        kept, dump = self._kept
        fits = APART_S <= (time.monotonic_ns() - dump.taken_ns) / 1e9 <= EARLIER_S
        return dump if fits and kept.issuperset(one.identity for one in members) else NOT_APPLICABLE

    def stop(self) -> None:
        """End what runs, with all its py-spys."""
        super().stop()
        if (dumper := self._dumper) is not None:
            dumper.stop()

    def _run(self, state: DumpState, members: Sequence[Member]) -> None:
        request = state.request
        with ExitStack() as held:
            for suspend in self._suspends if request.block or request.native else ():
                held.enter_context(suspend())
            self._dumper = dumper = self._make(members, request)
            rounds: tuple[DumpRound, ...] = ()
            due_s = time.monotonic()
            for _ in range(request.rounds):
                if self.stopped.wait(max(due_s - time.monotonic(), 0.0)):
                    return
                due_s = time.monotonic() + request.every_s

                def grow(part: DumpRound, answered: int, before: tuple[DumpRound, ...] = rounds) -> None:
                    self.change(lambda _: replace(state, rounds=(*before, part), answered=answered))

                one = dumper.read_round(NATIVE_ROUND_S if request.native else ROUND_S, grow)
                if self.stopped.is_set():
                    return
                with self._lock:
                    if request.is_whole:
                        self._finished.append(one)
                    self.paused_ms += one.paused_ms
                    if not request.native:
                        self._kept = frozenset(member.identity for member in members), one
                grow(one, len(members))
                rounds = (*rounds, one)


def _end(state: Applicable[DumpState], answer: Known[None]) -> Applicable[DumpState]:
    refused = "" if is_known(answer) else f"the dump failed: {answer.reason}"
    return replace(state, running=False, refused=refused) if is_known(state) else state
