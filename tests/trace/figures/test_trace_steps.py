"""Where the steps of a trace begin and end, and which step of the loop a recording of kineto's begins with."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.traces import TraceBuilder
from tpmon.model.known import Known, is_known
from tpmon.model.results.trace_tables import CountedSteps
from tpmon.trace.figures.steps import UNCOUNTED, number_first


def step_lengths(trace: TraceBuilder, tmp_path: Path) -> list[float]:
    return [row.ms * 1000 for row in trace.analyse(tmp_path).overview.step_table]


def test_work_of_the_warm_up_whose_calls_were_dropped_is_of_no_step(tmp_path):
    trace = TraceBuilder()
    trace.kernel(0, 500).kernel(500, 400, stream=9)
    trace.step(0, 0, 300).kernel(500, 300, launch=10).kernel(900, 100, launch=20, stream=9)
    trace.step(1, 300, 300).kernel(1000, 200, launch=310).kernel(1200, 100, launch=320)
    assert step_lengths(trace, tmp_path) == [100, 300]


def test_work_of_before_that_outlasts_all_steps_leaves_no_negative_window(tmp_path):
    trace = TraceBuilder().kernel(-5, 905, launch=-10, stream=9)
    trace.step(0, 0, 100).kernel(20, 1, launch=10).step(1, 100, 100).kernel(120, 1, launch=110)
    file = trace.analyse(tmp_path)
    assert file.gaps[0].window == file.overview.window_us >= 0


def test_work_without_calls_on_a_stream_of_its_own_moves_no_step(tmp_path):
    trace = TraceBuilder().step(0, 0, 300).kernel(10, 280, launch=5).kernel(20, 500, stream=9)
    trace.step(1, 300, 300).kernel(310, 280, launch=305).kernel(560, 20, launch=306, stream=9)
    assert step_lengths(trace, tmp_path) == [300, 300]


def test_work_whose_calls_are_lost_all_along_is_of_its_step(tmp_path):
    """Kernels of Triton, where the driver's launches are not recorded."""
    trace = TraceBuilder()
    for number in range(2):
        at = 1000 * number
        trace.step(number, at, 1000).kernel(at + 10, 800)
        trace.kernel(at + 820, 100, launch=at + 815)
    assert step_lengths(trace, tmp_path) == [1000, 1000]


MS = 1_000_000
BASE = 1_790_000_000 * 10**9


def spans(*ends_ms: float) -> list[tuple[int, int]]:
    """Steps from update to update."""
    return [(int(start * MS), int(end * MS)) for start, end in pairwise(ends_ms)]


def counted(*ends_ms: float, first: int = 7, at_update: bool = False, each: int = 1) -> CountedSteps:
    return CountedSteps(
        tuple(BASE + int(ms * MS) for ms in ends_ms), tuple(first + each * at for at in range(len(ends_ms))), at_update
    )


@pytest.mark.parametrize(
    ("found", "loop", "first"),
    [
        # The next batch is asked for 2 ms after the update.
        (spans(100, 110, 120, 130), counted(102, 112, 122, 132), 7),
        # ... or 60 us after it, and the clocks are 40 us off.
        (spans(100, 110, 120, 130), counted(100.02, 110.02, 120.02, 130.02), 7),
        # A step ends in its update, a moment before that is over.
        (spans(100, 110, 120), counted(99.99, 109.99, 119.99, at_update=True), 7),
        # The window began late: its first step is short.
        (spans(108, 110, 120), counted(100, 110.1, 120.1), 7),
        # A program that sleeps asks for its batch only 0.8 ms before its update.
        (spans(100, 111, 122), counted(99.2, 110.2, 121.2, 132.2), 8),
        # An evaluation between them, whose records count the same step.
        (spans(100, 110, 120), CountedSteps(tuple(BASE + ms * MS for ms in (102, 104, 112, 122)), (7, 7, 8, 9), False), 7),
    ],
)  # fmt: skip
def test_a_step_has_the_number_of_those_that_had_ended_before_it(found, loop, first):
    assert number_first(found, BASE, loop) == first


@pytest.mark.parametrize(
    ("found", "base", "loop", "why"),
    [
        (spans(100, 110), BASE, UNCOUNTED, "no hook counts them"),
        (spans(100, 110), None, counted(100, 110), "does not say when"),
        ([], BASE, counted(100, 110), "no step is marked"),
        (spans(100, 110), BASE, counted(120, 130), "do not go back"),
        (spans(100, 110), BASE, counted(90, 100), "ended after it"),
        (spans(100, 110), BASE, counted(90, 112, each=4), "share one record"),
        (spans(100, 105, 110, 115, 120), BASE, counted(101, 111, 121), "not those that the hook counts"),
    ],
)
def test_what_is_not_certain_has_no_number_but_a_reason(found, base, loop, why):
    told: Known[int] = number_first(found, base, loop)
    assert not is_known(told)
    assert why in told.reason
