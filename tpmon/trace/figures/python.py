"""Python functions of a trace with stacks: which are hot, and which line of the program is around a time."""

from __future__ import annotations

import re
import sys

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.trace_tables import FrameRow
from tpmon.trace.figures.nesting import Nest, nest
from tpmon.trace.reading.classes import flag
from tpmon.trace.reading.columns import Ints, Small, distinct
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category

MOST_FRAMES = 1000
"""Rows of the table of functions."""
_PLACE = re.compile(r"^(?P<file>[^<(]*\.py)\(\d+\): ")
_MODULE = "nn.Module: "


@dataclass(frozen=True, slots=True)
class Stacks:
    """Hold the Python functions nested by time, and for each the innermost line of the program around it.

    ``line`` is a number of the trace's names, that of the function itself where it is of the program, -1
    where there is none.
    """

    nest: Nest
    line: Ints


def is_own_line(name: str) -> bool:
    """Tell whether a function is of the program: not of torch, nor of Python's own library."""
    found = _PLACE.match(name)
    if found is None:
        return False
    first = found["file"].split("/")[0]
    return first != "torch" and first.removesuffix(".py") not in sys.stdlib_module_names


def nest_python(trace: Trace) -> Stacks:
    """Nest the Python functions of each thread that runs operators, of all where none does.

    Other threads (a progress bar, a monitor) only wait, and would lead the table.
    """
    python, host = trace.python, trace.host
    working = distinct(host.track[host.category == Category.OP])
    rows = np.flatnonzero(np.isin(python.track, working))
    rows = rows if len(rows) else np.arange(len(python.start))
    nested = nest(rows, python.start[rows], python.duration[rows], python.track[rows])
    own = flag(trace.names, is_own_line)
    names = python.name[nested.row].astype(np.int64)
    line = np.where(own[names], names, -1) if len(names) else names
    order = np.argsort(nested.depth, kind="stable")
    edges = (
        np.searchsorted(nested.depth[order], np.arange(int(nested.depth.max()) + 2)) if len(order) else [0]
    )
    for deep in range(1, len(edges) - 1):
        rows = order[edges[deep] : edges[deep + 1]]
        rows = rows[(line[rows] < 0) & (nested.parent[rows] >= 0)]
        line[rows] = line[nested.parent[rows]]
    return Stacks(nested, line)


def find_lines(stacks: Stacks, tracks: Small, times: Ints) -> Ints:
    """Return the innermost line of the program around each time on its thread, -1 for none."""
    place = stacks.nest.find(tracks, times)
    found = np.full(len(times), -1, dtype=np.int64)
    inside = place >= 0
    found[inside] = stacks.line[place[inside]]
    return found


def sum_frames(trace: Trace, stacks: Stacks) -> tuple[FrameRow, ...]:
    """Sum the Python functions by name, the largest time of its own first."""
    nested = stacks.nest
    if not len(nested.row):
        return ()
    python = trace.python
    duration = python.duration[nested.row]
    self_ns = np.maximum(duration - nested.child_ns, 0)
    names = python.name[nested.row].astype(np.int64)
    numbers, place = np.unique(names, return_inverse=True)
    outer = _find_outermost(place, nested.start, nested.end, python.track[nested.row])
    total = np.bincount(place, weights=np.where(outer, duration, 0))
    own = np.bincount(place, weights=self_ns)
    count = np.bincount(place)
    callers = _find_callers(place, stacks.line, self_ns)
    order = np.argsort(-own, kind="stable")
    found = []
    for at in order.tolist():
        name = trace.names[numbers[at]]
        if name.startswith(_MODULE):
            continue
        line = callers[at]
        caller: Applicable[str] = NOT_APPLICABLE
        if line >= 0 and line != numbers[at]:
            caller = clean_name(trace.names[line])
        found.append(FrameRow(clean_name(name), int(count[at]), total[at] / 1000, own[at] / 1000, caller))
    return tuple(found[:MOST_FRAMES])


def _find_outermost(
    place: Ints, start: Ints, end: Ints, track: Small
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which calls do not run inside of another one of the same function: recursion counts once."""
    order = np.lexsort((start, track, place))
    first = int(start.min())
    span = int(end.max()) - first + 1
    group = np.cumsum(
        np.append(0, (np.diff(place[order]) != 0) | (np.diff(track[order]) != 0)).astype(np.int64)
    )
    outer = np.ones(len(place), dtype=np.bool_)
    if span * (int(group[-1]) + 1) >= 1 << 62:
        return outer
    shift = group * span - first
    reach = np.maximum.accumulate(end[order] + shift)
    outer[order[1:]] = start[order[1:]] + shift[1:] >= reach[:-1]
    return outer


def _find_callers(place: Ints, line: Ints, self_ns: Ints) -> Ints:
    """Return for each function the line of the program that has most of its own time, -1 for none."""
    wide = int(line.max()) + 2
    pairs, pair_of = np.unique(place.astype(np.int64) * wide + line + 1, return_inverse=True)
    spent = np.bincount(pair_of, weights=self_ns)
    order = np.argsort(spent, kind="stable")
    found = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    found[pairs[order] // wide] = pairs[order] % wide - 1  # the last of equal keys stays: the largest
    return found
