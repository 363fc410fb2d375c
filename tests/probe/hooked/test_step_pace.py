"""Rates, percentiles and shares from the readings of a hook; a model that is compiled again is told of."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import NOW, make_process, make_rank
from tests.paces import make_hook, make_pace
from tests.view.test_hook import make_settings
from tpmon.model.frame import NO_STEPS, EventKind
from tpmon.model.hook import (
    NO_SETTINGS,
    CompileCounts,
    HookSample,
    HookState,
    PhaseTimes,
    StepCounts,
    StepPace,
    StepReading,
    StepRule,
    StepSpan,
    join_paces,
    list_shares,
)
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.probe.hooked.page import NO_HOOK
from tpmon.probe.hooked.step_pace import (
    _PHASES,
    AGAIN_S,
    GATHER_S,
    ONE_STEP,
    TRAINED_STEPS,
    CompileTracker,
    RankPace,
    StepProbe,
)

MS = 1_000_000
NO_STEP = Missing("no step ended yet")
NO_TIME = PhaseTimes(0, 0, 0, 0, 0)
SPLIT = (20, 24, 46, 8, 2)
"""Percent of a step: data, forward, backward, optimizer, other."""


class Loop:
    """Play a loop whose hook writes a record a step; each reading has those since the one before."""

    def __init__(self, batch: int = 32) -> None:
        self.now_ns = 5_000 * MS
        self.record_ns = self.now_ns
        self.batch = batch
        self.steps = self.evals = 0
        self.train = [0] * 5
        self.eval_ns = 0
        self.spans: list[StepSpan] = []

    def step(self, ms: float, times_over: int = 1) -> None:
        for _ in range(times_over):
            took = PhaseTimes(*(round(ms * MS * share / 100) for share in SPLIT))
            self.steps += 1
            self.train = [a + b for a, b in zip(self.train, _PHASES(took), strict=True)]
            self.now_ns += round(ms * MS)
            self.record_ns = self.now_ns
            self.spans.append(StepSpan(self.now_ns, 1, 0, self.batch, took, NO_TIME))

    def evaluate(self, ms: float) -> None:
        self.evals += 1
        self.eval_ns += round(ms * MS)
        self.now_ns += round(ms * MS)
        self.record_ns = self.now_ns
        spent = PhaseTimes(round(ms * MS), 0, 0, 0, 0)
        self.spans.append(StepSpan(self.now_ns, 0, 1, 0, NO_TIME, spent))

    def wait(self, ms: float) -> None:
        self.now_ns += round(ms * MS)

    def ended(self) -> Known[StepSpan]:
        if not self.steps + self.evals:
            return NO_STEP
        samples = self.steps * self.batch
        spent = PhaseTimes(self.eval_ns, 0, 0, 0, 0)
        return StepSpan(self.record_ns, self.steps, self.evals, samples, PhaseTimes(*self.train), spent)

    def read(self, **fields: Any) -> StepReading:
        spans, self.spans = tuple(self.spans), []
        plain = StepReading(
            process=Identity(4211, 104_211),
            rank=0,
            world_size=1,
            local_rank=0,
            hook_version="1.0",
            torch_version="2.13",
            python_version="3.11",
            state=HookState.RUNNING,
            error="",
            patches=(),
            rule=StepRule.BATCH_AFTER_UPDATE,
            counts=StepCounts(self.steps, self.evals, 0, 0, 0, 0, 0, self.steps * self.batch, 0, 0),
            ended=self.ended(),
            batch_size=self.batch or Missing("no"),
            spans=spans,
            lost_records=0,
            now=Missing("no"),
            marks=(),
            taken_ns=self.now_ns,
        )
        return replace(plain, **fields)


@pytest.fixture
def answer(monkeypatch):
    """Give what lets the hooks of all ranks, or of each, answer a probe that reads them."""
    probe = StepProbe()

    def give(reading, *processes):
        def read_steps(asked):
            return {one: reading[one.pid] if isinstance(reading, dict) else reading for one in asked}

        monkeypatch.setattr(probe._reader, "read_steps", read_steps)
        return probe.read(processes or [make_process()])

    return give


def play(steps: int = 20, **fields: Any) -> StepReading:
    loop = Loop()
    loop.step(100, steps)
    return loop.read(**fields)


def told(pace: object) -> StepPace:
    assert isinstance(pace, StepPace), pace
    return pace


def test_the_first_reading_tells_rates_by_the_records_that_are_there():
    loop, keeper = Loop(), RankPace()
    loop.step(50, 100)
    pace = told(keeper.add(loop.read(), 0))
    assert (pace.rate_hz, pace.samples_hz, pace.count) == (pytest.approx(20), pytest.approx(640), 100)
    assert (pace.p50_ms, pace.p99_ms, pace.longest_ms) == (50.0, 50.0, 50.0)
    assert [round(share) for _, share in list_shares(pace) if is_known(share)] == list(SPLIT)
    assert pace.own_ms == pytest.approx(22.0)


def test_rates_are_of_the_last_ten_seconds():
    loop, keeper = Loop(), RankPace()
    loop.step(100, 30)
    keeper.add(loop.read(), 0)
    for _ in range(30):
        loop.step(250, 4)
        pace = keeper.add(loop.read(), 0)
    assert (told(pace).rate_hz, told(pace).span_s) == (pytest.approx(4.0), pytest.approx(10.0))


def test_lost_records_lose_no_step():
    loop, keeper = Loop(), RankPace()
    loop.step(10, 3)
    keeper.add(loop.read(), 0)
    for _ in range(12):
        loop.step(10, 100)
        reading = loop.read()
        pace = keeper.add(replace(reading, spans=reading.spans[-5:], lost_records=95), 0)
    assert told(pace).rate_hz == pytest.approx(100, rel=0.01)


def test_long_steps_are_told_by_the_last_three_and_fall_when_none_ends():
    loop, keeper = Loop(), RankPace()
    for ms in (90_000, 30_000, 30_000, 30_000, 30_000):
        loop.step(ms)
        pace = keeper.add(loop.read(), 0)
    assert (told(pace).rate_hz, told(pace).slowest_ms) == (pytest.approx(1 / 30), pytest.approx(30_000))
    loop.wait(20_000)
    pace = told(keeper.add(loop.read(), 0))
    assert pace.rate_hz == pytest.approx(1 / 30)
    loop.wait(280_000)
    pace = told(keeper.add(loop.read(), 0))
    assert (pace.rate_hz, pace.step_age_s, pace.slowest_ms) == pytest.approx((3 / 390, 300, 300_000))


def test_a_stall_shows_in_the_percentiles_and_not_in_the_median():
    loop, keeper = Loop(), RankPace()
    loop.step(100, 97)
    loop.step(4_000)
    loop.step(100, 2)
    pace = told(keeper.add(loop.read(), 0))
    assert (pace.p50_ms, pace.p95_ms) == (100.0, 100.0)
    assert pace.p99_ms == pace.longest_ms == pace.slowest_ms == 4_000.0


def test_evaluation_counts_apart():
    loop, keeper = Loop(), RankPace()
    loop.step(100, 50)
    keeper.add(loop.read(), 0)
    for _ in range(12):
        loop.evaluate(1_000)
        pace = keeper.add(loop.read(), 0)
    pace = told(pace)
    assert (pace.rate_hz, pace.eval_hz, pace.eval_pct) == (0.0, pytest.approx(1.0), pytest.approx(100))
    assert isinstance(pace.data_pct, Missing)
    assert (pace.count, pace.eval_count) == (50, 12)


def test_what_is_not_known_is_missing_with_its_reason():
    loop, keeper = Loop(batch=0), RankPace()
    assert keeper.add(loop.read(), 0) == NO_STEP
    loop.step(100)
    assert keeper.add(loop.read(), 0) == ONE_STEP
    loop.step(100)
    assert told(keeper.add(loop.read(), 0)).samples_hz == Missing("its batch size is not known")
    pace = told(RankPace().add(play(rule=StepRule.UPDATE), 0))  # no batch ends its steps
    assert (pace.rate_hz, pace.samples_hz) == (pytest.approx(10), Missing("its batch size is not known"))


def test_a_hook_that_counts_anew_has_no_negative_rate():
    loop, keeper = Loop(), RankPace()
    loop.step(100, 50)
    keeper.add(loop.read(), 0)
    again = Loop()
    again.now_ns = loop.now_ns + 1000 * MS
    again.step(100, 5)
    pace = told(keeper.add(again.read(), 0))
    assert (pace.rate_hz, pace.count) == (pytest.approx(10), 5)


def test_a_job_adds_up_the_samples_and_shows_its_first_rank():
    first = make_hook(4211, pace=make_pace(4211, rank=0, rate_hz=4.0))
    second = make_hook(4212, rank=1, pace=make_pace(4212, rank=1, rate_hz=3.9))
    job = told(join_paces((second, first)))
    assert (job.pid, job.rate_hz, job.samples_hz, job.ranks) == (4211, 4.0, 256.0, 2)
    blind = make_hook(4212, rank=1, pace=make_pace(4212, rank=1, samples_hz=Missing("no")))
    assert told(join_paces((first, blind))).samples_hz == Missing("not every rank counts its samples")
    assert join_paces(Missing("none")) == Missing("none")


def test_a_job_without_a_hook_says_so_and_one_that_turned_itself_off_is_a_note(answer):
    read = answer(NO_HOOK)
    assert (read.hook, read.steps, read.age_s) == (NO_STEPS, NO_STEPS, NO_STEPS)
    assert read.put([make_rank()]) == (make_rank(),)
    read = answer(play(state=HookState.DISABLED, error="KeyError('x')"))
    assert read.steps == Missing("the hook turned itself off: KeyError('x')")
    assert read.notes == (
        "hook-off: the hook of rank 0 turned itself off, its steps are not known any more: KeyError('x')",
    )


@pytest.mark.parametrize(
    ("torch", "calls", "updates", "said"),
    [
        ("2.1.2+cu118", 0, 0, True),
        ("1.13.1", 0, 0, True),
        ("2.1.2", 9, 0, False),
        ("2.1.2", 0, 9, False),
        ("2.3.0", 0, 0, False),
        ("odd", 0, 0, False),
    ],
)
def test_a_torch_that_takes_the_hook_off_its_optimizers_is_a_note(answer, torch, calls, updates, said):
    counts = StepCounts(64, 0, 64, 64, calls, updates, Missing("no"), 0, 0, 0)
    notes = answer(play(counts=counts, torch_version=torch, rule=StepRule.BATCH_AFTER_BACKWARD)).notes
    assert [note.partition(":")[0] for note in notes] == (["hook-blind"] if said else [])
    assert not said or "rank 0 ran 64 backwards" in notes[0]


def test_rows_have_the_step_of_their_rank_and_the_reason_of_those_without(answer):
    readings = {4211: play(), 4212: Missing("not permitted")}
    read = answer(readings, make_process(4211), make_process(4212, rank=1))
    first, second = read.put([make_rank(4211), make_rank(4212, rank=1)])
    assert (first.step, first.step_ms, first.step_own_ms) == (20, 100.0, pytest.approx(44.0))
    assert (second.step, second.step_age_s) == (Missing("not permitted"), Missing("not permitted"))
    assert read.source == "the hook's page in 1 of 2 ranks"
    assert told(read.steps).samples_hz == pytest.approx(320)


def test_a_job_whose_environment_tells_no_size_has_that_of_its_process_group(answer):
    read = answer(play(world_size=4))
    untold = Missing("no WORLD_SIZE in the start environment")
    assert read.size_job(untold, 4) == 4
    assert read.size_job(2, 2) == 2, "as it was started"
    assert read.size_job(untold, 8) == untold, "a group of some of them"
    assert answer(NO_HOOK).size_job(untold, 4) == untold


SECOND_NS = 1_000_000_000
WAIT_S = round(GATHER_S)


def hook_of(frames: int, limit_hits: int = 0, rank: int = 0, steps: int = 500, graphs: int = 2) -> HookSample:
    compiled = CompileCounts(frames + limit_hits, frames, graphs, 0, limit_hits)
    hook = make_hook(4211 + rank, rank=rank, settings=make_settings(age_s=0.5, compiled=compiled))
    return replace(hook, counts=replace(hook.counts, steps=steps))


class Job:
    """Read hooks second by second."""

    def __init__(self) -> None:
        self.teller = CompileTracker()
        self.now_s = 1000

    def read(self, *hooks: HookSample, seconds: int = 1) -> list[str]:
        texts = []
        for _ in range(seconds):
            self.now_s += 1
            events = self.teller.tell(NOW, self.now_s * SECOND_NS, hooks)
            assert all(one.kind is EventKind.COMPILE for one in events)
            texts += [one.text for one in events]
        return texts


@pytest.fixture
def job():
    return Job()


def test_a_rise_is_told_once(job):
    assert job.read(hook_of(12), seconds=60) == []
    assert job.read(hook_of(14, 3), seconds=200) == ["rank 0 compiled again: 14 frames, 3 at the recompile limit"]
    assert job.read(hook_of(14, 4), seconds=200) == ["rank 0 compiled again: 14 frames, 4 at the recompile limit"]


def test_what_was_compiled_before_tpmon_came_or_in_the_first_steps_is_no_news_however_long_its_reading_stays(job):
    assert job.read(hook_of(14, 3), seconds=60) == []
    young = Job()
    assert young.read(hook_of(1, steps=1), hook_of(1, steps=1, rank=1), seconds=9) == []
    assert young.read(hook_of(5, steps=TRAINED_STEPS), seconds=60) == []
    old, later = hook_of(1, steps=400), Job()
    assert later.read(replace(old, settings=replace(old.settings, age_s=4.5)), seconds=3) == []
    assert later.read(hook_of(6), seconds=60) == []


def test_ranks_that_compile_together_are_told_together(job):
    ranks = range(4)
    job.read(*(hook_of(12, rank=rank) for rank in ranks), seconds=9)
    assert job.read(hook_of(13), *(hook_of(12, rank=rank) for rank in ranks[1:]), seconds=3) == []
    texts = job.read(*(hook_of(13 + rank // 3, rank=rank) for rank in ranks), seconds=WAIT_S)
    assert texts == ["ranks 0-3 compiled again: 13 to 14 frames"]


def test_a_loop_that_compiles_all_the_time_is_told_once_a_minute(job):
    job.read(hook_of(10), seconds=9)
    texts = [text for more in range(300) for text in job.read(hook_of(11 + more))]
    assert len(texts) == 1 + (300 - WAIT_S - 1) // round(AGAIN_S)


def test_counters_that_are_not_read_for_a_while_or_were_cleared_are_no_rise(job):
    job.read(hook_of(12), seconds=9)
    unread = replace(hook_of(12), settings=NO_SETTINGS)
    assert job.read(unread, seconds=9) == []
    assert job.teller.tell(NOW, 0, Missing("no hook")) == []
    assert job.read(hook_of(12), seconds=30) == []
    assert job.read(hook_of(0, graphs=0), seconds=30) == []
    assert job.read(hook_of(3), seconds=WAIT_S + 1) == ["rank 0 compiled again: 3 frames"]
    assert job.read(seconds=3) == []
    assert job.read(hook_of(9), seconds=30) == [], "another run of the same PID"


def test_whole_graphs_and_processes_without_a_rank_have_their_own_words(job):
    whole = replace(hook_of(0), rank=NOT_APPLICABLE)
    job.read(whole, seconds=9)
    more = replace(hook_of(0, graphs=3), rank=NOT_APPLICABLE)
    assert job.read(more, seconds=WAIT_S + 1) == ["process 4211 compiled again: 3 graphs"]
    both = [replace(hook_of(2, graphs=4, rank=rank), rank=NOT_APPLICABLE) for rank in (0, 1)]
    job.read(*both, seconds=round(AGAIN_S) + 9)
    again = [replace(hook_of(3, graphs=5, rank=rank), rank=NOT_APPLICABLE) for rank in (0, 1)]
    assert job.read(*again, seconds=80) == ["processes 4211-4212 compiled again: 3 frames"]
