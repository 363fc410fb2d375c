"""Lay readings out as plain text: columns, wrapped paragraphs, and a list of what was not read."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tpmon.model.known import Applicable, Missing, NotApplicable, is_known
from tpmon.model.units import LINE_WIDTH, count_cells
from tpmon.view.table import Figures, Row, Where

T = TypeVar("T")

WIDTH = LINE_WIDTH
LABEL_WIDTH = 9
MOST_REASONS = 12


def cut(text: str, width: int) -> str:
    """Shorten ``text`` to ``width`` cells, with a sign that it was shortened."""
    if count_cells(text) <= width:
        return text
    return _head_of(text, max(width - 1, 0)) + "…"


def _head_of(text: str, width: int) -> str:
    taken = text[:width]
    while count_cells(taken) > width:
        taken = taken[:-1]
    return taken


def lay_columns(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Iterable[str] = (),
    indent: int = 0,
    width: int = WIDTH,
) -> list[str]:
    """Align rows under their headers: numbers right, the columns named in ``left`` left.

    The last column takes what is left of ``width`` and is cut there.
    """
    table = [list(headers), *(list(row) for row in rows)]
    widths = [max(count_cells(row[i]) for row in table) for i in range(len(headers))]
    is_left = [header in set(left) for header in headers]
    lines = []
    for row in table:
        cells = [
            _pad(cell, cells, to_left) for cell, cells, to_left in zip(row, widths, is_left, strict=True)
        ]
        lines.append(cut((" " * indent + "  ".join(cells)).rstrip(), width))
    return lines


def lay_figures(
    figures: Figures[Row], rows: Sequence[Row], top: int | None = None, more: str = "", indent: int = 0
) -> list[str]:
    """Lay the first rows of a table, and say how many more there are and where; nothing without rows."""
    if not rows:
        return []
    shown = [one for one in figures if one.where is not Where.SCREEN]
    headers = [one.text_head or one.head for one in shown]
    left = [head for head, one in zip(headers, shown, strict=True) if one.left]
    cells = ([one.tell(row) for one in shown] for row in rows[:top])
    hidden = len(rows) - top if more and top is not None else 0
    lines = lay_columns(headers, cells, left=left, indent=indent)
    return [*lines, f"  {hidden} more ({more})"] if hidden > 0 else lines


def _pad(text: str, cells: int, to_left: bool) -> str:
    spaces = " " * (cells - count_cells(text))
    return text + spaces if to_left else spaces + text


def wrap_cells(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` cells, and within longer words."""
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False)
    lines: list[str] = []
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and count_cells(joined) <= width:
            lines[-1] = joined
            continue
        rest = word
        if lines and count_cells(word) > width:  # a long word begins in the line before, as in textwrap
            taken = _head_of(word, max(width - count_cells(lines[-1]) - 1, 0))
            lines[-1] += f" {taken}" if taken else ""
            rest = word[len(taken) :]
        while count_cells(rest) > width:
            taken = _head_of(rest, width) or rest[:1]
            lines.append(taken)
            rest = rest[len(taken) :]
        lines.append(rest)
    return [line.rstrip() for line in lines if line.strip()]


def lay_paragraph(label: str, text: str, width: int = WIDTH) -> list[str]:
    """Wrap ``text`` beside a label: the label stands in the first line alone."""
    lines = wrap_cells(text, max(width - LABEL_WIDTH, 1)) or [""]
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


def write_runnable(value: float) -> str:
    """Write a number of runnable threads: 14.2."""
    return f"{value:.1f}"


def sum_known(values: list[float | Missing]) -> float | Missing:
    """Add the values that were read; the reason of the first that was not when none was."""
    read = [value for value in values if is_known(value)]
    if read or not values:
        return sum(read)
    return values[0]


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
