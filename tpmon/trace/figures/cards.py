"""How busy each device was: utilisation, est. SM efficiency, occupancy, tensor cores."""

from __future__ import annotations

import numpy as np

from tpmon.model.known import Known, Missing
from tpmon.model.results.trace import CardUse
from tpmon.trace.figures.kernels import LaunchFigures, Reals, weigh
from tpmon.trace.reading.classes import uses_tensor_cores
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace, clean_name, find_device
from tpmon.trace.reading.schema import Category
from tpmon.trace.reading.spans import Spans, find_cuts, intersect_total, unite


def use_cards(trace: Trace, figures: LaunchFigures, window: tuple[int, int]) -> tuple[CardUse, ...]:
    """Return how busy each device with work was, in the window of the steps."""
    work = trace.work
    return tuple(_use_card(trace, figures, window, device) for device in distinct(work.device).tolist())


def _use_card(trace: Trace, figures: LaunchFigures, window: tuple[int, int], device: int) -> CardUse:
    work = trace.work
    here = work.device == device
    rows = np.flatnonzero(here & (work.category == Category.KERNEL))
    start, length = work.start[rows], work.duration[rows]
    busy = unite(start, length)
    every = unite(work.start[here], work.duration[here])
    cuts = find_cuts(trace.header, window)
    span = max(window[1] - window[0] - cuts.total, 1)
    inside = np.clip(np.minimum(start + length, window[1]) - np.maximum(start, window[0]), 0, None)
    tensor = {number: uses_tensor_cores(trace.names[number]) for number in distinct(work.name[rows]).tolist()}
    by_answer = {
        answer: int(
            length[np.isin(work.name[rows], [n for n, said in tensor.items() if said == answer])].sum()
        )
        for answer in ("yes", "unknown")
    }
    total = int(length.sum())
    no_kernels = Missing("no kernels on this device")
    card = find_device(trace, device)
    return CardUse(
        device=device,
        name=clean_name(card.name, 80) if card and card.name else Missing("the trace does not describe it"),
        kernels=len(rows),
        kernel_us=total / 1000,
        kernel_busy_us=busy.total / 1000,
        busy_us=every.total / 1000,
        utilization_pct=100 * (busy.within_one(*window) - intersect_total(busy, cuts)) / span,
        busy_pct=100 * (every.within_one(*window) - intersect_total(every, cuts)) / span,
        sm_efficiency_pct=_sm_efficiency(start, start + length, figures.blocks_per_sm[rows], window, cuts),
        occupancy_reported_pct=weigh(figures.reported_pct[rows], inside),
        occupancy_pct=weigh(figures.occupancy_pct[rows], inside),
        tensor_core_pct=100 * by_answer["yes"] / total if total else no_kernels,
        tensor_core_unknown_pct=100 * by_answer["unknown"] / total if total else no_kernels,
    )


def _sm_efficiency(
    start: Ints, end: Ints, blocks: Reals, window: tuple[int, int], cuts: Spans
) -> Known[float]:
    """Integrate min(sum of blocks per SM of the kernels that run, 1) over the window, in percent of it.

    What was cut out of the window counts for nothing.
    """
    good = np.isfinite(blocks) & (blocks > 0)
    if not bool(good.any()):
        return Missing("no kernel of the trace has blocks per SM")
    start, end, blocks = np.maximum(start[good], window[0]), np.minimum(end[good], window[1]), blocks[good]
    inside = end > start
    times = np.concatenate((start[inside], end[inside]))
    change = np.concatenate((blocks[inside], -blocks[inside]))
    order = np.argsort(times, kind="stable")
    level = np.clip(np.cumsum(change[order])[:-1], 0.0, 1.0)
    times = times[order]
    lengths = np.diff(times) - cuts.within(times[:-1], times[1:])
    return float((level * lengths).sum()) * 100 / max(window[1] - window[0] - cuts.total, 1)
