"""What the screen shows, as data, and what keys do to it. Pure.

Painters are functions of a ViewState and a size; keys are functions from ViewState to ViewState.
Knows nothing of textual.

Rows are named by PID and come from the painters; nothing here reads a clock, a file or a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, IntEnum

from tpmon.model.frame import Event, Frame, Pulse
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.capture import CaptureUpdate
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate
from tpmon.model.results.sample import SampleRequest
from tpmon.ui.kit.keys import Move, Overlay, ScreenState, action_overlay, moved


class Pane(IntEnum):
    """Name the panes by the digit that zooms them."""

    RANKS = 1
    CPU = 2
    WORKERS = 3
    GPUS = 4
    EVENTS = 5


class SortBy(Enum):
    """Name the columns that the workers pane can be sorted by."""

    CPU = "cpu"
    MEMORY = "memory"
    TIME = "time"
    """Age, oldest first: the birth order of the workers."""
    PID = "pid"


WHOLE_GROUP = -1
OTHER_THREADS = 0
"""The mark of the row below which all threads beside the main ones are folded."""


@dataclass(frozen=True, slots=True)
class StackRow:
    """Name one row of the stacks: a group by its mark, or one line of its stack by its number."""

    mark: int
    line: int = WHOLE_GROUP


class Price(str, Enum):
    """Name what a look costs that a key asks for twice; the value is that key."""

    STOP = "R"
    NATIVE = "N"
    VARIABLES = "L"


@dataclass(frozen=True, slots=True)
class StacksView:
    """Hold what keys have done to the picture of stacks; times are CLOCK_MONOTONIC.

    The group of the odd one is open until it is in ``closed``, the others are closed until they
    are in ``opened``. ``asked_ns`` is set from the key until the session answers, ``priced_ns``
    while the price of ``priced`` is on the screen, and ``seen_ns`` says which dump was looked at.
    """

    cursor: Applicable[StackRow] = NOT_APPLICABLE
    opened: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    asked_ns: Applicable[int] = NOT_APPLICABLE
    priced_ns: Applicable[int] = NOT_APPLICABLE
    priced: Price = Price.STOP
    seen_ns: Applicable[int] = NOT_APPLICABLE
    as_tree: bool = False
    """Merge the stacks of main threads where they begin alike, instead of group below group."""
    whole: bool = False
    """Show every frame of a group, also those of libraries."""


@dataclass(frozen=True, slots=True)
class ViewState(ScreenState):
    """Hold everything that the picture depends on.

    ``now_ns`` is CLOCK_MONOTONIC at painting: ages are counted from it, so that a stalled
    session shows on the screen. While ``paused_ns`` is set, ``frame`` stays and sampling goes on.
    """

    now_ns: int
    interval_s: float
    frame: Known[Frame] = Missing("waiting for the first reading")
    pulses: tuple[Pulse, ...] = ()
    events: tuple[Event, ...] = ()
    """The events since attaching, oldest first, at most 500: those of every day make way for the others."""
    paused_ns: Applicable[int] = NOT_APPLICABLE
    zoom: Applicable[Pane] = NOT_APPLICABLE
    focus: Pane = Pane.WORKERS
    cursor_pid: Applicable[int] = NOT_APPLICABLE
    """The row under the cursor is named by PID, so that it stays when rows move."""
    sort: SortBy = SortBy.CPU
    readonly: bool = False
    """Offer nothing that stops a process of the job."""
    no_stacks: bool = False
    """Offer no sampling of stacks; one look is read where a key asks for it."""
    dump: Applicable[DumpUpdate] = NOT_APPLICABLE
    """The newest dump of the job's stacks, also while it is read."""
    stacks: StacksView = StacksView()
    offered_ns: Applicable[int] = NOT_APPLICABLE
    """When the key of the bundle said what it does: its next press does it."""
    capture: Applicable[CaptureUpdate] = NOT_APPLICABLE
    """The capture that was asked for last: its price, how far it is, what came of it."""
    sample: Applicable[SampleUpdate] = NOT_APPLICABLE
    """The newest samples of the job's stacks, also while they come."""
    to_sample: Applicable[SampleRequest] = NOT_APPLICABLE
    """What the key of sampling asks for next: its price is on the screen."""
    captured: Applicable[str] = NOT_APPLICABLE
    """The trace that was captured last, to be opened."""


INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)
PANES_WITH_ROWS = (Pane.RANKS, Pane.WORKERS)


def action_pause(view: ViewState) -> ViewState:
    """Freeze the picture, or let it go on."""
    return replace(view, paused_ns=NOT_APPLICABLE if is_known(view.paused_ns) else view.now_ns)


NO_ROW = "no process in this pane, tab goes to the next one"


def action_zoom(view: ViewState, pane: Pane) -> ViewState:
    """Give one pane the whole screen, or all panes their place again."""
    if view.zoom == pane:
        return replace(view, zoom=NOT_APPLICABLE, scroll=0)
    return replace(_focused(view, pane), zoom=pane)


def action_unzoom(view: ViewState) -> ViewState:
    """Give all panes their place again."""
    return replace(view, zoom=NOT_APPLICABLE, scroll=0)


def action_focus(view: ViewState, step: int) -> ViewState:
    """Focus the next or the previous pane; a zoomed pane gives its place to it."""
    panes = tuple(Pane)
    pane = panes[(panes.index(view.focus) + step) % len(panes)]
    moved = _focused(view, pane)
    return replace(moved, zoom=pane) if is_known(view.zoom) else moved


def action_row_overlay(view: ViewState, overlay: Overlay, rows: Sequence[int]) -> ViewState:
    """Open the details or the environment of the row under the cursor, the first if there is none."""
    if view.overlay is overlay:
        return action_overlay(view, overlay)
    if is_known(view.cursor_pid):
        return replace(view, overlay=overlay, scroll=0)
    if not rows:
        return replace(view, message=NO_ROW)
    return replace(view, overlay=overlay, scroll=0, cursor_pid=rows[0])


def action_sort(view: ViewState, sort: SortBy) -> ViewState:
    """Sort the workers by one column, largest first."""
    return replace(view, sort=sort, sort_reversed=False)


def action_sort_next(view: ViewState) -> ViewState:
    """Sort the workers by the next column."""
    columns = tuple(SortBy)
    return action_sort(view, columns[(columns.index(view.sort) + 1) % len(columns)])


def action_filter(view: ViewState) -> ViewState:
    """Open the filter line and go where its rows are."""
    return replace(_focused(view, Pane.WORKERS), overlay=Overlay.FILTER)


def action_slower(view: ViewState) -> ViewState:
    """Read less often: the next longer interval, at most 10 s."""
    longer = [seconds for seconds in INTERVALS_S if seconds > view.interval_s]
    return replace(view, interval_s=longer[0]) if longer else view


def action_faster(view: ViewState) -> ViewState:
    """Read more often: the next shorter interval, at least 0.5 s."""
    shorter = [seconds for seconds in INTERVALS_S if seconds < view.interval_s]
    return replace(view, interval_s=shorter[-1]) if shorter else view


def action_move(
    view: ViewState, move: Move, rows: tuple[int, ...], page: int, scroll_limit: int
) -> ViewState:
    """Move the cursor through ``rows``, or scroll where there are none or an overlay lies on top."""
    if view.overlay is not Overlay.NONE or not rows:
        return replace(view, scroll=moved(view.scroll, move, page, scroll_limit))
    if not is_known(view.cursor_pid) or view.cursor_pid not in rows:
        return replace(view, cursor_pid=rows[-1] if move is Move.LAST else rows[0])
    return replace(view, cursor_pid=rows[moved(rows.index(view.cursor_pid), move, page, len(rows) - 1)])


def keep_cursor(view: ViewState, rows: tuple[int, ...], before: tuple[int, ...]) -> ViewState:
    """Move the cursor to the row that took the place of the one that left.

    An overlay keeps its process, so that it can say that the process is gone.
    """
    if not is_known(view.cursor_pid) or view.cursor_pid in rows or view.overlay is not Overlay.NONE:
        return view
    if not rows or view.cursor_pid not in before:
        return replace(view, cursor_pid=NOT_APPLICABLE)
    return replace(view, cursor_pid=rows[min(before.index(view.cursor_pid), len(rows) - 1)])


def _focused(view: ViewState, pane: Pane) -> ViewState:
    if view.focus is pane:
        return replace(view, scroll=0)
    return replace(view, focus=pane, cursor_pid=NOT_APPLICABLE, scroll=0)
