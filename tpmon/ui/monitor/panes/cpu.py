"""Paint the machine: a line for each gauge that says something, with its history, and one for what is normal.

In full there is a line for each gauge. Gauges do not depend on widths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from tpmon.model.figures import Figure
from tpmon.model.frame import Frame, Pulse
from tpmon.model.frozen import dataclass
from tpmon.model.host import SUMMED_ANON, LoaderSample
from tpmon.model.known import Known, Missing, NotApplicable, Why, is_known, known_or
from tpmon.model.text.job_words import WAITING_FROM
from tpmon.model.units import (
    count_cells,
    count_of,
    format_bytes,
    format_number,
    format_pct,
    format_rate,
    format_seconds,
)
from tpmon.ui.monitor.alerts import (
    STEAL_PCT,
    age_of,
    is_crowded,
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
    cut,
    draw_history,
    fit_line,
    line_width,
    pad,
    paint_pairs,
    paint_rule,
    show,
)
from tpmon.view.ranks import write_role


@dataclass(frozen=True, slots=True)
class Gauge:
    """Hold a label, a figure of a Pulse drawn up to ``top`` ("" for none), and texts, the most telling first.

    ``brief`` stands among what is normal.
    """

    label: str
    figure: str
    top: float
    pieces: tuple[str, ...]
    brief: str
    ink: Ink = Ink.PLAIN

    @property
    def is_marked(self) -> bool:
        """Tell whether it needs a line of its own."""
        return self.ink in (Ink.WARN, Ink.BAD)


class Brief(NamedTuple):
    """Hold what is normal: its name, and with its value."""

    name: str
    whole: str


_SIDES = MappingProxyType(
    {
        "used_cores": Figure.CPUS_USED.bad,
        "runnable": Figure.RUNNABLE.bad,
        "run_delay_ratio": Figure.CPU_DELAY.bad,
        "memory_bytes": Figure.MEMORY_USED.bad,
        "shm_ratio": Figure.SHM_USED.bad,
        "ready_batches": Figure.BATCHES_READY.bad,
    }
)
"""Which side of the figures of a Pulse is bad."""


def _unread(label: str, figure: str, top: float, value: object, *more: str) -> Gauge:
    reason = value.reason if isinstance(value, Missing) else ""
    return Gauge(label, figure, top, (f"? {reason}", *more), f"{label} ?", Ink.DIM)


def _alarm(gauge: Gauge, ink: Ink = Ink.WARN) -> Gauge:
    first, *others = gauge.pieces
    return replace(gauge, pieces=(f"! {first}", *others), ink=ink)


def _pct(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


_tenths = "{:.1f}".format


def _cpus(cores: Known[float]) -> str:
    if not is_known(cores):
        return "? CPUs"
    return f"{format_number(cores)} CPU{'' if cores == 1 else 's'}"


def _top(pulses: Sequence[Pulse], figure: str, least: float) -> float:
    top: float = max([least, *filter(is_known, map(attrgetter(figure), pulses))])
    return top


def _name_pool(frame: Frame) -> tuple[str, ...]:
    pool = frame.cpu.pool
    if not is_known(pool):
        none = ("none", "no process has two busy threads")
        return none if isinstance(pool, NotApplicable) else (f"? {pool.reason}",)
    owner = next((p for p in frame.processes if p.pid == pool.pid), None)
    who = write_role(owner) if owner is not None else pool.role.value
    library = pool.library if is_known(pool.library) else "library ?"
    return (f"{pool.threads} threads of {who} ({pool.pid})", library)


def _pool(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    return Gauge("pool", "", 1.0, _name_pool(frame), "pools")


def _used(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    budget = known_or(cpu.budget_cores, float(cpu.host_cores))
    if not is_known(cpu.used_cores):
        return _unread("used", "used_cores", budget, cpu.used_cores)
    bound = _cpus(cpu.budget_cores)
    share = f"{_pct(cpu.used_cores / budget)} of {bound}" if budget > 0 else f"of {bound}"
    reason = cpu.budget_reason if is_known(cpu.budget_cores) else cpu.budget_cores.reason
    pieces = (share, f"budget: {reason}", f"{cpu.used_cores:.2f} used")
    return Gauge("used", "used_cores", budget, pieces, f"CPUs {share}")


def _runnable(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    top = _top(pulses, "runnable", known_or(cpu.budget_cores, float(cpu.host_cores)))
    if not is_known(cpu.runnable):
        return _unread("runnable", "runnable", top, cpu.runnable)
    pieces = [f"{cpu.runnable:.1f} on {_cpus(cpu.budget_cores)}"]
    if is_known(cpu.run_delay_ratio) and cpu.runnable >= WAITING_FROM:
        pieces.append(f"{_pct(cpu.run_delay_ratio)} waiting")
    if is_known(cpu.oversubscription) and cpu.oversubscription >= 0.05:
        pieces.append(f"pools {cpu.oversubscription:.1f}x")
    gauge = Gauge("runnable", "runnable", top, tuple(pieces), f"{cpu.runnable:.1f} runnable")
    return _alarm(gauge) if is_oversubscribed(cpu) else gauge


def _waiting(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    if not is_known(cpu.run_delay_ratio):
        return _unread("waiting", "run_delay_ratio", 1.0, cpu.run_delay_ratio)
    if is_known(cpu.runnable) and cpu.runnable < WAITING_FROM:
        return Gauge("waiting", "", 1.0, ("-", "hardly a thread wants a CPU"), "waiting")
    pieces = (_pct(cpu.run_delay_ratio), "of thread demand waits for a CPU")
    return Gauge("waiting", "run_delay_ratio", 1.0, pieces, "waiting")


def _wanted(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    """Join what is used, wanted and waited for in one line; the history is of what is used."""
    cpu, used = frame.cpu, _used(frame, ())
    pieces = [used.pieces[0]]
    if not is_known(cpu.runnable):
        pieces.append(f"threads ? {cpu.runnable.reason}")
    elif is_known(cpu.run_delay_ratio) and cpu.runnable >= WAITING_FROM:
        waits = f", {_pct(cpu.run_delay_ratio)} of that waits"
        pieces.append(f"{cpu.runnable:.1f} threads want {_cpus(cpu.budget_cores)}{waits}")
    elif cpu.runnable < WAITING_FROM:
        pieces.append("hardly a thread wants a CPU")
    if is_known(cpu.oversubscription) and cpu.oversubscription >= 0.05:
        pieces.append(f"pools {cpu.oversubscription:.1f}x")
    if is_oversubscribed(cpu):
        pieces += _name_pool(frame)
    gauge = replace(used, label="CPUs", pieces=tuple(pieces))
    return _alarm(gauge) if is_oversubscribed(cpu) or is_crowded(cpu) else gauge


def _pressure(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    cpu = frame.cpu
    pieces = (
        f"{show(cpu.throttled_ratio, _pct)} of quota periods",
        f"steal {show(cpu.host_steal_pct, format_pct)} %",
        f"host {show(cpu.host_used_cores, _tenths)} of {_cpus(cpu.host_cores)}",
        f"load {show(cpu.host_load, _tenths)}",
        f"PSI cpu {show(cpu.psi_some_pct, format_pct)} %",
    )
    gauge = Gauge("throttled", "", 1.0, pieces, "no throttling")
    stolen = is_known(cpu.host_steal_pct) and cpu.host_steal_pct >= STEAL_PCT
    return _alarm(gauge) if is_throttled(cpu) or stolen else gauge


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
    brief = f"memory {pieces[0]}"
    ratio = memory_ratio(memory)
    if ratio is not None:
        pieces.append(_pct(ratio))
    if is_known(memory.anon_growth_bytes_s):
        per_minute = memory.anon_growth_bytes_s * 60
        whose = "" if memory.anon_source == SUMMED_ANON else " (cgroup)"
        pieces.append(f"{'+' if per_minute >= 0 else ''}{format_bytes(per_minute)}/min{whose}")
    else:
        pieces.append("growth ?")
    if is_known(memory.oom_kills) and memory.oom_kills:
        pieces.insert(1, f"{memory.oom_kills} killed by the OOM killer")
    if is_known(limit):
        pieces.append(f"limit: {memory.limit_source}")
    pieces.append(f"swap {show(memory.swap_bytes, format_bytes)}")
    top = _top(pulses, "memory_bytes", float(least))
    gauge = Gauge("memory", "memory_bytes", top, tuple(pieces), brief)
    return _alarm(gauge, Ink.BAD) if is_memory_full(memory) else gauge


def _shm(frame: Frame, _pulses: Sequence[Pulse]) -> Gauge:
    shm = frame.memory.shm
    if not is_known(shm):
        return _unread("shm", "shm_ratio", 1.0, shm)
    text = f"{format_bytes(shm.used_bytes)} of {format_bytes(shm.total_bytes)}"
    share = _pct(shm.used_bytes / shm.total_bytes) if shm.total_bytes else "empty mount"
    if is_shm_full(frame.memory):
        pieces = (text, share, "the next batch may not fit", shm.path)
        return _alarm(Gauge("shm", "shm_ratio", 1.0, pieces, "shm"))
    return Gauge("shm", "shm_ratio", 1.0, (text, share, shm.path), f"shm {share}")


def _disk(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    rates = [p.device_read_bytes_s for p in frame.processes]
    known = [rate for rate in rates if is_known(rate)]
    proof = f"{show(frame.memory.major_faults_s, format_rate)} major faults/s"
    if rates and not known:
        return _unread("disk", "", 1.0, rates[0], proof)
    top = _top(pulses, "device_read_bytes_s", float(1 << 20))
    read = f"{format_bytes(sum(known))}/s"
    return Gauge("disk", "device_read_bytes_s", top, (f"{read} from disks", proof), f"disk {read}")


def _loader(frame: Frame, pulses: Sequence[Pulse]) -> Gauge:
    if not frame.loader:
        return Gauge("loader", "", 1.0, ("no loader queue seen",), "no loader queue", Ink.DIM)
    first = frame.loader[0]
    fewest = min(frame.loader, key=lambda one: known_or(one.ready_batches, math.inf))
    if not is_known(fewest.ready_batches):
        return _unread("loader", "ready_batches", 1.0, first.ready_batches, _empty(first))
    where = f"rank {fewest.rank}" if is_known(fewest.rank) else f"pid {fewest.pid}"
    least = [] if len(frame.loader) == 1 else [f"fewest of {len(frame.loader)}: {where}"]
    ready = f"{count_of(round(fewest.ready_batches), 'batch', 'batches')} ready"
    pieces = (ready, *least, _empty(fewest))
    top = _top(pulses, "ready_batches", 1.0)
    return Gauge("loader", "ready_batches", top, pieces, pieces[0])


def _empty(loader: LoaderSample) -> str:
    return f"empty in {show(loader.empty_ratio, _pct)} of {loader.looks} readings"


_GAUGES = (_used, _runnable, _waiting, _pool, _pressure, _memory, _shm, _disk, _loader)


def list_gauges(frame: Frame, groups: Sequence[Sequence[Pulse]]) -> list[Gauge]:
    """Return the lines of the pane in full, scaled to the drawn history."""
    pulses = [pulse for group in groups for pulse in group]
    return [make(frame, pulses) for make in _GAUGES]


_NAMES = MappingProxyType({"throttled": "no throttling", "pool": "pools", "GPUs": "GPUs ?"})
"""Of gauges, where they are normal."""


def list_rows(frame: Frame, groups: Sequence[Sequence[Pulse]]) -> tuple[list[Gauge], list[Brief]]:
    """Return the gauges that have a line of their own, marked ones first of the rest, and what is normal."""
    pulses = [pulse for group in groups for pulse in group]
    rows = [_wanted(frame, pulses)]
    rest = [make(frame, pulses) for make in (_memory, _shm, _disk, _pressure, _pool)]
    if not is_known(frame.gpus):
        cards = Gauge("GPUs", "", 1.0, (f"? {frame.gpus.reason}",), f"GPUs ? {frame.gpus.reason}")
        rest.append(_alarm(cards) if frame.gpus.why is Why.UNREAD else cards)
    if frame.loader:
        rows.append(_loader(frame, pulses))
    normal = [
        Brief(_NAMES.get(gauge.label, gauge.label), gauge.brief) for gauge in rest if not gauge.is_marked
    ]
    if is_known(frame.gpus) and not frame.gpus:
        normal.append(Brief("no GPU", "no GPU"))
    return [*rows, *(gauge for gauge in rest if gauge.is_marked)], normal


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
    label_ink = gauge.ink if gauge.is_marked else Ink.PLAIN
    line: Line = ((f" {pad(gauge.label, LABEL_WIDTH)} ", label_ink),)
    if gauge.figure and not (width < NARROW_WIDTH and gauge.pieces[0].startswith("?")):
        read = attrgetter(gauge.figure)
        means = [mean_of([read(pulse) for pulse in group]) for group in groups]
        history = draw_history(means, spark_width, gauge.top, _SIDES.get(gauge.figure))
        line = (*line, *history, (" ", Ink.PLAIN))
    elif width >= NARROW_WIDTH:
        line = (*line, (" " * (spark_width + 1), Ink.PLAIN))
    room = width - line_width(line)
    text = gauge.pieces[0]
    for piece in gauge.pieces[1:]:
        if count_cells(text) + 3 + count_cells(piece) > room:
            break
        text += f"   {piece}"
    return fit_line((*line, (text, gauge.ink)), width)


def span_of(groups: Sequence[Sequence[Pulse]]) -> float:
    """Return the seconds between the oldest and the newest Pulse drawn."""
    return (groups[-1][-1].taken_ns - groups[0][0].taken_ns) / 1e9


def count_rows(view: ViewState) -> int:
    """Count the lines of the pane below its rule."""
    return 1 + len(list_rows(view.frame, ())[0]) if is_known(view.frame) else 1


def paint_cpu(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule, the lines that say something, and what is normal in one."""
    frame = view.frame
    if not is_known(frame):
        return []
    narrow = size.width < NARROW_WIDTH
    spark_width = max(0, size.width - 31) if narrow else min(60, (size.width - 20) // 4)
    groups = thin(view.pulses, spark_width)
    rows, normal = list_rows(frame, groups)
    room = max(1, size.height - 2)
    kept = sorted(rows, key=lambda gauge: not gauge.is_marked)[:room]
    shown = [gauge for gauge in rows if gauge in kept]
    details = []
    if len(groups) > 1:
        details.append(Item(3, f"last {format_seconds(span_of(groups))}", Ink.DIM))
    if marked := sum(gauge.is_marked for gauge in rows if gauge not in kept):
        details.append(Item(0, f"! {marked} more, key {Pane.CPU.value}", Ink.WARN))
    title = f"{Pane.CPU.value} machine"
    lines = [paint_rule(title, details, size.width, focused=focused)]
    lines += [paint_gauge(gauge, groups, size.width, spark_width) for gauge in shown]
    return [*lines, paint_normal(normal, size.width)][: size.height]


def paint_normal(normal: Sequence[Brief], width: int) -> Line:
    """Paint what needs no line of its own in one, as much as there is room for."""
    more = f"({Pane.CPU.value}: all figures)" if width >= NARROW_WIDTH else ""
    head = f" {pad('normal', LABEL_WIDTH)} " if width >= NARROW_WIDTH else " normal: "
    room = width - count_cells(head) - count_cells(more) - 2
    told = [one.whole for one in normal]
    for place in range(len(told) - 1, -1, -1):
        if count_cells(", ".join(told)) > room:  # names alone, the last ones first
            told[place] = normal[place].name
    text = cut(", ".join(told), max(1, room))
    blanks = " " * (width - count_cells(head) - count_cells(text) - count_cells(more) - 1)
    return fit_line(((head, Ink.PLAIN), (text, Ink.DIM), (f"{blanks}{more}", Ink.DIM)), width)


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
