"""Measure how memory grows over three windows one after the other, and say how near its end is. Pure."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from tpmon.judge.features.snapshot import Scene
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known

GROWTH_BYTES_S = 1e6
"""Slope from which memory grows; the allocator's own noise is below it."""
GROWTH_WINDOWS = 3
GROWTH_WINDOW_S = 15.0
"""Growth in three windows one after the other; one alone is a cache that fills or a new epoch."""
EDGE_S = 2.0
ETA_S = 1800.0
"""Time to the limit below which growth is told."""
_TAKEN_NS = attrgetter("taken_ns")


@dataclass(frozen=True, slots=True)
class Growth:
    """Hold how one figure grew: bytes per second in each window, oldest first, and over all of them."""

    slopes: tuple[float, ...]
    mean: float
    grown_bytes: float
    newest: float

    @property
    def grows(self) -> bool:
        """Tell whether it grew in every window."""
        return min(self.slopes) > GROWTH_BYTES_S


def _points(
    frames: Sequence[Frame], now_ns: int, read: Callable[[Frame], Known[float]]
) -> Iterator[tuple[float, float]]:
    """Yield age and value of each reading that has one, oldest first."""
    for frame in frames:
        if is_known(value := read(frame)):
            yield (now_ns - frame.taken_ns) / 1e9, value


def _around(
    history: Sequence[Frame], now_ns: int, edge_s: float, read: Callable[[Frame], Known[float]]
) -> tuple[float, float]:
    """Return age and value about ``edge_s`` ago: the median of the readings next to it.

    A batch that comes and goes between two readings is no growth. Only what lies there is read.
    """
    low = bisect_left(history, now_ns - (edge_s + EDGE_S) * 1e9, key=_TAKEN_NS)
    high = bisect_right(history, now_ns - (edge_s - EDGE_S) * 1e9, key=_TAKEN_NS)
    near = list(_points(history[low:high], now_ns, read))
    near = near or [min(_points(history, now_ns, read), key=lambda point: abs(point[0] - edge_s))]
    return statistics.fmean(age for age, _ in near), statistics.median(value for _, value in near)


def read_growth(scene: Scene, read: Callable[[Frame], Known[float]]) -> Known[Growth]:
    """Return the growth of a figure over the last three windows; Missing for a shorter history."""
    now_ns, history = scene.frame.taken_ns, scene.history
    oldest = next(_points(history, now_ns, read), None)
    if oldest is None:
        return last if isinstance(last := read(scene.frame), Missing) else Missing("not read")
    edges = [GROWTH_WINDOW_S * number for number in range(GROWTH_WINDOWS, -1, -1)]
    if oldest[0] < edges[0]:
        return Missing(f"growth needs {edges[0]:.0f} s of readings")
    values = [_around(history, now_ns, edge, read) for edge in edges]
    slopes = []
    for (older_s, older), (newer_s, newer) in itertools.pairwise(values):
        if older_s <= newer_s:
            return Missing("too few readings")
        slopes.append((newer - older) / (older_s - newer_s))
    grown = values[-1][1] - values[0][1]
    return Growth(tuple(slopes), grown / (values[0][0] - values[-1][0]), grown, values[-1][1])


def say_about(seconds: float) -> str:
    """Write a time to come as a person says it: "about 14 min"."""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.0f} h" if seconds < 172_800 else "days"


def find_urgency(eta_s: float) -> float:
    """Return how near the end is, 0-1: the weight of a danger that costs no time yet."""
    return min(1.0, max(0.2, 1 - eta_s / ETA_S))
