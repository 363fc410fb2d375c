"""Habits of a program that cost time, as a trace shows them. Each has a condition; none is a guess.

The thresholds keep out what is not worth a line. They are chosen, not measured; shares are percent of the
window of the steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.trace import DeviceGaps, MemoryPeak
from tpmon.model.results.trace_tables import ProductRow
from tpmon.trace.figures.breakdown import Activity, HostCauses, sum_causes
from tpmon.trace.figures.matmuls import DTYPES, KINDS, CountedProduct
from tpmon.trace.figures.operators import Operators, measure_product, parse_inputs
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Ints, distinct, find_main, group
from tpmon.trace.reading.read import Trace, clean_name, find_device
from tpmon.trace.reading.schema import CallClass, Category, is_node_of_backward, is_optimizer
from tpmon.trace.reading.spans import intersect_total, unite_rows

COPIES_PCT = 10.0
"""Of the window in copies that no kernel hides."""
TINY_KERNEL_US = 10.0
"""A median kernel shorter than about one launch (cudaLaunchKernel takes 4 to 10 us on the host)."""
LAUNCH_PCT = 20.0
"""Of the window in which a device waits for launches and operators."""
TINY_OP_US = 20.0
"""An operator of one small kernel takes 5 to 15 us on the host: shorter ones are all overhead."""
TINY_CALLS = 100
"""Calls of one operator in a step from which a fused or batched one is worth the work: chosen."""
TINY_PCT = 10.0
"""Of the window that those calls take on the host, and that the device waits for the host."""
OPTIMIZER_KERNELS = 100
"""Kernels in one optimizer step; a fused one starts a few for each group of parameters."""
SYNC_STEPS = 0.8
"""Share (0-1) of the steps in which the host waits for the device: a log line now and then is no habit."""
SYNC_PCT = 2.0
"""Of the window in which the device is idle for it."""
FP32_PCT = 10.0
"""Of the window in fp32 products."""
MISALIGNED_PCT = 5.0
"""Of the window in products whose sizes fit no tensor core."""
ATTENTION_PCT = 1.0
"""Of the window in attention without a fused kernel: it takes memory of the square of the length, too."""
RECOMPUTE_PCT = 2.0
"""Of the window in forward work that is done again in the backward."""
FREE_MEMORY = 0.7
"""Of the card's memory reserved at most where activations would fit instead of being computed twice."""

_FORWARD = re.compile(
    r"^aten::(?:linear|conv[123]d|scaled_dot_product_attention|layer_norm|batch_norm|gelu)$"
)
_MATH = "aten::_scaled_dot_product_attention_math"
_COMPILES = "_compile.compile_inner (dynamo_timed)"
_ROUNDED = ("matmul", "convolution")
"""What torch may round to TF32; attention has switches of its own."""
_FP32 = DTYPES.index("fp32")
_REGION = re.compile(r"^Torch-Compiled Region: \d+/(\d+)")


@dataclass(frozen=True, slots=True)
class Parts:
    """Hold a trace and what was found in it; ``gaps`` are those of the devices that count."""

    trace: Trace
    steps: TraceSteps
    ops: Operators
    activity: Activity
    causes: HostCauses
    counted: CountedProduct
    gaps: tuple[DeviceGaps, ...]
    products: tuple[ProductRow, ...]
    peaks: tuple[MemoryPeak, ...]


@dataclass(frozen=True, slots=True)
class PatternSeen:
    """Hold one pattern; ``also`` says what was seen beside it that an advice depends on."""

    name: str
    words: str
    share_pct: float
    also: frozenset[str] = frozenset()


def find_patterns(parts: Parts) -> tuple[PatternSeen, ...]:
    """Find the patterns that a trace shows, the largest share first."""
    finders = (
        (_copies, COPIES_PCT),
        (_launches, LAUNCH_PCT),
        (_tiny_operators, TINY_PCT),
        (_optimizer, 0.0),
        (_syncs, SYNC_PCT),
        (_attention, ATTENTION_PCT),
        (_plain_products, FP32_PCT),
        (_recompiles, 0.0),
        (_recomputes, RECOMPUTE_PCT),
        (_misaligned, MISALIGNED_PCT),
    )
    found = [seen for find, least in finders for seen in find(parts) if seen.share_pct >= least]
    return tuple(sorted(found, key=lambda seen: -seen.share_pct))


def _idle_pct(parts: Parts, us: float) -> float:
    """Return idle time in percent of the window of the steps, of all devices together."""
    return 100 * us / max(sum(gap.window for gap in parts.gaps), 1.0)


def _waits_for_host_pct(parts: Parts) -> float:
    """Return the idle time in which devices wait for launches and operators of the host."""
    return _idle_pct(parts, sum_causes(parts.gaps, "launch", "cpu_op"))


def _busy_pct(parts: Parts, ns: float) -> float:
    """Return work of all devices in percent of the window of the steps, else work of the host."""
    start, end = parts.steps.window if parts.gaps else parts.steps.host_window
    return min(100 * ns / max((end - start) * max(len(parts.gaps), 1), 1), 100.0)


def _inside(parts: Parts, rows: Ints) -> Ints:
    """Return the rows of device work that start in the window of the steps."""
    start, end = parts.steps.window
    begins = parts.trace.work.start[rows]
    return rows[(begins >= start) & (begins < end)]


def _count_steps(parts: Parts) -> int:
    return len(parts.steps.names) if parts.steps.marked else 1


def _say_each(parts: Parts, number: int, noun: str) -> str:
    """Say how many of something a step has, or the whole trace where no steps are marked."""
    return f"{number / _count_steps(parts):,.0f} {noun}{' a step' if parts.steps.marked else ''}"


def _copies(parts: Parts) -> Iterator[PatternSeen]:
    work = parts.trace.work
    rows = _inside(parts, np.flatnonzero(work.category == Category.MEMCPY))
    if not len(rows):
        return
    exposed = 0
    for device in distinct(work.device[rows]).tolist():
        copies = unite_rows(work, rows[work.device[rows] == device])
        kernels = unite_rows(work, parts.trace.select(Category.KERNEL, device))
        exposed += copies.total - intersect_total(copies, kernels)
    largest = parts.trace.names[find_main(work.name[rows], work.duration[rows])]
    count = _say_each(parts, len(rows), "copies")
    words = f"{count} that kernels do not hide, most of the time: {largest}"
    also = frozenset({"pageable"} if "Pageable" in largest else ())
    yield PatternSeen("copy-heavy", clean_name(words), _busy_pct(parts, exposed), also)


def _launches(parts: Parts) -> Iterator[PatternSeen]:
    work = parts.trace.work
    rows = _inside(parts, np.flatnonzero(work.category == Category.KERNEL))
    median = float(np.median(work.duration[rows])) / 1000 if len(rows) else TINY_KERNEL_US
    if median < TINY_KERNEL_US:
        words = f"{_say_each(parts, len(rows), 'kernels')}, half of them below {median:.1f} us"
        yield PatternSeen("launch-heavy", words, _waits_for_host_pct(parts))


def _tiny_operators(parts: Parts) -> Iterator[PatternSeen]:
    """Find one operator that is called over and over for little: a loop over elements or parameters."""
    if not parts.steps.marked:
        return  # calls of a whole trace say nothing of a step
    if parts.gaps and _waits_for_host_pct(parts) < TINY_PCT:
        return  # the host is ahead of the device: its operators cost nothing
    ops, host = parts.ops, parts.trace.host
    start, end = parts.steps.host_window
    nodes = parts.trace.named(host, is_node_of_backward)[ops.row]
    outer = np.flatnonzero((ops.depth == 0) & ~nodes & (ops.start >= start) & (ops.start < end))
    if not len(outer):
        return
    groups = group(host.name[ops.row[outer]])
    spent = groups.sum(parts.ops.own[outer]) / 1000
    few = groups.count / _count_steps(parts) < TINY_CALLS
    spent[few | (spent / groups.count >= TINY_OP_US)] = 0
    at = int(np.argmax(spent))
    share = 100 * float(spent[at]) / ((end - start) / 1000 or 1)
    name, count = parts.trace.names[groups.keys[at]], int(groups.count[at])
    words = f"{name} is called {_say_each(parts, count, 'times')}, {spent[at] / count:.1f} us each"
    yield PatternSeen("tiny-operators", clean_name(words), share)


def _optimizer(parts: Parts) -> Iterator[PatternSeen]:
    host, work = parts.trace.host, parts.trace.work
    rows = np.flatnonzero(parts.trace.named(host, is_optimizer) & (host.category != Category.GPU_ANNOTATION))
    launched = np.flatnonzero((work.category == Category.KERNEL) & (work.call >= 0))
    if not len(rows) or not len(launched):
        return
    begins = parts.trace.calls.start[work.call[launched]]
    at = np.searchsorted(host.start[rows], begins, side="right") - 1
    inside = (at >= 0) & (begins < host.end[rows[at]])
    each = int(inside.sum()) / len(rows)
    if each >= OPTIMIZER_KERNELS:
        spent = float(host.duration[rows].sum()) / 1000
        start, end = parts.steps.host_window
        share = 100 * spent / max((end - start) / 1000, 1.0)
        words = f"{each:,.0f} kernels in one step of the optimizer"
        yield PatternSeen("unfused-optimizer", words, min(share, 100.0))


def _syncs(parts: Parts) -> Iterator[PatternSeen]:
    calls, steps = parts.trace.calls, parts.steps
    share = _idle_pct(parts, sum_causes(parts.gaps, "sync_explicit", "sync_implicit"))
    if not steps.marked or not parts.gaps:
        return
    copies = parts.trace.named(calls, lambda name: "Memcpy" in name)
    classes = parts.causes.call_class
    rows = np.flatnonzero((classes == CallClass.EXPLICIT) | ((classes == CallClass.IMPLICIT) & copies))
    at = np.searchsorted(steps.host_start, calls.start[rows], side="right") - 1
    good = (at >= 0) & (calls.start[rows] < steps.host_end[at])
    rows, at = rows[good], at[good]
    if len(distinct(at)) < SYNC_STEPS * len(steps.names):
        return
    most = _main_root(parts, rows)
    by = f", most of the time in {parts.trace.names[most]}" if most >= 0 else ""
    words = f"the host waits for the device {_say_each(parts, len(rows), 'times')}{by}"
    also = frozenset({"item"} if most >= 0 and "item" in parts.trace.names[most] else ())
    yield PatternSeen("sync-per-step", clean_name(words), share, also)


def _main_root(parts: Parts, calls: Ints) -> int:
    """Return the name of the outermost operator around most of the time of the calls, -1 for none."""
    table = parts.trace.calls
    place = parts.ops.find(table.track[calls], table.start[calls])
    inside = place >= 0
    if not bool(inside.any()):
        return -1
    owner = parts.ops.row[parts.ops.find_roots()[place[inside]]]
    return find_main(parts.trace.host.name[owner], table.duration[calls[inside]])


def _attention(parts: Parts) -> Iterator[PatternSeen]:
    rows = np.flatnonzero(parts.trace.named(parts.trace.host, lambda name: name == _MATH)[parts.ops.row])
    share = _busy_pct(parts, float(parts.ops.device_total[rows].sum()))
    times = _say_each(parts, len(rows), "times")
    words = f"scaled_dot_product_attention computes {times} without a fused kernel"
    yield PatternSeen("math-attention", words, share)


def _plain_products(parts: Parts) -> Iterator[PatternSeen]:
    trace = parts.trace
    cards = [card for device in trace.list_devices() if (card := find_device(trace, device))]
    if not cards or len(cards) < len(trace.list_devices()):
        return
    # Cards of NVIDIA have tensor cores from Volta on, but for the small ones of Turing.
    if not all(card.major >= 7 and card.warp_size == 32 and "GTX 16" not in card.name for card in cards):
        return
    older = any(card.major < 8 for card in cards)
    named = [row.kind for row in parts.products if row.dtype == "fp32" and row.kind in _ROUNDED]
    counted = parts.counted
    wanted = np.isin(counted.kind, [KINDS.index(kind) for kind in named]) & (counted.dtype == _FP32)
    share = _busy_pct(parts, float(trace.work.duration[_inside(parts, np.flatnonzero(wanted))].sum()))
    cores = "tensor cores for fp16" if older else "TF32"
    also = frozenset({"fp16 alone"} if older else ())
    words = f"{' and '.join(named)} in fp32 on ordinary cores, though the card has {cores}"
    yield PatternSeen("fp32-products", words, share, also)


def _recompiles(parts: Parts) -> Iterator[PatternSeen]:
    host = parts.trace.host
    start, end = parts.steps.host_window
    named = parts.trace.named(host, lambda name: name == _COMPILES)
    compiles = np.flatnonzero(named & (host.start >= start) & (host.start < end))
    steps = distinct(np.searchsorted(parts.steps.host_start, host.start[compiles], side="right"))
    again = max((int(found[1]) for found in map(_REGION.match, parts.trace.names) if found), default=0)
    if len(steps) < 2 and not (len(compiles) and again):
        return
    share = 100 * unite_rows(host, compiles).within_one(start, end) / max(end - start, 1)
    words = f"the compiler runs in {len(steps)} of {_count_steps(parts)} steps"
    if not parts.steps.marked:
        words = f"the compiler runs {len(compiles)} times"
    if again:
        words += f"; a function is in its version {again + 1}"
    yield PatternSeen("recompiles", words, share)


def _recomputes(parts: Parts) -> Iterator[PatternSeen]:
    """Find forward operators inside of nodes of the backward pass, while the card has memory to spare."""
    ops, host = parts.ops, parts.trace.host
    is_node = parts.trace.named(host, is_node_of_backward)[ops.row]
    forward = parts.trace.named(host, lambda name: _FORWARD.match(name) is not None)[ops.row]
    rows = np.flatnonzero(is_node[ops.find_roots()] & forward)
    used = _share_of_memory(parts)
    if is_known(used) and used > FREE_MEMORY:
        return
    times = parts.ops.device_total if parts.gaps else parts.ops.own
    share = _busy_pct(parts, float(times[rows].sum()))
    words = f"{_say_each(parts, len(rows), 'forward operators')} run again in the backward pass"
    if is_known(used):
        words += f", with {100 - 100 * used:.0f} % of the card's memory never reserved"
    yield PatternSeen("recompute", words, share, frozenset({"memory free"} if is_known(used) else ()))


def _share_of_memory(parts: Parts) -> Known[float]:
    """Return the largest share (0-1) of a card's memory that was reserved."""
    found = []
    for peak in parts.peaks:
        card = find_device(parts.trace, peak.device) if peak.kind != "cpu" else None
        if card is not None and card.memory_bytes > 0 and is_known(peak.reserved_bytes):
            found.append(peak.reserved_bytes / card.memory_bytes)
    return max(found) if found else Missing("memory was not recorded (profile_memory=True)")


def _misaligned(parts: Parts) -> Iterator[PatternSeen]:
    work = parts.trace.work
    rows = _inside(parts, np.flatnonzero(parts.counted.misaligned == 1))
    share = _busy_pct(parts, float(work.duration[rows].sum()))
    if not len(rows):
        return
    shapes = parts.trace.host.shape[parts.ops.row[parts.ops.launchers[rows]]]
    most = find_main(shapes, work.duration[rows])
    row = int(rows[shapes == most][0])
    name = parts.trace.names[parts.trace.host.name[parts.ops.row[parts.ops.launchers[row]]]]
    product = measure_product(name, parse_inputs(parts.trace.shapes[most]))
    sizes = f" ({product.m} x {product.k} by {product.k} x {product.n})" if product else ""
    words = f"products whose sizes tensor cores do not take in full, most: {name}{sizes}"
    yield PatternSeen("misaligned-products", clean_name(words), share)
