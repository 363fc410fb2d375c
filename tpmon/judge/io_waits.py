"""Say which waits of a process, in words, are waits for I/O, and how often each was found. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from tpmon.model.known import Known, is_known

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


def share_waits(waits: Sequence[Known[str]]) -> dict[str, float]:
    """Return the share of each wait among those that were read, most frequent first."""
    known = [words for words in waits if is_known(words)]
    if not known or 2 * len(known) < len(waits):
        return {}
    return {words: count / len(known) for words, count in Counter(known).most_common()}
