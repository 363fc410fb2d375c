"""Sets of time as sorted spans, and which operator runs inside which.

Whole nanoseconds, so that parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from tpmon.model.frozen import dataclass
from tpmon.trace.reading.columns import EventTable, HostTable, Ints, Mask, PythonTable, Small
from tpmon.trace.reading.schema import BY_GAPS, TraceHeader


@dataclass(frozen=True, slots=True)
class Spans:
    """Hold spans in order; none is empty, and no two touch. ``before`` is the length before each one."""

    start: Ints
    end: Ints
    before: Ints

    @property
    def total(self) -> int:
        """Return the length of all spans together, in nanoseconds."""
        return int(self.before[-1]) if len(self.before) else 0

    def until(self, time: npt.NDArray[Any]) -> Ints:
        """Return how much of the set lies before each of ``time``."""
        at = np.searchsorted(self.start, time, side="right")
        over = np.maximum(self.end[at - 1] - time, 0) if len(self.end) else np.zeros(len(at), np.int64)
        return np.where(at > 0, self.before[at] - over, 0)

    def within(self, start: npt.NDArray[Any], end: npt.NDArray[Any]) -> Ints:
        """Return how much of the set lies in each window from ``start`` to ``end``."""
        return self.until(end) - self.until(start)

    def within_one(self, start: int, end: int) -> int:
        """Return how much of the set lies in one window."""
        return int(self.within(np.array([start]), np.array([end]))[0])


def _make(start: Ints, end: Ints) -> Spans:
    before = np.zeros(len(start) + 1, dtype=np.int64)
    np.cumsum(end - start, out=before[1:])
    return Spans(start, end, before)


NOTHING = _make(np.empty(0, np.int64), np.empty(0, np.int64))
"""No span at all."""


def unite_rows(table: EventTable, rows: Mask | Ints) -> Spans:
    """Unite the times of some rows of a table."""
    return unite(table.start[rows], table.duration[rows])


def unite(start: npt.NDArray[Any], duration: npt.NDArray[Any]) -> Spans:
    """Unite intervals, in any order, that may overlap; empty ones count for nothing."""
    filled = duration > 0
    if not filled.all():
        start, duration = start[filled], duration[filled]
    if len(start) == 0:
        return NOTHING
    if not bool(np.all(start[1:] >= start[:-1])):
        order = np.argsort(start, kind="stable")
        start, duration = start[order], duration[order]
    reach = np.maximum.accumulate(start + duration)
    begins = np.flatnonzero(start[1:] > reach[:-1]) + 1
    first, last = np.append(0, begins), np.append(begins - 1, len(start) - 1)
    return _make(start[first].astype(np.int64, copy=False), reach[last].astype(np.int64, copy=False))


def unite_all(sets: Sequence[Spans]) -> Spans:
    """Unite sets of spans."""
    filled = [one for one in sets if len(one.start)]
    if len(filled) < 2:
        return filled[0] if filled else NOTHING
    start = np.concatenate([one.start for one in filled])
    return unite(start, np.concatenate([one.end for one in filled]) - start)


def invert(spans: Spans, start: int, end: int) -> Spans:
    """Return what of the window from ``start`` to ``end`` is not in ``spans``."""
    inside = (spans.end > start) & (spans.start < end)
    begins = np.append(start, spans.end[inside])
    ends = np.append(spans.start[inside], end)
    filled = ends > begins
    return _make(begins[filled].astype(np.int64), ends[filled].astype(np.int64))


def grow(busy: Spans, layers: Sequence[Spans]) -> tuple[Spans, ...]:
    """Return the union of ``busy`` with the first layer, with the first two, and so on."""
    return tuple(accumulate(layers, lambda grown, layer: unite_all([grown, layer]), initial=busy))[1:]


def split_windows(busy: Spans, grown: Sequence[Spans], start: Ints, end: Ints) -> Ints:
    """Split each window: a row for what ``busy`` covers, what each growing union adds, what none covers."""
    covered = [one.within(start, end) for one in (busy, *grown)]
    return np.diff(np.array([np.zeros_like(start), *covered, end - start]), axis=0)


def intersect_total(one: Spans, other: Spans) -> int:
    """Return the length of what is in both sets."""
    return int(other.within(one.start, one.end).sum())


MOST_PARTS = 1000
MOST_NS = 1 << 62


def find_parts(header: TraceHeader) -> Spans:
    """Return the parts that are in a slice around gaps; none for every other trace."""
    taken = header.slice
    if taken is None or taken.by != BY_GAPS or not 0 < len(taken.windows_ns) <= MOST_PARTS:
        return NOTHING
    if max(abs(time) for window in taken.windows_ns for time in window) > MOST_NS:
        return NOTHING
    windows = np.array(taken.windows_ns, dtype=np.int64)
    return unite(windows[:, 0], windows[:, 1] - windows[:, 0])


def find_cuts(header: TraceHeader, window: tuple[int, int]) -> Spans:
    """Return what was cut out of the window; nothing of a trace that is no slice around gaps."""
    parts = find_parts(header)
    return invert(parts, *window) if len(parts.start) else parts


SLACK_NS = 1000
"""Traces in whole microseconds let a child end up to this much after its parent: rounding, no overlap."""
_ROUNDS = 4
MOST_DEEP = 512
"""Deeper than this nothing is nested any more; the deepest real traces have some dozens of levels."""


@dataclass(frozen=True, slots=True)
class Nest:
    """Hold operators ordered by track and start, outer before inner.

    ``row`` is each one's row in the host table, ``parent`` its place here or -1, ``depth`` 0 for the
    outermost, ``child_ns`` the time of those right inside of it. ``first`` is where each track begins.
    """

    row: Ints
    start: Ints
    end: Ints
    parent: Ints
    depth: Small
    child_ns: Ints
    first: dict[int, tuple[int, int]]

    def find(self, tracks: npt.NDArray[np.int32], times: Ints) -> Ints:
        """Return the place of the innermost operator around each time on its track, -1 for none."""
        found = np.full(len(times), -1, dtype=np.int64)
        for track, (begin, stop) in self.first.items():
            asked = np.flatnonzero(tracks == track)
            if not len(asked):
                continue
            when = times[asked]
            at = np.searchsorted(self.start[begin:stop], when, side="right") + begin - 1
            at[at < begin] = -1
            late = (at >= 0) & (self.end[at] < when)
            while bool(late.any()):
                at[late] = self.parent[at[late]]
                late = (at >= 0) & (self.end[at] < when)
            found[asked] = at
        return found

    def each_level(self) -> list[Ints]:
        """Return those that have a parent, depth after depth from the outermost on."""
        inner = np.flatnonzero(self.parent >= 0)
        inner = inner[sort_small(self.depth[inner])]
        return np.split(inner, np.flatnonzero(np.diff(self.depth[inner])) + 1)

    def add_up(self, values: Ints) -> Ints:
        """Add to each operator what those inside of it have."""
        total: Ints = values.copy()
        for inner in reversed(self.each_level()):
            np.add.at(total, self.parent[inner], total[inner])
        return total

    def find_roots(self) -> Ints:
        """Return the outermost operator around each one."""
        root = np.arange(len(self.row))
        for inner in self.each_level():
            root[inner] = root[self.parent[inner]]
        return root


def nest(table: HostTable | PythonTable, rows: Ints) -> Nest:
    """Nest the given rows of a table.

    Ties go to the longer one as the outer; what reaches over the end of its parent by no more than
    ``SLACK_NS`` is cut there.
    """
    rows = _order_rows(table, rows)
    start, duration, track = table.start[rows], table.duration[rows], table.track[rows]
    end = start + np.maximum(duration, 1)
    parent = np.full(len(rows), -1, dtype=np.int64)
    depth = np.zeros(len(rows), dtype=np.int32)
    first: dict[int, tuple[int, int]] = {}
    if len(rows):
        edges = np.flatnonzero(np.diff(track)) + 1
        begins, stops = np.append(0, edges), np.append(edges, len(rows))
        for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
            first[int(track[begin])] = (begin, stop)
            part = slice(begin, stop)
            above, level = _nest_track(start[part], end[part])
            parent[part] = np.where(above >= 0, above + begin, -1)
            depth[part] = level
    child = np.zeros(len(rows), dtype=np.int64)
    inner = parent >= 0
    np.add.at(child, parent[inner], duration[inner])
    return Nest(rows, start, end, parent, depth, child, first)


def _order_rows(table: HostTable | PythonTable, rows: Ints) -> Ints:
    """Order rows, which begin one after the other, by track, then start, then the longer one first.

    Few begin at once: only those are sorted by their duration.
    """
    track = table.track[rows]
    rows = rows[sort_small(track)]
    start, track = table.start[rows], table.track[rows]
    same = np.zeros(len(rows) + 1, dtype=np.bool_)
    same[1:-1] = (start[1:] == start[:-1]) & (track[1:] == track[:-1])
    tied = np.flatnonzero(same[1:] | same[:-1])
    if len(tied):
        of = rows[tied]
        rows[tied] = of[np.lexsort((-table.duration[of], table.start[of], table.track[of]))]
    return rows


_NARROW = np.iinfo(np.int16).max


def sort_small(values: Small) -> Ints:
    """Return the stable order of numbers that are mostly small: as such they are counted, not compared."""
    if len(values) and int(values.min()) >= 0 and int(values.max()) <= _NARROW:
        return np.argsort(values.astype(np.int16), kind="stable")
    return np.argsort(values, kind="stable")


def _nest_track(start: Ints, end: Ints) -> tuple[Ints, Small]:
    """Return parents and depths on one track; ``end`` is cut where it reaches over by rounding."""
    count = np.arange(len(start))
    above = np.full(len(start), -1, dtype=np.int64)
    level = np.zeros(len(start), dtype=np.int32)
    for _round in range(_ROUNDS):
        ended = np.searchsorted(np.sort(end), start, side="right")
        level = np.clip(count - ended, 0, MOST_DEEP).astype(np.int32)
        above = _find_parents(level)
        over = np.where(above >= 0, end - end[above], 0)
        cut = (over > 0) & (over <= SLACK_NS)
        if not bool(cut.any()):
            break
        end[cut] = np.maximum(end[above[cut]], start[cut] + 1)
    return above, level


def _find_parents(level: Small) -> Ints:
    """Return for each the last one before it that is one level further out."""
    above = np.full(len(level), -1, dtype=np.int64)
    order = sort_small(level)
    edges = np.searchsorted(level[order], np.arange(int(level.max()) + 2))
    outer = order[edges[0] : edges[1]]
    for deep in range(1, int(level.max()) + 1):
        inner = order[edges[deep] : edges[deep + 1]]
        if len(outer) and len(inner):
            at = np.searchsorted(outer, inner) - 1
            above[inner] = np.where(at >= 0, outer[np.maximum(at, 0)], -1)
        outer = inner if len(inner) else outer
    return above
