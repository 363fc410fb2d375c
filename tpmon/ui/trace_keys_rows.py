"""The keys of rows in the table of keys of a trace's screen: moves, copies, order, filter."""

from __future__ import annotations

from functools import partial

from tpmon.ui import trace_actions as actions
from tpmon.ui import trace_situations as when
from tpmon.ui.key_table import list_moves
from tpmon.ui.moves import Effect
from tpmon.ui.trace_situations import TraceKey
from tpmon.ui.trace_view import TraceOverlay

_ROW = "Trace: rows"
BACK = "close, back, clear filter"
_TABLE = "next table, previous"
_row = partial(TraceKey, _ROW)

ROW_KEYS: tuple[TraceKey, ...] = (
    *list_moves(_ROW, when.NOT_TYPING),
    _row(
        "enter",
        "enter",
        "everything about the row; of bytes their stack, of a rank its trace, of a step its timeline",
        actions.action_enter,
        when.ROWS,
        ("open", 4),
        brief="all about it; a rank, a step",
    ),
    _row(
        "edit",
        "o",
        "open $VISUAL or $EDITOR at the line of Python that called it, or at the frame",
        Effect.EDIT,
        when.FINDABLE,
        ("editor", 4),
        brief="$EDITOR at its line",
    ),
    _row(
        "copy",
        "y",
        "copy the row or paragraph under the cursor, whole",
        Effect.COPY_RESULT,
        when.NOT_TYPING,
        ("copy", 5),
        brief="copy it, whole",
    ),
    _row(
        "copy-screen",
        "Y",
        "copy the whole screen as text",
        Effect.COPY_SCREEN,
        when.NOT_TYPING,
        brief="copy the whole screen",
    ),
    _row(
        "sort",
        "s",
        "sort by the next column",
        actions.action_sort_next,
        when.SORTABLE,
        ("sort", 9),
        brief="sort: next, reversed",
    ),
    _row(
        "reverse",
        "S",
        "reverse the order",
        actions.action_reverse,
        when.SORTABLE,
        brief="sort: next, reversed",
    ),
    _row(
        "group",
        "a",
        "operators by name, by input shapes, by line of the program",
        actions.action_group,
        when.GROUPED,
        ("by shape", 4),
        brief="by name, shapes, line",
    ),
    _row(
        "next-table",
        "}",
        "the next table of the tab",
        partial(actions.action_next_table, step=1),
        when.SEVERAL,
        ("next table", 10),
        brief=_TABLE,
    ),
    _row(
        "previous-table",
        "{",
        "the table before",
        partial(actions.action_next_table, step=-1),
        when.SEVERAL,
        brief=_TABLE,
    ),
    _row(
        "filter",
        "/",
        "show only rows with this text; a leading ! shows the others",
        partial(actions.action_overlay, overlay=TraceOverlay.FILTER),
        when.TABLES,
        ("filter", 8),
        brief="only rows with a text",
    ),
    _row("filter-keep", "enter", "keep the filter", actions.action_filter_keep, when.TYPING, ("keep", 1)),
    _row("filter-erase", "backspace", "erase a character", actions.action_filter_erase, when.TYPED),
    _row(
        "filter-clear",
        "esc",
        "clear the filter",
        actions.action_filter_clear,
        when.FILTERED,
        ("no filter", 9),
        brief=BACK,
    ),
)
