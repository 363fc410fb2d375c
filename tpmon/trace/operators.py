"""Operators: host time by nesting, device time by the launches inside of each one."""

from __future__ import annotations

import numpy as np

from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.trace import OperatorRow
from tpmon.trace.classes import flag, is_step
from tpmon.trace.columns import Ints
from tpmon.trace.nesting import Nest, nest
from tpmon.trace.read import Trace, clean_name
from tpmon.trace.schema import Category


def nest_operators(trace: Trace) -> Nest:
    """Nest the operators of the host; marks of steps are none."""
    host = trace.host
    steps = flag(trace.names, is_step)
    rows = np.flatnonzero((host.category == Category.OP) & ~steps[host.name])
    return nest(rows, host.start[rows], host.duration[rows], host.track[rows])


def find_launchers(trace: Trace, ops: Nest, launched_by: Ints) -> Ints:
    """Return for each row of device work the place of its operator in ``ops``, -1 for none.

    It is the innermost one on the thread of the call that contains the start of the call.
    """
    found = np.full(len(launched_by), -1, dtype=np.int64)
    matched = np.flatnonzero(launched_by >= 0)
    calls = launched_by[matched]
    found[matched] = ops.find(trace.calls.track[calls], trace.calls.start[calls])
    return found


def sum_operators(
    trace: Trace, ops: Nest, launchers: Ints, most: int | None = None
) -> tuple[OperatorRow, ...]:
    """Sum the operators by name, the largest self time first: on the device where there is one."""
    if not len(ops.row):
        return ()
    own = trace.host.duration[ops.row]
    self_ns = np.maximum(own - ops.child_ns, 0)
    has_device = len(trace.work.start) > 0
    device_self = np.zeros(len(own), dtype=np.int64)
    known = launchers >= 0
    np.add.at(device_self, launchers[known], trace.work.duration[known])
    device_total = device_self.copy()
    for deep in range(int(ops.depth.max()), 0, -1):
        inner = np.flatnonzero((ops.depth == deep) & (ops.parent >= 0))
        np.add.at(device_total, ops.parent[inner], device_total[inner])
    numbers, place = np.unique(trace.host.name[ops.row], return_inverse=True)
    sums = [
        np.bincount(place, weights=values, minlength=len(numbers)) / 1000
        for values in (own, self_ns, device_total, device_self)
    ]
    counts = np.bincount(place, minlength=len(numbers))
    leading = sums[3] if has_device else sums[1]
    order = np.lexsort((-sums[1], -leading))[:most]
    return tuple(
        OperatorRow(
            clean_name(trace.names[numbers[at]]),
            int(counts[at]),
            float(sums[0][at]),
            float(sums[1][at]),
            float(sums[2][at]) if has_device else NOT_APPLICABLE,
            float(sums[3][at]) if has_device else NOT_APPLICABLE,
        )
        for at in order.tolist()
    )
