"""Combine what is known of a main thread's wait for data into one share with its interval. Pure.

Two origins tell it: stack samples, and frequent looks at state and system call. Behind a pin
thread a rank waits in a lock with a time-out and not in the poll of a queue. Without workers only
the stacks can tell loading from computing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from tpmon.judge.stacks.phase_shares import DESIGN, Share, share_of
from tpmon.judge.stacks.profile import DataPart, Phase, RankPhases
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known

STACKS = "stacks"
LOOKS = "main thread"
LEAST_SAMPLES = 20
"""Fewer stack samples or looks tell a share of 10 % from none in half of the cases only."""
LEAST_HANDED = 0.1
"""Lower end of the share of samples at a queue that is no loader's, from which it may hand batches on."""
LEAST_READINGS = 5
"""Of the once-a-second readings, where there are no frequent looks."""


@dataclass(frozen=True, slots=True)
class DataWait:
    """Hold the share of a main thread's time that goes into getting batches, 0-1.

    ``parts`` are shares of all stack samples; empty without stacks. ``surest_low`` is the highest
    lower bound that any of ``sources`` gives by itself, or all together.
    """

    share: Share
    parts: Mapping[DataPart, Share]
    sources: frozenset[str]
    surest_low: float
    told: Mapping[str, float] = field(default_factory=dict)
    """What each source tells by itself, where there are two."""

    def part(self, *names: DataPart) -> float:
        """Return the share of samples in any of these parts, 0-1."""
        return sum(self.parts[name].ratio for name in names if name in self.parts)


def measure_share(ratio: float, samples: int) -> Share:
    """Return a share of ``samples`` with its 95 % interval."""
    return share_of(ratio * samples, samples)


def _add(one: Share, other: Share) -> Share:
    """Add two shares of one time; the errors of their intervals add up as those of independent ones."""
    ratio = min(1.0, one.ratio + other.ratio)
    low = ratio - math.hypot(one.ratio - one.low, other.ratio - other.low)
    high = ratio + math.hypot(one.high - one.ratio, other.high - other.ratio)
    return Share(ratio, max(0.0, low), min(1.0, high), one.samples)


def _join(stacks: RankPhases, looks: Share) -> Share:
    """Pool the wait for the queue, which both see, and add what the stacks alone see.

    Each source weighs what it has of independent samples (``design``).
    """
    seen = stacks.ratio(Phase.DATA_WAIT)
    queue = min(seen, _queue_of(stacks))
    by_stacks, by_looks = stacks.samples / stacks.design, looks.samples / DESIGN
    size = by_stacks + by_looks
    pooled = share_of(queue * by_stacks + looks.ratio * by_looks, size, 1.0)
    pooled = replace(pooled, samples=stacks.samples + looks.samples)
    if seen <= queue:
        return pooled
    return _add(pooled, share_of((seen - queue) * stacks.samples, stacks.samples, stacks.design))


def _queue_of(stacks: RankPhases) -> float:
    return stacks.parts[DataPart.QUEUE].ratio if DataPart.QUEUE in stacks.parts else 0.0


def _contradicts(stacks: RankPhases, looks: Share) -> bool:
    """Tell whether the stacks surely see less waiting at the queue than the looks do."""
    queue = share_of(_queue_of(stacks) * stacks.samples, stacks.samples, stacks.design)
    return queue.high < looks.low


def combine_wait(
    looks: Known[Share], stacks: Known[RankPhases], *, is_any_lock: bool = False
) -> Known[DataWait]:
    """Combine the looks at the main thread with its stack samples; Missing when neither suffices.

    ``is_any_lock``: the looks saw a lock with a time-out, as behind a pin thread; stacks that see
    the thread elsewhere then say that it was another lock.
    """
    told = is_known(stacks) and stacks.samples >= LEAST_SAMPLES
    if is_known(stacks) and told:
        seen = stacks.share(Phase.DATA_WAIT)
        if not is_known(looks) or (is_any_lock and _contradicts(stacks, looks)):
            return DataWait(seen, stacks.parts, frozenset((STACKS,)), seen.low)
        both = _join(stacks, looks)
        surest = max(seen.low, looks.low, both.low)
        shares = {STACKS: seen.ratio, LOOKS: looks.ratio}
        return DataWait(both, stacks.parts, frozenset(shares), surest, shares)
    if is_known(looks):
        return DataWait(looks, MappingProxyType({}), frozenset((LOOKS,)), looks.low)
    return stacks if isinstance(stacks, Missing) else Missing("too few stack samples yet")


def join_handed(wait: Known[DataWait], stacks: Known[RankPhases], *, loader_behind: bool) -> Known[DataWait]:
    """Count a wait at a queue, a lock or a future as one for data while the loader cannot keep up.

    A thread that iterates the loader in the background hands its batches on: ``loader_behind`` says that
    the workers always have work, so that somebody takes every batch as soon as it is made.
    """
    if not loader_behind or not is_known(stacks) or stacks.samples < LEAST_SAMPLES:
        return wait
    handed = share_of(stacks.plain_waits_ratio * stacks.samples, stacks.samples, stacks.design)
    if handed.low < LEAST_HANDED:
        return wait
    seen = stacks.share(Phase.DATA_WAIT)
    parts = dict(stacks.parts)
    queue = parts.get(DataPart.QUEUE)
    parts[DataPart.QUEUE] = handed if queue is None else _add(queue, handed)
    share = _add(seen, handed)
    return DataWait(share, MappingProxyType(parts), frozenset((STACKS,)), share.low)
