"""What repeats stands in for steps with the number of the loop's iterations, or nothing does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.traces import TraceBuilder
from tpmon.trace.figures.repeats import count_in_one, find_layer, find_run
from tpmon.trace.reading.columns import Ints

STEP, ZERO = "Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NODE = "autograd::engine::evaluate_function: "
LAYERS = ("linear", "relu") * 12
BACK = (f"{NODE}ReluBackward0", f"{NODE}AddmmBackward0") * 12
TRAINED = (ZERO, *LAYERS, "mean", *BACK, STEP)
TELLS = (ZERO, *LAYERS, "ones", "loss", *LAYERS, "detach", *LAYERS, "zeros", "loss", "add", *BACK, *BACK, STEP)
MAKES = (ZERO, *LAYERS, *LAYERS, "ones", "loss", *BACK, *BACK, STEP)
SHOWN = (*LAYERS, "mean", "item")
Loop = Callable[[int], Sequence[str]]


def write(loop: Loop, times: int, before: Sequence[str] = (), thread: int = 0) -> TraceBuilder:
    """Write so many iterations of a loop, 10 us an event; ``thread`` runs the backward passes."""
    trace, at = TraceBuilder(base_us=0), 0.0
    for words in (before, *(loop(number) for number in range(times))):
        for word in words:
            marked = word.startswith(("Optimizer", "enumerate", "my "))
            name = word if marked or word.startswith(NODE) else f"aten::{word}"
            other = {"tid": thread} if thread and word.startswith(NODE) else {}
            trace.add("user_annotation" if marked else "cpu_op", name, at, 8, **other)
            at += 10
        at += 5
    return trace


ITERATIONS: dict[str, tuple[Loop, int]] = {
    "training": (lambda _: TRAINED, 20),
    "a line of a log and a validation": (
        lambda at: (*LAYERS, "mean", *(("item",) if at % 5 == 0 else ()), *TRAINED, *(SHOWN if at % 9 == 5 else ())),
        30,
    ),
    "two optimizers take turns": (lambda _: (*TELLS, *MAKES), 20),
    "a critic that is trained five times as often": (lambda _: (*TELLS * 5, *MAKES), 20),
    "two optimizers step together": (lambda _: (*TRAINED, STEP), 20),
    "one update of four backward passes": (lambda _: (*LAYERS, "mean", *BACK) * 4 + (STEP, ZERO), 20),
    "a validation every five": (lambda at: (*TRAINED, *(SHOWN * 3 if at % 5 == 4 else ())), 20),
    "a log line every second": (lambda at: (*TRAINED, *(("item",) if at % 2 else ())), 20),
    "its own update": (lambda _: (*LAYERS, "mean", *BACK, *(("mul", "sub_") * 24)), 20),
    "updates within the backward pass": (lambda _: (*LAYERS, "mean", *BACK), 20),
    "inference with a head": (lambda _: (*LAYERS, "softmax"), 20),
    "inference of drawn input": (lambda _: ("randn", "conv2d", "relu", "linear"), 20),
    "a loader without more": (lambda _: (NEXT, *LAYERS), 20),
    "two loaders in step": (lambda _: (NEXT, NEXT, *LAYERS), 20),
    "a mark in each layer": (lambda _: (*(("my layer",) * 12), "softmax"), 20),
}


@pytest.mark.parametrize("thread", [0, 77], ids=["here", "elsewhere"])
@pytest.mark.parametrize("name", ITERATIONS)
def test_each_iteration_is_one_repeat(name, thread, tmp_path):
    loop, iterations = ITERATIONS[name]
    for before in ((), ("empty", "uniform_") * 8):
        trace = write(loop, iterations, before, thread)
        if NEXT in loop(0):
            trace.add("user_annotation", NEXT, 1e6, 3)
        overview = trace.analyse(tmp_path).overview
        assert overview.repeats in (iterations, iterations - 1), "the first one may be start-up"
        assert overview.steps == 0
        whole_ms = sum(len(loop(at)) * 10 + 5 for at in range(iterations)) / 1000 / iterations
        assert overview.step_ms == pytest.approx(whole_ms, rel=0.1)


UNTOLD: dict[str, Loop] = {
    "layers alone": lambda _: LAYERS,
    "one kind of layer alone": lambda _: ("_transformer_encoder_layer_fwd",) * 6,
    "many iterations and a line of a log": lambda _: (*(("randn", "linear", "argmax") * 10), "mean"),
    "backward passes of their own number": lambda _: (*LAYERS, *BACK) * 4 + ("mul", "sub_"),
    "a critic that is trained about five times as often": lambda at: (*TELLS * (4 + at % 3 + at % 2), *MAKES),
    "words in no order": lambda at: [f"op{at * at * number % 37}" for number in range(20)],
}


@pytest.mark.parametrize("name", UNTOLD)
def test_where_iterations_cannot_be_told_from_their_parts_there_are_none(name, tmp_path):
    assert write(UNTOLD[name], 20).analyse(tmp_path).overview.repeats == 0


def test_marks_within_the_one_step_of_a_trace_are_no_steps(tmp_path):
    trace = write(lambda at: ("my wait", *LAYERS * (1 + 2 * at)), 3)
    assert trace.analyse(tmp_path).overview.repeats == 0
    trace = write(lambda _: ("my part", *LAYERS), 4).add("user_annotation", STEP, 1e5, 9)
    assert trace.analyse(tmp_path).overview.repeats == 0


def test_a_module_that_runs_in_each_iteration_stands_in_for_it_where_operators_cannot(tmp_path):
    trace = write(UNTOLD["layers alone"], 20)
    for at in range(20):
        trace.add("python_function", "nn.Module: Sequential_0", at * 245, 243)
    assert trace.analyse(tmp_path).overview.repeats in (19, 20)


def test_repeats_of_several_updates_say_how_many(tmp_path):
    """A critic is trained five times as often; an optimizer that computes the loss itself is an iteration."""
    notes = write(lambda _: (*TELLS * 5, *MAKES), 20).analyse(tmp_path).overview.notes
    assert any("repeats of 6 x Optimizer.step#Adam.step" in note for note in notes)
    trace = TraceBuilder(base_us=0)
    for number in range(20):  # the first is so long that it holds repeats, by its length
        at, length = (0.0, 4000) if not number else (4000.0 + number * 250, 245)
        trace.add("user_annotation", "Optimizer.step#LBFGS.step", at, length)
        for place, word in enumerate((*LAYERS[:4], *BACK[:4])):
            trace.op(word if word.startswith(NODE) else f"aten::{word}", at + 10 + 20 * place, 15)
    assert trace.analyse(tmp_path).overview.repeats == 19


def test_the_parts_of_two_optimizers_are_told_from_those_of_a_rare_one():
    assert count_in_one([(1, 2, 3)] * 9) == 1
    assert count_in_one([(1, 2, 3), (4, 5)] * 5) == 2
    assert count_in_one([(1, 2, 3), (1, 2, 9, 3)] * 5) == 1
    assert count_in_one([(1, 2), (3, 4), (5, 6), (3, 4), (1, 2), (5, 6), (5, 6), (1, 2), (3, 4)]) is None
    assert find_layer(find_words(LAYERS)) is None, "it is layers alone"


def find_words(words: Sequence[str]) -> Ints:
    return np.array([sorted(set(words)).index(word) for word in words], dtype=np.int64)


def test_a_run_is_found_behind_a_start_and_before_an_end():
    unit = (*LAYERS, "mean")
    run = find_run(find_words(("empty",) * 30 + unit * 9 + ("cat", "save")))
    assert run is not None
    assert (run.first, run.length, run.times) == (30, len(unit), 9)
    assert find_run(find_words(unit * 2)) is None
