"""What a column of a table is: its title, what it reads of a row, and how that is written. Pure.

A table is told once, and the text and the screen lay it out, each in the room that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

from tpmon.model.frozen import dataclass

Row = TypeVar("Row")


class Where(Enum):
    """Say who shows a column."""

    BOTH = "both"
    TEXT = "text"
    SCREEN = "screen"


@dataclass(frozen=True, slots=True)
class TableFigure(Generic[Row]):
    """Describe one column of a table.

    Of columns that do not fit a screen the least ``keep`` stays longest. ``width`` is the least one
    there; 0 is that of what stands in the column. ``sorts`` tells whether rows can be sorted by it.
    """

    head: str
    read: Callable[[Row], object]
    write: Callable[[Any], str] = str
    keep: int = 0
    width: int = 0
    left: bool = False
    grows: bool = False
    """Whether it takes what is left of the width of a screen."""
    sorts: bool = False
    where: Where = Where.BOTH
    text_head: str = ""
    """Its title in text, where that is another one."""

    def tell(self, row: Row) -> str:
        """Write what stands in the column."""
        return self.write(self.read(row))


Figures = tuple[TableFigure[Row], ...]
