"""What keys of every screen do: steps through rows or lines, and effects beyond changing the picture."""

from __future__ import annotations

from enum import Enum

FILTER_LIMIT = 40


class Move(Enum):
    """Name a step through rows or lines; how far a page is, the size of the screen says."""

    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    FIRST = "first"
    LAST = "last"


class Effect(Enum):
    """Name what a key does beyond changing the picture; the app carries it out."""

    QUIT = "quit"
    SUSPEND = "suspend"
    REDRAW = "redraw"
    COPY_TRY = "copy try"
    COPY_FACTS = "copy facts"
    COPY_SCREEN = "copy screen"
    COPY_RESULT = "copy result"
    EDIT = "edit"
    OPEN_TRACE = "open trace"


def moved(place: int, move: Move, page: int, last: int) -> int:
    """Return the place that a step from ``place`` leads to, 0 to ``last``."""
    target = {
        Move.UP: place - 1,
        Move.DOWN: place + 1,
        Move.PAGE_UP: place - page,
        Move.PAGE_DOWN: place + page,
        Move.FIRST: 0,
        Move.LAST: last,
    }[move]
    return max(0, min(target, last))
