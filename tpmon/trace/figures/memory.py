"""What the trace recorded of allocations, and which operators made them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.results.trace import MemoryPeak
from tpmon.model.results.trace_tables import AllocationRow, CurvePoint, MemoryCurve
from tpmon.trace.figures.breakdown import MOST_DEVICES
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import flag
from tpmon.trace.reading.spans import Nest

_KINDS = {0: "cpu", 1: "cuda", 6: "hip", 9: "vulkan", 12: "xpu", 13: "mps", 17: "hpu"}
MOST_POINTS = 200
"""Points of a curve: more than columns of a wide terminal."""
_NOT_RESERVED = Missing("memory of the host has no cache that reserves it")
_NO_TOTALS = Missing("the trace has no totals")


def name_kind(kind: int) -> str:
    """Name a type of devices as torch numbers them."""
    return _KINDS.get(kind, f"device type {kind}")


def each_device(trace: Trace) -> Iterator[tuple[int, int, Ints]]:
    """Give type, number and rows of each device that allocated, at most ``MOST_DEVICES``."""
    memory = trace.memory
    pairs = (
        (kind, device)
        for kind in distinct(memory.device_type).tolist()
        for device in distinct(memory.device[memory.device_type == kind]).tolist()
    )
    for kind, device in islice(pairs, MOST_DEVICES):
        yield kind, device, np.flatnonzero((memory.device_type == kind) & (memory.device == device))


def sum_memory(trace: Trace, steps: TraceSteps) -> tuple[MemoryPeak, ...]:
    """Return peaks and sums by device; the peaks are missing in traces before torch 1.10."""
    memory = trace.memory
    found = []
    for kind, device, rows in each_device(trace):
        changed = memory.changed_bytes[rows]
        allocated, reserved = memory.allocated[rows], memory.reserved[rows]
        peaks = (_peak(allocated), _peak(reserved) if kind else _NOT_RESERVED)
        sums = (int(changed[changed > 0].sum()), -int(changed[changed < 0].sum()))
        unused = _unused(allocated, reserved) if kind else _NOT_RESERVED
        row = (*peaks, *sums, _growth(memory.time[rows], allocated, steps), unused)
        found.append(MemoryPeak(name_kind(kind), device, len(rows), *row))
    return tuple(found)


def _peak(values: Ints) -> Known[int]:
    highest = int(values.max())
    return highest if highest >= 0 else _NO_TOTALS


def _growth(times: Ints, allocated: Ints, steps: TraceSteps) -> Known[int]:
    """Return by how much the total rose from the end of the first step to the end of the last."""
    if not steps.marked or len(steps.names) < 2:
        return Missing("fewer than two marked steps")
    at = np.searchsorted(times, [int(steps.host_end[0]), int(steps.host_end[-1])], side="right") - 1
    if int(at[0]) < 0 or int(allocated[at].min()) < 0:
        return _NO_TOTALS
    return int(allocated[at[1]] - allocated[at[0]])


def _unused(allocated: Ints, reserved: Ints) -> Known[float]:
    """Return what of the reserved memory was not allocated when most was, in percent."""
    at = int(np.argmax(allocated))
    if int(allocated[at]) < 0 or int(reserved[at]) <= 0:
        return _NO_TOTALS
    return 100 * max(int(reserved[at] - allocated[at]), 0) / int(reserved[at])


def draw_memory(trace: Trace, origin: int) -> tuple[MemoryCurve, ...]:
    """Return the highest totals of each part of the trace by device; ``origin`` is where its time begins."""
    memory = trace.memory
    found = []
    for kind, device, every in each_device(trace):
        rows = every[memory.allocated[every] >= 0]
        if not len(rows):
            continue
        times, allocated, reserved = memory.time[rows], memory.allocated[rows], memory.reserved[rows]
        span = max(int(times[-1] - times[0]), 1)
        # Of a longer span, which no trace has, the product would not fit.
        part = (times - times[0]) * (MOST_POINTS - 1 if span < 1 << 55 else 0) // span
        order = np.lexsort((allocated, part))
        highest = order[np.append(np.flatnonzero(np.diff(part[order])), len(order) - 1)]
        columns = (column[highest].tolist() for column in (times, allocated, reserved))
        points = tuple(
            CurvePoint((time - origin) / 1e6, total, kept if kind and kept >= 0 else NOT_APPLICABLE)
            for time, total, kept in zip(*columns, strict=True)
        )
        found.append(MemoryCurve(name_kind(kind), device, points))
    return tuple(found)


OUTSIDE = "(outside of operators)"
BEFORE = "(before the capture)"
_HANDS_ON = re.compile(r"^aten::(?:new_)?(?:empty|resize)\w*$")
"""Operators that only get memory for the one that called them."""
_NO_ADDRESSES = Missing("the trace has no addresses")


def sum_allocations(trace: Trace, ops: Nest) -> tuple[AllocationRow, ...]:
    """Sum allocations by device and operator, the largest sum first."""
    memory = trace.memory
    found: list[AllocationRow] = []
    if not len(memory.time):
        return ()
    owner = _find_owners(trace, ops)
    for kind, device, rows in each_device(trace):
        grown = np.flatnonzero(memory.changed_bytes[rows] > 0)
        if not len(grown):
            continue
        size = memory.changed_bytes[rows[grown]]
        has_addresses = bool(memory.address[rows].any())
        freed = _find_ends(memory.address[rows])[grown]
        peak = int(np.argmax(memory.allocated[rows]))
        has_totals = int(memory.allocated[rows[peak]]) >= 0
        alive = (grown <= peak) & (freed > peak)
        kept = freed == len(rows)
        names = owner[rows[grown]]
        for number in distinct(names).tolist():
            here = names == number
            by = clean_name(trace.names[number]) if number >= 0 else OUTSIDE
            stays = int(size[here & kept].sum()) if has_addresses else _NO_ADDRESSES
            peak_bytes = int(size[here & alive].sum()) if has_addresses and has_totals else _NO_ADDRESSES
            sums = (int(here.sum()), int(size[here].sum()), stays, peak_bytes)
            found.append(AllocationRow(name_kind(kind), device, by, *sums))
        if has_addresses and has_totals:
            older = int(memory.allocated[rows[peak]]) - int(size[alive].sum())
            if older > 0:
                unknown: Known[int] = Missing("it was allocated before the capture")
                found.append(AllocationRow(name_kind(kind), device, BEFORE, 0, 0, unknown, older))
    found.sort(key=lambda row: (row.kind == "cpu", row.kind, row.device, -row.allocated_bytes))
    return tuple(found)


def _find_owners(trace: Trace, ops: Nest) -> Ints:
    """Return for each event the name of the innermost operator that does more than get memory, else -1."""
    memory = trace.memory
    place = ops.find(memory.track, memory.time)
    name = np.full(len(place), -1, dtype=np.int64)
    hands_on = flag(trace.names, lambda text: _HANDS_ON.match(text) is not None)
    inside = place >= 0
    name[inside] = trace.host.name[ops.row[place[inside]]]
    climbing = np.flatnonzero(inside)
    while len(climbing):
        climbing = climbing[hands_on[name[climbing]]]
        above = ops.parent[place[climbing]]
        climbing, above = climbing[above >= 0], above[above >= 0]
        place[climbing] = above
        name[climbing] = trace.host.name[ops.row[above]]
    return name


def _find_ends(address: Ints) -> Ints:
    """Return for each event the place of the next one of its address, else their number.

    It is a free, or an allocation where the trace has missed the free.
    """
    count = len(address)
    order = np.lexsort((np.arange(count), address))
    following = np.full(count, count, dtype=np.int64)
    same = address[order[1:]] == address[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following
