"""Loops whose batches, threads and optimizers follow no simple order, with a clock that the test holds."""

import random
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tests.hook.test_hook_evaluations import run_in_engine, run_in_thread
from tests.hook_loop import Batches, Loop
from tpmon.hook.bus import wire
from tpmon.hook.capture.recorder import Range, Recorder


@pytest.fixture(autouse=True)
def gradients(loop):
    loop.gradients = True


def draw(loop: Loop, counts: Sequence[int]) -> None:
    """Draw several batches for each step, and work on each a moment."""
    for count in counts:
        for _ in range(count):
            loop.batch(2)
            loop.spend(0.2)
        loop.backward()
        loop.update()


@pytest.mark.parametrize(
    "counts",
    [
        [12, 13] * 50,  # WebLoader(...).unbatched().shuffle(n).batched(m)
        [random.Random(7).randint(1, 6) for _ in range(100)],  # batches by tokens
        ([4] * 4 + [5]) * 20,
        [2 if number % 10 == 0 else 1 for number in range(100)],  # a batch that is left out
    ],
)
def test_batches_that_a_training_draws_irregularly_are_no_evaluation(loop, counts):
    draw(loop, counts)
    loop.stop()
    one = loop.steps
    # Only before the first step nothing tells them apart.
    assert one.eval_steps <= counts[0]
    assert (one.steps, one.batches) == (len(counts), sum(counts))
    assert one.data_ns / 1e6 >= 2 * (sum(counts) - counts[0])


def test_batches_drawn_for_one_step_a_moment_apart_are_no_evaluation(loop):
    """As Accelerate draws one for each rank, a step ahead, 30 to 100 us apart on a machine that is not fast."""

    def draw_pair():
        loop.batch(2)
        loop.spend(0.06)
        loop.batch(2)
        loop.spend(1)

    draw_pair()
    for _ in range(20):
        draw_pair()
        loop.backward()
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.eval_steps) == (20, 0)


def test_an_evaluation_beside_such_a_training_is_one(loop):
    other = Batches(64)
    draw(loop, [1])
    for _ in range(5):
        draw(loop, [3, 4, 2, 5])
        for _ in range(7):
            loop.batch(1, of=other)
            loop.spend(4)
        loop.stop()
    one = loop.steps
    assert (one.steps, one.eval_steps, one.eval_samples) == (21, 35, 35 * 64)


def test_a_pass_over_the_training_data_for_something_else_is_no_step(loop):
    """As for the mean and deviation of a set, with gradients on."""
    draw(loop, [3, 4, 2, 5])
    loop.stop()
    for _ in range(3000):
        loop.batch(0.1)
        loop.spend(0.1)
    loop.stop()
    draw(loop, [3])
    assert loop.steps.steps == 5 - 1
    assert loop.steps.eval_steps >= 3000 - 1024


@pytest.mark.parametrize(
    ("run", "each", "slow_at", "late"),
    [
        (run_in_engine, 4, 0, False),  # on CUDA the engine has a thread of its own, where the training never goes on
        (run_in_engine, 20, 1, False),  # a backward of a minute: the graph is compiled for the first time
        (run_in_engine, 20, 21, False),
        (run_in_thread, 3, 0, False),  # a pool to which each gradient is handed as soon as it is there
        (run_in_thread, 3, 0, True),  # whose last one ends after the backward
    ],
)
def test_optimizers_that_other_threads_run_for_the_backward_are_of_the_step(loop, run, each, slow_at, late):
    for number in range(1, 31):
        loop.batch()
        assert loop.steps.backward_begins()
        loop.spend(70_000 if number == slow_at else 5)
        run(lambda: [loop.steps.optimizer_stepped(None, (), {}) for _ in range(each)])
        loop.steps.backward_ended(True)
        if late:
            run(lambda: loop.steps.optimizer_stepped(None, (), {}))
    loop.stop()
    one = loop.steps
    assert (one.steps, one.updates, one.backwards, one.owner) == (30, 30, 30, threading.get_ident())
    if not late:
        assert (one.optimizer_calls, one.elsewhere) == (30 * each, 0)


def test_another_training_that_runs_within_a_backward_is_not_of_it(loop):
    """The engine lets other threads run just then."""

    def train_elsewhere():
        assert not loop.steps.backward_begins()
        loop.update()

    for _ in range(25):
        for _ in range(4):
            loop.batch()
            assert loop.steps.backward_begins()
            run_in_thread(train_elsewhere)
            loop.spend(5)
            loop.steps.backward_ended(True)
        loop.update()
    loop.stop()
    assert (loop.steps.steps, loop.steps.backwards, loop.steps.elsewhere) == (25, 100, 200)


@pytest.mark.parametrize("every", [1, 20])
def test_whoever_says_that_a_step_ends_is_heard_and_the_split_stays_that_of_the_loop(loop, every):
    for number in range(1, 101):
        loop.train(1)
        if number % every == 0:
            run_in_thread(lambda: loop.steps.step_called(8, True))
    one = loop.steps
    assert one.rule == wire.RULE_CALL
    # Up to the first call the steps were told by the loop itself.
    assert one.steps == 100 // every + (every - 1 if every > 1 else 0)
    assert (one.batches, one.backwards, one.owner) == (100, 100, threading.get_ident())
    assert one.backward_ns == 100 * 5_000_000
    run_in_thread(lambda: one.step_called(3, False))
    assert (one.eval_steps, one.eval_samples) == (1, 3)
    loop.spend(10)
    run_in_thread(lambda: one.step_called(8, True))
    assert loop.records()[-1][wire.REC_STEPS] == one.steps


def test_a_sampler_that_cannot_be_told_from_another_decides_nothing(loop):
    """A list of batches has no dictionary."""
    other = Batches(4)
    other._index_sampler = [[0, 1]]
    for _ in range(5):
        loop.train(10)
        for _ in range(6):
            loop.batch(of=other)
            loop.spend(1)
    loop.train(1)
    assert (loop.steps.steps, loop.steps.eval_steps) == (50, 30)


Around = SimpleNamespace
"""A sampler that repeats another, or skips some of its batches."""


class Lengthless:
    """Stand for a sampler whose length cannot be told, or takes long."""

    def __init__(self, size: int) -> None:
        self.batch_size = size

    def __len__(self) -> int:
        raise NotImplementedError("no length")


class Untrue:
    """Stand for an array, which is neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


@pytest.mark.parametrize(
    ("sampler", "size"),
    [
        (Around(sampler=Batches(16)._index_sampler), 16),
        (Around(batch_sampler=Batches(16)._index_sampler), 16),
        (Around(batch_sampler=Around(sampler=Batches(16)._index_sampler)), 16),
        (Around(sampler=Around(sampler=Around(sampler=Around(sampler=Batches(16))))), 0),
        (Around(sampler=5), 0),
        (SimpleNamespace(batch_size=None), 0),
        (Around(batch_sampler=Lengthless(16)), 16),
        (SimpleNamespace(batch_size=Untrue()), 0),
        (Around(sampler=SimpleNamespace(batch_size=32, split_batches=True, num_processes=8)), 4),
    ],
)
def test_a_batch_size_is_found_within_samplers_around_each_other(loop, sampler, size):
    loop.iterator._index_sampler = sampler
    loop.train(3)
    loop.stop()
    assert (loop.steps.samples, loop.steps.problem) == (3 * size, "")


def test_a_recording_that_cannot_be_ended_is_ended_past_torchs_profile(monkeypatch):
    """What goes on recording fills the memory until the process is killed."""
    disabled: list[int] = []
    autograd = SimpleNamespace(_disable_profiler=lambda: disabled.append(1))
    monkeypatch.setitem(sys.modules, "torch.autograd", autograd)
    Recorder(0).abandon()
    assert disabled == [1]
    del autograd._disable_profiler
    Recorder(0).abandon()


def test_a_range_for_nsys_ends_whatever_ranges_the_program_has_open(monkeypatch):
    calls: list[tuple[str, object]] = []

    def begin(name):
        calls.append(("start", name))
        return 40 + len(calls)

    nvtx = SimpleNamespace(range_start=begin, range_end=lambda handle: calls.append(("end", handle)))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(nvtx=nvtx)))
    one = Range()
    one.mark(7)
    one.mark(8)
    one.stop()
    assert calls == [("start", "step 7"), ("end", 41), ("start", "step 8"), ("end", 43)]
