"""Paint the workers pane: every process of the job that is no rank, sorted and filtered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.units import format_bytes, format_pct, format_rate, format_seconds
from tpmon.model.waits import describe_wait
from tpmon.ui.kit.cells import cut
from tpmon.ui.kit.table import Cell, Column, Item, Table, paint_rule, shared_reason, show, window_of
from tpmon.ui.monitor.panes.ranks import state_ink, waiting_pct, write_state, write_waiting
from tpmon.ui.monitor.state import Ink, Line, Pane, Size, SortBy, ViewState

CPU_STEP_PCT = 10
MEMORY_STEP_RATIO = 1.02
"""Rows this close count as equal and keep their places, so that they do not swap every second."""

_SORT_WORDS = {
    SortBy.CPU: "CPU",
    SortBy.MEMORY: "RSS",
    SortBy.TIME: "age",
    SortBy.PID: "PID",
}


def write_role(process: ProcessSample, *, short: bool = False) -> str:
    """Write the part that a process plays: "rank 0 w1", "launcher", "wandb-core (helper)"."""
    if process.role is Role.RANK:
        return f"rank {process.rank}" if is_known(process.rank) else Role.RANK.value
    if process.role is Role.WORKER:
        number = f"w{process.worker}" if is_known(process.worker) else "worker"
        rank = show(process.rank, str)
        return f"r{rank} {number}" if short else f"rank {rank} {number}"
    if process.role is Role.HELPER and process.label and not short:
        return process.label
    return str(process.role.value)


def select_workers(view: ViewState) -> list[ProcessSample]:
    """Return the processes of the pane in the order shown: filtered, then sorted.

    Rows that count as equal stand by rank and worker number, workers before other processes.
    """
    if not is_known(view.frame):
        return []
    rows = [process for process in view.frame.processes if process.role is not Role.RANK]
    if view.filter_text:
        wanted = _filter(view.filter_text)
        rows = [process for process in rows if _matches(process, *wanted)]
    rows.sort(key=_place)
    rows.sort(key=lambda process: _sort_value(process, view.sort), reverse=view.sort_reversed)
    return rows


def _place(process: ProcessSample) -> tuple[bool, int, int, int]:
    return (
        process.role is not Role.WORKER,
        known_or(process.rank, 1 << 30),
        known_or(process.worker, 1 << 30),
        process.pid,
    )


def _filter(text: str) -> tuple[str, bool]:
    inverted = text.startswith("!")
    return text[inverted:].casefold(), inverted


def _matches(process: ProcessSample, needle: str, inverted: bool) -> bool:
    if not needle:
        return True
    texts = (
        str(process.pid),
        write_role(process),
        process.role.value,
        process.name,
        process.label,
        write_state(process),
        known_or(map_known(describe_wait, process.waits_for), ""),
    )
    return any(needle in text.casefold() for text in texts) is not inverted


def _sort_value(process: ProcessSample, sort: SortBy) -> float:
    if sort is SortBy.CPU:
        return -round(known_or(process.cpu_pct, -1.0) / CPU_STEP_PCT)
    if sort is SortBy.MEMORY:
        return -round(math.log(max(1, process.rss_bytes), MEMORY_STEP_RATIO))
    if sort is SortBy.TIME:
        return process.started.timestamp()
    return process.pid


def _columns(width: int, sort: SortBy, mark: str) -> list[Column[ProcessSample]]:
    short = width < 72
    where = 12 if short else 18 if width < 110 else 33

    def head(name: str, by: SortBy) -> str:
        return f"{name}{mark}" if sort is by else name

    letter: Column[ProcessSample] = Column("S", 1, 7, _letter, right=False)
    state = letter if width < 100 else Column("state", 9, 7, _state, right=False)
    columns: list[Column[ProcessSample]] = [
        Column(head("PID", SortBy.PID), 7, 1, lambda p: str(p.pid)),
        Column("role", 7 if short else 12, 3, lambda p: write_role(p, short=short), right=False),
        Column(head("CPU %", SortBy.CPU), 6, 0, lambda p: show(p.cpu_pct, format_pct)),
        Column("thr", 4, 4, lambda p: str(p.threads)),
        Column("run", 5, 5, lambda p: show(p.runnable, lambda v: f"{v:.1f}")),
        Column("wait %", 6, 9, lambda p: write_waiting(waiting_pct(p), p.runnable)),
        Column(head("RSS", SortBy.MEMORY), 6, 6, lambda p: format_bytes(p.rss_bytes)),
        state,
        Column("for", 6, 10, lambda p: show(p.waits_unchanged_s, format_seconds)),
    ]
    if width >= 120:
        columns += [
            Column("read/s", 7, 11, lambda p: show(p.asked_read_bytes_s, format_bytes)),
            Column("disk/s", 7, 12, lambda p: show(p.device_read_bytes_s, format_bytes)),
            Column("switch/s", 8, 14, lambda p: show(p.switches_s, format_rate)),
            Column("majflt/s", 8, 15, lambda p: show(p.major_faults_s, format_rate)),
            Column("PSS", 6, 16, lambda p: show(p.pss_bytes, format_bytes)),
        ]
    return [*columns, Column("waits for", where, 2, _waits, right=False, grows=True)]


def _state(process: ProcessSample) -> Cell:
    return (write_state(process), state_ink(process))


def _letter(process: ProcessSample) -> Cell:
    return (process.state, state_ink(process))


def _waits(process: ProcessSample) -> str:
    return show(process.waits_for, describe_wait)


def _describe_counts(frame: Frame) -> str:
    counts = Counter(process.role for process in frame.processes)
    told = [f"{counts[Role.WORKER]}" if counts[Role.WORKER] else "none"]
    others = (Role.LAUNCHER, Role.COMPILE, Role.HELPER)
    told += [f"{counts[role]} {role.value}" for role in others if counts[role]]
    return " + ".join(told)


def count_workers(view: ViewState) -> int:
    """Count the rows that the pane would like to show."""
    return len(select_workers(view))


def paint_workers(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule with sort and filter, the heads, and the rows around the cursor."""
    frame = view.frame
    if not is_known(frame):
        return []
    rows = select_workers(view)
    mark = "^" if view.sort_reversed else "v"
    table = Table(_columns(size.width, view.sort, mark), size.width)
    cursor: Applicable[int] = view.cursor_pid if focused else Missing("elsewhere")
    pids = [process.pid for process in rows]
    first, last = window_of(pids, cursor, size.height - 2)
    lines = [
        paint_rule(
            f"{Pane.WORKERS.value} workers",
            _details(view, frame, rows, last - first),
            size.width,
            focused=focused,
        )
    ]
    if not rows:
        return [*lines, _paint_nothing(view, size.width)][: size.height]
    lines.append(table.paint_head())
    for process in rows[first:last]:
        ink = Ink.DIM if process.role is not Role.WORKER else Ink.PLAIN
        lines.append(table.paint_row(process, ink, cursor=is_known(cursor) and cursor == process.pid))
    return lines[: size.height]


def _details(view: ViewState, frame: Frame, rows: Sequence[ProcessSample], shown: int) -> Sequence[Item]:
    details = [Item(1, _describe_counts(frame))]
    found = len(rows)
    if found > shown:
        details.append(Item(0, f"{found - shown} more", Ink.WARN))
    unread = shared_reason([process.waits_for for process in rows])
    if unread:
        details.append(Item(5, f"waits for ? {unread}", Ink.DIM))
    if rows:
        order = " reversed" if view.sort_reversed else ""
        details.append(Item(4, f"sort {_SORT_WORDS[view.sort]}{order}", Ink.DIM))
    if view.filter_text:
        every = sum(process.role is not Role.RANK for process in frame.processes)
        details.append(Item(2, f"filter {cut(view.filter_text, 20)} ({found} of {every})", Ink.STRONG))
    return details


def _paint_nothing(view: ViewState, width: int) -> Line:
    if view.filter_text:
        return ((cut(f" no process matches {view.filter_text}", width), Ink.DIM),)
    text = " no worker process now: num_workers=0, or between two epochs"
    return ((cut(text, width), Ink.DIM),)
