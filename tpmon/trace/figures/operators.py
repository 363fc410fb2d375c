"""Operators: host time by nesting, device time by the launches inside of each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.trace import OperatorRow
from tpmon.model.results.trace_tables import OperatorGroupRow
from tpmon.trace.figures.python import Stacks, find_lines
from tpmon.trace.reading.classes import flag, is_step
from tpmon.trace.reading.columns import Ints, Small
from tpmon.trace.reading.nesting import Nest, nest
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

MOST_GROUPS = 5000
"""Rows of operators by shape or by line."""


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


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Hold the times of each operator of a ``Nest``, in nanoseconds."""

    own: Ints
    self_ns: Ints
    device_total: Ints
    device_self: Ints


def time_operators(trace: Trace, ops: Nest, launchers: Ints) -> OperatorTimes:
    """Time each operator: self is without those right inside, device time is by launches."""
    own = trace.host.duration[ops.row]
    device_self = np.zeros(len(own), dtype=np.int64)
    known = launchers >= 0
    np.add.at(device_self, launchers[known], trace.work.duration[known])
    device_total = device_self.copy()
    for deep in range(int(ops.depth.max()) if len(own) else 0, 0, -1):
        inner = np.flatnonzero((ops.depth == deep) & (ops.parent >= 0))
        np.add.at(device_total, ops.parent[inner], device_total[inner])
    return OperatorTimes(own, np.maximum(own - ops.child_ns, 0), device_total, device_self)


def sum_operators(
    trace: Trace, ops: Nest, times: OperatorTimes, most: int | None = None
) -> tuple[OperatorRow, ...]:
    """Sum the operators by name, the largest self time first: on the device where there is one."""
    if not len(ops.row):
        return ()
    return tuple(
        OperatorRow(clean_name(trace.names[number]), *figures)
        for number, figures in _sum_by(trace, times, trace.host.name[ops.row], most)
    )


Figures = tuple[int, float, float, Applicable[float], Applicable[float]]
"""Calls, host total and self, device total and self, in microseconds."""


def _sum_by(
    trace: Trace, times: OperatorTimes, keys: Ints | Small, most: int | None
) -> Iterator[tuple[int, Figures]]:
    """Give each key with its sums, the largest self time first."""
    has_device = len(trace.work.start) > 0
    numbers, place = np.unique(keys, return_inverse=True)
    sums = [
        np.bincount(place, weights=values, minlength=len(numbers)) / 1000
        for values in (times.own, times.self_ns, times.device_total, times.device_self)
    ]
    counts = np.bincount(place, minlength=len(numbers))
    leading = sums[3] if has_device else sums[1]
    for at in np.lexsort((-sums[1], -leading))[:most].tolist():
        yield (
            int(numbers[at]),
            (
                int(counts[at]),
                float(sums[0][at]),
                float(sums[1][at]),
                float(sums[2][at]) if has_device else NOT_APPLICABLE,
                float(sums[3][at]) if has_device else NOT_APPLICABLE,
            ),
        )


def group_by_shape(trace: Trace, ops: Nest, times: OperatorTimes) -> tuple[OperatorGroupRow, ...]:
    """Sum the operators by name and input shapes; empty where the trace has no shapes."""
    if not len(ops.row) or not trace.shapes:
        return ()
    return _group(trace, ops, times, trace.host.shape[ops.row], _write_shape)


def group_by_line(
    trace: Trace, ops: Nest, times: OperatorTimes, stacks: Stacks
) -> tuple[OperatorGroupRow, ...]:
    """Sum the operators by name and the line of the program that called them; empty without stacks."""
    if not len(ops.row) or not len(stacks.line):
        return ()
    lines = find_lines(stacks, trace.host.track[ops.row], ops.start)
    return _group(trace, ops, times, lines, lambda trace, line: clean_name(trace.names[line]))


def _group(
    trace: Trace, ops: Nest, times: OperatorTimes, groups: Ints | Small, write: Callable[[Trace, int], str]
) -> tuple[OperatorGroupRow, ...]:
    wide = int(groups.max()) + 2
    keys = trace.host.name[ops.row].astype(np.int64) * wide + groups + 1
    found = []
    for key, figures in _sum_by(trace, times, keys, MOST_GROUPS):
        name, group = key // wide, key % wide - 1
        said: Known[str] = write(trace, group) if group >= 0 else Missing("not recorded for it")
        found.append(OperatorGroupRow(clean_name(trace.names[name]), said, *figures))
    return tuple(found)


def _write_shape(trace: Trace, number: int) -> str:
    """Write sizes and types of inputs in one line, without spaces inside of the sizes."""
    dims, types = (part.decode("utf-8", "replace") for part in trace.shapes[number])
    kinds = " ".join(types.split()).replace("[ ", "[").replace(" ]", "]")
    return clean_name(f"{''.join(dims.split())} {kinds}".strip(), 300)
