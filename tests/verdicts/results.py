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
    """Return a line for each program: label, right of all runs idle and busy, what was said, seconds."""
    listed = list(results)
    lines = ["| program | label | idle | busy | verdicts seen | median s until right |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        mine = [one for one in listed if one.name == row.name]
        if not mine:
            continue
        lines.append(f"| {row.name} | {row.label} | {_describe(row, mine)} |")
    return lines


def _describe(row: Row, mine: Sequence[Result]) -> str:
    made = [one for one in mine if not one.skipped]
    if not made:
        return f"- | - | not made here: {mine[0].skipped} | -"
    said = Counter(one.said for one in made)
    accused = Counter(text for one in made for text in one.accused) if row.is_healthy else Counter()
    words = [f"{text} {count}" for text, count in said.most_common()]
    words += [f"accused for {count} s: {text}" for text, count in accused.most_common()]
    lone = [one for one in made if row.is_healthy and one.busy and "other-tenants" not in one.notes]
    lone = [one for one in lone if one.said != str(TENANTS)]
    words += [f"without a word of other-tenants: {len(lone)}"] if lone else []
    times = [one.right_after_s for one in made if one.right]
    idle, busy = ([one for one in made if one.busy is is_busy] for is_busy in (False, True))
    seconds = f"{statistics.median(times):.0f}" if times else "-"
    return f"{share(idle)} | {share(busy)} | {', '.join(words)} | {seconds}"


def write_confusion(results: Iterable[Result]) -> list[str]:
    """Return the confusion matrix as lines: each true label, then how often what was said."""
    counts: dict[str, Counter[str]] = {}
    for one in results:
        if not one.skipped:
            row = find_row(one.name)
            counts.setdefault(str(row.label), Counter())[one.said] += 1
    labels = sorted(counts)
    said = sorted({text for counter in counts.values() for text in counter})
    codes = {text: chr(ord("A") + place % 26) * (1 + place // 26) for place, text in enumerate(said)}
    lines = [f"| true \\ said | {' | '.join(codes[text] for text in said)} |", "|---" * (len(said) + 1) + "|"]
    for label in labels:
        cells = [str(counts[label][text] or "") for text in said]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return [*lines, "", *(f"{codes[text]}: {text}" for text in said)]


def write_gains(gains: Iterable[Gain]) -> list[str]:
    lines = [
        "| program | remedy | advised | steps/s before | after | gain | ceiling stated | within 2x |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gain in gains:
        rates = f"{gain.before:.1f} | {gain.after:.1f} | {gain.ratio:.2f}x"
        stated = gain.ceiling or "none"
        remedy = find_row(gain.name).remedy
        lines.append(
            f"| {gain.name} | {remedy} | {gain.advised} | {rates} | {stated} | {'yes' if gain.fits else 'no'} |"
        )
    return lines
