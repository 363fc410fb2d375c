"""When each key of a trace's or snapshot's screen works, and what it does; ``keys.txt`` has the words.

Keys of the live screen mean the same here. Knows nothing of textual.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Union

from tpmon.model.known import Missing, is_known
from tpmon.ui.kit import find
from tpmon.ui.kit import keys as kit
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces import tabs as actions
from tpmon.ui.traces.state import WHOLE, AnyTab, SnapshotTab, Tab, TraceView
from tpmon.ui.traces.tabs import find_orders, find_row, list_all
from tpmon.view.blocks import Sheet

When = kit.Situation[TraceView]
Deed = Union[Callable[[TraceView], TraceView], kit.ByDigit[TraceView], kit.Move, kit.Effect]
TraceKey = kit.Key[TraceView, Deed]
_WITH_ROWS = (Overlay.NONE, Overlay.DETAILS, Overlay.STACK)


def _shows(tab: AnyTab) -> Callable[[TraceView], bool]:
    return lambda view: view.is_bare and tab in view.subject.tabs


def _findable(view: TraceView) -> bool:
    found = find_row(view) if view.overlay in _WITH_ROWS else None
    return found is not None and (found.sheet.findable or found.sheet.source(found.row) != "")


def _is_drawn(view: TraceView) -> bool:
    return view.is_bare and is_known(view.timeline)


TABS = When(lambda view: view.is_bare, "with nothing over the tabs")
OF_TRACE = When(_shows(Tab.RANKS), "in a trace, with nothing over the tabs")
COMPARED = When(_shows(Tab.AGAINST), "with --against")
OF_SNAPSHOT = When(_shows(SnapshotTab.LIVE), "in a memory snapshot")
OVER = When(lambda view: not view.is_bare, "while something is over the tabs")
DRAWN = When(
    lambda view: _is_drawn(view) and view.stretch.parts < actions.MOST_PARTS, "where there is a timeline"
)
WALKED = When(
    lambda view: _is_drawn(view) and (view.stretch.parts > 1 or actions.steps_of(view) > 1),
    "where the timeline has more than it shows, or several steps",
)
PARTLY = When(lambda view: _is_drawn(view) and view.stretch != WHOLE, "where a part is shown")
LANES = When(
    lambda view: (
        view.is_bare
        and is_known(view.timeline)
        and len(view.timeline.devices) > 1
        and not find.is_searched(view)
    ),
    "in a trace of several devices",
)
FILES = When(lambda view: view.is_bare and len(view.subject.paths) > 1, "with several files")
ROWS = When(lambda view: view.is_bare and find_row(view) is not None, "on a row")
FINDABLE = When(_findable, "on an operator, a kernel, a gap, a Python function, a stack or its frames")
SORTABLE = When(lambda view: view.is_bare and len(find_orders(view)) > 0, "in tabs with a long table")
GROUPED = When(
    lambda view: view.is_bare and view.tab is Tab.OPS and view.subject.has_data(view.file, Tab.OPS),
    "on the tab of operators",
)
SEVERAL = When(
    lambda view: view.is_bare and len(actions.list_tables(view)) > 1, "in tabs with several tables"
)
TABLES = When(
    lambda view: view.is_bare and any(isinstance(block, Sheet) for block in list_all(view)),
    "in tabs with rows",
)
FILTERED = When(
    lambda view: view.is_bare and view.filter_text != "" and view.search.text == "", "while a filter is set"
)
NOT_HELP = When(
    lambda view: kit.NOT_TYPING.holds(view) and view.overlay is not Overlay.HELP, "outside of the help"
)
SEARCHABLE = When(
    lambda view: NOT_HELP.holds(view) and not TABLES.holds(view), "where there are no rows to filter"
)
RIGHT_OF_ALL = When(
    lambda view: view.overlay in (Overlay.DETAILS, Overlay.STACK) and view.search.left < find.MOST_COLUMNS,
    "in what is over the tabs",
)
LEFT_OF_ALL = When(
    lambda view: view.overlay in (Overlay.DETAILS, Overlay.STACK) and view.search.left > 0, "after l"
)


_OPEN: kit.ByDigit[TraceView] = kit.ByDigit(
    lambda view, digit: actions.action_tab(view, view.subject.tabs[digit - 1])
)
USES: dict[str, tuple[Deed, When]] = {
    **kit.STOPS,
    **find.FINDS,
    **{move.value: (move, kit.NOT_TYPING) for move in kit.Move},
    "help": (partial(kit.action_overlay, overlay=Overlay.HELP), kit.NOT_TYPING),
    "tab": (_OPEN, OF_TRACE),
    "against": (_OPEN, COMPARED),
    "snapshot-tab": (_OPEN, OF_SNAPSHOT),
    "next-tab": (partial(actions.action_next_tab, step=1), TABS),
    "previous-tab": (partial(actions.action_next_tab, step=-1), TABS),
    "tab-right": (partial(actions.action_next_tab, step=1), TABS),
    "tab-left": (partial(actions.action_next_tab, step=-1), TABS),
    "side-right": (partial(find.action_sideways, step=1), RIGHT_OF_ALL),
    "side-left": (partial(find.action_sideways, step=-1), LEFT_OF_ALL),
    "find": (partial(find.open_line, overlay=Overlay.FIND), SEARCHABLE),
    "find-erase": (find.erase_last, find.FOUND_TYPED),
    "find-clear": (find.CLEAR_SEARCH, find.MARKED),
    "go": (partial(find.open_line, overlay=Overlay.GO), NOT_HELP),
    "go-erase": (find.erase_last, find.GO_TYPED),
    "next-file": (partial(actions.action_next_file, step=1), FILES),
    "previous-file": (partial(actions.action_next_file, step=-1), FILES),
    "close": (kit.action_close, OVER),
    "along": (partial(actions.action_along, step=1), WALKED),
    "back": (partial(actions.action_along, step=-1), WALKED),
    "closer": (actions.action_closer, DRAWN),
    "wider": (actions.action_wider, PARTLY),
    "whole": (actions.action_whole, PARTLY),
    "device": (actions.action_next_device, LANES),
    "enter": (actions.action_enter, ROWS),
    "edit": (kit.Effect.EDIT, FINDABLE),
    "copy": (kit.Effect.COPY_RESULT, kit.NOT_TYPING),
    "sort": (actions.action_sort_next, SORTABLE),
    "reverse": (actions.then_top(kit.action_reverse), SORTABLE),
    "group": (actions.action_group, GROUPED),
    "next-table": (partial(actions.action_next_table, step=1), SEVERAL),
    "previous-table": (partial(actions.action_next_table, step=-1), SEVERAL),
    "filter": (partial(kit.action_overlay, overlay=Overlay.FILTER), TABLES),
    "filter-keep": (kit.KEEP_FILTER, kit.TYPING),
    "filter-erase": (actions.then_top(kit.action_filter_erase), kit.TYPED),
    "filter-clear": (actions.then_top(kit.CLEAR_FILTER), FILTERED),
}
TRACE_KEYS: tuple[TraceKey, ...] = kit.read_keys(os.path.join(os.path.dirname(__file__), "keys.txt"), USES)
_ZOOM = next(key.brief for key in TRACE_KEYS if key.id == "closer")


def find_trace_key(name: str, view: TraceView) -> TraceKey | None:
    """Return the row that the pressed key means now, if any."""
    return kit.find_in(TRACE_KEYS, name, view)


def say_trace_unused(name: str, view: TraceView) -> str:
    """Say why a key did nothing; "" for keys without a letter."""
    lost = view.timeline
    of_time = name in ("+", "=", "[", "]", "0", "-")
    return kit.say_why_not(TRACE_KEYS, name, lost.reason if of_time and isinstance(lost, Missing) else "")


def trace_keys_shown(view: TraceView) -> tuple[kit.KeyHelp, ...]:
    """Return the keys that work now, in the order of the table; under an open help also those below it."""
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    working = kit.list_help(TRACE_KEYS, view, below)
    # The three share a line of the help, which must not promise a key that does nothing now.
    zoom = ", ".join(key.footer for key in working if key.brief == _ZOOM)
    return tuple(
        replace(
            key,
            section=key.section.removeprefix("Trace: ").capitalize(),
            brief=zoom if key.brief == _ZOOM else key.brief,
        )
        for key in working
    )
