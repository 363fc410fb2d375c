"""What ink and glyphs look like: style names, escape sequences, sparklines, and the ASCII twin of each glyph.

Painters draw with the block glyphs only; ``to_ascii`` turns a finished line into its ASCII twin
cell by cell, so no painter can forget it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpmon.model.known import Known, is_known
from tpmon.ui.kit.cells import Ink, Line, line_width, width_of

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
"""All that is left of a style under NO_COLOR."""
_RESET = "\x1b[0m"

RULE = "─"
FOCUS_RULE = "═"
DOT = "·"
LEVELS = "▁▂▃▄▅▆▇█"
NOT_READ = " "
"""A second without a reading leaves a gap: the lowest level means zero."""

_ASCII = {
    ord(RULE): "-",
    ord(FOCUS_RULE): "=",
    ord(DOT): "|",
    ord("…"): "~",
    ord("±"): "~",
    0x00D7: "x",
    0x2013: "-",
    0x2019: "'",
    0x2593: "=",
    0x2592: "+",
    0x2591: ":",
    **{ord(block): char for block, char in zip(LEVELS, "_.:-=+*#", strict=True)},
}


def style_words(ink: Ink, *, colour: bool) -> str:
    """Return the style of an ink in the words of rich.style, "" for none."""
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


def to_ascii(line: Line) -> Line:
    """Write a line with ASCII characters only, each taking the cells of the one it stands for."""
    if all(text.isascii() for text, _ in line):
        return line
    return tuple((_ascii_text(text), ink) for text, ink in line)


def _ascii_text(text: str) -> str:
    translated = text.translate(_ASCII)
    if translated.isascii():
        return translated
    return "".join(char if char.isascii() else "?" * width_of(char) for char in translated)
