"""Paint the tables of the live screen: ranks, workers and cards, and everything known of each card."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.units import count_of, format_seconds
from tpmon.model.waits import describe_wait
from tpmon.ui.monitor.alerts import age_of, is_old
from tpmon.ui.monitor.state import Pane, SortBy, ViewState
from tpmon.view.cards import (
    NEVER,
    card_ink,
    describe_card,
    is_foreign,
    list_card_columns,
    order_cards,
    summarize_cards,
)
from tpmon.view.layout import (
    Ink,
    Item,
    Line,
    Size,
    Table,
    cut,
    explain,
    paint_pairs,
    paint_rule,
    shared_reason,
    window_of,
)
from tpmon.view.ranks import (
    RankView,
    has_steps,
    list_rank_columns,
    list_worker_columns,
    name_ranks,
    order_ranks,
    write_role,
    write_state,
)

_USUAL_SOURCES = ("environment", "single process")


def paint_ranks(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule, the heads, and the rows around the cursor."""
    frame = view.frame
    if not is_known(frame):
        return []
    ranks = order_ranks(frame)
    table = Table(list_rank_columns(frame, ranks, size.width), size.width)
    cursor = view.cursor_pid if focused else Missing("elsewhere")
    pids = [rank.row.pid for rank in ranks]
    first, last = window_of(pids, cursor, size.height - 2)
    details = [Item(0, "no rank left", Ink.BAD)] if _none_left(frame, ranks) else []
    hidden = len(ranks) - (last - first)
    if hidden > 0:
        details.append(Item(0, f"{hidden} more", Ink.WARN))
    step = ranks[0].row.step if ranks else Missing("")
    if isinstance(step, Missing) and not has_steps(ranks) and ranks:
        details.append(Item(5, f"step ? {step.reason}", Ink.DIM))
    unread = shared_reason([rank.row.where for rank in ranks])
    if unread:
        details.append(Item(3, f"where ? {unread}", Ink.DIM))
    if frame.target.rank_source not in _USUAL_SOURCES:
        details.append(Item(4, f"known from {frame.target.rank_source}", Ink.DIM))
    named = name_ranks(frame)
    title = f"{Pane.RANKS.value} ranks: {named}" if named else f"{Pane.RANKS.value} ranks"
    lines = [paint_rule(title, details, size.width, focused=focused)]
    if not ranks:
        nothing = "no rank process is left" if _none_left(frame, ranks) else "no rank process seen yet"
        return [*lines, ((cut(f" {nothing}", size.width), Ink.DIM),)][: size.height]
    lines.append(table.paint_head())
    for rank in ranks[first:last]:
        ink = Ink.PLAIN if is_known(rank.process) else Ink.BAD
        lines.append(table.paint_row(rank, ink, cursor=is_known(cursor) and cursor == rank.row.pid))
    return lines[: size.height]


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


def count_workers(view: ViewState) -> int:
    """Count the rows that the pane can show."""
    return len(_filter_workers(view))


def select_workers(view: ViewState) -> list[ProcessSample]:
    """Return the processes of the pane, filtered and sorted, equal ones by rank and worker number."""
    rows = _filter_workers(view)
    rows.sort(key=_place)
    rows.sort(key=lambda process: _sort_value(process, view.sort), reverse=view.sort_reversed)
    return rows


def _filter_workers(view: ViewState) -> list[ProcessSample]:
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


def paint_workers(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule with sort and filter, the heads, and the rows around the cursor."""
    frame = view.frame
    if not is_known(frame):
        return []
    rows = select_workers(view)
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


def count_cards(view: ViewState) -> int:
    """Count the rows that the pane can show, 0 without readings."""
    if not is_known(view.frame) or not is_known(view.frame.gpus):
        return 0
    return len(view.frame.gpus)


def paint_gpus(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: why there are no cards, a summary, or the table."""
    frame = view.frame
    if not is_known(frame):
        return []
    title = f"{Pane.GPUS.value} GPUs"
    if not is_known(frame.gpus):
        reason = Item(0, f"? {frame.gpus.reason}", Ink.DIM)
        return [paint_rule(title, [reason], size.width, focused=focused)]
    cards = order_cards(frame.gpus)
    if not cards:
        return [paint_rule(title, [Item(0, "no card on this machine", Ink.DIM)], size.width, focused=focused)]
    rows = max(0, size.height - 2)
    shown, hidden = cards[:rows], cards[rows:]
    names = dict.fromkeys(card.name for card in cards)
    named = next(iter(names)) if len(names) == 1 else f"{len(names)} kinds"
    details = [Item(3, f"{len(cards)} x {named}" if len(cards) > 1 else named)]
    late = [card for card in cards if is_old(view, age_of(view, card.age_s))]
    if late:
        oldest = max(age_of(view, card.age_s) for card in late)
        details.append(Item(1, f"! {len(late)} late, {format_seconds(oldest)} old", Ink.WARN))
    if hidden:
        worst = card_ink(hidden[0])
        ink = worst if worst is not Ink.PLAIN else Ink.DIM
        if shown:
            details.append(Item(0, f"{len(hidden)} more: {summarize_cards(hidden)}", ink))
        else:
            said = f"{count_of(len(hidden), 'card')}: {summarize_cards(hidden)}"
            details = [Item(0, said, ink), *details]
    lines = [paint_rule(title, details, size.width, focused=focused)]
    if not shown:
        return lines
    recent = view.pulses[-12:]
    histories = {
        card.index: [pulse.gpu_pct[place] if place < len(pulse.gpu_pct) else NEVER for pulse in recent]
        for place, card in enumerate(frame.gpus)
    }
    table = Table(list_card_columns(size.width, histories), size.width)
    lines.append(table.paint_head())
    for card in shown:
        foreign = is_foreign(card) and card_ink(card) is Ink.PLAIN
        lines.append(table.paint_row(card, Ink.DIM if foreign else Ink.PLAIN))
    return lines[: size.height]


def paint_gpus_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint everything known of every card, below each other."""
    frame = view.frame
    if not is_known(frame):
        return []
    if not is_known(frame.gpus):
        return paint_pairs([("GPUs", f"? {frame.gpus.reason}")], width)
    driver = frame.driver
    if is_known(driver):
        told = f"{explain(driver.driver_version, str)}, CUDA {explain(driver.cuda_version, str)}"
    else:
        told = f"? {driver.reason}"
    lines = paint_pairs([("driver", told)], width)
    for card in order_cards(frame.gpus):
        ink = card_ink(card)
        heading = cut(f" GPU {card.index}  {card.name}  {card.uuid}", width)
        lines.append(((heading, ink if ink is not Ink.PLAIN else Ink.STRONG),))
        lines += paint_pairs(describe_card(card, age_of(view, card.age_s)), width)
    return lines
