"""Which operators allocate: how much, what of it is kept, and what lived when most was allocated."""

from __future__ import annotations

import re

import numpy as np

from tpmon.model.known import Known, Missing
from tpmon.model.results.trace_tables import AllocationRow
from tpmon.trace.figures.memory import each_device, name_kind
from tpmon.trace.figures.nesting import Nest
from tpmon.trace.reading.classes import flag
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace, clean_name

OUTSIDE = "(outside of operators)"
BEFORE = "(before the capture)"
_HANDS_ON = re.compile(r"^aten::(?:new_)?(?:empty|resize)\w*$")
"""Operators that only get memory for the one that called them."""
_NO_ADDRESSES = Missing("the trace has no addresses")
_NO_TOTALS = Missing("the trace has no totals")


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
            found.append(
                AllocationRow(
                    name_kind(kind),
                    device,
                    clean_name(trace.names[number]) if number >= 0 else OUTSIDE,
                    int(here.sum()),
                    int(size[here].sum()),
                    int(size[here & kept].sum()) if has_addresses else _NO_ADDRESSES,
                    int(size[here & alive].sum()) if has_addresses and has_totals else _NO_ADDRESSES,
                )
            )
        if has_addresses and has_totals:
            older = int(memory.allocated[rows[peak]]) - int(size[alive].sum())
            if older > 0:
                unknown: Known[int] = Missing("it was allocated before the capture")
                found.append(AllocationRow(name_kind(kind), device, BEFORE, 0, 0, unknown, older))
    return tuple(
        sorted(found, key=lambda row: (row.kind == "cpu", row.kind, row.device, -row.allocated_bytes))
    )


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
