"""Keep what each run showed, as JSON lines, and print a table of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.programs.hangs.table import ALIVE_ROWS, ROWS
from tests.verdicts.results import share


@dataclass(frozen=True, slots=True)
class Result:
    """Hold one run: what was said in the end, what of it was not right, and how soon it was.

    ``old_s`` is how long it hung before tpmon started. ``after_s`` counts from the first reading; -1
    where it was not right. ``earlier`` are other verdicts that accused before. ``skipped`` is the
    reason why the hang could not be made here. ``left_out`` is what the last verdict said of hangs that
    it did not state.
    """

    name: str
    seed: int
    old_s: float
    said: str
    misses: tuple[str, ...]
    after_s: float
    earlier: tuple[str, ...]
    summary: str
    skipped: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return not self.misses and not self.skipped


def write_table(results: Iterable[Result]) -> list[str]:
    """Return a line for each program that hangs: right of all fresh and old runs, what else was said or not right."""
    listed = list(results)
    lines = ["program | label | fresh | s (worst) | old | s (worst) | besides", "---|---|---|---|---|---|---"]
    for row in ROWS:
        mine = [one for one in listed if one.name == row.name]
        if mine:
            lines.append(f"{row.name} | {row.label} | {_describe(str(row.label), mine)}")
    alive = [(row, [one for one in listed if one.name == row.name]) for row in ALIVE_ROWS]
    if any(mine for _, mine in alive):
        lines += ["", "slow, but alive | never called hung | last verdicts", "---|---|---"]
        lines += [f"{row.name} | {_describe_alive(mine)}" for row, mine in alive if mine]
    return lines


def _seconds(results: Sequence[Result]) -> str:
    times = [one.after_s for one in results if one.after_s >= 0]
    if not times:
        return "-"
    median, worst = f"{statistics.median(times):.0f}", f"{max(times):.0f}"
    return median if median == worst else f"{median} ({worst})"


def _count(texts: Iterable[str]) -> str:
    return ", ".join(f"{text} {count}" for text, count in Counter(texts).most_common())


def _describe(label: str, mine: Sequence[Result]) -> str:
    made = [one for one in mine if not one.skipped]
    if not made:
        return f"- | - | - | - | not made here: {mine[0].skipped}"
    fresh, old = ([one for one in made if (one.old_s > 0) is is_old] for is_old in (False, True))
    besides = [*(one.said for one in made if one.said != label), *(miss for one in made for miss in one.misses)]
    cells = [share(fresh), _seconds(fresh), share(old), _seconds(old), _count(besides)]
    return " | ".join(cells).rstrip()


def _describe_alive(mine: Sequence[Result]) -> str:
    made = [one for one in mine if not one.skipped]
    if not made:
        return f"- | not made here: {mine[0].skipped}"
    alarms = [miss for one in made for miss in one.misses]
    return f"{share(made)} | {_count(one.said for one in made)}{''.join(f'; {alarm}' for alarm in alarms)}"
