"""Say which of the job's CPUs are free, and who has those that its threads wait for. Pure.

A cause depends on what the job leaves of its budget; a proposal and its words also on what others leave of
that. Neighbours do not change the demand of a thread that always wants a CPU; one that wakes often waits each
time, and seems to want more.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features.readings import median_known
from tpmon.judge.features.snapshot import RankScene, Scene, WorkerScene
from tpmon.judge.stacks.phases import TRAINING
from tpmon.judge.stacks.profile import RankPhases, Share
from tpmon.model.figures import Figure
from tpmon.model.host import Tenant
from tpmon.model.known import Known, Missing, is_known, join_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role, ThreadKind
from tpmon.model.units import format_number, say_ratio

FREE_CORES = 0.5  # free cores above which one more worker helps; the advice uses the same value
PACE_DEMAND = 0.9  # of each worker, from which they always compute
PACE_IDLE = 0.25  # share of waiting for work up to which they do
TAKEN_LEAST = 0.1
TAKEN_RATIO = 0.25  # part of the free cores used by others above which they are named
NEIGHBOUR_LEAST = 0.2  # threads that a job must want to be worth the note: one that hardly runs loses nothing
NEIGHBOUR_DELAY_RATIO = 0.3
NEIGHBOUR_DEMAND_RATIO = 1.2
NEIGHBOUR_USED_RATIO = 0.8
NEIGHBOUR_TAKES = 0.4  # cores that others use, per waiting thread of the job, above which they are the reason
QUOTA_TAKES = 0.05  # share of throttled periods above which the quota is the reason
POOL_THREADS = 2  # busy threads that make a thread pool: loader workers have one
# Threads of an OpenMP pool have the name of the thread that made them, autograd's too.
_POOL = (ThreadKind.POOL, ThreadKind.OTHER, ThreadKind.AUTOGRAD, ThreadKind.UNREAD)


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
    """Return the cores of the budget that the job would leave if its workers had no neighbours."""
    # Workers of ``rank`` that always compute set its pace: alone, the rank would run more by the same factor,
    # and not wait for a CPU. All other threads, and a rank with a thread pool, count by their demand; so does
    # everything under a quota, which is no neighbour.
    free, stretch = find_cores_free(scene), _find_stretch(rank)
    is_throttled = known_or(scene.throttled_ratio, 0.0) >= QUOTA_TAKES
    may_have_pool = known_or(rank.busy_threads, POOL_THREADS) >= POOL_THREADS
    if is_throttled or not stretch or may_have_pool or not (is_known(rank.demand) and is_known(rank.waiting)):
        return free
    if not (is_known(scene.budget) and is_known(scene.runnable)):
        return free
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
    if is_known(left) and known_or(scene.budget, math.inf) < scene.frame.cpu.host_cores:
        left = min(left, known_or(by_demand, left))  # others may be on these few CPUs, and leave all the rest
    return map_known(lambda own: min(own, known_or(left, own)), free)


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
    return median_known(
        join_known(lambda host, own: max(host - own, 0.0), one.cpu.host_used_cores, one.cpu.used_cores)
        for one in scene.frames
    )


def are_others_waited_for(scene: Scene) -> Known[bool]:
    """Tell whether others use enough CPUs to be what the job's threads wait for."""
    others = find_used_by_others(scene)
    if not is_known(scene.runnable) or not is_known(scene.delay_ratio):
        return Missing("how long its threads wait for a CPU was not read")
    waiting = scene.runnable * min(scene.delay_ratio, 1.0)
    # No more than its budget can be taken from it, however many of its own threads wait for each other.
    short = max(0.0, known_or(scene.budget, math.inf) - known_or(scene.used, 0.0))
    return map_known(lambda cores: cores >= NEIGHBOUR_TAKES * min(waiting, short), others)


def _is_cleared(scene: Scene) -> bool:
    """Tell whether one figure shows that nobody has the CPUs that a job waits for."""
    # Not the demand of all threads: beside neighbours a worker that wakes often seems always to want a CPU.
    used, budget = scene.used, scene.budget
    return (
        known_or(scene.pool_ratio, 0.0) > NEIGHBOUR_DEMAND_RATIO
        or known_or(scene.delay_ratio, 1.0) < NEIGHBOUR_DELAY_RATIO
        or known_or(scene.runnable, 1.0) < NEIGHBOUR_LEAST
        or known_or(used, 0.0) >= NEIGHBOUR_USED_RATIO * known_or(budget, math.inf)
    )


def taker_unread(scene: Scene) -> tuple[str, ...]:
    """Say what was not read of whether others have the CPUs; () where one figure clears them."""
    read = (scene.delay_ratio, scene.runnable, scene.pool_ratio, scene.used, scene.budget)
    gone = next((one for one in read if isinstance(one, Missing)), None)
    if gone is None or _is_cleared(scene):
        return ()
    return (f"whether others have the CPUs that it waits for ({gone.reason})",)


def find_taker(scene: Scene) -> Taker:
    """Return who has the CPUs that a job waits for whose ranks want no more than its budget."""
    if taker_unread(scene) or _is_cleared(scene):
        return Taker.NOBODY
    if known_or(scene.throttled_ratio, 0.0) >= QUOTA_TAKES:
        return Taker.QUOTA
    # A machine may hide what others use: they are the likelier ones.
    return Taker.OTHERS if known_or(are_others_waited_for(scene), True) else Taker.ITSELF


BUSY_POOL = 0.25  # demand of a pool's threads together, in threads, below which none of them is busy


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
MANY_CALLING = 0.03  # above which they take microseconds wherever the forward pass is
ONE_OPERATOR = 0.8  # of the forward pass in one line, from which the operators there are large
LEAST_CALLING = 4  # samples there below which it may be chance
SPINNING_DEMAND = 0.8  # threads that a pool wants beside the main thread, from which one always runs


def find_pool_demand(rank: RankScene) -> Known[float]:
    """Return the threads that a rank's pool, or further threads of it, want; 0 without any."""
    if all(group.kind not in _POOL for group in rank.process.thread_groups):
        return 0.0
    return rank.demand_by(*_POOL)


def count_calling(rank: RankScene) -> Known[tuple[int, float]]:
    """Return the samples in the Python that leads to operators, and their share of those in the step."""

    def count(phases: RankPhases) -> tuple[int, float]:
        in_step = phases.ratio(*TRAINING)
        return round(
            phases.calling_ratio * phases.samples
        ), phases.calling_ratio / in_step if in_step else 0.0

    return map_known(count, rank.phases)


MOST_TENANTS = 2  # other users of the CPUs that a sentence names


def find_tenants(scene: Scene) -> tuple[Tenant, ...]:
    """Return who else uses CPUs by the newest reading of the span that tells, the largest first."""
    told = (frame.cpu.tenants for frame in reversed(scene.frames))
    return next((one for one in told if is_known(one)), ())


def _say_tenants(scene: Scene) -> str:
    """Name who has the CPUs: "burn.py (PID 4711, user ann) 1.2"; "other processes" where nobody is seen."""
    named = [
        f"{one.command} ({f'{one.processes} processes' if one.processes > 1 else f'PID {one.pid}'}"
        f"{f', user {one.user}' if one.user else ''}) {one.cores:.1f}"
        for one in find_tenants(scene)[:MOST_TENANTS]
    ]
    return " and ".join(named) if named else "other processes use them"


def find_cost_of_waiting(rank: RankScene) -> Known[float]:
    """Return the share of its time (0-1) by which a rank is later as its threads wait for a CPU."""
    # Threads of a pool wait for each other: they are late together, not one after the other.
    return join_known(
        lambda wanted, waited: min(wanted, 1.0) * min(waited / wanted, 1.0) if wanted > 0 else 0.0,
        rank.demand,
        rank.waiting,
    )


def note_neighbours(scene: Scene) -> str:
    """Return the note that other processes take the CPUs, "" when they do not."""
    wanted, budget, delay = scene.runnable, scene.budget, scene.delay_ratio
    if (
        not (is_known(wanted) and is_known(budget) and is_known(delay))
        or find_taker(scene) is not Taker.OTHERS
    ):
        return ""
    wants = f"its threads want {wanted:.1f} of {budget:.1f} CPUs"
    return f"other-tenants: {wants} and wait {say_ratio(delay)} of that time: {_say_tenants(scene)}"


POOL_RATIO = 1.5  # demand of pools over the budget
DELAY_RATIO = 0.35  # waiting share that must come with it: spinning pools run, they do not wait
CROWDED_MARGIN = 1.0  # margin where others have the CPUs: what the run would do with these is not known


def read_waiting(scene: Scene) -> FigureReading:
    """Return the share of their demand that the job's threads wait for a CPU, as evidence."""
    return reading(Figure.CPU_DELAY, map_known(lambda ratio: 100 * ratio, scene.delay_ratio), scene.frame)


def say_got(scene: Scene) -> str:
    """Say how much of the CPUs that it wants the job gets, "" where it gets them."""
    wanted, delay = known_or(scene.runnable, 0.0), known_or(scene.delay_ratio, 0.0)
    got = wanted * (1 - min(delay, 1.0))
    gets = format_number(round(got, 1) if got >= 1 else got)
    words = f"its threads get {gets} of the {wanted:.1f} CPUs that they want"
    return "" if find_taker(scene) is Taker.NOBODY else words


RUNNING = 0.8  # share of samples that found the main thread running
PYTHON_PART = 0.3  # lower end of that share for one thread beside a pool in other parts


def may_be_one(rank: RankScene, share: Share) -> bool:
    """Tell whether one thread may take ``share`` of a rank's time, and a pool the rest, by mean demand."""
    most = map_known(lambda threads: share.ratio + (1 - share.low) * max(threads, 1.0), rank.busy_threads)
    return share.low >= PYTHON_PART and known_or(rank.demand, 0.0) <= known_or(most, math.inf)
