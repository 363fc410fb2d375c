"""Loader workers that may run on few of the job's CPUs, a mask that they inherited. Pure.

OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY bind the main thread of a rank to one CPU and the rest of
its pool to others; workers are forked from the main thread and keep its mask, so all of them share that CPU.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Unsure, reading
from tpmon.judge.features.cpu import FREE_CORES
from tpmon.judge.features.loader import WORKERS, Starved, find_starved, suspect_loader
from tpmon.judge.features.snapshot import Rule, Scene, WorkerScene
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.units import format_pct

BOUND_DEMAND = 1.5
"""Threads that the workers want for each CPU on which they may run, from which these are too few for them."""
BOUND_DELAY = 0.3
"""Part of that time which they wait for a CPU."""
AFFINITY = "affinity"


_CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*", re.ASCII)
# Of five digits at most: no kernel has more CPUs, and what a Frame of a file says may be anything.


@lru_cache(maxsize=1024)
def parse_cpus(text: str) -> Known[frozenset[int]]:
    """Parse a list of CPUs as the kernel writes it, "0-3,8"; Missing where it is none."""
    if not _CPUS.fullmatch(text):
        return Missing("no list of CPUs")
    spans = [part.partition("-") for part in text.split(",")]
    return frozenset(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


def _find_cpus(workers: tuple[WorkerScene, ...], scene: Scene) -> Known[frozenset[int]]:
    """Return the CPUs on which any of the workers may run."""
    pids = {worker.pid for worker in workers}
    cpus: frozenset[int] = frozenset()
    for process in scene.frame.processes:
        if process.pid in pids:
            told = process.allowed_cpus
            known = parse_cpus(told) if is_known(told) else told
            if isinstance(known, Missing):
                return known
            cpus |= known
    return cpus


def _say_cpus(cpus: frozenset[int]) -> str:
    if len(cpus) == 1:
        return f"one CPU only (CPU {min(cpus)})"
    return f"{len(cpus)} CPUs only (CPUs {', '.join(map(str, sorted(cpus)[:8]))}{', …' * (len(cpus) > 8)})"


def judge_worker_affinity(scene: Scene) -> Answer:
    """Suspect the mask of the workers when they wait for the few CPUs that it leaves them of the budget."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return found
    if not found.workers:
        return Cleared("workers that are bound to few CPUs (there are none)")
    cpus = _find_cpus(found.workers, scene)
    if not is_known(cpus):
        return Unsure(f"on which CPUs the workers may run ({cpus.reason})")
    if not is_known(scene.budget):
        return Unsure(f"whether the workers may run on all CPUs of the job ({scene.budget.reason})")
    if len(cpus) > scene.budget - FREE_CORES:
        return Cleared(f"workers that are bound to few CPUs (they may run on {len(cpus)})")
    wanted = sum(known_or(worker.demand, 0.0) for worker in found.workers)
    waiting = sum(known_or(worker.waiting, 0.0) for worker in found.workers)
    if wanted < BOUND_DEMAND * len(cpus) or waiting < BOUND_DELAY * wanted:
        return Cleared(f"workers that are bound to few CPUs (they want {wanted:.1f} of {len(cpus)})")
    count, age = len(found.workers), scene.frame.ages_s.threads
    who = f"its {count} workers" if count > 1 else "its one worker"
    delay = format_pct(100 * waiting / wanted)
    return suspect_loader(
        found,
        scene,
        "worker-affinity",
        f"{who} may run on {_say_cpus(cpus)} and wait for that {delay} % of the time that they have work",
        margin=wanted / (BOUND_DEMAND * max(len(cpus), 1)),
        sources=frozenset((WORKERS, AFFINITY)),
        evidence=(
            reading("the workers want", wanted, "CPUs", "schedstat", age),
            reading("they may run on", float(len(cpus)), "CPUs", "Cpus_allowed_list", age),
            reading("budget", scene.budget, "CPUs", scene.frame.cpu.budget_reason, scene.frame.ages_s.cpu),
        ),
        observed=frozenset((Need.WORKERS_BOUND,)),
    )


RULES: tuple[Rule, ...] = (judge_worker_affinity,)
