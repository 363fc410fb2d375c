"""What keys of the live screen do beyond changing the picture, and the rows of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from tpmon.model.frozen import dataclass
from tpmon.ui.kit.keys import ByDigit, Key
from tpmon.ui.kit.moves import Effect, Move
from tpmon.ui.monitor.controls import Asked
from tpmon.ui.monitor.state import Overlay, ViewState


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Open an overlay for the row under the cursor; which rows there are, the painters know."""

    overlay: Overlay


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask something of the session, or say why not; ``make`` also gets the rows under the cursor."""

    make: Callable[[ViewState, Sequence[int]], Asked]


Action = Callable[[ViewState], ViewState]
LiveKey = Key[ViewState, Union[Action, Ask, ByDigit[ViewState], Move, OpenRow, Effect]]
