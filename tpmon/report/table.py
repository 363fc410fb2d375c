"""Lay readings out as plain text: columns, wrapped paragraphs, and a list of what was not read."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tpmon.model.known import Applicable, Missing, NotApplicable, is_known
from tpmon.model.units import format_bytes, format_pct

T = TypeVar("T")

WIDTH = 100
LABEL_WIDTH = 9
MOST_REASONS = 12


def cut(text: str, width: int) -> str:
    """Shorten ``text`` to ``width`` characters, with a sign that it was shortened."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def lay_columns(
    headers: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[str] = (), indent: int = 0
) -> list[str]:
    """Align rows under their headers: numbers right, the columns named in ``left`` left.

    The last column takes what is left of WIDTH and is cut there.
    """
    table = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headers))]
    is_left = [header in set(left) for header in headers]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, is_left, strict=True)
        ]
        lines.append(cut((" " * indent + "  ".join(cells)).rstrip(), WIDTH))
    return lines


def lay_paragraph(label: str, text: str) -> list[str]:
    """Wrap ``text`` beside a label: the label stands in the first line alone."""
    lines = textwrap.wrap(text, WIDTH - LABEL_WIDTH, break_on_hyphens=False) or [""]
    first = label.ljust(LABEL_WIDTH) if len(label) < LABEL_WIDTH else label + " "
    rest = [" " * LABEL_WIDTH + line for line in lines[1:]]
    return [first + lines[0], *rest]


def lay_phrases(label: str, phrases: Iterable[str]) -> list[str]:
    """Join ``phrases`` by commas beside a label and wrap between phrases where they fit a line."""
    room = WIDTH - LABEL_WIDTH - 2
    # textwrap breaks at ASCII spaces alone, so a phrase with no-break spaces stays in one piece.
    whole = [
        phrase.replace(" ", "\N{NO-BREAK SPACE}") if len(phrase) < room else phrase for phrase in phrases
    ]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lay_paragraph(label, ", ".join(whole))]


def write_pct(value: float) -> str:
    """Write a percentage with its sign: 41 %."""
    return f"{format_pct(value)} %"


def write_ratio_pct(value: float) -> str:
    """Write a ratio as a percentage: 0.41 is 41 %."""
    return write_pct(value * 100)


def write_bytes_s(value: float) -> str:
    """Write a rate of bytes: 41.2G/s."""
    return f"{format_bytes(value)}/s"


def write_runnable(value: float) -> str:
    """Write a number of runnable threads: 14.2."""
    return f"{value:.1f}"


def sum_known(values: list[float | Missing]) -> float | Missing:
    """Add the values that were read; the reason of the first that was not when none was."""
    read = [value for value in values if is_known(value)]
    if read or not values:
        return sum(read)
    return values[0]


def count_of(number: int, noun: str) -> str:
    """Write a count with its noun: 1 rank, 4 workers."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Reading:
    """Turn readings into text and remember the name and reason of each that was not read."""

    def __init__(self) -> None:
        """Start with nothing missed."""
        self._reasons: dict[str, dict[str, None]] = {}

    def show(self, name: str, value: Applicable[T], write: Callable[[T], str] = str) -> str:
        """Write ``value``; "?" where it was not read, "-" where it does not apply."""
        if isinstance(value, Missing):
            self.miss(name, value)
            return "?"
        return "-" if isinstance(value, NotApplicable) else write(value)

    def miss(self, name: str, missing: Missing) -> None:
        """Remember that ``name`` was not read."""
        self._reasons.setdefault(missing.reason, {})[name] = None

    def missed(self) -> str:
        """Say once what was not read and why, the names of one reason together; "" for nothing."""
        groups = [f"{', '.join(names)} ({reason})" for reason, names in self._reasons.items()]
        if len(groups) > MOST_REASONS:
            groups = [*groups[:MOST_REASONS], f"and for {len(groups) - MOST_REASONS} more reasons"]
        return "; ".join(groups)
