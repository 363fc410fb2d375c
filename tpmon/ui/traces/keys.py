"""The table of keys of a trace's screen: dispatch, footer, help overlay and docs/keys.md come from it.

The screen of a memory snapshot has the same table. The keys that the live screen has too mean the same
here. Knows nothing of textual.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tpmon.model.known import Missing
from tpmon.ui.kit.keys import ByDigit, find_in, list_help, list_moves, list_steps, list_stops, say_why_not
from tpmon.ui.kit.lines import KeyHelp
from tpmon.ui.kit.moves import Effect
from tpmon.ui.traces import trace_actions as actions
from tpmon.ui.traces import trace_situations as when
from tpmon.ui.traces.state import TraceOverlay, TraceView
from tpmon.ui.traces.trace_situations import TraceKey

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
    _trace("quit", "q", "leave", Effect.QUIT, when.NOT_TYPING, ("quit", 1), brief="leave"),
    _trace("interrupt", "ctrl-c", "leave, also while typing", Effect.QUIT, when.EVER, brief="leave"),
    _trace(
        "help",
        "? F1",
        "the keys that work now; any other key closes it",
        partial(actions.action_overlay, overlay=TraceOverlay.HELP),
        when.NOT_TYPING,
        ("help", 2),
        brief="these keys; others close it",
    ),
    *list_stops("Trace", when.EVER),
    _tab(
        "tab",
        "1-6",
        "one tab: 1 overview, 2 gaps, 3 ops, 4 kernels, 5 memory, 6 ranks",
        ByDigit(_open),
        when.OF_TRACE,
        ("tab", 3),
        brief="one tab",
    ),
    _tab(
        "against",
        "7",
        "what changed since the other trace",
        ByDigit(_open),
        when.COMPARED,
        ("against", 3),
        brief="what changed",
    ),
    _tab(
        "snapshot-tab",
        "1-4",
        "one tab: 1 overview, 2 live (by stack), 3 peak, 4 oom (requests that failed)",
        ByDigit(_open),
        when.OF_SNAPSHOT,
        ("tab", 3),
        brief="one tab",
    ),
    *list_steps(
        _TAB,
        ("next-tab", "tab", "next tab"),
        ("previous-tab", "shift-tab", "previous tab"),
        actions.action_next_tab,
        when=when.TABS,
        footer=("next tab", 10),
        brief="next tab, previous",
    ),
    *list_steps(
        _TAB,
        ("next-file", ">", "the next file, of the next rank"),
        ("previous-file", "<", "the file before"),
        actions.action_next_file,
        when=when.FILES,
        footer=("next file", 6),
        brief="next file, previous",
    ),
    _tab(
        "close",
        "esc",
        "close what lies over the tabs; the filter line loses its text",
        actions.action_close,
        when.OVER,
        ("close", 1),
        brief=_BACK,
    ),
    *list_steps(
        _TIME,
        ("along", "right ]", "the next step; of all steps the first one, of a part the next part"),
        ("back", "left [", "the step before; of all steps the last one, of a part the part before"),
        actions.action_along,
        when=when.WALKED,
        footer=("next step", 5),
        brief="next, previous step or part",
    ),
    _time(
        "closer",
        "+",
        "half of the steps that are drawn, then half of a step",
        actions.action_closer,
        when.DRAWN,
        ("closer", 6),
        brief=_ZOOM,
    ),
    _time("wider", "-", "twice as much", actions.action_wider, when.PARTLY, ("wider", 6), brief=_ZOOM),
    _time("whole", "0", "all steps", actions.action_whole, when.PARTLY, ("all steps", 6), brief=_ZOOM),
    _time(
        "device",
        "n",
        "the timeline of the next device",
        actions.action_next_device,
        when.LANES,
        ("next GPU", 8),
        brief="the next device",
    ),
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
    *list_steps(
        _ROW,
        ("next-table", "}", "the next table of the tab"),
        ("previous-table", "{", "the table before"),
        actions.action_next_table,
        when=when.SEVERAL,
        footer=("next table", 10),
        brief="next table, previous",
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
