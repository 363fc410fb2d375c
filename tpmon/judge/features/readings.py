"""Reduce the readings of a span to one figure each. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from tpmon.model.figures import Origin
from tpmon.model.host import SUMMED_ANON, CpuSample, MemorySample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.waits import IO, RUNNING, Wait, WaitReason, describe_wait

NO_FRAMES = Missing("too few readings yet")


def median_known(values: Iterable[Known[float]]) -> Known[float]:
    """Return the median of the values that were read; the first reason when fewer than half were."""
    listed = list(values)
    if len(listed) > 1:
        try:
            # Numbers compare with each other, a Missing does not: most columns end here.
            ordered: list[float] = sorted(listed)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            middle = len(ordered) // 2
            return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    known = [value for value in listed if is_known(value)]
    if known and 2 * len(known) >= len(listed):
        return statistics.median(known)
    return next((value for value in listed if isinstance(value, Missing)), NO_FRAMES)


def all_known(values: Iterable[Known[float]]) -> Known[list[float]]:
    """Return the values, or the reason of the first that was not read."""
    known = []
    for value in values:
        if not is_known(value):
            return value
        known.append(value)
    return known


def mean_known(values: Iterable[Known[float]], nothing: Missing = NO_FRAMES) -> Known[float]:
    """Return the mean of the values that were read; the first reason when fewer than half were.

    Shares of time need the mean: by the median, a card that works for 3 s and rests for 2 never rests.
    """
    listed = list(values)
    try:
        if listed:
            return statistics.fmean(listed)  # type: ignore[arg-type]
    except TypeError:
        pass  # one is Missing, which is no number
    known = [value for value in listed if is_known(value)]
    if known and 2 * len(known) >= len(listed):
        return statistics.fmean(known)
    return next((value for value in listed if isinstance(value, Missing)), nothing)


def share_of(values: Sequence[Known[Wait]], wanted: WaitReason) -> Known[float]:
    """Return the share of one reason among the readings; Missing when fewer than half were read."""
    known = [value for value in values if is_known(value)]
    if not known or 2 * len(known) < len(values):
        return next((value for value in values if isinstance(value, Missing)), NO_FRAMES)
    return sum(value.reason is wanted for value in known) / len(known)


LEAST_LOOKS = 3
"""Samples that found a thread not running, needed to tell what it waits for."""


def list_io_waits(states: Sequence[str], waits: Sequence[Known[Wait]]) -> tuple[Wait, ...]:
    """List what a process waited for when it was blocked, most frequent first."""
    counts = Counter(
        wait
        for state, wait in zip(states, waits, strict=True)
        if is_known(wait) and (state == "D" or wait.reason in IO)
    )
    return tuple(sorted(counts, key=lambda wait: (-counts[wait], describe_wait(wait))))


def share_waits(waits: Sequence[Known[Wait]], rest: float = 1.0) -> dict[Wait, float]:
    """Return the share of each wait among those read, most frequent first; ``rest`` is ``weigh_rest``."""
    known = [wait for wait in waits if is_known(wait)]
    if not known or 2 * len(known) < len(waits):
        return {}
    counts = Counter(known)
    running = max(0.0, 1.0 - rest * (1.0 - counts[RUNNING] / len(known)))
    return {
        wait: running if wait == RUNNING else rest * count / len(known)
        for wait, count in counts.most_common()
    }


def weigh_rest(states: Sequence[str], demands: Sequence[Known[float]]) -> float:
    """Return by how much samples understate the time in which a main thread wanted no CPU; 1: not known.

    Its demand is exact. On a crowded machine samples come when this tool has a CPU, so a thread on that CPU
    is found in state R too often.
    """
    known = [one for one in demands if is_known(one)]
    looked = len(states) - states.count("R")
    if looked < LEAST_LOOKS or 2 * len(known) < len(demands):
        return 1.0
    return max(0.0, 1.0 - statistics.fmean(known)) * len(states) / looked


def memory_origin(memory: MemorySample) -> Origin:
    """Return where the job's memory is read: in its control group, or per process."""
    return Origin.PROC if memory.anon_source == SUMMED_ANON else Origin.CGROUP


def pressure_origin(sample: CpuSample | MemorySample) -> Origin:
    """Return where CPU or memory pressure is read: in the control group, or of the whole host."""
    return Origin.PROC if is_known(sample.psi_of_host) else Origin.CGROUP
