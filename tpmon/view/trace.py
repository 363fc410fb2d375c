"""Describe traces: the columns and the words of text and screen."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.results import trace as results
from tpmon.model.results import trace_tables
from tpmon.model.units import clean_text, count_of, format_bytes, say_ranks
from tpmon.view.layout import LEVELS, NA, Figures, TableFigure, ms_of_us, number, pct, said, size, thousands

CAUSES = {
    "queued": "already queued",
    "data": "data",
    "sync_explicit": "explicit sync",
    "sync_implicit": "implicit sync",
    "alloc": "allocator",
    "launch": "launch and calls",
    "cpu_op": "CPU operator",
    "comms": "communication",
    "sync": "sync",
    "compute": "compute",
    "compile": "torch.compile",
    "idle": "idle, cause unknown",
    "host": "computing on the host",
    "graph": "inside of CUDA graphs",
    "start-up": "start-up",
    "other": "other",
}
"""What an idle device or a host waits for; a verdict divides its window among them."""
HOST_CAUSES = {key: CAUSES[key] for key in ("data", "comms", "sync", "alloc", "compute", "other")}
"""What a host did in a trace without device work."""
KINDS = {
    "kernel": "kernels",
    "memcpy": "memcpy",
    "memset": "memset",
    "communication": "exposed communication",
    "runtime": "runtime calls",
    "data_loader": "DataLoader",
    "cpu": "CPU operators",
    "other": "other",
}
"""The parts of a step."""

_NAME_CHARS = 20
_PATH_CHARS = 1000
_COMMON = ("(anonymous namespace)::", "at::native::", "at::", "c10::", "std::")
_ENDINGS = (".gz", ".json", ".trace", ".pt")


def name_place(kind: str, device: int) -> str:
    """Name the device of a curve or a peak; the CPU has no number."""
    return f"{kind} {device}" if device >= 0 else kind


def name_cause(cause: Known[str]) -> str:
    """Name what held a device in a gap."""
    return CAUSES[cause] if is_known(cause) else NA


def say_gap(gap: results.LargeGap) -> str:
    """Name the call, the operator and the line of a gap, as far as they are known."""
    known = [text for text in (gap.call, gap.operator, gap.source) if is_known(text) and text]
    return " ".join(known) or "-"


def name_change(change: results.Change) -> str:
    """Name a change between two traces, a kernel or an operator by its own name."""
    words = {"phase": KINDS, "idle": CAUSES}.get(change.part, {})
    return words.get(change.name, change.name)


def say_growth(value: Applicable[int]) -> str:
    """Write the growth of memory, with its sign."""
    if not is_known(value):
        return NA
    return f"-{format_bytes(-value)}" if value < 0 else f"+{format_bytes(value)}"


def name_ranks(rows: Sequence[results.TraceRankRow]) -> dict[str, str]:
    """Name the rows of ranks, by path: by the file where the rank is not unique."""
    counts = Counter(row.rank for row in rows if is_known(row.rank))
    alike = [row.path for row in rows if not is_known(row.rank) or counts[row.rank] > 1]
    files = name_files(alike)
    names = {}
    for row in rows:
        rank = str(row.rank) if is_known(row.rank) else ""
        names[row.path] = f"{rank} {files.get(row.path, '')}".strip()
    return names


def name_files(paths: Sequence[str], most: int = _NAME_CHARS) -> dict[str, str]:
    """Name files without endings, short but distinct: the common beginning goes first, then the ends."""
    names = {path: clean_text(os.path.basename(path), 1000) for path in paths}
    for ending in _ENDINGS:
        names = {path: name.removesuffix(ending) for path, name in names.items()}
    longest = max(map(len, names.values()), default=0)
    if longest > most:
        letters = zip(*names.values(), strict=False)
        shared = len(list(takewhile(lambda chars: len(set(chars)) == 1, letters)))
        dropped = min(shared, longest - most + 1)
        if dropped and len(names) > 1:
            names = {path: f"…{name[dropped:]}" for path, name in names.items()}
    return {path: name if len(name) <= most else f"{name[: most - 1]}…" for path, name in names.items()}


def shorten_kernel(name: str) -> str:
    """Remove the common beginnings of kernel names, so that a cut one can still be told."""
    short = name.removeprefix("void ")
    for part in _COMMON:
        short = short.replace(part, "")
    return short or name


def name_verdict(verdict: results.TraceVerdict | results.JobVerdict) -> str:
    """Name a verdict with its cause and how sure it is."""
    named = name_kind(verdict.kind.value.upper(), verdict.cause)
    return f"{named}, confidence {verdict.confidence}"


def name_kind(kind: str, cause: Applicable[str]) -> str:
    """Name a kind with its cause, where it has one."""
    return f"{kind} ({cause})" if is_known(cause) else kind


def say_wait(wait: results.GroupWait) -> str:
    """Write who waits for whom in a group."""
    group = f"group {clean_text(wait.group, 40)}, " if wait.group else ""
    late = f"{say_ranks(wait.ranks)} for rank {wait.late}, {wait.mean_ms:.1f} ms of a step"
    return f"{group}{say_ranks(wait.members)}: {late}"


def say_rate(rate: results.BusRate) -> str:
    """Write what a collective moves and how fast: "all_reduce 1.5M a call in 86 us"."""
    size = f" {format_bytes(rate.bytes)} a call" if is_known(rate.bytes) else ""
    moved = f"{rate.name}{size} in {rate.call_us:,.0f} us, {rate.step_ms:.2f} ms of a step"
    if not is_known(rate.gb_s) or not is_known(rate.low_gb_s) or not is_known(rate.high_gb_s):
        return f"{moved}, bandwidth {NA}: {rate.gb_s.reason if isinstance(rate.gb_s, Missing) else ''}"
    spread = f"{rate.low_gb_s:.2f} to {rate.high_gb_s:.2f} in {count_of(rate.calls, 'call')}"
    return f"{moved}, {rate.gb_s:.2f} GB/s ({spread})"


def name_rank(file: results.TraceFile) -> str:
    """Name the rank of a trace."""
    rank = f"rank {file.rank}" if is_known(file.rank) else "rank unknown"
    return f"{rank} of {file.world_size}" if is_known(file.world_size) else rank


def say_file(file: results.TraceFile) -> str:
    """Write which file it is, and its run."""
    cards = dict.fromkeys(card.name for card in file.overview.gpus if is_known(card.name))
    parts = [
        clean_text(file.path, _PATH_CHARS),
        name_rank(file),
        f"{file.events:,} events",
        f"{format_bytes(file.json_bytes)} of JSON",
        ", ".join(cards),
        f"on {file.host}" if is_known(file.host) else "",
        file.backend if is_known(file.backend) else "",
        file.versions,
    ]
    return ", ".join(part for part in parts if part)


_WHOLE = partial(number, digits=0)
_HUNDREDTHS = partial(number, digits=2)
_THOUSANDTHS = partial(number, digits=3)


class Grouping(Enum):
    """Name what groups the calls of operators."""

    NAMES = "name"
    SHAPES = "shapes"
    LINES = "lines"


@dataclass(frozen=True, slots=True)
class WordPart:
    """Hold one part of a whole: microseconds and share, and the same with overlaps counted in full."""

    name: str
    us: Known[float]
    share_pct: Known[float]
    overlapping_us: Known[float] = 0.0


def list_parts(names: Mapping[str, str], own: object, full: object | None = None) -> tuple[WordPart, ...]:
    """Return the named fields of a split with their shares of the sum."""
    us: dict[str, Known[float]] = {key: getattr(own, key) for key in names}
    whole = sum(known_or(value, 0.0) for value in us.values()) or 1.0
    return tuple(
        WordPart(name, us[key], _share(us[key], whole), getattr(full, key) if full else 0.0)
        for key, name in names.items()
    )


def list_causes(gaps: results.DeviceGaps) -> tuple[WordPart, ...]:
    """Return the causes of a device's idle time with their shares of the window."""
    whole = gaps.window or 1.0
    return tuple(WordPart(CAUSES[name], us, _share(us, whole)) for name, us in gaps.causes())


def _share(us: Known[float], whole: float) -> Known[float]:
    return map_known(lambda value: 100 * value / whole, us)


STEPS: Figures[results.StepRow] = (
    TableFigure("step", lambda row: row.name, keep=0, width=20, left=True),
    TableFigure("start ms", lambda row: row.start_ms, _THOUSANDTHS, 2, 12),
    TableFigure("host ms", lambda row: row.host_ms, _THOUSANDTHS, 3, 12),
    TableFigure("ms", lambda row: row.ms, _THOUSANDTHS, 1, 12),
)
CARDS: Figures[results.CardUse] = (
    TableFigure("gpu", lambda row: row.device, keep=0, width=4),
    TableFigure("kernels", lambda row: row.utilization_pct, pct, 1, 7),
    TableFigure("busy", lambda row: row.busy_pct, pct, 2, 7),
    TableFigure("est. SM eff.", lambda row: row.sm_efficiency_pct, pct, 3, 12),
    TableFigure("occ. reported", lambda row: row.occupancy_reported_pct, pct, 5, 13),
    TableFigure("recomputed", lambda row: row.occupancy_pct, pct, 4, 10),
    TableFigure("tensor cores", lambda row: row.tensor_core_pct, pct, 6, 12),
    TableFigure("unknown", lambda row: row.tensor_core_unknown_pct, pct, 8, 7),
    TableFigure("queue empty", lambda row: row.queue_empty_pct, pct, 10, 11),
    TableFigure("launch delay us", lambda row: row.launch_delay_us, number, 11, 15),
    TableFigure("count", lambda row: row.kernels, thousands, 9, 9),
    TableFigure("name", lambda row: row.name, said, 7, 20, left=True, grows=True),
)
GAPS: Figures[results.LargeGap] = (
    TableFigure("at ms", lambda row: row.start_ms, _THOUSANDTHS, 3, 12),
    TableFigure("gap ms", lambda row: row.us, ms_of_us, 0, 11),
    TableFigure("cause", lambda row: row.cause, name_cause, 2, 16, left=True),
    TableFigure("what", lambda row: row, say_gap, 1, 14, left=True, grows=True),
)

HOST_TIMES: Figures[Any] = (
    TableFigure("host self ms", lambda row: row.host_self_us, ms_of_us, 2, 12, sorts=True),
    TableFigure("host ms", lambda row: row.host_total_us, ms_of_us, 4, 12, sorts=True),
)
DEVICE_TIMES: Figures[Any] = (
    TableFigure("gpu self ms", lambda row: row.device_self_us, ms_of_us, 1, 12, sorts=True),
    TableFigure("gpu ms", lambda row: row.device_total_us, ms_of_us, 3, 12, sorts=True),
)
OPERATORS: Figures[results.OperatorRow] = (
    TableFigure("calls", lambda row: row.calls, thousands, 5, 8, sorts=True),
    TableFigure("operator", lambda row: row.name, keep=0, width=16, left=True, grows=True),
)
"""The columns beside the times of an operator."""
RANGES: Figures[trace_tables.RangeRow] = (
    TableFigure("host ms", lambda row: row.host_total_us, ms_of_us, 1, sorts=True),
    TableFigure("host self ms", lambda row: row.host_self_us, ms_of_us, 3, sorts=True),
    TableFigure("mean ms", lambda row: row.host_mean_us, ms_of_us, 4),
    TableFigure("gpu ms", lambda row: row.device_total_us, ms_of_us, 2, sorts=True),
    TableFigure("count", lambda row: row.count, thousands, 5, sorts=True),
    TableFigure("range", lambda row: row.name, width=16, left=True, grows=True),
)
PRODUCTS: Figures[trace_tables.ProductRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, sorts=True),
    TableFigure("share", lambda row: row.share_pct, pct, 2),
    TableFigure("calls", lambda row: row.calls, thousands, 5, sorts=True),
    TableFigure("TFLOP/s", lambda row: row.tflop_s, _HUNDREDTHS, 3),
    TableFigure("of peak", lambda row: row.peak_pct, pct, 4),
    TableFigure("misaligned", lambda row: row.misaligned_pct, pct, 6),
    TableFigure("type", lambda row: row.dtype, said, 0, left=True),
    TableFigure("product", lambda row: row.kind, width=12, left=True, grows=True),
)
FRAMES: Figures[trace_tables.FrameRow] = (
    TableFigure("self ms", lambda row: row.self_us, ms_of_us, 1, sorts=True),
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 2, sorts=True),
    TableFigure("calls", lambda row: row.calls, thousands, 3, sorts=True),
    TableFigure("function", lambda row: row.name, width=30, left=True, grows=True),
    TableFigure("called by", lambda row: known_or(row.called_by, "-"), keep=4, left=True),
)

_KERNEL: Figures[results.KernelRow] = (
    TableFigure("kernel", lambda row: row.name, shorten_kernel, 0, 16, left=True, grows=True),
)
KERNELS: Figures[results.KernelRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, 11, sorts=True),
    TableFigure("count", lambda row: row.count, thousands, 2, 7, sorts=True),
    TableFigure("mean us", lambda row: row.mean_us, number, 3, 9, sorts=True),
    TableFigure("max us", lambda row: row.max_us, number, 7, 9, sorts=True),
    TableFigure("blocks/SM", lambda row: row.blocks_per_sm, number, 8, 9),
    TableFigure("occ.", lambda row: row.occupancy_reported_pct, _WHOLE, 9, 4),
    TableFigure("recomp.", lambda row: row.occupancy_pct, _WHOLE, 5, 7),
    TableFigure("limited by", lambda row: row.limited_by, said, 11, 14, left=True),
    TableFigure("tensor", lambda row: row.tensor_cores, said, 6, 7, left=True),
    TableFigure("operator", lambda row: row.operator, said, 10, 24, left=True),
    TableFigure("kernel", lambda row: row.name, shorten_kernel, 0, 16, left=True, grows=True),
)
RATES: Figures[results.KernelRow] = (
    TableFigure("GB/s", lambda row: row.gb_s, _WHOLE, 1, sorts=True),
    TableFigure("of peak", lambda row: row.gb_s_peak_pct, pct, 2),
    TableFigure("TFLOP/s", lambda row: row.tflop_s, _HUNDREDTHS, 3, sorts=True),
    TableFigure("of its peak", lambda row: row.tflop_s_peak_pct, pct, 4),
    TableFigure("held by", lambda row: row.bound_by, said, 5, left=True),
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 6, sorts=True),
    *_KERNEL,
)
COPIES: Figures[results.CopyRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, 11),
    TableFigure("count", lambda row: row.count, thousands, 2, 7),
    TableFigure("bytes", lambda row: row.bytes, size, 3, 7),
    TableFigure("GB/s", lambda row: row.gb_s, number, 4, 8),
    TableFigure("copy", lambda row: row.name, width=16, left=True, grows=True),
)

PEAKS: Figures[results.MemoryPeak] = (
    TableFigure("of", lambda row: name_place(row.kind, row.device), width=8, left=True),
    TableFigure("peak allocated", lambda row: row.allocated_bytes, size, 1, 14),
    TableFigure("peak reserved", lambda row: row.reserved_bytes, size, 2, 13),
    TableFigure("unused", lambda row: row.unused_pct, pct, 6, 7),
    TableFigure("growth", lambda row: row.growth_bytes, say_growth, 5, 8),
    TableFigure("allocated in all", lambda row: row.allocations_bytes, size, 3, 16),
    TableFigure("freed in all", lambda row: row.frees_bytes, size, 4, 12),
    TableFigure("events", lambda row: row.events, thousands, 7, 9),
)
ALLOCATIONS: Figures[trace_tables.AllocationRow] = (
    TableFigure("of", lambda row: name_place(row.kind, row.device), keep=1, left=True),
    TableFigure("alive at the peak", lambda row: row.at_peak_bytes, size, 2, 17, sorts=True),
    TableFigure("kept", lambda row: row.kept_bytes, size, 3, 7, sorts=True),
    TableFigure("allocated", lambda row: row.allocated_bytes, size, 4, 9, sorts=True),
    TableFigure("times", lambda row: row.allocations, thousands, 5, 9, sorts=True),
    TableFigure("operator", lambda row: row.operator, width=16, left=True, grows=True),
)

COLLECTIVES: Figures[results.CollectiveRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, 11),
    TableFigure("calls", lambda row: row.count, thousands, 2, 7),
    TableFigure("bytes", lambda row: row.bytes, size, 3, 7),
    TableFigure("bus GB/s", lambda row: row.bus_gb_s, number, 4, 8),
    TableFigure("collective", lambda row: row.name, width=16, left=True, grows=True),
)


def list_module_figures(*, on_device: bool) -> Figures[trace_tables.ModuleRow]:
    """Return the columns of the modules; fewer without a device."""

    def name_module(row: trace_tables.ModuleRow) -> str:
        return f"{row.name} in {row.inside}" if is_known(row.inside) else row.name

    where = "gpu " if on_device else ""
    forward: Figures[trace_tables.ModuleRow] = (
        TableFigure("gpu forward ms", lambda row: row.forward_total_us, ms_of_us, 1, sorts=True),
    )
    own: Figures[trace_tables.ModuleRow] = (
        TableFigure("gpu forward self", lambda row: row.forward_self_us, ms_of_us, 7, sorts=True),
        TableFigure("gpu backward self", lambda row: row.backward_self_us, ms_of_us, 8, sorts=True),
    )
    return (
        *(forward if on_device else ()),
        TableFigure(f"{where}backward ms", lambda row: row.backward_total_us, ms_of_us, 2, sorts=True),
        TableFigure("host ms", lambda row: row.host_total_us, ms_of_us, 3, sorts=True),
        TableFigure("host self ms", lambda row: row.host_self_us, ms_of_us, 6, sorts=True),
        *(own if on_device else ()),
        TableFigure("calls", lambda row: row.calls, thousands, 4),
        TableFigure("module", name_module, width=28, left=True, grows=True),
    )


def list_rank_figures(
    ranks: Sequence[results.TraceRankRow], digits: int = 3
) -> Figures[results.TraceRankRow]:
    """Return the columns of the ranks, milliseconds with so many digits."""
    names = name_ranks(ranks)
    is_named = not all(map(str.isdecimal, names.values()))
    ms = partial(number, digits=digits)
    return (
        TableFigure("rank", lambda row: names[row.path], left=is_named),
        TableFigure("verdict", lambda row: name_kind(row.kind.value, row.cause), keep=1, left=True),
        TableFigure("step ms", lambda row: row.step_ms, ms, 2, sorts=True),
        TableFigure("compute", lambda row: row.compute_pct, pct, 5),
        TableFigure("comms", lambda row: row.comms_pct, pct, 4),
        TableFigure("idle", lambda row: row.idle_pct, pct, 6),
        TableFigure("waits for", lambda row: known_or(row.waits_for, "-"), keep=3),
        TableFigure("all waits ms", lambda row: row.wait_ms, ms, 7, sorts=True),
    )


ROWS = 4
RESERVED = "░"
LEGEND = f"{LEVELS[-1]} allocated, {RESERVED} reserved beyond it"


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """Hold the time span of curves, in ms from the start of the first mark."""

    begin_ms: float
    end_ms: float

    def column_of(self, ms: float, columns: int) -> int:
        """Return the column of a time, the first or the last one for times outside."""
        length = self.end_ms - self.begin_ms
        at = int((ms - self.begin_ms) * columns / length) if length > 0 else 0
        return max(0, min(at, columns - 1))


def span_curves(curves: Sequence[trace_tables.MemoryCurve], steps: Sequence[results.StepRow]) -> ChartSpan:
    """Return the span of all steps and points, so that a peak outside of steps is drawn too."""
    times = [point.ms for curve in curves for point in (curve.points[0], curve.points[-1])]
    marks = [0.0, *(step.start_ms + step.host_ms for step in steps[-1:])]
    return ChartSpan(min([*times, *marks]), max([*times, *marks]))


def find_peak(curve: trace_tables.MemoryCurve) -> trace_tables.CurvePoint:
    """Return the first point where most is allocated."""
    return max(curve.points, key=lambda point: point.allocated_bytes)


def describe_curve(curve: trace_tables.MemoryCurve) -> str:
    """Write when most was allocated, what was reserved then, and what is allocated at the end."""
    peak, last = find_peak(curve), curve.points[-1]
    text = f"most is {format_bytes(peak.allocated_bytes)} allocated at {peak.ms:,.3f} ms"
    if is_known(peak.reserved_bytes):
        text += f", {format_bytes(peak.reserved_bytes)} reserved then"
    return f"{text}; {format_bytes(last.allocated_bytes)} at the end"


def top_of(curve: trace_tables.MemoryCurve) -> int:
    """Return the bytes of the highest row."""
    return max(max(point.allocated_bytes, _reserved(point)) for point in curve.points)


def draw_curve(
    curve: trace_tables.MemoryCurve, span: ChartSpan, columns: int, rows: int = ROWS
) -> tuple[str, ...]:
    """Draw a curve from its top row down; a column shows the maximum in its time, or the last value."""
    top = top_of(curve) or 1
    drawn = [_draw_column(point, top, rows) for point in _sample(curve, span, columns)]
    return tuple("".join(column[row] for column in drawn) for row in range(rows - 1, -1, -1))


def label_curve(curve: trace_tables.MemoryCurve, span: ChartSpan, columns: int) -> list[tuple[str, str]]:
    """Draw a curve with labels for its first and its last row."""
    labels = [format_bytes(top_of(curve)), *[""] * (ROWS - 2), format_bytes(0)]
    return list(zip(labels, draw_curve(curve, span, columns), strict=True))


def draw_marks(marks: Iterable[tuple[int, str]], columns: int) -> list[str]:
    """Draw texts at their columns, where there is room."""
    ruler = [" "] * columns
    free = 0
    for at, text in marks:
        if free <= at < columns:
            ruler[at : at + len(text)] = text[: columns - at]
            free = at + len(text) + 1
    return ruler


def draw_steps(steps: Sequence[results.StepRow], span: ChartSpan, columns: int) -> str:
    """Draw the numbers of steps where they begin, where there is room."""
    marks = (
        (span.column_of(step.start_ms, columns), f"|{step.name.rpartition('#')[2][:12]}") for step in steps
    )
    return "".join(draw_marks(marks, columns)).rstrip()


def _reserved(point: trace_tables.CurvePoint) -> int:
    return point.reserved_bytes if is_known(point.reserved_bytes) else 0


def _sample(
    curve: trace_tables.MemoryCurve, span: ChartSpan, columns: int
) -> list[trace_tables.CurvePoint | None]:
    highest: dict[int, trace_tables.CurvePoint] = {}
    last: dict[int, trace_tables.CurvePoint] = {}
    for point in curve.points:
        at = span.column_of(point.ms, columns)
        last[at] = point
        if at not in highest or point.allocated_bytes > highest[at].allocated_bytes:
            highest[at] = point
    found: list[trace_tables.CurvePoint | None] = []
    before = None
    for at in range(columns):
        found.append(highest.get(at, before))
        before = last.get(at, before)
    return found


def _draw_column(point: trace_tables.CurvePoint | None, top: int, rows: int) -> str:
    """Draw a column from the bottom up; zero is the lowest level, a blank is before the first reading."""
    if point is None:
        return " " * rows
    steps = len(LEVELS)
    least = 2 if point.allocated_bytes > 0 else 1
    filled = max(least, round(point.allocated_bytes / top * rows * steps))
    reserved = round(_reserved(point) / top * rows)
    cells = []
    for row in range(rows):
        level = min(filled - row * steps, steps)
        cells.append(LEVELS[level - 1] if level > 0 else RESERVED if row < reserved else " ")
    return "".join(cells)
