"""Ranges that the program marked itself with record_function: how long, and the device work inside.

What torch marks of its own accord has other places: steps, the loader, optimizers, collectives.
"""

from __future__ import annotations

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.trace_tables import RangeRow
from tpmon.model.text.redaction import hide
from tpmon.trace.figures.nesting import nest
from tpmon.trace.reading.classes import flag, is_comm_host, is_loader, is_step
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

MOST_RANGES = 1000
"""Rows of ranges; a program that writes numbers into the names makes one of each call."""
_OPTIMIZER = "Optimizer."


def sum_ranges(trace: Trace, launched_by: Ints) -> tuple[RangeRow, ...]:
    """Sum the ranges by name, the longest on the host first, after them those of a device alone."""
    host = trace.host
    own = ~flag(trace.names, _is_of_torch)[host.name]
    rows = np.flatnonzero((host.category == Category.ANNOTATION) & own)
    on_device = np.flatnonzero((host.category == Category.GPU_ANNOTATION) & own)
    if len(on_device):
        # A device repeats the ranges of the host: those that only it has were recorded without the host.
        there = np.zeros(len(trace.names), np.bool_)
        there[host.name[rows]] = True
        on_device = on_device[~there[host.name[on_device]]]
    return (*_sum_host(trace, rows, launched_by), *_sum_device(trace, on_device))[:MOST_RANGES]


def _is_of_torch(name: str) -> bool:
    return is_step(name) or is_loader(name) or is_comm_host(name) or name.startswith(_OPTIMIZER)


def _sum_host(trace: Trace, rows: Ints, launched_by: Ints) -> list[RangeRow]:
    if not len(rows):
        return []
    host = trace.host
    ranges = nest(rows, host.start[rows], host.duration[rows], host.track[rows])
    own = host.duration[ranges.row]
    work = np.zeros(len(own), dtype=np.int64)
    matched = np.flatnonzero(launched_by >= 0)
    calls = launched_by[matched]
    place = ranges.find(trace.calls.track[calls], trace.calls.start[calls])
    inside = place >= 0
    np.add.at(work, place[inside], trace.work.duration[matched[inside]])
    for deep in range(int(ranges.depth.max()), 0, -1):
        inner = np.flatnonzero((ranges.depth == deep) & (ranges.parent >= 0))
        np.add.at(work, ranges.parent[inner], work[inner])
    has_device = len(trace.work.start) > 0
    numbers, place_of = np.unique(host.name[ranges.row], return_inverse=True)
    columns = (own, np.maximum(own - ranges.child_ns, 0), work)
    sums = [np.bincount(place_of, weights=column, minlength=len(numbers)) / 1000 for column in columns]
    counts = np.bincount(place_of, minlength=len(numbers))
    found = []
    for at in np.argsort(-sums[0], kind="stable").tolist():
        total, alone, device = (float(one[at]) for one in sums)
        on_device: Applicable[float] = device if has_device else NOT_APPLICABLE
        name = clean_name(hide(trace.names[numbers[at]]))
        found.append(RangeRow(name, int(counts[at]), total, alone, total / int(counts[at]), on_device))
    return found


def _sum_device(trace: Trace, rows: Ints) -> list[RangeRow]:
    """Sum ranges that the device alone has: from its first work in them to its last."""
    if not len(rows):
        return []
    host = trace.host
    numbers, place_of = np.unique(host.name[rows], return_inverse=True)
    sums = np.bincount(place_of, weights=host.duration[rows], minlength=len(numbers)) / 1000
    counts = np.bincount(place_of, minlength=len(numbers))
    none = NOT_APPLICABLE
    return [
        RangeRow(
            clean_name(hide(trace.names[numbers[at]])), int(counts[at]), none, none, none, float(sums[at])
        )
        for at in np.argsort(-sums, kind="stable").tolist()
    ]
