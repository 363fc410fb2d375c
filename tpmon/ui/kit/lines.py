"""What every painter makes: lines of inked text for a screen of a size, and the keys for its footer.

Knows nothing of textual, and nothing of what is painted.
"""

from __future__ import annotations

from enum import Enum

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
