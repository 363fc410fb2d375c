"""Write numbers the way a person reads them in a table: 412 ms, 91 k/s, 41.2 G. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help does without it
    from datetime import datetime

LINE_WIDTH = 100
"""Of text in a pipe or a file, and the most of a line in a terminal."""
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def format_bytes(value: float) -> str:
    """Write bytes in binary units with at most four characters and a letter: 41.2G, 512K, 0B."""
    scaled, letter = _scale(abs(value), _BINARY)
    return f"{'-' * (value < 0)}{scaled:.{1 if letter and scaled < 99.95 else 0}f}{letter or 'B'}"


def format_rate(value: float) -> str:
    """Write a count per second in decimal units: 91k, 1.2M, 433, 0."""
    scaled, letter = _scale(value, _STEPS)
    return f"{scaled:.{1 if letter and scaled < 9.95 else 0}f}{letter}"


def _scale(value: float, steps: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    fitting = (step for step in steps if value >= step[0] * 0.9995)
    size, letter = next(fitting, (1, ""))
    return value / size, letter


def format_seconds(value: float) -> str:
    """Write a duration with one or two units: 0.3 s, 42 s, 4m10s, 3h12m, 2d03h."""
    if value < 0:
        return f"-{format_seconds(-value)}"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def format_clock(value: datetime) -> str:
    """Write a time of day: 03:07:41."""
    return value.strftime("%H:%M:%S")


def format_moment(when: datetime, now: datetime, *, seconds: bool = True) -> str:
    """Write a time of day, or where ``now`` is another day the date and the minute: Mar 13 23:55."""
    local = when.astimezone(now.tzinfo)
    if local.date() != now.date():
        return local.strftime("%b %d %H:%M")
    return format_clock(local) if seconds else local.strftime("%H:%M")


def format_number(value: float) -> str:
    """Write a number of CPUs, threads or times with no more digits than it is worth: 1.94, 12.3, 250, 0.01.

    One that is not zero never reads as zero: <0.01.
    """
    if 0 < abs(value) < 0.005:
        return "<0.01" if value > 0 else ">-0.01"
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def format_pct(value: float) -> str:
    """Write a percentage without decimals from 10 on, with one below: 41, 7.3, 0."""
    if value == 0:
        return "0"
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"


def say_pct(value: float) -> str:
    """Write a percentage with its sign: 41 %."""
    return f"{format_pct(value)} %"


def say_ratio(value: float) -> str:
    """Write a ratio as a percentage: 0.41 is 41 %."""
    return say_pct(value * 100)


def say_bytes_s(value: float) -> str:
    """Write a rate of bytes: 41.2G/s."""
    return f"{format_bytes(value)}/s"


_NARROW = "[ -~\u00a1-\u00ac\u00ae-\u02ff\u2010-\u2027\u2190-\u21ff\u2500-\u25fc]*"
"""Text of Latin letters, arrows and blocks: a cell each; lines are counted at each repaint."""


def _is_wide_lately(code: int) -> bool:
    """Tell whether Unicode 16 made a sign wide, which the tables of older Pythons do not know."""
    symbols = 0x2630 <= code <= 0x2637 or 0x268A <= code <= 0x268F or 0x4DC0 <= code <= 0x4DFF
    return symbols or 0x1D300 <= code <= 0x1D376


def count_cells(text: str) -> int:
    """Count the cells of a terminal that ``text`` takes: a CJK character two, a combining one none."""
    if text.isascii() or re.fullmatch(_NARROW, text):
        return len(text)
    import unicodedata  # noqa: PLC0415  # most text is ASCII

    return sum(
        1
        if char == "\ufe0f"  # it makes the sign before it a picture of two cells
        else 0
        if unicodedata.category(char) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(char) in "WF" or _is_wide_lately(ord(char))
        else 1
        for char in text
    )


def clean_text(text: str, limit: int = 200) -> str:
    """Strip control, format and bidirectional characters from text of others and cap its length.

    Everything that a target, a driver or a file names passes here before it enters a Frame, so
    that no escape sequence reaches a terminal. White space becomes a space; every other character
    that Unicode does not print (controls, formats, surrogates, private use) becomes "?".
    """
    if len(text) <= limit and text.isprintable():
        return text
    cleaned = text[: limit + 1]
    if not cleaned.isprintable():
        cleaned = "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in cleaned)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def count_of(number: int, noun: str, nouns: str = "") -> str:
    """Write a count with its noun: 1 rank, 4 workers; ``nouns`` where several take more than an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or f'{noun}s'}"


def say_ranks(ranks: Sequence[int]) -> str:
    """Name ranks: "rank 3", "ranks 0, 1, 4 to 7", "57 ranks"."""
    numbers = sorted(ranks)
    runs = [
        [number for _place, number in run]
        for _key, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    texts = [text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    if len(texts) > 8:
        return f"{len(numbers)} ranks"
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"
