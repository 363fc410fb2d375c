"""Steps and phases from events: every loop that the note names, with a clock that the test holds."""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterator

import pytest

from tpmon.hook import counts, steps, wire
from tpmon.hook.steps import Steps

MS = 1_000_000


class Sampler:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


class Batches:
    def __init__(self, batch_size: int) -> None:
        self._index_sampler = Sampler(batch_size)


class Loop:
    """Stand for a training loop: each call takes so many ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10**12
        monkeypatch.setattr(steps, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(counts, "monotonic_ns", lambda: self.now)
        self.turned_off = 0
        self.steps = Steps(self._turned_off)
        self.iterator = Batches(4)

    def _turned_off(self) -> None:
        self.turned_off += 1

    def spend(self, ms: float) -> None:
        self.now += int(ms * MS)

    def batch(self, ms: float = 2) -> None:
        ours = self.steps.data_begins()
        self.spend(ms)
        if ours:
            self.steps.data_ended(self.iterator)

    def stop(self, ms: float = 0) -> None:
        if self.steps.data_begins():
            self.spend(ms)
            self.steps.data_stopped()

    def backward(self, forward_ms: float = 3, ms: float = 5, counts: bool = True) -> None:
        self.spend(forward_ms)
        ours = self.steps.backward_begins()
        self.spend(ms)
        if ours:
            self.steps.backward_ended(counts)

    def update(self, ms: float = 1) -> None:
        self.spend(ms)
        self.steps.optimizer_stepped(None, (), {})

    def train(self, number: int, other_ms: float = 0) -> None:
        for _ in range(number):
            self.batch()
            self.backward()
            self.update()
            self.spend(other_ms)

    def phases_ms(self) -> list[float]:
        one = self.steps
        times = (one.data_ns, one.forward_ns, one.backward_ns, one.optimizer_ns, one.other_ns)
        return [time / MS for time in times]

    def evals_ms(self) -> list[float]:
        one = self.steps
        return [time / MS for time in (one.eval_data_ns, one.eval_forward_ns, one.eval_other_ns)]

    def records(self) -> list[tuple[int, ...]]:
        assert self.steps.pages is not None
        return wire.parse_records(self.steps.pages.page, 0, 1024)[1]


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


def test_batches_fetched_ahead_for_an_accumulation_are_no_evaluation(loop: Loop) -> None:
    """As the Trainer does: all batches of a step first."""
    for _ in range(50):
        for _ in range(4):
            loop.batch()
        for _ in range(4):
            loop.backward()
        loop.update()
    loop.stop()
    assert loop.steps.steps == 50
    assert loop.steps.eval_steps == 3  # those of the first step, before it was seen how this loop works
    assert loop.steps.samples + loop.steps.eval_samples == 800
    for _ in range(20):
        loop.batch()
    loop.stop()
    assert loop.steps.eval_steps == 3 + 20


def test_one_batch_fetched_ahead_moves_no_step(loop: Loop) -> None:
    """As Accelerate does: the next batch is fetched before the last one is used."""
    loop.batch()
    for _ in range(9):
        loop.batch()
        loop.backward()
        loop.update()
    loop.stop()
    loop.backward()
    loop.update()
    loop.batch()
    assert (loop.steps.steps, loop.steps.eval_steps) == (10, 1)


def test_a_skipped_update_of_a_scaler_ends_a_step_and_is_counted(loop: Loop) -> None:
    for number in range(10):
        loop.batch()
        loop.backward()
        if number % 5:
            loop.update()
        loop.steps.scaler_updated()
    loop.stop()
    assert (loop.steps.steps, loop.steps.skipped, loop.steps.optimizer_calls) == (10, 2, 8)


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


def test_a_loop_that_takes_up_a_dataloader_later_is_counted_by_it(loop: Loop) -> None:
    for _ in range(30):
        loop.backward()
        loop.update()
    loop.train(30)
    loop.stop()
    assert (loop.steps.steps, loop.steps.rule) == (60, wire.RULE_DATA_AFTER_UPDATE)


def test_evaluation_steps_and_their_time_are_told_apart(loop: Loop) -> None:
    loop.train(10)
    loop.stop()
    before = loop.phases_ms()
    for _ in range(20):
        loop.batch(1)
        loop.spend(6)
    loop.stop(3)
    assert (loop.steps.steps, loop.steps.eval_steps, loop.steps.eval_samples) == (10, 20, 80)
    assert loop.evals_ms() == [20, 120, 0]
    loop.train(1)
    loop.stop()
    after = loop.phases_ms()
    assert [late - early for early, late in zip(before, after, strict=True)] == [2 + 3, 3, 5, 1, 0]


def test_an_evaluation_after_half_an_accumulation_keeps_its_time_to_itself(loop: Loop) -> None:
    loop.train(3)
    loop.batch()
    loop.backward()
    loop.stop()
    for _ in range(5):
        loop.batch(1)
        loop.spend(6)
    loop.stop()
    assert loop.steps.eval_steps == 5
    assert loop.evals_ms() == [5, 30, 0]
    assert loop.phases_ms()[:3] == [8, 12, 20]


def test_gradients_of_the_model_within_an_evaluation_are_no_training(loop: Loop) -> None:
    loop.train(3)
    for _ in range(6):
        loop.batch()
        loop.backward(counts=False)
        loop.spend(1)
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps, loop.steps.backwards) == (3, 6, 3)


def test_inference_counts_batches(loop: Loop) -> None:
    for _ in range(10):
        loop.batch()
        loop.spend(1)
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps, loop.steps.rule) == (0, 10, wire.RULE_BATCH)


def test_without_a_torch_optimizer_batches_with_a_backward_are_steps(loop: Loop) -> None:
    for _ in range(200):
        loop.batch()
        loop.backward()
    loop.stop()
    assert (loop.steps.steps, loop.steps.rule) == (200, wire.RULE_BACKWARD)
    loop.train(10)
    loop.stop()
    assert (loop.steps.steps, loop.steps.rule) == (210, wire.RULE_DATA_AFTER_UPDATE)


def test_backwards_alone_are_published_every_second(loop: Loop) -> None:
    for _ in range(250):
        loop.backward(5, 5)
    records = loop.records()
    assert [record[wire.REC_BACKWARDS] for record in records] == [101, 202]


def test_what_the_user_says_ends_a_step_and_nothing_else(loop: Loop) -> None:
    loop.steps.step_called(0, True)
    for _ in range(5):
        loop.train(3)
        loop.steps.step_called(32, True)
    loop.batch()
    loop.spend(1)
    loop.steps.step_called(7, False)
    one = loop.steps
    assert (one.steps, one.eval_steps, one.rule) == (6, 1, wire.RULE_CALL)
    assert (one.samples, one.eval_samples) == (160, 7)


def test_an_interrupted_fetch_does_not_stop_the_counting(loop: Loop) -> None:
    loop.train(2)
    assert loop.steps.data_begins()  # and an interrupt came before it ended
    loop.backward()
    loop.update()
    loop.train(2)
    loop.stop()
    assert loop.steps.steps == 5


@pytest.mark.parametrize("with_data", [False, True])
def test_an_interrupted_backward_does_not_stop_the_counting(loop: Loop, with_data: bool) -> None:
    for number in range(10):
        if with_data:
            loop.batch()
        if number == 3:
            assert loop.steps.backward_begins()  # and an interrupt came before it ended
        loop.backward()
        loop.update()
    loop.stop()
    loop.backward()
    assert 9 <= loop.steps.steps <= 10
    assert loop.steps.depth == 0


def test_another_thread_counts_nothing_until_the_training_moves_there(loop: Loop) -> None:
    loop.train(3)

    def elsewhere() -> None:
        for _ in range(5):
            loop.train(1)

    run_in_thread(elsewhere)
    assert loop.steps.steps == 2
    assert loop.steps.elsewhere == 15
    run_in_thread(lambda: loop.train(30))
    assert loop.steps.steps > 15


def test_batches_of_a_prefetching_thread_leave_the_steps_to_the_updates(loop: Loop) -> None:
    run_in_thread(lambda: [loop.batch() for _ in range(4)])
    for _ in range(10):
        loop.backward()
        loop.update()
    run_in_thread(loop.batch)
    assert (loop.steps.steps, loop.steps.rule) == (10, wire.RULE_UPDATE)


def run_in_thread(target: object) -> None:
    thread = threading.Thread(target=target)  # type: ignore[arg-type]
    thread.start()
    thread.join()


@pytest.mark.parametrize("at", range(12))
def test_an_error_of_the_hook_turns_it_off_and_is_said_on_the_bus(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    loop.train(2)
    # A clock that fails at its nth call, in C: a frame of this file would be the user's.
    monkeypatch.setattr(steps, "monotonic_ns", iter(range(loop.now, loop.now + at * MS, MS)).__next__)
    loop.train(4)
    loop.stop()
    assert loop.turned_off == 1
    assert "StopIteration" in loop.steps.problem
    assert loop.steps.pages is not None
    state, patches, error = wire.parse_status(loop.steps.pages.page)
    assert (state, patches) == (wire.STATE_DISABLED, 0)
    assert error == loop.steps.problem
    assert "line" in error
    counted = loop.steps.steps
    loop.train(3)
    assert loop.steps.steps == counted


def test_an_error_of_the_users_signal_handler_is_the_users(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may raise while our code runs; whoever set the alarm waits for its error."""
    loop.train(2)

    def interrupted() -> int:
        raise TimeoutError("alarm")

    monkeypatch.setattr(steps, "monotonic_ns", interrupted)
    with pytest.raises(TimeoutError):
        loop.steps.data_begins()
    assert loop.steps.problem == ""
    assert not loop.turned_off


def test_a_page_that_cannot_be_made_turns_the_hook_off(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpmon.hook import pages

    monkeypatch.setattr(pages.os, "memfd_create", operator.truediv)
    loop.train(2)
    assert loop.steps.steps == 0
    assert "TypeError" in loop.steps.problem
    assert loop.turned_off == 1


def test_the_mailbox_is_answered_at_the_end_of_a_step_and_garbage_does_nothing(loop: Loop) -> None:
    loop.train(2)
    pages = loop.steps.pages
    assert pages is not None
    for number, kind, answer in [(1, 1, wire.ANSWER_DONE), (2, 77, wire.ANSWER_UNKNOWN), (2**64 - 1, 1, 1)]:
        pages.requests[1] = kind
        pages.requests[0] = number
        loop.train(2)
        assert (pages.answers[0], pages.answers[1]) == (number, answer)
    loop.stop()
    assert loop.steps.problem == ""
