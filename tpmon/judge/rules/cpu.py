"""CPU causes: quota, thread pools that fight, and masks that keep workers on few CPUs.

Throttling is named before oversubscription, since waiting for a CPU includes throttled time (measured).
OMP_PROC_BIND, GOMP_CPU_AFFINITY and KMP_AFFINITY bind a rank's main thread to one CPU and its pool to others;
workers are forked from the main thread and keep its mask, so all of them share that CPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sized
from functools import lru_cache

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, reading_aged
from tpmon.judge.features import cpu
from tpmon.judge.features.card_use import find_gpu_idle
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.readings import pressure_origin
from tpmon.judge.features.snapshot import Scene, list_settings, read_count
from tpmon.judge.features.starvation import need_starved, suspect_loader
from tpmon.model.figures import Figure
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Known, Missing, is_known, known_or, map_known, sum_known
from tpmon.model.process import Role
from tpmon.model.units import say_ratio
from tpmon.model.verdict import IN_WORDS, Kind

THROTTLED_RATIO = 0.25  # share of throttled periods above which a quota is the cause
THROTTLED_SOME_RATIO = 0.1
USED_UP_RATIO = 0.9  # share of a quota above which it is used up; a period may lie across two readings
THROTTLED_DELAY_RATIO = 0.1  # waiting share that confirms it: throttled time counts as waiting for a CPU
SINGLE_THREADED_RATIO = 1.5
FITTING_RATIO = 1.25  # demand of one rank over the budget up to which its pool fits; collectives come on top
PRESSURE_PCT = 50.0  # cpu.pressure of the job's group; measured 79-100 with fighting pools, 1-30 without
_THREAD_SETTINGS = frozenset(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
)
TENANT_RATIO = 0.25  # part of its budget that others must use of the job's CPUs to be noted at all
MOST_COST = 0.95  # largest share of time lost to others by which a gain is computed
TENANT_COST = 0.25  # share of a rank's time lost to others above which they are the verdict


def _may_be_quota(scene: Scene) -> bool:
    """Tell whether the job uses up a budget below the machine's CPUs, or waits for CPUs that nobody uses."""
    if not is_known(scene.budget) or scene.budget >= scene.frame.cpu.host_cores:
        return False
    if known_or(scene.used, 0.0) >= USED_UP_RATIO * scene.budget:
        return True
    waits = known_or(scene.delay_ratio, 0.0) >= cpu.NEIGHBOUR_DELAY_RATIO
    return waits and not known_or(cpu.are_others_waited_for(scene), True)


def _find_withheld(scene: Scene) -> Known[float]:
    """Return the share of the CPU time that the job's threads want which the quota withholds."""
    # What neighbours take of the quota itself would not come back with a larger one.
    if not is_known(scene.runnable) or not is_known(scene.used) or not is_known(scene.budget):
        return Missing("what its threads want and get was not read")
    wanted, given = min(scene.runnable, float(scene.frame.cpu.host_cores)), max(scene.used, scene.budget)
    if given <= 0 or wanted <= given:
        return Missing("its threads want no more than the quota gives")
    return 1 - given / wanted


def _show_budget(proof: Proof) -> None:
    proof.show(Figure.CPU_BUDGET, proof.scene.budget, source=proof.scene.frame.cpu.budget_reason)


def _add_pressure(proof: Proof) -> None:
    """Take the pressure as one more reading that agrees, where threads stall for a CPU most of the time."""
    sample = proof.scene.frame.cpu
    if known_or(sample.psi_some_pct, 0.0) >= PRESSURE_PCT:
        stalled = map_known(lambda pct: pct / 100, sample.psi_some_pct)
        proof.add(Figure.CPU_PRESSURE, stalled, origins=(pressure_origin(sample),))


def _say_some(those: Sized, one: str, several: str) -> str:
    return f"{len(those)} {several}" if len(those) > 1 else one


@proves("CPU quota")
def judge_quota(quota: Proof, scene: Scene) -> Answer:
    """Suspect the CPU quota when it stopped the job in a quarter of its periods, or is what it waits for."""
    delay = scene.delay_ratio
    least = THROTTLED_SOME_RATIO if _may_be_quota(scene) else THROTTLED_RATIO
    ratio = quota.at_least(Figure.THROTTLED_PERIODS, scene.throttled_ratio, least)
    _show_budget(quota)
    quota.show(Figure.RUNNABLE, scene.runnable, source="schedstat")
    confirms = known_or(delay, 0.0) >= THROTTLED_DELAY_RATIO
    (quota.add if confirms else quota.show)(Figure.CPU_DELAY, delay)
    words = f"the CPU quota stops the job in {say_ratio(ratio)} of its periods"
    share = _find_withheld(scene)
    return quota.suspect(Kind.CPU_THROTTLED, "quota", ratio, words, Need.QUOTA_THROTTLING, share=share)


@proves("thread pools")
def judge_oversubscription(pools: Proof, scene: Scene) -> Answer:
    """Suspect thread pools that demand 1.5 times the budget and wait for a third of that time."""
    # Single-threaded loader workers beyond the budget cost nothing and do not count.
    pool = pools.at_least(Figure.POOL_DEMAND, scene.pool_ratio, cpu.POOL_RATIO)
    delay = pools.at_least(Figure.CPU_DELAY, scene.delay_ratio, cpu.DELAY_RATIO)
    ranks = [rank for rank in scene.ranks if cpu.has_pool(rank)]
    workers = [worker for rank in scene.ranks for worker in rank.workers if cpu.has_pool(worker)]
    started = cpu.find_pools(scene) - {rank.process.pid for rank in scene.ranks}
    alone = bool(scene.ranks) and all(cpu.computes_alone(rank.process) for rank in scene.ranks)
    pools.clear(alone and not workers and not started, "each rank computes with one thread")
    most = FITTING_RATIO * known_or(scene.budget, 1.0)  # threads of collectives come on top
    cause, whose = "rank-pool", _say_some(ranks, "the rank", "ranks")
    if sum_known(one.demand for one in workers) > sum_known(one.demand for one in ranks):
        cause, whose = "worker-pool", _say_some(workers, "a loader worker", "loader workers")
    elif len(ranks) > 1 and all(known_or(rank.demand, math.inf) <= most for rank in ranks):
        cause = "too-many-ranks"
    elif not ranks and started:
        whose = _say_some(started, "a process that it started", "processes that it started")
    in_workers = cause == "worker-pool"
    pool_of, role = scene.frame.cpu.pool, Role.WORKER if in_workers else Role.RANK
    libraries = known_or(pool_of.libraries, ()) if is_known(pool_of) and pool_of.role is role else ()
    name = f"{libraries[0].family} pools in" if len(libraries) == 1 else "thread pools of"
    if not cpu.note_neighbours(scene):  # else others are what its group waits for
        _add_pressure(pools)
    _show_budget(pools)
    library = PoolLibrary.name_all(libraries)
    if library:
        dated = Missing("read once a minute")
        pools.shown += (reading_aged(Figure.POOL_LIBRARY, IN_WORDS, dated, text=library),)
    found = {one.name: float(read_count(one)) for one in list_settings(scene, _THREAD_SETTINGS)}
    beyond = {name: count for name, count in found.items() if count > known_or(scene.budget, math.inf)}
    pools.shown += tuple(reading_aged(Figure.THREAD_SETTING, beyond[name], 0.0, of=name) for name in beyond)
    words = f"{name} {whose} want {pool:.1f} times the CPUs there are"
    need = Need.POOL_IN_WORKERS if in_workers else Need.POOL_IN_RANK
    return pools.suspect(Kind.OVERSUBSCRIBED, cause, delay, words, need)


@proves("other tenants")
def judge_other_tenants(tenants: Proof, scene: Scene) -> Answer:
    """Suspect other processes when the job fits its CPUs and loses a quarter of its time to them."""
    unread = cpu.taker_unread(scene)
    tenants.doubt(bool(unread), "; ".join(unread))
    tenants.clear(cpu.find_taker(scene) is not cpu.Taker.OTHERS, "the job waits for none")
    # They have no more of the CPU time than what they use, of that and the job's own.
    others, used, cost, most = cpu.find_used_by_others(scene), known_or(scene.used, 0.0), 0.0, 1.0
    if is_known(others) and is_known(scene.used) and others + used > 0:
        most = others / (others + used)
    for rank in scene.ranks:
        # A card that computes meanwhile hides the wait.
        idle = known_or(find_gpu_idle(rank, scene), 1.0)
        cost = max(cost, min(tenants.known(cpu.find_cost_of_waiting(rank)), idle, most))
    tenants.clear(cost < TENANT_COST, f"the ranks lose {say_ratio(cost)} of their time to them")
    wanted, budget = known_or(scene.runnable, 0.0), known_or(scene.budget, 0.0)
    tenants.add(Figure.CPU_DELAY, scene.delay_ratio, cost / TENANT_COST)
    _add_pressure(tenants)
    tenants.add(Figure.RUNNABLE, wanted, source="schedstat")
    _show_budget(tenants)
    tenants.show(Figure.OTHERS_USE, others)
    for one in cpu.find_tenants(scene):
        tenants.show(Figure.TENANT, one.cores, of=f"{one.command} of {one.user or 'another user'}")
    lost, alone = say_ratio(cost), 1 / (1 - min(cost, MOST_COST))
    words = (
        f"other processes take the job's CPUs: it wants {wanted:.1f} of {budget:.1f} and waits {lost} of its "
        f"time for them; alone it would make up to {alone:.1f}x the steps"
    )
    return tenants.suspect(Kind.OVERSUBSCRIBED, "other-tenants", cost, words, Need.CPUS_TAKEN, share=cost)


def note_tenants(scene: Scene) -> str:
    """Return the note that others work on the job's CPUs, whether it loses by that or not."""
    harm, budget, cores = cpu.note_neighbours(scene), scene.budget, scene.frame.cpu.host_cores
    others = cpu.find_used_by_others(scene)
    if harm or not is_known(others) or not is_known(budget):
        return harm
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
        if is_known(worker.demand) and is_known(worker.busy_threads) and not cpu.has_pool(worker)
    ]
    if sum(demands) < SINGLE_THREADED_RATIO * scene.budget:
        return ""
    who = "one worker wants" if len(demands) == 1 else f"{len(demands)} workers want"
    return f"workers-beyond-budget: {who} {sum(demands):.1f} CPUs; more will not help"


BOUND_DEMAND = 1.5  # threads that workers want for each allowed CPU, above which these are too few for them
BOUND_RANKS = 1.25  # the same for ranks, whose threads all count
BOUND_DELAY = 0.3  # part of that demand in which they wait for a CPU
# Five digits at most: no kernel has more CPUs, and a Frame from a file may say anything.
_CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*", re.ASCII)


@lru_cache(maxsize=1024)
def parse_cpus(text: str) -> Known[frozenset[int]]:
    """Parse a list of CPUs as the kernel writes it, "0-3,8"; Missing where it is none."""
    if not _CPUS.fullmatch(text):
        return Missing("no list of CPUs")
    spans = [part.partition("-") for part in text.split(",")]
    return frozenset(one for first, _, last in spans for one in range(int(first), int(last or first) + 1))


def _find_cpus(pids: Collection[int], whose: str, scene: Scene) -> frozenset[int]:
    masks = (one.allowed_cpus for one in scene.frame.processes if one.pid in pids)
    where = Claim(f"on which CPUs {whose} may run")
    return frozenset[int]().union(*(where.known(parse_cpus(where.known(mask))) for mask in masks))


def _say_cpus(cpus: frozenset[int]) -> str:
    if len(cpus) == 1:
        return f"one CPU only (CPU {min(cpus)})"
    return f"{len(cpus)} CPUs only (CPUs {', '.join(map(str, sorted(cpus)[:8]))}{', …' * (len(cpus) > 8)})"


@proves("workers that are bound to few CPUs")
def judge_worker_affinity(bound: Proof, scene: Scene) -> Answer:
    """Suspect the mask of the workers when they wait for the few CPUs that it leaves them of the budget."""
    found = need_starved(scene)
    bound.clear(not found.workers, "there are none")
    cpus = _find_cpus({worker.pid for worker in found.workers}, "the workers", scene)
    budget = Claim("whether the workers may run on all CPUs of the job").known(scene.budget)
    bound.clear(len(cpus) > budget - cpu.FREE_CORES, f"they may run on {len(cpus)}")
    wanted = sum_known(worker.demand for worker in found.workers)
    waiting = sum_known(worker.waiting for worker in found.workers)
    waits = wanted >= BOUND_DEMAND * len(cpus) and waiting >= BOUND_DELAY * wanted
    bound.clear(not waits, f"they want {wanted:.1f} of {len(cpus)}")
    bound.add(Figure.WORKERS_WANT, wanted, wanted / (BOUND_DEMAND * max(len(cpus), 1)))
    bound.add(Figure.WORKERS_ALLOWED, float(len(cpus)))
    _show_budget(bound)
    who, delay = _say_some(found.workers, "one worker", "workers"), say_ratio(waiting / wanted)
    why = f"its {who} may run on {_say_cpus(cpus)} and wait for that {delay} of the time that they have work"
    return suspect_loader(found, bound, "worker-affinity", why, observed=(Need.WORKERS_BOUND,))


@proves("ranks that are bound to few CPUs")
def judge_affinity(bound: Proof, scene: Scene) -> Answer:
    """Suspect the mask of the ranks when they wait for the CPUs that it leaves them and others idle."""
    # What started them may run on more, so no cpuset of the machine keeps them there.
    frame = scene.frame
    bound.clear(not scene.ranks, "no rank runs")
    cpus = _find_cpus({rank.process.pid for rank in scene.ranks}, "the ranks", scene)
    bound.clear(len(cpus) >= frame.cpu.host_cores, "they may run on all")
    starters = {one.pid for one in frame.processes if one.role is Role.LAUNCHER}
    bound.doubt(not starters, f"they may run on {len(cpus)}, and nobody is seen who started them")
    allowed = _find_cpus(starters, "their launcher", scene)
    bound.clear(not cpus < allowed, f"their launcher may run on these {len(cpus)} alone, too")
    wanted = sum(bound.known(rank.demand) for rank in scene.ranks)
    waiting = sum(bound.known(rank.waiting) for rank in scene.ranks)
    is_long = wanted >= BOUND_RANKS * len(cpus) and waiting >= BOUND_DELAY * wanted
    bound.clear(not is_long, f"they want {wanted:.1f} of {len(cpus)}")
    left = bound.known(cpu.find_cores_left(scene))
    is_idle = left >= cpu.FREE_CORES
    meanwhile = f"{left:.1f} CPUs are idle" if is_idle else "others use the other CPUs"
    bound.margin = wanted / (BOUND_RANKS * len(cpus)) if is_idle else cpu.CROWDED_MARGIN
    bound.add(Figure.RANKS_DEMAND, wanted)
    bound.add(Figure.RANKS_ALLOWED, float(len(cpus)))
    bound.add(Figure.LAUNCHER_ALLOWED, float(len(allowed)))
    bound.add(Figure.CPUS_FREE, left, source="/proc/stat")
    bound.add(Figure.CPU_DELAY, scene.delay_ratio)
    who, delay = _say_some(scene.ranks, "rank", "ranks"), waiting / wanted
    share: Known[float] = Missing("what others would leave them of the other CPUs is not known")
    if is_idle:
        share = max(0.0, 1 - len(cpus) / min(wanted, len(cpus) + left))
    waits = f"wait for that {say_ratio(delay)} of the time, while {meanwhile}"
    words = f"its {who} may run on {_say_cpus(cpus)} and {waits}"
    return bound.suspect(Kind.OVERSUBSCRIBED, "affinity", delay, words, Need.RANKS_BOUND, share=share)
