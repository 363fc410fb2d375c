"""Combine what is known of a main thread's wait for data into one share with its interval. Pure.

Two origins tell it: stack samples, and frequent looks at state and system call. Behind a pin
thread a rank waits in a lock with a time-out and not in the poll of a queue. Without workers only
the stacks can tell loading from computing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpmon.judge.phase_shares import Share, share_of
from tpmon.judge.phases import DataPart, Phase, RankPhases
from tpmon.model.known import Known, Missing, is_known

STACKS = "stacks"
LOOKS = "main thread"
LEAST_SAMPLES = 20
"""Fewer stack samples or looks tell a share of 10 % from none in half of the cases only."""
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

    def part(self, *names: DataPart) -> float:
        """Return the share of samples in any of these parts, 0-1."""
        return sum(self.parts[name].ratio for name in names if name in self.parts)


def measure_share(ratio: float, samples: int) -> Share:
    """Return a share of ``samples`` with its 95 % interval."""
    return share_of(ratio * samples, samples)


def _join(stacks: RankPhases, looks: Share) -> Share:
    """Pool the wait for the queue, which both see, and add what the stacks alone see.

    Slices of stacks are short and far apart, so several samples count as one (``design``).
    """
    seen = stacks.ratio(Phase.DATA_WAIT)
    queue = min(seen, stacks.parts[DataPart.QUEUE].ratio if DataPart.QUEUE in stacks.parts else 0.0)
    weight = max(1, round(stacks.samples / stacks.design))
    pooled = (queue * weight + looks.ratio * looks.samples) / (weight + looks.samples)
    return measure_share(min(1.0, pooled + seen - queue), weight + looks.samples)


def combine_wait(looks: Known[Share], stacks: Known[RankPhases]) -> Known[DataWait]:
    """Combine the looks at the main thread with its stack samples; Missing when neither suffices."""
    told = is_known(stacks) and stacks.samples >= LEAST_SAMPLES
    if is_known(stacks) and told:
        seen = stacks.share(Phase.DATA_WAIT)
        if not is_known(looks):
            return DataWait(seen, stacks.parts, frozenset((STACKS,)), seen.low)
        both = _join(stacks, looks)
        surest = max(seen.low, looks.low, both.low)
        return DataWait(both, stacks.parts, frozenset((STACKS, LOOKS)), surest)
    if is_known(looks):
        return DataWait(looks, MappingProxyType({}), frozenset((LOOKS,)), looks.low)
    return stacks if isinstance(stacks, Missing) else Missing("too few stack samples yet")
