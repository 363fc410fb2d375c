"""Modules of the model and ranges of the program: host and device time.

A module covers what its forward runs on its thread. Work of the backward pass has no module around it: it
goes to the one whose operator made the node of autograd, by the sequence number that both have.

What torch marks of its own accord has other places: steps, the loader, optimizers, collectives.
"""

from __future__ import annotations

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.trace_tables import ModuleRow, RangeRow
from tpmon.model.text.redaction import hide
from tpmon.trace.reading.classes import flag, is_comm_host, is_loader, is_step
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.nesting import Nest, nest
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

MODULE = "nn.Module: "
BACKWARD = "autograd::engine::evaluate_function: "


def sum_modules(trace: Trace, ops: Nest, launchers: Ints, launched_by: Ints) -> tuple[ModuleRow, ...]:
    """Sum the modules by name, the longest first; empty where the trace has none (with_stack=True)."""
    python = trace.python
    rows = np.flatnonzero(flag(trace.names, lambda name: name.startswith(MODULE))[python.name])
    if not len(rows):
        return ()
    modules = nest(rows, python.start[rows], python.duration[rows], python.track[rows])
    own = python.duration[modules.row]
    self_ns = np.maximum(own - modules.child_ns, 0)
    has_device = len(trace.work.start) > 0
    forward = _sum_forward(trace, modules, launched_by)
    backward = _sum_backward(trace, modules, ops, launchers)
    numbers, place = np.unique(python.name[modules.row], return_inverse=True)

    has_backward = bool(backward.any())
    columns = [own, self_ns, _add_up(modules, forward), forward, _add_up(modules, backward), backward]
    sums = [np.bincount(place, weights=column, minlength=len(numbers)) / 1000 for column in columns]
    counts = np.bincount(place, minlength=len(numbers))
    first = np.full(len(numbers), len(place), dtype=np.int64)
    np.minimum.at(first, place, np.arange(len(place)))
    leading = sums[2] + sums[4] if has_device else sums[0] + sums[4]
    found = []
    for at in np.lexsort((first, -leading)).tolist():
        above = int(modules.parent[first[at]])
        inside: Applicable[str] = NOT_APPLICABLE
        if above >= 0:
            inside = _short(trace.names[python.name[modules.row[above]]])
        figures = [float(one[at]) for one in sums]
        found.append(
            ModuleRow(
                _short(trace.names[numbers[at]]),
                inside,
                int(counts[at]),
                figures[0],
                figures[1],
                figures[2] if has_device else NOT_APPLICABLE,
                figures[3] if has_device else NOT_APPLICABLE,
                figures[4] if has_backward else NOT_APPLICABLE,
                figures[5] if has_backward else NOT_APPLICABLE,
            )
        )
    return tuple(found)


def _short(name: str) -> str:
    return clean_name(name.removeprefix(MODULE), 200)


def _add_up(modules: Nest, values: Ints) -> Ints:
    """Add to each module what those inside of it have."""
    total: Ints = values.copy()
    for deep in range(int(modules.depth.max()), 0, -1):
        inner = np.flatnonzero((modules.depth == deep) & (modules.parent >= 0))
        np.add.at(total, modules.parent[inner], total[inner])
    return total


def _sum_forward(trace: Trace, modules: Nest, launched_by: Ints) -> Ints:
    """Sum the device work that calls inside of each module launched, in nanoseconds."""
    found = np.zeros(len(modules.row), dtype=np.int64)
    matched = np.flatnonzero(launched_by >= 0)
    calls = launched_by[matched]
    place = modules.find(trace.calls.track[calls], trace.calls.start[calls])
    inside = place >= 0
    np.add.at(found, place[inside], trace.work.duration[matched[inside]])
    return found


def find_roots(ops: Nest) -> Ints:
    """Return the outermost operator around each one."""
    root = np.arange(len(ops.row))
    for deep in range(1, int(ops.depth.max()) + 1 if len(root) else 0):
        inner = np.flatnonzero((ops.depth == deep) & (ops.parent >= 0))
        root[inner] = root[ops.parent[inner]]
    return root


def _sum_backward(trace: Trace, modules: Nest, ops: Nest, launchers: Ints) -> Ints:
    """Sum what the backward pass of each module takes: on the device, or on the host without one."""
    found = np.zeros(len(modules.row), dtype=np.int64)
    if not len(ops.row):
        return found
    host = trace.host
    sequence = host.sequence[ops.row]
    root = find_roots(ops)
    is_node = flag(trace.names, lambda name: name.startswith(BACKWARD))[host.name[ops.row]]
    backward = is_node[root]
    ahead = np.flatnonzero(~backward & (sequence >= 0))
    nodes = np.flatnonzero(is_node & (root == np.arange(len(root))) & (sequence >= 0))
    if not len(ahead) or not len(nodes):
        return found
    # Operators that make no node carry the number of the next one: the last to start is the one that made it.
    order = ahead[np.lexsort((ops.start[ahead], sequence[ahead]))]
    at = np.searchsorted(sequence[order], sequence[nodes], side="right") - 1
    good = (at >= 0) & (sequence[order[np.maximum(at, 0)]] == sequence[nodes])
    nodes, made = nodes[good], order[at[good]]
    module_of = np.full(len(ops.row), -1, dtype=np.int64)
    module_of[nodes] = modules.find(host.track[ops.row[made]], ops.start[made])
    if len(trace.work.start):
        rows = np.flatnonzero(launchers >= 0)
        place, length = module_of[root[launchers[rows]]], trace.work.duration[rows]
    else:
        place, length = module_of[nodes], host.duration[ops.row[nodes]]
    inside = place >= 0
    np.add.at(found, place[inside], length[inside])
    return found


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
