"""Find bursts of waiting that come back: a history compared with itself some readings later. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tpmon.model.known import Known, Missing

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
