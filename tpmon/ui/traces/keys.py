"""The table of keys of a trace's screen, and when each key works.

The screen of a memory snapshot has the same table. The keys that the live screen has too mean the same
here. Knows nothing of textual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Union

from tpmon.model.known import Missing, is_known
from tpmon.ui.kit import keys as key_table
from tpmon.ui.kit.cells import KeyHelp
from tpmon.ui.kit.keys import (
    ByDigit,
    Effect,
    Move,
    find_in,
    list_help,
    list_moves,
    list_steps,
    list_stops,
    say_why_not,
)
from tpmon.ui.kit.sheet import Sheet
from tpmon.ui.traces import tabs as actions
from tpmon.ui.traces.state import WHOLE, AnyTab, SnapshotTab, Tab, TraceOverlay, TraceView
from tpmon.ui.traces.tabs import find_orders, find_row, list_all

Situation = key_table.Situation[TraceView]
Action = Callable[[TraceView], TraceView]
TraceKey = key_table.Key[TraceView, Union[Action, key_table.ByDigit[TraceView], Move, Effect]]
_WITH_ROWS = (TraceOverlay.NONE, TraceOverlay.DETAILS, TraceOverlay.STACK)


def _no_typing(view: TraceView) -> bool:
    return view.overlay is not TraceOverlay.FILTER


def _tabs(view: TraceView) -> bool:
    return view.overlay is TraceOverlay.NONE


def _shows(tab: AnyTab) -> Callable[[TraceView], bool]:
    return lambda view: _tabs(view) and tab in view.subject.tabs


def _on_row(view: TraceView) -> bool:
    return view.overlay in _WITH_ROWS and find_row(view) is not None


def _findable(view: TraceView) -> bool:
    found = find_row(view) if _on_row(view) else None
    return found is not None and (found.sheet.findable or found.sheet.source(found.row) != "")


def _has_rows(view: TraceView) -> bool:
    return _tabs(view) and any(isinstance(block, Sheet) for block in list_all(view))


def _is_drawn(view: TraceView) -> bool:
    return _tabs(view) and is_known(view.timeline)


def _has_lanes(view: TraceView) -> bool:
    return _is_drawn(view) and is_known(view.timeline) and len(view.timeline.devices) > 1


def _is_closest(view: TraceView) -> bool:
    return view.stretch.parts >= actions.MOST_PARTS


def _can_walk(view: TraceView) -> bool:
    return _is_drawn(view) and (view.stretch.parts > 1 or actions.steps_of(view) > 1)


EVER = Situation(lambda _view: True, "always")
NOT_TYPING = Situation(_no_typing, "always")
TABS = Situation(_tabs, "with nothing over the tabs")
OF_TRACE = Situation(_shows(Tab.RANKS), "in a trace, with nothing over the tabs")
COMPARED = Situation(_shows(Tab.AGAINST), "with --against")
OF_SNAPSHOT = Situation(_shows(SnapshotTab.LIVE), "in a memory snapshot")
OVER = Situation(lambda view: not _tabs(view), "while something is over the tabs")
DRAWN = Situation(lambda view: _is_drawn(view) and not _is_closest(view), "where there is a timeline")
WALKED = Situation(_can_walk, "where the timeline has more than it shows, or several steps")
PARTLY = Situation(lambda view: _is_drawn(view) and view.stretch != WHOLE, "where a part is shown")
LANES = Situation(_has_lanes, "in a trace of several devices")
FILES = Situation(lambda view: _tabs(view) and len(view.subject.paths) > 1, "with several files")
ROWS = Situation(lambda view: _tabs(view) and find_row(view) is not None, "on a row")
FINDABLE = Situation(_findable, "on an operator, a kernel, a gap, a Python function, a stack or its frames")
SORTABLE = Situation(lambda view: _tabs(view) and len(find_orders(view)) > 0, "in tabs with a long table")
GROUPED = Situation(
    lambda view: _tabs(view) and view.tab is Tab.OPS and view.subject.has_data(view.file, Tab.OPS),
    "on the tab of operators",
)
SEVERAL = Situation(
    lambda view: _tabs(view) and len(actions.list_tables(view)) > 1, "in tabs with several tables"
)
TABLES = Situation(_has_rows, "in tabs with rows")
TYPING = Situation(lambda view: not _no_typing(view), "while the filter is typed")
TYPED = Situation(lambda view: not _no_typing(view) and view.filter_text != "", "while the filter is typed")
FILTERED = Situation(lambda view: _tabs(view) and view.filter_text != "", "while a filter is set")


_TAB, _TIME, _ROW = "Trace: tabs", "Trace: timeline", "Trace: rows"
_BACK = "close, back, clear filter"
_ZOOM = "closer, wider, all steps"


def _open(view: TraceView, digit: int) -> TraceView:
    return actions.action_tab(view, view.subject.tabs[digit - 1])


_trace = partial(TraceKey, "Trace")
_tab = partial(TraceKey, _TAB)
_time = partial(TraceKey, _TIME)
_row = partial(TraceKey, _ROW)

TRACE_KEYS: tuple[TraceKey, ...] = (
    _trace("quit", "q", "leave", Effect.QUIT, NOT_TYPING, ("quit", 1), brief="leave"),
    _trace("interrupt", "ctrl-c", "leave, also while typing", Effect.QUIT, EVER, brief="leave"),
    _trace(
        "help",
        "? F1",
        "the keys that work now; any other key closes it",
        partial(actions.action_overlay, overlay=TraceOverlay.HELP),
        NOT_TYPING,
        ("help", 2),
        brief="these keys; others close it",
    ),
    *list_stops("Trace", EVER),
    _tab(
        "tab",
        "1-6",
        "one tab: 1 overview, 2 gaps, 3 ops, 4 kernels, 5 memory, 6 ranks",
        ByDigit(_open),
        OF_TRACE,
        ("tab", 3),
        brief="one tab",
    ),
    _tab(
        "against",
        "7",
        "what changed since the other trace",
        ByDigit(_open),
        COMPARED,
        ("against", 3),
        brief="what changed",
    ),
    _tab(
        "snapshot-tab",
        "1-4",
        "one tab: 1 overview, 2 live (by stack), 3 peak, 4 oom (requests that failed)",
        ByDigit(_open),
        OF_SNAPSHOT,
        ("tab", 3),
        brief="one tab",
    ),
    *list_steps(
        _TAB,
        ("next-tab", "tab", "next tab"),
        ("previous-tab", "shift-tab", "previous tab"),
        actions.action_next_tab,
        when=TABS,
        footer=("next tab", 10),
        brief="next tab, previous",
    ),
    *list_steps(
        _TAB,
        ("next-file", ">", "the next file, of the next rank"),
        ("previous-file", "<", "the file before"),
        actions.action_next_file,
        when=FILES,
        footer=("next file", 6),
        brief="next file, previous",
    ),
    _tab(
        "close",
        "esc",
        "close what is over the tabs; clears the filter line",
        actions.action_close,
        OVER,
        ("close", 1),
        brief=_BACK,
    ),
    *list_steps(
        _TIME,
        ("along", "right ]", "the next step; of all steps the first one, of a part the next part"),
        ("back", "left [", "the step before; of all steps the last one, of a part the part before"),
        actions.action_along,
        when=WALKED,
        footer=("next step", 5),
        brief="next, previous step or part",
    ),
    _time(
        "closer",
        "+",
        "half as many steps, then half of a step",
        actions.action_closer,
        DRAWN,
        ("closer", 6),
        brief=_ZOOM,
    ),
    _time("wider", "-", "twice as much", actions.action_wider, PARTLY, ("wider", 6), brief=_ZOOM),
    _time("whole", "0", "all steps", actions.action_whole, PARTLY, ("all steps", 6), brief=_ZOOM),
    _time(
        "device",
        "n",
        "the timeline of the next device",
        actions.action_next_device,
        LANES,
        ("next GPU", 8),
        brief="the next device",
    ),
    *list_moves(_ROW, NOT_TYPING),
    _row(
        "enter",
        "enter",
        "everything about the row; of bytes their stack, of a rank its trace, of a step its timeline",
        actions.action_enter,
        ROWS,
        ("open", 4),
        brief="all about it; a rank, a step",
    ),
    _row(
        "edit",
        "o",
        "open $VISUAL or $EDITOR at the line of Python that called it, or at the frame",
        Effect.EDIT,
        FINDABLE,
        ("editor", 4),
        brief="$EDITOR at its line",
    ),
    _row(
        "copy",
        "y",
        "copy the row or paragraph under the cursor, whole",
        Effect.COPY_RESULT,
        NOT_TYPING,
        ("copy", 5),
        brief="copy it, whole",
    ),
    _row(
        "copy-screen",
        "Y",
        "copy the whole screen as text",
        Effect.COPY_SCREEN,
        NOT_TYPING,
        brief="copy the whole screen",
    ),
    _row(
        "sort",
        "s",
        "sort by the next column",
        actions.action_sort_next,
        SORTABLE,
        ("sort", 9),
        brief="sort: next, reversed",
    ),
    _row(
        "reverse",
        "S",
        "reverse the order",
        actions.action_reverse,
        SORTABLE,
        brief="sort: next, reversed",
    ),
    _row(
        "group",
        "a",
        "operators by name, by input shapes, by line of the program",
        actions.action_group,
        GROUPED,
        ("by shape", 4),
        brief="by name, shapes, line",
    ),
    *list_steps(
        _ROW,
        ("next-table", "}", "the next table of the tab"),
        ("previous-table", "{", "the table before"),
        actions.action_next_table,
        when=SEVERAL,
        footer=("next table", 10),
        brief="next table, previous",
    ),
    _row(
        "filter",
        "/",
        "show only rows with this text; a leading ! shows the others",
        partial(actions.action_overlay, overlay=TraceOverlay.FILTER),
        TABLES,
        ("filter", 8),
        brief="only rows with a text",
    ),
    _row("filter-keep", "enter", "keep the filter", actions.action_filter_keep, TYPING, ("keep", 1)),
    _row("filter-erase", "backspace", "erase a character", actions.action_filter_erase, TYPED),
    _row(
        "filter-clear",
        "esc",
        "clear the filter",
        actions.action_filter_clear,
        FILTERED,
        ("no filter", 9),
        brief=_BACK,
    ),
)


def find_trace_key(name: str, view: TraceView) -> TraceKey | None:
    """Return the row of the table that the pressed key means now, if any."""
    return find_in(TRACE_KEYS, name, view)


def say_trace_unused(name: str, view: TraceView) -> str:
    """Say why a key did nothing; "" for keys without a letter."""
    lost = view.timeline
    of_time = name in ("+", "=", "[", "]", "0", "-")
    return say_why_not(TRACE_KEYS, name, lost.reason if of_time and isinstance(lost, Missing) else "")


def trace_keys_shown(view: TraceView) -> tuple[KeyHelp, ...]:
    """Return what works now, in the order of the table; with the help open also what works below it."""
    below = replace(view, overlay=TraceOverlay.NONE) if view.overlay is TraceOverlay.HELP else view
    working = list_help(TRACE_KEYS, view, below)
    # The three share a line of the help, which must not promise the one that does nothing now.
    zoom = ", ".join(key.footer for key in working if key.brief == _ZOOM)
    return tuple(
        replace(
            key,
            section=key.section.removeprefix("Trace: ").capitalize(),
            brief=zoom if key.brief == _ZOOM else key.brief,
        )
        for key in working
    )
