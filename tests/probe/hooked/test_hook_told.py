"""What a reader makes of a loop, once a second, on a clock that the test holds: from the hook to the pace."""

from typing import Any

import pytest

from tests.hook_loop import MS, Batches, Loop
from tpmon.hook.bus import wire
from tpmon.judge.features.data_wait import exact_wait
from tpmon.model.hook import LoopNow, LoopPhase, StepPace, StepReading, StepRule
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.text.job_words import is_evaluating, is_stalled
from tpmon.probe.hooked.page import PageSeen, parse_reading
from tpmon.probe.hooked.step_pace import RankPace

SECOND_NS = 1_000 * MS


class Watched(Loop):
    """Stand for a training loop that is read once a second from its first event on, or from ``attach`` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.gradients = True
        self.next_ns = self.now + SECOND_NS
        self.told: list[Known[StepPace]] = []
        self.attach()

    def attach(self) -> None:
        self.seen, self.pace = PageSeen(), RankPace()
        self.told.clear()

    def spend(self, ms: float) -> None:
        end_ns = self.now + int(ms * MS)
        while self.next_ns <= end_ns:
            self.now = self.next_ns
            self.read()
            self.next_ns += SECOND_NS
        self.now = end_ns

    def read(self) -> StepReading | None:
        pages = self.steps.pages
        if pages is None:
            return None
        header = wire.parse_header(pages.page)
        reading, self.seen = parse_reading(Identity(1, 1), header, pages.page, self.seen, self.now)
        self.told.append(self.pace.add(reading, 0))
        return reading

    def repeat(self, times: int, *acts: tuple[Any, ...]) -> None:
        """Do some things one after the other, so many times."""
        for _ in range(times):
            for name, *given in acts:
                getattr(self, name)(*given)

    def paces(self) -> list[StepPace]:
        return [pace for pace in self.told if is_known(pace)]

    def last(self) -> StepPace:
        return self.paces()[-1]


@pytest.fixture
def loop(monkeypatch):
    loop = Watched(monkeypatch)
    yield loop
    loop.steps.drop_pages()


def train_long(loop: Watched, steps: int, micro: int, forward_ms: float, backward_ms: float) -> None:
    """Play steps of so many batches with a backward each, of which one takes 50 ms more for data."""
    batches = [("batch", 50), ("backward", forward_ms, backward_ms)] * micro
    loop.repeat(steps, *batches, ("update", 400), ("spend", 100))


@pytest.mark.parametrize(
    ("steps", "micro", "forward_ms", "backward_ms"),
    [(40, 1, 450, 800), (10, 16, 700, 1_200), (8, 1, 9_500, 18_000), (8, 64, 500, 1_000)],
)
def test_long_steps_are_timed_whole_and_have_an_exact_wait(loop, steps, micro, forward_ms, backward_ms):
    step_ms = micro * (50 + forward_ms + backward_ms) + 500
    train_long(loop, steps, micro, forward_ms, backward_ms)
    late = loop.paces()[len(loop.paces()) // 2 :]
    for pace in late:
        assert pace.p50_ms == pace.longest_ms == pytest.approx(step_ms)
        assert pace.own_ms == pytest.approx(micro * (50 + forward_ms))
        assert pace.rate_hz == pytest.approx(1000 / step_ms, rel=0.01)
        assert not is_stalled(pace)
    assert max(pace.step_age_s for pace in late) > step_ms / 1000 - 1.5
    assert exact_wait(loop.last()) == pytest.approx(50 * micro / step_ms)


def test_who_comes_late_to_a_run_of_long_steps_knows_them_too(loop):
    train_long(loop, 5, 64, 500, 1_000)
    loop.attach()
    loop.spend(1_000)
    assert (loop.last().timed, loop.last().p50_ms) == (4, pytest.approx(64 * 1_550 + 500))


def test_who_slept_through_a_long_step_times_no_part_of_it(loop):
    train_long(loop, 3, 1, 450, 1_000)
    loop.next_ns = 1 << 62
    train_long(loop, 1, 400, 500, 1_000)
    loop.next_ns = loop.now
    train_long(loop, 3, 1, 450, 1_000)
    assert loop.last().p50_ms == loop.last().longest_ms == 2_000


def test_a_step_that_ends_just_after_a_record_of_its_middle_is_told_all_the_same(loop):
    loop.repeat(5, ("batch", 1), ("backward", 500, 900), ("update", 0.5))
    loop.batch(0.2)
    loop.spend(1_000)
    assert loop.last().count == 5


def test_a_loop_that_stands_still_is_told_since_its_last_step(loop):
    train_long(loop, 10, 1, 450, 1_000)
    loop.batch(50)
    loop.backward(450, 1_000)
    loop.spend(60_000)
    assert loop.last().step_age_s == pytest.approx(60, abs=3)
    assert is_stalled(loop.last())


def test_after_its_last_batch_a_loop_is_in_none_of_the_phases_of_a_step(loop):
    """Where a run stands in a checkpoint or a barrier at the end of an epoch, it is not in forward."""
    loop.train(3)
    loop.stop()
    loop.spend(3_000)
    reading = loop.read()
    assert reading.now == LoopNow(LoopPhase.OTHER, 3.0)


def test_a_validation_within_an_accumulation_leaves_its_step_whole(loop):
    half = [("batch", 20), ("backward", 80, 200)] * 4
    validation = (("stop",), *[("batch", 20, Batches(4)), ("spend", 400)] * 3, ("stop",))
    loop.repeat(6, *half, *validation, *half, ("update", 100))
    assert loop.last().p50_ms == pytest.approx(8 * 300 + 100)
    assert loop.last().eval_count > 0


# Process 0 fetches a batch for each of eight ranks, as Accelerate does for a streaming dataset.
TOGETHER = (*[("batch", 100)] * 8, ("backward", 150, 250), ("update", 50), ("spend", 10))
FROM_THREE = (*[("batch", 100)] * 3, ("backward", 50, 80), ("update", 20), ("spend", 10))
# A batch of each of three loaders is copied to a card before the next is asked for.
COPIED = (*[("batch", 100), ("spend", 4)] * 3, ("backward", 50, 80), ("update", 20))
ACCUMULATED = (*[("batch", 150), ("batch", 2), ("backward", 40, 60)] * 2, ("update", 20))
# Process 0 fetches for two ranks, and for four backwards: between these fetches it sends batches.
AHEAD = (*[("batch", 50), ("batch", 50), ("spend", 5)] * 4, *[("backward", 40, 60)] * 4, ("update", 20))


@pytest.mark.parametrize(
    ("step", "ahead", "batches", "times_ms"),
    [
        (TOGETHER, 0, 8, (1_260, 800)),
        (TOGETHER, 8, 8, (1_260, 800)),
        (TOGETHER, 64, 8, (1_260, 800)),
        (FROM_THREE, 0, 3, (460, 300)),
        (COPIED, 0, 3, (462, 300)),
        (ACCUMULATED, 0, 4, (524, 304)),
        (AHEAD, 0, 8, (840, 400)),
    ],
)
def test_batches_that_are_drawn_for_one_step_are_no_evaluation(loop, step, ahead, batches, times_ms):
    step_ms, data_ms = times_ms
    loop.repeat(ahead, ("batch", 100))
    loop.repeat(60, *step)
    pace = loop.last()
    # But for those before the first three steps were seen, which none can tell from an evaluation yet.
    assert pace.eval_count <= ahead + 3 * batches
    assert (loop.steps.steps, pace.p50_ms, pace.eval_pct) == (59, pytest.approx(step_ms), 0)
    assert pace.data_pct == pytest.approx(100 * data_ms / step_ms, rel=0.02)
    assert not is_evaluating(pace)


def test_a_loader_that_joins_later_and_one_that_comes_now_and_then_are_no_evaluation(loop):
    for number in range(200):
        loop.batch(100)
        if 50 <= number < 100 or number % 10 == 0:
            loop.batch(2)
        loop.backward(50, 80)
        loop.update(20)
    assert (loop.steps.steps, loop.steps.eval_steps) == (199, 0)


def test_an_evaluation_is_one_also_where_batches_are_drawn_together(loop):
    for _ in range(3):
        loop.repeat(20, *FROM_THREE)
        loop.stop()
        loop.repeat(30, ("batch", 10), ("batch", 10), ("spend", 200))
        loop.stop()
    loop.train(1)
    assert (loop.steps.steps, loop.steps.eval_steps) == (60, 180)


def test_an_evaluation_of_next_to_no_work_is_told_when_its_loader_ended(loop):
    loop.train(10)
    loop.stop()
    loop.repeat(5, ("batch", 10), ("spend", 0.02))
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps, loop.steps.samples) == (10, 5, 40)


def test_micro_batches_whose_backwards_cannot_be_seen_are_no_evaluation(loop):
    """As of an engine that is called in its own way: the updates alone tell of training."""
    loop.repeat(60, *[("batch", 1), ("spend", 30)] * 24, ("update", 100))
    pace = loop.last()
    assert (pace.count, pace.eval_count, pace.p50_ms) == (59, 0, pytest.approx(844))
    assert loop.steps.samples == 59 * 24 * 4


def test_an_inference_of_long_batches_is_told_from_the_first_on(loop):
    loop.repeat(5, ("batch", 50), ("spend", 20_000))
    reading = loop.read()
    assert (reading.rule, reading.counts.batches, reading.counts.eval_steps) == (StepRule.BATCH, 4, 4)
    assert loop.last().eval_hz == pytest.approx(1 / 20.05, rel=0.01)
    assert is_evaluating(loop.last())
    assert is_known(reading.settings)


def test_batches_that_may_be_fetched_ahead_are_told_as_batches_meanwhile(loop):
    loop.repeat(20, ("batch", 50), ("spend", 450))
    reading = loop.read()
    assert reading.counts.batches >= 17
    assert loop.told[-1] == Missing("no step ended yet")


@pytest.mark.parametrize("epochs", [30])
@pytest.mark.parametrize("updates", [1, 10, 16])
@pytest.mark.parametrize("first", [False, True])
def test_a_loop_without_a_dataloader_that_validates_on_one_keeps_its_steps(loop, epochs, updates, first):
    """Data that lie on the card, played games: few updates between two validations."""
    for epoch in range(epochs + 1):
        loop.repeat(updates if epoch or not first else 0, ("backward",), ("update",))
        loop.repeat(5, ("batch", 2), ("spend", 1))
        loop.stop()
    done = updates * (epochs + (not first))
    assert done - 1 <= loop.steps.steps <= done
    assert updates == 1 or loop.steps.rule == wire.RULE_UPDATE
    assert loop.steps.eval_steps >= 5 * epochs
