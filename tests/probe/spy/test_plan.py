"""Whose stacks are sampled next, how fast, and how the budget of CPU time is kept."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_process, make_worker
from tpmon.model.known import Missing
from tpmon.model.process import Identity
from tpmon.probe.base.worker import Pace
from tpmon.probe.spy.plan import (
    BUDGET_MS_PER_S,
    CREDIT_MS,
    EARLY_MS,
    EARLY_SECONDS,
    FIRST_RATE_HZ,
    FIRST_SECONDS,
    MET_MS,
    MOST_MET,
    RATES_HZ,
    WORKER_EVERY,
    WORKER_SECONDS,
    SliceTurn,
    SpySubject,
    StackPlan,
    find_working_worker,
)

SECOND = 1_000_000_000


WORKER = SpySubject(Identity(900, 7), 0, is_worker=True)


def subjects(count: int, first: int = 0) -> list[SpySubject]:
    return [SpySubject(Identity(100 + rank, 7), rank) for rank in range(first, first + count)]


class Run:
    """Let simulated time pass while the plan is obeyed; a run costs what the test says."""

    def __init__(self, ranks: int, start_ms: float = 20.0, sample_ms: float = 0.4, *, works: bool = False) -> None:
        self.plan = StackPlan(0)
        self.plan.watch([*subjects(ranks), *([WORKER] if works else [])])
        self.now_ns = 0
        self.start_ms, self.sample_ms = start_ms, sample_ms
        self.done: list[tuple[int, SliceTurn, float]] = []

    def until(self, seconds: float) -> list[tuple[int, SliceTurn, float]]:
        while self.now_ns < seconds * SECOND:
            turn = self.plan.next(self.now_ns)
            if not isinstance(turn, SliceTurn):
                assert turn > 0
                self.now_ns += round(turn * SECOND)
                continue
            samples = turn.rate_hz * turn.seconds
            cost_ms = self.start_ms + self.sample_ms * samples if samples else self.start_ms * 0.6
            self.now_ns += turn.seconds * SECOND + 30_000_000
            self.plan.settle(turn, cost_ms, samples, 10, self.now_ns)
            self.done.append((self.now_ns, turn, cost_ms))
        return self.done


def begin(ranks: int = 1) -> tuple[StackPlan, SliceTurn]:
    """Return a plan of some ranks, and its first turn."""
    plan = StackPlan(0)
    assert plan.watch(subjects(ranks))
    turn = plan.next(0)
    assert isinstance(turn, SliceTurn)
    return plan, turn


def ranks_of(done, *, dumps: bool = False) -> list:
    return [turn.subject.rank for _, turn, _ in done if turn.is_dump == dumps]


def test_every_rank_is_dumped_first_within_two_seconds():
    done = Run(8).until(2)
    assert ranks_of(done[:8], dumps=True) == list(range(8))
    assert done[7][0] < 2 * SECOND


def test_one_rank_has_a_short_first_slice_and_every_slice_without_a_gap_at_the_expected_cost():
    done = Run(1).until(300)
    _, first, _ = done[1]
    assert (first.rate_hz, first.seconds) == (FIRST_RATE_HZ, FIRST_SECONDS)
    _, second, _ = done[2]
    assert second.rate_hz in RATES_HZ
    assert second.seconds == EARLY_SECONDS
    slices = [turn for _, turn, _ in done if not turn.is_dump]
    assert sum(turn.seconds for turn in slices) > 0.9 * 300
    assert min(turn.rate_hz for turn in slices) >= 13


@pytest.mark.parametrize("works", [False, True], ids=["idle workers", "a worker computes"])
@pytest.mark.parametrize(
    ("ranks", "sample_ms", "least"), [(1, 0.4, 100), (1, 0.8, 80), (1, 2.0, 40), (2, 0.4, 50), (2, 0.8, 40)]
)
def test_a_share_rests_on_more_than_the_first_slice_before_a_verdict_is_due(ranks, sample_ms, least, works):
    """That is 15 s after attaching, and 40 samples leave too much open."""
    done = Run(ranks, sample_ms=sample_ms, works=works).until(60)
    slices = [(at, turn) for at, turn, _ in done if not turn.is_dump and not turn.subject.is_worker]
    for rank in range(ranks):
        own = [(at, turn) for at, turn in slices if turn.subject.rank == rank]
        assert sum(turn.rate_hz * turn.seconds for at, turn in own if at < 14 * SECOND) >= least
        seconds = [FIRST_SECONDS if rank == 0 else EARLY_SECONDS, EARLY_SECONDS, EARLY_SECONDS]
        assert [turn.seconds for _, turn in own][:3] == seconds
        assert all(turn.seconds >= 9 for _, turn in own[3:])


@pytest.mark.parametrize("pace", Pace)
def test_an_early_slice_is_bounded_as_the_pace_is(pace):
    run = Run(1, sample_ms=1.0)
    run.plan.set_pace(pace)
    early = [cost for _, turn, cost in run.until(90) if turn.seconds == EARLY_SECONDS]
    assert early
    assert max(early) <= max(EARLY_MS * run.plan.budget_ms_per_s / BUDGET_MS_PER_S, 20 + 4 * RATES_HZ[-1])


def test_ranks_take_turns_and_of_many_each_has_its_own_within_a_minute():
    done = Run(8).until(200)
    assert ranks_of(done)[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    times = [now_ns for now_ns, turn, _ in done if not turn.is_dump and turn.subject.rank == 5]
    assert max(b - a for a, b in pairwise(times)) < 60 * SECOND
    assert ranks_of(Run(2).until(200))[:5] == [0, 1, 0, 1, 0]


@given(st.integers(1, 12), st.floats(5, 400, allow_nan=False), st.floats(0.05, 20, allow_nan=False))
def test_no_minute_after_the_first_costs_more_than_one_percent(ranks, start_ms, sample_ms):
    run = Run(ranks, start_ms, sample_ms)
    done = run.until(400)
    dearest = max(cost for _, _, cost in done)
    for minute in range(60, 400, 20):
        spent = sum(cost for at, _, cost in done if minute <= at / SECOND < minute + 60)
        # One run may be dearer than all the credit there is: then the plan waits after it.
        assert spent <= 600 + dearest
    most = CREDIT_MS + min(ranks, MOST_MET) * MET_MS
    assert sum(cost for _, _, cost in done) <= most + 8 * (run.now_ns / SECOND) + dearest


def test_a_dear_target_is_sampled_slower_and_less_often():
    cheap = Run(1).until(300)
    dear = Run(1, start_ms=200, sample_ms=1.0).until(300)
    assert len(dear) < len(cheap)
    assert {turn.rate_hz for _, turn, _ in dear[4:]} == {RATES_HZ[-1]}


@pytest.mark.parametrize(
    ("ranks", "pace", "share"),
    [(1, Pace.SHED, 0.5), (1, Pace.SETTLED, 0.25), (2, Pace.SHED, 0.5), (2, Pace.SETTLED, 0.5)],
)
def test_a_lower_pace_spends_its_share(ranks, pace, share):
    run = Run(ranks)
    run.until(100)
    before = sum(cost for _, _, cost in run.done)
    run.plan.set_pace(pace)
    run.until(300)
    after = sum(cost for _, _, cost in run.done) - before
    assert 0 < after <= CREDIT_MS + share * BUDGET_MS_PER_S * 200


def settle_down(ranks: int, **costs: float) -> Run:
    """Let a minute pass at the pace of a settled verdict."""
    run = Run(ranks, **costs)
    run.until(60)
    run.plan.set_pace(Pace.SETTLED)
    run.until(130)
    return run


@pytest.mark.parametrize("sample_ms", [0.2, 0.8])
def test_who_sees_a_settled_verdict_shaken_has_a_short_slice_within_seconds(sample_ms):
    run = settle_down(1, sample_ms=sample_ms)
    begun = len(run.done)
    assert run.plan.set_pace(Pace.FULL)
    shaken_ns = run.now_ns
    run.until(run.now_ns / SECOND + 20)
    ended_ns, turn, _ = run.done[begun]
    assert turn.seconds == EARLY_SECONDS
    assert ended_ns - shaken_ns <= 6 * SECOND
    assert run.done[begun + 1][1].seconds >= 9


def test_a_slice_that_the_change_cut_short_is_not_the_early_one():
    run = settle_down(1)
    cut = SliceTurn(subjects(1)[0], 5, 10)
    run.plan.set_pace(Pace.FULL)
    run.plan.settle(cut, 10.0, 3, 10, run.now_ns)
    begun = len(run.done)
    run.until(run.now_ns / SECOND + 20)
    assert run.done[begun][1].seconds == EARLY_SECONDS


def test_the_budget_holds_however_often_a_verdict_is_shaken():
    run = settle_down(1, sample_ms=0.8)
    for _ in range(60):
        run.plan.set_pace(Pace.FULL)
        run.until(run.now_ns / SECOND + 1)
        run.plan.set_pace(Pace.SETTLED)
    after_s = run.now_ns / SECOND - 130
    spent = sum(cost for at, _, cost in run.done if at > 130 * SECOND)
    assert spent <= after_s * BUDGET_MS_PER_S + CREDIT_MS


def test_a_pace_that_does_not_rise_wakes_nobody():
    plan = StackPlan(0)
    plan.watch(subjects(1))
    assert not plan.set_pace(Pace.SHED)
    assert not plan.set_pace(Pace.FULL)
    assert not plan.set_pace(Pace.SETTLED)
    assert not plan.set_pace(Pace.SETTLED)
    assert plan.set_pace(Pace.SHED)


def test_a_refused_rank_is_tried_again_after_a_minute_and_holds_nobody_up():
    run = Run(2)
    plan, first = run.plan, run.plan.next(0)
    plan.refuse(first, 3.0, "not permitted", 0, final=True)
    assert plan.refusals() == ((0, "not permitted"),)
    assert not plan.all_refused()
    seen = [(at / SECOND, turn.subject.rank) for at, turn, _ in run.until(80)]
    assert {rank for at, rank in seen if at < 60} == {1}
    assert 0 in [rank for at, rank in seen if at >= 60]
    assert plan.refusals() == ()


def test_a_rank_that_only_starts_up_is_tried_again_sooner():
    plan, turn = begin()
    now_s = 0.0
    for wait_s in (1.0, 3.0, 10.0, 60.0):
        plan.refuse(turn, 3.0, "unknown Python", round(now_s * SECOND), final=False)
        assert plan.all_refused()
        assert plan.next(round(now_s * SECOND)) == pytest.approx(wait_s)
        now_s += wait_s
        turn = plan.next(round(now_s * SECOND))
        assert isinstance(turn, SliceTurn)


def test_a_held_rank_waits_a_moment_and_is_taken_up_again():
    plan, turn = begin()
    plan.postpone(turn, "traced", 0)
    assert plan.all_refused()
    assert plan.next(0) == pytest.approx(5)
    assert plan.next(5 * SECOND) == turn
    plan.settle(turn, 10.0, 1, 10, 5 * SECOND)
    assert not plan.all_refused()


def test_a_rank_that_is_gone_is_no_refusal_and_a_new_one_is_dumped():
    plan, turn = begin()
    plan.forget(turn)
    assert plan.refusals() == ()
    assert not plan.all_refused()
    assert not isinstance(plan.next(0), SliceTurn)
    assert plan.watch(subjects(1, first=5))
    assert plan.next(0) == SliceTurn(subjects(1, first=5)[0])
    assert not plan.watch(subjects(1, first=5))
    plan.settle(turn, 10.0, 1, 10, 0)  # the answer of one that is not watched any more


def test_a_dump_of_many_frames_makes_the_first_slice_a_slow_one():
    plan, dump = begin()
    plan.settle(dump, 30.0, 1, 400, 0)
    first = plan.next(0)
    assert isinstance(first, SliceTurn)
    assert first.seconds == FIRST_SECONDS
    assert first.rate_hz < FIRST_RATE_HZ
    assert 30 + 0.018 * 400 * first.rate_hz * first.seconds <= CREDIT_MS


def test_a_working_worker_has_the_second_slice_and_every_fourth_and_no_first_look():
    turns = [turn for _, turn, _ in Run(1, works=True).until(100)]
    slices = [turn for turn in turns if not turn.is_dump][:10]
    assert [turn.subject.is_worker for turn in slices] == [i % WORKER_EVERY == 1 for i in range(10)]
    assert {turn.seconds for turn in slices if turn.subject.is_worker} == {WORKER_SECONDS}
    assert not any(turn.subject.is_worker for turn in turns if turn.is_dump)


LAZY = make_worker(11, 0, runnable=0.2)
# Beside a neighbour the one that wants a CPU most may get less of it.
BUSY = (make_worker(12, 1, runnable=0.7, cpu_pct=70.0), make_worker(13, 2, runnable=0.9, cpu_pct=40.0))
UNREAD = make_worker(14, 3, runnable=Missing("no"))
HIDDEN = make_worker(12, 1, runnable=0.02, waits_for=Missing("no"))
READS = make_worker(13, 2, runnable=0.02, waits_for="disk")
ASLEEP = make_worker(14, 3, runnable=0.02, waits_for="lock or queue (futex)")
COMPUTES = make_worker(15, 4, runnable=0.8, waits_for="running")


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ([make_process(10), LAZY], []),
        ([make_process(10), LAZY, *BUSY, UNREAD], [13]),
        ([LAZY, HIDDEN, READS], []),
        ([LAZY, HIDDEN, READS, ASLEEP], [14]),
        ([ASLEEP, COMPUTES], [15]),
    ],
)
def test_the_worker_that_wants_a_cpu_most_or_one_asleep_is_worth_a_look(processes, found):
    assert [one.identity.pid for one in find_working_worker(processes)] == found


def test_a_refused_worker_is_no_word_about_the_ranks_and_left_alone_also_when_another_was_named_meanwhile():
    plan = StackPlan(0)
    plan.watch([WORKER])
    plan.refuse(SliceTurn(WORKER, 3, 3), 1.0, "permission denied", plan.now_ns, final=True)
    plan.watch([])
    plan.watch([WORKER])
    waits_s = plan.next(plan.now_ns + SECOND)
    assert not isinstance(waits_s, SliceTurn)
    assert waits_s > 50
    plan.watch([])
    plan.next(plan.now_ns + 70 * SECOND)
    plan.watch([])
    plan.watch([WORKER])
    assert isinstance(plan.next(plan.now_ns + SECOND), SliceTurn)
    plan = Run(1, works=True).plan
    plan.refuse(SliceTurn(WORKER, 5, 3), 1.0, "not permitted", 1, final=True)
    assert not plan.all_refused()
    assert plan.refusals() == ()
