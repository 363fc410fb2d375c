"""Keep what each run of the matrix showed, as JSON lines, and print tables of it."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.programs.causes.table import ROWS, TENANTS, Row, find_row
from tpmon.model.codec import decode, to_plain

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class Result:
    """Hold one run: what was said in the end, from when on it was right, and what accused it.

    ``right_after_s`` is -1 where it was not right in the end. ``skipped`` is the reason why the
    cause could not be made here. ``accused`` are accusing verdicts of single seconds. ``document`` is
    the whole last verdict, as JSON, where it was wrong.
    """

    name: str
    seed: int
    busy: bool
    kind: str
    cause: str
    right: bool
    right_after_s: float
    accused: tuple[str, ...]
    notes: tuple[str, ...]
    skipped: str = ""
    summary: str = ""
    document: str = ""

    @property
    def said(self) -> str:
        return f"{self.kind} {self.cause}".strip()


@dataclass(frozen=True, slots=True)
class Gain:
    """Hold what a remedy gave: steps/s before and after, and the ceiling that tpmon had stated.

    ``advised`` says whether tpmon named this very remedy: as the one to "try", "also", or "no".
    """

    name: str
    seed: int
    before: float
    after: float
    ceiling: str
    ceiling_ratio: float
    advised: str = ""

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def fits(self) -> bool:
        """Tell whether the gain is within a factor of two of what was stated."""
        return 0.5 <= self.ratio / self.ceiling_ratio <= 2.0 if self.ceiling_ratio else False


def append(path: Path, one: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"type": type(one).__name__, **to_plain(one)}) + "\n")


def read(path: Path, kind: type[Kept]) -> list[Kept]:
    """Read the results of one kind back; nothing where there is none."""
    lines = path.read_text().splitlines() if path.exists() else ()
    return [decode(kind, line) for line in lines if json.loads(line)["type"] == kind.__name__]


def share(results: Sequence[Any]) -> str:
    """Say how many of some results are right."""
    return f"{sum(one.right for one in results)}/{len(results)}" if results else "-"


def write_table(results: Iterable[Result]) -> list[str]:
    """Return a line for each program: right of all runs by machine, median seconds, what else was said."""
    listed = list(results)
    machines = sorted({one.busy for one in listed})
    words = " | ".join("busy" if busy else "idle" for busy in machines)
    lines = [f"program | label | {words} | s | besides", "---|---|---|---" + "|---" * len(machines)]
    for row in ROWS:
        mine = [one for one in listed if one.name == row.name]
        if mine:
            lines.append(f"{row.name} | {row.label} | {_describe(row, mine, machines)}")
    return lines


def _describe(row: Row, mine: Sequence[Result], machines: Sequence[bool]) -> str:
    made = [one for one in mine if not one.skipped]
    if not made:
        return f"{'- | ' * len(machines)}- | not made here: {mine[0].skipped}"
    said = Counter(one.said for one in made if one.said != str(row.label))
    accused = Counter(text for one in made for text in one.accused) if row.is_healthy else Counter()
    words = [f"{text} {count}" for text, count in said.most_common()]
    words += [f"accused for {count} s: {text}" for text, count in accused.most_common()]
    lone = [one for one in made if row.is_healthy and one.busy and "other-tenants" not in one.notes]
    lone = [one for one in lone if one.said != str(TENANTS)]
    words += [f"without a word of other-tenants: {len(lone)}"] if lone else []
    times = [one.right_after_s for one in made if one.right]
    shares = [share([one for one in made if one.busy is busy]) for busy in machines]
    seconds = f"{statistics.median(times):.0f}" if times else "-"
    return " | ".join((*shares, seconds, ", ".join(words))).rstrip()


def write_gains(gains: Iterable[Gain]) -> list[str]:
    lines = ["program | remedy | advised | gain | stated | within 2x", "---|---|---|---|---|---"]
    for gain in gains:
        stated = f"{gain.ceiling_ratio:.1f}x" if gain.ceiling_ratio else "-"
        cells = (gain.name, find_row(gain.name).remedy, gain.advised, f"{gain.ratio:.2f}x", stated)
        lines.append(f"{' | '.join(cells)} | {'yes' if gain.fits else 'no'}")
    return lines
