"""The state of the list of jobs: what was read, the cursor, what keys have changed. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity
from tpmon.model.results.roster import JobRow, Roster
from tpmon.ui.kit.keys import Move, Overlay, RowsState, Search, moved, next_of
from tpmon.view.jobs import JobOrder, matches, sort_jobs


@dataclass(frozen=True, slots=True)
class JobsView(RowsState):
    """Hold everything that the picture of the list depends on."""

    roster: Applicable[Roster] = NOT_APPLICABLE
    cursor: Applicable[Identity] = NOT_APPLICABLE
    """The job under the cursor: the cursor stays on it when rows move."""
    order: JobOrder = JobOrder.ILL


def begin_jobs_view(
    now: datetime, now_ns: int, *, ascii_only: bool, filter_text: str = "", message: str = ""
) -> JobsView:
    """Return the first view of the list."""
    none = Overlay.NONE
    return JobsView(ascii_only, none, none, 0, False, filter_text, message, Search(), now, now_ns)


def list_job_rows(view: JobsView) -> list[JobRow]:
    """Return the rows that the filter lets through, in their order."""
    if not is_known(view.roster):
        return []
    return sort_jobs([row for row in view.roster.rows if matches(row, view.filter_text)], view.order)


def list_wanted(view: JobsView) -> tuple[Identity, ...]:
    """Return the jobs that are looked at: that under the cursor, and those that a filter shows alone."""
    shown = [row.reading.root for row in list_job_rows(view)] if view.filter_text else []
    return tuple(dict.fromkeys((*((view.cursor,) if is_known(view.cursor) else ()), *shown)))


def keep_job_cursor(view: JobsView, before: JobsView) -> JobsView:
    """Keep the cursor on its job; where that is gone, on the row in its place; else on the first row."""
    roots = [row.reading.root for row in list_job_rows(view)]
    if is_known(view.cursor) and view.cursor in roots:
        return view
    old = (
        [row.reading.root for row in list_job_rows(before)] if view.filter_text == before.filter_text else []
    )
    place = old.index(view.cursor) if is_known(view.cursor) and view.cursor in old else 0
    return replace(view, cursor=roots[min(place, len(roots) - 1)] if roots else NOT_APPLICABLE)


def action_move_row(view: JobsView, move: Move, page: int) -> JobsView:
    """Move the cursor, or scroll the help."""
    if view.overlay is Overlay.HELP:
        return replace(view, scroll=moved(view.scroll, move, page, 1 << 16))
    roots = [row.reading.root for row in list_job_rows(view)]
    if not roots:
        return view
    place = roots.index(view.cursor) if is_known(view.cursor) and view.cursor in roots else 0
    return replace(view, cursor=roots[moved(place, move, page, len(roots) - 1)])


def action_sort_jobs(view: JobsView) -> JobsView:
    """Sort by the next order, and say which."""
    order = next_of(list(JobOrder), view.order)
    return replace(view, order=order, message=f"sorted: {order.value}")
