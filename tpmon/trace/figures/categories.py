"""What a device computes: its time by kind of work, by the operator that launched a kernel or its name.

Time is exclusive: of what runs at once the first in the order of ``CATEGORIES`` counts, so that the parts sum
to the time in which the device is busy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from tpmon.judge.knowledge import read_table
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.trace_tables import GraphReplays, WorkRow
from tpmon.trace.figures.breakdown import comm_rows, name_calls
from tpmon.trace.figures.operators import Operators, is_graph_launch, match_nodes
from tpmon.trace.figures.steady import SteadyPart
from tpmon.trace.reading.columns import NAME_CHARS, Ints, Mask, Small, Tiny, distinct
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category, begins, flag, is_node_of_backward, is_optimizer, is_zero_grad
from tpmon.trace.reading.spans import NOTHING, Spans, find_cuts, unite, unite_all, unite_rows

CATEGORIES = (
    *("GEMM", "attention", "convolution", "norm", "reduce", "indexing", "elementwise", "optimizer"),
    *("other", "copies", "communication"),
)
OTHER, COPIES, COMMUNICATION = (CATEGORIES.index(name) for name in ("other", "copies", "communication"))
OPTIMIZER, ATTENTION = CATEGORIES.index("optimizer"), CATEGORIES.index("attention")
MEMORY_WORK = tuple(CATEGORIES.index(name) for name in ("elementwise", "norm", "reduce"))
"""What moves more bytes than it computes: a compiler fuses it, so that they are moved once."""
ELEMENTWISE = MEMORY_WORK[0]
NAMED_CHARS = 300
"""How far into a name its category is looked for: behind it stand types."""
_is_math_attention = begins(r"aten::_scaled_dot_product_attention_math")


@cache
def _read_rules(where: str) -> tuple[tuple[int, re.Pattern[str]], ...]:
    rows = read_table(__file__, "categories.toml")[where]
    return tuple((CATEGORIES.index(row["category"]), re.compile(row["pattern"])) for row in rows)


def name_category(name: str, where: str) -> int:
    """Return the place of the category that a table of categories.toml gives a name, -1 without one."""
    name = name[:NAMED_CHARS].lower()
    return next((category for category, pattern in _read_rules(where) if pattern.search(name)), -1)


def holds(times: Spans, moments: Ints) -> Mask:
    """Tell which moments lie in a set of time."""
    if not len(times.start):
        return np.zeros(len(moments), np.bool_)
    at = np.searchsorted(times.start, moments, side="right") - 1
    inside: Mask = (at >= 0) & (moments < times.end[at])
    return inside


def lie_inside(trace: Trace, rows: Ints, track: Small, start: Ints) -> Mask:
    """Tell which moments of threads lie inside of some host events on the same thread."""
    host = trace.host
    found = np.zeros(len(start), np.bool_)
    tracks = host.track[rows]
    for number in distinct(tracks).tolist():
        times = unite_rows(host, rows[tracks == number])
        here = track == number
        found[here] = holds(times, start[here])
    return found


def launched_inside(trace: Trace, rows: Ints) -> Mask:
    """Tell which rows of device work were launched inside of some host events, on the same thread."""
    found = np.zeros(len(trace.work.start), np.bool_)
    known = np.flatnonzero(trace.work.call >= 0)
    if len(rows) and len(known):
        call = trace.work.call[known]
        found[known] = lie_inside(trace, rows, trace.calls.track[call], trace.calls.start[call])
    return found


def sort_work(trace: Trace, ops: Operators) -> Tiny:
    """Return the category of each row of device work."""
    work, host = trace.work, trace.host
    codes = np.full(len(work.start), COPIES, np.int8)
    kernels = np.flatnonzero(trace.select(Category.KERNEL))
    if not len(kernels):
        return codes
    by_kernel = _sort_names(trace.names, work.name[kernels], "kernels")
    found = by_kernel[work.name[kernels]]
    if len(ops.row):
        place = ops.launchers[kernels]
        operator = host.name[ops.row[place]]
        by_operator = _sort_names(trace.names, operator[place >= 0], "operators")[operator]
        found = np.where((place >= 0) & (by_operator >= 0), by_operator, found)
    codes[kernels] = np.where(found < 0, OTHER, found)
    is_kernel = trace.select(Category.KERNEL)
    codes[launched_inside(trace, _find_attention(trace, ops)) & is_kernel] = ATTENTION
    marks = trace.named(host, is_optimizer) & (host.category != Category.GPU_ANNOTATION)
    update = launched_inside(trace, np.flatnonzero(marks)) & is_kernel
    codes[update & ~launched_within(trace, find_closures(trace))] = OPTIMIZER
    codes[comm_rows(trace)] = COMMUNICATION
    return codes


def find_closures(trace: Trace) -> Spans:
    """Return when steps of an optimizer compute the loss again, as LBFGS and SAM do: no update of weights.

    Each begins with a zero_grad inside of the step and ends with the last node of backward before the next.
    """
    host = trace.host
    on_host = host.category != Category.GPU_ANNOTATION
    updates = unite_rows(host, trace.named(host, is_optimizer) & on_host)
    begins = np.sort(host.start[trace.named(host, is_zero_grad) & on_host])
    begins = begins[updates.within(begins, begins + 1) > 0]
    nodes = np.flatnonzero(trace.named(host, is_node_of_backward) & (host.category == Category.OP))
    if not len(begins) or not len(nodes):
        return NOTHING
    nodes = nodes[np.argsort(host.start[nodes], kind="stable")]
    ends = updates.end[np.searchsorted(updates.start, begins, side="right") - 1]
    until = np.minimum(np.append(begins[1:], ends[-1]), ends)
    last = np.searchsorted(host.start[nodes], until) - 1
    node = nodes[np.maximum(last, 0)]
    there = (last >= 0) & (host.start[node] > begins)
    return unite(begins[there], np.minimum(host.end[node], until)[there] - begins[there])


def launched_within(trace: Trace, times: Spans) -> Mask:
    """Tell which rows of device work were launched in some times."""
    call = trace.work.call
    found = np.zeros(len(call), np.bool_)
    known = np.flatnonzero(call >= 0)
    start = trace.calls.start[call[known]]
    found[known] = times.within(start, start + 1) > 0
    return found


def _sort_names(names: Sequence[str], used: Small, where: str) -> Tiny:
    found = np.full(len(names), -1, np.int8)
    for number in distinct(used).tolist():
        found[number] = name_category(names[number], where)
    return found


def _find_attention(trace: Trace, ops: Operators) -> Ints:
    """Return the host events of attention: operators, and the nodes of those without a fused kernel."""
    if not len(ops.row):
        return ops.row
    host = trace.host
    name = host.name[ops.row]
    rows = ops.row[_sort_names(trace.names, name, "around")[name] >= 0]
    math = flag(trace.names, _is_math_attention)[name]
    if not math.any():
        return rows
    nodes, made = match_nodes(trace, ops)
    inside = lie_inside(trace, ops.row[math], host.track[ops.row[made]], ops.start[made])
    return np.concatenate((rows, ops.row[nodes[inside]]))


def split_exclusive(
    start: Ints, end: Ints, codes: Tiny, kinds: int, cuts: Spans = NOTHING
) -> tuple[Ints, Ints]:
    """Return the time of each kind: exclusive, of the lowest number, and in full; none in ``cuts``."""
    own, full = np.zeros((2, kinds), np.int64)
    if not len(start):
        return own, full
    reach = np.maximum.accumulate(end)
    alone = np.ones(len(start), np.bool_)  # rows come in the order of their start
    alone[1:] &= start[1:] >= reach[:-1]
    alone[:-1] &= reach[:-1] <= start[1:]
    if len(cuts.start):
        alone &= cuts.within(start, end) == 0
    single = np.bincount(codes[alone], end[alone] - start[alone], kinds).astype(np.int64)
    rest = ~alone
    if not rest.any():
        return single, single.copy()
    start, end, codes = start[rest], end[rest], codes[rest]
    times = np.sort(np.concatenate((start, end, cuts.start, cuts.end)), kind="stable")
    first, last, length = np.searchsorted(times, start), np.searchsorted(times, end), np.diff(times)
    size = len(times)

    def cover(begin: Ints, stop: Ints) -> Mask:
        change = np.bincount(begin, minlength=size) - np.bincount(stop, minlength=size)
        covered: Mask = np.cumsum(change)[:-1] > 0
        return covered

    free = ~cover(np.searchsorted(times, cuts.start), np.searchsorted(times, cuts.end))
    taken = ~free
    for kind in distinct(codes).tolist():
        here = codes == kind
        covered = cover(first[here], last[here]) & free
        full[kind] = length[covered].sum()
        own[kind] = length[covered & ~taken].sum()
        taken |= covered
    return single + own, single + full


@dataclass(frozen=True, slots=True)
class JudgedWork:
    """Hold the device work that runs in the judged steps: ``rows`` of those devices that count.

    ``start`` and ``end`` are clipped to the window, ``cuts`` are no part of it. ``steps`` is 1 where there
    are neither steps nor repeats; ``length_ns`` is all of them together, without cuts. ``codes`` are the
    categories of all rows of device work.
    """

    devices: tuple[int, ...]
    rows: Ints
    start: Ints
    end: Ints
    cuts: Spans
    steps: int
    length_ns: int
    codes: Tiny

    def split(self, trace: Trace, codes: Tiny, kinds: int) -> tuple[Ints, Ints]:
        """Split the time of all devices by kinds, exclusive and in full, in nanoseconds."""
        own, full = np.zeros((2, kinds), np.int64)
        for device in self.devices:
            here = trace.work.device[self.rows] == device
            parts = self.start[here], self.end[here], codes[self.rows[here]]
            one, whole = split_exclusive(*parts, kinds, self.cuts)
            own, full = own + one, full + whole
        return own, full

    def of_step(self, ns: float) -> float:
        """Return a time of all devices in microseconds of a mean step of one device."""
        return ns / 1000 / self.steps / max(len(self.devices), 1)


def judge_work(trace: Trace, ops: Operators, steady: SteadyPart, strays: Sequence[int]) -> JudgedWork:
    """Find the device work of the judged steps, and the category of each row."""
    work, on_device = trace.work, len(trace.work.start) > 0
    begin, stop = steady.steps.window if on_device else steady.steps.host_window
    cuts = unite_all([find_cuts(trace.header, (begin, stop)), steady.cuts])
    counts = ~np.isin(work.device, strays) if strays else np.ones(len(work.start), np.bool_)
    rows = np.flatnonzero(counts & (work.start < stop) & (work.end > begin))
    rows = rows[~(holds(cuts, work.start[rows]) & holds(cuts, work.end[rows] - 1))]
    start, end = np.maximum(work.start[rows], begin), np.minimum(work.end[rows], stop)
    steps = len(steady.steps.names) if steady.unit else 1
    devices = tuple(one for one in trace.list_devices() if one not in strays)
    return JudgedWork(
        devices, rows, start, end, cuts, steps, max(stop - begin - cuts.total, 1), sort_work(trace, ops)
    )


def sum_categories(trace: Trace, judged: JudgedWork) -> tuple[WorkRow, ...]:
    """Sum the device work of a mean step by category, the longest first, each with its longest kernel."""
    codes = judged.codes
    own, full = judged.split(trace, codes, len(CATEGORIES))
    busy = max(int(own.sum()), 1)
    found = []
    for kind in np.argsort(-own, kind="stable").tolist():
        here = codes[judged.rows] == kind
        rows, length = judged.rows[here], (judged.end - judged.start)[here]
        if not length.sum():
            continue
        names = trace.work.name[rows]
        spent = np.bincount(names, length)
        largest = int(np.argmax(spent))
        share = 100 * float(spent[largest]) / float(spent.sum())
        row = WorkRow(
            category=CATEGORIES[kind],
            us=judged.of_step(int(own[kind])),
            share_pct=100 * int(own[kind]) / busy,
            overlapping_us=judged.of_step(int(full[kind])),
            count=len(rows),
            largest=clean_name(trace.names[largest], NAME_CHARS),
            largest_pct=share,
        )
        found.append(row)
    return tuple(found)


def count_replays(trace: Trace, judged: JudgedWork) -> Applicable[GraphReplays]:
    """Count the replays of CUDA graphs whose work runs in the judged steps; NOT_APPLICABLE without any."""
    call = trace.work.call[judged.rows]
    graph = name_calls(trace, is_graph_launch)
    inside = np.zeros(len(call), np.bool_)
    inside[call >= 0] = graph[call[call >= 0]]
    if not inside.any():
        return NOT_APPLICABLE
    of_graph = np.zeros(len(trace.work.start), np.int8)
    of_graph[judged.rows[inside]] = 1
    own, full = judged.split(trace, of_graph, 2)
    count = len(distinct(call[inside]))
    return GraphReplays(count, int(full[1]) / 1000 / count, 100 * int(full[1]) / max(int(own.sum()), 1))
