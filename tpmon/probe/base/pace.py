"""Name how often what is dear may be looked at."""

from __future__ import annotations

from enum import Enum


class Pace(Enum):
    """Name a pace; each probe says in its own numbers what that means."""

    FULL = "full"
    SHED = "shed"
    """tpmon is over its own budget."""
    SETTLED = "settled"
    """The verdict has stood for a minute, and nothing begins to contradict it."""
