"""Ranges that the program marked: which they are, their times, and the device work inside."""

from tests.traces import TraceBuilder
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.trace_tables import RangeRow
from tpmon.report.trace import write_csv, write_report, write_tables
from tpmon.trace.analysis import analyze
from tpmon.ui.traces.state import Tab
from tpmon.ui.traces.tabs import has_data, list_tab
from tpmon.view.blocks import Sheet


def build() -> TraceBuilder:
    trace = TraceBuilder()
    for number in range(2):
        at = 1000.0 * number
        trace.step(number, at, 1000).loader(at, 100)
        trace.add("user_annotation", "my range", at + 200, 400)
        trace.add("user_annotation", "inner", at + 250, 100)
        trace.add("gpu_user_annotation", "my range", at + 300, 300, pid=0, tid=7)
        trace.add("gpu_user_annotation", "graph", at + 700, 50, pid=0, tid=7)
        trace.kernel(at + 300, 60, at + 260).kernel(at + 400, 30, at + 450).kernel(at + 800, 5, at + 700)
        for name in ("Optimizer.step#SGD.step", "nccl:all_reduce", "gloo:broadcast"):
            trace.add("user_annotation", name, at + 900, 10)
    return trace


ROWS = (
    RangeRow("my range", 2, 800.0, 600.0, 400.0, 180.0),
    RangeRow("inner", 2, 200.0, 200.0, 100.0, 120.0),
    RangeRow("graph", 2, NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE, 100.0),
)


def test_only_ranges_of_the_program_count_each_with_the_work_launched_inside(tmp_path):
    report = analyze([build().write(tmp_path / "a.json")])
    assert report.files[0].ranges == ROWS


def test_without_a_device_there_is_no_work_in_a_range(tmp_path):
    trace = TraceBuilder().add("user_annotation", "my range", 0, 400)
    (file,) = analyze([trace.write(tmp_path / "a.json", {"deviceProperties": []})]).files
    assert file.ranges == (RangeRow("my range", 1, 400.0, 400.0, 400.0, NOT_APPLICABLE),)
    assert has_data(file, NOT_APPLICABLE, Tab.OPS)


def test_text_csv_and_screen_show_them(tmp_path):
    report = analyze([build().write(tmp_path / "a.json")])
    for text in (write_report(report), write_tables(report, "ranges", 10)):
        at = text.index("ranges of the program (record_function)")
        assert text[at + 1].split() == ["host", "ms", "host", "self", "ms", "mean", "ms", "gpu", "ms", "count", "range"]
        assert text[at + 2].split() == ["0.800", "0.600", "0.400", "0.180", "2", "my", "range"]
    csv = write_csv(report, "ranges")
    assert csv[0] == "path,rank,name,count,host_total_us,host_self_us,host_mean_us,device_total_us"
    assert [line.split(",")[2:] for line in csv[1:]] == [
        ["my range", "2", "800.0", "600.0", "400.0", "180.0"],
        ["inner", "2", "200.0", "200.0", "100.0", "120.0"],
        ["graph", "2", "", "", "", "100.0"],
    ]
    sheets = [block for block in list_tab(report.files[0], NOT_APPLICABLE, Tab.OPS) if isinstance(block, Sheet)]
    assert ROWS in [sheet.rows for sheet in sheets]
