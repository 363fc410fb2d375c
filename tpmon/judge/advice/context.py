"""Say what was observed of a run, as needs of the catalogue, and gather its numbers. Pure."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping

from tpmon.judge.advice import standing
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.hot import HotSpot, find_hot
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features import comms as rank_waits
from tpmon.judge.features import cpu, data_wait
from tpmon.judge.features.cards import ratio_of
from tpmon.judge.features.hook_needs import observe_settings
from tpmon.judge.features.snapshot import (
    RankScene,
    Scene,
    WorkerScene,
    find_largest_step,
    find_touched_swap,
    is_shm_tight,
    list_settings,
    read_count,
)
from tpmon.judge.features.workers import BLOCKED_WORKER, BUSY_WORKER
from tpmon.judge.stacks.classify import is_event_loop
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import WaitTarget
from tpmon.model.host import BudgetBy
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Role
from tpmon.model.text.job_words import list_taxes
from tpmon.model.verdict import Kind

Observed = Mapping[Need, bool]

# What each threshold is, and where it comes from: docs/thresholds.toml.
FULL_RATIO = 0.9
LARGE_POOL_RATIO = 1.25
FREE_CARD_RATIO = 0.6
FULL_CARD_RATIO = 0.95
TENSOR_IDLE_PCT = 5.0
TENSOR_BUSY_PCT = 25.0
NEAR_LIMIT_RATIO = 0.8
ONLY_FORWARD_RATIO = 0.5
OFTEN_RATIO = 0.2
OFTEN_S = 30.0
SET_THREADS_RATIO = 1.5
_FP16_ALONE = re.compile(r"V100|TITAN V\b|\bT4\b|TITAN RTX|RTX 20\d\d|Quadro RTX|\bT4G\b")
"""Names of Volta and Turing cards with tensor cores: NVIDIA's tables of compute capability 7.0 to 7.5."""
_WAITS_BLOCKED, _FAST_NETWORK = "TORCH_NCCL_BLOCKING_WAIT", "NCCL_IB_DISABLE"
_WITHIN_MACHINE = frozenset(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))
_THREAD_SETTINGS = frozenset(("OMP_NUM_THREADS", "MKL_NUM_THREADS"))


def _workers(scene: Scene) -> list[WorkerScene]:
    return [worker for rank in scene.ranks for worker in rank.feeders]


def _mostly(values: Iterable[Known[float]], least: float) -> bool:
    known = [value for value in values if is_known(value)]
    return bool(known) and statistics.median(known) >= least


def _sets_threads(rank: RankScene, scene: Scene) -> bool:
    """Tell whether more threads compute than the environment or the CPUs of the machine explain."""
    environment = rank.process.environment
    if not is_known(rank.busy_threads) or not is_known(environment):
        return False
    given = [read_count(one) for one in environment if one.name in _THREAD_SETTINGS]
    return rank.busy_threads >= SET_THREADS_RATIO * max([scene.frame.cpu.host_cores, *given])


def _look_at_loader(scene: Scene) -> Observed:
    """Observe the loader: without workers it is the rank itself; with some it is torch's."""
    workers = _workers(scene)
    loaders = [rank.loader for rank in scene.ranks if rank.loader is not None]
    return {
        Need.WORKERS_PRESENT: bool(workers),
        Need.TORCH_LOADER: bool(workers),
        Need.NO_WORKERS: bool(scene.ranks) and not workers,
        Need.WORKERS_CPU_BOUND: _mostly((one.demand for one in workers or scene.ranks), BUSY_WORKER),
        Need.WORKERS_IO_WAIT: _mostly((one.blocked_ratio for one in workers), BLOCKED_WORKER),
        Need.BATCHES_PINNED: any(loader.pin_thread for loader in loaders),
        Need.BATCHES_READY: bool(loaders) and all(known_or(one.ready_batches, 0) >= 1 for one in loaders),
    }


def _cores_free(scene: Scene, suspicion: Suspicion) -> Known[float]:
    """Return the cores that neither the job nor others use; a rule may know it."""
    budget, used = scene.budget, scene.used
    if not is_known(budget) or not is_known(used):
        return Missing("CPU budget or use not read")
    if is_known(suspicion.cores_free):
        return suspicion.cores_free
    free = max(0.0, budget - max(used, known_or(scene.runnable, used)))
    return min(free, known_or(cpu.find_cores_left(scene), free))


def _look_at_cpus(scene: Scene, suspicion: Suspicion) -> Observed:
    most, used, free = (
        known_or(scene.budget, math.inf),
        known_or(scene.used, 0.0),
        _cores_free(scene, suspicion),
    )
    is_free, by_quota = known_or(free, 0.0) >= cpu.FREE_CORES, scene.frame.cpu.budget_by is BudgetBy.QUOTA
    is_full = is_known(free) and max(used, known_or(scene.runnable, used)) >= FULL_RATIO * most
    # More threads of the ranks' pools are at work than there are cores for them.
    busy = sum(known_or(rank.busy_threads, 0.0) for rank in scene.ranks if cpu.has_pool(rank))
    return {
        Need.CORES_FREE: is_free,
        Need.CORES_FULL: is_full and not is_free,
        Need.QUOTA_BELOW_AFFINITY: by_quota,
        Need.AFFINITY_BELOW_HOST: not by_quota and most < scene.frame.cpu.host_cores,
        Need.RANKS_EXCEED_CORES: len(scene.ranks) > max(most, 1.0),
        Need.POOL_IN_RANK: busy > LARGE_POOL_RATIO * most,
        Need.POOL_IN_WORKERS: any(map(cpu.has_pool, _workers(scene))),
        Need.CPUS_TAKEN: bool(cpu.note_neighbours(scene)),
        Need.THREADS_IN_SCRIPT: any(_sets_threads(rank, scene) for rank in scene.ranks),
        Need.ONE_THREAD_SET: any(one.value == "1" for one in list_settings(scene, _THREAD_SETTINGS)),
    }


def _list_fills(scene: Scene) -> list[float]:
    """Return how full the memory of each card is, 0-1, where that was read."""
    ratios = (ratio_of(card.memory_used_bytes, card.memory_total_bytes) for card in scene.cards)
    return [one for one in ratios if is_known(one)]


def _list_tensor_pcts(scene: Scene) -> list[float]:
    return [card.tensor_pct for card in scene.cards if is_known(card.tensor_pct)]


def _look_at_cards(scene: Scene) -> Observed:
    if not scene.cards:
        return {}
    fills, tensor = _list_fills(scene), _list_tensor_pcts(scene)
    return {
        Need.GPU_PRESENT: True,
        Need.GPU_MEMORY_FULL: bool(fills) and max(fills) >= FULL_CARD_RATIO,
        Need.GPU_MEMORY_FREE: bool(fills) and max(fills) <= FREE_CARD_RATIO,
        Need.TENSOR_CORES_IDLE: bool(tensor) and max(tensor) < TENSOR_IDLE_PCT,
        Need.TENSOR_CORES_BUSY: bool(tensor) and max(tensor) >= TENSOR_BUSY_PCT,
        Need.FP16_CORES_ALONE: all(_FP16_ALONE.search(card.name) for card in scene.cards),
    }


def _find_memory(scene: Scene) -> tuple[Known[int], Known[int]]:
    """Return the memory of the control group, or of the machine where that has no limit, and what is free."""
    memory = scene.frame.memory
    if is_known(memory.limit_bytes) and is_known(memory.used_bytes):
        return memory.limit_bytes, memory.limit_bytes - memory.used_bytes
    return memory.host_total_bytes, memory.host_available_bytes


def _look_at_memory(scene: Scene) -> Observed:
    memory, (total, free) = scene.frame.memory, _find_memory(scene)
    read = is_known(total) and is_known(free)
    near = is_known(total) and is_known(free) and free <= (1 - NEAR_LIMIT_RATIO) * total
    return {
        Need.MEMORY_LIMIT_NEAR: near,
        Need.MEMORY_FREE: read and not near,
        # Untouched swap costs nothing: any machine that was once short of memory has some.
        Need.SWAP_USED: isinstance(find_touched_swap(scene), tuple),
        Need.SHM_TIGHT: is_known(memory.shm) and is_shm_tight(memory.shm, scene),
    }


def _look_at_stacks(scene: Scene) -> Observed:
    """Observe what the stacks show: enough samples of every rank, and whether all only run forward."""
    phases = [rank.phases for rank in scene.ranks if is_known(rank.phases)]
    found = {need: True for one in phases for need in one.needs}
    if not phases or len(phases) < len(scene.ranks):
        return found
    fewest = min(one.samples for one in phases)
    trained = max(one.ratio(Phase.BACKWARD, Phase.OPTIMIZER) for one in phases) > 0
    forward = min(one.ratio(Phase.FORWARD) for one in phases) >= ONLY_FORWARD_RATIO
    pauses = max(one.ratio(Phase.VALIDATION) for one in phases) >= OFTEN_RATIO
    return {
        **found,
        Need.STACKS_READ: fewest >= data_wait.LEAST_SAMPLES,
        Need.VALIDATES_OFTEN: trained and pauses and min(one.span_s for one in phases) >= OFTEN_S,
        Need.ONLY_FORWARD: forward and not trained and fewest >= rank_waits.LEAST_SAMPLES,
    }


def _look_at_settings(scene: Scene) -> Observed:
    """Observe settings that slow the job; that there is none takes every rank's environment."""
    known = [one for rank in scene.ranks if is_known(one := rank.process.environment)]
    elsewhere = bool(scene.ranks and scene.elsewhere)
    paths = {_WAITS_BLOCKED, *((_FAST_NETWORK,) if elsewhere else ())}
    if len(scene.ranks) > 1:
        paths |= _WITHIN_MACHINE
    taxed = any(map(list_taxes, known))
    return {
        Need.RANKS_ELSEWHERE: elsewhere,
        Need.NCCL_PATH_OFF: any(one.value.strip() == "1" for one in list_settings(scene, paths)),
        Need.DEBUG_TAX_SET: taxed,
        Need.NO_DEBUG_TAX: bool(known) and not taxed and len(known) == len(scene.ranks),
    }


SPEED = frozenset((Kind.DATA_BOUND, Kind.PYTHON_BOUND, Kind.LAUNCH_BOUND, Kind.SYNC_BOUND, Kind.COMMS_BOUND))
"""Kinds whose time a call of the program may take."""


def _find_hot(scene: Scene, suspicion: Suspicion) -> Applicable[HotSpot]:
    return find_hot(scene, suspicion) if suspicion.kind in SPEED else NOT_APPLICABLE


def observe(scene: Scene, suspicion: Suspicion) -> frozenset[Need]:
    """Return every need of the catalogue that was seen: by the rule, in stacks, in readings."""
    looks = (
        *(_look_at_loader(scene), _look_at_cpus(scene, suspicion), _look_at_cards(scene)),
        *(_look_at_memory(scene), _look_at_stacks(scene), _look_at_settings(scene)),
    )
    seen = {*suspicion.observed, *standing.observe_standing(scene, suspicion), *observe_settings(scene)}
    seen |= {need for look in looks for need, is_seen in look.items() if is_seen}
    if is_known(hot := _find_hot(scene, suspicion)):
        seen |= {Need.HOT_CALL_SEEN, *((Need.HOT_CALL_WASTED,) if hot.call.waste else ())}
    if Need.DEBUG_TAX_SET in seen:
        seen.discard(Need.NO_DEBUG_TAX)  # anomaly detection is set by the program, not by its environment
    if Need.REFAULTS_SEEN in seen:
        # The page cache does not count as used: it is given back before anything fails, and read again.
        seen = (seen - {Need.MEMORY_FREE}) | {Need.MEMORY_LIMIT_NEAR}
    if not is_known(_other_pid(scene, suspicion)):
        seen.discard(Need.PROCESS_WAIT)  # nobody is to be sent to look at the process that waits
    return frozenset(seen)


def deny(scene: Scene, suspicion: Suspicion, seen: frozenset[Need]) -> frozenset[Need]:
    """Return every need that was read and is not among ``seen``; what could not be read is in no set."""
    memory, (total, free), workers = scene.frame.memory, _find_memory(scene), _workers(scene)
    budget, loaders = scene.budget, [rank.loader for rank in scene.ranks if rank.loader is not None]
    environments = [rank.process.environment for rank in scene.ranks]
    read = {
        Need.WORKERS_CPU_BOUND: any(is_known(one.demand) for one in workers or scene.ranks),
        Need.WORKERS_IO_WAIT: any(is_known(one.blocked_ratio) for one in workers),
        Need.BATCHES_READY: bool(loaders) and all(is_known(one.ready_batches) for one in loaders),
        **dict.fromkeys((Need.CORES_FREE, Need.CORES_FULL), is_known(_cores_free(scene, suspicion))),
        Need.QUOTA_BELOW_AFFINITY: is_known(budget),
        Need.AFFINITY_BELOW_HOST: is_known(budget),
        Need.RANKS_EXCEED_CORES: is_known(budget),
        Need.POOL_IN_RANK: is_known(budget) and all(is_known(one.busy_threads) for one in scene.ranks),
        Need.POOL_IN_WORKERS: bool(workers) and all(is_known(one.busy_threads) for one in workers),
        Need.ONE_THREAD_SET: bool(environments) and all(map(is_known, environments)),
        **dict.fromkeys((Need.MEMORY_LIMIT_NEAR, Need.MEMORY_FREE), is_known(total) and is_known(free)),
        Need.SHM_TIGHT: is_known(memory.shm),
        **dict.fromkeys((Need.GPU_MEMORY_FULL, Need.GPU_MEMORY_FREE), bool(_list_fills(scene))),
        **dict.fromkeys((Need.TENSOR_CORES_IDLE, Need.TENSOR_CORES_BUSY), bool(_list_tensor_pcts(scene))),
    }
    return frozenset(need for need, is_read in read.items() if is_read and need not in seen)


def _shm_room(scene: Scene) -> Known[float]:
    """Return how many batches fit into free /dev/shm, each as large as its largest growth."""
    step = find_largest_step(scene.history)
    if step <= 0:
        return Missing("shared memory was not seen to grow")
    return map_known(lambda shm: (shm.total_bytes - shm.used_bytes) / step, scene.frame.memory.shm)


def _worker_bytes(scene: Scene) -> Known[int]:
    """Return what one more worker would take: PSS where it was read, else RSS, an upper bound."""
    pids = {worker.pid for worker in _workers(scene)} or {rank.process.pid for rank in scene.ranks}
    sizes = [known_or(one.pss_bytes, one.rss_bytes) for one in scene.frame.processes if one.pid in pids]
    return int(statistics.median(sizes)) if sizes else Missing("no rank was read")


def _worker_load(scene: Scene, waiting: Applicable[float]) -> Known[float]:
    """Return the cores that one worker takes; without workers, loading takes one core while it runs."""
    demands = [worker.demand for worker in _workers(scene) if is_known(worker.demand)]
    if demands:
        return statistics.median(demands)
    return 1.0 if is_known(waiting) else Missing("no workers to look at")


def _needed(workers: Known[int], suspicion: Suspicion) -> Known[float]:
    """Return the batches per second that the compute could take over those that the loader makes."""
    # With a wait share w that is 1 / (1 - w); without workers w / (1 - w), as the loop itself loads.
    share = suspicion.share
    if suspicion.kind is not Kind.DATA_BOUND or is_known(suspicion.needed_ratio):
        return known_or(suspicion.needed_ratio, Missing("not a question of loading"))
    if not is_known(share) or not is_known(workers):
        return Missing("the share of the data wait is not known")
    share = min(share, 0.99)
    return share / (1 - share) if workers == 0 else 1 / (1 - share)


def _other_pid(scene: Scene, suspicion: Suspicion) -> Applicable[int]:
    """Return the process at the other end; else the one that is named, where a rank waits for that one."""
    accused = standing.find_accused(scene, suspicion)
    target = accused.thread.waits_on if accused is not None else NOT_APPLICABLE
    if is_known(target) and is_known(target.others):
        return next((end.pid for end in target.others if end.pid != suspicion.pid), NOT_APPLICABLE)
    named = next((one for one in scene.frame.processes if one.pid == suspicion.pid), None)
    waits_itself = named is None or named.role in (Role.RANK, Role.WORKER)
    return NOT_APPLICABLE if waits_itself else suspicion.pid


def _peer(target: Applicable[WaitTarget]) -> Applicable[str]:
    """Name what a socket is connected to, with the process there: "10.0.0.7:443", "... (python 4711)"."""
    if not is_known(target) or not is_known(target.peer):
        return NOT_APPLICABLE
    names = [f"{end.name} {end.pid}" for end in known_or(target.others, ())]
    return f"{target.peer} ({', '.join(names)})" if names else target.peer


def _slurm_job(scene: Scene) -> Applicable[str]:
    if not any(is_known(rank.process.environment) for rank in scene.ranks):
        return Missing("no environment was read")
    jobs = [one.value for one in list_settings(scene, ("SLURM_JOB_ID",))]
    return jobs[0] if jobs and jobs[0].isdecimal() else NOT_APPLICABLE


def gather_facts(scene: Scene, suspicion: Suspicion) -> RunFacts:
    """Return the numbers of the run that the remedies of ``suspicion`` name."""
    frame, hangs = scene.frame, suspicion.kind is Kind.HUNG
    counts = [len(rank.feeders) for rank in scene.ranks]
    workers: Known[int] = max(counts) if counts else Missing("no rank was read")
    loading = (rank.data_wait for rank in scene.ranks if rank.process.pid == suspicion.pid)
    logs = [(log.last_write, log.path) for log in frame.output if is_known(log.last_write)]
    accused, alone = standing.find_accused(scene, suspicion), standing.find_alone(scene, suspicion)
    awaited = accused.thread.waits_on if accused is not None else NOT_APPLICABLE
    pool_of_fork = standing.find_pool(scene, suspicion) if hangs else NOT_APPLICABLE
    named = next((one for one in frame.processes if one.pid == suspicion.pid), None)
    return RunFacts(
        ranks=len(scene.ranks) or Missing("no rank was read"),
        workers_per_rank=workers,
        budget_cores=scene.budget,
        cores_free=_cores_free(scene, suspicion),
        quota_cores=scene.budget if frame.cpu.budget_by is BudgetBy.QUOTA else NOT_APPLICABLE,
        memory_limit_bytes=frame.memory.limit_bytes,
        memory_free_bytes=map_known(
            lambda free: max(0, min(free, known_or(frame.memory.host_available_bytes, free))),
            _find_memory(scene)[1],
        ),
        worker_rss_bytes=_worker_bytes(scene),
        worker_busy_ratio=_worker_load(scene, suspicion.share),
        needed_ratio=_needed(workers, suspicion),
        waiting_ratio=known_or(suspicion.share, Missing("its share is not known")),
        loading_ratio=next(
            (map_known(lambda wait: wait.share.ratio, one) for one in loading), Missing("no rank is named")
        ),
        pool_libraries=frame.cpu.pool.libraries if is_known(frame.cpu.pool) else NOT_APPLICABLE,
        shm_total_bytes=map_known(lambda shm: shm.total_bytes, frame.memory.shm),
        shm_room=_shm_room(scene),
        # The process to look at: the one that is named, or the job where a hang accuses none.
        pid=known_or(suspicion.pid, frame.target.pid) if hangs else suspicion.pid,
        rank=suspicion.rank,
        card=suspicion.card,
        other_pid=_other_pid(scene, suspicion),
        peer=_peer(awaited),
        script=frame.target.script or Missing("its command line was not read"),
        log_path=max(logs)[1] if logs else Missing("no log of the job is a file"),
        slurm_job=_slurm_job(scene),
        launcher=next((one.pid for one in frame.processes if one.role is Role.LAUNCHER), NOT_APPLICABLE),
        host_cores=frame.cpu.host_cores,
        tenant=next((one.pid for one in cpu.find_tenants(scene)), Missing("nobody was seen")),
        pools=len(cpu.find_pools(scene)),
        frozen=named.frozen if named is not None else NOT_APPLICABLE,
        tracer=named.tracer if named is not None else NOT_APPLICABLE,
        hot=_find_hot(scene, suspicion),
        mount=awaited.mount if is_known(awaited) else NOT_APPLICABLE,
        lock_file=standing.name_lock_file(awaited),
        alone_rank=alone.thread.rank if alone is not None else NOT_APPLICABLE,
        alone_place=standing.name_place(alone.frames) if alone is not None else NOT_APPLICABLE,
        event_loop=accused is not None and is_event_loop(accused.frames),
        past=standing.name_past(scene, suspicion),
        lacking=pool_of_fork.words if is_known(pool_of_fork) else NOT_APPLICABLE,
        fork_switch=pool_of_fork.switch if is_known(pool_of_fork) else NOT_APPLICABLE,
    )
