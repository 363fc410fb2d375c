"""The parts of time that a slice around gaps holds: what lies between them counts for nothing."""

from __future__ import annotations

import numpy as np

from tpmon.trace.reading.schema import BY_GAPS, Header
from tpmon.trace.reading.spans import Spans, invert, unite

MOST_PARTS = 1000
MOST_NS = 1 << 62


def find_parts(header: Header) -> Spans:
    """Return the parts that are in a slice around gaps; none for every other trace."""
    nothing = unite(np.empty(0, np.int64), np.empty(0, np.int64))
    taken = header.slice
    if taken is None or taken.by != BY_GAPS or not 0 < len(taken.windows_ns) <= MOST_PARTS:
        return nothing
    if max(abs(time) for window in taken.windows_ns for time in window) > MOST_NS:
        return nothing
    windows = np.array(taken.windows_ns, dtype=np.int64)
    return unite(windows[:, 0], windows[:, 1] - windows[:, 0])


def find_cuts(header: Header, window: tuple[int, int]) -> Spans:
    """Return what was cut out of the window; nothing of a trace that is no slice around gaps."""
    parts = find_parts(header)
    return invert(parts, *window) if len(parts.start) else parts
