"""Paint CPU and memory: a line for each gauge, with its history. Gauges do not depend on widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from tpmon.model.frame import Frame, Pulse
from tpmon.model.frozen import dataclass
from tpmon.model.host import LoaderSample
from tpmon.model.known import Known, Missing, NotApplicable, is_known, known_or
from tpmon.model.text.job_words import WAITING_FROM
from tpmon.model.units import count_cells, format_bytes, format_pct, format_rate, format_seconds
from tpmon.ui.monitor.alerts import (
    STEAL_PCT,
    age_of,
    is_memory_full,
    is_old,
    is_oversubscribed,
    is_shm_full,
    is_throttled,
    memory_ratio,
)
from tpmon.ui.monitor.state import Pane, ViewState
from tpmon.view.job import describe_job
from tpmon.view.layout import (
    LABEL_WIDTH,
    Ink,
    Item,
    Line,
    Size,
    fit_line,
    pad,
    paint_pairs,
    paint_rule,
    show,
    spark,
)
from tpmon.view.ranks import write_role


@dataclass(frozen=True, slots=True)
class Gauge:
    """Hold a label, a figure of a Pulse drawn up to ``top`` ("" for none), and texts, the most telling first.

    The least ``keep`` stays longest when the pane gets low.
    """

    keep: int
    label: str
    figure: str
    top: float
    pieces: tuple[str, ...]
    ink: Ink = Ink.PLAIN


def _unread(keep: int, label: str, figure: str, top: float, value: object, *more: str) -> Gauge:
    reason = value.reason if isinstance(value, Missing) else ""
    return Gauge(keep, label, figure, top, (f"? {reason}", *more), Ink.DIM)


def _alarm(gauge: Gauge, keep: int, ink: Ink = Ink.WARN) -> Gauge:
    first, *others = gauge.pieces
    return replace(gauge, keep=keep, pieces=(f"! {first}", *others), ink=ink)


def _pct(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


_tenths = "{:.1f}".format


def _cpus(cores: Known[float]) -> str:
    if not is_known(cores):
        return "? CPUs"
    return f"{cores:g} CPU" if cores == 1 else f"{cores:.4g} CPUs"


def _top(pulses: Sequence[Pulse], figure: str, least: float) -> float:
    top: float = max([least, *filter(is_known, map(attrgetter(figure), pulses))])
    return top


def _pool(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    pool = frame.cpu.pool
    pieces: tuple[str, ...]
    if is_known(pool):
        owner = next((p for p in frame.processes if p.pid == pool.pid), None)
        who = write_role(owner) if owner is not None else pool.role.value
        library = pool.library if is_known(pool.library) else "library ?"
        pieces = (f"{pool.threads} threads of {who} ({pool.pid})", library)
    else:
        none = ("none", "no process has two busy threads")
        pieces = none if isinstance(pool, NotApplicable) else (f"? {pool.reason}",)
    return Gauge(3 if is_oversubscribed(frame.cpu) else 10, "pool", "", 1.0, pieces)


def _used(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    budget = known_or(cpu.budget_cores, float(cpu.host_cores))
    if not is_known(cpu.used_cores):
        return _unread(0, "used", "used_cores", budget, cpu.used_cores)
    bound = _cpus(cpu.budget_cores)
    share = f"{_pct(cpu.used_cores / budget)} of {bound}" if budget > 0 else f"of {bound}"
    reason = cpu.budget_reason if is_known(cpu.budget_cores) else cpu.budget_cores.reason
    pieces = (share, f"budget: {reason}", f"{cpu.used_cores:.2f} used")
    return Gauge(0, "used", "used_cores", budget, pieces)


def _runnable(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    top = _top(pulses, "runnable", known_or(cpu.budget_cores, float(cpu.host_cores)))
    if not is_known(cpu.runnable):
        return _unread(1, "runnable", "runnable", top, cpu.runnable)
    pieces = [f"{cpu.runnable:.1f} on {_cpus(cpu.budget_cores)}"]
    if is_known(cpu.run_delay_ratio) and cpu.runnable >= WAITING_FROM:
        pieces.append(f"{_pct(cpu.run_delay_ratio)} waiting")
    if is_known(cpu.oversubscription) and cpu.oversubscription >= 0.05:
        pieces.append(f"pools {cpu.oversubscription:.1f}x")
    gauge = Gauge(1, "runnable", "runnable", top, tuple(pieces))
    return _alarm(gauge, 1) if is_oversubscribed(cpu) else gauge


def _waiting(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    if not is_known(cpu.run_delay_ratio):
        return _unread(6, "waiting", "run_delay_ratio", 1.0, cpu.run_delay_ratio)
    if is_known(cpu.runnable) and cpu.runnable < WAITING_FROM:
        return Gauge(6, "waiting", "", 1.0, ("-", "hardly a thread wants a CPU"))
    pieces = (_pct(cpu.run_delay_ratio), "of thread demand waits for a CPU")
    return Gauge(6, "waiting", "run_delay_ratio", 1.0, pieces)


def _pressure(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    pieces = (
        f"{show(cpu.throttled_ratio, _pct)} of quota periods",
        f"steal {show(cpu.host_steal_pct, format_pct)} %",
        f"host {show(cpu.host_used_cores, _tenths)} of {_cpus(cpu.host_cores)}",
        f"load {show(cpu.host_load, _tenths)}",
        f"PSI cpu {show(cpu.psi_some_pct, format_pct)} %",
    )
    gauge = Gauge(7, "throttled", "", 1.0, pieces)
    stolen = is_known(cpu.host_steal_pct) and cpu.host_steal_pct >= STEAL_PCT
    return _alarm(gauge, 2) if is_throttled(cpu) or stolen else gauge


def _memory(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    memory = frame.memory
    known = is_known(memory.used_bytes)
    now = show(memory.used_bytes, format_bytes) if known else f"RSS {show(memory.rss_bytes, format_bytes)}"
    limit = memory.limit_bytes
    if is_known(limit):
        pieces, least = [f"{now} of {format_bytes(limit)}"], limit
    else:
        least = known_or(memory.host_total_bytes, 0)
        host = f"no limit, host {show(memory.host_total_bytes, format_bytes)}"
        pieces = [now, host] if isinstance(limit, NotApplicable) else [f"{now} of ?"]
    ratio = memory_ratio(memory)
    if ratio is not None:
        pieces.append(_pct(ratio))
    if is_known(memory.anon_growth_bytes_s):
        per_minute = memory.anon_growth_bytes_s * 60
        pieces.append(f"{'+' if per_minute >= 0 else ''}{format_bytes(per_minute)}/min")
    else:
        pieces.append("growth ?")
    if is_known(memory.oom_kills) and memory.oom_kills:
        pieces.insert(1, f"{memory.oom_kills} killed by the OOM killer")
    if is_known(limit):
        pieces.append(f"limit: {memory.limit_source}")
    pieces.append(f"swap {show(memory.swap_bytes, format_bytes)}")
    top = _top(pulses, "memory_bytes", float(least))
    gauge = Gauge(4, "memory", "memory_bytes", top, tuple(pieces))
    return _alarm(gauge, 0, Ink.BAD) if is_memory_full(memory) else gauge


def _shm(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    shm = frame.memory.shm
    if not is_known(shm):
        return _unread(8, "shm", "shm_ratio", 1.0, shm)
    text = f"{format_bytes(shm.used_bytes)} of {format_bytes(shm.total_bytes)}"
    share = _pct(shm.used_bytes / shm.total_bytes) if shm.total_bytes else "empty mount"
    if is_shm_full(frame.memory):
        pieces = (text, share, "the next batch may not fit", shm.path)
        return _alarm(Gauge(2, "shm", "shm_ratio", 1.0, pieces), 2)
    return Gauge(8, "shm", "shm_ratio", 1.0, (text, share, shm.path))


def _disk(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    rates = [p.device_read_bytes_s for p in frame.processes]
    known = [rate for rate in rates if is_known(rate)]
    proof = f"{show(frame.memory.major_faults_s, format_rate)} major faults/s"
    if rates and not known:
        return _unread(9, "disk", "", 1.0, rates[0], proof)
    top = _top(pulses, "device_read_bytes_s", float(1 << 20))
    return Gauge(9, "disk", "device_read_bytes_s", top, (f"{format_bytes(sum(known))}/s from disks", proof))


def _loader(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    if not frame.loader:
        return Gauge(5, "loader", "", 1.0, ("no loader queue seen",), Ink.DIM)
    first = frame.loader[0]
    fewest = min(frame.loader, key=lambda one: known_or(one.ready_batches, math.inf))
    if not is_known(fewest.ready_batches):
        return _unread(5, "loader", "ready_batches", 1.0, first.ready_batches, _empty(first))
    where = f"rank {fewest.rank}" if is_known(fewest.rank) else f"pid {fewest.pid}"
    least = [] if len(frame.loader) == 1 else [f"fewest of {len(frame.loader)}: {where}"]
    pieces = (f"{fewest.ready_batches:.0f} batches ready", *least, _empty(fewest))
    return Gauge(5, "loader", "ready_batches", _top(pulses, "ready_batches", 1.0), pieces)


def _empty(loader: LoaderSample) -> str:
    return f"empty in {show(loader.empty_ratio, _pct)} of {loader.looks} readings"


_GAUGES = (_used, _runnable, _waiting, _pool, _pressure, _memory, _shm, _disk, _loader)


def list_gauges(frame: Frame, groups: Sequence[Sequence[Pulse]]) -> list[Gauge]:
    """Return the lines of the pane, scaled to the drawn history."""
    pulses = [pulse for group in groups for pulse in group]
    return [make(frame, pulses) for make in _GAUGES]


NARROW_WIDTH = 60
SPAN_S = 60
"""A history spans at least this long, however narrow it is."""


def thin(pulses: Sequence[Pulse], cells: int) -> list[Sequence[Pulse]]:
    """Group the newest Pulses so that ``cells`` groups span a minute or more.

    Groups begin at fixed times, so that a drawn column keeps its value until it leaves.
    """
    if cells <= 0:
        return []
    step_ns = -(-SPAN_S // cells) * 1_000_000_000
    groups: list[list[Pulse]] = []
    last = -1
    for pulse in pulses[-(cells + 1) * (step_ns // 500_000_000) :]:
        slot = pulse.taken_ns // step_ns
        if slot != last:
            groups.append([])
            last = slot
        groups[-1].append(pulse)
    return list(groups[-cells:])


def mean_of(values: Sequence[Known[float]]) -> Known[float]:
    """Return the mean of the known values, else the first reason."""
    known = [value for value in values if is_known(value)]
    return sum(known) / len(known) if known else values[0]


def paint_gauge(gauge: Gauge, groups: Sequence[Sequence[Pulse]], width: int, spark_width: int) -> Line:
    """Paint one line, without the last texts that do not fit."""
    head = f" {pad(gauge.label, LABEL_WIDTH)} "
    if gauge.figure and not (width < NARROW_WIDTH and gauge.pieces[0].startswith("?")):
        read = attrgetter(gauge.figure)
        means = [mean_of([read(pulse) for pulse in group]) for group in groups]
        head += f"{spark(means, spark_width, gauge.top)} "
    elif width >= NARROW_WIDTH:
        head += " " * (spark_width + 1)
    room = width - count_cells(head)
    text = gauge.pieces[0]
    for piece in gauge.pieces[1:]:
        if count_cells(text) + 3 + count_cells(piece) > room:
            break
        text += f"   {piece}"
    return fit_line(((head, gauge.ink), (text, gauge.ink)), width)


def span_of(groups: Sequence[Sequence[Pulse]]) -> float:
    """Return the seconds between the oldest and the newest Pulse drawn."""
    return (groups[-1][-1].taken_ns - groups[0][0].taken_ns) / 1e9


def paint_cpu(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule and as many of the most telling lines as fit."""
    frame = view.frame
    if not is_known(frame):
        return []
    narrow = size.width < NARROW_WIDTH
    spark_width = max(0, size.width - 31) if narrow else min(60, (size.width - 20) // 4)
    groups = thin(view.pulses, spark_width)
    gauges = list_gauges(frame, groups)
    kept = sorted(gauges, key=lambda gauge: gauge.keep)[: max(0, size.height - 1)]
    details = [Item(3, f"last {format_seconds(span_of(groups))}", Ink.DIM)] if len(groups) > 1 else []
    marked = sum(gauge.ink in (Ink.WARN, Ink.BAD) for gauge in gauges if gauge not in kept)
    if marked:
        details.append(Item(0, f"! {marked} more, key {Pane.CPU.value}", Ink.WARN))
    title = f"{Pane.CPU.value} CPU and memory"
    lines = [paint_rule(title, details, size.width, focused=focused)]
    lines += [paint_gauge(g, groups, size.width, spark_width) for g in gauges if g in kept]
    return lines[: size.height]


def paint_cpu_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint every figure of the job as a whole, with reasons for what is missing."""
    frame = view.frame
    if not is_known(frame):
        return []
    spark_width = min(120, max(0, width // 3))
    groups = thin(view.pulses, spark_width)
    lines = [paint_gauge(gauge, groups, width, spark_width) for gauge in list_gauges(frame, groups)]

    def say_age(age_s: float, group: str) -> str:
        old = is_old(view, age_of(view, age_s), group)
        return f"{'! ' if old else ''}{format_seconds(age_of(view, age_s))}"

    for group in describe_job(frame, say_age):
        lines.append(((f" {group.heading}", Ink.STRONG),))
        lines += paint_pairs([fact.pair for fact in group.facts], width)
    return lines
