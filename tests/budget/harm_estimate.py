"""Estimate a loss of speed from pairs of windows: a factorial draw, a trimmed mean, a bootstrap interval.

Two factors are switched at the same time, tpmon and a placebo. In each pair of neighbouring windows each of
them runs in one window and is frozen in the other. Of every two pairs they run together in one and apart in
the other, so that what one does cancels out of the figure of the other, and the placebo costs no window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

TRIMMED = 0.2
"""Share (0-1) of the log ratios that is cut off at each end: bursts of other tenants of the host."""
RESAMPLES = 2_000
MOST_STOLEN = 0.02
"""Share (0-1) of all CPUs' time in a window; above it the window tells of the hypervisor."""


@dataclass(frozen=True, slots=True)
class Window:
    """Say what runs in a window; what does not run is frozen."""

    tpmon: bool
    placebo: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold a window with its steps a second and the stolen share (0-1) of all CPUs' time in it."""

    window: Window
    rate: float
    stolen: float


Pair = tuple[Measured, Measured]


@dataclass(frozen=True, slots=True)
class Interval:
    """Hold a ratio of speeds, with to without, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.ratio:.4f} [{self.low:.4f}, {self.high:.4f}]"


def draw_pairs(random: Random) -> Iterator[tuple[Window, Window]]:
    """Yield pairs of windows without end, in random order, balanced over every two pairs."""
    while True:
        together = random.random() < 0.5
        for same in (together, not together):
            tpmon = random.random() < 0.5
            first = Window(tpmon, tpmon if same else not tpmon)
            yield first, Window(not first.tpmon, not first.placebo)


def is_counted(pair: Pair) -> bool:
    """Tell whether the hypervisor left both windows their CPUs."""
    return all(one.stolen <= MOST_STOLEN and one.rate > 0 for one in pair)


def list_tpmon(pairs: Sequence[Pair]) -> list[float]:
    """Return the log ratios of steps a second, with tpmon to without."""
    return [_log_ratio(pair, pair[0].window.tpmon) for pair in pairs]


def list_placebo(pairs: Sequence[Pair]) -> list[float]:
    """Return the log ratios of steps a second, with the placebo to without."""
    return [_log_ratio(pair, pair[0].window.placebo) for pair in pairs]


def _log_ratio(pair: Pair, first_is_with: bool) -> float:
    first, second = pair
    return math.log(first.rate / second.rate) * (1 if first_is_with else -1)


def estimate(logs: Sequence[float], seed: int) -> Interval:
    """Return the trimmed mean of log ratios as a ratio, with its percentile bootstrap interval of 95 %."""
    values = np.asarray(logs)
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, values.size))
    low, high = np.percentile(_trimmed_means(drawn), (2.5, 97.5))
    (mean,) = _trimmed_means(values[np.newaxis])
    return Interval(*(math.exp(float(one)) for one in (mean, low, high)))


def _trimmed_means(rows: np.ndarray) -> np.ndarray:
    cut = int(TRIMMED * rows.shape[1])
    return np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(axis=1)
