"""What keys do, as pure functions from ViewState to ViewState.

Rows are named by PID and come from the painters; nothing here reads a clock, a file or a size.
"""

from __future__ import annotations

from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.units import clean_text
from tpmon.ui.kit.moves import FILTER_LIMIT, Move, moved
from tpmon.ui.monitor.state import Overlay, Pane, SortBy, ViewState

INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)
PANES_WITH_ROWS = (Pane.RANKS, Pane.WORKERS)
OVERVIEWS = (Overlay.STACKS, Overlay.SAMPLE, Overlay.CAPTURE)
"""Overlays that help and verdict lie over and go back to."""


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


def action_overlay(view: ViewState, overlay: Overlay) -> ViewState:
    """Open an overlay, or close it when it is open; what help and verdict lay over is there again."""
    if view.overlay is overlay:
        return action_close(view)
    below = view.behind if view.overlay not in OVERVIEWS else view.overlay
    behind = below if below in OVERVIEWS and overlay not in OVERVIEWS else Overlay.NONE
    return replace(view, overlay=overlay, behind=behind, scroll=0)


def action_close(view: ViewState) -> ViewState:
    """Close what lies over the panes; the filter line goes with its text."""
    text = "" if view.overlay is Overlay.FILTER else view.filter_text
    return replace(view, overlay=view.behind, behind=Overlay.NONE, filter_text=text, scroll=0)


def action_row_overlay(view: ViewState, overlay: Overlay, rows: tuple[int, ...]) -> ViewState:
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


def action_reverse(view: ViewState) -> ViewState:
    """Turn the order of the workers round."""
    return replace(view, sort_reversed=not view.sort_reversed)


def action_filter(view: ViewState) -> ViewState:
    """Open the filter line and go where its rows are."""
    return replace(_focused(view, Pane.WORKERS), overlay=Overlay.FILTER)


def action_filter_keep(view: ViewState) -> ViewState:
    """Close the filter line and keep its text."""
    return replace(view, overlay=Overlay.NONE)


def action_filter_clear(view: ViewState) -> ViewState:
    """Show all workers again."""
    return replace(view, filter_text="")


def action_filter_type(view: ViewState, text: str) -> ViewState:
    """Add typed or pasted text to the filter, its first line only."""
    line = text.splitlines()[0] if text.splitlines() else ""
    return replace(view, filter_text=(view.filter_text + clean_text(line))[:FILTER_LIMIT])


def action_filter_erase(view: ViewState) -> ViewState:
    """Take the last character of the filter away."""
    return replace(view, filter_text=view.filter_text[:-1])


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
