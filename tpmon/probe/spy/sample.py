"""Sample the stacks of processes for some seconds with py-spy.

Each process is sampled in slices of whole seconds, one after the other, so that results come while it
goes on; where there are more than four, those that were sampled least have the next turn.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from tpmon.model.dump import ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.process import Identity, Role
from tpmon.model.sample import (
    MOST_AT_ONCE,
    CountedFunction,
    SampledProcess,
    SampleReading,
    SampleRequest,
    slice_seconds,
)
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.text.clean import name_failure
from tpmon.probe.base.procread import PROC, read_file
from tpmon.probe.job.job import Member
from tpmon.probe.job.loop_thread import find_loop, read_loop
from tpmon.probe.proc.files import SchedStat, parse_schedstat
from tpmon.probe.spy.child import (
    CPU_LIMIT_S,
    NO_ANSWER,
    SpyChild,
    find_spy,
    record_arguments,
    say_unstarted,
)
from tpmon.probe.spy.failure import (
    Failure,
    Spy,
    explain_empty,
    explain_outcome,
    find_gone,
    find_obstacle,
    find_spies,
    report_failure,
)
from tpmon.probe.spy.text import Remarks, Sampled, parse_raw, parse_remarks

MOST_STACKS = 2000
"""Different stacks that are kept of one process; later ones count without their frames."""
_NOT_WATCHED = Missing("the main thread's CPU time could not be read")


@dataclass(frozen=True, slots=True)
class SampleSlice:
    """Hold one slice of one process. ``looks`` is how often py-spy looked, with and without success."""

    sampled: Sampled
    remarks: Remarks
    looks: int
    wall_s: float
    tid: int
    """The thread of which ``before`` and ``after`` are: the one of the loop, as far as it was known."""
    before: Known[SchedStat]
    after: Known[SchedStat]


def read_thread(pid: int, tid: int, proc: str = PROC) -> Known[SchedStat]:
    """Read for how long a thread ran and waited for a CPU since it began."""
    try:
        return parse_schedstat(read_file(f"{proc}/{pid}/task/{tid}/schedstat", 128))
    except (OSError, ValueError):
        return _NOT_WATCHED


def count_looks(sampled: Sampled, remarks: Remarks, counted: CountedFunction, planned: int) -> int:
    """Tell how often py-spy looked at the process.

    With idle threads every look finds the main thread, or is an error; without them only the plan
    tells, which py-spy keeps also when it is late.
    """
    seen = sampled.samples + remarks.errors
    return seen if counted is CountedFunction.ALL else max(seen, planned)


class SampleTally:
    """Remember what was sampled of one process, and why there is no more."""

    def __init__(self, member: Member) -> None:
        """Start with nothing."""
        self.member = member
        self.loop = member.loop
        self.turns = 0
        self.tries = 0
        """Failures since the last slice."""
        self.looks = 0
        self.failure: Failure | None = None
        self.refusal: Failure | None = None
        """What its last try ended with, while there may be another."""
        self._lost = 0
        self._behind_s = 0.0
        self._watched_s = 0.0
        self._run_ns = 0
        self._delay_ns = 0
        self._stacks: Counter[tuple[int, str, tuple[StackFrame, ...]]] = Counter()

    @property
    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        return self.failure is not None and self.failure.kind is ErrorKind.GONE

    def close(self) -> None:
        """Say at the end why there is nothing of a process that had its turn."""
        if not self.looks and self.failure is None:
            self.failure = self.refusal

    def add(self, one: SampleSlice) -> None:
        """Add a slice."""
        self.tries, self.refusal = 0, None
        self.looks += one.looks
        self._lost += one.remarks.errors
        self._behind_s = max(self._behind_s, one.remarks.behind_s)
        self._learn(one.sampled.stacks)
        if one.tid == self.loop_tid and is_known(one.before) and is_known(one.after):
            self._watched_s += one.wall_s
            self._run_ns += one.after.run_ns - one.before.run_ns
            self._delay_ns += one.after.wait_ns - one.before.wait_ns
        for stack in one.sampled.stacks:
            key = (stack.tid, stack.thread, stack.frames)
            if key not in self._stacks and len(self._stacks) >= MOST_STACKS:
                key = (stack.tid, stack.thread, ())
            self._stacks[key] += stack.samples

    @property
    def loop_tid(self) -> int:
        """Return the number of the thread that runs the loop."""
        return self.loop.thread.tid if is_known(self.loop) else self.member.identity.pid

    def _learn(self, stacks: Sequence[StackCount]) -> None:
        """Learn from a slice which thread runs the loop, where nobody knows it yet."""
        member = self.member
        if member.role is not Role.RANK or member.is_loop_told or is_known(self.loop):
            return
        found = find_loop(stacks, member.identity.pid)
        if found is not None:
            self.loop = read_loop(member.identity.pid, found)
        if is_known(self.loop):
            self._watched_s, self._run_ns, self._delay_ns = 0.0, 0, 0  # those of the main thread

    def total(self, rate_hz: int) -> SampledProcess:
        """Return all that was sampled so far."""
        member = self.member
        watched = self._watched_s > 0
        return SampledProcess(
            pid=member.identity.pid,
            start_ticks=member.identity.start_ticks,
            role=member.role,
            rank=member.rank,
            worker=member.worker,
            rank_pid=member.rank_pid,
            label=member.label,
            seconds=self.looks / rate_hz,
            looks=self.looks,
            lost=self._lost,
            behind_s=self._behind_s,
            watched_s=self._watched_s,
            cpu_s=self._run_ns / 1e9 if watched else _NOT_WATCHED,
            delay_s=self._delay_ns / 1e9 if watched else _NOT_WATCHED,
            stacks=tuple(
                StackCount(tid, thread, frames, samples)
                for (tid, thread, frames), samples in self._stacks.items()
            ),
            loop_tid=self.loop.said if is_known(self.loop) else NOT_APPLICABLE,
        )


GRACE_S = 5.0
"""A py-spy that is not done so long after the end of its slice is killed; it starts in 0.05 s."""
FINISH_S = 2.0
"""How long slices that were asked to end are waited for."""
LEAST_LEFT_S = 0.5
"""With less than this left no slice is begun: the shortest takes a second."""
TRIES = 3
"""A start can fail because the interpreter changed while it was looked for, or the machine is crowded."""
ENDING_S = 0.3
HELD_S = 1.0
"""Before a process that somebody traces is tried again: a dump with a stop holds it for an instant."""
_PASSING = (ErrorKind.LATE, ErrorKind.TRACED, ErrorKind.BUSY)
_LOOK_S = 0.25
_TICK_S = 1.0
"""Between two calls of ``progress``, which adds up all that there is."""

MEET_EVERY_S = 1.0
MOST_PROCESSES = 4096

FindMembers = Callable[[], Sequence[Member]]
Progress = Callable[[SampleReading], None]
_Answer = tuple[SampleTally, "SampleSlice | Failure"]


def fix_request(members: Sequence[Member], request: SampleRequest) -> SampleRequest:
    """Name the process that a request without one means: the lowest rank here."""
    ranks = [one for one in members if one.role is Role.RANK]
    if request.everyone or request.pids or not ranks:
        return request
    lowest = min(ranks, key=lambda one: one.rank if is_known(one.rank) else math.inf)
    return replace(request, pids=(lowest.identity.pid,))


def choose_members(members: Sequence[Member], request: SampleRequest) -> tuple[Member, ...]:
    """Return the processes that a request names; a rank stands for its loader workers too."""
    return tuple(one for one in members if request.everyone or _is_named(one, request.pids))


def _is_named(member: Member, pids: tuple[int, ...]) -> bool:
    serves = member.role is Role.WORKER and is_known(member.rank_pid) and member.rank_pid in pids
    return serves or member.identity.pid in pids


def sample_arguments(pid: int, rate_hz: int, seconds: int, counted: CountedFunction) -> tuple[str, ...]:
    """Return the arguments for one slice, in which the samples of ``counted`` count."""
    arguments = record_arguments(pid, rate_hz, seconds)
    if counted is CountedFunction.RUNNING:
        return tuple(one for one in arguments if one != "--idle")
    return (*arguments, "--gil") if counted is CountedFunction.GIL else arguments


class Sampler:
    """Sample some processes once, for as long as was asked."""

    def __init__(
        self,
        find: FindMembers,
        request: SampleRequest,
        *,
        proc: str = PROC,
        spy: Callable[[], Known[str]] = find_spy,
    ) -> None:
        """Sample what ``find`` tells, the first ones first; nothing runs until ``run``.

        ``find`` is asked once a second in the thread that runs, for workers that are started anew.
        """
        self._find = find
        self._tallies: dict[Identity, SampleTally] = {}
        self._request = request
        self._proc = proc
        self._find_spy = spy
        self._host = os.uname().nodename
        self._lock = threading.Lock()
        self._children: set[SpyChild] = set()
        self._spent_s = 0.0
        self._began_s = 0.0
        self._last_s = math.inf
        """When everything that still runs is given up."""
        self._holds = 0
        self._finishing = False
        self._stopped = False

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Begin no slice within, and end those that run; what they have counts."""
        with self._lock:
            self._holds += 1
            for child in self._children:
                child.finish(for_good=True)
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1

    def finish(self) -> None:
        """End early and keep what there is, from any thread; never waits."""
        if not self._finishing:
            self._last_s = time.monotonic() + FINISH_S
        self._finishing = True
        with self._lock:
            for child in self._children:
                child.finish(for_good=True)

    def stop(self) -> None:
        """End now, from any thread, with every py-spy; never waits."""
        self._finishing = self._stopped = True
        with self._lock:
            for child in self._children:
                child.stop()

    def run(self, progress: Progress | None = None) -> SampleReading:
        """Sample until the time is over, nobody is left, or ``finish``; bounded by a grace beyond that.

        ``progress`` gets what there is so far, once a second.
        """
        self._began_s = time.monotonic()
        self._meet()
        spy = self._find_spy()
        if isinstance(spy, Missing):
            for tally in self._tallies.values():
                tally.failure = Failure(ErrorKind.NO_SPY, spy.reason)
            return self._read()
        try:
            self._take_turns(spy, progress)
        finally:
            with self._lock:
                for child in self._children:
                    child.stop()
        return self._read()

    def _take_turns(self, spy: str, progress: Progress | None) -> None:
        spies = find_spies(self._proc)
        answers: queue.Queue[_Answer] = queue.Queue()
        end_s = self._began_s + self._request.seconds
        active: set[SampleTally] = set()
        self._last_s = min(self._last_s, end_s + slice_seconds(1) + GRACE_S)
        told_s = met_s = self._began_s
        while not self._stopped:
            if time.monotonic() - met_s >= MEET_EVERY_S:
                met_s = time.monotonic()
                self._meet()
            self._begin_slices(spy, spies, active, answers, end_s)
            now_s = time.monotonic()
            is_held = self._holds and not self._finishing and now_s < end_s
            if now_s > self._last_s or not (active or is_held):
                break
            with contextlib.suppress(queue.Empty):  # then it is time to look at the clock
                self._settle(*answers.get(timeout=_LOOK_S), active)
            if progress is not None and time.monotonic() - told_s >= _TICK_S:
                told_s = time.monotonic()
                progress(self._read())
        if not self._finishing:
            for tally in active:
                tally.failure = Failure(ErrorKind.LATE, NO_ANSWER)
        for tally in self._tallies.values():
            tally.close()

    def _meet(self) -> None:
        """Add the processes that are new."""
        for member in self._find()[: MOST_PROCESSES - len(self._tallies)]:
            if member.identity not in self._tallies:
                self._tallies[member.identity] = SampleTally(member)

    def _read(self) -> SampleReading:
        tallies = tuple(self._tallies.values())
        rate_hz = self._request.rate_hz
        with self._lock:
            spent_s = self._spent_s + sum(child.cost()[0] for child in self._children)
        return SampleReading(
            request=self._request,
            host=self._host,
            taken=datetime.now().astimezone(),
            elapsed_s=time.monotonic() - self._began_s,
            asked=len(tallies),
            ended=sum(tally.has_ended for tally in tallies),
            processes=tuple(tally.total(rate_hz) for tally in tallies if tally.looks),
            errors=tuple(
                report_failure(self._host, tally.member, tally.failure)
                for tally in tallies
                if tally.failure is not None and not (tally.has_ended and tally.looks)
            ),
            spy_cpu_ms=spent_s * 1000,
        )

    def _begin_slices(
        self,
        spy: str,
        spies: dict[int, tuple[Spy, ...]],
        active: set[SampleTally],
        answers: queue.Queue[_Answer],
        end_s: float,
    ) -> None:
        left_s = end_s - time.monotonic()
        if self._finishing or self._holds or left_s < LEAST_LEFT_S:
            return
        living = [tally for tally in self._tallies.values() if tally.failure is None]
        waiting = [tally for tally in living if tally not in active]
        slice_s = slice_seconds(len(living))
        # sorted() is stable: of those that were sampled least, the first named comes first.
        for tally in sorted(waiting, key=lambda one: one.turns)[: MOST_AT_ONCE - len(active)]:
            # The first slice is short, so that something is there soon.
            seconds = max(1, min(slice_s if tally.turns else 1, round(left_s)))
            tally.turns += 1
            active.add(tally)
            work = (tally, spy, spies.get(tally.member.identity.pid, ()), seconds, answers)
            threading.Thread(target=self._work, args=work, name="tpmon-sample", daemon=True).start()

    def _settle(self, tally: SampleTally, answer: SampleSlice | Failure, active: set[SampleTally]) -> None:
        active.discard(tally)
        if isinstance(answer, SampleSlice):
            tally.add(answer)
            return
        if (self._finishing or self._holds) and answer.kind is not ErrorKind.GONE:
            return  # py-spy was asked to end before it could begin
        tally.tries, tally.refusal = tally.tries + 1, answer
        if not (answer.torn or answer.kind in _PASSING) or tally.tries >= TRIES:
            tally.failure = answer

    def _work(
        self, tally: SampleTally, spy: str, others: Sequence[Spy], seconds: int, answers: queue.Queue[_Answer]
    ) -> None:
        answer: SampleSlice | Failure
        try:
            answer = self._sample(tally, spy, others, seconds)
        except OSError as error:
            answer = Failure(ErrorKind.GONE, f"it ended: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001  # one process fails alone, and says why
            answer = Failure(ErrorKind.FAILED, name_failure(error))
        if isinstance(answer, Failure) and answer.kind in (ErrorKind.TRACED, ErrorKind.BUSY):
            time.sleep(HELD_S)
        answers.put((tally, answer))

    def _admit(self, child: SpyChild) -> Failure | None:
        """Add a child to those that a hold or an end reaches, or say why none may begin now."""
        with self._lock:
            if self._finishing:
                return Failure(ErrorKind.LATE, "it was to begin at the end")
            if self._holds:
                return Failure(ErrorKind.BUSY, "a dump stops it now")
            self._children.add(child)
        return None

    def _sample(
        self, tally: SampleTally, spy: str, others: Sequence[Spy], seconds: int
    ) -> SampleSlice | Failure:
        member = tally.member
        pid, tid = member.identity.pid, tally.loop_tid
        failure = find_gone(member.identity, self._proc) or find_obstacle(pid, others, self._proc)
        if failure is not None:
            return failure
        request = self._request
        before = read_thread(pid, tid, self._proc)
        began_s = time.monotonic()
        arguments = sample_arguments(pid, request.rate_hz, seconds, request.counted)
        limit_s = CPU_LIMIT_S + seconds  # one whose looks take all of their time is bounded by its deadline
        child = SpyChild()
        if (failure := self._admit(child)) is not None:
            return failure
        try:
            outcome = child.run((spy, *arguments), seconds + GRACE_S, limit_s)
        except OSError as error:
            return Failure(ErrorKind.NO_SPY, say_unstarted(error))
        finally:
            with self._lock:
                self._children.discard(child)
                self._spent_s += child.cost()[0]
        after = read_thread(pid, tid, self._proc)
        failure = explain_outcome(pid, outcome, seconds + GRACE_S, self._proc, limit_s)
        if failure is not None:
            if failure.torn:
                time.sleep(ENDING_S)  # one that is just ending takes a moment to be gone
            return find_gone(member.identity, self._proc) or failure
        sampled = parse_raw(outcome.output, pid)
        remarks = parse_remarks(outcome.output)
        # py-spy counts the look after which it ends.
        planned = round(min(seconds, outcome.wall_s) * request.rate_hz) - 1
        looks = count_looks(sampled, remarks, request.counted, planned)
        if not looks:
            nothing = Failure(ErrorKind.FAILED, explain_empty(sampled, outcome.output), torn=True)
            return find_gone(member.identity, self._proc) or nothing
        return SampleSlice(sampled, remarks, looks, time.monotonic() - began_s, tid, before, after)
