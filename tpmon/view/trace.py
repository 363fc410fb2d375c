"""The columns and the words of traces and memory snapshots, as text and screen show them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, NotApplicable, is_known, known_or, map_known
from tpmon.model.results.snapshot import MemoryMoment, OutOfMemory, Pieces, SnapshotLost
from tpmon.model.results.timeline import CodePlace
from tpmon.model.results.trace import (
    CardUse,
    Change,
    CollectiveRow,
    Communication,
    CopyRow,
    DeviceGaps,
    KernelRow,
    LargeGap,
    MemoryPeak,
    OperatorRow,
    RankTable,
    StepRow,
    TraceFile,
    TraceRankRow,
    TraceVerdict,
)
from tpmon.model.results.trace_tables import (
    AllocationRow,
    FrameRow,
    ModuleRow,
    OperatorGroupRow,
    PatternRow,
    ProductRow,
    RangeRow,
)
from tpmon.model.units import clean_text, count_of, format_bytes
from tpmon.view.snapshot import name_place
from tpmon.view.table import Figures, TableFigure, Where

NA = "n/a"
CAUSES = {
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
    "other": "other",
}
"""What holds an idle device or a host, and what a verdict shares its window among."""
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
"""What a step is made of."""

_NAME_CHARS = 20
_PATH_CHARS = 1000
_COMMON = ("(anonymous namespace)::", "at::native::", "at::", "c10::", "std::")
_ENDINGS = (".gz", ".json", ".trace", ".pt")


def number(value: Applicable[float], digits: int = 1) -> str:
    """Write a number, or n/a where it is not known."""
    return f"{value:,.{digits}f}" if is_known(value) else NA


def ms_of_us(value: Applicable[float]) -> str:
    """Write microseconds as milliseconds."""
    return f"{value / 1000:,.3f}" if is_known(value) else NA


def pct(value: Applicable[float]) -> str:
    """Write a percentage."""
    return f"{value:.1f} %" if is_known(value) else NA


def size(value: Applicable[float]) -> str:
    """Write bytes."""
    return format_bytes(value) if is_known(value) else NA


def thousands(value: int) -> str:
    """Write a count."""
    return f"{value:,}"


def said(value: object) -> str:
    """Write text, or n/a where it is not known."""
    return str(value) if is_known(value) else NA


def name_cause(cause: Known[str]) -> str:
    """Name what held a device in a gap."""
    return CAUSES[cause] if is_known(cause) else NA


def say_gap(gap: LargeGap) -> str:
    """Name what a gap was in: its call, its operator and its line, as far as they are known."""
    known = [text for text in (gap.call, gap.operator, gap.source) if is_known(text) and text]
    return " ".join(known) or "-"


def say_idle(gaps: DeviceGaps) -> str:
    """Say how long a device was idle."""
    share = pct(100 * gaps.idle / (gaps.window or 1.0))
    return f"{ms_of_us(gaps.idle)} of {ms_of_us(gaps.window)} ms, {share}"


def say_communication(comms: Communication) -> str:
    """Say how long there was communication, and how much of it computation hid."""
    hidden = 100 * comms.overlap_us / comms.comm_us if comms.comm_us else 0.0
    exposed = f"{ms_of_us(comms.exposed_us)} ms exposed"
    return f"{ms_of_us(comms.comm_us)} ms, {hidden:.1f} % of it hidden by computation, {exposed}"


def say_missing(table: RankTable) -> str:
    """Say of which ranks there is no trace."""
    named = ", ".join(map(str, table.missing[:20])) + (" ..." if len(table.missing) > 20 else "")
    return f"no trace of rank {named}"


def say_pattern(pattern: PatternRow) -> str:
    """Say what costs time, and how much."""
    return f"{pattern.name}, {pct(pattern.share_pct)} of the window: {pattern.seen}"


def name_change(change: Change) -> str:
    """Name what changed between two traces, a kernel or an operator by its own name."""
    words = {"phase": KINDS, "idle": CAUSES}.get(change.part, {})
    return words.get(change.name, change.name)


def say_growth(value: Applicable[int]) -> str:
    """Write by how much memory grew, with its sign."""
    if not is_known(value):
        return NA
    return f"-{format_bytes(-value)}" if value < 0 else f"+{format_bytes(value)}"


def name_ranks(rows: Sequence[TraceRankRow]) -> dict[str, str]:
    """Name the rows of ranks by their paths: by the file where the rank does not tell them apart."""
    counts = Counter(row.rank for row in rows if is_known(row.rank))
    alike = [row.path for row in rows if not is_known(row.rank) or counts[row.rank] > 1]
    files = name_files(alike)
    names = {}
    for row in rows:
        rank = str(row.rank) if is_known(row.rank) else ""
        names[row.path] = f"{rank} {files.get(row.path, '')}".strip()
    return names


def name_files(paths: Sequence[str], most: int = _NAME_CHARS) -> dict[str, str]:
    """Name files without their endings, so short that the names still differ.

    Where one is too long, what all begin with goes first, as far as that is needed, then the ends.
    """
    names = {path: _strip(clean_text(os.path.basename(path), 1000)) for path in paths}
    longest = max(map(len, names.values()), default=0)
    if longest > most:
        letters = zip(*names.values(), strict=False)
        shared = len(list(takewhile(lambda chars: len(set(chars)) == 1, letters)))
        dropped = min(shared, longest - most + 1)
        if dropped and len(names) > 1:
            names = {path: f"…{name[dropped:]}" for path, name in names.items()}
    return {path: name if len(name) <= most else f"{name[: most - 1]}…" for path, name in names.items()}


def _strip(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def shorten_kernel(name: str) -> str:
    """Take out of the name of a kernel what most of them begin with, so that a cut one still tells which."""
    short = name.removeprefix("void ")
    for part in _COMMON:
        short = short.replace(part, "")
    return short or name


def name_verdict(verdict: TraceVerdict) -> str:
    """Name a verdict with its cause and how sure it is."""
    cause = verdict.cause
    named = "" if isinstance(cause, NotApplicable) or not is_known(cause) else f" ({cause})"
    return f"{verdict.kind.value.upper()}{named}, confidence {verdict.confidence}"


def name_rank(file: TraceFile) -> str:
    """Say which rank a trace is of."""
    rank = f"rank {file.rank}" if is_known(file.rank) else "rank unknown"
    return f"{rank} of {file.world_size}" if is_known(file.world_size) else rank


def say_file(file: TraceFile) -> str:
    """Say which file it is and what it is of."""
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


@dataclass(frozen=True, slots=True)
class WordPart:
    """Hold one part of a whole: microseconds and share, and with what overlaps counted in full."""

    name: str
    us: Known[float]
    share_pct: Known[float]
    overlapping_us: Known[float] = 0.0


def list_parts(names: Mapping[str, str], own: object, full: object | None = None) -> tuple[WordPart, ...]:
    """Return the named fields of a split with their shares of all of them."""
    us: dict[str, Known[float]] = {key: getattr(own, key) for key in names}
    whole = sum(known_or(value, 0.0) for value in us.values()) or 1.0
    return tuple(
        WordPart(name, us[key], _share(us[key], whole), getattr(full, key) if full else 0.0)
        for key, name in names.items()
    )


def list_causes(gaps: DeviceGaps) -> tuple[WordPart, ...]:
    """Return the causes of the idle time of a device with their shares of the window."""
    whole = gaps.window or 1.0
    return tuple(WordPart(CAUSES[name], us, _share(us, whole)) for name, us in gaps.causes())


def _share(us: Known[float], whole: float) -> Known[float]:
    return map_known(lambda value: 100 * value / whole, us)


def _name_file(row: TraceRankRow) -> str:
    return clean_text(os.path.basename(row.path))


def _name_module(row: ModuleRow) -> str:
    return f"{row.name} in {row.inside}" if is_known(row.inside) else row.name


def _name_frame(row: FrameRow) -> str:
    return f"{row.name}  < {row.called_by}" if is_known(row.called_by) else row.name


STEPS: Figures[StepRow] = (
    TableFigure("step", lambda row: row.name, keep=0, width=20, left=True),
    TableFigure("start ms", lambda row: row.start_ms, _THOUSANDTHS, 2, 12),
    TableFigure("host ms", lambda row: row.host_ms, _THOUSANDTHS, 3, 12),
    TableFigure("ms", lambda row: row.ms, _THOUSANDTHS, 1, 12),
)
CARDS: Figures[CardUse] = (
    TableFigure("gpu", lambda row: row.device, left=True, where=Where.TEXT),
    TableFigure("gpu", lambda row: row.device, keep=0, width=4, where=Where.SCREEN),
    TableFigure("kernels", lambda row: row.utilization_pct, pct, 1, 7, text_head="kernels %"),
    TableFigure("busy", lambda row: row.busy_pct, pct, 2, 7, text_head="busy %"),
    TableFigure("est. SM eff.", lambda row: row.sm_efficiency_pct, pct, 3, 12),
    TableFigure("occ. reported", lambda row: row.occupancy_reported_pct, pct, 5, 13),
    TableFigure("recomputed", lambda row: row.occupancy_pct, pct, 4, 10),
    TableFigure("tensor cores", lambda row: row.tensor_core_pct, pct, 6, 12),
    TableFigure("unknown", lambda row: row.tensor_core_unknown_pct, pct, 8, 7),
    TableFigure("count", lambda row: row.kernels, thousands, 9, 9, text_head="kernels"),
    TableFigure("name", lambda row: row.name, said, 7, 20, left=True, grows=True, where=Where.SCREEN),
)
GAPS: Figures[LargeGap] = (
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
OPERATORS: Figures[OperatorRow] = (
    TableFigure("calls", lambda row: row.calls, thousands, 5, 8, sorts=True),
    TableFigure("operator", lambda row: row.name, keep=0, width=16, left=True, grows=True),
)
"""What stands beside the times of an operator."""
GROUPS: Figures[OperatorGroupRow] = (
    HOST_TIMES[0],
    *DEVICE_TIMES,
    TableFigure("calls", lambda row: row.calls, thousands),
    TableFigure("operator", lambda row: f"{row.name}  {said(row.group)}", left=True),
)
"""The operators by what their calls have in common, as the text has them."""
RANGES: Figures[RangeRow] = (
    TableFigure("host ms", lambda row: row.host_total_us, ms_of_us, 1, sorts=True),
    TableFigure("host self ms", lambda row: row.host_self_us, ms_of_us, 3, sorts=True),
    TableFigure("mean ms", lambda row: row.host_mean_us, ms_of_us, 4),
    TableFigure("gpu ms", lambda row: row.device_total_us, ms_of_us, 2, sorts=True),
    TableFigure("count", lambda row: row.count, thousands, 5, sorts=True),
    TableFigure(
        "range", lambda row: row.name, width=16, left=True, grows=True, text_head="range (record_function)"
    ),
)
PRODUCTS: Figures[ProductRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, sorts=True),
    TableFigure("share", lambda row: row.share_pct, pct, 2),
    TableFigure("calls", lambda row: row.calls, thousands, 5, sorts=True),
    TableFigure("TFLOP/s", lambda row: row.tflop_s, _HUNDREDTHS, 3),
    TableFigure("of peak", lambda row: row.peak_pct, pct, 4),
    TableFigure("misaligned", lambda row: row.misaligned_pct, pct, 6),
    TableFigure("type", lambda row: row.dtype, said, 0, left=True),
    TableFigure("product", lambda row: row.kind, width=12, left=True, grows=True),
)
MODULES: Figures[ModuleRow] = (
    TableFigure("gpu fwd ms", lambda row: row.forward_total_us, ms_of_us),
    TableFigure("bwd ms", lambda row: row.backward_total_us, ms_of_us),
    TableFigure("fwd self ms", lambda row: row.forward_self_us, ms_of_us),
    TableFigure("host ms", lambda row: row.host_total_us, ms_of_us),
    TableFigure("host self ms", lambda row: row.host_self_us, ms_of_us),
    TableFigure("calls", lambda row: row.calls, thousands),
    TableFigure("module", _name_module, left=True),
)
"""The modules, as the text has them; the screen leaves out what a trace without a device has not."""
FRAMES: Figures[FrameRow] = (
    TableFigure("self ms", lambda row: row.self_us, ms_of_us, 1, sorts=True),
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 2, sorts=True),
    TableFigure("calls", lambda row: row.calls, thousands, 3, sorts=True),
    TableFigure("Python function", _name_frame, left=True, where=Where.TEXT),
    TableFigure("function", lambda row: row.name, width=30, left=True, grows=True, where=Where.SCREEN),
    TableFigure("called by", lambda row: known_or(row.called_by, "-"), keep=4, left=True, where=Where.SCREEN),
)

_KERNEL: Figures[KernelRow] = (
    TableFigure("kernel", lambda row: row.name, left=True, where=Where.TEXT),
    TableFigure(
        "kernel", lambda row: row.name, shorten_kernel, 0, 16, left=True, grows=True, where=Where.SCREEN
    ),
)
KERNELS: Figures[KernelRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, 11, sorts=True),
    TableFigure("count", lambda row: row.count, thousands, 2, 7, sorts=True),
    TableFigure("mean us", lambda row: row.mean_us, number, 3, 9, sorts=True),
    TableFigure("max us", lambda row: row.max_us, number, 7, 9, sorts=True),
    TableFigure("blocks/SM", lambda row: row.blocks_per_sm, number, 8, 9),
    TableFigure("occ.", lambda row: row.occupancy_reported_pct, _WHOLE, 9, 4),
    TableFigure("recomp.", lambda row: row.occupancy_pct, _WHOLE, 5, 7),
    TableFigure("limited by", lambda row: row.limited_by, said, 11, 14, left=True, where=Where.SCREEN),
    TableFigure("tensor", lambda row: row.tensor_cores, said, 6, 7, left=True),
    TableFigure("operator", lambda row: row.operator, said, 10, 24, left=True, where=Where.SCREEN),
    TableFigure("kernel", lambda row: row.name, left=True, where=Where.TEXT),
    TableFigure(
        "kernel", lambda row: row.name, shorten_kernel, 0, 16, left=True, grows=True, where=Where.SCREEN
    ),
)
RATES: Figures[KernelRow] = (
    TableFigure("GB/s", lambda row: row.gb_s, _WHOLE, 1, sorts=True),
    TableFigure("of peak", lambda row: row.gb_s_peak_pct, pct, 2),
    TableFigure("TFLOP/s", lambda row: row.tflop_s, _HUNDREDTHS, 3, sorts=True),
    TableFigure("of its peak", lambda row: row.tflop_s_peak_pct, pct, 4, text_head="of peak "),
    TableFigure("held by", lambda row: row.bound_by, said, 5, left=True),
    TableFigure("occ. limit", lambda row: row.limited_by, said, left=True, where=Where.TEXT),
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 6, sorts=True, where=Where.SCREEN),
    *_KERNEL,
)
COPIES: Figures[CopyRow] = (
    TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, 11),
    TableFigure("count", lambda row: row.count, thousands, 2, 7),
    TableFigure("bytes", lambda row: row.bytes, size, 3, 7),
    TableFigure("GB/s", lambda row: row.gb_s, number, 4, 8),
    TableFigure("copy", lambda row: row.name, width=16, left=True, grows=True),
)

_GROWTH: TableFigure[MemoryPeak] = TableFigure("growth", lambda row: row.growth_bytes, say_growth, 5, 8)
_UNUSED: TableFigure[MemoryPeak] = TableFigure("unused", lambda row: row.unused_pct, pct, 6, 7)
_PEAKS: Figures[MemoryPeak] = (
    TableFigure("of", lambda row: name_place(row.kind, row.device), width=8, left=True, text_head="memory"),
    TableFigure("peak allocated", lambda row: row.allocated_bytes, size, 1, 14),
    TableFigure("peak reserved", lambda row: row.reserved_bytes, size, 2, 13),
)
_IN_ALL: Figures[MemoryPeak] = (
    TableFigure("allocated in all", lambda row: row.allocations_bytes, size, 3, 16),
    TableFigure("freed in all", lambda row: row.frees_bytes, size, 4, 12),
)
_EVENTS: TableFigure[MemoryPeak] = TableFigure("events", lambda row: row.events, thousands, 7, 9)
PEAKS_IN_TEXT: Figures[MemoryPeak] = (*_PEAKS, *_IN_ALL, _GROWTH, _UNUSED)
PEAKS_ON_SCREEN: Figures[MemoryPeak] = (*_PEAKS, _UNUSED, _GROWTH, *_IN_ALL, _EVENTS)
ALLOCATIONS: Figures[AllocationRow] = (
    TableFigure("of", lambda row: name_place(row.kind, row.device), keep=1, left=True, text_head="memory of"),
    TableFigure(
        "alive at the peak", lambda row: row.at_peak_bytes, size, 2, 17, sorts=True, text_head="at peak"
    ),
    TableFigure("kept", lambda row: row.kept_bytes, size, 3, 7, sorts=True),
    TableFigure("allocated", lambda row: row.allocated_bytes, size, 4, 9, sorts=True),
    TableFigure("times", lambda row: row.allocations, thousands, 5, 9, sorts=True),
    TableFigure(
        "operator", lambda row: row.operator, width=16, left=True, grows=True, text_head="by operator"
    ),
)

_COLLECTIVE: TableFigure[CollectiveRow] = TableFigure(
    "collective", lambda row: row.name, width=16, left=True, grows=True
)
_TIME: TableFigure[CollectiveRow] = TableFigure("ms", lambda row: row.total_us, ms_of_us, 1, 11)
_MOVED: Figures[CollectiveRow] = (
    TableFigure("bytes", lambda row: row.bytes, size, 3, 7),
    TableFigure("bus GB/s", lambda row: row.bus_gb_s, number, 4, 8),
)
COLLECTIVES_IN_TEXT: Figures[CollectiveRow] = (
    _COLLECTIVE,
    TableFigure("calls", lambda row: row.count),
    _TIME,
    *_MOVED,
)
COLLECTIVES_ON_SCREEN: Figures[CollectiveRow] = (
    _TIME,
    TableFigure("calls", lambda row: row.count, thousands, 2, 7),
    *_MOVED,
    _COLLECTIVE,
)


def list_module_figures(*, on_device: bool) -> Figures[ModuleRow]:
    """Return the columns of the modules on a screen, which a trace without a device has fewer of."""
    where = "gpu " if on_device else ""
    forward: Figures[ModuleRow] = (
        TableFigure("gpu forward ms", lambda row: row.forward_total_us, ms_of_us, 1, sorts=True),
    )
    own: Figures[ModuleRow] = (
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
        TableFigure("module", _name_module, width=28, left=True, grows=True),
    )


def list_rank_figures(ranks: Sequence[TraceRankRow], digits: int = 3) -> Figures[TraceRankRow]:
    """Return the columns of the ranks, their milliseconds with so many digits."""
    names = name_ranks(ranks)
    is_named = not all(map(str.isdecimal, names.values()))
    ms = partial(number, digits=digits)
    return (
        TableFigure("rank", lambda row: names[row.path], left=is_named),
        TableFigure("step", lambda row: row.step_ms, ms, 1, sorts=True, text_head="step ms"),
        TableFigure("compute", lambda row: row.compute_ms, ms, 3),
        TableFigure("comms", lambda row: row.comm_ms, ms, 4),
        TableFigure("of it hidden", lambda row: row.overlap_ms, ms, 5),
        TableFigure("neither", lambda row: row.other_ms, ms, 7),
        TableFigure("all waits", lambda row: row.wait_ms, ms, 2, sorts=True, text_head="waits*"),
        TableFigure("all moves", lambda row: row.transfer_ms, ms, 6, text_head="moves data*"),
        TableFigure("file", _name_file, keep=8, width=12, left=True, grows=True, where=Where.SCREEN),
    )


NOTHING_HELD = "the allocator held nothing, and no history was recorded"
_FRAME = re.compile(r"^(.*):(\d+) (.*)$")


def say_lost(lost: SnapshotLost) -> str:
    """Say what could not be read; "" for nothing."""
    parts = [
        count_of(count, noun)
        for count, noun in ((lost.segments, "segment"), (lost.blocks, "block"), (lost.events, "event"))
        if count
    ]
    return f"could not be read: {', '.join(parts)}" if parts else ""


def say_pieces(pieces: Pieces) -> str:
    """Say how much is reserved, allocated and waiting."""
    return (
        f"{format_bytes(pieces.reserved_bytes)} reserved in {count_of(pieces.segments, 'segment')}, "
        f"{format_bytes(pieces.allocated_bytes)} allocated ({size(pieces.rounding_bytes)} of it by "
        f"rounding up), {format_bytes(pieces.pending_bytes)} freed and waiting for a stream"
    )


def say_free(pieces: Pieces) -> str:
    """Say how much is free, and how it is cut up."""
    kept = f"{format_bytes(pieces.private_bytes)} are free in private pools, for CUDA graphs alone"
    if not pieces.free_bytes:
        return kept if pieces.private_bytes else "nothing of what is reserved is free"
    cut_up = known_or(pieces.fragmentation_pct, 0.0)
    return (
        f"{format_bytes(pieces.free_bytes)} in {count_of(pieces.free_blocks, 'block')}, the largest "
        f"{format_bytes(pieces.largest_free_bytes)}: {cut_up:.0f} % of it is out of reach for one request; "
        f"{format_bytes(pieces.stuck_bytes)} are stuck beside blocks in use, "
        f"{format_bytes(pieces.releasable_bytes)} in empty segments that empty_cache() gives back"
        + (f"; {kept}" if pieces.private_bytes else "")
    )


def say_oom(one: OutOfMemory) -> str:
    """Say what was asked for in vain, and where."""
    when = f"at {one.at_ms:,.3f} ms " if is_known(one.at_ms) else ""
    free = (
        f", the device had {format_bytes(one.device_free_bytes)} left"
        if is_known(one.device_free_bytes)
        else ""
    )
    where = f", asked for in {one.line}" if is_known(one.line) else ""
    return f"{when}{format_bytes(one.asked_bytes)} were asked for{free}{where}"


def say_peak(peak: MemoryMoment) -> str:
    """Say how much the peak was, and when."""
    when = f"at {peak.at_ms:,.3f} ms of the history" if is_known(peak.at_ms) else f"at event {peak.at_event}"
    return f"{format_bytes(peak.requested_bytes)} requested {when}, {format_bytes(peak.end_bytes)} at the end"


def say_older(peak: MemoryMoment) -> str:
    """Say what of the peak has no stack; "" for nothing."""
    if not peak.older_bytes:
        return ""
    older = format_bytes(peak.older_bytes)
    return f"{older} more were allocated before the history begins, and freed after the peak"


def say_line(line: Known[str]) -> str:
    """Write the line that a stack is known by, or why there is none."""
    return line if is_known(line) else f"({line.reason})"


def find_frame(frame: str) -> Known[CodePlace]:
    """Return the line of code that a frame of a stack names."""
    found = _FRAME.match(frame)
    if found is None:
        return Missing(f"no file is known of {frame}")
    return CodePlace(found[3], found[1], int(found[2]))
