"""Paint the tables of ranks and workers, and in short those that are normal or do the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from types import MappingProxyType

from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.text.dump_words import list_numbers
from tpmon.model.text.job_words import format_step_rate
from tpmon.model.units import count_of
from tpmon.model.waits import describe_wait
from tpmon.ui.monitor.panes.steps import say_split_short
from tpmon.ui.monitor.state import Pane, SortBy, ViewState
from tpmon.view.layout import (
    Ink,
    Item,
    Line,
    Size,
    Table,
    cut,
    fit_line,
    paint_rule,
    shared_reason,
    window_of,
)
from tpmon.view.ranks import (
    RankView,
    has_steps,
    list_normal,
    list_rank_columns,
    list_short_columns,
    list_worker_columns,
    name_ranks,
    name_state,
    order_ranks,
    say_range,
    state_ink,
    write_role,
    write_state,
)

_USUAL_SOURCES = ("environment", "single process")


MANY_NORMAL = 5
"""So many ranks of which nothing stands out share a line."""


LEAST_FOLDED = 3
"""Lines that have room for a rank that stands out and for the others, not for the heads above them."""


def unfolds(view: ViewState, pane: Pane) -> bool:
    """Tell whether each row has its line: in full, and while the cursor is in the pane."""
    return view.zoom is pane or (view.focus is pane and is_known(view.cursor_pid))


def count_rank_lines(view: ViewState) -> int:
    """Count the lines of the pane below its rule, as short as it is."""
    if not is_known(view.frame):
        return 1
    ranks = order_ranks(view.frame)
    folded = len(list_normal(ranks))
    if unfolds(view, Pane.RANKS) or folded < MANY_NORMAL:
        return 1 + max(1, len(ranks))
    return len(ranks) - folded + (2 if folded < len(ranks) else 1)


def paint_ranks(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule, the heads, the rows around the cursor, and many normal ones in a line."""
    frame = view.frame
    if not is_known(frame):
        return []
    ranks = order_ranks(frame)
    in_full = view.zoom is Pane.RANKS
    cursor = view.cursor_pid if focused else Missing("elsewhere")
    details = [Item(0, "no rank left", Ink.BAD)] if _none_left(frame, ranks) else []
    normal = list_normal(ranks)
    folds = len(normal) >= MANY_NORMAL and not unfolds(view, Pane.RANKS)
    rows = [rank for rank in ranks if not folds or rank not in normal]
    has_head = bool(rows) and (not folds or size.height > LEAST_FOLDED)
    room = size.height - 1 - has_head - folds
    first, last = window_of([rank.row.pid for rank in rows], cursor, room)
    if len(rows) > last - first:
        details.append(Item(0, f"{len(rows) - (last - first)} more", Ink.STRONG))
    details += _tell_ranks(frame, ranks, in_full=in_full)
    named = name_ranks(frame)
    title = f"{Pane.RANKS.value} ranks: {named}" if named else f"{Pane.RANKS.value} ranks"
    lines = [paint_rule(title, details, size.width, focused=focused)]
    if not ranks:
        nothing = "no rank process is left" if _none_left(frame, ranks) else "no rank process seen yet"
        return [*lines, ((cut(f" {nothing}", size.width), Ink.DIM),)][: size.height]
    list_columns = list_rank_columns if in_full else list_short_columns
    table = Table(list_columns(frame, ranks, size.width), size.width)
    if has_head:
        lines.append(table.paint_head())
    for rank in rows[first:last]:
        ink = Ink.PLAIN if is_known(rank.process) else Ink.BAD
        lines.append(table.paint_row(rank, ink, cursor=is_known(cursor) and cursor == rank.row.pid))
    if folds:
        lines.append(fold_ranks(normal, size.width))
    return lines[: size.height]


def _tell_ranks(frame: Frame, ranks: Sequence[RankView], *, in_full: bool) -> list[Item]:
    """Return what the rule says of all ranks: how their steps divide, or what of them is not known."""
    items = []
    if is_known(frame.steps) and (split := say_split_short(frame.steps)):
        items.append(Item(2, split))
    unread = shared_reason([rank.row.where for rank in ranks])
    if unread:
        items.append(Item(3, f"now in ? {unread}", Ink.DIM))
    if not in_full:
        return items
    step = ranks[0].row.step if ranks else Missing("")
    if isinstance(step, Missing) and not has_steps(ranks) and ranks:
        items.append(Item(5, f"step ? {step.reason}", Ink.DIM))
    if frame.target.rank_source not in _USUAL_SOURCES:
        items.append(Item(4, f"known from {frame.target.rank_source}", Ink.DIM))
    return items


def fold_ranks(ranks: Sequence[RankView], width: int) -> Line:
    """Write ranks of which nothing stands out in one line: what most of them do, CPU, pace."""
    places = Counter(rank.row.where for rank in ranks if is_known(rank.row.where))
    numbers = [rank.row.rank for rank in ranks if is_known(rank.row.rank)]
    every = len(numbers) == len(ranks)
    named = f"ranks {list_numbers(numbers)}" if every else count_of(len(ranks), "rank")
    told = [where if count == len(ranks) else f"{count} {where}" for where, count in places.most_common(2)]
    processes = [rank.process for rank in ranks if is_known(rank.process)]
    cpu = [one.cpu_pct for one in processes if is_known(one.cpu_pct)]
    if cpu:
        told.append(f"CPU {say_range(cpu, '%')}")
    rates = [rank.pace.rate_hz for rank in ranks if is_known(rank.pace)]
    if rates:
        told.append(f"{format_step_rate(min(rates))} steps/s")
    return fit_line(((f" {named} normal: ", Ink.PLAIN), (", ".join(told), Ink.DIM)), width)


def _none_left(frame: Frame, ranks: Sequence[RankView]) -> bool:
    """Tell whether the job had ranks on this machine and all are gone."""
    if not ranks:
        return is_known(frame.target.outcome)
    return all(not is_known(rank.process) or rank.process.state in ("Z", "X") for rank in ranks)


CPU_STEP_PCT = 10
MEMORY_STEP_RATIO = 1.02
"""Rows this close count as equal, so that they do not swap places every second."""

_SORT_WORDS = {SortBy.CPU: "CPU", SortBy.MEMORY: "RSS", SortBy.TIME: "age", SortBy.PID: "PID"}
_SORTED_HEADS = {SortBy.CPU: "CPU %", SortBy.MEMORY: "RSS", SortBy.PID: "PID"}


def select_workers(view: ViewState) -> list[ProcessSample]:
    """Return the processes of the pane, filtered and sorted, equal ones by rank and worker number."""
    rows = filter_workers(view)
    rows.sort(key=_place)
    rows.sort(key=lambda process: _sort_value(process, view.sort), reverse=view.sort_reversed)
    return rows


def filter_workers(view: ViewState) -> list[ProcessSample]:
    """Return the processes that the pane can show, as the job has them."""
    if not is_known(view.frame):
        return []
    rows = [process for process in view.frame.processes if process.role is not Role.RANK]
    inverted = view.filter_text.startswith("!")
    if needle := view.filter_text[inverted:].casefold():
        rows = [process for process in rows if _matches(process, needle) is not inverted]
    return rows


def _place(process: ProcessSample) -> tuple[bool, int, int, int]:
    return (
        process.role is not Role.WORKER,
        known_or(process.rank, 1 << 30),
        known_or(process.worker, 1 << 30),
        process.pid,
    )


def _matches(process: ProcessSample, needle: str) -> bool:
    texts = (
        str(process.pid),
        write_role(process),
        process.role.value,
        process.name,
        process.label,
        write_state(process),
        known_or(map_known(describe_wait, process.waits_for), ""),
    )
    return any(needle in text.casefold() for text in texts)


def _sort_value(process: ProcessSample, sort: SortBy) -> float:
    if sort is SortBy.CPU:
        return -round(known_or(process.cpu_pct, -1.0) / CPU_STEP_PCT)
    if sort is SortBy.MEMORY:
        return -round(math.log(max(1, process.rss_bytes), MEMORY_STEP_RATIO))
    if sort is SortBy.TIME:
        return process.started.timestamp()
    return process.pid


@dataclass(frozen=True, slots=True)
class WorkerFold:
    """Hold the workers that do the same."""

    doing: str
    workers: tuple[ProcessSample, ...]

    def write(self, width: int) -> Line:
        """Write how many there are, what they do, of which ranks they are and what CPU they take."""
        cpu = [one.cpu_pct for one in self.workers if is_known(one.cpu_pct)]
        ranks = sorted({one.rank for one in self.workers if is_known(one.rank)})
        of = f"ranks {list_numbers(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else ""
        ink = state_ink(self.workers[0])
        told = "   ".join(filter(None, (f"CPU {say_range(cpu, '%')}" if cpu else "", of)))
        head = f" {len(self.workers):>4} "
        sign = "" if ink is Ink.PLAIN else "! "
        return fit_line(((head, Ink.PLAIN), (f"{sign}{self.doing}", ink), (f"   {told}", Ink.DIM)), width)

    def write_briefly(self, width: int) -> Line:
        """Write how many there are and what they do."""
        ink = state_ink(self.workers[0])
        sign = "" if ink is Ink.PLAIN else "! "
        return fit_line(((f" w {len(self.workers)}: ", Ink.PLAIN), (f"{sign}{self.doing}", ink)), width)


def fold_workers(rows: Sequence[ProcessSample]) -> list[WorkerFold]:
    """Put the workers together that do the same, those in trouble first."""
    groups: dict[str, list[ProcessSample]] = {}
    for row in rows:
        if row.role is Role.WORKER or state_ink(row) is not Ink.PLAIN:
            groups.setdefault(_say_doing(row), []).append(row)
    folds = [WorkerFold(doing, tuple(found)) for doing, found in groups.items()]
    folds.sort(key=lambda fold: (state_ink(fold.workers[0]) is Ink.PLAIN, -len(fold.workers)))
    return folds


_OF_SEVERAL = MappingProxyType({"R": "running", "S": "asleep"})


def _say_doing(process: ProcessSample) -> str:
    word = _OF_SEVERAL.get(process.state, "") or name_state(process)
    if process.state == "R" or not is_known(process.waits_for):
        return word
    waits = describe_wait(process.waits_for)
    return f"wait for {waits}" if process.state == "S" else f"{word}: {waits}"


def worker_folds(view: ViewState, shown: Sequence[ProcessSample], rows: int) -> list[WorkerFold]:
    """Return what the workers ``shown`` do, where that says more than ``rows`` of them; none for rows."""
    if view.filter_text or view.sort is not SortBy.CPU or view.sort_reversed:
        return []
    if unfolds(view, Pane.WORKERS):
        return []
    folds = fold_workers(shown)
    quiet = len(folds) == 1 and len(folds[0].workers) > 2
    return folds if len(shown) > rows or quiet else []


def paint_workers(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule, and the rows around the cursor, or in short what the workers do."""
    frame = view.frame
    if not is_known(frame):
        return []
    rows = select_workers(view)
    folds = worker_folds(view, rows, size.height - 2)
    if folds:
        details = _details(view, frame, rows, len(rows))[:1]
        if len(folds) > size.height - 1:
            details = [*details, Item(0, f"{len(folds) - size.height + 1} more", Ink.STRONG)]
        rule = paint_rule(f"{Pane.WORKERS.value} workers", details, size.width, focused=focused)
        return [rule, *(fold.write(size.width) for fold in folds)][: size.height]
    marks = {_SORTED_HEADS.get(view.sort, ""): "^" if view.sort_reversed else "v"}
    table = Table(list_worker_columns(size.width, marks), size.width)
    cursor: Applicable[int] = view.cursor_pid if focused else Missing("elsewhere")
    pids = [process.pid for process in rows]
    first, last = window_of(pids, cursor, size.height - 2)
    details = _details(view, frame, rows, last - first)
    lines = [paint_rule(f"{Pane.WORKERS.value} workers", details, size.width, focused=focused)]
    if not rows:
        nothing = "no worker process now: num_workers=0, or between two epochs"
        nothing = f"no process matches {view.filter_text}" if view.filter_text else nothing
        return [*lines, ((cut(f" {nothing}", size.width), Ink.DIM),)][: size.height]
    lines.append(table.paint_head())
    for process in rows[first:last]:
        ink = Ink.DIM if process.role is not Role.WORKER else Ink.PLAIN
        lines.append(table.paint_row(process, ink, cursor=is_known(cursor) and cursor == process.pid))
    return lines[: size.height]


def _details(view: ViewState, frame: Frame, rows: Sequence[ProcessSample], shown: int) -> Sequence[Item]:
    counts = Counter(process.role for process in frame.processes)
    told = [f"{counts[Role.WORKER] or 'none'}"]
    others = (Role.LAUNCHER, Role.COMPILE, Role.HELPER)
    told += [f"{counts[role]} {role.value}" for role in others if counts[role]]
    details = [Item(1, " + ".join(told))]
    found = len(rows)
    if found > shown:
        details.append(Item(0, f"{found - shown} more", Ink.STRONG))
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
