"""Which operator runs inside of which: by time, on each thread. Knows nothing of their names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tpmon.model.frozen import dataclass
from tpmon.trace.reading.columns import Ints, Small

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


def nest(rows: Ints, start: Ints, duration: Ints, track: Small) -> Nest:
    """Nest the given rows of the host table.

    Ties go to the longer one as the outer; what reaches over the end of its parent by no more than
    ``SLACK_NS`` is cut there.
    """
    order = np.lexsort((-duration, start, track))
    rows, start, track = rows[order], start[order], track[order]
    duration = duration[order]
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
    order = np.argsort(level, kind="stable")
    edges = np.searchsorted(level[order], np.arange(int(level.max()) + 2))
    outer = order[edges[0] : edges[1]]
    for deep in range(1, int(level.max()) + 1):
        inner = order[edges[deep] : edges[deep + 1]]
        if len(outer) and len(inner):
            at = np.searchsorted(outer, inner) - 1
            above[inner] = np.where(at >= 0, outer[np.maximum(at, 0)], -1)
        outer = inner if len(inner) else outer
    return above
