"""Say what the workers of a starved rank do with their time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum

from tpmon.judge.features.cpu import are_others_waited_for
from tpmon.judge.features.loader import IDLE_WORKERS, Starved, find_onset
from tpmon.judge.features.once import Once
from tpmon.judge.features.snapshot import WORK_WAIT, Scene, WorkerScene
from tpmon.judge.stacks.busiest import find_spot
from tpmon.judge.stacks.classify import FETCH_FILE, classify, read_stack
from tpmon.judge.stacks.frames import last_name
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import main_stacks
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.stacks import StackCount
from tpmon.model.units import format_pct
from tpmon.model.verdict import Evidence

BUSY_WORKER = 0.5
"""Threads of demand from which a worker computes all the time: 0.99-1.1 against 0.00-0.31 for one
that waits."""
BLOCKED_WORKER = 0.4
"""Share of blocked readings from which reads are what a worker does; measured 72-100 %."""
RECENT_S = 15.0
"""How far back single workers are compared; ten readings cannot tell 0 % idle from 30 %."""


IDLE_HARDLY = 0.1
"""Share of its readings without work below which a worker hardly ever is."""
LEAST_LOOKS = 10
"""Readings of a worker that this takes."""


class Load(Enum):
    """Name what workers do most of the time."""

    COMPUTE = "compute"
    READ = "wait for reads"
    OTHER_WAIT = "wait for something that is no read"
    IDLE = "wait for work"
    UNREAD = "not read"


def name_load(found: Starved) -> Load:
    """Say what the workers do most; their means decide."""
    demand, blocked, idle = found.demand, found.blocked, found.idle
    if not found.workers or not is_known(demand):
        return Load.UNREAD
    if is_known(idle) and idle >= IDLE_WORKERS:
        return Load.IDLE
    if demand >= BUSY_WORKER and (not is_known(blocked) or demand > blocked):
        return Load.COMPUTE
    if not is_known(blocked) or not is_known(idle):
        return Load.UNREAD
    return Load.READ if blocked >= BLOCKED_WORKER else Load.OTHER_WAIT


def mean_wait(workers: Sequence[WorkerScene], words: Sequence[str]) -> float:
    """Return the mean share of the workers' readings whose wait has one of ``words`` in its name."""
    shares = [
        sum(share for wait, share in worker.waits.items() if any(word in wait for word in words))
        for worker in workers
    ]
    return sum(shares) / len(shares) if shares else 0.0


WAITS_IN_VAIN = 0.5
"""Part of their demand which workers wait for CPUs that nobody uses, from which more would wait too."""


def wait_in_vain(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers wait for CPUs that others leave: something keeps them from these."""
    others = are_others_waited_for(scene)
    if not is_known(others) or others:
        return False
    demands = [(one.demand, one.waiting) for one in found.workers]
    known = [(want, wait) for want, wait in demands if is_known(want) and is_known(wait)]
    wanted = sum(want for want, _ in known)
    return wanted > 0 and sum(wait for _, wait in known) >= WAITS_IN_VAIN * wanted


COLLATE_SHARE = 0.5
LEAST_STACKS = 10
"""One slice of a worker on a crowded machine: 3 s at 5 Hz."""


def _waits_for_work(stack: StackCount) -> bool:
    """Tell whether a worker is at the queue of its requests; its data set may have a queue of its own."""
    fetches = any(at.file.endswith(FETCH_FILE) for at in stack.frames)
    return not fetches and any(
        last_name(at.function) == "get" and at.file.endswith("queues.py") for at in stack.frames
    )


def working_stacks(found: Starved, scene: Scene) -> Iterator[StackCount]:
    """Return the stacks of the workers' main threads that do not wait for work."""
    pids = {worker.pid for worker in found.workers}
    for frame in scene.history:
        for one in known_or(frame.stacks, ()):
            for stack in main_stacks(one) if one.pid in pids else ():
                if not _waits_for_work(stack):
                    yield stack


def find_collate_share(found: Starved, scene: Scene) -> Known[float]:
    """Return the share of the workers' working time in collate, 0-1, where their stacks were sampled."""
    working = collating = 0
    for stack in working_stacks(found, scene):
        working += stack.samples
        if classify(stack.frames)[1] is DataPart.COLLATE:
            collating += stack.samples
    if working < LEAST_STACKS:
        return Missing("the workers' stacks were not sampled")
    return collating / working


def name_hot_work(found: Starved, scene: Scene) -> tuple[Evidence, ...]:
    """Name the function of the program that takes most of the workers' working time, where it was seen."""
    places: Counter[str] = Counter()
    for stack in working_stacks(found, scene):
        places[read_stack(stack.frames).where] += stack.samples
    spot = find_spot(places, places.total())
    if not is_known(spot) or places.total() < LEAST_STACKS:
        return ()
    where = spot.where.removeprefix(f"{Phase.DATA_WAIT.value}: ")
    text = f"{where}, {format_pct(100 * spot.ratio)} % of their work"
    sources = scene.frame.sources
    return (Evidence("most of it", 100 * spot.ratio, "%", text, sources.stacks, scene.frame.ages_s.stacks),)


def is_collating(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers were seen to spend most of their work in collate."""
    return known_or(find_collate_share(found, scene), 0.0) >= COLLATE_SHARE


@dataclass(frozen=True, slots=True)
class WorkerLooks:
    """Count the recent readings of one worker: by its wait, and by the queue of its requests."""

    worker: WorkerScene
    idle: int
    looks: int
    backlogs: int
    """Readings of its index queue that found a request waiting."""
    queue_looks: int

    @property
    def idle_ratio(self) -> Known[float]:
        """Return the share of readings in which it waited for work."""
        return self.idle / self.looks if self.looks else self.worker.idle_ratio

    @property
    def backlog_ratio(self) -> float:
        """Return the share of looks at its queue that found a request, 0 where none was made."""
        return self.backlogs / self.queue_looks if self.queue_looks else 0.0


def never_idle(found: Starved, scene: Scene) -> bool:
    """Tell whether every worker had work nearly always since the wait began: the loader never keeps up."""
    begun_ns = find_onset(found, scene)
    counts = {worker.pid: [0, 0] for worker in found.workers}
    for frame in scene.history:
        if is_known(begun_ns) and frame.taken_ns < begun_ns:
            continue
        for process in frame.processes:
            count = counts.get(process.pid)
            if count is not None and is_known(process.waits_for):
                count[0] += process.waits_for == WORK_WAIT
                count[1] += 1
    return bool(counts) and all(
        looks >= LEAST_LOOKS and idle < IDLE_HARDLY * looks for idle, looks in counts.values()
    )


def _look_at_all(scene: Scene) -> dict[int, list[int]]:
    """Count by worker PID: idle readings, readings, backlogs, looks at its queue."""
    since_ns = scene.frame.taken_ns - int(RECENT_S * 1e9)
    counts = {worker.pid: [0, 0, 0, 0] for rank in scene.ranks for worker in rank.workers}
    for frame in scene.history:
        if frame.taken_ns < since_ns:
            continue
        for process in frame.processes:
            count = counts.get(process.pid)
            if count is None:
                continue
            words = process.waits_for
            if words == WORK_WAIT:
                count[0] += 1
                count[1] += 1
            elif is_known(words):
                count[1] += 1
        for loader in frame.loader:
            for queue in loader.queues:
                count = counts.get(queue.pid)
                pending = queue.pending_bytes
                if count is not None and is_known(pending):
                    count[2] += pending > 0
                    count[3] += 1
    return counts


_LOOKS = Once(_look_at_all)


def look_at_workers(found: Starved, scene: Scene) -> tuple[WorkerLooks, ...]:
    """Count for each worker of the rank how often it was idle and had a backlog lately."""
    counts = _LOOKS(scene)
    return tuple(WorkerLooks(worker, *counts[worker.pid]) for worker in found.workers)
