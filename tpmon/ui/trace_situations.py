"""The shape of a row of the table of keys of a trace's screen, and when each key works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.ui import trace_actions as actions
from tpmon.ui.moves import Effect, Move
from tpmon.ui.sheet import Sheet
from tpmon.ui.trace_sheets import find_orders, find_row, list_all
from tpmon.ui.trace_view import WHOLE, AnyTab, SnapshotTab, Tab, TraceOverlay, TraceView

TraceAction = Callable[[TraceView], TraceView]
_WITH_ROWS = (TraceOverlay.NONE, TraceOverlay.DETAILS, TraceOverlay.STACK)


@dataclass(frozen=True, slots=True)
class TraceSituation:
    """Hold a test of the TraceView and its words."""

    holds: Callable[[TraceView], bool]
    words: str


@dataclass(frozen=True, slots=True)
class OpenTab:
    """Open the tab whose digit was pressed."""


@dataclass(frozen=True, slots=True)
class TraceKey:
    """Hold one row of the table; its fields are those of ``key_row.Key``."""

    id: str
    keys: tuple[str, ...]
    shown: tuple[str, ...]
    section: str
    help: str
    deed: Union[TraceAction, OpenTab, Move, Effect]
    when: TraceSituation
    footer: str = ""
    priority: int = 0
    brief: str = ""


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


EVER = TraceSituation(lambda _view: True, "always")
NOT_TYPING = TraceSituation(_no_typing, "always")
TABS = TraceSituation(_tabs, "with nothing over the tabs")
OF_TRACE = TraceSituation(_shows(Tab.RANKS), "in a trace, with nothing over the tabs")
COMPARED = TraceSituation(_shows(Tab.AGAINST), "with --against")
OF_SNAPSHOT = TraceSituation(_shows(SnapshotTab.LIVE), "in a memory snapshot")
OVER = TraceSituation(lambda view: not _tabs(view), "while something lies over the tabs")
DRAWN = TraceSituation(lambda view: _is_drawn(view) and not _is_closest(view), "where there is a timeline")
WALKED = TraceSituation(_can_walk, "where the timeline has more than it shows, or several steps")
PARTLY = TraceSituation(lambda view: _is_drawn(view) and view.stretch != WHOLE, "where a part is shown")
LANES = TraceSituation(_has_lanes, "in a trace of several devices")
FILES = TraceSituation(lambda view: _tabs(view) and len(view.subject.paths) > 1, "with several files")
ROWS = TraceSituation(lambda view: _tabs(view) and find_row(view) is not None, "on a row")
FINDABLE = TraceSituation(
    _findable, "on an operator, a kernel, a gap, a Python function, a stack or its frames"
)
SORTABLE = TraceSituation(
    lambda view: _tabs(view) and len(find_orders(view)) > 0, "in tabs with a long table"
)
GROUPED = TraceSituation(
    lambda view: _tabs(view) and view.tab is Tab.OPS and view.subject.has_data(view.file, Tab.OPS),
    "on the tab of operators",
)
SEVERAL = TraceSituation(
    lambda view: _tabs(view) and len(actions.list_tables(view)) > 1, "in tabs with several tables"
)
TABLES = TraceSituation(_has_rows, "in tabs with rows")
TYPING = TraceSituation(lambda view: not _no_typing(view), "while the filter is typed")
TYPED = TraceSituation(
    lambda view: not _no_typing(view) and view.filter_text != "", "while the filter is typed"
)
FILTERED = TraceSituation(lambda view: _tabs(view) and view.filter_text != "", "while a filter is set")
