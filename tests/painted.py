"""Read what painters paint: texts of lines, their inks, and a whole screen."""

from __future__ import annotations

from collections.abc import Iterable

from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.layout import paint_screen
from tpmon.ui.monitor.state import ViewState
from tpmon.view.layout import Ink, Line, Size, text_of

__all__ = ["find_wrong", "inks_of", "join", "screen_of", "text_of", "texts_of"]


def texts_of(lines: Iterable[Line]) -> list[str]:
    return [text_of(line).rstrip() for line in lines]


def join(lines: Iterable[Line]) -> str:
    return "\n".join(texts_of(lines))


def find_wrong(words: str, text: str) -> list[str]:
    """Return which of some words, with a "|" between, are missing, or after a "~" are there."""
    return [word for word in words.split("|") if (word.lstrip("~") in text) is word.startswith("~")]


def inks_of(lines: Iterable[Line], words: str) -> set[Ink]:
    return {ink for line in lines for text, ink in line if words in text}


def screen_of(view: ViewState, width: int = 120, height: int = 40) -> str:
    return join(paint_screen(view, Size(width, height), keys_shown(view)))
