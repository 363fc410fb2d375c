"""The lines of what the live screen shows, to find text in, and the places that one can go to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Union

from tpmon.model.dump import DumpThread
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Role
from tpmon.ui.kit.find import MOST_COLUMNS, Places, look_under, name_goals, pick_goal, write_text
from tpmon.ui.kit.keys import Overlay, action_overlay
from tpmon.ui.monitor.layout import rows_of, text_in_full
from tpmon.ui.monitor.panes import stacks, tables
from tpmon.ui.monitor.state import (
    PANES_WITH_ROWS,
    Pane,
    StackRow,
    ViewState,
    action_zoom,
    cursor_of,
    list_members,
    list_rows,
    with_stacks,
)
from tpmon.view.layout import Size
from tpmon.view.ranks import order_ranks

_HEAD_LINES = 2
"""Rule and heads above the rows of a pane."""
_MOST_ROWS = 4096
GOALS: Mapping[str, Union[Pane, Overlay]] = {
    "ranks": Pane.RANKS,
    "cpu": Pane.CPU,
    "memory": Pane.CPU,
    "workers": Pane.WORKERS,
    "gpus": Pane.GPUS,
    "events": Pane.EVENTS,
    "log": Pane.EVENTS,
    "verdict": Overlay.VERDICT,
    "stacks": Overlay.STACKS,
    "hot": Overlay.SAMPLE,
    "capture": Overlay.CAPTURE,
    "help": Overlay.HELP,
}
"""The panes and overlays by the name that is typed."""


def spot_of(view: ViewState) -> object:
    """Return what names the pane or text that is shown."""
    return look_under(view).overlay, view.zoom, view.focus


def places_of(view: ViewState, size: Size) -> Places[ViewState]:
    """Return the lines of what is shown: rows of a pane or of stacks, else a text in full.

    A pane without rows beside others is searched in full, and alone on the screen when something is found.
    """
    if view.overlay is Overlay.STACKS:
        rows = list_rows(view)
        texts, cursor = stacks.write_rows(view, size.width), cursor_of(view, rows)
        at = rows.index(cursor) if is_known(cursor) else 0
        return Places(texts, at, lambda number: with_stacks(view, cursor=rows[number]))
    pane = view.zoom if is_known(view.zoom) else view.focus
    if view.is_bare and pane in PANES_WITH_ROWS:
        return _rows_of_pane(view, pane)
    alone = view if not view.is_bare or is_known(view.zoom) else action_zoom(view, pane)
    text = text_in_full(alone, Size(size.width + view.search.left, size.height))
    lines = text[1] if text is not None else []
    above = size.height // 3
    at = view.search.found if view.search.found >= 0 else alone.scroll
    return Places(
        [write_text(line) for line in lines], at, lambda number: replace(alone, scroll=max(0, number - above))
    )


def _rows_of_pane(view: ViewState, pane: Pane) -> Places[ViewState]:
    shown = replace(view, zoom=pane)
    pids = rows_of(shown)
    paint = tables.paint_ranks if pane is Pane.RANKS else tables.paint_workers
    lines = paint(shown, Size(MOST_COLUMNS, _MOST_ROWS), focused=True)[_HEAD_LINES:]
    at = pids.index(view.cursor_pid) if is_known(view.cursor_pid) and view.cursor_pid in pids else 0
    texts = [write_text(line) for line in lines[: len(pids)]]
    return Places(texts, at, lambda number: replace(view, cursor_pid=pids[number]))


def go_to(view: ViewState, goal: str, size: Size) -> ViewState:
    """Go to a line of a text, to a process by its PID, to a rank, or to a pane by its name."""
    if goal.isdecimal():
        return _go_to_number(view, int(goal), size)
    found = pick_goal(GOALS, goal)
    if not found:
        return replace(view, message=f"no such place: a PID, a rank, a line, {name_goals(GOALS)}")
    place = GOALS[found]
    if isinstance(place, Overlay):
        return view if view.overlay is place else action_overlay(view, place)
    bare = replace(view, overlay=Overlay.NONE, behind=Overlay.NONE, scroll=0)
    return bare if bare.zoom is place else action_zoom(bare, place)


def _go_to_number(view: ViewState, number: int, size: Size) -> ViewState:
    if view.overlay is Overlay.STACKS:
        groups = [one.stack.mark for one in list_members(view) if _holds(one.group.threads, number)]
        if groups:
            return with_stacks(view, cursor=StackRow(groups[0]))
        return replace(view, message=f"no process or rank {number} in these stacks")
    alone = not view.is_bare or (is_known(view.zoom) and view.zoom not in PANES_WITH_ROWS)
    text = text_in_full(view, size) if alone else None
    if text is not None:
        return replace(view, scroll=max(0, min(number, len(text[1])) - 1))
    if not is_known(view.frame):
        return view
    ranks = {one.row.rank: one.row.pid for one in order_ranks(view.frame)}
    roles = {process.pid: process.role for process in view.frame.processes}
    pid = number if number in roles else ranks.get(number)
    if pid is None:
        return replace(view, message=f"no process or rank {number} in this job")
    pane = Pane.RANKS if roles.get(pid, Role.RANK) is Role.RANK else Pane.WORKERS
    zoom = pane if is_known(view.zoom) else NOT_APPLICABLE
    at = replace(view, focus=pane, zoom=zoom, cursor_pid=pid, scroll=0)
    return at if pid in rows_of(at) else replace(at, filter_text="")


def _holds(threads: tuple[DumpThread, ...], number: int) -> bool:
    return any(number in (one.pid, one.rank) for one in threads)
