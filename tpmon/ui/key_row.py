"""The shape of a row of the table of keys, and what keys do beyond changing the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from tpmon.model.frozen import dataclass
from tpmon.ui.controls import Asked
from tpmon.ui.moves import Effect, Move
from tpmon.ui.situations import Situation
from tpmon.ui.view import Overlay, Pane, ViewState


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Open an overlay for the row under the cursor; which rows there are, the painters know."""

    overlay: Overlay


@dataclass(frozen=True, slots=True)
class ByDigit:
    """Do something with the pane whose digit was pressed."""

    act: Callable[[ViewState, Pane], ViewState]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask something of the session, or say why not; ``make`` also gets the rows under the cursor."""

    make: Callable[[ViewState, Sequence[int]], Asked]


Action = Callable[[ViewState], ViewState]
Deed = Union[Action, Ask, ByDigit, Move, OpenRow, Effect]


@dataclass(frozen=True, slots=True)
class Key:
    """Hold one row of the table.

    ``keys`` are the names that a terminal event carries, ``shown`` what a person reads of them.
    ``footer``, ``priority`` and ``brief`` are those of KeyHelp.
    """

    id: str
    keys: tuple[str, ...]
    shown: tuple[str, ...]
    section: str
    help: str
    deed: Deed
    when: Situation
    footer: str = ""
    priority: int = 0
    brief: str = ""
