"""The words of a trace: how ranks are told apart, and the memory of a device in characters."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces import TraceBuilder
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.trace import StepRow, TraceRankRow
from tpmon.model.results.trace_tables import CurvePoint, MemoryCurve
from tpmon.model.verdict import Kind
from tpmon.report.trace import write_report
from tpmon.trace.analysis import analyze
from tpmon.trace.reading.columns import distinct
from tpmon.view.trace import (
    ROWS,
    ChartSpan,
    describe_curve,
    draw_curve,
    draw_steps,
    name_files,
    name_ranks,
    span_curves,
)
from tpmon.view.trace_blocks import list_curves

UNKNOWN = Missing("not told")


def row(rank, path: str) -> TraceRankRow:
    times = (1.0, 1.0, 0.0, 0.0, 0.0, UNKNOWN, UNKNOWN)
    return TraceRankRow(rank, path, *times, Kind.BALANCED, NOT_APPLICABLE)


def test_the_file_stands_where_the_rank_does_not_tell_and_long_names_that_begin_alike_still_differ():
    rows = [row(0, "/a/x.pt.trace.json.gz"), row(0, "/a/y.json"), row(1, "/a/z.json"), row(UNKNOWN, "/a/cpu.json")]
    assert list(name_ranks(rows).values()) == ["0 x", "0 y", "1", "cpu"]

    paths = [f"/logs/{'a_very_long_name_of_a_run' * 2}_{letter}.pt.trace.json" for letter in "ab"]
    named = list(name_files(paths).values())
    assert all(len(name) <= 20 for name in named)
    assert [name[-2:] for name in named] == ["_a", "_b"]
    assert name_files(["/logs/" + "x" * 30]) == {"/logs/" + "x" * 30: "x" * 19 + "…"}
    assert "\x1b" not in "".join(name_files(["/t/\x1b[2Ja.json"]).values())


def test_the_text_names_the_files_of_traces_without_a_rank(tmp_path):
    paths = [
        TraceBuilder().step(1, 0, 1000).op("aten::mm", 10, 500).write(tmp_path / name)
        for name in ("before_fix.json", "after_fix.json")
    ]
    text = write_report(analyze(paths))
    assert [line.split()[0] for line in text[4:6]] == ["after_fix", "before_fix"]
    assert "?" not in "".join(text[:5])


MB = 1 << 20
STEPS = (StepRow("ProfilerStep#3", 0.0, 5.0, 5.0), StepRow("ProfilerStep#4", 5.0, 5.0, 5.0))


def curve(*points: tuple[float, int, int], kind: str = "cuda") -> MemoryCurve:
    return MemoryCurve(
        kind,
        0 if kind == "cuda" else -1,
        tuple(CurvePoint(ms, mb * MB, kept * MB if kept else NOT_APPLICABLE) for ms, mb, kept in points),
    )


def test_allocated_stands_below_what_is_reserved_and_a_column_shows_its_most():
    drawn = draw_curve(curve((2.0, 40, 80), (4.0, 80, 80), (6.0, 0, 80)), ChartSpan(0.0, 10.0), 10, rows=2)
    assert drawn == ("  ░░██░░░░", "  ████▁▁▁▁"), (
        "nothing before the first reading, then what was there until the next one"
    )
    drawn = draw_curve(curve((0.0, 10, 0), (2.1, 80, 0), (2.2, 20, 0), kind="cpu"), ChartSpan(0.0, 8.0), 4, rows=1)
    assert drawn == ("▂█▂▂",), "what a column ended with goes on"
    little = draw_curve(curve((0.0, 1, 0), (1.0, 900, 0)), ChartSpan(0.0, 2.0), 2, rows=1)
    assert little == ("▂█",), "a little is more than nothing"
    assert draw_curve(curve((0.0, 0, 0)), ChartSpan(0.0, 0.0), 3, rows=2) == ("   ", "▁▁▁")


def test_a_peak_outside_of_the_steps_is_in_the_span_and_steps_stand_where_they_begin():
    outside = curve((-2.0, 90, 0), (12.0, 10, 0), kind="cpu")
    assert span_curves([outside], STEPS) == ChartSpan(-2.0, 12.0)
    assert span_curves([curve((1.0, 1, 0))], STEPS) == ChartSpan(0.0, 10.0)
    assert describe_curve(outside) == "most is 90.0M allocated at -2.000 ms; 10.0M at the end"
    told = describe_curve(curve((1.0, 90, 100), (2.0, 90, 120)))
    assert told == "most is 90.0M allocated at 1.000 ms, 100M reserved then; 90.0M at the end"

    assert draw_steps(STEPS, ChartSpan(0.0, 10.0), 10) == "|3   |4"
    assert draw_steps(STEPS, ChartSpan(0.0, 10.0), 4) == "|3"


WITHOUT = """
import sys, numpy as np
from tpmon.trace.reading.columns import distinct
distinct(np.array([3, 1, 3])), distinct(np.array([1 << 60, -5]))
print("numpy.ma" in sys.modules)
"""


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@given(data=st.data())
def test_distinct_values_are_those_of_numpy(kind, data):
    bounds = np.iinfo(kind)
    near = st.integers(-3, 3)
    values = np.array(data.draw(st.lists(near | st.integers(bounds.min, bounds.max), max_size=40)), kind)
    found = distinct(values)
    assert found.dtype == values.dtype
    assert found.tolist() == np.unique(values).tolist()


def test_telling_values_apart_imports_nothing():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("size", "lines"), [(8, 0), (60_000, 0), (1 << 20, ROWS)])
def test_no_chart_is_drawn_of_a_few_bytes(size, lines, tmp_path):
    trace = TraceBuilder().step(0, 0, 100).op("aten::mm", 0, 50).memory(5, size // 2, size // 2)
    (_about, said) = list_curves(trace.memory(9, -size // 2, 0).analyse(tmp_path))
    drawn = said.draw(80)
    assert (len(drawn) >= lines) if lines else (drawn == ())
    assert said.text.startswith("most is ")
