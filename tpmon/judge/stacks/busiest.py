"""Find the function that took most samples of something, by its busiest line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable


@dataclass(frozen=True, slots=True)
class Spot:
    """Name the function of the program that took most samples of something, by its busiest line."""

    where: str
    """As in ``RankPhases.where``."""
    ratio: float
    """Share of all samples, 0-1, that were in this function."""


def _function_of(where: str) -> str:
    """Return a place without its line: the lines of one function are added up."""
    before, _, line = where.rpartition(":")
    return before if line.isdigit() else where


def find_spot(places: Mapping[str, int], samples: int) -> Applicable[Spot]:
    """Return the function that most of these samples were in."""
    functions: Counter[str] = Counter()
    for where, count in places.items():
        functions[_function_of(where)] += count
    if not functions:
        return NOT_APPLICABLE
    busiest = max(functions, key=lambda name: (functions[name], name))
    lines = {where: count for where, count in places.items() if _function_of(where) == busiest}
    return Spot(max(lines, key=lambda where: (lines[where], where)), functions[busiest] / samples)
