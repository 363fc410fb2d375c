"""Put intervals on shares of stack samples, and tell a change from chance. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

Kind = TypeVar("Kind", bound=Hashable)

Z_95 = 1.96
PLAIN_DESIGN = 1.0
MIN_SLICES = 3
CHANGE_Z = 3.5
MIN_CHANGE = 0.15
MIN_COMPARED = 10
"""With fewer samples the test for two proportions sees changes in chance."""


@dataclass(frozen=True, slots=True)
class Share:
    """Hold a share of samples (0-1) with its Wilson 95 % interval."""

    ratio: float
    low: float
    high: float
    samples: int


def share_of(count: float, samples: int, design: float = PLAIN_DESIGN) -> Share:
    """Return the share of ``count`` in ``samples``; ``design`` samples count as one independent one.

    Wilson's interval with samples / design in place of samples. Nothing sampled: 0 to 1.
    """
    if samples <= 0:
        return Share(0.0, 0.0, 1.0, 0)
    ratio = min(1.0, max(0.0, count / samples))
    size = samples / max(design, PLAIN_DESIGN)
    square = Z_95 * Z_95
    middle = (ratio + square / (2 * size)) / (1 + square / size)
    half = Z_95 / (1 + square / size) * sqrt(ratio * (1 - ratio) / size + square / (4 * size * size))
    return Share(ratio, min(ratio, max(0.0, middle - half)), max(ratio, min(1.0, middle + half)), samples)


def measure_design(slices: Sequence[Mapping[Kind, int]]) -> float:
    """Return how many samples count as one: how much more the slices differ than chance allows."""
    total = sum(sum(one.values()) for one in slices)
    if len(slices) < MIN_SLICES or not total:
        return PLAIN_DESIGN
    pooled: Counter[Kind] = Counter()
    for one in slices:
        pooled.update(one)
    worst = PLAIN_DESIGN
    for kind, count in pooled.items():
        ratio = count / total
        if not 0 < ratio < 1:
            continue
        spread = sum(
            (one.get(kind, 0) - size * ratio) ** 2 / (size * ratio * (1 - ratio))
            for one in slices
            if (size := sum(one.values()))
        )
        worst = max(worst, spread / (len(slices) - 1))
    return worst


def differs(one: Mapping[Kind, int], other: Mapping[Kind, int]) -> bool:
    """Say whether two sets of counted samples differ by more than chance (two-proportion test)."""
    size, size_other = sum(one.values()), sum(other.values())
    if min(size, size_other) < MIN_COMPARED:
        return False
    for kind in one.keys() | other.keys():
        count, count_other = one.get(kind, 0), other.get(kind, 0)
        pooled = (count + count_other) / (size + size_other)
        gap = abs(count / size - count_other / size_other)
        error = sqrt(pooled * (1 - pooled) * (1 / size + 1 / size_other))
        if gap >= MIN_CHANGE and gap > CHANGE_Z * error:
            return True
    return False
