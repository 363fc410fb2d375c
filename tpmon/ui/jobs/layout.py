"""Put the list of jobs together at a given size: the head, the table, what was not read, the keys."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.units import count_of, format_clock
from tpmon.model.verdict import VerdictCode
from tpmon.ui.jobs.state import JobsView, list_job_rows
from tpmon.ui.kit.keys import AROUND_HELP, KeyHelp, Overlay, frame_rows, paint_help, paint_scrolled
from tpmon.view.jobs import JobOrder, list_job_columns, rate_row, say_unread_jobs
from tpmon.view.layout import Ink, Item, Line, Size, Table, justify, lay_text, paint_rule, window_of

LOOKS_FOR = "no training job on this machine so far"
HOW_TO_START = (
    "A job is a Python process that has loaded torch; one that starts appears here by itself.",
    "tpmon demo, in another terminal, starts a small one.",
)
WORDS = (
    ("PACE", "steps a second by the job's own log, else how long ago it wrote: log 26m", "by the log"),
    ("VERDICT", "of the newest turn; jobs are judged in turn, that under the cursor sooner", "by turns"),
    ("-, looking", "not judged yet, being judged: no verdict is claimed without evidence", "not yet, now"),
    ("<02:41", "since before 02:41", "before 02:41"),
    ("JUDGED", "how long ago the verdict was found", "its age"),
)
_HEAD_LINES = 2


def page_of_list(size: Size) -> int:
    """Return how many rows a page has."""
    return max(1, size.height - _HEAD_LINES - 2)


def last_help_line(size: Size, keys: Sequence[KeyHelp]) -> int:
    """Return the last line from which the help can be shown."""
    return max(0, len(paint_help(keys, size, WORDS)) - (size.height - AROUND_HELP))


def paint_jobs(view: JobsView, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    """Paint the whole screen: ``size.height`` lines."""
    return frame_rows(
        view,
        size,
        keys,
        lambda width: _paint_head(view, width),
        lambda body: _paint_body(view, body, size, keys),
    )


def _paint_head(view: JobsView, width: int) -> Line:
    rows = list(view.roster.rows) if is_known(view.roster) else []
    alive = [row for row in rows if not is_known(row.ended_ns)]
    ill = [row for row in alive if rate_row(row) in (VerdictCode.HELD, VerdictCode.HUNG)]
    processes = sum(row.reading.processes for row in alive)
    left = [Item(1, "tpmon", Ink.TITLE)]
    if is_known(view.roster):
        left.append(Item(0, count_of(len(alive), "job"), Ink.STRONG))
        left += [Item(2, f"{len(ill)} ill", Ink.WARN)] if ill else []
        left.append(Item(5, count_of(processes, "process", "processes")))
    return justify(left, [Item(3, format_clock(view.now))], width)


def _paint_body(view: JobsView, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    if view.overlay is Overlay.HELP:
        return paint_scrolled("help", paint_help(keys, size, WORDS), view.scroll, body)
    rows = list_job_rows(view)
    details = [Item(1, view.order.value)] if view.order is not JobOrder.ILL else []
    if view.filter_text and view.overlay is Overlay.NONE:
        details.insert(0, Item(0, f"filter: {view.filter_text}", Ink.WARN))
    rule = paint_rule("jobs", details, body.width, focused=True)
    if not rows:
        return [rule, *_say_nothing(view, body.width)]
    unread = say_unread_jobs(view.roster) if is_known(view.roster) else ""
    notes = lay_text(f"{unread}: tpmon doctor says why", body.width, Ink.DIM) if unread else []
    room = max(1, body.height - _HEAD_LINES - len(notes))
    pids = [row.reading.root.pid for row in rows]
    cursor = view.cursor.pid if is_known(view.cursor) else view.cursor
    first, end = window_of(pids, cursor, room)
    if len(rows) > room:
        rule = paint_rule(
            "jobs", [*details, Item(0, f"{first + 1} to {end} of {len(rows)}")], body.width, focused=True
        )
    table = Table(list_job_columns(rows, view.now, view.now_ns), body.width)
    lines = [
        table.paint_row(
            row,
            Ink.DIM if is_known(row.ended_ns) else Ink.PLAIN,
            cursor=is_known(view.cursor) and row.reading.root == view.cursor,
        )
        for row in rows[first:end]
    ]
    return [rule, table.paint_head(), *lines, *notes]


def _say_nothing(view: JobsView, width: int) -> list[Line]:
    if not is_known(view.roster):
        return lay_text("looks for training jobs", width, Ink.DIM)
    if view.roster.rows:
        return lay_text(f"no job has {view.filter_text!r} in it", width)
    unread = say_unread_jobs(view.roster)
    texts = (LOOKS_FOR, *HOW_TO_START, *([f"{unread}: tpmon doctor says why."] if unread else []))
    return [
        line
        for number, text in enumerate(texts)
        for line in lay_text(text, width, Ink.DIM if number else Ink.STRONG)
    ]
