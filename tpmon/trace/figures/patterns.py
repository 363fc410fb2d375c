"""Habits of a program that cost time, as a trace shows them. Each has a condition; none is a guess.

The thresholds keep out what is not worth a line. They are chosen, not measured; shares are percent of the
window of the steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, sum_known
from tpmon.model.results.trace import DeviceGaps, MemoryPeak
from tpmon.model.results.trace_tables import ProductRow, StepWork
from tpmon.trace.figures.breakdown import Activity, subtract
from tpmon.trace.figures.categories import (
    ATTENTION,
    CATEGORIES,
    COMMUNICATION,
    ELEMENTWISE,
    MEMORY_WORK,
    OPTIMIZER,
    JudgedWork,
    find_closures,
    holds,
    launched_inside,
    name_category,
)
from tpmon.trace.figures.gaps import DeviceCauses, HostCauses, sum_causes
from tpmon.trace.figures.kernels import LaunchFigures
from tpmon.trace.figures.matmuls import DTYPES, KINDS, CountedProduct
from tpmon.trace.figures.operators import Operators, match_nodes, measure_product, parse_inputs
from tpmon.trace.figures.program import Stacks
from tpmon.trace.figures.steady import SteadyPart
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Ints, Mask, distinct, find_main, group
from tpmon.trace.reading.read import Trace, clean_name, find_device
from tpmon.trace.reading.schema import (
    CallClass,
    Category,
    Device,
    flag,
    is_node_of_backward,
    is_optimizer,
    is_product_kernel,
    runs_compiled,
    uses_tensor_cores,
)
from tpmon.trace.reading.spans import Spans, intersect_total, unite_all, unite_rows

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
SMALL_OP_NS = 10_000
"""An operator that takes less by itself is mostly what starting it costs."""
SMALL_SHARE = 0.5
"""Of the operators' time: 0.63 to 0.69 of a recurrent cell in a loop, at most 0.27 of what else was tried."""
TINY_PCT = 10.0
"""Of the window that those calls take on the host, and that the device waits for the host."""
OPTIMIZER_KERNELS = 100
"""Kernels in one optimizer step; a fused one starts a few for each group of parameters."""
MOST_UPDATES = 0.8
"""Share (0-1) of all kernels in the optimizer from which on compiling the model leaves them as they are."""
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
FEW_BLOCKS_PCT = 20.0
"""Of the window in kernels that have fewer blocks than the card has SMs."""
MEMORY_WORK_PCT = 20.0
"""Of the window in element-wise work, norms and reductions, which a compiler fuses."""
THIN = 16
"""Rows or columns of a product below which tensor cores, which take 8 or 16 at once, are not used."""
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
    """Hold a trace and what was found in it; ``gaps`` and ``devices`` are those of the devices that count."""

    trace: Trace
    steady: SteadyPart
    ops: Operators
    activity: Activity
    causes: HostCauses
    devices: tuple[DeviceCauses, ...]
    counted: CountedProduct
    gaps: tuple[DeviceGaps, ...]
    products: tuple[ProductRow, ...]
    peaks: tuple[MemoryPeak, ...]
    stacks: Stacks | None
    judged: JudgedWork
    launches: LaunchFigures
    work: StepWork

    @property
    def steps(self) -> TraceSteps:
        """Return the steps that are judged."""
        return self.steady.steps


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
        (_hand_attention, ATTENTION_PCT),
        (_plain_products, FP32_PCT),
        (_rounded_products, FP32_PCT),
        (_few_blocks, FEW_BLOCKS_PCT),
        (_memory_work, MEMORY_WORK_PCT),
        (_half_products, MISALIGNED_PCT),
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
    """Return the idle time in which devices wait for launches and operators that launch."""
    computing = sum_known(gap.computing for gap in parts.gaps)
    return _idle_pct(parts, sum_causes(parts.gaps, "launch", "cpu_op") - computing)


def _busy_pct(parts: Parts, ns: float) -> float:
    """Return work of all devices in percent of the window of the steps, else work of the host."""
    return min(100 * ns / max(parts.judged.length_ns * max(len(parts.gaps), 1), 1), 100.0)


def _inside(parts: Parts, rows: Ints) -> Ints:
    """Return the rows of device work that start in the window of the steps."""
    start, end = parts.steps.window
    begins = parts.trace.work.start[rows]
    return rows[(begins >= start) & (begins < end) & ~holds(parts.judged.cuts, begins)]


def _count_steps(parts: Parts) -> int:
    return len(parts.steps.names) if parts.steady.unit else 1


def _say_each(parts: Parts, number: int, noun: str) -> str:
    """Say how many of something a step or repeat has, or the whole trace where there is neither."""
    unit = parts.steady.unit
    return f"{number / _count_steps(parts):,.0f} {noun}{f' a {unit}' if unit else ''}"


def _say_where(parts: Parts, rows: Ints, noun: str) -> str:
    """Say how many rows of device work a step has, or in how few of the steps all of them are."""
    steps = parts.steps
    at = distinct(np.searchsorted(steps.start, parts.trace.work.start[rows], side="right"))
    if not parts.steady.unit or len(at) >= SYNC_STEPS * len(steps.names):
        return _say_each(parts, len(rows), noun)
    return f"{len(rows):,} {noun} in {len(at)} of {len(steps.names)} {parts.steady.unit}s"


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
    count = _say_where(parts, rows, "copies")
    words = f"{count} that kernels do not hide, most of the time: {largest}"
    also = frozenset({"pageable"} if "Pageable ->" in largest else ())
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
    if not parts.steady.unit:
        return  # calls of a whole trace say nothing of a step
    if parts.gaps and _waits_for_host_pct(parts) < TINY_PCT:
        return  # the host is ahead of the device: its operators cost nothing
    ops, host = parts.ops, parts.trace.host
    start, end = parts.steps.host_window
    if not parts.gaps:
        inside = (ops.start >= start) & (ops.start < end) & ~holds(parts.judged.cuts, ops.start)
        own = ops.self_ns[inside]
        small = float(own[own < SMALL_OP_NS].sum())
        if small >= SMALL_SHARE * float(own.sum()) > 0:
            pct = 100 * small / float(own.sum())
            words = _say_each(parts, len(own), "operators")
            words += f", {pct:.0f} % of their time in those below 10 us"
            yield PatternSeen("tiny-operators", words, _busy_pct(parts, small), frozenset({"host alone"}))
            return
    nodes = parts.trace.named(host, is_node_of_backward)[ops.row]
    outer = np.flatnonzero((ops.depth == 0) & ~nodes & (ops.start >= start) & (ops.start < end))
    outer = outer[~holds(parts.judged.cuts, ops.start[outer])]
    if not len(outer):
        return
    groups = group(host.name[ops.row[outer]])
    spent = groups.sum(parts.ops.own[outer]) / 1000
    few = groups.count / _count_steps(parts) < TINY_CALLS
    spent[few | (spent / groups.count >= TINY_OP_US)] = 0
    at = int(np.argmax(spent))
    share = 100 * float(spent[at]) / (parts.judged.length_ns / 1000)
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
    updates = unite_rows(host, rows)  # wrappers mark the step of what they wrap once more
    count = max(len(updates.start), 1)
    updates = subtract(updates, find_closures(parts.trace))
    inside = updates.within(begins, begins + 1) > 0
    each = int(inside.sum()) / count
    if each >= OPTIMIZER_KERNELS:
        share = _cost_pct(parts, parts.judged.codes == OPTIMIZER) + _idle_inside(parts, updates)
        words = f"{each:,.0f} kernels in one step of the optimizer"
        also = frozenset({"updates alone"} if inside.mean() >= MOST_UPDATES else ())
        yield PatternSeen("unfused-optimizer", words, share, also)


def _cost_pct(parts: Parts, rows: Mask) -> float:
    """Return how much of the window some rows of device work run, on the mean device, in percent."""
    own, _full = parts.judged.split(parts.trace, np.where(rows, 0, 1).astype(np.int8), 2)
    return 100 * int(own[0]) / (parts.judged.length_ns * max(len(parts.judged.devices), 1))


def _idle_inside(parts: Parts, times: Spans) -> float:
    """Return how much of the window devices are idle within some times, in percent."""
    window, cuts = parts.steps.window, parts.judged.cuts
    idle = 0
    for one in parts.devices:
        idle += times.within_one(*window) - intersect_total(times, unite_all([one.busy, cuts]))
    return 100 * max(idle, 0) / (parts.judged.length_ns * max(len(parts.devices), 1))


def _syncs(parts: Parts) -> Iterator[PatternSeen]:
    calls, steps = parts.trace.calls, parts.steps
    share = _idle_pct(parts, sum_causes(parts.gaps, "sync_explicit", "sync_implicit"))
    if not parts.steady.unit or not parts.gaps:
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


_ROLES = {"aten::bmm": b"B", "aten::baddbmm": b"B", "aten::_softmax": b"S"}
_BY_HAND = re.compile(rb"Be*Se*B")


def _hand_attention(parts: Parts) -> Iterator[PatternSeen]:
    """Find products, a softmax and products again, with element-wise work alone between them."""
    trace, ops, work = parts.trace, parts.ops, parts.trace.work
    kernels = np.flatnonzero(
        (ops.launchers >= 0) & trace.select(Category.KERNEL) & (parts.judged.codes != ATTENTION)
    )
    places = distinct(ops.launchers[kernels])  # in the order of their threads and starts
    names = trace.host.name[ops.row[places]]
    roles = np.full(len(trace.names), ord("x"), np.uint8)
    for number in distinct(names).tolist():
        plain = name_category(trace.names[number], "operators") == ELEMENTWISE
        roles[number] = ord(_ROLES.get(trace.names[number], b"e" if plain else b"x"))
    found = [places[one.start() : one.end()] for one in _BY_HAND.finditer(roles[names].tobytes())]
    if not found:
        return
    taken = np.concatenate(found)
    nodes, made = match_nodes(trace, ops)
    rows = launched_inside(trace, ops.row[nodes[np.isin(made, taken)]])
    rows[kernels[np.isin(ops.launchers[kernels], taken)]] = True
    share = _cost_pct(parts, rows & (work.category == Category.KERNEL))
    times = _say_each(parts, len(found), "times")
    yield PatternSeen("hand-attention", f"attention as bmm, softmax and bmm, {times}", share)


def _list_tensor_cards(parts: Parts) -> list[Device]:
    """List the cards where all are of NVIDIA and have tensor cores: from Volta on, but for GTX 16."""
    numbers = parts.judged.devices
    cards = [card for device in numbers if (card := find_device(parts.trace, device))]
    good = all(card.major >= 7 and card.warp_size == 32 and "GTX 16" not in card.name for card in cards)
    return cards if good and len(cards) == len(numbers) else []


def _plain_products(parts: Parts) -> Iterator[PatternSeen]:
    trace = parts.trace
    cards = _list_tensor_cards(parts)
    if not cards:
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
    words = f"the compiler runs in {len(steps)} of {_count_steps(parts)} {parts.steady.unit}s"
    if not parts.steady.unit:
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


def _rounded_products(parts: Parts) -> Iterator[PatternSeen]:
    """Find products in TF32: bf16 moves half of the bytes, at twice the rate."""
    counted = parts.counted
    rows = (counted.dtype == DTYPES.index("tf32")) & (counted.kind > 0)
    cards = _list_tensor_cards(parts)
    if cards and rows.any() and all(card.major >= 8 for card in cards):
        kinds = " and ".join(dict.fromkeys(row.kind for row in parts.products if row.dtype == "tf32"))
        words = f"{kinds} in TF32, though the card has tensor cores for bf16, twice as fast"
        yield PatternSeen("tf32-products", words, _cost_pct(parts, rows))


def _few_blocks(parts: Parts) -> Iterator[PatternSeen]:
    """Find kernels with fewer blocks than the card has SMs: the batch is too small to fill it."""
    trace, work = parts.trace, parts.trace.work
    blocks = parts.launches.blocks_per_sm
    few = (blocks > 0) & (blocks < 1) & (parts.judged.codes != COMMUNICATION)
    rows = parts.judged.rows[few[parts.judged.rows]]
    card = find_device(trace, int(work.device[rows[0]])) if len(rows) else None
    if card is None or not card.sms:
        return
    length = work.duration[rows]
    order = np.argsort(blocks[rows], kind="stable")
    middle = order[int(np.searchsorted(np.cumsum(length[order]), length.sum() / 2))]
    largest = trace.names[find_main(work.name[rows], length)]
    words = (
        f"kernels with fewer blocks than the card has SMs ({card.sms}), half of that time below "
        f"{blocks[rows[middle]]:.2f} blocks per SM; most: {clean_name(largest, 80)}"
    )
    yield PatternSeen("few-blocks", words, _cost_pct(parts, few))


def _memory_work(parts: Parts) -> Iterator[PatternSeen]:
    """Find work that reads and writes memory for every single operation, where nothing fuses it."""
    if runs_compiled(parts.trace.names) or not len(parts.ops.row):
        return
    wanted = np.isin(parts.judged.codes, MEMORY_WORK)
    named = {CATEGORIES[code] for code in MEMORY_WORK}
    rows = [row for row in parts.work.categories if row.category in named]
    told = ", ".join(f"{row.category} {100 * row.us / parts.work.step_us:.0f} %" for row in rows)
    words = f"kernels that read and write memory for little arithmetic ({told} of the window)"
    yield PatternSeen("elementwise-heavy", words, _cost_pct(parts, wanted))


def _half_products(parts: Parts) -> Iterator[PatternSeen]:
    """Find products of 16 bit that run on ordinary cores, and name the largest of them with its sizes."""
    trace, ops, work, counted = parts.trace, parts.ops, parts.trace.work, parts.counted
    half = np.isin(counted.dtype, [DTYPES.index("fp16"), DTYPES.index("bf16")]) & (counted.kind > 0)
    plain = flag(
        trace.names, lambda name: is_product_kernel(name) and uses_tensor_cores(name) == "no", work.name[half]
    )
    slow = half & plain[work.name] if len(work.name) else half
    rows = parts.judged.rows[slow[parts.judged.rows]]
    if not len(rows) or not _list_tensor_cards(parts):
        return
    known = rows[ops.launchers[rows] >= 0]
    sizes, thin = "", False
    if len(known):
        at = int(known[np.argmax(work.duration[known])])
        host = ops.row[ops.launchers[at]]
        name, shape = trace.names[trace.host.name[host]], int(trace.host.shape[host])
        product = measure_product(name, parse_inputs(trace.shapes[shape])) if shape >= 0 else None
        sizes = f", most: {name}"
        if product:
            sizes += f" ({product.m} x {product.k} by {product.k} x {product.n})"
            thin = min(product.m, product.n) < THIN
    words = f"products of 16 bit on ordinary cores{sizes}"
    also = frozenset({"thin"} if thin else ())
    yield PatternSeen("half-off-tensor-cores", clean_name(words), _cost_pct(parts, slow), also)
