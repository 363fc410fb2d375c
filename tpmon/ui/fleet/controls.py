"""What the screen of a fleet may ask of others."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.model.frozen import dataclass
from tpmon.model.results.fleet import FleetStacks
from tpmon.ui.fleet.state import FleetNews, FleetOrder


@dataclass(frozen=True, slots=True)
class FleetControls:
    """Hold what the screen may ask of others; no call may block."""

    listen: Callable[[Callable[[FleetNews], None]], None]
    """Hand all that is told from now on to this sink; called in any thread."""
    ask: Callable[[FleetOrder], None]
    write: Callable[[FleetStacks], str]
    """Write stacks as text, to paste into a ticket."""
    stop: Callable[[], None]
