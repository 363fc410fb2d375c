"""The one table of keys: it feeds the dispatch, the footer, the help overlay and docs/keys.md.

A key that is not in this table does nothing, and a key that cannot work now is not shown.
Knows nothing of textual; ``python -m tpmon.ui.keys`` prints docs/keys.md.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

from tpmon.model.known import is_known
from tpmon.ui import actions
from tpmon.ui import situations as when
from tpmon.ui.actions import INTERVALS_S
from tpmon.ui.ask_dump import has_ended
from tpmon.ui.key_row import Action, ByDigit, Key, OpenRow
from tpmon.ui.keys_capture import CAPTURE_KEYS
from tpmon.ui.keys_stacks import BUNDLE_KEYS, STACK_KEYS
from tpmon.ui.moves import Effect, Move
from tpmon.ui.view import KeyHelp, Overlay, Pane, SortBy, ViewState


def _move(name: str, shown: tuple[str, ...], text: str, move: Move, *, brief: str, footer: str = "") -> Key:
    keys = tuple({"PgDn": "pagedown", "PgUp": "pageup"}.get(key, key) for key in shown)
    keys = tuple(key.lower() if len(key) > 1 else key for key in keys)
    return Key(name, keys, shown, "Moving", text, move, when.MOVABLE, footer, 7 if footer else 0, brief)


def _workers(
    name: str, key: str, text: str, deed: Action, *, brief: str, footer: str = "", priority: int = 0
) -> Key:
    return Key(name, (key,), (key,), "Workers", text, deed, when.WORKERS, footer, priority, brief)


def _sort(sort: SortBy) -> Action:
    return partial(actions.action_sort, sort=sort)


_ROW = "a row or line down, up"
_BACK = "close, back, clear filter"
_SORT = "sort: next, reversed"

KEYS: tuple[Key, ...] = (
    Key("quit", ("q",), ("q",), "tpmon", "quit", Effect.QUIT, when.NOT_TYPING, "quit", 1, brief="quit"),
    Key(
        "interrupt",
        ("ctrl+c",),
        ("ctrl-c",),
        "tpmon",
        "quit, also while typing",
        Effect.QUIT,
        when.EVER,
        brief="quit",
    ),
    Key(
        "help",
        ("?", "f1"),
        ("?", "F1"),
        "tpmon",
        "the keys that work now; any other key closes it",
        partial(actions.action_overlay, overlay=Overlay.HELP),
        when.NOT_TYPING,
        "help",
        2,
        brief="these keys; others close it",
    ),
    Key(
        "verdict",
        ("v",),
        ("v",),
        "tpmon",
        "the verdict in full: all evidence, what was ruled out, what is unknown",
        partial(actions.action_overlay, overlay=Overlay.VERDICT),
        when.READ,
        "verdict",
        3,
        brief="the verdict in full",
    ),
    Key(
        "pause",
        ("p",),
        ("p",),
        "tpmon",
        "freeze the picture, or go on; reading goes on meanwhile",
        actions.action_pause,
        when.ALIVE,
        "pause",
        4,
        brief="freeze the picture, go on",
    ),
    Key(
        "slower",
        ("+", "="),
        ("+",),
        "tpmon",
        f"read less often, at most every {INTERVALS_S[-1]:g} s",
        actions.action_slower,
        when.SLOWER,
        "slower",
        11,
        brief="read less often, more often",
    ),
    Key(
        "faster",
        ("-",),
        ("-",),
        "tpmon",
        f"read more often, at least every {INTERVALS_S[0]:g} s",
        actions.action_faster,
        when.FASTER,
        "faster",
        12,
        brief="read less often, more often",
    ),
    Key(
        "suspend",
        ("ctrl+z",),
        ("ctrl-z",),
        "tpmon",
        "stop tpmon; fg goes on",
        Effect.SUSPEND,
        when.EVER,
        brief="stop tpmon; fg goes on",
    ),
    Key(
        "redraw",
        ("ctrl+l",),
        ("ctrl-l",),
        "tpmon",
        "draw all again, after another program wrote here",
        Effect.REDRAW,
        when.EVER,
        brief="draw all again",
    ),
    Key(
        "zoom",
        tuple(str(pane.value) for pane in Pane),
        ("1-5",),
        "Panes",
        "one pane alone, again to return: 1 ranks, 2 CPU and memory, 3 workers, 4 GPUs, 5 events",
        ByDigit(actions.action_zoom),
        when.PANES,
        "zoom",
        5,
        brief="one pane alone, and back",
    ),
    Key(
        "focus-next",
        ("tab",),
        ("tab",),
        "Panes",
        "next pane",
        partial(actions.action_focus, step=1),
        when.PANES,
        "next pane",
        6,
        brief="next pane, previous",
    ),
    Key(
        "focus-previous",
        ("shift+tab",),
        ("shift-tab",),
        "Panes",
        "previous pane",
        partial(actions.action_focus, step=-1),
        when.PANES,
        brief="next pane, previous",
    ),
    Key(
        "open-pane",
        ("enter",),
        ("enter",),
        "Panes",
        "the focused pane alone on the screen",
        lambda view: actions.action_zoom(view, view.focus),
        when.NO_ROWS,
        "open",
        8,
        brief="this pane alone",
    ),
    Key(
        "close",
        ("escape",),
        ("esc",),
        "Panes",
        "close what lies over the panes; the filter line loses its text",
        actions.action_close,
        when.OVER,
        "close",
        1,
        brief=_BACK,
    ),
    Key(
        "zoom-close",
        ("escape",),
        ("esc",),
        "Panes",
        "show all panes again",
        actions.action_unzoom,
        when.ZOOMED,
        "all panes",
        3,
        brief=_BACK,
    ),
    _move("down", ("j", "down"), "next row or line", Move.DOWN, brief=_ROW, footer="down"),
    _move("up", ("k", "up"), "previous row or line", Move.UP, brief=_ROW),
    _move("page-down", ("PgDn",), "a page down", Move.PAGE_DOWN, brief="a page down, up"),
    _move("page-up", ("PgUp",), "a page up", Move.PAGE_UP, brief="a page down, up"),
    _move("first", ("g", "Home"), "first row or line", Move.FIRST, brief="first, last"),
    _move("last", ("G", "End"), "last row or line", Move.LAST, brief="first, last"),
    Key(
        "details",
        ("enter",),
        ("enter",),
        "Rows",
        "everything about the process under the cursor",
        OpenRow(Overlay.DETAILS),
        when.ROWS,
        "details",
        8,
        brief="all about this process",
    ),
    Key(
        "environment",
        ("e",),
        ("e",),
        "Rows",
        "its start environment, as far as it changes training speed, and the settings that its hook tells",
        OpenRow(Overlay.ENVIRONMENT),
        when.ROWS,
        "environment",
        13,
        brief="its start environment",
    ),
    *STACK_KEYS,
    _workers(
        "sort",
        "s",
        "sort by the next column",
        actions.action_sort_next,
        brief="sort: next, reversed",
        footer="sort",
        priority=10,
    ),
    _workers("reverse", "S", "reverse the order", actions.action_reverse, brief=_SORT),
    _workers("sort-cpu", "P", "sort by CPU", _sort(SortBy.CPU), brief="by CPU, memory, age"),
    _workers("sort-memory", "M", "sort by memory", _sort(SortBy.MEMORY), brief="by CPU, memory, age"),
    _workers("sort-time", "T", "sort by age, oldest first", _sort(SortBy.TIME), brief="by CPU, memory, age"),
    _workers(
        "filter",
        "/",
        "show only rows with this text; a leading ! shows the others",
        actions.action_filter,
        brief="only rows with a text",
        footer="filter",
        priority=9,
    ),
    Key(
        "filter-keep",
        ("enter",),
        ("enter",),
        "Workers",
        "keep the filter",
        actions.action_filter_keep,
        when.TYPING,
        "keep",
        1,
    ),
    Key(
        "filter-erase",
        ("backspace", "ctrl+h"),
        ("backspace",),
        "Workers",
        "erase a character",
        actions.action_filter_erase,
        when.TYPED,
    ),
    Key(
        "filter-clear",
        ("escape",),
        ("esc",),
        "Panes",
        "clear the filter",
        actions.action_filter_clear,
        when.FILTERED,
        "no filter",
        9,
        brief=_BACK,
    ),
    Key(
        "copy-try",
        ("y",),
        ("y",),
        "Copying",
        "copy what the verdict says to try",
        Effect.COPY_TRY,
        when.TRIABLE,
        "copy Try",
        3,
        brief="copy what to try",
    ),
    Key(
        "copy-facts",
        ("y",),
        ("y",),
        "Copying",
        "copy verdict and facts with host, PID and time",
        Effect.COPY_FACTS,
        when.NOT_TRIABLE,
        "copy",
        9,
        brief="copy verdict and facts",
    ),
    Key(
        "copy-screen",
        ("Y",),
        ("Y",),
        "Copying",
        "copy the whole screen as text",
        Effect.COPY_SCREEN,
        when.NOT_TYPING,
        brief="copy the whole screen",
    ),
    *BUNDLE_KEYS,
    *CAPTURE_KEYS,
)


def find_key(name: str, view: ViewState) -> Key | None:
    """Return the row of the table that the pressed key means now, if any."""
    for key in KEYS:
        if name in key.keys and key.when.holds(view):
            return key
    return None


def say_unused(name: str, view: ViewState) -> str:
    """Say why a key did nothing: where it works, or that it has no meaning; "" for keys without a letter."""
    if len(name) != 1 or not name.isprintable():
        return ""
    if view.no_stacks and name in ("f", "F"):
        return f"{name} samples stacks, and --no-stacks forbids that"
    shown = "space" if name == " " else name
    where = tuple(dict.fromkeys(key.when.words for key in KEYS if name in key.keys))
    if not where:
        return f"{shown} has no meaning, ? shows the keys"
    if is_known(view.frame) and has_ended(view.frame):
        return f"{name} has nothing to do: the job has ended"
    return f"{name} works {where[0]}" if len(where) == 1 else f"{name} does nothing here, ? shows what does"


def keys_shown(view: ViewState) -> tuple[KeyHelp, ...]:
    """Return what works now, in the order of the table.

    With the help open, also what works once it is closed: listed there, but not in the footer.
    """
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    shown = []
    for key in KEYS:
        now = key.when.holds(view)
        if now or key.when.holds(below):
            shown.append(
                KeyHelp(key.shown, key.help, key.section, key.footer, key.priority if now else 0, key.brief)
            )
    return tuple(shown)


def keys_markdown() -> str:
    """Write docs/keys.md, which has the keys of a trace's screen too."""
    from tpmon.ui.trace_keys import TRACE_KEYS  # noqa: PLC0415  # the live screen does without them

    lines = [
        "# Keys",
        "",
        "Written by `python -m tpmon.ui.keys` from the tables in `tpmon/ui/keys.py` and `trace_keys.py`.",
        "The footer and the help overlay (`?`) show only what works at that moment.",
        "While a filter is typed, letters and digits go into the filter. The sections from Trace on are of",
        "the screen of traces and memory snapshots (`tpmon trace FILE`); keys that both screens have mean",
        "the same in both.",
    ]
    for table in (KEYS, TRACE_KEYS):
        for section in dict.fromkeys(key.section for key in table):
            lines += ["", f"## {section}", "", "| key | does | when |", "|---|---|---|"]
            for key in table:
                if key.section == section:
                    shown = " ".join(f"`{name}`" for name in key.shown)
                    lines.append(f"| {shown} | {key.help} | {key.when.words} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(keys_markdown())
