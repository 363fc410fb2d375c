"""What a tab is made of: tables of any result, rows as filtered and sorted, n/a with its reason; at every size."""

from dataclasses import fields, replace

import pytest

from tests.goldens import trace_views
from tests.goldens.trace_views import make_run
from tests.painted import join, texts_of
from tests.painted import text_of as line_text
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces.keys import trace_keys_shown
from tpmon.ui.traces.layout import paint_trace
from tpmon.ui.traces.state import SnapshotTab, Tab
from tpmon.ui.traces.subject import TraceSubject
from tpmon.ui.traces.tabs import list_blocks
from tpmon.view.blocks import MOST_ROWS, Paragraph, Sheet, bar, cap, choose_rows, lay_blocks, lay_sheet, list_facts
from tpmon.view.layout import Size, Table, TableFigure, line_width, ms_of_us, size
from tpmon.view.trace import Grouping, shorten_kernel


@dataclass(frozen=True, slots=True)
class Found:
    """Stand for a row of an analysis that no tab knows."""

    name: str
    calls: int
    device_us: Known[float]
    kept_bytes: int
    share_pct: float
    source: Applicable[str]
    parts: tuple[str, ...] = ()


ROWS = (
    Found("aten::mm", 12, 1500.0, 3 << 20, 12.5, "train.py(3): f"),
    Found("aten::relu", 7, Missing("no launch"), 0, 0.0, NOT_APPLICABLE),
)


FIGURES = (
    TableFigure("calls", lambda row: row.calls, str, 1, sorts=True),
    TableFigure("device ms", lambda row: row.device_us, ms_of_us, 2, sorts=True),
    TableFigure("kept", lambda row: row.kept_bytes, size, 3, sorts=True),
    TableFigure("source", lambda row: row.source, lambda source: source if source != NOT_APPLICABLE else "-", 4),
    TableFigure("name", lambda row: row.name, width=16, left=True, grows=True),
)


def found_sheet(rows) -> Sheet:
    return lay_sheet("found", FIGURES, tuple(rows))


def text_of(sheet: Sheet, width: int = 100) -> list[str]:
    laid = lay_blocks([sheet], 0, width)
    return texts_of(laid.paint(laid.height))


def test_a_table_drops_the_columns_that_are_needed_least():
    sheet = found_sheet(ROWS)
    assert text_of(sheet)[:4] == [
        " found",
        " calls  device ms  kept          source  name",
        ">   12      1.500  3.0M  train.py(3): f  aten::mm",
        "     7        n/a    0B               -  aten::relu",
    ]
    assert text_of(sheet, 30)[1].split() == ["calls", "name"], "the name stays longest"


def test_every_table_of_an_analysis_stands_in_a_tab():
    subject = make_run("ranks").subject
    file = subject.report.files[0]
    sheets = [block for tab in subject.tabs for block in subject.list_blocks(0, tab) if isinstance(block, Sheet)]
    shown = [sheet.rows for sheet in sheets]
    values = [
        getattr(part, field.name)
        for part in (file, file.overview, file.memory, file.communication, file.step_work)
        for field in fields(part)
    ]
    tables = [value for value in values if isinstance(value, tuple) and value]
    apart = {"DeviceGaps", "PatternRow", "MemoryCurve", "OperatorGroupRow", "str"}
    others = [rows for rows in tables if type(rows[0]).__name__ not in apart]
    assert len(others) > 7
    assert [rows for rows in others if rows not in shown] == []


def test_the_details_say_why_a_value_is_missing():
    assert list_facts(ROWS[1]) == [
        ("name", "aten::relu"),
        ("calls", "7"),
        ("device", "n/a: no launch"),
        ("kept", "0B"),
        ("share", "0.000 %"),
        ("source", "-"),
        ("parts", ""),
    ]


def test_rows_are_filtered_by_any_cell_and_sorted_with_what_is_missing_last():
    sheet = found_sheet(ROWS)
    assert choose_rows(sheet, "RELU", 0, reverse=False).rows == (ROWS[1],)
    assert choose_rows(sheet, "!relu", 0, reverse=False).rows == (ROWS[0],)
    assert choose_rows(sheet, "train.py", 0, reverse=False).rows == (ROWS[0],)
    assert choose_rows(sheet, "!", 0, reverse=False).rows == ROWS
    by_device = choose_rows(sheet, "", 2, reverse=False)
    assert by_device.rows == ROWS
    assert "device msv" in text_of(by_device)[1]
    assert choose_rows(sheet, "", 2, reverse=True).rows == ROWS[::-1]
    assert choose_rows(sheet, "", 0, reverse=True).rows == ROWS[::-1]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add<Half>>",
        ),
        ("void at::native::(anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp<float>(float*)"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("at::", "at::"),
    ],
)
def test_a_kernel_is_named_by_what_tells_it_from_others(name, shown):
    assert shorten_kernel(name) == shown


def test_a_filter_leaves_no_empty_table_and_says_when_nothing_is_left():
    view = make_run("one").view(80, tab=Tab.KERNELS, filter_text="sgemm")
    assert [block.table for block in list_blocks(view) if isinstance(block, Sheet)] == ["work", "kernels"]
    left = list_blocks(replace(view, filter_text="zzz"))
    assert not any(isinstance(block, Sheet) for block in left)
    assert left[-1] == Paragraph("filter", "no row of this tab is left by zzz")


def test_a_very_long_table_is_cut_and_says_so_and_only_what_is_shown_is_painted_below_its_head():
    long = cap(found_sheet([ROWS[0]] * (MOST_ROWS + 5)))
    assert len(long.rows) == MOST_ROWS
    assert lay_blocks([long], 1 << 30, 80).paint(3)[-1][0][0] == " 5 more: --csv has them all"
    painted = []
    sheet = found_sheet([replace(ROWS[0], calls=number) for number in range(500)])
    counted = replace(
        sheet,
        columns=(replace(sheet.columns[0], read=lambda row: painted.append(row) or str(row.calls)), sheet.columns[-1]),
    )
    lines = lay_blocks([Paragraph("a", "b"), counted], 300, 80).paint(9)
    assert len(painted) < 12
    assert "calls" in lines[0][0][0]
    assert any(line[0][0].startswith(">") for line in lines)


@pytest.mark.parametrize(
    ("run", "tab", "words"),
    [
        ("cpu", Tab.GAPS, "no device work in the trace, so no device was idle"),
        ("cpu", Tab.KERNELS, "recorded on the CPU alone"),
        ("cpu", Tab.MEMORY, "tpmon capture --memory, or profile_memory=True"),
        ("cpu", Tab.RANKS, "one trace alone: tpmon trace FOLDER"),
        ("bare", SnapshotTab.PEAK, "GPU 0: no history"),
        ("bare", SnapshotTab.OOM, "GPU 0: no history"),
        *(("held-nothing", tab, "the allocator held nothing") for tab in SnapshotTab if tab is not SnapshotTab.PEAK),
    ],
)
def test_a_tab_without_data_says_why(run, tab, words):
    view = make_run(run).view(80, tab=tab)
    block = list_blocks(view)[0]
    assert isinstance(block, Paragraph)
    assert block.label == "n/a"
    assert words in block.text
    assert view.subject.has_data(0, tab) is (tab is Tab.GAPS)


@pytest.mark.parametrize(("pct", "cells"), [(0, 0), (50, 5), (100, 10), (400, 10), (-3, 0)])
def test_a_bar_stays_in_its_place(pct, cells):
    assert len(bar(pct, 10)) == cells


@pytest.mark.parametrize("run", ["one", "ranks", "cpu", "pair", "refused", *trace_views.SNAPSHOTS])
def test_every_picture_fits_whatever_the_size(run):
    for width, height in ((1, 1), (29, 40), (30, 9), (41, 12), (133, 36)):
        for tab in make_run(run).subject.tabs:
            for overlay in (Overlay.NONE, Overlay.DETAILS, Overlay.STACK):
                view = make_run(run).view(width, tab=tab, overlay=overlay, cursors=(99,) * len(Tab))
                lines = paint_trace(view, Size(width, height), trace_keys_shown(view))
                assert len(lines) == height
                assert all(line_width(line) <= width for line in lines), (width, height, tab, overlay)


def test_a_file_name_of_somebody_else_sends_no_escape_sequence():
    run = make_run("ranks")
    odd = "/tmp/\x1b[2Jrank0.json"
    files = tuple(replace(file, path=odd) for file in run.report.files)
    rows = tuple(replace(row, path=odd) for row in run.report.ranks.ranks)
    report = replace(run.report, files=files, ranks=replace(run.report.ranks, ranks=rows))
    for tab in (Tab.OVERVIEW, Tab.RANKS):
        for overlay, cursor in ((Overlay.NONE, 0), (Overlay.DETAILS, 2)):
            view = replace(run.view(120), subject=TraceSubject(report), tab=tab, overlay=overlay, cursors=(cursor,) * 6)
            text = join(paint_trace(view, Size(120, 40)))
            assert "[2Jrank0.json" in text
            assert "\x1b" not in text


def paint_narrow(run, width=40, **changes):
    return texts_of(paint_trace(make_run(run).view(width, **changes), Size(width, 50)))


def test_a_narrow_head_says_which_of_several_files_is_shown():
    heads = [paint_narrow("ranks", file=file)[0] for file in (0, 1)]
    for number, head in enumerate(heads):
        assert head.startswith(f" rank{number} ")
        assert f"{number + 1} of 2" in head
    assert paint_narrow("one")[0].startswith(" rank0  rank 0 ")


def test_narrow_groups_of_operators_keep_a_number_and_what_they_have_in_common():
    lines = paint_narrow("one", tab=Tab.OPS, grouping=Grouping.LINES)
    head = next(line for line in lines if line.startswith(" gpu self ms "))
    assert head.split()[3:] == ["line"]
    sheet = list_blocks(make_run("one").view(40, tab=Tab.OPS, grouping=Grouping.LINES))[0]
    row = lines[lines.index(head) + 1]
    assert str(sheet.rows[0].group)[:8] in row
    assert row.strip(" >")[0].isdigit()


def test_the_column_that_is_sorted_by_stays_when_the_pane_is_narrow():
    sheet = list_blocks(make_run("one").view(40, tab=Tab.OPS))[0]
    for sort, (head, _order) in enumerate(sheet.orders, 1):
        sorted_ = choose_rows(sheet, "", sort, False)
        assert f"{head}v" in line_text(Table(sorted_.columns, 40).paint_head())
