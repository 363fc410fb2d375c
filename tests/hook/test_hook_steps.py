"""Which events are one step of a training, with a clock that the test holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.hook_loop import MS, Batches, Loop
from tpmon.hook.bus import wire


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    loop = Loop(monkeypatch)
    yield loop
    loop.steps.drop_pages()


def test_a_plain_loop_counts_each_step_when_the_next_batch_is_asked_for(loop: Loop) -> None:
    loop.train(10, other_ms=4)
    assert loop.steps.steps == 9
    loop.stop()
    assert loop.steps.steps == 10
    assert loop.steps.rule == wire.RULE_DATA_AFTER_UPDATE
    assert loop.phases_ms() == [20, 30, 50, 10, 40]
    assert (loop.steps.samples, loop.steps.batch_size) == (40, 4)
    assert loop.steps.eval_steps == 0


def test_every_step_has_its_record_and_the_phases_add_up_to_its_time(loop: Loop) -> None:
    loop.train(5, other_ms=1.5)
    loop.stop()
    records = loop.records()
    assert [record[wire.REC_STEPS] for record in records] == [1, 2, 3, 4, 5]
    for before, after in itertools.pairwise(records):
        spent = sum(after[wire.REC_DATA_NS : wire.REC_OTHER_NS + 1])
        spent -= sum(before[wire.REC_DATA_NS : wire.REC_OTHER_NS + 1])
        assert spent == after[wire.REC_TIME_NS] - before[wire.REC_TIME_NS] == 12.5 * MS


def test_short_steps_share_records_and_none_is_lost(loop: Loop) -> None:
    for _ in range(400):
        loop.batch(0.01)
        loop.backward(0.01, 0.02)
        loop.update(0.01)
    loop.stop()
    loop.spend(2)
    loop.train(1)
    loop.stop()
    records = loop.records()
    assert 9 <= len(records) <= 12
    assert records[-1][wire.REC_STEPS] == 401


def test_an_accumulation_is_one_step(loop: Loop) -> None:
    for _ in range(6):
        for _ in range(4):
            loop.batch()
            loop.backward()
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.batches, loop.steps.backwards) == (6, 24, 24)
    assert (loop.steps.samples, loop.steps.eval_steps) == (96, 0)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Hold whether gradients are on; they are until the test says otherwise."""
    on = [True]
    monkeypatch.setattr("tpmon.hook.steps.has_gradients_on", lambda: on[0])
    monkeypatch.setattr("tpmon.hook.steps.has_gradients_on", lambda: on[0])
    return on


@pytest.mark.parametrize("more", [0, 1])
def test_batches_fetched_ahead_for_an_accumulation_are_no_evaluation(
    loop: Loop, gradients: list[bool], more: int
) -> None:
    """As the Trainer does: all batches of a step first, and, by Accelerate, one more."""
    for _ in range(more):
        loop.batch()
    for number in range(50):
        for _ in range(4 - (more if number == 49 else 0)):
            loop.batch()
        if more and number == 49:
            loop.stop()
        for _ in range(4):
            loop.backward()
        loop.update()
    if not more:
        loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (50, 0)
    gradients[0] = False
    for _ in range(20):
        loop.batch()
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (50, 20)
    assert (loop.steps.samples, loop.steps.eval_samples) == (800, 80)


def test_an_evaluation_before_the_first_step_is_one_and_takes_its_time(
    loop: Loop, gradients: list[bool]
) -> None:
    gradients[0] = False
    for _ in range(2):
        loop.batch(10)
    loop.stop()
    gradients[0] = True
    loop.train(5)
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (5, 2)
    assert loop.evals_ms()[0] == 20


def test_an_evaluation_that_turns_gradients_off_too_late_to_be_seen_is_told_when_its_loader_ended(
    loop: Loop, gradients: list[bool]
) -> None:
    assert gradients[0]
    for _ in range(3):
        loop.batch(10)
    loop.stop()
    assert loop.steps.eval_steps == 0
    loop.train(5)
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (5, 3)
    assert loop.evals_ms()[0] == 30


@pytest.mark.parametrize("sanity", [1, 2])
def test_an_evaluation_before_the_first_step_that_does_not_end_its_loader_is_one(
    loop: Loop, gradients: list[bool], sanity: int
) -> None:
    """As Lightning checks a run before it trains, and validates: so many batches, and no question for more."""

    other = Batches(4)

    def evaluate(batches: int) -> None:
        gradients[0] = False
        for _ in range(batches):
            loop.batch(10, of=other)
            loop.spend(1)
        gradients[0] = True

    evaluate(sanity)
    for _ in range(5):
        loop.train(10)
        loop.stop()
        evaluate(1)
    loop.batch()
    assert (loop.steps.steps, loop.steps.eval_steps, loop.steps.lookahead) == (50, sanity + 5, 0)
    assert (loop.steps.samples, loop.steps.eval_samples) == (200, 4 * (sanity + 5))


def test_an_evaluation_with_gradients_on_that_is_broken_off_before_the_first_step_is_counted(
    loop: Loop, gradients: list[bool]
) -> None:
    assert gradients[0]
    for _ in range(5):
        loop.batch()
        loop.spend(1)
    loop.train(3)
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps, loop.steps.lookahead) == (3, 5, 0)
    assert (loop.steps.samples, loop.steps.eval_samples) == (12, 20)


def test_after_an_evaluation_batches_are_fetched_ahead_as_before(loop: Loop, gradients: list[bool]) -> None:
    """The Trainer, with an evaluation after each epoch."""
    for _ in range(3):
        for _ in range(10):
            for _ in range(4):
                loop.batch()
            for _ in range(4):
                loop.backward()
            loop.update()
        loop.stop()
        gradients[0] = False
        for _ in range(5):
            loop.batch()
        loop.stop()
        gradients[0] = True
    loop.batch()
    assert (loop.steps.steps, loop.steps.eval_steps) == (30, 15)
    assert (loop.steps.samples, loop.steps.eval_samples) == (480, 60)


def test_a_loop_without_a_torch_optimizer_keeps_its_evaluations(loop: Loop, gradients: list[bool]) -> None:
    assert gradients[0]
    other = Batches(4)
    for _ in range(3):
        for _ in range(10):
            loop.batch()
            loop.backward()
        loop.stop()
        for _ in range(3):
            loop.batch(of=other)
            loop.spend(1)
        loop.stop()
    assert loop.steps.eval_steps == 9


def test_steps_of_one_and_two_updates_fetched_ahead_are_as_many_as_they_are(
    loop: Loop, gradients: list[bool]
) -> None:
    """A WGAN under Accelerate: the generator is trained every fifth batch, and at the last."""
    assert gradients[0]
    for epoch in (1, 2):
        loop.batch()
        for number in range(1, 11):
            if number < 10:
                loop.batch()
            else:
                loop.stop()
            for _ in range(2 if number % 5 == 0 else 1):
                loop.backward()
                loop.update()
        assert loop.steps.steps == 10 * epoch


def test_a_program_that_only_evaluates_with_gradients_on_is_counted_all_the_same(
    loop: Loop, gradients: list[bool]
) -> None:
    for _ in range(100):
        loop.batch()
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (0, 100)


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_one_batch_fetched_ahead_moves_no_step_and_hides_not_the_last(
    loop: Loop, gradients: list[bool], updates: int, accumulated: int
) -> None:
    """As Accelerate does: the next batch is fetched before the last one is used."""
    assert gradients[0]
    for epoch in (1, 2):
        loop.batch()
        for number in range(10 * accumulated):
            if number < 10 * accumulated - 1:
                loop.batch()
            else:
                loop.stop()
            if (number + 1) % accumulated:
                loop.backward()
                continue
            for _ in range(updates):
                loop.backward()
                loop.update()
        assert (loop.steps.steps, loop.steps.eval_steps) == (10 * epoch, 0)


def test_what_is_left_of_an_accumulation_is_updated_after_the_last_batch(loop: Loop) -> None:
    for _ in range(2):
        for number in range(10):
            loop.batch()
            loop.backward()
            if number % 4 == 3:
                loop.update()
        loop.stop()
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (6, 0)


def test_a_skipped_update_of_a_scaler_ends_a_step_and_is_counted(loop: Loop) -> None:
    for number in range(10):
        loop.batch()
        loop.backward()
        if number % 5:
            loop.update()
        loop.steps.scaler_updated()
    loop.stop()
    assert (loop.steps.steps, loop.steps.skipped, loop.steps.optimizer_calls) == (10, 2, 8)


def test_an_update_is_skipped_only_where_the_scaler_is_on(loop: Loop) -> None:
    for number in range(10):
        loop.batch()
        loop.backward()
        loop.steps.scaler_updated(SimpleNamespace(_enabled=number < 5))
    loop.stop()
    assert (loop.steps.steps, loop.steps.updates, loop.steps.optimizer_calls) == (10, 10, 0)
    # Whether these were skipped, or made by an optimizer that the hook does not see, the reader says.
    assert loop.records()[-1][wire.REC_SKIPPED] == 5


@pytest.mark.parametrize("critics", [1, 5])
def test_several_optimizers_are_one_step_a_batch(loop: Loop, critics: int) -> None:
    for _ in range(10):
        loop.batch()
        for _ in range(critics):
            loop.backward()
            loop.update()
        loop.backward()
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.optimizer_calls) == (10, 10 * (critics + 1))


def test_a_step_that_calls_its_parent_class_is_one_update(loop: Loop) -> None:
    for _ in range(10):
        loop.backward()
        loop.update()
        loop.update(0)
    assert (loop.steps.steps, loop.steps.updates, loop.steps.optimizer_calls) == (10, 10, 20)


def test_an_optimizer_within_the_backward_is_one_step(loop: Loop) -> None:
    for with_data in (False, True):
        loop.steps.forget()
        for _ in range(10):
            if with_data:
                loop.batch()
            loop.spend(3)
            assert loop.steps.backward_begins()
            for _ in range(20):
                loop.spend(0.25)
                loop.steps.optimizer_stepped(None, (), {})
            loop.steps.backward_ended(True)
        if with_data:
            loop.stop()
        assert (loop.steps.steps, loop.steps.optimizer_calls) == (10, 200)
        assert loop.phases_ms()[2] == 50


def test_closures_and_nested_backwards_are_parts_of_their_step(loop: Loop) -> None:
    for _ in range(5):
        loop.batch()
        for _ in range(4):
            loop.spend(3)
            assert loop.steps.backward_begins()
            assert loop.steps.backward_begins()
            loop.spend(5)
            loop.steps.backward_ended(True)
            loop.steps.backward_ended(True)
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.backwards) == (5, 20)
    assert loop.phases_ms() == [10, 60, 100, 5, 0]


def test_without_a_dataloader_the_update_ends_a_step(loop: Loop) -> None:
    for _ in range(10):
        loop.backward()
        loop.update()
    assert (loop.steps.steps, loop.steps.rule) == (10, wire.RULE_UPDATE)
    assert loop.phases_ms()[1:] == [30 - 3, 50, 10, 0]  # the hook came with the first backward


def test_a_dataloader_that_is_read_once_before_the_loop_does_not_end_its_steps(loop: Loop) -> None:
    for _ in range(7):
        loop.batch()
    loop.stop()
    for _ in range(100):
        loop.backward()
        loop.update()
    assert (loop.steps.steps, loop.steps.rule, loop.steps.eval_steps) == (100, wire.RULE_UPDATE, 7)


def test_an_evaluation_on_a_dataloader_between_updates_without_one(loop: Loop) -> None:
    for _ in range(3):
        for _ in range(40):
            loop.backward()
            loop.update()
        for _ in range(5):
            loop.batch()
            loop.spend(1)
        loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (120, 15)


def test_a_batch_at_which_an_evaluation_was_broken_off_is_none_of_training(loop: Loop) -> None:
    for _ in range(3):
        for _ in range(40):
            loop.backward()
            loop.update()
        for _ in range(5):
            loop.batch()
            loop.spend(1)
    loop.backward()
    loop.update()
    assert loop.steps.rule == wire.RULE_UPDATE
    assert (loop.steps.samples, loop.steps.eval_samples) == (0, 60)


def test_a_loop_that_takes_up_a_dataloader_later_is_counted_by_it(loop: Loop) -> None:
    for _ in range(30):
        loop.backward()
        loop.update()
    loop.train(30)
    loop.stop()
    assert (loop.steps.steps, loop.steps.rule) == (60, wire.RULE_DATA_AFTER_UPDATE)
