"""How many workers a loader should have, and what more of them gain at most. Pure."""

from __future__ import annotations

import math

from tpmon.model.known import Known, Missing, is_known

MEMORY_SHARE = 0.8
"""Share of the free memory that new workers may take; the rest is for their batches and for growth."""

CORE_SLACK = 0.5
"""Cores that a proposal may go over the budget: half a free core makes one more worker worth having, as the
rules of the loader say, and single-threaded workers beyond the budget cost nothing."""

ROUNDING_CORES = 0.25
"""Of a free core that may be missing from it: a thread that computes takes a little more than its core."""

LEAST_WORKER_CORES = 0.05
"""Cores that a worker which only waits for reads is still counted with."""

MOST_AT_ONCE = 4
"""Times the present workers that one proposal names at most: what a store gives so many is not known."""

WORKERS_A_CORE = 2.0
"""Workers per core of the budget from which a proposal doubles at most: each has its own imports."""

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

    All cores, bytes and batches are the rank's share. Missing as soon as one of them was not read, the room
    in /dev/shm excepted: where no batch was seen in it, it is no limit.
    """
    readings = (
        workers_now,
        needed_ratio,
        cores_free,
        memory_free_bytes,
        worker_rss_bytes,
        worker_busy_ratio,
        budget_cores,
    )
    names = (
        "workers",
        "need",
        "free cores",
        "free memory",
        "memory of a worker",
        "load of a worker",
        "CPU budget",
    )
    for name, value in zip(names, readings, strict=True):
        if isinstance(value, Missing):
            return Missing(f"{name}: {value.reason}")
        if not math.isfinite(value) or value < 0:
            return Missing(f"{name}: {value}")
    now, needed, cores, memory, rss, busy, budget = (value for value in readings if is_known(value))
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

    A batch takes the CPU time that it takes now: beyond the free cores more workers only share. Workers
    that wait for reads, which take next to no core, are bound by their number alone.
    """
    busy_cores = workers_now * worker_cores
    by_cores = (busy_cores + cores_free) / busy_cores if busy_cores > 0 else workers / workers_now
    return max(1.0, min(workers / workers_now, by_cores, needed_ratio))
