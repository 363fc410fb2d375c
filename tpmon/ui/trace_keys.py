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
from tpmon.ui.moves import Effect
from tpmon.ui.trace_keys_rows import BACK, ROW_KEYS
from tpmon.ui.trace_situations import OpenTab, TraceKey, TraceSituation
from tpmon.ui.trace_view import TraceOverlay, TraceView

_TPMON, _TAB, _TIME = "Trace", "Trace: tabs", "Trace: timeline"
_ALONG = "next, previous step or part"
_ZOOM = "closer, wider, all steps"
_NEXT = "next tab, previous"
_FILE = "next file, previous"


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
        brief=BACK,
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
    *ROW_KEYS,
)


def find_trace_key(name: str, view: TraceView) -> TraceKey | None:
    """Return the row of the table that the pressed key means now, if any."""
    return next((key for key in TRACE_KEYS if name in key.keys and key.when.holds(view)), None)


def say_trace_unused(name: str, view: TraceView) -> str:
    """Say why a key did nothing; "" for keys without a letter."""
    if len(name) != 1 or not name.isprintable():
        return ""
    shown = "space" if name == " " else name
    where = tuple(dict.fromkeys(key.when.words for key in TRACE_KEYS if name in key.keys))
    if not where:
        return f"{shown} has no meaning, ? shows the keys"
    if name in ("+", "=", "[", "]", "0", "-") and isinstance(view.timeline, Missing):
        return view.timeline.reason
    return f"{name} works {where[0]}" if len(where) == 1 else f"{name} does nothing here, ? shows what does"


def trace_keys_shown(view: TraceView) -> tuple[KeyHelp, ...]:
    """Return what works now, in the order of the table; with the help open also what works below it."""
    below = replace(view, overlay=TraceOverlay.NONE) if view.overlay is TraceOverlay.HELP else view
    working = [(key, key.when.holds(view)) for key in TRACE_KEYS]
    working = [(key, now) for key, now in working if now or key.when.holds(below)]
    # The three share a line of the help, which must not promise the one that does nothing now.
    zoom = ", ".join(key.footer for key, _now in working if key.brief == _ZOOM)
    return tuple(
        KeyHelp(
            key.shown,
            key.help,
            key.section.removeprefix("Trace: ").capitalize(),
            key.footer,
            key.priority if now else 0,
            zoom if key.brief == _ZOOM else key.brief,
        )
        for key, now in working
    )
