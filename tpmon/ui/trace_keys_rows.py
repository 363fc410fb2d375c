"""The keys of rows in the table of keys of a trace's screen: moves, copies, order, filter."""

from __future__ import annotations

from functools import partial

from tpmon.ui import trace_actions as actions
from tpmon.ui import trace_situations as when
from tpmon.ui.moves import Effect, Move
from tpmon.ui.trace_situations import TraceKey
from tpmon.ui.trace_view import TraceOverlay

_ROW = "Trace: rows"
BACK = "close, back, clear filter"
_MOVE = "a row or line down, up"
_TABLE = "next table, previous"


def _move(
    name: str, shown: tuple[str, ...], text: str, move: Move, *, brief: str, footer: str = ""
) -> TraceKey:
    keys = tuple({"PgDn": "pagedown", "PgUp": "pageup"}.get(key, key) for key in shown)
    keys = tuple(key.lower() if len(key) > 1 else key for key in keys)
    return TraceKey(name, keys, shown, _ROW, text, move, when.NOT_TYPING, footer, 7 if footer else 0, brief)


ROW_KEYS: tuple[TraceKey, ...] = (
    _move("down", ("j", "down"), "next row or line", Move.DOWN, brief=_MOVE, footer="down"),
    _move("up", ("k", "up"), "previous row or line", Move.UP, brief=_MOVE),
    _move("page-down", ("PgDn",), "a page down", Move.PAGE_DOWN, brief="a page down, up"),
    _move("page-up", ("PgUp",), "a page up", Move.PAGE_UP, brief="a page down, up"),
    _move("first", ("g", "Home"), "first row or line", Move.FIRST, brief="first, last"),
    _move("last", ("G", "End"), "last row or line", Move.LAST, brief="first, last"),
    TraceKey(
        "enter",
        ("enter",),
        ("enter",),
        _ROW,
        "everything about the row; of bytes their stack, of a rank its trace, of a step its timeline",
        actions.action_enter,
        when.ROWS,
        "open",
        4,
        brief="all about it; a rank, a step",
    ),
    TraceKey(
        "edit",
        ("o",),
        ("o",),
        _ROW,
        "open $VISUAL or $EDITOR at the line of Python that called it, or at the frame",
        Effect.EDIT,
        when.FINDABLE,
        "editor",
        4,
        brief="$EDITOR at its line",
    ),
    TraceKey(
        "copy",
        ("y",),
        ("y",),
        _ROW,
        "copy the row or paragraph under the cursor, whole",
        Effect.COPY_RESULT,
        when.NOT_TYPING,
        "copy",
        5,
        brief="copy it, whole",
    ),
    TraceKey(
        "copy-screen",
        ("Y",),
        ("Y",),
        _ROW,
        "copy the whole screen as text",
        Effect.COPY_SCREEN,
        when.NOT_TYPING,
        brief="copy the whole screen",
    ),
    TraceKey(
        "sort",
        ("s",),
        ("s",),
        _ROW,
        "sort by the next column",
        actions.action_sort_next,
        when.SORTABLE,
        "sort",
        9,
        brief="sort: next, reversed",
    ),
    TraceKey(
        "reverse",
        ("S",),
        ("S",),
        _ROW,
        "reverse the order",
        actions.action_reverse,
        when.SORTABLE,
        brief="sort: next, reversed",
    ),
    TraceKey(
        "group",
        ("a",),
        ("a",),
        _ROW,
        "operators by name, by input shapes, by line of the program",
        actions.action_group,
        when.GROUPED,
        "by shape",
        4,
        brief="by name, shapes, line",
    ),
    TraceKey(
        "next-table",
        ("}",),
        ("}",),
        _ROW,
        "the next table of the tab",
        partial(actions.action_next_table, step=1),
        when.SEVERAL,
        "next table",
        10,
        brief=_TABLE,
    ),
    TraceKey(
        "previous-table",
        ("{",),
        ("{",),
        _ROW,
        "the table before",
        partial(actions.action_next_table, step=-1),
        when.SEVERAL,
        brief=_TABLE,
    ),
    TraceKey(
        "filter",
        ("/",),
        ("/",),
        _ROW,
        "show only rows with this text; a leading ! shows the others",
        partial(actions.action_overlay, overlay=TraceOverlay.FILTER),
        when.TABLES,
        "filter",
        8,
        brief="only rows with a text",
    ),
    TraceKey(
        "filter-keep",
        ("enter",),
        ("enter",),
        _ROW,
        "keep the filter",
        actions.action_filter_keep,
        when.TYPING,
        "keep",
        1,
    ),
    TraceKey(
        "filter-erase",
        ("backspace", "ctrl+h"),
        ("backspace",),
        _ROW,
        "erase a character",
        actions.action_filter_erase,
        when.TYPED,
    ),
    TraceKey(
        "filter-clear",
        ("escape",),
        ("esc",),
        _ROW,
        "clear the filter",
        actions.action_filter_clear,
        when.FILTERED,
        "no filter",
        9,
        brief=BACK,
    ),
)
