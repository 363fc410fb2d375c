"""What a tab is made of: tables of any result, rows as filtered and sorted, n/a with its reason."""

from dataclasses import fields, replace

import pytest

from tests.goldens.trace_views import make_run
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.ui.traces.state import Tab
from tpmon.ui.traces.tabs import list_blocks
from tpmon.view.blocks import MOST_ROWS, Paragraph, Sheet, bar, cap, choose_rows, lay_blocks, lay_sheet, list_facts
from tpmon.view.layout import TableFigure, ms_of_us, size
from tpmon.view.trace import shorten_kernel


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
    return ["".join(text for text, _ink in line).rstrip() for line in laid.paint(laid.height)]


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
        for part in (file, file.overview, file.memory, file.communication)
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
    assert [block.title for block in list_blocks(view) if isinstance(block, Sheet)] == ["kernels"]
    left = list_blocks(replace(view, filter_text="zzz"))
    assert not any(isinstance(block, Sheet) for block in left)
    assert left[-1] == Paragraph("filter", "no row of this tab is left by zzz")


def test_a_very_long_table_is_cut_and_says_so():
    sheet = cap(found_sheet([ROWS[0]] * (MOST_ROWS + 5)))
    assert len(sheet.rows) == MOST_ROWS
    assert lay_blocks([sheet], 1 << 30, 80).paint(3)[-1][0][0] == " 5 more: --csv has them all"


def test_only_what_is_shown_is_painted_and_the_head_stays():
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
    ("tab", "words"),
    [
        (Tab.GAPS, "no device work in the trace, so no device was idle"),
        (Tab.KERNELS, "recorded on the CPU alone"),
        (Tab.MEMORY, "tpmon capture --memory, or profile_memory=True"),
        (Tab.RANKS, "one trace alone: tpmon trace FOLDER"),
    ],
)
def test_a_tab_without_data_says_why(tab, words):
    view = make_run("cpu").view(80, tab=tab)
    block = list_blocks(view)[0]
    assert isinstance(block, Paragraph)
    assert block.label == "n/a"
    assert words in block.text
    assert view.subject.has_data(0, tab) is (tab is Tab.GAPS)


@pytest.mark.parametrize(("pct", "cells"), [(0, 0), (50, 5), (100, 10), (400, 10), (-3, 0)])
def test_a_bar_stays_in_its_place(pct, cells):
    assert len(bar(pct, 10)) == cells
