"""Tell whether what each second reads of the ranks has just changed, before a rule says what it means. Pure.

A settled verdict is looked at seldom. What its rules judge moves a median of 10 s only after half of it,
and stacks only with the next slice: a change of what threads do is seen within seconds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from tpmon.judge.stacks.phase_shares import differs
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.process import Role

RECENT = 3
"""Readings that all must differ: one or two are a step of another kind."""
BEFORE = 10
"""Readings before them that they are compared with."""
MANY = 3
"""Ranks from which their looks are also compared together: they share the looks of a second."""
LEAST_DEMAND = 0.15
"""By how much the demand of all ranks, or of all their workers, must move, in threads."""

_Look = tuple[int, str]


def _count_looks(frames: Sequence[Frame]) -> Counter[_Look]:
    """Count by rank what the looks found its main thread at."""
    counts: Counter[_Look] = Counter()
    for frame in frames:
        for one in frame.main_threads if is_known(frame.main_threads) else ():
            found = {"running": one.running, "batch": one.batch_wait, "io": one.io, "lock": one.lock}
            rest = one.looks - sum(found.values())
            counts.update({(one.pid, name): count for name, count in {**found, "": max(rest, 0)}.items()})
    return counts


def _differ_by_rank(one: Counter[_Look], other: Counter[_Look]) -> bool:
    ranks = {pid for pid, _ in one} & {pid for pid, _ in other}
    return any(
        differs(
            {look: count for look, count in one.items() if look[0] == pid},
            {look: count for look, count in other.items() if look[0] == pid},
        )
        for pid in ranks
    )


def _pool(counts: Counter[_Look]) -> Counter[_Look]:
    """Add the looks of all ranks: of many each has too few in ``RECENT`` seconds."""
    pooled: Counter[_Look] = Counter()
    for (_, name), count in counts.items():
        pooled[0, name] += count
    return pooled


def _sum_demand(frame: Frame, role: Role) -> float:
    demands = (one.runnable for one in frame.processes if one.role is role)
    return sum(demand for demand in demands if is_known(demand))


def _has_moved(values: Sequence[float]) -> bool:
    """Tell whether the newest values lie all outside of those before them, and by how much."""
    before, recent = values[:-RECENT], values[-RECENT:]
    is_outside = min(recent) > max(before) or max(recent) < min(before)
    return is_outside and abs(statistics.median(recent) - statistics.median(before)) >= LEAST_DEMAND


def is_shaken(frames: Sequence[Frame]) -> bool:
    """Tell whether the last ``RECENT`` Frames differ from the ``BEFORE`` before them by more than chance.

    Compared are the looks at each main thread, and the demand of the ranks and of their workers.
    """
    seen = frames[-RECENT - BEFORE :]
    if len(seen) < RECENT + BEFORE:
        return False
    recent, before = _count_looks(seen[-RECENT:]), _count_looks(seen[:-RECENT])
    if _differ_by_rank(recent, before):
        return True
    if len({pid for pid, _ in recent}) >= MANY and _differ_by_rank(_pool(recent), _pool(before)):
        return True
    return any(_has_moved([_sum_demand(frame, role) for frame in seen]) for role in (Role.RANK, Role.WORKER))
