"""Say after how many steps a burst of waiting comes back, where a hook counts the steps. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tpmon.judge.features.series import LEAST_PERIODS
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.watch.hook_progress import find_pace
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.text.pace_words import is_evaluating, is_stalled

STEADY_RATE = 0.2
"""Difference of the steps of single periods from their mean up to which the rate is steady."""
LEAST_STEPS = 2
"""Steps between bursts from which they are told; below it every step waits."""


def _counts(scene: Scene, pid: int) -> list[tuple[float, int]]:
    """Return seconds and steps of the Frames whose hook counts steps that go on, oldest first."""
    found = []
    for frame in scene.history:
        pace = find_pace(frame, pid)
        if is_known(pace) and not is_stalled(pace) and not is_evaluating(pace):
            found.append((frame.taken_ns / 1e9, pace.count))
    return found


def _at(counts: Sequence[tuple[float, int]], seconds: float) -> float:
    """Return the count at a time, between two readings in proportion."""
    for (before_s, before), (after_s, after) in itertools.pairwise(counts):
        if before_s <= seconds <= after_s and before_s < after_s:
            return before + (after - before) * (seconds - before_s) / (after_s - before_s)
    return float(counts[-1][1])


def count_steps_between(scene: Scene, pid: int, period_s: float) -> Known[float]:
    """Return the steps of one period, a mean over whole periods of the Window.

    A hook's rate of ten seconds holds one burst or two of every seven: only whole periods tell it.
    """
    counts = _counts(scene, pid)
    if len(counts) < 2 or period_s <= 0:
        return Missing("no hook counts the steps")
    span_s = counts[-1][0] - counts[0][0]
    periods = math.floor(span_s / period_s)
    if periods < LEAST_PERIODS:
        return Missing("the steps were counted for less than three periods")
    edges = [_at(counts, counts[-1][0] - number * period_s) for number in range(periods, -1, -1)]
    steps = [after - before for before, after in itertools.pairwise(edges)]
    mean = (edges[-1] - edges[0]) / periods
    if mean < LEAST_STEPS or max(abs(one - mean) for one in steps) > STEADY_RATE * mean:
        return Missing("the steps have no steady rate")
    return mean


def round_steps(steps: float, period_s: float, reading_s: float) -> int:
    """Round to 1 or 5 times a power of ten, no coarser than a period that is known to half a reading."""
    doubt = steps * reading_s / (2 * period_s)
    if doubt <= 1:
        return round(steps)
    power: int = 10 ** math.floor(math.log10(doubt))
    unit = 5 * power if doubt >= 5 * power else power
    return unit * round(steps / unit)


def say_nth(number: int) -> str:
    """Write an ordinal number: "1st", "34th", "112th", "1,300th"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ending}"
