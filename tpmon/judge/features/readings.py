"""Reduce the readings of a span to one figure each. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tpmon.model.figures import Origin
from tpmon.model.host import SUMMED_ANON, CpuSample, MemorySample
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.model.waits import IO, RUNNING, Wait, WaitReason, describe_wait

NO_FRAMES = Missing("too few readings yet")
Value = TypeVar("Value")


def _reduce(
    values: Iterable[Known[float]], reduce: Callable[[Sequence[float]], float], nothing: Missing
) -> Known[float]:
    listed = list(values)
    try:
        # Numbers compare and add up, a Missing does not: most columns end here.
        return reduce(listed) if listed else nothing  # type: ignore[arg-type]
    except TypeError:
        known = [value for value in listed if is_known(value)]
        reason = next((value for value in listed if isinstance(value, Missing)), nothing)
        return reduce(known) if known and 2 * len(known) >= len(listed) else reason


def median_known(values: Iterable[Known[float]]) -> Known[float]:
    """Return the median of the values that were read; the first reason when fewer than half were."""
    return _reduce(values, _find_median, NO_FRAMES)


def _find_median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2  # a third of the time of statistics.median
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def mean_known(values: Iterable[Known[float]], nothing: Missing = NO_FRAMES) -> Known[float]:
    """Return the mean of the values that were read; the first reason when fewer than half were."""
    # Shares of time need the mean: by the median, a card that works for 3 s and rests for 2 never rests.
    return _reduce(values, statistics.fmean, nothing)


def all_known(values: Iterable[Known[Value]]) -> Known[list[Value]]:
    """Return the values, or the reason of the first that was not read."""
    known = []
    for value in values:
        if not is_known(value):
            return value
        known.append(value)
    return known


def share_of(values: Sequence[Known[Wait]], wanted: WaitReason) -> Known[float]:
    """Return the share of one reason among the readings; Missing when fewer than half were read."""
    return mean_known(map_known(lambda wait: float(wait.reason is wanted), value) for value in values)


LEAST_LOOKS = 3  # samples that found a thread not running, needed to tell what it waits for


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
    """Return by how much samples understate the time in which a main thread wanted no CPU; 1: not known."""
    # Its demand is exact. On a crowded machine samples come when this tool has a CPU, so a thread on that CPU
    # is found in state R too often.
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
