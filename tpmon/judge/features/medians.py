"""Reduce the readings of a span to one figure each, or to the reason why there is none. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from tpmon.model.known import Known, Missing, is_known

NO_FRAMES = Missing("too few readings yet")


def median_known(values: Iterable[Known[float]]) -> Known[float]:
    """Return the median of the values that were read; the first reason when fewer than half were."""
    listed = list(values)
    if len(listed) > 1:
        try:
            # Readings compare with each other, a Missing with nothing: most columns end here.
            ordered: list[float] = sorted(listed)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            middle = len(ordered) // 2
            return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    known = [value for value in listed if is_known(value)]
    if known and 2 * len(known) >= len(listed):
        return statistics.median(known)
    return next((value for value in listed if isinstance(value, Missing)), NO_FRAMES)


def mean_known(values: Iterable[Known[float]]) -> Known[float]:
    """Return the mean of the values that were read; the first reason when fewer than half were.

    What is a share of time in each reading is one over the span only as a mean: the median of a card that
    works for 3 s and rests for 2 is that of one that never rests.
    """
    listed = list(values)
    known = [value for value in listed if is_known(value)]
    if known and 2 * len(known) >= len(listed):
        return statistics.fmean(known)
    return next((value for value in listed if isinstance(value, Missing)), NO_FRAMES)


def share_of(values: Sequence[Known[str]], wanted: Callable[[str], bool]) -> Known[float]:
    """Return the share of readings that fit, of those that were read; Missing when fewer than half were."""
    known = [value for value in values if is_known(value)]
    if not known or 2 * len(known) < len(values):
        return next((value for value in values if isinstance(value, Missing)), NO_FRAMES)
    return sum(wanted(value) for value in known) / len(known)
