"""Pure actions: the cursor stays on its process, and nothing leaves its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_view
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.ui.kit.keys import FILTER_LIMIT, Move, Overlay, action_filter_type
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.state import Pane, SortBy

ROWS = (11, 12, 13, 14)


@pytest.mark.parametrize(
    ("start", "move", "end"),
    [
        (NOT_APPLICABLE, Move.DOWN, 11),
        (NOT_APPLICABLE, Move.LAST, 14),
        (11, Move.DOWN, 12),
        (11, Move.UP, 11),
        (14, Move.DOWN, 14),
        (11, Move.PAGE_DOWN, 13),
        (13, Move.PAGE_UP, 11),
        (12, Move.PAGE_UP, 11),
        (12, Move.LAST, 14),
        (13, Move.FIRST, 11),
        (99, Move.DOWN, 11),
    ],
)
def test_the_cursor_walks_the_rows(start, move, end):
    view = actions.action_move(make_view(cursor_pid=start), move, ROWS, page=2, scroll_limit=0)
    assert view.cursor_pid == end


def test_an_overlay_scrolls_and_leaves_the_cursor():
    view = make_view(cursor_pid=12, overlay=Overlay.DETAILS)
    down = actions.action_move(view, Move.PAGE_DOWN, ROWS, page=7, scroll_limit=10)
    assert (down.scroll, down.cursor_pid) == (7, 12)
    assert actions.action_move(down, Move.PAGE_DOWN, ROWS, page=7, scroll_limit=10).scroll == 10
    assert actions.action_move(down, Move.FIRST, ROWS, page=7, scroll_limit=10).scroll == 0


@given(st.lists(st.sampled_from(Move), max_size=20), st.integers(0, 6), st.integers(1, 9), st.integers(0, 30))
def test_moves_never_leave_the_rows_or_the_text(moves, count, page, limit):
    view, rows = make_view(), tuple(range(100, 100 + count))
    for move in moves:
        view = actions.action_move(view, move, rows, page, limit)
        assert not is_known(view.cursor_pid) or view.cursor_pid in rows
        assert 0 <= view.scroll <= limit


def test_the_cursor_takes_the_row_of_a_process_that_left():
    view = make_view(cursor_pid=12)
    assert actions.keep_cursor(view, (11, 13, 14), ROWS).cursor_pid == 13
    assert actions.keep_cursor(view, (14, 12), ROWS).cursor_pid == 12
    assert actions.keep_cursor(make_view(cursor_pid=14), (11,), ROWS).cursor_pid == 11
    assert actions.keep_cursor(view, (), ROWS).cursor_pid == NOT_APPLICABLE


def test_details_of_a_process_that_left_stay_open():
    view = make_view(cursor_pid=12, overlay=Overlay.DETAILS)
    assert actions.keep_cursor(view, (11,), ROWS) == view


def test_zoom_returns_and_tab_moves_it():
    view = actions.action_zoom(make_view(), Pane.EVENTS)
    assert (view.zoom, view.focus) == (Pane.EVENTS, Pane.EVENTS)
    assert actions.action_focus(view, 1).zoom == Pane.RANKS
    assert actions.action_zoom(view, Pane.EVENTS).zoom is NOT_APPLICABLE
    assert actions.action_focus(make_view(focus=Pane.RANKS), -1).focus == Pane.EVENTS


def test_sorting_goes_round_and_starts_with_the_largest():
    view = make_view(sort_reversed=True)
    seen = []
    for _ in SortBy:
        view = actions.action_sort_next(view)
        seen.append(view.sort)
        assert not view.sort_reversed
    assert set(seen) == set(SortBy)
    assert view.sort is make_view().sort


def test_a_filter_takes_one_clean_line_of_bounded_length():
    typed = action_filter_type(make_view(overlay=Overlay.FILTER), "a\x1b[31mb\nsecond line")
    assert typed.filter_text == "a?[31mb"
    long = action_filter_type(typed, "x" * 1000)
    assert len(long.filter_text) == FILTER_LIMIT
    assert action_filter_type(typed, "\n").filter_text == typed.filter_text


def test_an_interval_between_those_of_the_keys_goes_to_the_next():
    view = make_view(interval_s=0.7)  # a value of -i
    assert actions.action_slower(view).interval_s == 1.0
    assert actions.action_faster(view).interval_s == 0.5
