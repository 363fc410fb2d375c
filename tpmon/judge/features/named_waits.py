"""Tell a function that is named after loading and only waits for what others hand over. Pure."""

from __future__ import annotations

from tpmon.judge.features.snapshot import RankScene
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.model.known import is_known

MOST_LOADING = 0.5
"""Share of the samples below such a name that the main thread must spend in a lock for them to be a wait."""
_IN_LOCKS = (Phase.BACKWARD, Phase.SYNC, Phase.COMMS, Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE)
"""Phases that may wait in a lock: for autograd's thread, a card, other ranks, a thread that writes."""


def find_named_wait(rank: RankScene) -> float:
    """Return the share of samples (0-1) below the name of a loading function that sleep in a lock.

    A queue made of C leaves no frame of its own. Without a lock the function may well load: it reads a disk,
    or it pauses.
    """
    phases, main = rank.phases, rank.main
    if not is_known(phases) or not is_known(main) or not phases.hinted_ratio:
        return 0.0
    queue = phases.parts.get(DataPart.QUEUE)
    others = phases.ratio(*_IN_LOCKS) + phases.handed_ratio + phases.call_waits_ratio
    spare = main.lock - others - (queue.ratio if queue is not None else 0.0)
    return min(phases.hinted_ratio, spare) if spare >= MOST_LOADING * phases.hinted_ratio else 0.0
