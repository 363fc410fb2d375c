"""Compute the numbers of one run that fill the templates of the catalogue. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tpmon.judge.features.readings import all_known
from tpmon.model.frozen import dataclass
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import Freezer, Tracer

if TYPE_CHECKING:
    from tpmon.judge.advice.hot import HotSpot

# What each threshold is, and where it comes from: docs/thresholds.toml.
MEMORY_SHARE = 0.8
CORE_SLACK = 0.5
ROUNDING_CORES = 0.25
LEAST_WORKER_CORES = 0.05
MOST_AT_ONCE = 4
WORKERS_A_CORE = 2.0
QUEUED_BATCHES = 2


UNREAD = Missing("not measured")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Hold the numbers that remedies name.

    Cores, memory and ranks are those of the job on this machine; workers are those of one rank. ``pid``,
    ``rank`` and ``card`` are those of the verdict.
    """

    ranks: Known[int] = UNREAD
    workers_per_rank: Known[int] = UNREAD
    budget_cores: Known[float] = UNREAD
    cores_free: Known[float] = UNREAD
    quota_cores: Applicable[float] = UNREAD
    memory_free_bytes: Known[int] = UNREAD
    memory_limit_bytes: Applicable[int] = UNREAD
    """Of its control group."""
    worker_rss_bytes: Known[int] = UNREAD
    """RSS of one worker; without workers that of the rank, an upper bound of what a fork costs."""
    worker_busy_ratio: Known[float] = UNREAD
    needed_ratio: Known[float] = UNREAD
    """Batches per second that the compute could take over those that the loader makes."""
    waiting_ratio: Known[float] = UNREAD
    """Share of the step time (0-1) that goes away at best."""
    loading_ratio: Known[float] = UNREAD
    """Share of its time (0-1) that the rank waits for or works on batches, whatever its card does."""
    pool_libraries: Applicable[tuple[PoolLibrary, ...]] = UNREAD
    shm_total_bytes: Known[int] = UNREAD
    shm_room: Known[float] = UNREAD
    """Free bytes of /dev/shm over its largest growth in a second: the batches that still fit, at least."""
    pid: Applicable[int] = UNREAD
    rank: Applicable[int] = UNREAD
    card: Applicable[int] = UNREAD
    other_pid: Applicable[int] = UNREAD
    """The process that the named one waits for; ``peer``: what its socket is connected to."""
    peer: Applicable[str] = UNREAD
    script: Known[str] = UNREAD
    pools: Known[int] = UNREAD
    """Processes with a thread pool at work, except loader workers."""
    log_path: Known[str] = UNREAD
    """The file that the job wrote to last."""
    slurm_job: Applicable[str] = UNREAD
    launcher: Applicable[int] = UNREAD
    host_cores: Known[int] = UNREAD
    tenant: Applicable[int] = UNREAD
    """The process of others that uses most of the job's CPUs."""
    frozen: Applicable[Freezer] = UNREAD
    tracer: Applicable[Tracer] = UNREAD
    hot: Applicable[HotSpot] = UNREAD
    mount: Applicable[str] = UNREAD
    """Where the file system is mounted that it waits for."""
    lock_file: Applicable[str] = UNREAD
    alone_rank: Applicable[int] = UNREAD
    alone_place: Applicable[str] = UNREAD
    """The one rank in a collective that the others do not reach, and its line: "train.py:14"."""
    event_loop: bool = False
    past: Applicable[str] = UNREAD
    """The ranks that are past the backward passes in which the others wait: "rank 1 is"."""
    lacking: Applicable[str] = UNREAD
    """The threads that a forked process has not ("the pool of tokenizers"), and what does without them."""
    fork_switch: Applicable[str] = UNREAD


def size_loader(facts: RunFacts) -> Known[int]:
    """Propose ``num_workers`` for one rank of the job, each rank with an equal share of what is free."""
    # Missing if a reading is, but for the room in /dev/shm: unseen, it is no limit.
    needs = (facts.workers_per_rank, facts.needed_ratio, facts.budget_cores, facts.cores_free)
    read = all_known(
        (facts.ranks, *needs, facts.worker_busy_ratio, facts.memory_free_bytes, facts.worker_rss_bytes)
    )
    if not is_known(read):
        return read
    if not all(math.isfinite(one) and one >= 0 for one in read):
        return UNREAD
    ranks, now, needed, budget, cores, busy, memory, rss = read
    ranks, now = max(int(ranks), 1), int(now)
    # Without workers the loop itself is the one loader, and its part of a core becomes free.
    moved = needed / (1 + needed) if now == 0 else 0.0
    limits = [
        math.ceil(needed * max(now, 1)),
        now + math.floor((cores / ranks + moved + CORE_SLACK) / max(busy, LEAST_WORKER_CORES)),
        now + math.floor(MEMORY_SHARE * (memory // ranks) / max(rss, 1)),
    ]
    if now > 0:
        limits.append(max(2 * now, min(MOST_AT_ONCE * now, math.floor(WORKERS_A_CORE * budget / ranks))))
    if is_known(facts.shm_room) and math.isfinite(facts.shm_room):
        limits.append(now + math.floor(MEMORY_SHARE * max(facts.shm_room / ranks, 0.0) / QUEUED_BATCHES))
    return max(now, min(limits))


def whole_cores(value: float) -> int:
    """Return how many whole cores there are, one at least."""
    return max(1, math.floor(value)) if math.isfinite(value) else 1


def count_threads_per_rank(facts: RunFacts) -> Known[int]:
    """Share the whole cores of the budget among the ranks, or the processes with a pool."""
    if not is_known(facts.budget_cores) or not is_known(facts.ranks):
        return UNREAD
    return max(1, whole_cores(facts.budget_cores) // max(facts.ranks, known_or(facts.pools, 1), 1))


def count_threads_in_free(facts: RunFacts) -> Known[int]:
    """Return the threads for a rank that has one: its share at most, with a free core for each new one."""
    # The loader's workers have the other cores: a pool of the whole budget would fight with them.
    most, free = count_threads_per_rank(facts), facts.cores_free
    if not is_known(most) or not is_known(facts.ranks) or not is_known(free):
        return UNREAD
    return min(most, 1 + math.floor(free / max(facts.ranks, 1) + ROUNDING_CORES))


def count_workers_in_quota(facts: RunFacts) -> Known[int]:
    """Leave each rank a core of the quota and share the rest among its workers."""
    if not is_known(facts.quota_cores) or not is_known(facts.ranks):
        return UNREAD
    return max(1, whole_cores(facts.quota_cores) // max(facts.ranks, 1) - 1)
