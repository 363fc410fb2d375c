"""Compute the numbers of one run that fill the templates of the catalogue. Pure."""

from __future__ import annotations

import math

from tpmon.judge.advice.hot import HotSpot
from tpmon.model.frozen import dataclass
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Freezer, Tracer

MEMORY_SHARE = 0.8
"""Share of the free memory that new workers may take; the rest is for their batches and for growth."""

CORE_SLACK = 0.5
"""Cores that a proposal may go over the budget: half a free core makes another worker worthwhile, as in the
rules of the loader, and single-threaded workers beyond the budget cost nothing."""

ROUNDING_CORES = 0.25
"""Part of a free core that may be missing: a computing thread takes a little more than its core."""

LEAST_WORKER_CORES = 0.05
"""Cores counted for a worker that only waits for reads."""

MOST_AT_ONCE = 4
"""Most times the present workers in one proposal: what a store gives so many is not known."""

WORKERS_A_CORE = 2.0
"""Workers per core of the budget above which a proposal at most doubles them: each has its own imports."""

QUEUED_BATCHES = 2
"""Batches of each worker that lie in /dev/shm: prefetch_factor, by default."""


def propose_workers(
    *,
    workers_now: Known[int],
    needed_ratio: Known[float],
    cores_free: Known[float],
    memory_free_bytes: Known[int],
    worker_rss_bytes: Known[int],
    worker_busy_ratio: Known[float],
    budget_cores: Known[float],
    shm_room: Known[float],
) -> Known[int]:
    """Size ``num_workers`` of one rank against need, cores, memory and /dev/shm.

    wanted    = ceil(needed_ratio * max(now, 1)); with no workers the loop itself is the one loader
    by cores  = now + floor((cores_free + moved + 0.5) / max(busy, 0.05)); with no workers
                moved = r / (1 + r), the part of a core that loading takes in the rank today
    by memory = now + floor(0.8 * memory_free / worker_rss)
    by step   = 4 * now, and above two workers a core of the budget 2 * now; with no workers any
    by shm    = now + floor(0.8 * shm_room / 2), where /dev/shm was seen to grow
    proposal  = max(now, min(wanted, by cores, by memory, by step, by shm)): never fewer than there are

    All cores, bytes and batches are the rank's share. Missing if one of them was not read, except the room in
    /dev/shm: where no batch was seen in it, it is no limit.
    """
    readings: dict[str, Known[float]] = {
        "workers": workers_now,
        "need": needed_ratio,
        "free cores": cores_free,
        "free memory": memory_free_bytes,
        "memory of a worker": worker_rss_bytes,
        "load of a worker": worker_busy_ratio,
        "CPU budget": budget_cores,
    }
    for name, value in readings.items():
        if isinstance(value, Missing):
            return Missing(f"{name}: {value.reason}")
        if not math.isfinite(value) or value < 0:
            return Missing(f"{name}: {value}")
    now, needed, cores, memory, rss, busy, budget = (value for value in readings.values() if is_known(value))
    moved = needed / (1 + needed) if now == 0 else 0.0
    wanted = math.ceil(needed * max(now, 1))
    by_cores = now + math.floor((cores + moved + CORE_SLACK) / max(busy, LEAST_WORKER_CORES))
    by_memory = now + math.floor(MEMORY_SHARE * memory / max(rss, 1))
    limits = [wanted, by_cores, by_memory]
    if now > 0:
        limits.append(max(2 * now, min(MOST_AT_ONCE * now, math.floor(WORKERS_A_CORE * budget))))
    if is_known(shm_room) and math.isfinite(shm_room):
        limits.append(now + math.floor(MEMORY_SHARE * max(shm_room, 0.0) / QUEUED_BATCHES))
    return int(max(now, min(limits)))


def limit_growth(
    *, workers_now: int, workers: int, worker_cores: float, cores_free: float, needed_ratio: float
) -> float:
    """Return how many times the batches of today ``workers`` make at most, and the compute takes.

    by number = workers / now
    by cores  = (cores of the workers now + free cores) / cores of the workers now
    by need   = the batches that the compute could take over those of today

    A batch takes the CPU time that it takes now: beyond the free cores more workers only share. Workers that
    wait for reads take next to no core, and are limited only by their number.
    """
    busy_cores = workers_now * worker_cores
    by_cores = (busy_cores + cores_free) / busy_cores if busy_cores > 0 else workers / workers_now
    return max(1.0, min(workers / workers_now, by_cores, needed_ratio))


UNREAD = Missing("not measured")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Hold the numbers that remedies name.

    Cores, memory and ranks are those of the job on this machine; workers are those of one rank.
    ``waiting_ratio`` is the share of the step time (0-1) that goes away at best; ``needed_ratio`` the batches
    per second that the compute could take over those that the loader makes. ``pid``, ``rank`` and ``card``
    are those of the verdict.
    """

    ranks: Known[int] = UNREAD
    workers_per_rank: Known[int] = UNREAD
    budget_cores: Known[float] = UNREAD
    cores_free: Known[float] = UNREAD
    quota_cores: Applicable[float] = UNREAD
    memory_free_bytes: Known[int] = UNREAD
    worker_rss_bytes: Known[int] = UNREAD
    """RSS of one worker; without workers that of the rank, an upper bound of what a fork costs."""
    worker_busy_ratio: Known[float] = UNREAD
    needed_ratio: Known[float] = UNREAD
    waiting_ratio: Known[float] = UNREAD
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
    """The process that the named one waits for."""
    peer: Applicable[str] = UNREAD
    """What its socket is connected to."""
    script: Known[str] = UNREAD
    pools: Known[int] = UNREAD
    """Processes with a thread pool at work, except loader workers."""
    log_path: Known[str] = UNREAD
    """The file that the job wrote to last."""
    slurm_job: Applicable[str] = UNREAD
    """Its number in Slurm, by its environment."""
    launcher: Applicable[int] = UNREAD
    host_cores: Known[int] = UNREAD
    tenant: Applicable[int] = UNREAD
    """The process of others that uses most of the job's CPUs."""
    frozen: Applicable[Freezer] = UNREAD
    tracer: Applicable[Tracer] = UNREAD
    hot: Applicable[HotSpot] = UNREAD
    """The known call that takes most of the time."""
    mount: Applicable[str] = UNREAD
    """Where the file system is mounted that it waits for."""
    lock_file: Applicable[str] = UNREAD
    alone_rank: Applicable[int] = UNREAD
    alone_place: Applicable[str] = UNREAD
    """The one rank in a collective that the others do not reach, and its line: "train.py:14"."""
    lacking: Applicable[str] = UNREAD
    """The threads that a forked process has not: "the pool of tokenizers"."""
    fork_switch: Applicable[str] = UNREAD
    """What makes that library do without them."""


def size_loader(facts: RunFacts) -> Known[int]:
    """Propose ``num_workers`` for one rank of the job, each rank with an equal share of what is free."""
    if not is_known(facts.ranks):
        return facts.ranks
    ranks = max(facts.ranks, 1)
    return propose_workers(
        workers_now=facts.workers_per_rank,
        needed_ratio=facts.needed_ratio,
        cores_free=map_known(lambda cores: cores / ranks, facts.cores_free),
        memory_free_bytes=map_known(lambda size: size // ranks, facts.memory_free_bytes),
        worker_rss_bytes=facts.worker_rss_bytes,
        worker_busy_ratio=facts.worker_busy_ratio,
        budget_cores=map_known(lambda cores: cores / ranks, facts.budget_cores),
        shm_room=map_known(lambda batches: batches / ranks, facts.shm_room),
    )


def whole_cores(value: Applicable[float]) -> Known[int]:
    """Return how many whole cores there are, one at least."""
    if not is_known(value) or not math.isfinite(value):
        return UNREAD
    return max(1, math.floor(value))


def count_threads_per_rank(facts: RunFacts) -> Known[int]:
    """Share the whole cores of the budget among the ranks, or the processes with a pool."""
    cores = whole_cores(facts.budget_cores)
    if not is_known(cores) or not is_known(facts.ranks):
        return UNREAD
    return max(1, cores // max(facts.ranks, known_or(facts.pools, 1), 1))


def count_threads_in_free(facts: RunFacts) -> Known[int]:
    """Return the threads for a rank that has one: its share at most, with a free core for each new one.

    The loader's workers have the other cores: a pool of the whole budget would fight with them.
    """
    most = count_threads_per_rank(facts)
    if not is_known(most) or not is_known(facts.ranks):
        return most
    if not is_known(facts.cores_free):
        return facts.cores_free
    return min(most, 1 + math.floor(facts.cores_free / max(facts.ranks, 1) + ROUNDING_CORES))


def count_workers_in_quota(facts: RunFacts) -> Known[int]:
    """Leave each rank a core of the quota and share the rest among its workers."""
    quota = whole_cores(facts.quota_cores)
    if not is_known(quota) or not is_known(facts.ranks):
        return UNREAD
    return max(1, quota // max(facts.ranks, 1) - 1)


def may_exceed_quota(facts: RunFacts) -> bool:
    """Tell whether a rank may have more workers than its quota pays for; a cap never exceeds what runs."""
    most, now = count_workers_in_quota(facts), facts.workers_per_rank
    return not is_known(most) or not is_known(now) or now > most
