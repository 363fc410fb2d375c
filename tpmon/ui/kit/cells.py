"""Cut, pad and wrap text by terminal cells; lines of inked text: what every painter makes.

Knows nothing of textual, and nothing of what is painted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rich.cells import cell_len, set_cell_size

from tpmon.model.frozen import dataclass


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


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """Hold one key that works now, for the footer, the help overlay and docs/keys.md.

    ``footer`` is its one-word label; ``priority`` orders the footer, 1 first, 0 keeps it out.
    """

    keys: tuple[str, ...]
    """As a person reads them: "q", "space", "PgUp"."""
    help: str
    section: str
    footer: str
    priority: int
    brief: str = ""
    """The help where there is little room; neighbours with the same words share a line."""


CUT_MARK = "…"


def width_of(text: str) -> int:
    """Count the cells that ``text`` takes."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int) -> str:
    """Shorten ``text`` to at most ``width`` cells; a cut text ends in a mark."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    if text.isascii():
        return text[: width - 1] + CUT_MARK
    return set_cell_size(text, width - 1) + CUT_MARK


def cut_front(text: str, width: int) -> str:
    """Shorten ``text`` from its front, as a path is: its end tells more."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    kept = text[-(width - 1) :] if width > 1 else ""
    while width_of(kept) > width - 1:
        kept = kept[1:]
    return CUT_MARK + kept


def pad(text: str, width: int) -> str:
    """Make ``text`` exactly ``width`` cells wide, text at the left."""
    text = cut(text, width)
    return text + " " * (width - width_of(text))


def pad_left(text: str, width: int) -> str:
    """Make ``text`` exactly ``width`` cells wide, text at the right, as numbers are."""
    text = cut(text, width)
    return " " * (width - width_of(text)) + text


def line_width(line: Line) -> int:
    """Count the cells that a line takes."""
    return sum(width_of(text) for text, _ in line)


def fit_line(line: Line, width: int) -> Line:
    """Cut a line to ``width`` cells and join neighbours of the same ink."""
    out: list[Span] = []
    left = width
    for text, ink in line:
        if not text:
            continue
        shown = cut(text, left)
        left -= width_of(shown)
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
    """Fill lines with ``pieces`` and break between them; a piece too long is broken at spaces."""
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]}{separator}{piece}" if lines else piece
        if width_of(joined) <= width:
            lines[-1:] = [joined]
        elif width_of(piece) <= width:
            lines.append(piece)
        else:
            lines.extend(wrap_words(piece, width))
    return lines


def wrap_words(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` cells; longer words are cut."""
    return wrap([cut(word, width) for word in text.split()], width, " ")


def wrap_all(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces, and within words that are longer than a line: nothing is cut."""
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if width_of(joined) <= width:
            lines[-1:] = [joined]
            continue
        rest = word
        while width_of(rest) > width > 0:
            taken = _head_of(rest, width)
            lines.append(taken)
            rest = rest[len(taken) :]
        lines.append(rest)
    return lines


def _head_of(text: str, width: int) -> str:
    """Return as many characters as fit ``width`` cells, at least one."""
    taken = text[:width]
    while len(taken) > 1 and width_of(taken) > width:
        taken = taken[:-1]
    return taken


def wrap_indented(text: str, width: int) -> list[str]:
    """Break a line of code as ``wrap_all`` does; what it is indented by stands before each of its parts."""
    indent = " " * min(len(text) - len(text.lstrip(" ")), width // 3)
    return [f"{indent}{part}" for part in wrap_all(text, width - len(indent))]
