"""Translate inks into style names and escape sequences, and glyphs into ASCII."""

from __future__ import annotations

from collections.abc import Mapping

from tpmon.view.layout import Ink, Line, line_width, to_ascii

STYLES: Mapping[Ink, str] = {
    Ink.PLAIN: "",
    Ink.STRONG: "bold",
    Ink.DIM: "dim",
    Ink.TITLE: "bold cyan",
    Ink.GOOD: "green",
    Ink.WARN: "bold yellow",
    Ink.BAD: "bold red",
    Ink.CURSOR: "reverse",
}
"""Style of each ink in the words of rich.style; terminal colours only, so themes are followed."""

_CODES: Mapping[str, str] = {
    "bold": "1",
    "dim": "2",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
"""Parameters of SGR, ECMA-48 8.3.117, for the words of ``STYLES``."""
_WITHOUT_COLOUR = ("bold", "reverse")
"""The parts of a style that remain under NO_COLOR."""
_RESET = "\x1b[0m"

DOT = "·"


def style_words(ink: Ink, *, colour: bool) -> str:
    """Return the style of an ink in words of rich.style, "" for none."""
    words = STYLES[ink].split()
    return " ".join(word for word in words if colour or word in _WITHOUT_COLOUR)


def ink_starts(*, colour: bool) -> Mapping[Ink, str]:
    """Return the escape sequence that begins each ink, "" for none."""
    codes = {ink: [_CODES[word] for word in style_words(ink, colour=colour).split()] for ink in STYLES}
    return {ink: f"\x1b[{';'.join(one)}m" if one else "" for ink, one in codes.items()}


def encode_line(line: Line, width: int, starts: Mapping[Ink, str]) -> str:
    """Write a line of at most ``width`` cells for a terminal, filled up with blanks."""
    spans = [f"{start}{text}{_RESET}" if (start := starts[ink]) else text for text, ink in line]
    return "".join(spans) + " " * (width - line_width(line))


def line_to_ascii(line: Line) -> Line:
    """Write a line in ASCII, with as many cells for each character as before."""
    return tuple((text if text.isascii() else to_ascii(text), ink) for text, ink in line)
