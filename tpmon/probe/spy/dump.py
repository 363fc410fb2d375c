"""Dump the stacks of every process of a job with py-spy, and measure how long each is held.

Each process has a deadline of its own: one that does not answer costs its own stack alone. A stop
happens only with ``block``, for a process that could not be read without one; it is timed, rather too long
than too short.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from tpmon.model.dump import DeadChild, DumpRound, ErrorKind, ProcessLook
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.stacks import StackCount
from tpmon.model.text.clean import name_failure
from tpmon.probe.base.deadline import read_within
from tpmon.probe.base.procread import PROC
from tpmon.probe.job.job import Job, Member
from tpmon.probe.job.leaderless import find_left
from tpmon.probe.job.outcome import find_dead
from tpmon.probe.proc.files import ProcFile
from tpmon.probe.proc.peers import OtherEnds
from tpmon.probe.proc.suspended import read_freezer
from tpmon.probe.spy.child import (
    CPU_LIMIT_S,
    NICENESS,
    NO_ANSWER,
    SpyChild,
    dump_arguments,
    find_spy,
    say_unstarted,
)
from tpmon.probe.spy.dump_threads import read_threads, read_toll
from tpmon.probe.spy.failure import (
    SLEEPS_S,
    Failure,
    Spy,
    explain_empty,
    explain_outcome,
    find_gone,
    find_obstacle,
    find_sleeper,
    find_spies,
    patience_s,
    report_failure,
)
from tpmon.probe.spy.text import is_torn, parse_dump

_EVERY_S = 0.0005
_JOIN_S = 1.0


@dataclass(slots=True)
class Pause:
    """Add up for how long the process was held, and keep the longest time in which nobody looked."""

    paused_ms: float = 0.0
    gap_ms: float = 0.0

    @property
    def most_ms(self) -> float:
        """Return the most that a stop can have taken, also one that no look met: it lay between two."""
        return self.paused_ms or self.gap_ms


@contextmanager
def watch_pause(pid: int, proc: str = PROC) -> Iterator[Pause]:
    """Look at the main thread of a process every half millisecond, in a thread of its own.

    The time from the look before one that finds it held to the look after it counts as held, so a look
    that comes late makes the pause longer and never shorter. A stop that no look meets is not in it.
    """
    pause = Pause()
    stop = threading.Event()
    work = (pid, proc, pause, stop, time.monotonic_ns())
    thread = threading.Thread(target=_watch, args=work, name="tpmon-pause", daemon=True)
    thread.start()
    try:
        yield pause
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _watch(pid: int, proc: str, pause: Pause, stop: threading.Event, begun_ns: int) -> None:
    """Look until ``stop``: whoever may hold it begins after ``begun_ns`` and ends before the last look."""
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


MOST_AT_ONCE = 8
"""Beside a job that keeps every core busy, 72 processes take 5 s four at a time, 3 to 4 s eight at a time."""
DEADLINE_S = 5.0
"""For one py-spy; it needs 10 to 40 ms of CPU, and many times that on a crowded machine."""
ROUND_S = 30.0
"""For a whole round; a job of 72 processes takes 2 s on an idle machine."""
NATIVE_ROUND_S = 300.0
"""With native frames, which take 0.1 to 1 s of CPU a process."""
GRACE_S = 1.0
PROGRESS_S = 0.25
"""Between two pictures of a round that is still read."""
MOST_NATIVE_AT_ONCE = 2
"""A py-spy that reads the symbols of torch takes up to 0.6 GB of memory."""
NATIVE_DEADLINE_S = 20.0
NATIVE_CPU_S = 15
"""The symbols of a CUDA build of torch; those of a CPU build take 0.3 to 0.7 s."""
_PROC_S = 0.5
_LATE_S = 0.5
_TRIES = 3
"""A process that runs changes its stack while it is read without a stop: the next try mostly works."""


def dumpable(job: Job) -> tuple[Member, ...]:
    """Return the members whose stacks are worth reading: ranks, then workers, then helpers in Python."""
    order = (Role.RANK, Role.WORKER, Role.HELPER)
    return tuple(
        member
        for role in order
        for member in job.members
        if member.role is role and (role is not Role.HELPER or _is_python(job, member))
    )


def _is_python(job: Job, member: Member) -> bool:
    fact = job.facts.get(member.identity.pid)
    return fact is not None and fact.python


def name_member(member: Member) -> str:
    """Say in words which part of the job a process is: "rank 0", "worker 1 of rank 0"."""
    rank = f"rank {member.rank}" if is_known(member.rank) else ""
    if member.role is Role.RANK:
        return rank or member.label
    if member.role is Role.WORKER and is_known(member.worker):
        return f"worker {member.worker}{f' of {rank}' if rank else ''}"
    return member.label or member.role.value


@dataclass(frozen=True, slots=True)
class Depth:
    """Say how deep to look, and whether a process may be stopped for it.

    With ``block`` one that cannot be read otherwise is stopped, of those in ``block_pids`` where it names
    some. ``native`` adds the frames of C and stops every process; ``variables`` adds those of each frame
    and stops none. Without ``waits`` native threads are not asked where in the kernel they are.
    """

    block: bool = False
    native: bool = False
    variables: bool = False
    block_pids: tuple[int, ...] = ()
    waits: bool = True

    def may_stop(self, pid: int) -> bool:
        """Tell whether a process may be stopped where nothing else reads it."""
        return self.native or (self.block and (not self.block_pids or pid in self.block_pids))


LOOK_ONLY = Depth()


@dataclass(frozen=True, slots=True)
class _Around:
    """Hold what belongs to one round: py-spy, those of others, who has what open, and its stops."""

    spy: Known[str]
    spies: Mapping[int, tuple[Spy, ...]]
    ends: OtherEnds
    late: set[Member]
    """Those whose answer is not waited for any more and has not come: nothing new is started at them."""
    pauses_ms: list[float]
    """Of each stop of the round."""

    def of(self, member: Member) -> tuple[Spy, ...]:
        return self.spies.get(member.identity.pid, ())


@dataclass(frozen=True, slots=True)
class _Answer:
    """Hold what one process gave; no look where it is gone."""

    look: ProcessLook | None
    failure: Failure | None


def _await_late(around: _Around, answers: queue.Queue[tuple[Member, _Answer]]) -> None:
    """Wait for those that were given up and whose py-spy has just been killed: their stops count too."""
    end_s = time.monotonic() + _LATE_S
    while around.late and (left_s := end_s - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            around.late.discard(answers.get(timeout=left_s)[0])


class Dumper:
    """Read rounds of stacks of one job."""

    def __init__(
        self,
        members: Sequence[Member],
        depth: Depth = LOOK_ONLY,
        *,
        block: bool = False,
        proc: str = PROC,
        spy: Callable[[], Known[str]] = find_spy,
        around: Sequence[Member] = (),
    ) -> None:
        """Read the processes of ``members``, in this order; with ``block`` stop those that need it.

        ``around`` are the other processes of the job, to name who has the other end of a pipe.
        """
        self._members = tuple(members)
        self._depth = replace(depth, block=True) if block else depth
        self._names = {one.identity.pid: name_member(one) for one in (*around, *members)}
        self._proc = proc
        self._find_spy = spy
        self._host = os.uname().nodename
        self._lock = threading.Lock()
        self._children: set[SpyChild] = set()
        self._spent_s = 0.0
        self._dead: tuple[DeadChild, ...] = ()
        self._stopped = False

    def stop(self) -> None:
        """End the round that is read, and every py-spy of it, from any thread; never waits."""
        self._stopped = True
        self._stop_children()

    def read_round(
        self, limit_s: float = ROUND_S, progress: Callable[[DumpRound, int], None] | None = None
    ) -> DumpRound:
        """Look at every process once; those that are not done within ``limit_s`` become errors.

        ``progress`` gets what has come so far, and of how many processes, a few times a second.
        """
        before_s = self._spent()
        self._dead = find_dead({member.identity.pid for member in self._members}, self._proc)
        spy = self._find_spy()
        around = _Around(spy, find_spies(self._proc), OtherEnds(self._names, self._proc), set(), [])
        answers: queue.Queue[tuple[Member, _Answer]] = queue.Queue()
        waiting = deque(self._members)
        active: dict[Member, float] = {}
        got: dict[Member, _Answer] = {}
        end_s = time.monotonic() + limit_s
        told, told_s = 0, time.monotonic()
        while (waiting or active) and not self._stopped:
            now_s = time.monotonic()
            if progress is not None and len(got) > told and now_s - told_s >= PROGRESS_S:
                told, told_s = len(got), now_s
                progress(self._close(got, around, before_s), told)
            for member in [one for one, due_s in active.items() if now_s >= min(due_s, end_s)]:
                del active[member]
                around.late.add(member)
                got[member] = self._give_up(member, around, NO_ANSWER)
            if now_s >= end_s:
                break
            while waiting and len(active) < (MOST_NATIVE_AT_ONCE if self._depth.native else MOST_AT_ONCE):
                member = waiting.popleft()
                active[member] = now_s + self._patience_s(around.of(member))
                work = (member, around, answers)
                threading.Thread(target=self._work, args=work, name="tpmon-dump", daemon=True).start()
            with contextlib.suppress(queue.Empty):
                # What has come is told also while the rest takes its time.
                tell_s = told_s + PROGRESS_S if progress is not None and len(got) > told else end_s
                due_s = min(end_s, tell_s, *active.values()) - time.monotonic()
                member, answer = answers.get(timeout=max(due_s, 0.001))
                around.late.discard(member)
                if active.pop(member, None) is not None:
                    got[member] = answer
        for member in waiting:
            got[member] = self._give_up(member, around, f"not reached within {limit_s:g} s")
        self._stop_children()
        if self._depth.block or self._depth.native:
            _await_late(around, answers)
        return self._close(got, around, before_s)

    def _close(self, got: dict[Member, _Answer], around: _Around, before_s: float) -> DumpRound:
        ordered = [(member, got[member]) for member in self._members if member in got]
        return DumpRound(
            host=self._host,
            taken=datetime.now().astimezone(),
            taken_ns=time.monotonic_ns(),
            processes=tuple(answer.look for _, answer in ordered if answer.look is not None),
            errors=tuple(
                report_failure(self._host, member, answer.failure)
                for member, answer in ordered
                if answer.failure is not None
            ),
            paused_ms=sum(around.pauses_ms, 0.0),
            spy_cpu_ms=(self._spent() - before_s) * 1000,
            dead=self._dead,
        )

    def _spent(self) -> float:
        with self._lock:
            return self._spent_s + sum(child.cost()[0] for child in self._children)

    def _stop_children(self) -> None:
        with self._lock:
            for child in self._children:
                child.stop()

    def _deadline_s(self) -> float:
        return NATIVE_DEADLINE_S if self._depth.native else DEADLINE_S

    def _patience_s(self, others: Sequence[Spy]) -> float:
        """Say how long one process may take, its tries and the wait for somebody else's py-spy included."""
        tries = 2 if self._depth.block and not self._depth.native else 1
        stops = self._depth.block or self._depth.native
        yield_s = patience_s(others, stops=stops) * tries if others else 0.0
        return self._deadline_s() * tries + GRACE_S + (SLEEPS_S if stops else 0.0) + yield_s

    def _give_up(self, member: Member, around: _Around, reason: str) -> _Answer:
        """Tell of a process whose stacks did not come what /proc tells."""
        look = read_within(_PROC_S, lambda: self._look(member, Missing(reason), around.ends))
        return _Answer(look if is_known(look) else None, Failure(ErrorKind.LATE, reason))

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
            waits=self._depth.waits,
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

    def _work(self, member: Member, around: _Around, answers: queue.Queue[tuple[Member, _Answer]]) -> None:
        try:
            answer = self._read(member, around)
        except OSError as error:
            answer = _Answer(None, Failure(ErrorKind.GONE, f"it ended: {error.strerror or error}"))
        except Exception as error:  # noqa: BLE001  # one process fails alone, and says why
            answer = _Answer(None, Failure(ErrorKind.FAILED, name_failure(error)))
        answers.put((member, answer))

    def _read(self, member: Member, around: _Around) -> _Answer:
        gone = find_gone(member.identity, self._proc)
        if gone is not None and gone.kind is ErrorKind.GONE:
            return _Answer(None, gone)
        if gone is not None:
            return _Answer(self._look(member, Missing(gone.reason), around.ends), gone)
        found = self._read_stacks(member, around)
        if not isinstance(found, Failure):
            return _Answer(self._look(member, found, around.ends), None)
        failure = find_gone(member.identity, self._proc) or found
        if failure.kind is ErrorKind.GONE:
            return _Answer(None, failure)
        return _Answer(self._look(member, Missing(failure.reason), around.ends), failure)

    def _read_stacks(self, member: Member, around: _Around) -> Sequence[StackCount] | Failure:
        """Run py-spy where nothing speaks against it, with a stop only where nothing else is left."""
        if isinstance(around.spy, Missing):
            return Failure(ErrorKind.NO_SPY, around.spy.reason)
        pid, depth = member.identity.pid, self._depth
        obstacle = find_obstacle(pid, around.of(member), self._proc, stops=depth.native)
        if obstacle is not None:
            return obstacle
        found: Sequence[StackCount] | Failure = Failure(ErrorKind.FAILED, "not tried")
        for _ in range(0 if depth.native else _TRIES):
            if self._stopped or member in around.late:
                return found
            found = self._run(pid, (around.spy, *dump_arguments(pid, variables=depth.variables)))
            if not (found.torn if isinstance(found, Failure) else is_torn(found)):
                return found
        # A stack that is lost each time may be that of C++, which has no frame: no reason for a stop.
        if not isinstance(found, Failure) or not depth.may_stop(pid):
            return found
        obstacle = find_sleeper(pid, self._proc)
        if obstacle is None and not depth.native:
            obstacle = find_obstacle(pid, around.of(member), self._proc, stops=True)
        if obstacle is not None or self._stopped or member in around.late:
            return obstacle or found
        command = dump_arguments(pid, nonblocking=False, native=depth.native, variables=depth.variables)
        with watch_pause(pid, self._proc) as pause:
            found = self._run(pid, (around.spy, *command), niceness=0)
        # A py-spy that has read the stacks did stop the process, however briefly.
        around.pauses_ms.append(pause.paused_ms if isinstance(found, Failure) else pause.most_ms)
        return found

    def _run(
        self, pid: int, command: tuple[str, ...], niceness: int = NICENESS
    ) -> Sequence[StackCount] | Failure:
        child = SpyChild()
        with self._lock:
            self._children.add(child)
        limit_s = NATIVE_CPU_S if self._depth.native else CPU_LIMIT_S
        try:
            outcome = child.run(command, self._deadline_s(), limit_s, niceness)
        except OSError as error:
            return Failure(ErrorKind.NO_SPY, say_unstarted(error))
        finally:
            with self._lock:
                self._children.discard(child)
                self._spent_s += child.cost()[0]
        failure = explain_outcome(pid, outcome, self._deadline_s(), self._proc, limit_s)
        if failure is not None:
            return failure
        sampled = parse_dump(outcome.output, pid)
        if not sampled.stacks:
            return Failure(ErrorKind.FAILED, explain_empty(sampled, outcome.output), torn=True)
        return sampled.stacks
