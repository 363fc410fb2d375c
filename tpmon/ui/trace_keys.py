"""The table of keys of a trace's screen: dispatch, footer, help overlay and docs/keys.md come from it.

The screen of a memory snapshot has the same table. The keys that the live screen has too mean the same
here. Knows nothing of textual.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tpmon.model.known import Missing
from tpmon.ui import trace_actions as actions
from tpmon.ui import trace_situations as when
from tpmon.ui.lines import KeyHelp
from tpmon.ui.moves import Effect, Move
from tpmon.ui.trace_situations import OpenTab, TraceKey, TraceSituation
from tpmon.ui.trace_view import TraceOverlay, TraceView

_TPMON, _TAB, _TIME, _ROW = "Trace", "Trace: tabs", "Trace: timeline", "Trace: rows"
_BACK = "close, back, clear filter"
_MOVE = "a row or line down, up"
_ALONG = "next, previous step or part"
_ZOOM = "closer, wider, all steps"
_NEXT = "next tab, previous"
_FILE = "next file, previous"


def _move(
    name: str, shown: tuple[str, ...], text: str, move: Move, *, brief: str, footer: str = ""
) -> TraceKey:
    keys = tuple({"PgDn": "pagedown", "PgUp": "pageup"}.get(key, key) for key in shown)
    keys = tuple(key.lower() if len(key) > 1 else key for key in keys)
    return TraceKey(name, keys, shown, _ROW, text, move, when.NOT_TYPING, footer, 7 if footer else 0, brief)


def _open(
    name: str, digits: str, text: str, situation: TraceSituation, *, footer: str, brief: str
) -> TraceKey:
    keys = tuple(str(digit) for digit in range(int(digits[0]), int(digits[-1]) + 1))
    return TraceKey(name, keys, (digits,), _TAB, text, OpenTab(), situation, footer, 3, brief)


TRACE_KEYS: tuple[TraceKey, ...] = (
    TraceKey(
        "quit",
        ("q",),
        ("q",),
        _TPMON,
        "leave",
        Effect.QUIT,
        when.NOT_TYPING,
        "quit",
        1,
        brief="leave",
    ),
    TraceKey(
        "interrupt",
        ("ctrl+c",),
        ("ctrl-c",),
        _TPMON,
        "leave, also while typing",
        Effect.QUIT,
        when.EVER,
        brief="leave",
    ),
    TraceKey(
        "help",
        ("?", "f1"),
        ("?", "F1"),
        _TPMON,
        "the keys that work now; any other key closes it",
        partial(actions.action_overlay, overlay=TraceOverlay.HELP),
        when.NOT_TYPING,
        "help",
        2,
        brief="these keys; others close it",
    ),
    TraceKey(
        "suspend",
        ("ctrl+z",),
        ("ctrl-z",),
        _TPMON,
        "stop tpmon; fg goes on",
        Effect.SUSPEND,
        when.EVER,
        brief="stop tpmon; fg goes on",
    ),
    TraceKey(
        "redraw",
        ("ctrl+l",),
        ("ctrl-l",),
        _TPMON,
        "draw all again, after another program wrote here",
        Effect.REDRAW,
        when.EVER,
        brief="draw all again",
    ),
    _open(
        "tab",
        "1-6",
        "one tab: 1 overview, 2 gaps, 3 ops, 4 kernels, 5 memory, 6 ranks",
        when.OF_TRACE,
        footer="tab",
        brief="one tab",
    ),
    _open(
        "against",
        "7",
        "what changed since the other trace",
        when.COMPARED,
        footer="against",
        brief="what changed",
    ),
    _open(
        "snapshot-tab",
        "1-4",
        "one tab: 1 overview, 2 live (by stack), 3 peak, 4 oom (requests that failed)",
        when.OF_SNAPSHOT,
        footer="tab",
        brief="one tab",
    ),
    TraceKey(
        "next-tab",
        ("tab",),
        ("tab",),
        _TAB,
        "next tab",
        partial(actions.action_next_tab, step=1),
        when.TABS,
        "next tab",
        10,
        brief=_NEXT,
    ),
    TraceKey(
        "previous-tab",
        ("shift+tab",),
        ("shift-tab",),
        _TAB,
        "previous tab",
        partial(actions.action_next_tab, step=-1),
        when.TABS,
        brief=_NEXT,
    ),
    TraceKey(
        "next-file",
        (">",),
        (">",),
        _TAB,
        "the next file, of the next rank",
        partial(actions.action_next_file, step=1),
        when.FILES,
        "next file",
        6,
        brief=_FILE,
    ),
    TraceKey(
        "previous-file",
        ("<",),
        ("<",),
        _TAB,
        "the file before",
        partial(actions.action_next_file, step=-1),
        when.FILES,
        brief=_FILE,
    ),
    TraceKey(
        "close",
        ("escape",),
        ("esc",),
        _TAB,
        "close what lies over the tabs; the filter line loses its text",
        actions.action_close,
        when.OVER,
        "close",
        1,
        brief=_BACK,
    ),
    TraceKey(
        "along",
        ("right", "]"),
        ("right", "]"),
        _TIME,
        "the next step; of all steps the first one, of a part the next part",
        partial(actions.action_along, step=1),
        when.WALKED,
        "next step",
        5,
        brief=_ALONG,
    ),
    TraceKey(
        "back",
        ("left", "["),
        ("left", "["),
        _TIME,
        "the step before; of all steps the last one, of a part the part before",
        partial(actions.action_along, step=-1),
        when.WALKED,
        brief=_ALONG,
    ),
    TraceKey(
        "closer",
        ("+", "="),
        ("+",),
        _TIME,
        "half of the steps that are drawn, then half of a step",
        actions.action_closer,
        when.DRAWN,
        "closer",
        6,
        brief=_ZOOM,
    ),
    TraceKey(
        "wider",
        ("-",),
        ("-",),
        _TIME,
        "twice as much",
        actions.action_wider,
        when.PARTLY,
        "wider",
        6,
        brief=_ZOOM,
    ),
    TraceKey(
        "whole",
        ("0",),
        ("0",),
        _TIME,
        "all steps",
        actions.action_whole,
        when.PARTLY,
        "all steps",
        6,
        brief=_ZOOM,
    ),
    TraceKey(
        "device",
        ("n",),
        ("n",),
        _TIME,
        "the timeline of the next device",
        actions.action_next_device,
        when.LANES,
        "next GPU",
        8,
        brief="the next device",
    ),
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
        brief=_BACK,
    ),
)


def find_trace_key(name: str, view: TraceView) -> TraceKey | None:
    """Return the row of the table that the pressed key means now, if any."""
    return next((key for key in TRACE_KEYS if name in key.keys and key.when.holds(view)), None)


def say_trace_unused(name: str, view: TraceView) -> str:
    """Say why a key did nothing; "" for keys without a letter."""
    if len(name) != 1 or not name.isprintable():
        return ""
    where = tuple(dict.fromkeys(key.when.words for key in TRACE_KEYS if name in key.keys))
    if not where:
        return f"{name} has no meaning, ? shows the keys"
    if name in ("+", "=", "[", "]", "0", "-") and isinstance(view.timeline, Missing):
        return view.timeline.reason
    return f"{name} works {where[0]}" if len(where) == 1 else f"{name} does nothing here, ? shows what does"


def trace_keys_shown(view: TraceView) -> tuple[KeyHelp, ...]:
    """Return what works now, in the order of the table; with the help open also what works below it."""
    below = replace(view, overlay=TraceOverlay.NONE) if view.overlay is TraceOverlay.HELP else view
    shown = []
    for key in TRACE_KEYS:
        now = key.when.holds(view)
        if now or key.when.holds(below):
            section = key.section.removeprefix("Trace: ").capitalize()
            shown.append(
                KeyHelp(key.shown, key.help, section, key.footer, key.priority if now else 0, key.brief)
            )
    return tuple(shown)
