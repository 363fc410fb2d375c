"""The steps of a trace: as the host marked them, and as the loop counted them.

kineto does not know which step it records. The hook notes when each step ended, on the same clock of the
machine: as many had ended before an update as its own has the number, from 0 on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.trace_tables import CountedSteps
from tpmon.trace.reading.columns import Ints, group
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.schema import Category, is_step
from tpmon.trace.reading.spans import find_parts

NEVER = int(np.iinfo(np.int64).min)
"""The end of work that is not there: 0 is a time like others, and some clocks are negative."""
INCOMPLETE = 0.8
"""A last step with less than this part of the device events before it was not captured whole (as in tb)."""
UNMARKED = "torch marks none without profiler.step(), or without a schedule"


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """Hold the steps in order, in nanoseconds; one step that is the whole trace where none are marked.

    ``host_start`` and ``host_end`` are the marks; ``start`` and ``end`` wait for device work.
    """

    names: tuple[str, ...]
    host_start: Ints
    host_end: Ints
    start: Ints
    end: Ints
    marked: bool
    notes: tuple[str, ...]

    @property
    def host_window(self) -> tuple[int, int]:
        """Return the start of the first and the end of the last mark."""
        return int(self.host_start[0]), int(self.host_end[-1])

    @property
    def window(self) -> tuple[int, int]:
        """Return the start of the first and the end of the last step, with its device work."""
        return int(self.start[0]), int(self.end[-1])


def find_steps(trace: Trace) -> TraceSteps:
    """Find the steps that a trace marks; of a slice around gaps its parts, as it has no whole ones."""
    parts = find_parts(trace.header)
    if len(parts.start):
        names = tuple(f"around gap {number}" for number in range(1, len(parts.start) + 1))
        return TraceSteps(names, parts.start, parts.end, parts.start, parts.end, marked=True, notes=())
    host = trace.host
    kinds = (host.category == Category.ANNOTATION) | (host.category == Category.OP)
    rows = np.flatnonzero(trace.named(host, is_step) & kinds)
    if not len(rows):
        return _whole(trace)
    start, end = host.start[rows], host.end[rows]
    names = tuple(trace.names[number] for number in host.name[rows].tolist())
    return lay_steps(trace, names, start, end, marked=True)


def lay_steps(trace: Trace, names: tuple[str, ...], start: Ints, end: Ints, *, marked: bool) -> TraceSteps:
    """Lay steps of the host over the device work that they launched, but for last ones not captured whole."""
    device_end, counts, before = _device_ends(trace, start, end)
    keep = len(names)
    if len(counts) and counts.sum() > 0:
        while keep > 1 and counts[keep - 1] == 0:
            keep -= 1
        if keep > 1 and counts[keep - 1] < INCOMPLETE * counts[keep - 2]:
            keep -= 1
    left = ", ".join(names[keep:])
    notes = (f"left out, as its device work was not captured whole: {left}",) if left and marked else ()
    start, end, names = start[:keep], end[:keep], names[:keep]
    real_start = start.copy()
    real_start[0] = max(int(start[0]), before)
    real_end = np.maximum(np.maximum(end, device_end[:keep]), real_start[0])
    if keep > 1:
        real_start[1:] = np.maximum(start[1:], real_end[:-1])
    real_end = np.maximum(real_end, real_start)
    return TraceSteps(names, start, end, real_start, real_end, marked=marked, notes=notes)


def _device_ends(trace: Trace, start: Ints, end: Ints) -> tuple[Ints, Ints, int]:
    """Return per step the last end and the count of its device work, and the last end of earlier work."""
    ends = np.full(len(start), NEVER, dtype=np.int64)
    counts = np.zeros(len(start), dtype=np.int64)
    matched = np.flatnonzero(trace.work.call >= 0)
    if not len(matched):
        return ends, counts, NEVER
    call = trace.work.call[matched]
    call_start, call_end = trace.calls.start[call], trace.calls.end[call]
    work_end = trace.work.end[matched]
    step = np.searchsorted(start, call_start, side="right") - 1
    inside = (step >= 0) & (call_end <= end[step])
    np.maximum.at(ends, step[inside], work_end[inside])
    np.add.at(counts, step[inside], 1)
    earlier = call_start < start[0]
    before = int(work_end[earlier].max()) if bool(earlier.any()) else NEVER
    left = _find_leftover(trace, int(end[0]))
    if len(left):
        before = max(before, int(trace.work.end[left].max()))
    return ends, counts, before


def _find_leftover(trace: Trace, until: int) -> Ints:
    """Return the work without a call that runs, on its stream, before the first work launched by ``until``.

    kineto drops the calls of its warm-up, whose work runs on into the first step.
    """
    work = trace.work
    lanes = (work.device.astype(np.int64) << 32) | (work.stream.astype(np.int64) & 0xFFFFFFFF)
    groups = group(lanes)
    lane = groups.place
    matched = np.flatnonzero(work.call >= 0)
    matched = matched[trace.calls.start[work.call[matched]] < until]
    # Work is in the order of its start: of each stream the first row counts.
    there = group(lane[matched])
    first = np.full(len(groups.keys), NEVER, dtype=np.int64)
    first[there.keys] = work.start[matched[there.first]]
    untold = work.call < 0
    if bool((untold & (first[lane] > NEVER) & (work.start >= first[lane])).any()):
        return np.zeros(0, dtype=np.int64)  # calls are lost all along: that one is tells nothing
    return np.flatnonzero(untold & (work.start < first[lane]))


def _whole(trace: Trace) -> TraceSteps:
    tables = [table for table in (trace.host, trace.calls, trace.work) if len(table.start)]
    start = np.array([min((int(one.start.min()) for one in tables), default=0)], dtype=np.int64)
    end = np.array([max((int(one.end.max()) for one in tables), default=0)], dtype=np.int64)
    note = f"no steps are marked ({UNMARKED}): the whole trace counts as one"
    return TraceSteps(("whole trace",), start, end, start, end, marked=False, notes=(note,))


UNCOUNTED = Missing("kineto does not number the steps of the run, and no hook counts them")
_SHARED = Missing("its steps are too short: several share one record of the hook")
_OTHERS = Missing("its steps are not those that the hook counts")

_EARLIER_NS = 300_000
"""An update is looked up so much before its end: hook and kineto read their clocks in turn, 0.15 ms
apart. A small model is fed, computes and updates in 0.8 ms: a longer time would find the step before it."""

_EARLIER_SHARE = 0.1
"""Of a short step it is this share of it."""


def number_first(
    spans_ns: Sequence[tuple[int, int]], base_ns: int | None, counted: CountedSteps | Missing
) -> Known[int]:
    """Return which step of the loop, from 0 on, the first span is.

    Each span ends with an update; they are in ns after ``base_ns``, which is since the epoch.
    """
    if isinstance(counted, Missing):
        return counted
    if base_ns is None:
        return Missing("the trace does not say when it was recorded")
    if not spans_ns:
        return Missing("no step is marked in it")
    first, last = (_number(base_ns, spans_ns[at], counted) for at in (0, -1))
    if isinstance(first, Missing):
        return first
    return first if last == first + len(spans_ns) - 1 else last if isinstance(last, Missing) else _OTHERS


def _number(base_ns: int, span_ns: tuple[int, int], counted: CountedSteps) -> Known[int]:
    start, end = span_ns
    length = end - start
    # A step that ends with its update has ended a moment before the update has.
    earlier = length // 2 if counted.at_update else min(_EARLIER_NS, int(_EARLIER_SHARE * length))
    moment = base_ns + end - earlier
    at = bisect_right(counted.ends_ns, moment)
    if at == 0:
        return Missing("the hook's records do not go back to it")
    before = counted.steps[at - 1]
    after = next((steps for steps in counted.steps[at:] if steps != before), None)
    if after is None:
        return Missing("the hook wrote no record of a step that ended after it")
    return before if after == before + 1 else _SHARED
