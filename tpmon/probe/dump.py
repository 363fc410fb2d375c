"""Dump the stacks of every process of a job with py-spy, at most four at a time, without stopping any.

Each process has a deadline of its own: one that does not answer costs its own stack alone. A stop
happens only with ``block``, for a process that could not be read without one; it is timed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tpmon.model.dump import DumpError, DumpRound, ErrorKind, ProcessLook
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.stacks import StackCount
from tpmon.probe.background import read_within
from tpmon.probe.dump_pause import watch_pause
from tpmon.probe.dump_threads import read_threads
from tpmon.probe.job import Job, Member
from tpmon.probe.other_spies import Spy, find_spies
from tpmon.probe.procread import PROC, read_file, read_stat
from tpmon.probe.stack_child import CPU_LIMIT_S, Outcome, SpyChild, dump_arguments, find_spy
from tpmon.probe.stack_refusal import explain_refusal, parse_tracer, read_standing
from tpmon.probe.stack_text import Refusal, parse_complaint, parse_dump

MOST_AT_ONCE = 4
DEADLINE_S = 5.0
"""For one py-spy; it needs 10 to 40 ms of CPU, and many times that on a crowded machine."""
ROUND_S = 30.0
"""For a whole round; a job of 72 processes takes 2 s on an idle machine."""
GRACE_S = 1.0
PROGRESS_S = 0.25
"""Between two pictures of a round that is still read."""
YIELD_S = 2.0
"""How long a py-spy of somebody else at the same process is waited for."""
_LOOK_AGAIN_S = 0.1
_PROC_S = 0.5
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


@dataclass(frozen=True, slots=True)
class _Failure:
    """Say why there are no stacks; ``torn``: another try may work, and one with a stop most likely."""

    kind: ErrorKind
    reason: str
    torn: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """Hold what one process gave; no look where it is gone."""

    look: ProcessLook | None
    failure: _Failure | None
    paused_ms: float


class Dumper:
    """Read rounds of stacks of one job."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        block: bool = False,
        proc: str = PROC,
        spy: Callable[[], Known[str]] = find_spy,
    ) -> None:
        """Read the processes of ``members``, in this order; with ``block`` stop those that need it."""
        self._members = tuple(members)
        self._block = block
        self._proc = proc
        self._find_spy = spy
        self._host = os.uname().nodename
        self._lock = threading.Lock()
        self._children: set[SpyChild] = set()
        self._spent_s = 0.0
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
        spy = self._find_spy()
        spies = find_spies(self._proc)
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
                progress(self._close(got, before_s), told)
            for member in [one for one, due_s in active.items() if now_s >= min(due_s, end_s)]:
                del active[member]
                got[member] = self._give_up(member, "py-spy gave no answer in time")
            if now_s >= end_s:
                break
            while waiting and len(active) < MOST_AT_ONCE:
                member = waiting.popleft()
                others = spies.get(member.identity.pid, ())
                patience_s = DEADLINE_S * (2 if self._block else 1) + GRACE_S + (YIELD_S if others else 0.0)
                active[member] = now_s + patience_s
                work = (member, spy, others, answers)
                threading.Thread(target=self._work, args=work, name="tpmon-dump", daemon=True).start()
            with contextlib.suppress(queue.Empty):
                due_s = min(end_s, *active.values()) - time.monotonic()
                member, answer = answers.get(timeout=max(due_s, 0.001))
                if active.pop(member, None) is not None:
                    got[member] = answer
        for member in waiting:
            got[member] = self._give_up(member, f"not reached within {limit_s:g} s")
        self._stop_children()
        return self._close(got, before_s)

    def _close(self, got: dict[Member, _Answer], before_s: float) -> DumpRound:
        ordered = [(member, got[member]) for member in self._members if member in got]
        return DumpRound(
            host=self._host,
            taken=datetime.now().astimezone(),
            taken_ns=time.monotonic_ns(),
            processes=tuple(answer.look for _, answer in ordered if answer.look is not None),
            errors=tuple(
                self._error(member, answer.failure)
                for member, answer in ordered
                if answer.failure is not None
            ),
            paused_ms=sum(answer.paused_ms for _, answer in ordered),
            spy_cpu_ms=(self._spent() - before_s) * 1000,
        )

    def _error(self, member: Member, failure: _Failure) -> DumpError:
        return DumpError(
            host=self._host,
            pid=member.identity.pid,
            role=member.role,
            rank=member.rank,
            worker=member.worker,
            kind=failure.kind,
            reason=failure.reason,
        )

    def _spent(self) -> float:
        with self._lock:
            return self._spent_s + sum(child.cost()[0] for child in self._children)

    def _stop_children(self) -> None:
        with self._lock:
            for child in self._children:
                child.stop()

    def _give_up(self, member: Member, reason: str) -> _Answer:
        """Tell of a process whose stacks did not come what /proc tells."""
        look = read_within(_PROC_S, lambda: self._look(member, Missing(reason)))
        return _Answer(look if is_known(look) else None, _Failure(ErrorKind.LATE, reason), 0.0)

    def _look(self, member: Member, stacks: Known[Sequence[StackCount]]) -> ProcessLook:
        threads = read_threads(member.identity.pid, member.role, stacks, self._proc)
        return ProcessLook(
            pid=member.identity.pid,
            start_ticks=member.identity.start_ticks,
            role=member.role,
            rank=member.rank,
            worker=member.worker,
            rank_pid=member.rank_pid,
            label=member.label,
            idle=threads.idle,
            threads=threads.looks,
        )

    def _work(
        self,
        member: Member,
        spy: Known[str],
        others: Sequence[Spy],
        answers: queue.Queue[tuple[Member, _Answer]],
    ) -> None:
        try:
            answer = self._read(member, spy, others)
        except OSError as error:
            answer = _Answer(None, _Failure(ErrorKind.GONE, f"it ended: {error.strerror or error}"), 0.0)
        except Exception as error:  # noqa: BLE001  # one process fails alone, and says why
            failure = _Failure(ErrorKind.FAILED, f"{type(error).__name__}: {error}")
            answer = _Answer(None, failure, 0.0)
        answers.put((member, answer))

    def _read(self, member: Member, spy: Known[str], others: Sequence[Spy]) -> _Answer:
        pid = member.identity.pid
        gone = self._find_gone(member)
        if gone is not None:
            return _Answer(None, gone, 0.0)
        paused_ms = 0.0
        stacks: Known[Sequence[StackCount]]
        failure = self._find_obstacle(pid, spy, others)
        if failure is None and is_known(spy):
            found, paused_ms = self._spy(member, spy)
            failure = found if isinstance(found, _Failure) else None
            stacks = Missing(found.reason) if isinstance(found, _Failure) else found
        else:
            stacks = Missing(failure.reason if failure else "no py-spy")
        if failure is not None:
            failure = self._find_gone(member) or failure
            if failure.kind is ErrorKind.GONE:
                return _Answer(None, failure, paused_ms)
        return _Answer(self._look(member, stacks), failure, paused_ms)

    def _find_gone(self, member: Member) -> _Failure | None:
        try:
            stat = read_stat(member.identity.pid, self._proc)
        except OSError:
            return _Failure(ErrorKind.GONE, "it ended")
        if stat.start_ticks != member.identity.start_ticks:
            return _Failure(ErrorKind.GONE, "it ended, and another process has its number")
        if stat.state in "ZX":
            return _Failure(ErrorKind.GONE, "it ended and was not reaped by its parent")
        return None

    def _find_obstacle(self, pid: int, spy: Known[str], others: Sequence[Spy]) -> _Failure | None:
        """Say why py-spy must not be started at a process now."""
        if isinstance(spy, Missing):
            return _Failure(ErrorKind.NO_SPY, spy.reason)
        tracer = parse_tracer(read_file(f"{self._proc}/{pid}/status", 65536))
        if tracer:
            return _Failure(ErrorKind.TRACED, f"pid {tracer} traces it (a debugger?): end that first")
        end_s = time.monotonic() + YIELD_S
        while (living := [one for one in others if one.lives(self._proc)]) and time.monotonic() < end_s:
            time.sleep(_LOOK_AGAIN_S)
        # A sampler reads without a stop for ten seconds on end, and does not mind a second reader.
        stopping = [one for one in living if not one.nonblocking or self._block]
        if stopping:
            return _Failure(ErrorKind.BUSY, f"another py-spy ({stopping[0].pid}) looks at it: try again")
        return None

    def _spy(self, member: Member, spy: str) -> tuple[Sequence[StackCount] | _Failure, float]:
        """Run py-spy, without a stop first; also return for how long the process was stopped."""
        pid = member.identity.pid
        found: Sequence[StackCount] | _Failure = _Failure(ErrorKind.FAILED, "not tried")
        for _ in range(_TRIES):
            found = self._run(pid, (spy, *dump_arguments(pid)))
            if not isinstance(found, _Failure) or not found.torn:
                break
        if not isinstance(found, _Failure) or not found.torn or not self._block:
            return found, 0.0
        with watch_pause(pid, self._proc) as pause:
            found = self._run(pid, (spy, *dump_arguments(pid, nonblocking=False)))
        return found, pause.paused_ms

    def _run(self, pid: int, command: tuple[str, ...]) -> Sequence[StackCount] | _Failure:
        child = SpyChild()
        with self._lock:
            self._children.add(child)
        try:
            return self._settle(pid, child.run(command, DEADLINE_S))
        except OSError as error:
            return _Failure(ErrorKind.NO_SPY, f"py-spy cannot be started: {error.strerror or error}")
        finally:
            with self._lock:
                self._children.discard(child)
                self._spent_s += child.cost()[0]

    def _settle(self, pid: int, outcome: Outcome) -> Sequence[StackCount] | _Failure:
        if outcome.late:
            return _Failure(ErrorKind.LATE, f"py-spy gave no answer within {DEADLINE_S:g} s")
        if outcome.status == -signal.SIGXCPU:
            return _Failure(ErrorKind.LATE, f"py-spy needs more than {CPU_LIMIT_S} s of CPU here")
        if outcome.flooded:
            return _Failure(ErrorKind.FAILED, "more stacks than tpmon reads")
        if outcome.status:
            return self._complain(pid, outcome)
        sampled = parse_dump(outcome.output, pid)
        if not sampled.stacks:
            return _Failure(ErrorKind.FAILED, "py-spy saw no Python thread", torn=True)
        return sampled.stacks

    def _complain(self, pid: int, outcome: Outcome) -> _Failure:
        refusal, text = parse_complaint(outcome.errors)
        if refusal is Refusal.PERMISSION:
            return _Failure(ErrorKind.DENIED, explain_refusal(read_standing(pid, self._proc)))
        if refusal is Refusal.UNKNOWN_PYTHON:
            return _Failure(ErrorKind.UNKNOWN_PYTHON, f"py-spy does not know its Python: {text}")
        if refusal is Refusal.GONE:
            return _Failure(ErrorKind.GONE, "it ended")
        return _Failure(ErrorKind.FAILED, f"py-spy: {text}", torn=True)
