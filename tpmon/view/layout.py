"""Cut, pad, wrap and align text by terminal cells: the one layout of text reports and screens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known
from tpmon.model.units import LINE_WIDTH, count_cells

WIDTH = LINE_WIDTH
"""Columns of a line of a text report."""
LABEL_WIDTH = 9


class Ink(Enum):
    """Name what a piece of text means; ``ink.py`` gives it a terminal style."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    TITLE = "title"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    CURSOR = "cursor"


Span = tuple[str, Ink]
Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """Hold a screen size in cells."""

    width: int
    height: int


CUT_MARK = "…"


def cut(text: str, width: int) -> str:
    """Shorten ``text`` to at most ``width`` cells; a cut text ends in a mark."""
    if count_cells(text) <= width:
        return text
    if width <= 0:
        return ""
    return _head_of(text, width - 1) + CUT_MARK


def cut_front(text: str, width: int) -> str:
    """Shorten ``text`` from its front, as a path is: its end tells more."""
    if count_cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept = text[-(width - 1) :] if width > 1 else ""
    while count_cells(kept) > width - 1:
        kept = kept[1:]
    return CUT_MARK + kept


def pad(text: str, width: int) -> str:
    """Make ``text`` exactly ``width`` cells wide, text at the left."""
    text = cut(text, width)
    return text + " " * (width - count_cells(text))


def pad_left(text: str, width: int) -> str:
    """Make ``text`` exactly ``width`` cells wide, text at the right, as numbers are."""
    text = cut(text, width)
    return " " * (width - count_cells(text)) + text


def line_width(line: Line) -> int:
    """Count the cells that a line takes."""
    return sum(count_cells(text) for text, _ in line)


def text_of(line: Line) -> str:
    """Return a line without its inks."""
    return "".join(text for text, _ink in line)


def fit_line(line: Line, width: int) -> Line:
    """Cut a line to ``width`` cells and join neighbours of the same ink."""
    out: list[Span] = []
    left = width
    for text, ink in line:
        if not text:
            continue
        shown = cut(text, left)
        left -= count_cells(shown)
        if shown and out and out[-1][1] is ink:
            out[-1] = (out[-1][0] + shown, ink)
        elif shown:
            out.append((shown, ink))
        if shown != text:
            break
    return tuple(out)


def pad_line(line: Line, width: int) -> Line:
    """Make a line exactly ``width`` cells wide."""
    fitted = fit_line(line, width)
    rest = width - line_width(fitted)
    return (*fitted, (" " * rest, Ink.PLAIN)) if rest > 0 else fitted


def wrap(pieces: Sequence[str], width: int, separator: str) -> list[str]:
    """Fill lines with ``pieces`` and break between them; a longer piece is broken within."""
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]}{separator}{piece}" if lines else piece
        if count_cells(joined) <= width:
            lines[-1:] = [joined]
        elif count_cells(piece) <= width:
            lines.append(piece)
        else:
            lines.extend(wrap_all(piece, width))
    return lines


def wrap_words(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` cells; longer words are cut."""
    return wrap([cut(word, width) for word in text.split()], width, " ")


def wrap_all(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces, and within words that are longer than a line: nothing is cut."""
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if count_cells(joined) <= width:
            lines[-1:] = [joined]
            continue
        rest = word
        while count_cells(rest) > width > 0:
            taken = _head_of(rest, width) or rest[:1]
            lines.append(taken)
            rest = rest[len(taken) :]
        lines.append(rest)
    return lines


def _head_of(text: str, width: int) -> str:
    """Return as many characters as fit ``width`` cells."""
    taken = text[:width]
    while count_cells(taken) > width:
        taken = taken[:-1]
    return taken


def wrap_indented(text: str, width: int) -> list[str]:
    """Break a line of code as ``wrap_all`` does; what it is indented by stands before each of its parts."""
    indent = " " * min(len(text) - len(text.lstrip(" ")), width // 3)
    return [f"{indent}{part}" for part in wrap_all(text, width - len(indent))]


def set_in(texts: Iterable[str], ink: Ink = Ink.PLAIN, head: str = " ", hang: str = "") -> list[Line]:
    """Put ``head`` before the first text and ``hang`` before the others, by default as many blanks."""
    rest = hang or " " * count_cells(head)
    return [((f"{rest if number else head}{text}", ink),) for number, text in enumerate(texts)]


def lay_text(text: str, width: int, ink: Ink = Ink.PLAIN, head: str = " ") -> list[Line]:
    """Wrap all of ``text`` behind ``head`` and a cell short of ``width``."""
    return set_in(wrap_all(text, max(1, width - count_cells(head) - 1)), ink, head)


# Text reports: a label beside a paragraph


def lay_paragraph(label: str, text: str, width: int = WIDTH) -> list[str]:
    """Wrap ``text`` beside a label: the label stands in the first line alone."""
    return _lay_beside(label, wrap_all(text, max(width - LABEL_WIDTH, 1)))


def lay_phrases(label: str, phrases: Iterable[str]) -> list[str]:
    """Join ``phrases`` by commas beside a label and wrap between phrases where they fit a line."""
    *others, last = [*phrases] or [""]
    return _lay_beside(label, wrap([*(f"{phrase}," for phrase in others), last], WIDTH - LABEL_WIDTH, " "))


def _lay_beside(label: str, lines: Sequence[str]) -> list[str]:
    first = label.ljust(LABEL_WIDTH) if len(label) < LABEL_WIDTH else label + " "
    return [first + "".join(lines[:1]), *(" " * LABEL_WIDTH + line for line in lines[1:])]


_ASCII = {
    ord(sign): likeness
    for sign, likeness in zip("─═·…±×–—→’µ°▓▒░▁▂▃▄▅▆▇█", "-=|~~x-->'u =+:_.:-=+*#", strict=True)  # noqa: RUF001
}


def to_ascii(text: str) -> str:
    """Write text with ASCII characters only, each taking the cells of the one it stands for."""
    translated = text.translate(_ASCII)
    if translated.isascii():
        return translated
    return "".join(char if char.isascii() else "?" * count_cells(char) for char in translated)


LEVELS = "▁▂▃▄▅▆▇█"
NOT_READ = " "
"""A second without a reading leaves a gap: the lowest level means zero."""


def spark(values: Sequence[Known[float]], width: int, top: float) -> str:
    """Draw the last ``width`` values as columns between 0 and ``top``, newest at the right.

    A value that was not read leaves a gap; any value above zero stands above the lowest level.
    """
    if width <= 0:
        return ""
    highest = len(LEVELS) - 1
    drawn = []
    for value in values[-width:]:
        if not is_known(value):
            drawn.append(NOT_READ)
        elif value <= 0:
            drawn.append(LEVELS[0])
        else:
            share = min(1.0, value / top) if top > 0 else 0.0
            drawn.append(LEVELS[max(1, round(share * highest))])
    return "".join(drawn).rjust(width)
