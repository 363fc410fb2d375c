"""Sample the stacks of processes for some seconds with py-spy.

Each process is sampled in slices of whole seconds, so that results come meanwhile; of more than four, those
sampled least come next. A service runs one sampling at a time, for the key; nobody waits for it. Its state
grows, so that a screen shows hot functions as they come.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial

from tpmon.model.dump import ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Identity, Role
from tpmon.model.results.sample import (
    MOST_AT_ONCE,
    CountedFunction,
    SampledProcess,
    SampleReading,
    SampleRequest,
    SampleState,
    slice_seconds,
)
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.base.procread import PROC, read_file, read_or
from tpmon.probe.base.worker import Turns, Worker
from tpmon.probe.job.job import Member
from tpmon.probe.job.loop_thread import find_loop, read_loop
from tpmon.probe.proc.counters import SchedStat, parse_schedstat
from tpmon.probe.spy.failure import (
    CPU_LIMIT_S,
    NO_ANSWER,
    Failure,
    Spy,
    confirm,
    explain_empty,
    find_gone,
    find_obstacle,
    find_spies,
    find_spy,
    report_failure,
)
from tpmon.probe.spy.pool import SpyPool, SpyRequest, guard, record_arguments
from tpmon.probe.spy.text import Remarks, Sampled, parse_raw, parse_remarks

MOST_STACKS = 2000  # different ones kept of a process; later ones count without their frames
_NOT_WATCHED = Missing("the main thread's CPU time could not be read")


@dataclass(frozen=True, slots=True)
class SampleSlice:
    """Hold one slice of one process; ``looks`` counts samples, also failed ones."""

    sampled: Sampled
    remarks: Remarks
    looks: int
    wall_s: float
    tid: int  # of ``before`` and ``after``: the loop's thread, as far as it was known
    before: Known[SchedStat]
    after: Known[SchedStat]


def read_thread(pid: int, tid: int, proc: str = PROC) -> Known[SchedStat]:
    """Read for how long a thread has run and waited for a CPU."""
    path = f"{proc}/{pid}/task/{tid}/schedstat"
    return read_or(_NOT_WATCHED, lambda: parse_schedstat(read_file(path, 128)))


def count_samples(sampled: Sampled, remarks: Remarks, counted: CountedFunction, planned: int) -> int:
    """Return how often py-spy sampled the process.

    With idle threads every sample finds the main thread or is an error; without them only the plan tells,
    which py-spy keeps even when it is late.
    """
    seen = sampled.samples + remarks.errors
    return seen if counted is CountedFunction.ALL else max(seen, planned)


class SampleTally:
    """Remember what was sampled of one process, and why there is no more."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.loop = member.loop
        self.turns = 0
        self.tries = 0  # failures since the last slice
        self.looks = 0
        self.failure: Failure | None = None
        self.refusal: Failure | None = None  # of its last try, while another may come
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
        """Return the TID of the thread that runs the loop."""
        return self.loop.thread.tid if is_known(self.loop) else self.member.identity.pid

    def _learn(self, stacks: Sequence[StackCount]) -> None:
        """Learn from a slice which thread runs the loop, where that is unknown."""
        member = self.member
        if member.role is not Role.RANK or member.is_loop_told or is_known(self.loop):
            return
        found = find_loop(stacks, member.identity.pid)
        if found is not None:
            self.loop = read_loop(member.identity.pid, found)
        if is_known(self.loop):
            self._watched_s, self._run_ns, self._delay_ns = 0.0, 0, 0  # these were the main thread's

    def total(self, rate_hz: int) -> SampledProcess:
        """Return all samples so far."""
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


GRACE_S = 5.0  # after the end of its slice, before py-spy is killed; it starts in 0.05 s
FINISH_S = 2.0  # for slices that were asked to end
LEAST_LEFT_S = 0.5  # with less left no slice is begun: the shortest takes a second
TRIES = 3  # a start can fail as the interpreter changed meanwhile, or the machine is crowded
HELD_S = 1.0  # until a traced process is tried again: a dump with a stop holds it only for an instant
_PASSING = (ErrorKind.LATE, ErrorKind.TRACED, ErrorKind.BUSY)
_LOOK_S = 0.25
_TICK_S = 1.0  # between two calls of ``progress``, which adds everything up

REFRESH_EVERY_S = 1.0
MOST_PROCESSES = 4096

FindMembers = Callable[[], Sequence[Member]]
Progress = Callable[[SampleReading], None]


def fix_request(members: Sequence[Member], request: SampleRequest) -> SampleRequest:
    """Name the process that a request without one means: the lowest rank here."""
    ranks = [one for one in members if one.role is Role.RANK]
    if request.everyone or request.pids or not ranks:
        return request
    lowest = min(ranks, key=lambda one: one.rank if is_known(one.rank) else math.inf)
    return replace(request, pids=(lowest.identity.pid,))


def choose_members(members: Sequence[Member], request: SampleRequest) -> tuple[Member, ...]:
    """Return the processes that a request names; a rank includes its loader workers."""
    pids = request.pids
    return tuple(
        one
        for one in members
        if request.everyone or one.identity.pid in pids or (one.role is Role.WORKER and one.rank_pid in pids)
    )


def sample_arguments(pid: int, rate_hz: int, seconds: int, counted: CountedFunction) -> tuple[str, ...]:
    """Return the arguments for one slice in which samples of ``counted`` count."""
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
        """Sample what ``find`` returns, in its order; ``run`` calls it each second, for new workers."""
        self._find = find
        self._tallies: dict[Identity, SampleTally] = {}
        self._request = request
        self._proc = proc
        self._find_spy = spy
        self._host = os.uname().nodename
        self._pool = SpyPool(proc)
        self._began_s = 0.0
        self._last_s = math.inf  # when everything that still runs is given up
        self._stopped = False

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Start no slice within, and end those that run; they deliver what they have."""
        with self._pool.suspend(kill=False):
            yield

    def finish(self) -> None:
        """End early and keep what there is, from any thread; never waits."""
        if not self._pool.is_ending:
            self._last_s = time.monotonic() + FINISH_S
        self._pool.close(kill=False)

    def stop(self) -> None:
        """End now with every py-spy, from any thread; never waits."""
        self._stopped = True
        self._pool.close(kill=True)

    def run(self, progress: Progress | None = None) -> SampleReading:
        """Sample until time is over, nobody is left, or ``finish``, and a grace beyond that.

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
            self._pool.kill()
        return self._read()

    def _take_turns(self, spy: str, progress: Progress | None) -> None:
        spies = find_spies(self._proc)
        end_s = self._began_s + self._request.seconds
        lengths: dict[SampleTally, int] = {}
        turns = Turns[SampleTally, SampleSlice | Failure](
            "sample", lambda tally: self._sample_guarded(tally, spy, spies, lengths[tally])
        )
        self._last_s = min(self._last_s, end_s + slice_seconds(1) + GRACE_S)
        told_s = met_s = self._began_s
        while not self._stopped:
            if time.monotonic() - met_s >= REFRESH_EVERY_S:
                met_s = time.monotonic()
                self._meet()
            lengths.update(self._choose(turns.active, end_s))
            for tally in [one for one in lengths if one not in turns.active]:
                turns.begin(tally, math.inf)
            now_s = time.monotonic()
            is_held = self._pool.suspended and not self._pool.is_ending and now_s < end_s
            if now_s > self._last_s or not (turns.active or is_held):
                break
            if (answered := turns.wait(now_s + _LOOK_S)) is not None:
                del lengths[answered[0]]
                self._settle(*answered)
            if progress is not None and time.monotonic() - told_s >= _TICK_S:
                told_s = time.monotonic()
                progress(self._read())
        if not self._pool.is_ending:
            for tally in turns.active:
                tally.failure = Failure(ErrorKind.LATE, NO_ANSWER)
        for tally in self._tallies.values():
            if not tally.looks and tally.failure is None:
                tally.failure = tally.refusal

    def _meet(self) -> None:
        """Add new processes."""
        for member in self._find()[: MOST_PROCESSES - len(self._tallies)]:
            if member.identity not in self._tallies:
                self._tallies[member.identity] = SampleTally(member)

    def _read(self) -> SampleReading:
        tallies = tuple(self._tallies.values())
        rate_hz = self._request.rate_hz
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
            spy_cpu_ms=self._pool.cost()[0] * 1000,
        )

    def _choose(self, active: Mapping[SampleTally, float], end_s: float) -> dict[SampleTally, int]:
        """Return whose slices begin now, and their seconds."""
        left_s = end_s - time.monotonic()
        if self._pool.is_ending or self._pool.suspended or left_s < LEAST_LEFT_S:
            return {}
        living = [tally for tally in self._tallies.values() if tally.failure is None]
        waiting = [tally for tally in living if tally not in active]
        slice_s = slice_seconds(len(living))
        chosen: dict[SampleTally, int] = {}
        # sorted() is stable: of those sampled least, the first named comes first.
        for tally in sorted(waiting, key=lambda one: one.turns)[: MOST_AT_ONCE - len(active)]:
            # The first slice is short, so that something shows soon.
            chosen[tally] = max(1, min(slice_s if tally.turns else 1, round(left_s)))
            tally.turns += 1
        return chosen

    def _settle(self, tally: SampleTally, answer: SampleSlice | Failure) -> None:
        if isinstance(answer, SampleSlice):
            tally.add(answer)
            return
        if (self._pool.is_ending or self._pool.suspended) and answer.kind is not ErrorKind.GONE:
            return  # py-spy was asked to end before it could begin
        tally.tries, tally.refusal = tally.tries + 1, answer
        if not (answer.torn or answer.kind in _PASSING) or tally.tries >= TRIES:
            tally.failure = answer

    def _sample_guarded(
        self, tally: SampleTally, spy: str, spies: Mapping[int, Sequence[Spy]], seconds: int
    ) -> SampleSlice | Failure:
        others = spies.get(tally.member.identity.pid, ())
        answer = guard(lambda: self._sample(tally, spy, others, seconds))
        if isinstance(answer, Failure) and answer.kind in (ErrorKind.TRACED, ErrorKind.BUSY):
            time.sleep(HELD_S)
        return answer

    def _sample(
        self, tally: SampleTally, spy: str, others: Sequence[Spy], seconds: int
    ) -> SampleSlice | Failure:
        identity = tally.member.identity
        pid, tid = identity.pid, tally.loop_tid
        failure = find_gone(identity, self._proc) or find_obstacle(pid, others, self._proc)
        if failure is not None:
            return failure
        asked = self._request
        request = SpyRequest(
            pid,
            sample_arguments(pid, asked.rate_hz, seconds, asked.counted),
            partial(parse_raw, pid=pid),
            seconds + GRACE_S,
            CPU_LIMIT_S + seconds,  # one whose samples take all of their time is bounded by its deadline
            may_be_empty=True,
        )
        before = read_thread(pid, tid, self._proc)
        began_s = time.monotonic()
        answer = self._pool.run(spy, request)
        after = read_thread(pid, tid, self._proc)
        if isinstance(answer, Failure):
            return confirm(identity, answer, self._proc)
        sampled, outcome = answer.sampled, answer.outcome
        remarks = parse_remarks(outcome.output)
        # py-spy counts the sample after which it ends.
        planned = round(min(seconds, outcome.wall_s) * asked.rate_hz) - 1
        looks = count_samples(sampled, remarks, asked.counted, planned)
        if not looks:
            nothing = Failure(ErrorKind.FAILED, explain_empty(sampled, outcome.output), torn=True)
            return find_gone(identity, self._proc) or nothing
        return SampleSlice(sampled, remarks, looks, time.monotonic() - began_s, tid, before, after)


ALREADY = "stacks are being sampled already"
NOBODY = "no process to sample"
OFF = "stacks are off (--no-stacks)"
HELD = "a dump stops processes now: ask again when it is done"
NOTHING_YET = Missing("nothing was sampled yet")

MakeSampler = Callable[[FindMembers, SampleRequest], Sampler]


class SampleService(Worker[SampleState]):
    """Run one sampling at a time. Every method returns at once."""

    def __init__(self, members: FindMembers, make: MakeSampler = Sampler, *, enabled: bool = True) -> None:
        """Sample nothing until ``ask``; ``members`` is called in any thread."""
        super().__init__("sample-service")
        self._members = members
        self._make = make
        self._enabled = enabled
        self._sampler: Sampler | None = None
        self._suspended = 0

    def ask(self, request: SampleRequest) -> None:
        """Start to sample beside what was sampled before, or say in ``state`` why not: one at a time."""
        members = self._members() if self._enabled else ()
        fixed = fix_request(members, request)
        first = SampleState(request, NOTHING_YET, running=True, refused="")
        with self._lock:
            if self.is_busy:
                self.change(lambda now: replace(now if is_known(now) else first, refused=ALREADY))
            elif choose_members(members, fixed) and not self.stopped.is_set() and not self._suspended:
                sampler = self._sampler = self._make(lambda: choose_members(self._members(), fixed), request)
                show = partial(self._show, request)
                self.begin(lambda: sampler.run(show), partial(self._end, request), first)
            else:
                refused = OFF if not self._enabled else HELD if self._suspended else NOBODY
                self.change(
                    lambda now: replace(now if is_known(now) else first, running=False, refused=refused)
                )

    def _show(self, request: SampleRequest, part: SampleReading) -> None:
        self.change(lambda _: SampleState(request, part, running=True, refused=""))

    def _end(
        self, request: SampleRequest, state: Applicable[SampleState], answer: Known[SampleReading]
    ) -> SampleState:
        self._sampler = None  # releases all the stacks that it counted
        if is_known(answer):
            return SampleState(request, answer, running=False, refused="")
        reading = state.reading if is_known(state) else NOTHING_YET  # what was sampled before the failure
        return SampleState(request, reading, running=False, refused=f"sampling failed: {answer.reason}")

    def finish(self) -> None:
        """End what runs, and keep what was sampled."""
        if (sampler := self._sampler) is not None:
            sampler.finish()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Sample nothing within: a dump that stops a process must not meet a py-spy that reads it."""
        with self._lock:
            self._suspended += 1
            sampler = self._sampler if self.is_busy else None
        try:
            with sampler.suspend() if sampler is not None else nullcontext():
                yield
        finally:
            with self._lock:
                self._suspended -= 1

    def stop(self) -> None:
        """End what runs for good, with all its py-spys."""
        super().stop()
        if (sampler := self._sampler) is not None:
            sampler.stop()
