"""What a step goes through, forward, backward and optimizer, and what it computes in a second.

The backward pass is between its nodes of autograd, whatever thread runs them, the optimizer inside of its
mark but for the loss that it computes again; forward is the rest of a step up to its last backward pass.
Device work belongs to the phase that launched it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, map_known
from tpmon.model.results.trace_tables import PhaseRow, StepRates, StepWork
from tpmon.trace.compare import read_told
from tpmon.trace.figures.breakdown import loader_rows, name_calls, subtract
from tpmon.trace.figures.categories import (
    JudgedWork,
    count_replays,
    find_closures,
    holds,
    launched_inside,
    launched_within,
    sum_categories,
)
from tpmon.trace.figures.gaps import NO_OPERATORS, find_main_track
from tpmon.trace.figures.matmuls import DTYPES, HALF, CountedProduct, find_peak
from tpmon.trace.figures.operators import Dims, Operators, is_graph_launch, parse_inputs
from tpmon.trace.figures.steady import SteadyPart
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Ints, Reals, Tiny, distinct
from tpmon.trace.reading.read import Trace, find_device
from tpmon.trace.reading.schema import Category, begins, is_node_of_backward, is_optimizer, is_zero_grad
from tpmon.trace.reading.spans import Spans, grow, split_windows, unite, unite_rows

PHASES = (
    *("forward", "backward", "optimizer", "zero_grad", "data", "forward and backward"),
    *("CUDA graphs, not told apart", "launched before the steps", "other"),
)
FORWARD, BACKWARD, UPDATE, ZERO, DATA, BOTH, GRAPHS, BEFORE, OTHER = range(len(PHASES))
_is_old_node = begins(r"(?:[A-Z]\w*Backward\d*|torch::autograd::\w+)\Z")
"""A node of the backward pass as torch names it before 1.10, and inside of today's marks of nodes."""
_NONE_RAN = Missing("no operators are in the trace: none ran, or activities had no CPU")
_NO_PHASES = Missing("neither a backward pass nor a step of an optimizer is in the trace")


@dataclass(frozen=True, slots=True)
class Phases:
    """Hold when the host was in each phase; ``passes`` are the backward passes, one for each micro-batch."""

    passes: Spans
    forward: Spans
    data: Spans
    update: Spans
    zero: Spans
    nodes: Ints
    updates: Ints
    zeros: Ints
    closures: Spans


def find_phases(trace: Trace, ops: Operators, steps: TraceSteps) -> Phases:
    """Find the phases of the steps."""
    host, main = trace.host, find_main_track(trace)
    on_host = host.category != Category.GPU_ANNOTATION
    is_op = host.category == Category.OP
    nodes = np.flatnonzero(trace.named(host, is_node_of_backward) & is_op)
    nodes = nodes if len(nodes) else np.flatnonzero(trace.named(host, _is_old_node) & is_op)
    updates = np.flatnonzero(trace.named(host, is_optimizer) & on_host)
    zeros = np.flatnonzero(trace.named(host, is_zero_grad) & on_host)
    loads = np.flatnonzero(loader_rows(trace))
    passes = unite_rows(host, nodes)
    if len(passes.start):
        is_node = np.zeros(len(host.start), np.bool_)
        is_node[nodes] = True
        outer = ops.row[(ops.depth == 0) & ~is_node[ops.row] & (host.track[ops.row] == main)]
        passes = _join(
            passes, np.sort(np.concatenate([host.start[one] for one in (outer, updates, zeros, loads)]))
        )
    # Of each step all that stands before its last backward pass, all of a step without one.
    at = np.searchsorted(passes.start, steps.host_end) - 1
    last = passes.start[at] if len(passes.start) else steps.host_end
    until = np.where((at >= 0) & (last > steps.host_start), last, steps.host_end)
    forward = unite(steps.host_start, until - steps.host_start)
    data, update, zero = (unite_rows(host, one) for one in (loads, updates, zeros))
    closures = find_closures(trace)
    update = subtract(update, closures)
    return Phases(passes, forward, data, update, zero, nodes, updates, zeros, closures)


def _join(passes: Spans, times: Ints) -> Spans:
    """Join nodes between which nothing else begins into one pass."""
    between = np.searchsorted(times, passes.start[1:]) - np.searchsorted(times, passes.end[:-1])
    first = np.append(True, between > 0)
    last = np.append(np.flatnonzero(first)[1:] - 1, len(first) - 1)
    return unite(passes.start[first], passes.end[last] - passes.start[first])


def sort_phases(trace: Trace, ops: Operators, steps: TraceSteps, phases: Phases) -> Tiny:
    """Return the phase that launched each row of device work."""
    work, calls = trace.work, trace.calls
    codes = np.full(len(work.start), BEFORE, np.int8)
    known = np.flatnonzero(work.call >= 0)
    call = work.call[known]
    start = calls.start[call]
    inside = holds(phases.forward, start)
    whole = FORWARD if len(phases.nodes) or not len(phases.updates) else BOTH
    found = np.where(inside, whole, OTHER)
    # The engine adds up gradients between its nodes, too.
    found[holds(phases.passes, start)] = BACKWARD
    found[name_calls(trace, is_graph_launch)[call] & (ops.launchers[known] < 0)] = GRAPHS
    found[start < steps.host_start[0]] = BEFORE
    codes[known] = found
    loads = np.flatnonzero(loader_rows(trace))
    again = launched_within(trace, phases.closures)
    kinds = ((DATA, loads), (ZERO, phases.zeros), (UPDATE, phases.updates), (BACKWARD, phases.nodes))
    for phase, rows in kinds:
        here = launched_inside(trace, rows) & (codes != BEFORE)
        codes[here if phase != UPDATE else here & ~again] = phase
    return codes


def sum_phases(
    trace: Trace, ops: Operators, steps: TraceSteps, phases: Phases, judged: JudgedWork
) -> Known[tuple[PhaseRow, ...]]:
    """Sum the phases of a mean step: the host's part of it, and the device work, which sum to the whole."""
    if not len(ops.row):
        return NO_OPERATORS if len(trace.work.start) else _NONE_RAN
    if not (len(phases.nodes) or len(phases.updates)):
        return _NO_PHASES
    layers = (phases.data, phases.update, phases.zero, phases.passes, phases.forward)
    parts = split_windows(judged.cuts, grow(judged.cuts, layers), steps.host_start, steps.host_end)
    of_host = dict(zip((DATA, UPDATE, ZERO, BACKWARD, FORWARD, OTHER), parts[1:], strict=True))
    if not len(phases.nodes):
        of_host[BOTH] = of_host.pop(FORWARD)
        del of_host[BACKWARD]
    own = np.zeros(len(PHASES), np.int64)
    on_device = len(judged.rows) > 0
    if on_device:
        own, _full = judged.split(trace, sort_phases(trace, ops, steps, phases), len(PHASES))
    busy = max(int(own.sum()), 1)
    found = []
    for phase, name in enumerate(PHASES):
        host_ns = int(of_host[phase].sum()) if phase in of_host else 0
        if not (host_ns or own[phase]):
            continue
        host: Applicable[float] = host_ns / 1000 / len(steps.names) if phase in of_host else NOT_APPLICABLE
        device: Applicable[float] = judged.of_step(int(own[phase])) if on_device else NOT_APPLICABLE
        share: Applicable[float] = 100 * int(own[phase]) / busy if on_device else NOT_APPLICABLE
        found.append(PhaseRow(name, host, device, share))
    return tuple(found)


_is_first = begins(r"aten::(?:embedding|conv[123]d|linear)$")
"""Layers that a batch enters; an embedding takes batch x length, the others have the batch first."""
_UNSEEN = Missing("no embedding, convolution or linear layer is in the trace, whose input tells the batch")
_UNMARKED = Missing("no steps are in the trace, and no backward pass")
_NO_SHAPES = Missing("the shapes of the first layer were not recorded (record_shapes=True)")
_VARIES = Missing("the first layers of the steps are not alike, so none tells the batch")
_FLAT = Missing("the input of the first layer is no batch x length: what in it is a sample is not known")
_AGAIN = Missing("the first layer runs several times for one batch, so it does not tell the batch")
_NO_LENGTH = Missing("the first layer takes no batch x length")


def measure_batch(
    trace: Trace, ops: Operators, steps: TraceSteps, phases: Phases, cuts: Spans, *, in_steps: bool
) -> tuple[Known[float], Known[float]]:
    """Return the samples and the tokens of all steps, from the input of the first layer of each pass.

    Each backward pass has a batch of its own (accumulation); without one each step has.
    """
    passes = phases.passes
    begin, stop = steps.host_start, steps.host_end
    window = steps.host_window
    inside = np.flatnonzero((passes.start >= window[0]) & (passes.start < window[1]))
    if len(inside):
        stop = passes.start[inside]
        begin = np.maximum(np.append(window[0], passes.end[inside[:-1]]), window[0])
        left = holds(cuts, stop)
        own = steps.host_start[np.searchsorted(steps.host_start, stop, side="right") - 1]
        begin = np.where(np.append(False, left[:-1]), own, begin)[~left]
        stop = stop[~left]
    elif not in_steps:
        return _UNMARKED, _UNMARKED
    told = read_told(trace).get("batch_size")
    samples = _measure_first(trace, ops, phases, begin, stop)
    if isinstance(samples, Missing):
        size = told if isinstance(told, int) and not isinstance(told, bool) and 0 < told < 1 << 40 else 0
        return (float(size * len(begin)) if size else samples), samples
    return samples


def _measure_first(
    trace: Trace, ops: Operators, phases: Phases, begin: Ints, stop: Ints
) -> tuple[Known[float], Known[float]] | Missing:
    host = trace.host
    rows = np.flatnonzero(trace.named(host, _is_first)[ops.row])
    rows = rows[
        (host.track[ops.row[rows]] == find_main_track(trace)) & ~holds(phases.passes, ops.start[rows])
    ]
    if not len(rows):
        return _UNSEEN
    first, last = np.searchsorted(ops.start[rows], begin), np.searchsorted(ops.start[rows], stop)
    if (first >= last).any():
        return _VARIES
    shapes, names = host.shape[ops.row[rows]], host.name[ops.row[rows]]
    if (shapes[first] < 0).any():
        return _NO_SHAPES
    if len(distinct(names[first])) > 1:
        return _VARIES
    operator = trace.names[int(names[first[0]])]
    told = distinct(shapes[(names == names[first[0]]) & (shapes >= 0)]).tolist()
    dims = {number: parse_inputs(trace.shapes[number]).dims for number in told}
    place = 1 if operator != "aten::embedding" else 0
    weights = {number: one[place] for number, one in dims.items() if len(one) > place}
    samples = tokens = 0.0
    known_length = True
    for one, end in zip(first.tolist(), last.tolist(), strict=True):
        same = shapes[one + 1 : end][names[one + 1 : end] == names[one]].tolist()
        again = weights.get(int(shapes[one])) in map(weights.get, same)
        if again and not (operator == "aten::linear" and len(phases.nodes)):
            return _AGAIN
        taken = dims[int(shapes[one])]
        size = _read_batch(operator, taken)
        if not size:
            return _FLAT
        samples += size[0]
        tokens += size[0] * size[1]
        known_length &= size[1] > 0
    return samples, tokens if known_length else _NO_LENGTH


def _read_batch(operator: str, dims: tuple[Dims, ...]) -> tuple[int, int] | None:
    """Return batch and length of the input of a layer; length 0 where it has none, None where neither is."""
    if len(dims) < 2:
        return None
    if operator == "aten::embedding":
        return (dims[1][0], dims[1][1]) if len(dims[1]) == 2 else None
    image = dims[0]
    if operator == "aten::linear":
        return (image[0], image[1] if len(image) == 3 else 0) if len(image) in (2, 3) else None
    return (image[0], 0) if len(image) == int(operator[-2]) + 2 else None


LEAST_SHARE = 0.05
"""Of the operations: what less of them is done in does not keep the rest from having a peak."""
_NO_PRODUCTS = Missing("no matrix product, convolution or attention is known among the device work")

_NO_PEAK = Missing("the card, or the type on it, is not in the table of peaks")


def measure_rates(
    trace: Trace,
    ops: Operators,
    counted: CountedProduct,
    judged: JudgedWork,
    batch: tuple[Known[float], Known[float]],
) -> StepRates:
    """Measure samples, tokens and operations in a second of the steps, and their part of the card's peak."""
    steps, seconds = judged.steps, judged.length_ns / 1e9
    samples, tokens = batch
    rows = judged.rows[counted.kind[judged.rows] > 0]
    length = trace.work.duration[rows]
    there = np.isfinite(counted.call_flops[rows])
    pct = 100 * float(length[there].sum()) / max(float(length.sum()), 1.0)
    how = "" if trace.shapes else " (record_shapes=True)"
    why = Missing(f"shapes tell the operations of {pct:.0f} % of the products' time alone{how}")
    rates = StepRates(
        samples=map_known(lambda value: value / steps, samples),
        samples_per_s=map_known(lambda value: value / seconds, samples),
        tokens=map_known(lambda value: value / steps, tokens),
        tokens_per_s=map_known(lambda value: value / seconds, tokens),
        tflop_s=why if len(rows) else _NO_PRODUCTS,
        counted_pct=pct if len(rows) else _NO_PRODUCTS,
        mfu_pct=why if len(rows) else _NO_PRODUCTS,
        dtype=why if len(rows) else _NO_PRODUCTS,
        peak_tflop_s=why if len(rows) else _NO_PRODUCTS,
    )
    if not len(rows) or pct < 100 * HALF:
        return rates
    rows = rows[there]
    called, first, place = np.unique(ops.launchers[rows], return_index=True, return_inverse=True)
    flops = counted.call_flops[rows[first]]
    dtypes = np.zeros(len(called), np.int8)
    np.maximum.at(dtypes, place, counted.dtype[rows])
    per_type = np.bincount(dtypes, flops, len(DTYPES)).astype(np.float64)
    length_ns = judged.length_ns * max(len(judged.devices), 1)
    main = DTYPES[int(np.argmax(per_type))]
    peaks = _find_peaks(trace, judged)
    return replace(
        rates,
        tflop_s=float(flops.sum()) / length_ns / 1000,
        mfu_pct=_share_of_peaks(per_type, peaks, length_ns),
        dtype=main or Missing("neither inputs nor kernels tell the number type"),
        peak_tflop_s=peaks.get(main, _NO_PEAK),
    )


def _find_peaks(trace: Trace, judged: JudgedWork) -> dict[str, float]:
    """Return the TFLOP/s of the cards by number type; empty where they differ or are not known."""
    found = [find_peak(find_device(trace, device)) for device in judged.devices]
    if not found or found[0] is None or any(one != found[0] for one in found):
        return {}
    return dict(found[0].tflop_s)


def _share_of_peaks(per_type: Reals, peaks: dict[str, float], length_ns: int) -> Known[float]:
    """Return how much of the time the operations would take at the peak of their types, in percent."""
    untold = sum(flops for dtype, flops in zip(DTYPES, per_type.tolist(), strict=True) if dtype not in peaks)
    if untold > LEAST_SHARE * float(per_type.sum()):
        return _NO_PEAK
    at_peak = sum(
        flops / (1000 * peaks[dtype])
        for dtype, flops in zip(DTYPES, per_type.tolist(), strict=True)
        if dtype in peaks
    )
    pct = 100 * at_peak / length_ns
    return pct if pct <= 100 else Missing("above the peak of the card: not all of it was computed")


def describe_work(
    trace: Trace, ops: Operators, counted: CountedProduct, judged: JudgedWork, steady: SteadyPart
) -> StepWork:
    """Put together what the judged steps are made of."""
    own = steady.steps
    phases = find_phases(trace, ops, own)
    categories = sum_categories(trace, judged)
    batch = measure_batch(trace, ops, own, phases, judged.cuts, in_steps=bool(steady.unit))
    each = [unite_rows(trace.work, trace.work.device == device).total for device in trace.list_devices()]
    return StepWork(
        unit=steady.unit,
        steps=judged.steps,
        step_us=judged.length_ns / 1000 / judged.steps,
        busy_us=sum(row.us for row in categories),
        at_once_us=(int(trace.work.duration.sum()) - sum(each)) / 1000,
        categories=categories,
        phases=sum_phases(trace, ops, own, phases, judged),
        replays=count_replays(trace, judged),
        rates=measure_rates(trace, ops, counted, judged, batch),
    )
