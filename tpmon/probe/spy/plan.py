"""Decide whose stacks are sampled next, how fast and for how long, within a budget of CPU time. Pure.

One py-spy runs at a time. Each new rank is dumped once; then ranks take turns in slices, short ones when
there are many, with now and then one of a loader worker that computes or sleeps. The real cost of each run is
charged, and the plan waits when the credit is used up, so an expensive target (thousands of mappings) is
sampled less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.process import Identity, ProcessSample, Role
from tpmon.model.waits import LOCKS, RUNNING, WaitReason
from tpmon.probe.base.worker import Pace

BUDGET_MS_PER_S = 8.0
LESS = 0.5  # the share of that budget at any lower pace
LEAST = 0.25
"""The share of a lone rank whose verdict is settled: a slice in half a minute confirms it. Several
ranks need one each within the minute that is judged."""
CREDIT_MS = 120.0  # so any minute costs at most 60 * 8 + 120 = 600 ms, 1 % of one core
MET_MS = 15.0  # credit of a new rank for its dump, which costs 9 to 14 ms
MOST_MET = 16
FIRST_SECONDS = 2
FIRST_RATE_HZ = 20
EARLY_SLICES = 3
EARLY_SECONDS = 4
EARLY_MS = 60.0
"""The first slices of each of two ranks are short, and cost more than their seconds' share. Of 40 samples a
share of 75 % has its lower bound below 50 % one time in ten, and a slice of 9 s would end after the 15 s at
which a verdict is due."""
SHAKEN_MS = 40.0  # unused credit for one early slice when a settled verdict is shaken
RATES_HZ = (17, 13, 11, 7, 5, 3)  # primes: no step time is a multiple of all; py-spy samples at random times
LENGTHS_S = (10, 9, 11)
MANY_RANKS = 3
SHORT_SECONDS = 2
"""From three ranks on all take turns in short slices: who waits for whom needs every rank within a minute,
and eight of these cost what the budget gives in about 40 s."""
WORKER_SECONDS = 3
WORKER_EVERY = 4  # the second slice and every fourth after it: what a worker does changes seldom
WORKING_DEMAND = 0.5  # of a computing worker; CPU time would be lower beside a busy neighbour
START_MS = 20.0
SAMPLE_MS = 0.2
FRAME_MS = 0.018
"""The cost of a slice before one was measured: 20 ms to start, and a sample 0.2 ms and 18 us a frame of any
thread: 0.8 ms with one thread 40 deep, 5.7 ms with ten more 30 deep."""
SMOOTHING = 0.4
RETRY_S = 60.0
RETRIES_S = (1.0, 3.0, 10.0)  # a changing stack fails now and then, one of a starting process for a while
HELD_S = 5.0  # until it is checked again whether another tracer is gone, which costs nothing
_LONGEST_WAIT_S = 60.0
_SLEEPS = LOCKS | {WaitReason.SLEEP}  # waits of a worker whose reason its stacks show


@dataclass(frozen=True, slots=True)
class SpySubject:
    """Name a process to sample: a rank, or one of its loader workers."""

    identity: Identity
    rank: Applicable[int]
    is_worker: bool = False


def find_working_worker(processes: Iterable[ProcessSample]) -> list[SpySubject]:
    """Return the loader worker that wants a CPU most; if none does half of the time, one asleep.

    Only its stacks tell a sleep at a lock from one for its own threads; a wait for work is neither.
    """
    workers = [one for one in processes if one.role is Role.WORKER and is_known(one.runnable)]
    best = max(workers, key=lambda one: known_or(one.runnable, 0.0), default=None)
    if best is None or known_or(best.runnable, 0.0) < WORKING_DEMAND:
        best = next((one for one in workers if known_or(one.waits_for, RUNNING).reason in _SLEEPS), None)
    return (
        [] if best is None else [SpySubject(Identity(best.pid, best.start_ticks), best.rank, is_worker=True)]
    )


@dataclass(frozen=True, slots=True)
class SliceTurn:
    """Say what to run now; ``rate_hz`` and ``seconds`` are 0 for a dump."""

    subject: SpySubject
    rate_hz: int = 0
    seconds: int = 0

    @property
    def is_dump(self) -> bool:
        """Tell whether this is a dump."""
        return not self.seconds


@dataclass(slots=True)
class _Standing:
    """Remember what was done at one rank and what it cost."""

    subject: SpySubject
    dumped: bool = False
    shaken: bool = False  # its next slice is to come soon
    slices: int = 0
    last_ns: int = 0
    start_ms: float = START_MS
    sample_ms: float = SAMPLE_MS
    measured: bool = False
    reason: str = ""
    refused_until_ns: int = 0
    refusals: int = 0


def _order(subject: SpySubject) -> tuple[bool, float, int]:
    return subject.is_worker, known_or(subject.rank, float("inf")), subject.identity.pid


@dataclass(slots=True)
class StackPlan:
    """Hold the turns and the credit. Times are CLOCK_MONOTONIC in ns."""

    now_ns: int
    pace: Pace = Pace.FULL
    _settled_ns: int = 0  # since when the pace is ``SETTLED``
    _standings: dict[Identity, _Standing] = field(default_factory=dict)
    _refused: dict[Identity, _Standing] = field(default_factory=dict)
    """Workers that are not named now and could not be sampled a moment ago."""
    _credit_ms: float = CREDIT_MS
    _met: int = 0
    _slices: int = 0
    _first_was_last: bool = False

    @property
    def budget_ms_per_s(self) -> float:
        """Return how much CPU may be used each second."""
        if self.pace is Pace.FULL:
            return BUDGET_MS_PER_S
        is_lone = self.pace is Pace.SETTLED and len(self._ranks()) == 1
        return BUDGET_MS_PER_S * (LEAST if is_lone else LESS)

    def set_pace(self, pace: Pace) -> bool:
        """Set the pace; return whether more may be spent than before, so that a turn may be due.

        After a settled verdict was shaken the next slice comes early, to show what is now.
        """
        slower_ms, before, self.pace = self.budget_ms_per_s, self.pace, pace
        if before is pace or Pace.SETTLED not in (before, pace):
            return False
        if pace is Pace.SETTLED:
            self._settled_ns = self.now_ns
            return False
        for one in self._ranks():
            one.shaken = True
        unused_ms = (self.now_ns - self._settled_ns) / 1e9 * (BUDGET_MS_PER_S - slower_ms)
        self._credit_ms = max(self._credit_ms, min(self._credit_ms + unused_ms, SHAKEN_MS))
        return True

    def watch(self, subjects: Iterable[SpySubject]) -> bool:
        """Name the ranks and the workers worth sampling; return whether a rank is new."""
        before = self._standings
        ordered = sorted(subjects, key=_order)
        known = {**self._refused, **before}
        self._standings = {
            one.identity: known.get(one.identity) or _Standing(one, dumped=one.is_worker) for one in ordered
        }
        self._refused = {
            identity: one
            for identity, one in known.items()
            if identity not in self._standings
            and one.subject.is_worker
            and one.refused_until_ns > self.now_ns
        }
        born = [one.identity for one in ordered if one.identity not in before and not one.is_worker]
        paid = min(len(born), MOST_MET - self._met)
        self._met += paid
        self._credit_ms += paid * MET_MS
        for one in ordered:
            self._standings[one.identity].subject = one
        return bool(born)

    def next(self, now_ns: int) -> SliceTurn | float:
        """Return what to run now, or the seconds to wait before asking again."""
        self._pass(now_ns)
        ready = [one for one in self._standings.values() if now_ns >= one.refused_until_ns]
        if not ready:
            until_ns = min((one.refused_until_ns for one in self._standings.values()), default=now_ns)
            return min(max((until_ns - now_ns) / 1e9, 1.0), _LONGEST_WAIT_S)
        if self._credit_ms <= 0:
            return max(-self._credit_ms / self.budget_ms_per_s, 0.1)
        for one in ready:
            if not one.dumped:
                return SliceTurn(one.subject)
        one = self._pick(ready)
        turn = self._shape(one)
        short_ms = self._price(one, turn) - turn.seconds * self.budget_ms_per_s
        # What a slice costs beyond its own seconds' share must be saved before it.
        short_ms = min(short_ms, CREDIT_MS) - self._credit_ms
        if short_ms > 0:
            return max(short_ms / self.budget_ms_per_s, 0.1)
        one.shaken = False
        return turn

    def settle(self, turn: SliceTurn, cpu_ms: float, samples: int, frames: int, now_ns: int) -> None:
        """Charge a run that worked: ``samples`` of py-spy found ``frames`` frames in all."""
        one = self.charge(turn, cpu_ms, now_ns)
        if one is None:
            return
        one.reason, one.refused_until_ns, one.refusals = "", 0, 0
        one.dumped = True
        if turn.is_dump:
            one.start_ms = max(START_MS, cpu_ms)
            one.sample_ms = SAMPLE_MS + FRAME_MS * frames
            return
        self._slices += 1
        one.slices += 1
        if samples > 0:
            seen_ms = max(cpu_ms - one.start_ms, 0.0) / samples
            one.sample_ms += (SMOOTHING if one.measured else 1.0) * (seen_ms - one.sample_ms)
            one.measured = True

    def refuse(self, turn: SliceTurn, cpu_ms: float, reason: str, now_ns: int, *, final: bool) -> None:
        """Charge a run that failed; retry after 1, 3 and 10 s, later or if ``final`` after 60 s."""
        one = self.charge(turn, cpu_ms, now_ns)
        if one is None:
            return
        one.reason = reason
        wait_s = RETRY_S if final or one.refusals >= len(RETRIES_S) else RETRIES_S[one.refusals]
        one.refusals += 1
        one.refused_until_ns = now_ns + round(wait_s * 1e9)

    def postpone(self, turn: SliceTurn, reason: str, now_ns: int) -> None:
        """Leave a rank alone for a moment, because somebody else holds it."""
        one = self._standings.get(turn.subject.identity)
        if one is not None:
            one.reason = reason
            one.refused_until_ns = now_ns + round(HELD_S * 1e9)

    def forget(self, turn: SliceTurn) -> None:
        """Leave out a rank that is gone, which is no failure."""
        self._standings.pop(turn.subject.identity, None)

    def refusals(self) -> tuple[tuple[Applicable[int], str], ...]:
        """Return rank and reason of each rank whose last try failed."""
        return tuple((one.subject.rank, one.reason) for one in self._ranks() if one.reason)

    def all_refused(self) -> bool:
        """Tell whether no rank can be sampled now."""
        ranks = self._ranks()
        return bool(ranks) and all(one.reason for one in ranks)

    def _ranks(self) -> list[_Standing]:
        return [one for one in self._standings.values() if not one.subject.is_worker]

    def _pass(self, now_ns: int) -> None:
        """Add the credit of the time since the last call."""
        earned_ms = max(now_ns - self.now_ns, 0) / 1e9 * self.budget_ms_per_s
        self.now_ns = now_ns
        if self._credit_ms < CREDIT_MS:
            self._credit_ms = min(self._credit_ms + earned_ms, CREDIT_MS)

    def charge(self, turn: SliceTurn, cpu_ms: float, now_ns: int) -> _Standing | None:
        """Deduct the cost of a run from the credit; return whom it sampled, None where that is gone."""
        self._pass(now_ns)
        self._credit_ms -= cpu_ms
        if not turn.is_dump and not turn.subject.is_worker:
            self._first_was_last = self._is_first(turn.subject)
        one = self._standings.get(turn.subject.identity)
        if one is not None:
            one.last_ns = now_ns
        return one

    def _is_first(self, subject: SpySubject) -> bool:
        return next(iter(self._standings), NOT_APPLICABLE) == subject.identity

    def _pick(self, ready: list[_Standing]) -> _Standing:
        """Take the rank that was not sampled for longest; of two, rank 0 every second time."""
        workers = [one for one in ready if one.subject.is_worker]
        ready = [one for one in ready if not one.subject.is_worker]
        if workers and (not ready or self._slices % WORKER_EVERY == 1):
            return min(workers, key=lambda one: one.last_ns)
        if len(ready) >= MANY_RANKS:
            return min(ready, key=lambda one: one.last_ns)
        first, others = ready[0], ready[1:]
        if not others or (self._is_first(first.subject) and not self._first_was_last):
            return first
        if not self._is_first(first.subject):
            others = ready
        return min(others, key=lambda one: one.last_ns)

    def _shape(self, one: _Standing) -> SliceTurn:
        rates: tuple[int, ...]
        if self._slices == 0:
            seconds, rates, affordable = FIRST_SECONDS, (FIRST_RATE_HZ, *RATES_HZ), CREDIT_MS
        else:
            seconds, rates = LENGTHS_S[self._slices % len(LENGTHS_S)], RATES_HZ
            affordable = 0.0
            if one.subject.is_worker:
                seconds = WORKER_SECONDS
            elif len(self._ranks()) >= MANY_RANKS:
                seconds = SHORT_SECONDS
            elif one.shaken or one.slices < EARLY_SLICES:
                seconds = EARLY_SECONDS
                affordable = EARLY_MS * self.budget_ms_per_s / BUDGET_MS_PER_S
            affordable = max(affordable, self.budget_ms_per_s * seconds)
        turns = [SliceTurn(one.subject, rate, seconds) for rate in rates]
        return next((turn for turn in turns if self._price(one, turn) <= affordable), turns[-1])

    def _price(self, one: _Standing, turn: SliceTurn) -> float:
        return one.start_ms + one.sample_ms * turn.rate_hz * turn.seconds
