"""Translate inks into style names and escape sequences, and glyphs into ASCII.

The colours are the terminal's own, and those that are read on a dark screen as well as on a light one: text
is never yellow, and a badge names both of its colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tpmon.view.layout import Ink, Line, line_width, to_ascii


class Style(NamedTuple):
    """Hold a style in words of rich.style, and what is left of it under NO_COLOR."""

    colour: str
    plain: str


STYLES: Mapping[Ink, Style] = {
    Ink.PLAIN: Style("", ""),
    Ink.STRONG: Style("bold", "bold"),
    Ink.DIM: Style("dim", ""),
    Ink.TITLE: Style("bold", "bold"),
    Ink.GOOD: Style("green", ""),
    Ink.NOTICE: Style("cyan", ""),
    Ink.WARN: Style("bold magenta", "bold"),
    Ink.BAD: Style("bold red", "bold"),
    Ink.CURSOR: Style("reverse", "reverse"),
    Ink.BADGE: Style("bold reverse", "bold reverse"),
    Ink.BADGE_GOOD: Style("black on green", "bold reverse"),
    Ink.BADGE_NOTICE: Style("black on cyan", "bold reverse"),
    Ink.BADGE_WARN: Style("black on yellow", "bold reverse"),
    Ink.BADGE_BAD: Style("bold white on red", "bold reverse"),
}

_CODES: Mapping[str, str] = {
    "bold": "1",
    "dim": "2",
    "reverse": "7",
    "black": "30",
    "red": "31",
    "green": "32",
    "magenta": "35",
    "cyan": "36",
    "white": "37",
    "on red": "41",
    "on green": "42",
    "on yellow": "43",
    "on cyan": "46",
}
"""Parameters of SGR, ECMA-48 8.3.117, for the words of ``STYLES``."""
_RESET = "\x1b[0m"

DOT = "·"


def style_words(ink: Ink, *, colour: bool) -> str:
    """Return the style of an ink in words of rich.style, "" for none."""
    style = STYLES[ink]
    return style.colour if colour else style.plain


def ink_starts(*, colour: bool) -> Mapping[Ink, str]:
    """Return the escape sequence that begins each ink, "" for none."""
    return {ink: _start(style_words(ink, colour=colour)) for ink in STYLES}


def _start(words: str) -> str:
    front, _, back = words.partition(" on ")
    codes = [_CODES[word] for word in front.split()] + ([_CODES[f"on {back}"]] if back else [])
    return f"\x1b[{';'.join(codes)}m" if codes else ""


def encode_line(line: Line, width: int, starts: Mapping[Ink, str]) -> str:
    """Write a line of at most ``width`` cells for a terminal, filled up with blanks."""
    spans = [f"{start}{text}{_RESET}" if (start := starts[ink]) else text for text, ink in line]
    return "".join(spans) + " " * (width - line_width(line))


def line_to_ascii(line: Line) -> Line:
    """Write a line in ASCII, with as many cells for each character as before."""
    return tuple((text if text.isascii() else to_ascii(text), ink) for text, ink in line)
