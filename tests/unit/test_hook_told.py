"""What a reader makes of a loop, once a second, on a clock that the test holds: from the hook to the pace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hook_loop import MS, Loop
from tpmon.hook import wire
from tpmon.model.known import Known, is_known
from tpmon.model.pace import StepPace
from tpmon.model.pace_words import is_stalled
from tpmon.model.process import Identity
from tpmon.model.steps import LoopNow, LoopPhase, StepReading
from tpmon.probe.hook import Seen, parse_reading
from tpmon.probe.step_pace import RankPace

SECOND_NS = 1_000 * MS


class Watched(Loop):
    """Stand for a training loop that is read once a second from its first event on, or from ``attach`` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        monkeypatch.setattr("tpmon.hook.steps.has_gradients_on", lambda: True)
        self.next_ns = self.now + SECOND_NS
        self.told: list[Known[StepPace]] = []
        self.attach()

    def attach(self) -> None:
        self.seen, self.pace = Seen(), RankPace()
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

    def paces(self) -> list[StepPace]:
        return [pace for pace in self.told if is_known(pace)]

    def last(self) -> StepPace:
        return self.paces()[-1]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    loop = Watched(monkeypatch)
    yield loop
    loop.steps.drop_pages()


def train_long(loop: Watched, steps: int, micro: int, forward_ms: float, backward_ms: float) -> None:
    """Play steps of so many batches with a backward each, of which one takes 50 ms more for data."""
    for _ in range(steps):
        for _ in range(micro):
            loop.batch(50)
            loop.backward(forward_ms, backward_ms)
        loop.update(400)
        loop.spend(100)


@pytest.mark.parametrize(
    ("steps", "micro", "forward_ms", "backward_ms"),
    [(40, 1, 450, 800), (10, 16, 700, 1_200), (8, 1, 9_500, 18_000), (8, 64, 500, 1_000)],
)
def test_long_steps_are_timed_whole(
    loop: Watched, steps: int, micro: int, forward_ms: float, backward_ms: float
) -> None:
    step_ms = micro * (50 + forward_ms + backward_ms) + 500
    train_long(loop, steps, micro, forward_ms, backward_ms)
    late = loop.paces()[len(loop.paces()) // 2 :]
    for pace in late:
        assert pace.p50_ms == pace.longest_ms == pytest.approx(step_ms)
        assert pace.own_ms == pytest.approx(micro * (50 + forward_ms))
        assert pace.rate_hz == pytest.approx(1000 / step_ms, rel=0.01)
        assert not is_stalled(pace)
    assert max(pace.step_age_s for pace in late) > step_ms / 1000 - 1.5


def test_who_comes_late_to_a_run_of_long_steps_knows_them_too(loop: Watched) -> None:
    train_long(loop, 5, 64, 500, 1_000)
    loop.attach()
    loop.spend(1_000)
    assert loop.last().timed == 4
    assert loop.last().p50_ms == pytest.approx(64 * 1_550 + 500)


def test_who_slept_through_a_long_step_times_no_part_of_it(loop: Watched) -> None:
    train_long(loop, 3, 1, 450, 1_000)
    loop.next_ns = 1 << 62
    train_long(loop, 1, 400, 500, 1_000)
    loop.next_ns = loop.now
    train_long(loop, 3, 1, 450, 1_000)
    assert loop.last().p50_ms == loop.last().longest_ms == 2_000


def test_a_step_that_ends_just_after_a_record_of_its_middle_is_told_all_the_same(loop: Watched) -> None:
    for _ in range(5):
        loop.batch(1)
        loop.backward(500, 900)
        loop.update(0.5)
    loop.batch(0.2)
    loop.spend(1_000)
    assert loop.last().count == 5


def test_a_loop_that_stands_still_is_told_since_its_last_step(loop: Watched) -> None:
    train_long(loop, 10, 1, 450, 1_000)
    loop.batch(50)
    loop.backward(450, 1_000)
    loop.spend(60_000)
    assert loop.last().step_age_s == pytest.approx(60, abs=3)
    assert is_stalled(loop.last())


def test_after_its_last_batch_a_loop_is_in_none_of_the_phases_of_a_step(loop: Watched) -> None:
    """Where a run stands in a checkpoint or a barrier at the end of an epoch, it is not in forward."""
    loop.train(3)
    loop.stop()
    loop.spend(3_000)
    reading = loop.read()
    assert reading is not None
    assert reading.now == LoopNow(LoopPhase.OTHER, 3.0)
