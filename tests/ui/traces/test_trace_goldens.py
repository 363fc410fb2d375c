"""The pictures of traces are what the painters paint, at every size; `make goldens` rewrites them."""

from dataclasses import replace

import pytest

from tests.goldens import trace_views
from tests.goldens.pictures import write_text
from tests.goldens.trace_views import make_run
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces.keys import trace_keys_shown
from tpmon.ui.traces.layout import paint_trace
from tpmon.ui.traces.state import Tab
from tpmon.ui.traces.subject import TraceSubject
from tpmon.ui.traces.tabs import list_blocks
from tpmon.view.blocks import choose_rows
from tpmon.view.layout import Size, Table, line_width
from tpmon.view.trace import Grouping

LISTED = list(trace_views.list_trace_pictures())


@pytest.mark.parametrize("picture", LISTED, ids=lambda picture: picture.name)
def test_the_picture_is_what_is_painted(picture):
    painted = write_text(trace_views.paint_picture(picture))
    assert painted == trace_views.picture_path(picture).read_text(encoding="utf-8"), "run: make goldens"
    if picture.changes.get("ascii_only"):
        assert painted.isascii()


def test_no_file_is_left_over():
    assert {path.name for path in trace_views.FOLDER.iterdir()} == {f"{one.name}.txt" for one in LISTED}


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
            text = "".join(text for line in paint_trace(view, Size(120, 40)) for text, _ink in line)
            assert "[2Jrank0.json" in text
            assert "\x1b" not in text


def paint_narrow(run, width=40, **changes):
    view = make_run(run).view(width, **changes)
    return ["".join(text for text, _ in line) for line in paint_trace(view, Size(width, 50))]


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
        painted = "".join(text for text, _ in Table(sorted_.columns, 40).paint_head())
        assert f"{head}v" in painted
