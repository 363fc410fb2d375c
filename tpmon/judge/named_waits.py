"""Tell a function that is named after loading and only waits for what others hand over. Pure."""

from __future__ import annotations

from tpmon.judge.scene import RankScene
from tpmon.model.known import is_known

MOST_LOADING = 0.5
"""Share of the samples below such a name that the main thread must spend in a lock for them to be a wait."""


def find_named_wait(rank: RankScene) -> float:
    """Return the share of samples (0-1) below the name of a loading function that sleep in a lock.

    A queue made of C leaves no frame of its own. Without a lock the function may well load: it reads a disk,
    or it pauses.
    """
    if not is_known(rank.phases) or not is_known(rank.main):
        return 0.0
    hinted = rank.phases.hinted_ratio
    return hinted if hinted and rank.main.lock >= MOST_LOADING * hinted else 0.0
