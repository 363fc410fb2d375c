"""The columns of the tables of a trace, as the text and the screen show them. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known, known_or, map_known
from tpmon.model.results.trace import (
    CardUse,
    CollectiveRow,
    CopyRow,
    KernelRow,
    MemoryPeak,
    OperatorRow,
    RankRow,
    StepRow,
)
from tpmon.model.results.trace_gaps import DeviceGaps, LargeGap
from tpmon.model.results.trace_tables import (
    AllocationRow,
    FrameRow,
    ModuleRow,
    OperatorGroupRow,
    ProductRow,
    RangeRow,
)
from tpmon.model.units import clean_text
from tpmon.view.snapshot import name_place
from tpmon.view.table import Figure, Figures, Where
from tpmon.view.trace_words import (
    CAUSES,
    ms_of_us,
    name_cause,
    name_ranks,
    number,
    pct,
    said,
    say_gap,
    say_growth,
    shorten_kernel,
    size,
    thousands,
)

_WHOLE = partial(number, digits=0)
_HUNDREDTHS = partial(number, digits=2)
_THOUSANDTHS = partial(number, digits=3)


@dataclass(frozen=True, slots=True)
class Part:
    """Hold one part of a whole: microseconds and share, and with what overlaps counted in full."""

    name: str
    us: Known[float]
    share_pct: Known[float]
    overlapping_us: Known[float] = 0.0


def list_parts(names: Mapping[str, str], own: object, full: object | None = None) -> tuple[Part, ...]:
    """Return the named fields of a split with their shares of all of them."""
    us: dict[str, Known[float]] = {key: getattr(own, key) for key in names}
    whole = sum(known_or(value, 0.0) for value in us.values()) or 1.0
    return tuple(
        Part(name, us[key], _share(us[key], whole), getattr(full, key) if full else 0.0)
        for key, name in names.items()
    )


def list_causes(gaps: DeviceGaps) -> tuple[Part, ...]:
    """Return the causes of the idle time of a device with their shares of the window."""
    whole = gaps.window or 1.0
    return tuple(Part(CAUSES[name], us, _share(us, whole)) for name, us in gaps.causes())


def _share(us: Known[float], whole: float) -> Known[float]:
    return map_known(lambda value: 100 * value / whole, us)


def _name_file(row: RankRow) -> str:
    return clean_text(os.path.basename(row.path))


def _name_module(row: ModuleRow) -> str:
    return f"{row.name} in {row.inside}" if is_known(row.inside) else row.name


def _name_frame(row: FrameRow) -> str:
    return f"{row.name}  < {row.called_by}" if is_known(row.called_by) else row.name


STEPS: Figures[StepRow] = (
    Figure("step", lambda row: row.name, keep=0, width=20, left=True),
    Figure("start ms", lambda row: row.start_ms, _THOUSANDTHS, 2, 12),
    Figure("host ms", lambda row: row.host_ms, _THOUSANDTHS, 3, 12),
    Figure("ms", lambda row: row.ms, _THOUSANDTHS, 1, 12),
)
CARDS: Figures[CardUse] = (
    Figure("gpu", lambda row: row.device, left=True, where=Where.TEXT),
    Figure("gpu", lambda row: row.device, keep=0, width=4, where=Where.SCREEN),
    Figure("kernels", lambda row: row.utilization_pct, pct, 1, 7, text_head="kernels %"),
    Figure("busy", lambda row: row.busy_pct, pct, 2, 7, text_head="busy %"),
    Figure("est. SM eff.", lambda row: row.sm_efficiency_pct, pct, 3, 12),
    Figure("occ. reported", lambda row: row.occupancy_reported_pct, pct, 5, 13),
    Figure("recomputed", lambda row: row.occupancy_pct, pct, 4, 10),
    Figure("tensor cores", lambda row: row.tensor_core_pct, pct, 6, 12),
    Figure("unknown", lambda row: row.tensor_core_unknown_pct, pct, 8, 7),
    Figure("count", lambda row: row.kernels, thousands, 9, 9, text_head="kernels"),
    Figure("name", lambda row: row.name, said, 7, 20, left=True, grows=True, where=Where.SCREEN),
)
GAPS: Figures[LargeGap] = (
    Figure("at ms", lambda row: row.start_ms, _THOUSANDTHS, 3, 12),
    Figure("gap ms", lambda row: row.us, ms_of_us, 0, 11),
    Figure("cause", lambda row: row.cause, name_cause, 2, 16, left=True),
    Figure("what", lambda row: row, say_gap, 1, 14, left=True, grows=True),
)

HOST_TIMES: Figures[Any] = (
    Figure("host self ms", lambda row: row.host_self_us, ms_of_us, 2, 12, sorts=True),
    Figure("host ms", lambda row: row.host_total_us, ms_of_us, 4, 12, sorts=True),
)
DEVICE_TIMES: Figures[Any] = (
    Figure("gpu self ms", lambda row: row.device_self_us, ms_of_us, 1, 12, sorts=True),
    Figure("gpu ms", lambda row: row.device_total_us, ms_of_us, 3, 12, sorts=True),
)
OPERATORS: Figures[OperatorRow] = (
    Figure("calls", lambda row: row.calls, thousands, 5, 8, sorts=True),
    Figure("operator", lambda row: row.name, keep=0, width=16, left=True, grows=True),
)
"""What stands beside the times of an operator."""
GROUPS: Figures[OperatorGroupRow] = (
    HOST_TIMES[0],
    *DEVICE_TIMES,
    Figure("calls", lambda row: row.calls, thousands),
    Figure("operator", lambda row: f"{row.name}  {said(row.group)}", left=True),
)
"""The operators by what their calls have in common, as the text has them."""
RANGES: Figures[RangeRow] = (
    Figure("host ms", lambda row: row.host_total_us, ms_of_us, 1, sorts=True),
    Figure("host self ms", lambda row: row.host_self_us, ms_of_us, 3, sorts=True),
    Figure("mean ms", lambda row: row.host_mean_us, ms_of_us, 4),
    Figure("gpu ms", lambda row: row.device_total_us, ms_of_us, 2, sorts=True),
    Figure("count", lambda row: row.count, thousands, 5, sorts=True),
    Figure(
        "range", lambda row: row.name, width=16, left=True, grows=True, text_head="range (record_function)"
    ),
)
PRODUCTS: Figures[ProductRow] = (
    Figure("ms", lambda row: row.total_us, ms_of_us, 1, sorts=True),
    Figure("share", lambda row: row.share_pct, pct, 2),
    Figure("calls", lambda row: row.calls, thousands, 5, sorts=True),
    Figure("TFLOP/s", lambda row: row.tflop_s, _HUNDREDTHS, 3),
    Figure("of peak", lambda row: row.peak_pct, pct, 4),
    Figure("misaligned", lambda row: row.misaligned_pct, pct, 6),
    Figure("type", lambda row: row.dtype, said, 0, left=True),
    Figure("product", lambda row: row.kind, width=12, left=True, grows=True),
)
MODULES: Figures[ModuleRow] = (
    Figure("gpu fwd ms", lambda row: row.forward_total_us, ms_of_us),
    Figure("bwd ms", lambda row: row.backward_total_us, ms_of_us),
    Figure("fwd self ms", lambda row: row.forward_self_us, ms_of_us),
    Figure("host ms", lambda row: row.host_total_us, ms_of_us),
    Figure("host self ms", lambda row: row.host_self_us, ms_of_us),
    Figure("calls", lambda row: row.calls, thousands),
    Figure("module", _name_module, left=True),
)
"""The modules, as the text has them; the screen leaves out what a trace without a device has not."""
FRAMES: Figures[FrameRow] = (
    Figure("self ms", lambda row: row.self_us, ms_of_us, 1, sorts=True),
    Figure("ms", lambda row: row.total_us, ms_of_us, 2, sorts=True),
    Figure("calls", lambda row: row.calls, thousands, 3, sorts=True),
    Figure("Python function", _name_frame, left=True, where=Where.TEXT),
    Figure("function", lambda row: row.name, width=30, left=True, grows=True, where=Where.SCREEN),
    Figure("called by", lambda row: known_or(row.called_by, "-"), keep=4, left=True, where=Where.SCREEN),
)

_KERNEL: Figures[KernelRow] = (
    Figure("kernel", lambda row: row.name, left=True, where=Where.TEXT),
    Figure("kernel", lambda row: row.name, shorten_kernel, 0, 16, left=True, grows=True, where=Where.SCREEN),
)
KERNELS: Figures[KernelRow] = (
    Figure("ms", lambda row: row.total_us, ms_of_us, 1, 11, sorts=True),
    Figure("count", lambda row: row.count, thousands, 2, 7, sorts=True),
    Figure("mean us", lambda row: row.mean_us, number, 3, 9, sorts=True),
    Figure("max us", lambda row: row.max_us, number, 7, 9, sorts=True),
    Figure("blocks/SM", lambda row: row.blocks_per_sm, number, 8, 9),
    Figure("occ.", lambda row: row.occupancy_reported_pct, _WHOLE, 9, 4),
    Figure("recomp.", lambda row: row.occupancy_pct, _WHOLE, 5, 7),
    Figure("limited by", lambda row: row.limited_by, said, 11, 14, left=True, where=Where.SCREEN),
    Figure("tensor", lambda row: row.tensor_cores, said, 6, 7, left=True),
    Figure("operator", lambda row: row.operator, said, 10, 24, left=True, where=Where.SCREEN),
    Figure("kernel", lambda row: row.name, left=True, where=Where.TEXT),
    Figure("kernel", lambda row: row.name, shorten_kernel, 0, 16, left=True, grows=True, where=Where.SCREEN),
)
RATES: Figures[KernelRow] = (
    Figure("GB/s", lambda row: row.gb_s, _WHOLE, 1, sorts=True),
    Figure("of peak", lambda row: row.gb_s_peak_pct, pct, 2),
    Figure("TFLOP/s", lambda row: row.tflop_s, _HUNDREDTHS, 3, sorts=True),
    Figure("of its peak", lambda row: row.tflop_s_peak_pct, pct, 4, text_head="of peak "),
    Figure("held by", lambda row: row.bound_by, said, 5, left=True),
    Figure("occ. limit", lambda row: row.limited_by, said, left=True, where=Where.TEXT),
    Figure("ms", lambda row: row.total_us, ms_of_us, 6, sorts=True, where=Where.SCREEN),
    *_KERNEL,
)
COPIES: Figures[CopyRow] = (
    Figure("ms", lambda row: row.total_us, ms_of_us, 1, 11),
    Figure("count", lambda row: row.count, thousands, 2, 7),
    Figure("bytes", lambda row: row.bytes, size, 3, 7),
    Figure("GB/s", lambda row: row.gb_s, number, 4, 8),
    Figure("copy", lambda row: row.name, width=16, left=True, grows=True),
)

_GROWTH: Figure[MemoryPeak] = Figure("growth", lambda row: row.growth_bytes, say_growth, 5, 8)
_UNUSED: Figure[MemoryPeak] = Figure("unused", lambda row: row.unused_pct, pct, 6, 7)
_PEAKS: Figures[MemoryPeak] = (
    Figure("of", lambda row: name_place(row.kind, row.device), width=8, left=True, text_head="memory"),
    Figure("peak allocated", lambda row: row.allocated_bytes, size, 1, 14),
    Figure("peak reserved", lambda row: row.reserved_bytes, size, 2, 13),
)
_IN_ALL: Figures[MemoryPeak] = (
    Figure("allocated in all", lambda row: row.allocations_bytes, size, 3, 16),
    Figure("freed in all", lambda row: row.frees_bytes, size, 4, 12),
)
_EVENTS: Figure[MemoryPeak] = Figure("events", lambda row: row.events, thousands, 7, 9)
PEAKS_IN_TEXT: Figures[MemoryPeak] = (*_PEAKS, *_IN_ALL, _GROWTH, _UNUSED)
PEAKS_ON_SCREEN: Figures[MemoryPeak] = (*_PEAKS, _UNUSED, _GROWTH, *_IN_ALL, _EVENTS)
ALLOCATIONS: Figures[AllocationRow] = (
    Figure("of", lambda row: name_place(row.kind, row.device), keep=1, left=True, text_head="memory of"),
    Figure("alive at the peak", lambda row: row.at_peak_bytes, size, 2, 17, sorts=True, text_head="at peak"),
    Figure("kept", lambda row: row.kept_bytes, size, 3, 7, sorts=True),
    Figure("allocated", lambda row: row.allocated_bytes, size, 4, 9, sorts=True),
    Figure("times", lambda row: row.allocations, thousands, 5, 9, sorts=True),
    Figure("operator", lambda row: row.operator, width=16, left=True, grows=True, text_head="by operator"),
)

_COLLECTIVE: Figure[CollectiveRow] = Figure(
    "collective", lambda row: row.name, width=16, left=True, grows=True
)
_TIME: Figure[CollectiveRow] = Figure("ms", lambda row: row.total_us, ms_of_us, 1, 11)
_MOVED: Figures[CollectiveRow] = (
    Figure("bytes", lambda row: row.bytes, size, 3, 7),
    Figure("bus GB/s", lambda row: row.bus_gb_s, number, 4, 8),
)
COLLECTIVES_IN_TEXT: Figures[CollectiveRow] = (
    _COLLECTIVE,
    Figure("calls", lambda row: row.count),
    _TIME,
    *_MOVED,
)
COLLECTIVES_ON_SCREEN: Figures[CollectiveRow] = (
    _TIME,
    Figure("calls", lambda row: row.count, thousands, 2, 7),
    *_MOVED,
    _COLLECTIVE,
)


def list_module_figures(*, on_device: bool) -> Figures[ModuleRow]:
    """Return the columns of the modules on a screen, which a trace without a device has fewer of."""
    where = "gpu " if on_device else ""
    forward: Figures[ModuleRow] = (
        Figure("gpu forward ms", lambda row: row.forward_total_us, ms_of_us, 1, sorts=True),
    )
    own: Figures[ModuleRow] = (
        Figure("gpu forward self", lambda row: row.forward_self_us, ms_of_us, 7, sorts=True),
        Figure("gpu backward self", lambda row: row.backward_self_us, ms_of_us, 8, sorts=True),
    )
    return (
        *(forward if on_device else ()),
        Figure(f"{where}backward ms", lambda row: row.backward_total_us, ms_of_us, 2, sorts=True),
        Figure("host ms", lambda row: row.host_total_us, ms_of_us, 3, sorts=True),
        Figure("host self ms", lambda row: row.host_self_us, ms_of_us, 6, sorts=True),
        *(own if on_device else ()),
        Figure("calls", lambda row: row.calls, thousands, 4),
        Figure("module", _name_module, width=28, left=True, grows=True),
    )


def list_rank_figures(ranks: Sequence[RankRow], digits: int = 3) -> Figures[RankRow]:
    """Return the columns of the ranks, their milliseconds with so many digits."""
    names = name_ranks(ranks)
    is_named = not all(map(str.isdecimal, names.values()))
    ms = partial(number, digits=digits)
    return (
        Figure("rank", lambda row: names[row.path], left=is_named),
        Figure("step", lambda row: row.step_ms, ms, 1, sorts=True, text_head="step ms"),
        Figure("compute", lambda row: row.compute_ms, ms, 3),
        Figure("comms", lambda row: row.comm_ms, ms, 4),
        Figure("of it hidden", lambda row: row.overlap_ms, ms, 5),
        Figure("neither", lambda row: row.other_ms, ms, 7),
        Figure("all waits", lambda row: row.wait_ms, ms, 2, sorts=True, text_head="waits*"),
        Figure("all moves", lambda row: row.transfer_ms, ms, 6, text_head="moves data*"),
        Figure("file", _name_file, keep=8, width=12, left=True, grows=True, where=Where.SCREEN),
    )
