"""Say which of the job's CPUs are free, and who has those that its threads wait for. Pure.

A cause depends on what the job leaves of its budget; a proposal and its words also on what others leave of
that. Neighbours do not change the demand of a thread that always wants a CPU; one that wakes often waits each
time, and seems to want more.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Scene, WorkerScene, demand_of
from tpmon.judge.stacks.phases import TRAINING
from tpmon.judge.stacks.profile import Share
from tpmon.model.figures import Figure
from tpmon.model.host import Tenant
from tpmon.model.known import Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role, ThreadKind
from tpmon.model.units import format_pct

FREE_CORES = 0.5
"""Free cores above which one more worker helps; the advice uses the same value."""
PACE_DEMAND = 0.9
PACE_IDLE = 0.25
"""Workers always compute with at least this demand each, and at most this share of waiting for work."""
TAKEN_LEAST = 0.1
"""Free cores used by others above which they are named, if they leave none for one more worker."""
TAKEN_RATIO = 0.25
"""Part of the free cores used by others above which they are named."""
NEIGHBOUR_LEAST = 0.2
"""Threads that a job must want to be worth the note: one that hardly runs loses nothing."""
NEIGHBOUR_DELAY_RATIO = 0.3
NEIGHBOUR_DEMAND_RATIO = 1.2
NEIGHBOUR_USED_RATIO = 0.8
NEIGHBOUR_TAKES = 0.4
"""Cores that others use, per waiting thread of the job, above which they are the reason."""
QUOTA_TAKES = 0.05
"""Share of throttled periods above which the quota is the reason: throttled time counts as waiting."""
POOL_THREADS = 2
"""Busy threads that make a thread pool: loader workers have one."""
_POOL = (ThreadKind.POOL, ThreadKind.OTHER, ThreadKind.AUTOGRAD, ThreadKind.UNREAD)
"""Threads of an OpenMP pool have the name of the thread that made them, autograd's too."""


class Taker(Enum):
    """Name who has the CPUs that a job's threads wait for; the words go on "its threads get ...: "."""

    NOBODY = ""
    OTHERS = "other processes use the rest"
    QUOTA = "the CPU quota stops them in between"
    ITSELF = "others hardly use any, so they take turns at few of its CPUs"


def find_cores_free(scene: Scene) -> Known[float]:
    """Return the cores of the budget that no thread of the job wants."""
    return join_known(lambda budget, wanted: max(0.0, budget - wanted), scene.budget, scene.runnable)


def _find_stretch(rank: RankScene) -> float:
    """Return how much faster a rank's busy one-threaded workers would be without neighbours; 0: not known."""
    wanted = waited = 0.0
    for one in rank.feeders:
        if not (is_known(one.demand) and is_known(one.waiting) and is_known(one.busy_threads)):
            return 0.0
        if one.demand < PACE_DEMAND or one.busy_threads >= 2 or known_or(one.idle_ratio, 1.0) > PACE_IDLE:
            return 0.0
        wanted, waited = wanted + one.demand, waited + one.waiting
    return wanted / (wanted - waited) if wanted > waited else 0.0


def find_cores_spared(rank: RankScene, scene: Scene) -> Known[float]:
    """Return the cores of the budget that the job would leave if its workers had no neighbours.

    Workers of ``rank`` that always compute set its pace: alone, the rank would run more by the same factor,
    and not wait for a CPU. All other threads, and a rank with a thread pool, count by their demand; so does
    everything under a quota, which is no neighbour.
    """
    if is_known(scene.throttled_ratio) and scene.throttled_ratio >= QUOTA_TAKES:
        return find_cores_free(scene)
    stretch = _find_stretch(rank)
    may_have_pool = not is_known(rank.busy_threads) or rank.busy_threads >= POOL_THREADS
    if not stretch or may_have_pool or not (is_known(rank.demand) and is_known(rank.waiting)):
        return find_cores_free(scene)
    if not (is_known(scene.budget) and is_known(scene.runnable)):
        return find_cores_free(scene)
    # Its one busy thread runs on one CPU at most, however long the workers wait.
    alone = min(max(0.0, rank.demand - rank.waiting) * stretch, max(rank.demand, 1.0))
    return max(0.0, scene.budget - (scene.runnable - rank.demand + alone))


def find_cores_left(scene: Scene) -> Known[float]:
    """Return the cores of the machine that nobody uses."""
    cores = scene.frame.cpu.host_cores
    used = median_known(frame.cpu.host_used_cores for frame in scene.frames)
    return map_known(lambda busy: max(0.0, cores - busy), used)


def find_cores_had(free: Known[float], scene: Scene) -> Known[float]:
    """Return the cores that more threads of the job could use: those of its own that others leave."""
    left, by_demand = find_cores_left(scene), find_cores_free(scene)
    if not is_known(free) or not is_known(left):
        return free
    if is_known(scene.budget) and scene.budget < scene.frame.cpu.host_cores and is_known(by_demand):
        left = min(left, by_demand)  # others may be on these few CPUs, and leave all the rest
    return min(free, left)


def are_taken(free: Known[float], had: Known[float]) -> bool:
    """Tell whether others use a good part of the cores that the job leaves."""
    if not is_known(free) or not is_known(had):
        return False
    taken = free - had
    return (had < FREE_CORES <= free and taken >= TAKEN_LEAST) or taken >= max(FREE_CORES, TAKEN_RATIO * free)


def say_free(free: Known[float], had: Known[float]) -> str:
    """Say how many cores are free: "5.8 CPUs are free"; "" where it was not read."""
    if not is_known(free) or not is_known(had):
        return ""
    if are_taken(free, had):
        return f"{free:.1f} of its CPUs are not used by this job, but others leave {had:.1f}"
    return f"{free:.1f} CPUs are free"


def find_used_by_others(scene: Scene) -> Known[float]:
    """Return the cores that processes of others use on this machine."""
    cpus = [frame.cpu for frame in scene.frames]
    return median_known(
        join_known(lambda host, own: max(host - own, 0.0), cpu.host_used_cores, cpu.used_cores)
        for cpu in cpus
    )


def are_others_waited_for(scene: Scene) -> Known[bool]:
    """Tell whether others use enough CPUs to be what the job's threads wait for."""
    others = find_used_by_others(scene)
    if not is_known(scene.runnable) or not is_known(scene.delay_ratio):
        return Missing("how long its threads wait for a CPU was not read")
    waiting = scene.runnable * min(scene.delay_ratio, 1.0)
    return map_known(lambda cores: cores >= NEIGHBOUR_TAKES * waiting, others)


def find_taker(scene: Scene) -> Taker:
    """Return who has the CPUs that a job waits for which wants no more than its budget."""
    demand = scene.frame.cpu.demand_ratio
    if not (is_known(demand) and is_known(scene.delay_ratio) and is_known(scene.used)):
        return Taker.NOBODY
    if not is_known(scene.budget) or not is_known(scene.runnable) or scene.runnable < NEIGHBOUR_LEAST:
        return Taker.NOBODY
    if demand > NEIGHBOUR_DEMAND_RATIO or scene.delay_ratio < NEIGHBOUR_DELAY_RATIO:
        return Taker.NOBODY
    if scene.used >= NEIGHBOUR_USED_RATIO * scene.budget:
        return Taker.NOBODY
    if is_known(scene.throttled_ratio) and scene.throttled_ratio >= QUOTA_TAKES:
        return Taker.QUOTA
    others = are_others_waited_for(scene)
    # A machine may hide what others use: they are the likelier ones.
    return Taker.OTHERS if not is_known(others) or others else Taker.ITSELF


def taker_unread(scene: Scene) -> tuple[str, ...]:
    """Say what was not read of whether others have the CPUs; () where one figure clears them."""
    demand, delay, wanted = scene.frame.cpu.demand_ratio, scene.delay_ratio, scene.runnable
    used, budget = scene.used, scene.budget
    if (
        (is_known(demand) and demand > NEIGHBOUR_DEMAND_RATIO)
        or (is_known(delay) and delay < NEIGHBOUR_DELAY_RATIO)
        or (is_known(wanted) and wanted < NEIGHBOUR_LEAST)
        or (is_known(used) and is_known(budget) and used >= NEIGHBOUR_USED_RATIO * budget)
    ):
        return ()
    gone = next((one for one in (delay, wanted, demand, used, budget) if isinstance(one, Missing)), None)
    return () if gone is None else (f"whether others have the CPUs that it waits for ({gone.reason})",)


BUSY_POOL = 0.25
"""Demand of a pool's threads together, in threads, below which none of them is busy."""


def computes_alone(process: ProcessSample) -> bool:
    """Tell whether one thread of a process computes, with only those of its collectives beside it."""
    wants = [known_or(group.runnable, 1.0) for group in process.thread_groups if group.kind in _POOL]
    return any(group.kind is ThreadKind.COMM for group in process.thread_groups) and sum(wants) < BUSY_POOL


def has_pool(one: RankScene | WorkerScene | ProcessSample) -> bool:
    """Tell whether a thread pool is at work in a process."""
    process = one.process if isinstance(one, RankScene) else one
    if isinstance(process, ProcessSample) and computes_alone(process):
        return False
    return known_or(one.busy_threads, 0) >= POOL_THREADS


def find_pools(scene: Scene) -> frozenset[int]:
    """Return the PIDs of ranks and helpers (trainings without a group: Hogwild, a sweep) with a busy pool."""
    busy = Counter(
        one.pid
        for frame in scene.frames
        for one in frame.processes
        if one.role in (Role.RANK, Role.HELPER) and has_pool(one)
    )
    return frozenset(pid for pid, count in busy.items() if 2 * count > len(scene.frames))


SMALL_CALLING = 0.01
"""Share of the samples in a step's parts in the Python that leads to operators, from which these take
microseconds: 0.0 in 800 samples of convolutions, 0.02 to 0.04 of layers of 64 to 96."""
LEAST_CALLING = 4
"""Samples there below which it may be chance."""
SPINNING_DEMAND = 0.8
"""Threads that a pool wants beside the main thread, from which one of them runs all the time."""


def find_pool_demand(rank: RankScene, scene: Scene) -> Known[float]:
    """Return the threads that a rank's pool, or further threads of it, want; 0 without any."""
    process = rank.process
    if all(group.kind not in _POOL for group in process.thread_groups):
        return 0.0
    return median_known(
        demand_of(one, _POOL) for frame in scene.frames for one in frame.processes if one.pid == process.pid
    )


def count_calling(rank: RankScene) -> Known[tuple[int, float]]:
    """Return the samples in the Python that leads to operators, and their share of those in the step."""
    phases = rank.phases
    if not is_known(phases):
        return phases
    in_step = phases.ratio(*TRAINING)
    share = phases.calling_ratio / in_step if in_step else 0.0
    return round(phases.calling_ratio * phases.samples), share


MOST_TENANTS = 2
"""Other users of the CPUs that a sentence names."""


def find_tenants(scene: Scene) -> tuple[Tenant, ...]:
    """Return who else uses CPUs by the newest reading of the span that tells, the largest first."""
    told = (frame.cpu.tenants for frame in reversed(scene.frames))
    return next((one for one in told if is_known(one)), ())


def say_tenants(scene: Scene) -> str:
    """Name who has the CPUs: "burn.py (PID 4711, user ann) 1.2"; "other processes" where nobody is seen."""
    named = [
        f"{one.command} ({f'{one.processes} processes' if one.processes > 1 else f'PID {one.pid}'}"
        f"{f', user {one.user}' if one.user else ''}) {one.cores:.1f}"
        for one in find_tenants(scene)[:MOST_TENANTS]
    ]
    return " and ".join(named) if named else "other processes use them"


def find_cost_of_waiting(rank: RankScene) -> Known[float]:
    """Return the share of its time (0-1) by which a rank is later as its threads wait for a CPU.

    Threads of a pool wait for each other: they are late together, not one after the other.
    """
    return join_known(
        lambda wanted, waited: min(wanted, 1.0) * min(waited / wanted, 1.0) if wanted > 0 else 0.0,
        rank.demand,
        rank.waiting,
    )


def note_neighbours(scene: Scene) -> str:
    """Return the note that other processes take the CPUs, "" when they do not."""
    if find_taker(scene) is not Taker.OTHERS:
        return ""
    wanted, budget, delay = scene.runnable, scene.budget, scene.delay_ratio
    if not is_known(wanted) or not is_known(budget) or not is_known(delay):
        return ""
    return (
        f"other-tenants: its threads want {wanted:.1f} of {budget:.1f} CPUs and wait "
        f"{format_pct(100 * delay)} % of that time: {say_tenants(scene)}"
    )


POOL_RATIO = 1.5
"""Demand of pools over the budget; 8 threads on 2 CPUs (2.9) cost a quarter of the steps, 3 (1.1) little."""
DELAY_RATIO = 0.35
"""Waiting share that must come with it: spinning pools run, they do not wait."""
CROWDED_MARGIN = 1.0
"""Margin where others have the CPUs: what the run would do with these is not known."""


def read_waiting(scene: Scene) -> FigureReading:
    """Return the share of their demand that the job's threads wait for a CPU, as evidence."""
    waiting = map_known(lambda ratio: 100 * ratio, scene.delay_ratio)
    return reading(Figure.CPU_DELAY, waiting, scene.frame)


def say_got(scene: Scene) -> str:
    """Say how much of the CPUs that it wants the job gets, "" where it gets them."""
    if find_taker(scene) is Taker.NOBODY or not is_known(scene.runnable) or not is_known(scene.delay_ratio):
        return ""
    got = scene.runnable * (1 - min(scene.delay_ratio, 1.0))
    return f"its threads get {got:.2g} of the {scene.runnable:.1f} CPUs that they want"


RUNNING = 0.8
"""Share of samples that found the main thread running."""
PYTHON_PART = 0.3
"""Lower end of that share for one thread beside a pool in other parts: the demand is a mean over both."""


def may_be_one(rank: RankScene, share: Share) -> bool:
    """Tell whether one thread may take ``share`` of a rank's time, and a pool the rest, by mean demand."""
    demand, threads = rank.demand, rank.busy_threads
    if share.low < PYTHON_PART:
        return False
    if not is_known(demand) or not is_known(threads):
        return True
    return demand <= share.ratio + (1 - share.low) * max(threads, 1.0)
