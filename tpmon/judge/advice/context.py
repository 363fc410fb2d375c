"""Say what was observed of a run, as needs of the catalogue, and gather its numbers. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator

from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.advice.hot import HotSpot, find_hot
from tpmon.judge.advice.standing import find_alone, find_pool, name_lock_file, name_place, observe_standing
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features import comms as rank_waits
from tpmon.judge.features import data_wait
from tpmon.judge.features.cpu import (
    FREE_CORES,
    find_cores_left,
    find_pools,
    find_tenants,
    has_pool,
    note_neighbours,
)
from tpmon.judge.features.hook_needs import (
    MANY_BREAKS,
    MANY_BUCKETS,
    SMALL_BUCKET_BYTES,
    STEADY_STEPS,
    observe_settings,
)
from tpmon.judge.features.snapshot import (
    RankScene,
    Scene,
    WorkerScene,
    find_largest_step,
    find_touched_swap,
    is_shm_tight,
)
from tpmon.judge.features.workers import BLOCKED_WORKER, BUSY_WORKER
from tpmon.judge.stacks.profile import Phase
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.dump import WaitTarget
from tpmon.model.frame import Frame
from tpmon.model.hook import TrainSettings
from tpmon.model.host import BudgetBy
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import EnvironmentSetting, Role
from tpmon.model.text.job_words import list_taxes
from tpmon.model.text.redaction import MOST_DIGITS
from tpmon.model.verdict import Kind

DEEP_PREFETCH = 4
"""Batches per worker above which the queue is as long as the remedy would make it."""


def _list_done(settings: TrainSettings) -> Iterator[Need]:
    if is_known(compiled := settings.compiled):
        if not compiled.frames and not compiled.graphs:
            yield Need.NOTHING_COMPILED
        if compiled.frames_ok or compiled.graphs:
            yield Need.MODEL_COMPILED
            if compiled.graph_breaks < MANY_BREAKS:
                yield Need.FEW_BREAKS
    if known_or(settings.cudnn_benchmark, False):
        yield Need.BENCHMARK_ON
    if known_or(settings.cudnn_deterministic, False) or known_or(settings.deterministic, False):
        yield Need.DETERMINISTIC_ON
    if is_known(allocator := settings.allocator) and not allocator.alloc_retries:
        yield Need.NO_RETRIES
    if is_known(ddp := settings.ddp) and (
        ddp.buckets < MANY_BUCKETS or ddp.bucket_cap_bytes > SMALL_BUCKET_BYTES
    ):
        yield Need.LARGE_BUCKETS
    if is_known(loader := settings.loader) and known_or(loader.prefetch_factor, 0) >= DEEP_PREFETCH:
        yield Need.PREFETCH_DEEP


def observe_done(scene: Scene) -> frozenset[Need]:
    """Return what is done in every rank whose hook tells its settings: one that differs may need it."""
    told = [
        set(_list_done(one.settings))
        for one in list_hooks(scene.frame)
        if is_known(one.settings) and one.counts.steps >= STEADY_STEPS
    ]
    return frozenset(set.intersection(*told)) if told else frozenset()


FULL_RATIO = 0.9
LARGE_POOL_RATIO = 1.25
"""Busy threads of the ranks' pools over the CPU budget above which the pools are too large; a thread is busy
from a quarter of a core, and autograd's is one beside the main thread."""
FREE_CARD_RATIO = 0.6
FULL_CARD_RATIO = 0.95
TENSOR_IDLE_PCT = 5.0
TENSOR_BUSY_PCT = 25.0
NEAR_LIMIT_RATIO = 0.8
ONLY_FORWARD_RATIO = 0.5
"""Share of samples in forward, with none in backward or the optimizer, that shows inference alone."""
OFTEN_RATIO = 0.2
"""Share of samples in validation, with some in training, above which less of it is advised."""
OFTEN_S = 30.0
"""Time that these samples must span: one validation just after attaching does not show how often."""
SET_THREADS_RATIO = 1.5
"""Busy threads over what the environment or the machine explains above which the program set them."""
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
    given = [
        int(one.value)
        for one in environment
        if one.name in _THREAD_SETTINGS and one.value.isdecimal() and len(one.value) <= MOST_DIGITS
    ]
    return rank.busy_threads >= SET_THREADS_RATIO * max([scene.frame.cpu.host_cores, *given])


def _observe_loader(scene: Scene) -> Iterator[Need]:
    """Observe the loader: without workers it is the rank itself; with some it is torch's."""
    workers = _workers(scene)
    if workers:
        yield from (Need.WORKERS_PRESENT, Need.TORCH_LOADER)
    elif scene.ranks:
        yield Need.NO_WORKERS
    loading = (worker.demand for worker in workers) if workers else (rank.demand for rank in scene.ranks)
    if _mostly(loading, BUSY_WORKER):
        yield Need.WORKERS_CPU_BOUND
    if _mostly((worker.blocked_ratio for worker in workers), BLOCKED_WORKER):
        yield Need.WORKERS_IO_WAIT
    loaders = [rank.loader for rank in scene.ranks if rank.loader is not None]
    if any(loader.pin_thread for loader in loaders):
        yield Need.BATCHES_PINNED
    if loaders and all(is_known(one.ready_batches) and one.ready_batches >= 1 for one in loaders):
        yield Need.BATCHES_READY


def _cores_free(scene: Scene, suspicion: Suspicion, wanted: float) -> float:
    """Return the cores that neither the job, which wants so many, nor others use; a rule may know it."""
    if is_known(suspicion.cores_free):
        return suspicion.cores_free
    free = max(0.0, known_or(scene.budget, 0.0) - wanted)
    return min(free, known_or(find_cores_left(scene), free))


def _observe_cpus(scene: Scene, suspicion: Suspicion) -> Iterator[Need]:
    budget, used, runnable = scene.budget, scene.used, scene.runnable
    if is_known(budget) and is_known(used):
        wanted = max(used, known_or(runnable, used))
        if _cores_free(scene, suspicion, wanted) >= FREE_CORES:
            yield Need.CORES_FREE
        elif wanted >= FULL_RATIO * budget:
            yield Need.CORES_FULL
    if scene.frame.cpu.budget_by is BudgetBy.QUOTA:
        yield Need.QUOTA_BELOW_AFFINITY
    elif is_known(budget) and budget < scene.frame.cpu.host_cores:
        yield Need.AFFINITY_BELOW_HOST
    if is_known(budget) and len(scene.ranks) > max(budget, 1.0):
        yield Need.RANKS_EXCEED_CORES
    # More threads of the ranks' pools are at work than there are cores for them.
    busy = sum(known_or(rank.busy_threads, 0.0) for rank in scene.ranks if has_pool(rank))
    if is_known(budget) and busy > LARGE_POOL_RATIO * budget:
        yield Need.POOL_IN_RANK
    if any(has_pool(worker) for worker in _workers(scene)):
        yield Need.POOL_IN_WORKERS
    if note_neighbours(scene):
        yield Need.CPUS_TAKEN
    if any(_sets_threads(rank, scene) for rank in scene.ranks):
        yield Need.THREADS_IN_SCRIPT
    settings = (one for each in _environments(scene) for one in each)
    if any(one.name in _THREAD_SETTINGS and one.value == "1" for one in settings):
        yield Need.ONE_THREAD_SET


def _environments(scene: Scene) -> list[tuple[EnvironmentSetting, ...]]:
    return [one for rank in scene.ranks if is_known(one := rank.process.environment)]


def _observe_cards(scene: Scene) -> Iterator[Need]:
    if not scene.cards:
        return
    yield Need.GPU_PRESENT
    fills = [
        card.memory_used_bytes / card.memory_total_bytes
        for card in scene.cards
        if is_known(card.memory_used_bytes) and is_known(card.memory_total_bytes) and card.memory_total_bytes
    ]
    if fills and max(fills) >= FULL_CARD_RATIO:
        yield Need.GPU_MEMORY_FULL
    elif fills and max(fills) <= FREE_CARD_RATIO:
        yield Need.GPU_MEMORY_FREE
    tensor = [card.tensor_pct for card in scene.cards if is_known(card.tensor_pct)]
    if tensor and max(tensor) < TENSOR_IDLE_PCT:
        yield Need.TENSOR_CORES_IDLE
    elif tensor and max(tensor) >= TENSOR_BUSY_PCT:
        yield Need.TENSOR_CORES_BUSY
    if all(_FP16_ALONE.search(card.name) for card in scene.cards):
        yield Need.FP16_CORES_ALONE


def _observe_memory(scene: Scene) -> Iterator[Need]:
    memory = scene.frame.memory
    if is_known(memory.limit_bytes) and is_known(memory.used_bytes):
        near = memory.used_bytes >= NEAR_LIMIT_RATIO * memory.limit_bytes
        yield Need.MEMORY_LIMIT_NEAR if near else Need.MEMORY_FREE
    elif is_known(memory.host_available_bytes) and is_known(memory.host_total_bytes):
        near = memory.host_available_bytes <= (1 - NEAR_LIMIT_RATIO) * memory.host_total_bytes
        yield Need.MEMORY_LIMIT_NEAR if near else Need.MEMORY_FREE
    # Untouched swap costs nothing: any machine that was once short of memory has some.
    if isinstance(find_touched_swap(scene), tuple):
        yield Need.SWAP_USED
    if is_known(memory.shm) and is_shm_tight(memory.shm, scene):
        yield Need.SHM_TIGHT


def _observe_stacks(scene: Scene) -> Iterator[Need]:
    """Yield what the stacks show: enough samples of every rank, and whether all only run forward."""
    phases = [rank.phases for rank in scene.ranks if is_known(rank.phases)]
    for one in phases:
        yield from one.needs
    if not phases or len(phases) < len(scene.ranks):
        return
    fewest = min(one.samples for one in phases)
    if fewest >= data_wait.LEAST_SAMPLES:
        yield Need.STACKS_READ
    forward = min(one.ratio(Phase.FORWARD) for one in phases)
    trained = max(one.ratio(Phase.BACKWARD, Phase.OPTIMIZER) for one in phases)
    pauses = max(one.ratio(Phase.VALIDATION) for one in phases)
    if min(one.span_s for one in phases) >= OFTEN_S and trained and pauses >= OFTEN_RATIO:
        yield Need.VALIDATES_OFTEN
    if fewest >= rank_waits.LEAST_SAMPLES and forward >= ONLY_FORWARD_RATIO and not trained:
        yield Need.ONLY_FORWARD


def _observe_taxes(scene: Scene) -> Iterator[Need]:
    """Yield settings that slow the job; that there is none takes every rank's environment."""
    known, world = _environments(scene), scene.frame.target.world_size
    paths = {_WAITS_BLOCKED}
    if scene.ranks and is_known(world) and world > len(scene.ranks):
        yield Need.RANKS_ELSEWHERE
        paths.add(_FAST_NETWORK)
    if len(scene.ranks) > 1:
        paths |= _WITHIN_MACHINE
    if any(one.name in paths and one.value.strip() == "1" for each in known for one in each):
        yield Need.NCCL_PATH_OFF
    if any(map(list_taxes, known)):
        yield Need.DEBUG_TAX_SET
    elif known and len(known) == len(scene.ranks):
        yield Need.NO_DEBUG_TAX


SPEED = frozenset((Kind.DATA_BOUND, Kind.PYTHON_BOUND, Kind.LAUNCH_BOUND, Kind.SYNC_BOUND, Kind.COMMS_BOUND))
"""Kinds whose time a call of the program may take."""


def _find_hot(scene: Scene, suspicion: Suspicion) -> Applicable[HotSpot]:
    return find_hot(scene, suspicion) if suspicion.kind in SPEED else NOT_APPLICABLE


def _observe_hot(hot: Applicable[HotSpot]) -> Iterator[Need]:
    if is_known(hot):
        yield Need.HOT_CALL_SEEN
        if hot.call.waste:
            yield Need.HOT_CALL_WASTED


def observe(scene: Scene, suspicion: Suspicion) -> frozenset[Need]:
    """Return every need of the catalogue that was seen: by the rule, in stacks, in readings."""
    seen = {*_observe_loader(scene), *_observe_cpus(scene, suspicion), *_observe_cards(scene)}
    seen |= {*_observe_memory(scene), *_observe_stacks(scene), *_observe_taxes(scene)}
    seen |= {*observe_standing(scene, suspicion), *_observe_hot(_find_hot(scene, suspicion))}
    seen |= observe_done(scene) | observe_settings(scene) | suspicion.observed
    if Need.DEBUG_TAX_SET in seen:
        seen.discard(Need.NO_DEBUG_TAX)  # anomaly detection is set by the program, not by its environment
    if Need.REFAULTS_SEEN in seen:
        # The page cache does not count as used: it is given back before anything fails, and read again.
        seen = (seen - {Need.MEMORY_FREE}) | {Need.MEMORY_LIMIT_NEAR}
    if not is_known(_other_pid(scene, suspicion)):
        seen.discard(Need.PROCESS_WAIT)  # nobody is to be sent to look at the process that waits
    return frozenset(seen)


def _memory_free(scene: Scene) -> Known[int]:
    memory = scene.frame.memory
    if is_known(memory.limit_bytes) and is_known(memory.used_bytes):
        below = max(0, memory.limit_bytes - memory.used_bytes)
        return min(below, known_or(memory.host_available_bytes, below))
    return memory.host_available_bytes


def _shm_room(scene: Scene) -> Known[float]:
    """Return how many batches fit into free /dev/shm, each as large as its largest growth."""
    step = find_largest_step(scene.history)
    if step <= 0:
        return Missing("shared memory was not seen to grow")
    return map_known(lambda shm: (shm.total_bytes - shm.used_bytes) / step, scene.frame.memory.shm)


def _worker_bytes(scene: Scene) -> Known[int]:
    """Return what one more worker would take: PSS where it was read, else RSS, an upper bound."""
    pids = {worker.pid for worker in _workers(scene)} or {rank.process.pid for rank in scene.ranks}
    sizes = [
        known_or(process.pss_bytes, process.rss_bytes)
        for process in scene.frame.processes
        if process.pid in pids
    ]
    return int(statistics.median(sizes)) if sizes else Missing("no rank was read")


def _worker_load(scene: Scene, waiting: Applicable[float]) -> Known[float]:
    """Return the cores that one worker takes; without workers, loading takes one core while it runs."""
    demands = [worker.demand for worker in _workers(scene) if is_known(worker.demand)]
    if demands:
        return statistics.median(demands)
    return 1.0 if is_known(waiting) else Missing("no workers to look at")


def _needed(workers: Known[int], suspicion: Suspicion) -> Known[float]:
    """Return the batches per second that the compute could take over those that the loader makes.

    With a wait share w that is 1 / (1 - w); without workers w / (1 - w), as the loop itself loads.
    """
    if is_known(suspicion.needed_ratio):
        return suspicion.needed_ratio
    share = suspicion.share
    if not is_known(share) or not is_known(workers):
        return Missing("the share of the data wait is not known")
    share = min(share, 0.99)
    return share / (1 - share) if workers == 0 else 1 / (1 - share)


def _loading(scene: Scene, suspicion: Suspicion) -> Known[float]:
    waits = [rank.data_wait for rank in scene.ranks if rank.process.pid == suspicion.pid]
    return map_known(lambda wait: wait.share.ratio, waits[0]) if waits else Missing("no rank is named")


def _last_log(frame: Frame) -> Known[str]:
    dated = [(log.last_write, log.path) for log in frame.output if is_known(log.last_write)]
    return max(dated)[1] if dated else Missing("no log of the job is a file")


def _awaited(scene: Scene, suspicion: Suspicion) -> Applicable[WaitTarget]:
    picture = scene.watch.picture
    if picture is None or not is_known(suspicion.pid):
        return NOT_APPLICABLE
    main = picture.main_of(suspicion.pid)
    return main.thread.waits_on if main is not None else NOT_APPLICABLE


def _other_pid(scene: Scene, suspicion: Suspicion) -> Applicable[int]:
    """Return the process at the other end; else the one that is named, where a rank waits for that one."""
    target = _awaited(scene, suspicion)
    if is_known(target) and is_known(target.others):
        others = [end.pid for end in target.others if end.pid != suspicion.pid]
        return others[0] if others else NOT_APPLICABLE
    named = next((one for one in scene.frame.processes if one.pid == suspicion.pid), None)
    waits_itself = named is None or named.role in (Role.RANK, Role.WORKER)
    return NOT_APPLICABLE if waits_itself else suspicion.pid


def _peer(target: Applicable[WaitTarget]) -> Applicable[str]:
    """Name what a socket is connected to, with the process there: "10.0.0.7:443", "... (python 4711)"."""
    if not is_known(target) or not is_known(target.peer):
        return NOT_APPLICABLE
    names = [f"{end.name} {end.pid}" for end in target.others] if is_known(target.others) else []
    return f"{target.peer} ({', '.join(names)})" if names else target.peer


def _slurm_job(scene: Scene) -> Applicable[str]:
    """Return the Slurm job of the ranks, by their start environment."""
    if not (read := _environments(scene)):
        return Missing("no environment was read")
    jobs = [one.value for settings in read for one in settings if one.name == "SLURM_JOB_ID"]
    return jobs[0] if jobs and jobs[0].isdecimal() else NOT_APPLICABLE


def _pid(scene: Scene, suspicion: Suspicion) -> Applicable[int]:
    """Return the process to look at: the one that is named, or the job where a hang accuses none."""
    accuses_none = suspicion.kind is Kind.HUNG and not is_known(suspicion.pid)
    return scene.frame.target.pid if accuses_none else suspicion.pid


def gather_facts(scene: Scene, suspicion: Suspicion) -> RunFacts:
    """Return the numbers of the run that the remedies of ``suspicion`` name."""
    frame = scene.frame
    ranks = len(scene.ranks)
    counts = [len(rank.feeders) for rank in scene.ranks]
    workers: Known[int] = max(counts) if counts else Missing("no rank was read")
    budget, used = scene.budget, scene.used
    free: Known[float] = (
        _cores_free(scene, suspicion, max(used, known_or(scene.runnable, used)))
        if is_known(budget) and is_known(used)
        else Missing("CPU budget or use not read")
    )
    loads = suspicion.kind is Kind.DATA_BOUND
    pool = frame.cpu.pool
    awaited = _awaited(scene, suspicion)
    alone, pool_of_fork = (
        find_alone(scene, suspicion),
        (find_pool(scene, suspicion) if suspicion.kind is Kind.HUNG else NOT_APPLICABLE),
    )
    named = next((one for one in frame.processes if one.pid == suspicion.pid), None)
    return RunFacts(
        ranks=ranks or Missing("no rank was read"),
        workers_per_rank=workers,
        budget_cores=budget,
        cores_free=free,
        quota_cores=budget if frame.cpu.budget_by is BudgetBy.QUOTA else NOT_APPLICABLE,
        memory_free_bytes=_memory_free(scene),
        worker_rss_bytes=_worker_bytes(scene),
        worker_busy_ratio=_worker_load(scene, suspicion.share),
        needed_ratio=_needed(workers, suspicion) if loads else Missing("not a question of loading"),
        waiting_ratio=suspicion.share if is_known(suspicion.share) else Missing("its share is not known"),
        loading_ratio=_loading(scene, suspicion),
        pool_libraries=pool.libraries if is_known(pool) else NOT_APPLICABLE,
        shm_total_bytes=map_known(lambda shm: shm.total_bytes, frame.memory.shm),
        shm_room=_shm_room(scene),
        pid=_pid(scene, suspicion),
        rank=suspicion.rank,
        card=suspicion.card,
        other_pid=_other_pid(scene, suspicion),
        peer=_peer(awaited),
        script=frame.target.script or Missing("its command line was not read"),
        log_path=_last_log(frame),
        slurm_job=_slurm_job(scene),
        launcher=next((one.pid for one in frame.processes if one.role is Role.LAUNCHER), NOT_APPLICABLE),
        host_cores=frame.cpu.host_cores,
        tenant=next((one.pid for one in find_tenants(scene)), Missing("nobody was seen")),
        pools=len(find_pools(scene)),
        frozen=named.frozen if named is not None else NOT_APPLICABLE,
        tracer=named.tracer if named is not None else NOT_APPLICABLE,
        hot=_find_hot(scene, suspicion),
        mount=awaited.mount if is_known(awaited) else NOT_APPLICABLE,
        lock_file=name_lock_file(awaited),
        alone_rank=alone.thread.rank if alone is not None else NOT_APPLICABLE,
        alone_place=name_place(alone.frames) if alone is not None else NOT_APPLICABLE,
        lacking=pool_of_fork.words if is_known(pool_of_fork) else NOT_APPLICABLE,
        fork_switch=pool_of_fork.switch if is_known(pool_of_fork) else NOT_APPLICABLE,
    )
