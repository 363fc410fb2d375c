"""CPU causes: quota, thread pools that fight, and masks that keep workers on few CPUs.

Throttling is named before oversubscription, since waiting for a CPU includes throttled time (measured).
OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY bind a rank's main thread to one CPU and its pool to others;
workers are forked from the main thread and keep its mask, so all of them share that CPU.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, FigureReading, by_conditions, reading_aged
from tpmon.judge.features.card_use import find_gpu_idle
from tpmon.judge.features.cpu import (
    CROWDED_MARGIN,
    DELAY_RATIO,
    FREE_CORES,
    NEIGHBOUR_DELAY_RATIO,
    POOL_RATIO,
    Taker,
    are_others_waited_for,
    computes_alone,
    find_cores_left,
    find_cost_of_waiting,
    find_pools,
    find_taker,
    find_tenants,
    find_used_by_others,
    has_pool,
    note_neighbours,
    taker_unread,
)
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import pressure_origin
from tpmon.judge.features.snapshot import RankScene, Scene
from tpmon.judge.features.starvation import need_starved, suspect_loader
from tpmon.model.figures import Figure
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Known, Missing, is_known, known_or, map_known, sum_known
from tpmon.model.process import Role
from tpmon.model.text.redaction import MOST_DIGITS
from tpmon.model.units import format_pct
from tpmon.model.verdict import IN_WORDS, Kind

THROTTLED_RATIO = 0.25
"""Share of throttled periods above which a quota is the cause; measured 1.0 under a real quota."""
THROTTLED_SOME_RATIO = 0.1
"""Share of periods that suffices if the quota is used up, or the job waits for CPUs that nobody else uses:
beside a neighbour, a quota of 0.6 CPUs used to 97 % stopped the job in only 20 to 40 % of its periods."""
USED_UP_RATIO = 0.9
"""Share of a quota above which it is used up; a period may lie across two readings."""
THROTTLED_DELAY_RATIO = 0.1
"""Waiting share that confirms it: throttled time counts as waiting for a CPU."""
SINGLE_THREADED_RATIO = 1.5
FITTING_RATIO = 1.25
"""Demand of one rank over the budget up to which its pool fits; collectives come on top."""
PRESSURE_PCT = 50.0
"""cpu.pressure of the job's group; measured 79-100 with fighting pools, 1-30 without."""
_THREAD_SETTINGS = frozenset(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
)
TENANT_RATIO = 0.25
"""Part of its budget that others must use of the job's CPUs to be noted at all."""
MOST_COST = 0.95
"""Largest share of time lost to others by which a gain is computed; beyond it says "20x" and means a lot."""
TENANT_COST = 0.25
"""Share of a rank's time lost to others above which they are the verdict; below it they are a note."""


_NOT_DATED = Missing("read once a minute")


def _is_used_up(scene: Scene) -> bool:
    """Tell whether the job uses all of its budget, which must be less than the machine's CPUs."""
    if not is_known(scene.used) or not is_known(scene.budget):
        return False
    return scene.budget < scene.frame.cpu.host_cores and scene.used >= USED_UP_RATIO * scene.budget


def _is_waited_for(scene: Scene) -> bool:
    """Tell whether the job's threads wait for CPUs that no other process uses: only the quota is left."""
    if not is_known(scene.delay_ratio) or scene.delay_ratio < NEIGHBOUR_DELAY_RATIO:
        return False
    others = are_others_waited_for(scene)
    is_smaller = is_known(scene.budget) and scene.budget < scene.frame.cpu.host_cores
    return is_smaller and is_known(others) and not others


def _find_withheld(scene: Scene) -> Known[float]:
    """Return the share of the CPU time that the job's threads want which the quota withholds.

    What neighbours take of the quota itself would not come back with a larger one.
    """
    if not is_known(scene.runnable) or not is_known(scene.used) or not is_known(scene.budget):
        return Missing("what its threads want and get was not read")
    wanted, given = min(scene.runnable, float(scene.frame.cpu.host_cores)), max(scene.used, scene.budget)
    if given <= 0 or wanted <= given:
        return Missing("its threads want no more than the quota gives")
    return 1 - given / wanted


def _show_budget(proof: Proof) -> None:
    frame = proof.scene.frame
    proof.show(Figure.CPU_BUDGET, proof.scene.budget, source=frame.cpu.budget_reason)


def _add_pressure(proof: Proof) -> None:
    """Take the pressure as one more reading that agrees, where threads stall for a CPU most of the time."""
    cpu = proof.scene.frame.cpu
    if known_or(cpu.psi_some_pct, 0.0) >= PRESSURE_PCT:
        stalled = map_known(lambda pct: pct / 100, cpu.psi_some_pct)
        proof.add(Figure.CPU_PRESSURE, stalled, origins=(pressure_origin(cpu),))


@by_conditions
def judge_quota(scene: Scene) -> Answer:
    """Suspect the CPU quota when it stopped the job in a quarter of its periods, or is what it waits for."""
    quota, delay = Proof("CPU quota", scene), scene.delay_ratio
    least = THROTTLED_SOME_RATIO if _is_used_up(scene) or _is_waited_for(scene) else THROTTLED_RATIO
    ratio = quota.at_least(Figure.THROTTLED_PERIODS, scene.throttled_ratio, least)
    _show_budget(quota)
    quota.show(Figure.RUNNABLE, scene.runnable, source="schedstat")
    confirms = known_or(delay, 0.0) >= THROTTLED_DELAY_RATIO
    (quota.add if confirms else quota.show)(Figure.CPU_DELAY, delay)
    return quota.suspect(
        Kind.CPU_THROTTLED,
        "quota",
        ratio,
        f"the CPU quota stops the job in {format_pct(100 * ratio)} % of its periods",
        share=_find_withheld(scene),
        observed=frozenset((Need.QUOTA_THROTTLING,)),
    )


@by_conditions
def judge_oversubscription(scene: Scene) -> Answer:
    """Suspect thread pools that demand 1.5 times the budget and wait for a third of that time.

    Single-threaded loader workers beyond the budget cost nothing and do not count.
    """
    pools = Proof("thread pools", scene)
    pool = pools.at_least(Figure.POOL_DEMAND, scene.pool_ratio, POOL_RATIO)
    delay = pools.at_least(Figure.CPU_DELAY, scene.delay_ratio, DELAY_RATIO)
    ranks = [rank for rank in scene.ranks if has_pool(rank)]
    workers = [worker for rank in scene.ranks for worker in rank.workers if has_pool(worker)]
    started = find_pools(scene) - {rank.process.pid for rank in scene.ranks}
    alone = bool(scene.ranks) and all(computes_alone(rank.process) for rank in scene.ranks)
    pools.clear(alone and not workers and not started, "each rank computes with one thread")
    budget = known_or(scene.budget, 1.0)
    if sum_known(one.demand for one in workers) > sum_known(one.demand for one in ranks):
        cause = "worker-pool"
        whose = f"{len(workers)} loader workers" if len(workers) > 1 else "a loader worker"
    elif len(ranks) > 1 and all(_fits(rank, budget) for rank in ranks):
        cause, whose = "too-many-ranks", f"{len(ranks)} ranks"
    else:
        cause, whose = "rank-pool", f"{len(ranks)} ranks" if len(ranks) > 1 else "the rank"
        helpers = len(started) if not ranks else 0
        if helpers:
            whose = f"{helpers} processes that it started" if helpers > 1 else "a process that it started"
    in_workers = cause == "worker-pool"
    libraries = _libraries_of(scene, Role.WORKER if in_workers else Role.RANK)
    name = f"{libraries[0].family} pools in" if len(libraries) == 1 else "thread pools of"
    if not note_neighbours(scene):  # else others are what its group waits for
        _add_pressure(pools)
    _show_budget(pools)
    library = PoolLibrary.name_all(libraries)
    if library:
        pools.shown += (reading_aged(Figure.POOL_LIBRARY, IN_WORDS, _NOT_DATED, text=library),)
    pools.shown += _set_threads(scene)
    words = f"{name} {whose} want {pool:.1f} times the CPUs there are"
    needs = frozenset((Need.POOL_IN_WORKERS if in_workers else Need.POOL_IN_RANK,))
    return pools.suspect(Kind.OVERSUBSCRIBED, cause, delay, words, observed=needs)


@by_conditions
def judge_other_tenants(scene: Scene) -> Answer:
    """Suspect other processes when the job fits its CPUs and loses a quarter of its time to them."""
    tenants = Proof("other tenants", scene)
    taker = find_taker(scene)
    unread = taker_unread(scene)
    tenants.doubt(bool(unread), "; ".join(unread))
    tenants.clear(taker is not Taker.OTHERS, "the job waits for none")
    costs = [tenants.known(find_cost_of_waiting(rank)) for rank in scene.ranks]
    idles = [find_gpu_idle(rank, scene) for rank in scene.ranks]
    # A card that computes meanwhile hides the wait.
    costs = [min(cost, idle) if is_known(idle) else cost for cost, idle in zip(costs, idles, strict=True)]
    cost = max(costs, default=0.0)
    percent = format_pct(100 * cost)
    tenants.clear(cost < TENANT_COST, f"the ranks lose {percent} % of their time to them")
    wanted, budget = known_or(scene.runnable, 0.0), known_or(scene.budget, 0.0)
    tenants.add(Figure.CPU_DELAY, scene.delay_ratio, cost / TENANT_COST)
    _add_pressure(tenants)
    tenants.add(Figure.RUNNABLE, wanted, source="schedstat")
    _show_budget(tenants)
    tenants.show(Figure.OTHERS_USE, find_used_by_others(scene))
    for one in find_tenants(scene):
        tenants.show(Figure.TENANT, one.cores, of=f"{one.command} of {one.user or 'another user'}")
    return tenants.suspect(
        Kind.OVERSUBSCRIBED,
        "other-tenants",
        cost,
        f"other processes take the job's CPUs: it wants {wanted:.1f} of {budget:.1f} and waits {percent} % "
        f"of its time for them; alone it would make up to {1 / (1 - min(cost, MOST_COST)):.1f}x the steps",
        share=cost,
        observed=frozenset((Need.CPUS_TAKEN,)),
    )


def _libraries_of(scene: Scene, role: Role) -> tuple[PoolLibrary, ...]:
    """Return which libraries the job's largest pool may be of, if that is in a process of ``role``."""
    pool = scene.frame.cpu.pool
    return known_or(pool.libraries, ()) if is_known(pool) and pool.role is role else ()


def _set_threads(scene: Scene) -> tuple[FigureReading, ...]:
    """Return the thread settings of the start environment that exceed the budget."""
    if not is_known(scene.budget):
        return ()
    found = {
        one.name: int(one.value)
        for rank in scene.ranks
        if is_known(rank.process.environment)
        for one in rank.process.environment
        if one.name in _THREAD_SETTINGS and one.value.isdecimal() and len(one.value) <= MOST_DIGITS
        if int(one.value) > scene.budget
    }
    return tuple(
        reading_aged(Figure.THREAD_SETTING, float(value), 0.0, of=name) for name, value in found.items()
    )


def _fits(rank: RankScene, budget: float) -> bool:
    """Tell whether one rank's threads fit the budget; those of its collectives come on top."""
    return is_known(rank.demand) and rank.demand <= FITTING_RATIO * budget


def note_tenants(scene: Scene) -> str:
    """Return the note that others work on the job's CPUs, whether it loses by that or not."""
    harm, budget = note_neighbours(scene), scene.budget
    others = find_used_by_others(scene)
    if harm or not is_known(others) or not is_known(budget):
        return harm
    cores = scene.frame.cpu.host_cores
    # As many CPUs as the job may not use can be busy without touching it.
    if others - max(cores - budget, 0.0) < TENANT_RATIO * budget:
        return ""
    return f"other-tenants: other processes use {others:.1f} of the {cores} CPUs of this machine"


def note_single_threaded_workers(scene: Scene) -> str:
    """Return the note that more workers will not help, "" when they might."""
    if not is_known(scene.budget) or scene.budget <= 0:
        return ""
    demands = [
        worker.demand
        for rank in scene.ranks
        for worker in rank.workers
        if is_known(worker.demand) and is_known(worker.busy_threads) and not has_pool(worker)
    ]
    if sum(demands) < SINGLE_THREADED_RATIO * scene.budget:
        return ""
    who = "one worker wants" if len(demands) == 1 else f"{len(demands)} workers want"
    return f"workers-beyond-budget: {who} {sum(demands):.1f} CPUs; more will not help"


BOUND_DEMAND = 1.5
"""Threads that the workers want for each allowed CPU, above which these are too few for them."""
BOUND_RANKS = 1.25
"""The same for ranks, whose threads all count."""
BOUND_DELAY = 0.3
"""Part of that demand in which they wait for a CPU."""


_CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*", re.ASCII)
# Five digits at most: no kernel has more CPUs, and a Frame from a file may say anything.


@lru_cache(maxsize=1024)
def parse_cpus(text: str) -> Known[frozenset[int]]:
    """Parse a list of CPUs as the kernel writes it, "0-3,8"; Missing where it is none."""
    if not _CPUS.fullmatch(text):
        return Missing("no list of CPUs")
    spans = [part.partition("-") for part in text.split(",")]
    return frozenset(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


def _find_cpus(pids: Collection[int], scene: Scene) -> Known[frozenset[int]]:
    """Return the CPUs on which any of these processes may run."""
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


@by_conditions
def judge_worker_affinity(scene: Scene) -> Answer:
    """Suspect the mask of the workers when they wait for the few CPUs that it leaves them of the budget."""
    found, bound = need_starved(scene), Proof("workers that are bound to few CPUs", scene)
    bound.clear(not found.workers, "there are none")
    cpus = Claim("on which CPUs the workers may run").known(
        _find_cpus({worker.pid for worker in found.workers}, scene)
    )
    budget = Claim("whether the workers may run on all CPUs of the job").known(scene.budget)
    bound.clear(len(cpus) > budget - FREE_CORES, f"they may run on {len(cpus)}")
    wanted = sum_known(worker.demand for worker in found.workers)
    waiting = sum_known(worker.waiting for worker in found.workers)
    waits = wanted >= BOUND_DEMAND * len(cpus) and waiting >= BOUND_DELAY * wanted
    bound.clear(not waits, f"they want {wanted:.1f} of {len(cpus)}")
    bound.add(Figure.WORKERS_WANT, wanted, wanted / (BOUND_DEMAND * max(len(cpus), 1)))
    bound.add(Figure.WORKERS_ALLOWED, float(len(cpus)))
    bound.show(Figure.CPU_BUDGET, scene.budget, source=scene.frame.cpu.budget_reason)
    count, delay = len(found.workers), format_pct(100 * waiting / wanted)
    who = f"its {count} workers" if count > 1 else "its one worker"
    why = f"{who} may run on {_say_cpus(cpus)} and wait for that {delay} % of the time that they have work"
    return suspect_loader(found, bound, "worker-affinity", why, observed=frozenset((Need.WORKERS_BOUND,)))


@by_conditions
def judge_affinity(scene: Scene) -> Answer:
    """Suspect the mask of the ranks when they wait for the CPUs that it leaves them and others idle.

    What started them may run on more, so no cpuset of the machine keeps them there.
    """
    bound, frame = Proof("ranks that are bound to few CPUs", scene), scene.frame
    bound.clear(not scene.ranks, "no rank runs")
    cpus = Claim("on which CPUs the ranks may run").known(
        _find_cpus({rank.process.pid for rank in scene.ranks}, scene)
    )
    bound.clear(len(cpus) >= frame.cpu.host_cores, "they may run on all")
    starters = {one.pid for one in frame.processes if one.role is Role.LAUNCHER}
    bound.doubt(not starters, f"they may run on {len(cpus)}, and nobody is seen who started them")
    allowed = Claim("on which CPUs their launcher may run").known(_find_cpus(starters, scene))
    bound.clear(not cpus < allowed, f"their launcher may run on these {len(cpus)} alone, too")
    wanted = sum(bound.known(rank.demand) for rank in scene.ranks)
    waiting = sum(bound.known(rank.waiting) for rank in scene.ranks)
    waits = wanted >= BOUND_RANKS * len(cpus) and waiting >= BOUND_DELAY * wanted
    bound.clear(not waits, f"they want {wanted:.1f} of {len(cpus)}")
    left = bound.known(find_cores_left(scene))
    is_idle = left >= FREE_CORES
    meanwhile = f"{left:.1f} CPUs are idle" if is_idle else "others use the other CPUs"
    bound.margin = wanted / (BOUND_RANKS * len(cpus)) if is_idle else CROWDED_MARGIN
    bound.add(Figure.RANKS_DEMAND, wanted)
    bound.add(Figure.RANKS_ALLOWED, float(len(cpus)))
    bound.add(Figure.LAUNCHER_ALLOWED, float(len(allowed)))
    bound.add(Figure.CPUS_FREE, left, source="/proc/stat")
    bound.add(Figure.CPU_DELAY, scene.delay_ratio)
    count, delay = len(scene.ranks), waiting / wanted
    who = f"its {count} ranks" if count > 1 else "its rank"
    share: Known[float] = Missing("what others would leave them of the other CPUs is not known")
    if is_idle:
        share = max(0.0, 1 - len(cpus) / min(wanted, len(cpus) + left))
    return bound.suspect(
        Kind.OVERSUBSCRIBED,
        "affinity",
        delay,
        f"{who} may run on {_say_cpus(cpus)} and wait for that {format_pct(100 * delay)} % of the time, "
        f"while {meanwhile}",
        share=share,
        observed=frozenset((Need.RANKS_BOUND,)),
    )
