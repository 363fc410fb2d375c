"""Say which waits of a process, in words, are waits for I/O, and how often each was found. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from tpmon.model.known import Known, is_known
from tpmon.model.process import ON_A_CPU

LEAST_LOOKS = 3
"""Looks that did not find it running, to tell what it waits for: fewer are no share of anything."""
_IO_WORDS = ("FUSE", "NFS", "Ceph", "Lustre", "disk", "journal", "socket", "pipe read", "FIFO")


@lru_cache(maxsize=1024)
def is_io_wait(words: str) -> bool:
    """Tell whether a wait, in words, is for a disk, a network file system, a socket or a pipe."""
    return any(word in words for word in _IO_WORDS)


def list_io_waits(states: Sequence[str], waits: Sequence[Known[str]]) -> tuple[str, ...]:
    """Name what a process waited for when it was blocked, most frequent first."""
    counts = Counter(
        words
        for state, words in zip(states, waits, strict=True)
        if is_known(words) and (state == "D" or is_io_wait(words))
    )
    return tuple(sorted(counts, key=lambda words: (-counts[words], words)))


def share_waits(waits: Sequence[Known[str]], rest: float = 1.0) -> dict[str, float]:
    """Return the share of each wait among those that were read, most frequent first.

    ``rest`` is ``weigh_rest`` of the same looks: by it all but running is multiplied.
    """
    known = [words for words in waits if is_known(words)]
    if not known or 2 * len(known) < len(waits):
        return {}
    counts = Counter(known)
    running = max(0.0, 1.0 - rest * (1.0 - counts[ON_A_CPU] / len(known)))
    return {
        words: running if words == ON_A_CPU else rest * count / len(known)
        for words, count in counts.most_common()
    }


def weigh_rest(states: Sequence[str], demands: Sequence[Known[float]]) -> float:
    """Return by how much more of its time a main thread wanted no CPU than its looks say; 1: not known.

    Its demand is exact. On a crowded machine the looks come when this tool has a CPU, so that what shares
    that CPU is found in state R more often than it is.
    """
    known = [one for one in demands if is_known(one)]
    looked = len(states) - states.count("R")
    if looked < LEAST_LOOKS or 2 * len(known) < len(demands):
        return 1.0
    return max(0.0, 1.0 - statistics.fmean(known)) * len(states) / looked
