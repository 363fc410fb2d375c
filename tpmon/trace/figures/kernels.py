"""Kernels by name, what each launch could occupy, and how busy each device was."""

from __future__ import annotations

import math
import re
import shlex

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.trace import CardUse, CopyRow, KernelRow
from tpmon.model.results.trace_tables import HotKernel
from tpmon.trace.figures.breakdown import name_calls
from tpmon.trace.figures.matmuls import DTYPES, CountedProduct, find_peak, rate, share_of_peak
from tpmon.trace.figures.operators import Operators
from tpmon.trace.reading.columns import NAME_CHARS, Ints, Launch, Reals, distinct, find_main, group
from tpmon.trace.reading.read import Trace, clean_name, find_device
from tpmon.trace.reading.schema import Category, Device, begins, is_comm_kernel, uses_tensor_cores
from tpmon.trace.reading.spans import Nest, Spans, find_cuts, intersect_total, unite, unite_all, unite_rows

BLOCKS_PER_SM = {(7, 5): 16, (8, 6): 16, (8, 9): 24, (12, 0): 24}
"""Resident blocks a multiprocessor takes, by compute capability (CUDA programming guide); else 32."""
_BLOCKS_ELSE = 32
_MOST_OF_A_CARD = 1 << 31
NEAR_PEAK_PCT = 60.0
"""From here on a kernel is held by what the card can; the best libraries reach 70 to 90 % of a data sheet."""


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """Hold per row of device work what its launch says, NaN where it does not.

    ``limited`` says what limits the occupancy of a launch on a device, by their numbers.
    """

    blocks_per_sm: Reals
    reported_pct: Reals
    occupancy_pct: Reals
    limited: dict[tuple[int, int], str]


def occupancy(launch: Launch, card: Device) -> tuple[float, str]:
    """Return the share of resident threads in percent that a launch can reach, and what limits it.

    NaN where the trace lacks what the formula needs; the carve-out of shared memory is not known.
    """
    numbers = (launch.registers, launch.shared_bytes)
    facts = (card.threads_per_sm, card.registers_per_sm, card.shared_per_sm, card.sms, card.major)
    if len(launch.block) < 3 or len(launch.grid) < 3 or not all(map(math.isfinite, numbers)):
        return math.nan, ""
    if min(facts) <= 0 or max(facts) > _MOST_OF_A_CARD:
        return math.nan, ""
    threads = math.prod(launch.block)
    blocks = math.prod(launch.grid)
    if not threads or not blocks or card.warp_size != 32:
        return math.nan, ""
    warps = -(-threads // 32)
    limits = {
        "warps": card.threads_per_sm // 32 // warps,
        "blocks": BLOCKS_PER_SM.get((card.major, card.minor), _BLOCKS_ELSE),
    }
    if launch.registers > 0:
        per_warp = -(-int(launch.registers) * 32 // 256) * 256
        limits["registers"] = card.registers_per_sm // 4 // per_warp * 4 // warps
    reserved, grain = (1024, 128) if card.major >= 8 else (0, 256)
    shared = -(-(int(launch.shared_bytes) + reserved) // grain) * grain
    if shared > 0:
        limits["shared memory"] = card.shared_per_sm // shared
    per_card = blocks / card.sms
    name = min(limits, key=lambda one: limits[one])
    resident = min(limits[name], per_card)
    limited_by = "too few blocks" if per_card < limits[name] else name
    return min(resident * threads / card.threads_per_sm, 1.0) * 100, limited_by


def figure_launches(trace: Trace) -> LaunchFigures:
    """Return the figures of every row of device work."""
    work = trace.work
    size = len(work.start)
    blocks, reported, computed = (np.full(size, math.nan) for _ in range(3))
    limited: dict[tuple[int, int], str] = {}
    if trace.launches and size:
        has = np.flatnonzero((work.launch >= 0) & trace.select(Category.KERNEL))
        launch = work.launch[has]
        blocks[has] = np.array([one.blocks_per_sm for one in trace.launches])[launch]
        reported[has] = np.array([one.occupancy_pct for one in trace.launches])[launch]
        for device in distinct(work.device[has]).tolist():
            card = find_device(trace, device)
            here = has[work.device[has] == device]
            if card is None:
                continue
            values = np.full(len(trace.launches), math.nan)
            for number in distinct(work.launch[here]).tolist():
                values[number], limited[number, device] = occupancy(trace.launches[number], card)
            computed[here] = values[work.launch[here]]
    return LaunchFigures(blocks, reported, computed, limited)


def weigh(values: Reals, weights: Ints) -> Known[float]:
    """Return the mean of the values that are there, weighted."""
    there = np.isfinite(values) & (weights > 0)
    if not bool(there.any()):
        return Missing("no kernel of the trace has the value")
    return float(np.average(values[there], weights=weights[there]))


def sum_kernels(
    trace: Trace, figures: LaunchFigures, counted: CountedProduct, ops: Operators
) -> tuple[KernelRow, ...]:
    """Sum the kernels by name, the longest total first."""
    work = trace.work
    rows = np.flatnonzero(work.category == Category.KERNEL)
    rows = rows[np.argsort(work.name[rows], kind="stable")]
    found = []
    for part in np.split(rows, np.flatnonzero(np.diff(work.name[rows])) + 1) if len(rows) else []:
        name, length = trace.names[work.name[part[0]]], work.duration[part]
        longest = part[int(np.argmax(length))]
        why = figures.limited.get((int(work.launch[longest]), int(work.device[longest])), "")
        found.append(
            KernelRow(
                clean_name(name, NAME_CHARS),
                len(part),
                float(length.sum()) / 1000,
                float(length.mean()) / 1000,
                float(length.min()) / 1000,
                float(length.max()) / 1000,
                weigh(figures.blocks_per_sm[part], length),
                weigh(figures.reported_pct[part], length),
                weigh(figures.occupancy_pct[part], length),
                why or Missing("the trace lacks what the formula needs"),
                uses_tensor_cores(name),
                _main_operator(trace, ops, ops.launchers[part], length),
                *_rates(trace, counted, part, length),
            )
        )
    return tuple(sorted(found, key=lambda row: -row.total_us))


Rates = tuple[Known[float], Known[float], Known[float], Known[float], Known[str]]


def _rates(trace: Trace, counted: CountedProduct, part: Ints, length: Ints) -> Rates:
    """Return GB/s and TFLOP/s, each with its part of the card's peak, and which of both holds the kernel."""
    devices = distinct(trace.work.device[part]).tolist()
    peak = find_peak(find_device(trace, devices[0])) if len(devices) == 1 else None
    dtype = DTYPES[int(np.bincount(counted.dtype[part]).argmax())]
    gb_s, tflop_s = rate(counted.moved[part], length), rate(counted.flops[part], length, 1000)
    memory = share_of_peak(gb_s, peak.gb_s if peak else None)
    compute = share_of_peak(tflop_s, peak.tflop_s.get(dtype) if peak else None)
    return gb_s, memory, tflop_s, compute, _name_bound(memory, compute, is_product=bool(dtype))


def _name_bound(memory: Known[float], compute: Known[float], is_product: bool) -> Known[str]:
    """Tell what holds a kernel: the memory or the arithmetic of the card, or neither."""
    for name, pct in (("compute", compute), ("memory", memory)):
        if is_known(pct) and pct >= NEAR_PEAK_PCT:
            return name
    if is_known(memory) and (is_known(compute) or not is_product):
        return "neither"
    return compute if is_product and not is_known(compute) else Missing("no shapes that tell it")


def _main_operator(trace: Trace, ops: Nest, places: Ints, length: Ints) -> Known[str]:
    known = places >= 0
    if not bool(known.any()):
        return Missing("launched before the capture, or outside of every operator")
    return clean_name(
        trace.names[find_main(trace.host.name[ops.row[places[known]]], length[known])], NAME_CHARS
    )


def sum_copies(trace: Trace) -> tuple[CopyRow, ...]:
    """Sum copies and sets of memory by name, the longest first."""
    work = trace.work
    rows = np.flatnonzero(work.category != Category.KERNEL)
    groups = group(work.name[rows])
    totals, bytes_ = groups.sum(work.duration[rows]), groups.sum(work.moved_bytes[rows])
    found = []
    for number, count, total, moved in zip(groups.keys, groups.count.tolist(), totals, bytes_, strict=True):
        speed: Known[float] = float(moved / total) if total and moved else Missing("no bytes or no time")
        name = trace.names[number]
        row = CopyRow(
            clean_name(name, NAME_CHARS), count, float(total) / 1000, int(moved), speed, "Pageable" in name
        )
        found.append(row)
    return tuple(sorted(found, key=lambda row: -row.total_us))


WARM_STEPS = 3
"""Steps to pass over before the launch that is profiled: the first ones allocate and choose algorithms."""
MOST_LAUNCHES = 50
"""Each launch is played again some dozens of times: more take minutes."""
LEAST_PCT = 5.0
"""A kernel below this share of the kernels' time is not worth profiling alone."""
_IS_OF_CARDS = begins(r"cuda[A-Z]|hip[A-Z]|cu[A-Z]")
_IS_OF_OTHERS = begins(r"(?:hip|ur|ze)[A-Z]")
"""A call of HIP, Unified Runtime or Level Zero."""
_IDENTIFIER = re.compile(r"([A-Za-z_]\w*)$")
_TEMPLATE = re.compile(r"<[^<>]*>")


def find_hot_kernel(
    trace: Trace, kernels: tuple[KernelRow, ...], rows: Ints, steps: int
) -> Applicable[HotKernel]:
    """Name the kernel with the longest total that is no communication; ``steps`` are the marked ones.

    ``rows`` are the device work that is judged: what runs once, before a loop, is not worth profiling.
    NOT_APPLICABLE where none takes ``LEAST_PCT`` of the kernels' time.
    """
    rows = rows[trace.work.category[rows] == Category.KERNEL]
    groups = group(trace.work.name[rows])
    spent = groups.sum(trace.work.duration[rows])
    total = float(spent.sum())
    names = [trace.names[number] for number in groups.keys]
    computing = [at for at, name in enumerate(names) if not is_comm_kernel(name)]
    at = max(computing, key=lambda one: float(spent[one]), default=-1)
    if at < 0 or not total or 100 * float(spent[at]) / total < LEAST_PCT:
        return NOT_APPLICABLE
    name = clean_name(names[at], NAME_CHARS)
    row = next(row for row in kernels if row.name == name)
    return HotKernel(row.name, 100 * float(spent[at]) / total, _write_command(trace, row, kernels, steps))


def _write_command(trace: Trace, row: KernelRow, kernels: tuple[KernelRow, ...], steps: int) -> Known[str]:
    """Write the command of Nsight Compute: launches of one step, after the first steps.

    Where none are marked it passes over half of the launches of the trace: a run has no fewer. It tells
    kernels apart by their bare name: where several have it, all of one step are profiled.
    """
    cards = [find_device(trace, device) for device in trace.list_devices()]
    other = any(card is not None and card.warp_size != 32 for card in cards)
    called = trace.named(trace.calls, _IS_OF_OTHERS)
    if other or trace.header.hip_runtime is not None or bool(called.any()):
        return Missing("Nsight Compute profiles cards of NVIDIA alone")
    base = base_name(row.name)
    if not base:
        return Missing("no name to give to Nsight Compute")
    alike = [one for one in kernels if base in one.name and base_name(one.name) == base]
    launches = sum(one.count for one in alike)
    each = math.ceil(launches / steps) if steps else launches - launches // 2
    skip = WARM_STEPS * each if steps else launches // 2
    count = 1 if len(alike) == 1 else min(each, MOST_LAUNCHES)
    return (
        f"ncu --set full --kernel-name {shlex.quote(base)} --launch-skip {skip} "
        f"--launch-count {count} --target-processes all -o kernel python train.py"
    )


def base_name(kernel: str) -> str:
    """Return the bare name of a function, as ``--kernel-name`` compares it; "" where it cannot be told."""
    text = kernel.replace("(anonymous namespace)", "")
    while (outer := _TEMPLATE.sub("", text)) != text:
        text = outer
    found = _IDENTIFIER.search(re.split("[<(]", text)[0].replace(">", "").strip())
    return found[1] if found else ""


def use_card(
    trace: Trace, figures: LaunchFigures, window: tuple[int, int], device: int, cuts: Spans
) -> CardUse:
    """Return how busy a device with work was, in the window of the steps."""
    work = trace.work
    rows = np.flatnonzero(trace.select(Category.KERNEL, device))
    start, end, length = work.start[rows], work.end[rows], work.duration[rows]
    busy, every = unite_rows(work, rows), unite_rows(work, work.device == device)
    cuts = unite_all([find_cuts(trace.header, window), cuts])
    span = max(window[1] - window[0] - cuts.total, 1)
    inside = np.clip(np.minimum(end, window[1]) - np.maximum(start, window[0]), 0, None)
    groups = group(work.name[rows])
    by_answer = {"yes": 0, "no": 0, "unknown": 0}
    for number, spent in zip(groups.keys.tolist(), groups.sum(length).tolist(), strict=True):
        by_answer[uses_tensor_cores(trace.names[number])] += int(spent)
    total = int(length.sum())
    card = find_device(trace, device)
    tensor: dict[str, Known[float]] = {name: 100 * ns / max(total, 1) for name, ns in by_answer.items()}
    if not total or not _may_have_tensor_cores(trace, card):
        why = "the device has no tensor cores" if total else "no kernels on this device"
        tensor = dict.fromkeys(by_answer, Missing(why))
    return CardUse(
        device=device,
        name=clean_name(card.name, 80) if card and card.name else Missing("the trace does not describe it"),
        kernels=len(rows),
        kernel_us=total / 1000,
        kernel_busy_us=busy.total / 1000,
        busy_us=every.total / 1000,
        utilization_pct=100 * (busy.within_one(*window) - intersect_total(busy, cuts)) / span,
        busy_pct=100 * (every.within_one(*window) - intersect_total(every, cuts)) / span,
        sm_efficiency_pct=_sm_efficiency(start, end, figures.blocks_per_sm[rows], window, cuts),
        occupancy_reported_pct=weigh(figures.reported_pct[rows], inside),
        occupancy_pct=weigh(figures.occupancy_pct[rows], inside),
        tensor_core_pct=tensor["yes"],
        tensor_core_unknown_pct=tensor["unknown"],
        **_measure_queue(trace, window, device, cuts),
    )


def _measure_queue(
    trace: Trace, window: tuple[int, int], device: int, cuts: Spans
) -> dict[str, Known[float]]:
    """Return the median delay from the return of a launch to its work, and when nothing launched waits."""
    work = trace.work
    rows = np.flatnonzero((work.device == device) & (work.call >= 0))
    rows = rows[(work.start[rows] >= window[0]) & (work.start[rows] < window[1])]
    if not len(rows):
        untold = Missing("no call of the trace launched its work")
        return {"launch_delay_us": untold, "queue_empty_pct": untold}
    returned = trace.calls.end[work.call[rows]]
    delay = np.maximum(work.start[rows] - returned, 0)
    waiting = unite(returned, delay)
    span = max(window[1] - window[0] - cuts.total, 1)
    filled = waiting.within_one(*window) - intersect_total(waiting, cuts)
    return {"launch_delay_us": float(np.median(delay)) / 1000, "queue_empty_pct": 100 * (1 - filled / span)}


def _may_have_tensor_cores(trace: Trace, card: Device | None) -> bool:
    """Tell whether a device knows the notion: cards of NVIDIA from Volta on (not GTX 16), and of AMD."""
    if card is not None and card.major:
        return card.warp_size != 32 or (card.major >= 7 and "GTX 16" not in card.name)
    called = name_calls(trace, _IS_OF_CARDS)
    return bool(called.any()) or not len(called)


def fill_sms(start: Ints, end: Ints, blocks: Reals) -> tuple[Ints, Reals]:
    """Return the times at which kernels begin or end, and min(sum of their blocks per SM, 1) after each."""
    times = np.concatenate((start, end))
    order = np.argsort(times, kind="stable")
    change = np.concatenate((blocks, -blocks))[order]
    return times[order], np.clip(np.cumsum(change)[:-1], 0.0, 1.0)


def _sm_efficiency(
    start: Ints, end: Ints, blocks: Reals, window: tuple[int, int], cuts: Spans
) -> Known[float]:
    """Integrate what ``fill_sms`` returns over what was not cut out of the window, in percent of it."""
    good = np.isfinite(blocks) & (blocks > 0)
    if not bool(good.any()):
        return Missing("no kernel of the trace has blocks per SM")
    start, end, blocks = np.maximum(start[good], window[0]), np.minimum(end[good], window[1]), blocks[good]
    inside = end > start
    times, level = fill_sms(start[inside], end[inside], blocks[inside])
    lengths = np.diff(times) - cuts.within(times[:-1], times[1:])
    return float((level * lengths).sum()) * 100 / max(window[1] - window[0] - cuts.total, 1)
