"""Find bursts of waiting that come back, and after how many steps. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from tpmon.judge.features.snapshot import Scene
from tpmon.judge.watch.tracker import find_pace
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.text.job_words import is_evaluating, is_stalled

LEAST_PERIODS = 3
LEAST_PERIOD = 3
"""Readings; what is shorter cannot be seen in readings of one second."""
LEAST_HISTORY = 15
CORRELATION = 0.5
CORRELATION_SIGMAS = 2.5
"""Chance gives correlations of 1 / sqrt(pairs); this many of them are not chance."""
LEAST_SWING = 0.2
"""Standard deviation of the seconds' wait: bursts are all or nothing, a slow loader is even."""
LULL = 0.1
LEAST_LULLS = 0.2
"""Share of the seconds that hardly wait at all: the loader is fast enough between the bursts."""
OVER_PERIODS = 2.0
"""So long after the last burst, in periods, they are over: the run has changed."""


def _correlate(values: Sequence[float], lag: int) -> float:
    """Return the correlation (-1 to 1) of a series with itself ``lag`` readings later, 0 where it is flat."""
    mean = statistics.fmean(values)
    power = sum((value - mean) ** 2 for value in values) / len(values)
    if power <= 0:
        return 0.0
    pairs = [(one - mean) * (other - mean) for one, other in zip(values, values[lag:], strict=False)]
    return sum(pairs) / len(pairs) / power


def _count_since_burst(shares: Sequence[float]) -> int:
    """Return how many readings came after the last one that waited more than the mean."""
    mean = statistics.fmean(shares)
    return next(number for number, share in enumerate(reversed(shares)) if share >= mean)


def find_period(waits: Sequence[tuple[int, float]]) -> Known[tuple[float, float]]:
    """Return the seconds between bursts of waiting and their correlation; Missing where none is seen.

    ``waits`` are (ns, share of the second). Needs three periods of at least three readings.
    """
    if len(waits) < LEAST_HISTORY:
        return Missing("too short a history")
    shares = [share for _, share in waits]
    lulls = sum(share <= LULL for share in shares) / len(shares)
    if statistics.pstdev(shares) < LEAST_SWING or lulls < LEAST_LULLS:
        return Missing("the wait is even")
    longest = len(shares) // LEAST_PERIODS
    scores = {lag: _correlate(shares, lag) for lag in range(LEAST_PERIOD - 1, longest + 2)}
    for lag in range(LEAST_PERIOD, longest + 1):
        least = max(CORRELATION, CORRELATION_SIGMAS / math.sqrt(len(shares) - lag))
        if scores[lag] >= least and scores[lag - 1] <= scores[lag] >= scores[lag + 1]:
            if _count_since_burst(shares) > OVER_PERIODS * lag:
                return Missing("the bursts are over")
            interval_s = (waits[-1][0] - waits[0][0]) / 1e9 / (len(waits) - 1)
            return lag * interval_s, scores[lag]
    return Missing("the bursts have no period")


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
