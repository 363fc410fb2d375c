"""Describe the processes of a job: the tables of ranks and of workers, their order, what stands out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, name_several
from tpmon.model.hook import LoopPhase, StepPace, list_shares
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, RankRow, Role
from tpmon.model.text.dump_words import list_numbers
from tpmon.model.text.job_words import WAITING_FROM, format_ms, format_samples, format_step_rate
from tpmon.model.units import format_bytes, format_pct, format_rate, format_seconds
from tpmon.model.waits import describe_wait
from tpmon.view.cards import card_ink
from tpmon.view.layout import RULE, Cell, Column, Ink, Row, fit_column, show, show_pair

UNCHANGED_S = 10.0
"""A main thread that waits in one place this long waits for more than a batch."""
STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "blocked",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}
"""Kernel state letters in words (proc(5)); D is an uninterruptible wait, mostly for a disk or a driver."""
LATE_RATIO = 1.3
"""A rank stands out from this ratio of its data and forward to the median."""
LOW_CPU_RATIO = 0.5
"""A rank below half of the median's CPU stands out whatever the job does."""


@dataclass(frozen=True, slots=True)
class RankView:
    """Join the row, the process, the card and the pace of one rank."""

    row: RankRow
    process: Applicable[ProcessSample]
    card: Applicable[GpuSample]
    pace: Known[StepPace]


def name_state(process: ProcessSample) -> str:
    """Write the word of a kernel state: "blocked", "frozen"."""
    return "frozen" if is_known(process.frozen) else STATES.get(process.state, "")


def write_state(process: ProcessSample) -> str:
    """Write a kernel state letter and its word: "D blocked", "D frozen"."""
    return f"{process.state} {name_state(process)}".rstrip()


def state_ink(process: ProcessSample) -> Ink:
    """Return the ink of a process state: ended, stopped, blocked and frozen processes stand out."""
    if process.state in ("Z", "X"):
        return Ink.BAD
    return Ink.WARN if process.state in ("T", "t", "D") or is_known(process.frozen) else Ink.PLAIN


def join_ranks(frame: Frame) -> list[RankView]:
    """Join each rank row with its process, its card and its hook's pace."""
    processes = {process.pid: process for process in frame.processes}
    cards = {card.index: card for card in frame.gpus} if is_known(frame.gpus) else {}
    paces = {hook.pid: hook.pace for hook in known_or(frame.hook, ())}
    gone: Applicable[ProcessSample] = Missing("process gone")
    joined = []
    for row in frame.ranks:
        card: Applicable[GpuSample] = Missing("no card known")
        if is_known(row.gpu) and row.gpu in cards:
            card = cards[row.gpu]
        pace = paces.get(row.pid, Missing("this rank has no hook"))
        joined.append(RankView(row, processes.get(row.pid, gone), card, pace))
    return joined


def order_ranks(frame: Frame) -> list[RankView]:
    """Return the ranks, worst first: stopped, longest unchanged wait, card in trouble, low CPU; then by rank.

    Waits are compared in steps of four times the last and CPU only against half of the median, so that
    rows of healthy ranks keep their places.
    """
    joined = join_ranks(frame)
    middle = _middle_cpu(joined)

    def key(rank: RankView) -> tuple[int, ...]:
        number = rank.row.rank if is_known(rank.row.rank) else 1 << 30
        return (*_trouble(rank, middle), number, rank.row.pid)

    return sorted(joined, key=key)


def _middle_cpu(ranks: Sequence[RankView]) -> float:
    return median(map(_cpu, ranks)) if ranks else 0.0


def _trouble(rank: RankView, middle_cpu: float) -> tuple[int, int, int, int]:
    """Return what puts a rank before others, the worst first; ``_NORMAL`` for none."""
    low = 0 if _cpu(rank) < LOW_CPU_RATIO * middle_cpu else 1
    ink = card_ink(rank.card) if is_known(rank.card) else Ink.PLAIN
    held = {Ink.BAD: 0, Ink.WARN: 1}.get(ink, 2)
    return (_state_class(rank), -_wait_class(rank), held, low)


_NORMAL = (2, 0, 2, 1)


def list_normal(ranks: Sequence[RankView]) -> list[RankView]:
    """Return the ranks of which nothing stands out, also not how long their own part of a step takes."""
    middle, own_ms = _middle_cpu(ranks), _usual_own_ms(ranks)
    return [
        rank
        for rank in ranks
        if _trouble(rank, middle) == _NORMAL and known_or(rank.row.step_own_ms, 0.0) < LATE_RATIO * own_ms
    ]


def _usual_own_ms(ranks: Sequence[RankView]) -> float:
    known = [rank.row.step_own_ms for rank in ranks if is_known(rank.row.step_own_ms)]
    return median(known) if len(known) > 1 else math.inf


def say_range(values: Sequence[float], unit: str) -> str:
    """Write the least and the greatest value: "97 to 100 %"; "" without any."""
    if not values:
        return ""
    low, high = format_pct(min(values)), format_pct(max(values))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _cpu(rank: RankView) -> float:
    return known_or(rank.process.cpu_pct, 0.0) if is_known(rank.process) else 0.0


def _state_class(rank: RankView) -> int:
    if not is_known(rank.process):
        return 0
    if is_known(rank.process.frozen):
        return 1
    return {"Z": 0, "X": 0, "T": 1, "t": 1}.get(rank.process.state, 2)


def _wait_class(rank: RankView) -> int:
    if not is_known(rank.process) or rank.process.state == "R":
        return 0
    waited = known_or(rank.row.where_unchanged_s, 0.0)
    return 0 if waited < UNCHANGED_S else 1 + int(math.log(waited / UNCHANGED_S, 4))


def _of(part: Applicable[Any], name: str) -> Any:
    """Read a field of a part, or return why the part itself is missing."""
    return getattr(part, name) if is_known(part) else part


def waiting_pct(process: ProcessSample) -> Applicable[float]:
    """Return the percentage of a process's thread demand that waits, unless there is hardly any demand."""
    if not is_known(process.waiting):
        return process.waiting
    if not is_known(process.runnable):
        return process.runnable
    if process.runnable < WAITING_FROM:
        return NOT_APPLICABLE
    return 100 * process.waiting / process.runnable


def write_waiting(process: Applicable[ProcessSample]) -> Cell:
    """Write the waiting share, marked where much demand waits."""
    if not is_known(process):
        return show(process, str)
    pct = waiting_pct(process)
    text = show(pct, _whole)
    much = is_known(pct) and pct >= 35 and is_known(process.runnable) and process.runnable >= 1.5
    return _mark(text, much)


_whole = "{:.0f}".format


def _mark(text: str, is_odd: bool) -> Cell:
    return (text + "!", Ink.WARN) if is_odd else text


def _state_column(find: Callable[[Row], Applicable[ProcessSample]], keep: int, *, short: bool) -> Column[Row]:
    """Make the column of the state of a process: only its letter where ``short``, which is dropped later."""

    def read(row: Row) -> Cell:
        process = find(row)
        if not is_known(process):
            return "X" if short else "gone", Ink.BAD
        return process.state if short else write_state(process), state_ink(process)

    if short:
        return Column("S", 1, keep, read, right=False)
    return Column("state", 9, 7, read, right=False)


def has_steps(ranks: Sequence[RankView]) -> bool:
    """Tell whether a hook counts steps."""
    return any(not isinstance(rank.row.step, Missing) for rank in ranks)


def _own(rank: RankView, typical_ms: float) -> Cell:
    """Write data and forward of a step, marked far above the median: others wait for such a rank."""
    own = rank.row.step_own_ms
    return _mark(show(own, format_ms), is_known(own) and own >= LATE_RATIO * typical_ms)


def _gpu_column(cards: Sequence[GpuSample], ranks: Sequence[RankView], keep: int) -> Column[RankView]:
    """Make the column that names the card of each rank, or all where it is on several."""
    several = {rank.row.pid: name_several(rank.row.pid, cards) for rank in ranks}
    wide = min(15, max([3, *map(len, several.values())]))
    return Column("GPU", wide, keep, lambda r: several.get(r.row.pid) or show(r.row.gpu, str))


def list_rank_columns(frame: Frame, ranks: Sequence[RankView], width: int) -> list[Column[RankView]]:
    """Return the columns of the table of ranks."""

    def clock(rank: RankView) -> Cell:
        text = show_pair(_of(rank.card, "sm_clock_mhz"), _of(rank.card, "sm_clock_max_mhz"), _whole)
        return _mark(text, is_known(rank.card) and card_ink(rank.card) is not Ink.PLAIN)

    letters = width < 72
    steps = has_steps(ranks)
    where = 15 if letters else 26 if width < 110 else 30 if steps else 33
    own = partial(_own, typical_ms=_usual_own_ms(ranks))
    columns: list[Column[RankView]] = [
        Column("rank", 4, 0, lambda r: show(r.row.rank, str)),
        Column("PID", 7, 6, lambda r: str(r.row.pid)),
    ]
    if is_known(frame.gpus) and frame.gpus:
        columns += [
            _gpu_column(frame.gpus, ranks, 8),
            Column("SM %", 4, 3, lambda r: show(_of(r.card, "sm_pct"), format_pct)),
            Column(
                "W/limit",
                8,
                11,
                lambda r: show_pair(_of(r.card, "power_w"), _of(r.card, "power_limit_w"), _whole),
            ),
            Column("MHz/max", 10, 14, clock),
        ]
    columns += [
        _state_column(lambda r: r.process, 5, short=letters),
        Column("CPU %", 5, 2, lambda r: show(_of(r.process, "cpu_pct"), format_pct)),
        Column("thr", 4, 19, lambda r: show(_of(r.process, "threads"), str)),
        Column("run", 5, 13, lambda r: show(_of(r.process, "runnable"), lambda v: f"{v:.1f}")),
        Column("wait %", 6, 18, lambda r: write_waiting(r.process)),
        Column("RSS", 6, 20, lambda r: show(_of(r.process, "rss_bytes"), format_bytes)),
    ]
    if steps:
        columns += [
            Column("step", 7, 9, lambda r: show(r.row.step, str)),
            Column("step age", 8, 10, lambda r: show(r.row.step_age_s, format_seconds)),
            Column("steps/s", 7, 12, lambda r: show(_of(r.pace, "rate_hz"), format_step_rate)),
            Column("p50", 7, 9, lambda r: show(r.row.step_ms, format_ms)),
            Column("p95", 7, 15, lambda r: show(_of(r.pace, "p95_ms"), format_ms)),
            Column("p99", 7, 16, lambda r: show(_of(r.pace, "p99_ms"), format_ms)),
            Column("own", 8, 9, own),
            Column("samples/s", 9, 17, lambda r: show(_of(r.pace, "samples_hz"), format_samples)),
        ]
    if any(is_known(rank.row.where_unchanged_s) for rank in ranks):
        columns.append(
            Column(
                "for",
                7,
                4,
                lambda r: _mark(show(r.row.where_unchanged_s, format_seconds), _wait_class(r) > 0),
            )
        )
    columns += [Column("where", where, 1, lambda r: show(r.row.where, str), right=False, grows=True)]
    return columns


BAR_CELLS = 24
_SHORT_BAR = 12


def list_short_columns(frame: Frame, ranks: Sequence[RankView], width: int) -> list[Column[RankView]]:
    """Return the columns that tell what each rank does and how fast it is; the table in full has all."""

    def unchanged(rank: RankView) -> Cell:
        return _mark(show(rank.row.where_unchanged_s, format_seconds), _wait_class(rank) > 0)

    odd = any(not is_known(one.process) or state_ink(one.process) is not Ink.PLAIN for one in ranks)
    columns: list[Column[RankView]] = [
        Column("rank", 4, 0, lambda r: show(r.row.rank, str)),
        Column("PID", 7, 5, lambda r: str(r.row.pid)),
    ]
    if is_known(frame.gpus) and frame.gpus:
        columns.append(_gpu_column(frame.gpus, ranks, 6))
    columns += [
        fit_column(
            "now in", 1, lambda r: show(r.row.where, str), ranks, right=False, most=20 if width < 72 else 44
        ),
        Column("for", 6, 4, unchanged),
        *([_state_column(lambda r: r.process, 3, short=width < 100)] if odd else []),
        Column("CPU %", 5, 2, lambda r: show(_of(r.process, "cpu_pct"), format_pct)),
    ]
    logged = list_logged(frame)
    hooked = has_steps(ranks)
    if hooked or any(rank.row.pid in logged for rank in ranks):

        def rate(rank: RankView) -> str:
            pace = rank.pace
            return format_step_rate(pace.rate_hz) if is_known(pace) else logged.get(rank.row.pid, "?")

        columns.append(Column("steps/s", 7, 3, rate))
    if hooked:
        cells = BAR_CELLS if width >= 100 else _SHORT_BAR

        def split(rank: RankView) -> str:
            return split_bar(rank.pace, cells) if is_known(rank.pace) else ""

        columns.append(Column("own", 8, 8, partial(_own, typical_ms=_usual_own_ms(ranks))))
        columns.append(Column("step", cells, 9, split, right=False))
    return columns


def list_logged(frame: Frame) -> dict[int, str]:
    """Write the pace that the log of each process tells, where it has one of its own."""
    paces = {log.pid: log.pace for log in frame.output if is_known(log.pace)}
    return {pid: format_step_rate(pace.rate_hz) for pid, pace in paces.items() if not pace.is_old}


FILLS = {
    LoopPhase.DATA: "█",
    LoopPhase.FORWARD: "▓",
    LoopPhase.BACKWARD: "▒",
    LoopPhase.OPTIMIZER: "░",
    LoopPhase.OTHER: RULE,
}
"""The sign of each phase of a step in a bar and in the texts beside it."""
LEAST_BAR = 8


def split_bar(pace: StepPace, width: int) -> str:
    """Draw the shares of a step as one bar of exactly ``width`` cells; "" where they are unknown."""
    if width < LEAST_BAR:
        return ""
    bar, total, drawn = "", 0.0, 0
    for phase, share in list_shares(pace):
        if not is_known(share):
            return ""
        total += share
        end = min(width, round(width * total / 100))
        bar += FILLS[phase] * (end - drawn)
        drawn = max(drawn, end)
    return bar.ljust(width, FILLS[LoopPhase.OTHER])


def name_ranks(frame: Frame) -> str:
    """Write which ranks are here: "8-15 of 64, 56 not on this host"; "" without numbers or for one."""
    rows: Sequence[RankRow] = frame.ranks
    numbers = [row.rank for row in rows if is_known(row.rank)]
    if not rows:
        return "none seen"
    if len(numbers) < len(rows):
        unread = any(isinstance(row.rank, Missing) for row in rows)
        return f"{len(rows)}, numbers not known" if unread else ""
    world = frame.target.world_size
    if not is_known(world):
        return list_numbers(numbers)
    if world == len(rows) == 1:
        return ""
    away = world - len(set(numbers))
    elsewhere = f", {away} not on this host" if away > 0 else ""
    return f"{list_numbers(numbers)} of {world}{elsewhere}"


def write_role(process: ProcessSample, *, short: bool = False) -> str:
    """Write the role of a process: "rank 0 w1", "launcher", "wandb-core (helper)"."""
    if process.role is Role.RANK:
        return f"rank {process.rank}" if is_known(process.rank) else Role.RANK.value
    if process.role is Role.WORKER:
        number = f"w{process.worker}" if is_known(process.worker) else "worker"
        rank = show(process.rank, str)
        return f"r{rank} {number}" if short else f"rank {rank} {number}"
    if process.role is Role.HELPER and process.label and not short:
        return process.label
    return str(process.role.value)


def list_worker_columns(width: int, marks: Mapping[str, str]) -> list[Column[ProcessSample]]:
    """Return the columns of the table of workers; ``marks`` follow their heads, as for a sorted one."""
    short = width < 72
    where = 12 if short else 18 if width < 110 else 33
    columns: list[Column[ProcessSample]] = [
        Column("PID" + marks.get("PID", ""), 7, 1, lambda p: str(p.pid)),
        Column("role", 7 if short else 12, 3, lambda p: write_role(p, short=short), right=False),
        Column("CPU %" + marks.get("CPU %", ""), 6, 0, lambda p: show(p.cpu_pct, format_pct)),
        Column("thr", 4, 4, lambda p: str(p.threads)),
        Column("run", 5, 5, lambda p: show(p.runnable, lambda v: f"{v:.1f}")),
        Column("wait %", 6, 9, write_waiting),
        Column("RSS" + marks.get("RSS", ""), 6, 6, lambda p: format_bytes(p.rss_bytes)),
        _state_column(lambda p: p, 7, short=width < 100),
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
    waits: Column[ProcessSample] = Column(
        "waits for", where, 2, lambda p: show(p.waits_for, describe_wait), right=False, grows=True
    )
    return [*columns, waits]
