"""The rows of the table of keys of a trace's screen, and when each key works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from tpmon.model.known import is_known
from tpmon.ui.kit import keys as key_table
from tpmon.ui.kit.moves import Effect, Move
from tpmon.ui.kit.sheet import Sheet
from tpmon.ui.traces import trace_actions as actions
from tpmon.ui.traces.state import WHOLE, AnyTab, SnapshotTab, Tab, TraceOverlay, TraceView
from tpmon.ui.traces.trace_sheets import find_orders, find_row, list_all

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
OVER = Situation(lambda view: not _tabs(view), "while something lies over the tabs")
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
