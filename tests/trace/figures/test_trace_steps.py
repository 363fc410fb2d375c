"""Where the steps of a trace begin and end, on traces with known microseconds."""

from pathlib import Path

from tests.traces import TraceBuilder
from tpmon.trace.analysis import analyze


def step_lengths(trace: TraceBuilder, tmp_path: Path) -> list[float]:
    file = analyze([trace.write(tmp_path / "t.json")]).files[0]
    return [row.ms * 1000 for row in file.overview.step_table]


def test_work_of_the_warm_up_whose_calls_were_dropped_is_of_no_step(tmp_path):
    trace = TraceBuilder()
    trace.kernel(0, 500).kernel(500, 400, stream=9)
    trace.step(0, 0, 300).kernel(500, 300, launch=10).kernel(900, 100, launch=20, stream=9)
    trace.step(1, 300, 300).kernel(1000, 200, launch=310).kernel(1200, 100, launch=320)
    assert step_lengths(trace, tmp_path) == [100, 300]


def test_work_of_before_that_outlasts_all_steps_leaves_no_negative_window(tmp_path):
    trace = TraceBuilder().kernel(-5, 905, launch=-10, stream=9)
    trace.step(0, 0, 100).kernel(20, 1, launch=10).step(1, 100, 100).kernel(120, 1, launch=110)
    file = analyze([trace.write(tmp_path / "t.json")]).files[0]
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
