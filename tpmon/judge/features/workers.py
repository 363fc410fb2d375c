"""Tell what loads for a starved rank does: load, locks, retries, files that it opens. Pure.

To the kernel, a lock and a wait for own threads are both a futex. File locks, the workers' stacks, what their
other threads do, and the lock's holder tell them apart.

``open``, ``os.stat`` and ``os.scandir`` run in C and leave no frame: only functions of Python and libraries
that do little else are seen. An ``open`` in the program's own lines is not, so a share is a lower bound.
Stacks say what a wait is for, never that there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum

from tpmon.judge.answers.result import reading
from tpmon.judge.dumps.describe import LibraryCall, describe_stack
from tpmon.judge.features.cpu import FREE_CORES
from tpmon.judge.features.engine import Rows
from tpmon.judge.features.readings import mean_known
from tpmon.judge.features.snapshot import Scene, WorkerScene, demand_of, once
from tpmon.judge.features.starvation import (
    IDLE_WORKERS,
    MOST,
    NO_WORKERS,
    Starved,
    find_onset,
    find_starved,
    name_spot,
)
from tpmon.judge.stacks import classify as stacks
from tpmon.judge.stacks.classify import FETCH_FILE, StackPlace
from tpmon.judge.stacks.phases import DataPart, FrameKind, Phase
from tpmon.judge.stacks.profile import find_spot, main_stacks, share_of
from tpmon.model.figures import Figure
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.waits import LOCKS, SOCKETS, WaitReason

# What each number decides, and where it comes from: docs/thresholds.toml.
BUSY_WORKER, BLOCKED_WORKER, IDLE_HARDLY = 0.5, 0.4, 0.1
LEAST_LOOKS, LEAST_STACKS, RECENT_S = 10, 10, 15.0
WORKER_LOCK, HOLDER, ALONE, CERTAIN_FROM = 0.5, 0.5, 1.5, 3
OTHERS_WORK, SOME_BYTES_S = 0.15, 20e6


class WorkerState(Enum):
    """Name what workers do most of the time."""

    COMPUTE = "compute"
    READ = "wait for reads"
    OTHER_WAIT = "wait for something that is no read"
    IDLE = "wait for work"
    UNREAD = "not read"


def name_state(found: Starved) -> WorkerState:
    """Say what the workers do most, by their means; all threads of a worker count for what it computes."""
    demand, blocked, idle = found.demand, found.blocked, found.idle
    if not found.workers or not is_known(demand):
        return WorkerState.UNREAD
    if is_known(idle) and idle >= IDLE_WORKERS:
        return WorkerState.IDLE
    if demand >= BUSY_WORKER and (not is_known(blocked) or demand > blocked):
        return WorkerState.COMPUTE
    if not is_known(blocked) or not is_known(idle):
        return WorkerState.UNREAD
    return WorkerState.READ if blocked >= BLOCKED_WORKER else WorkerState.OTHER_WAIT


def mean_wait(workers: Sequence[WorkerScene], reasons: Collection[WaitReason]) -> float:
    """Return the mean share of the workers' readings in a wait for one of ``reasons``."""
    shares = [
        sum(share for wait, share in worker.waits.items() if wait.reason in reasons) for worker in workers
    ]
    return sum(shares) / len(shares) if shares else 0.0


def _waits_for_work(stack: StackCount) -> bool:
    """Tell whether a worker is at its request queue; a dataset may have a queue of its own."""
    fetches = any(at.file.endswith(FETCH_FILE) for at in stack.frames)
    return not fetches and any(stacks.is_at(at, "multiprocessing/queues.py", "get") for at in stack.frames)


@once
def list_stacks(scene: Scene) -> tuple[StackCount, ...]:
    """Return the stacks of the main threads that load: of workers with work, or of a rank without workers."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return ()
    has_workers = found.rank.has_workers
    pids = {worker.pid for worker in found.workers} if has_workers else {found.rank.process.pid}
    return tuple(
        stack
        for frame in scene.history
        for one in known_or(frame.stacks, ())
        for stack in (main_stacks(one) if one.pid in pids else ())
        if (
            not _waits_for_work(stack) if has_workers else stacks.classify(stack.frames)[0] is Phase.DATA_WAIT
        )
    )


def share_loading(
    holds: Callable[[tuple[StackFrame, ...]], bool],
) -> Callable[[Starved, Scene], Known[float]]:
    """Make the figure: in which share of the stacks of the loading, 0-1, something holds."""

    @once
    def ask(scene: Scene) -> Known[float]:
        counts = Counter[bool]()
        for stack in list_stacks(scene):
            counts[holds(stack.frames)] += stack.samples
        total = counts.total()
        unread = Missing("stacks of the loading were not sampled")
        return counts[True] / total if total >= LEAST_STACKS else unread

    return lambda _, scene: ask(scene)


find_collate_share = share_loading(lambda frames: stacks.classify(frames)[1] is DataPart.COLLATE)
find_open_share = share_loading(lambda frames: stacks.ends_in(FrameKind.OPENS, frames))
find_lock_share = share_loading(lambda frames: name_place(frames) is StackEnd.LOCK)
find_server_share = share_loading(
    lambda frames: stacks.ends_in(FrameKind.CALLS, frames) or stacks.retries(frames)
)
"""Of waits for a server, or before it is asked again."""
find_retries = share_loading(stacks.retries)


def is_most(share: Known[float]) -> bool:
    """Tell whether a share was read, and is more than all else together."""
    return known_or(share, 0.0) >= MOST


def _asleep_in(
    holds: Callable[[tuple[StackFrame, ...]], bool], *reasons: WaitReason
) -> Callable[[Starved, Scene], Known[float]]:
    """Make the same of the workers' time asleep: the kernel tells that they sleep, the stacks for what."""
    share = share_loading(holds)
    return lambda found, scene: map_known(
        lambda ratio: min(ratio, mean_wait(found.workers, reasons)), share(found, scene)
    )


find_retry_share = _asleep_in(stacks.retries, WaitReason.SLEEP, WaitReason.TIMED_LOCK)
"""Of a client before it asks its server again."""
find_pause_share = _asleep_in(lambda frames: name_place(frames) is StackEnd.LINE, WaitReason.SLEEP)
"""Of the program itself. Who sleeps while it is waited for waits before it asks again: a server that refuses,
a database that is locked, a file that is not there yet."""


def name_opens(found: Starved, scene: Scene) -> Rows:
    """Return the share of opens and look-ups in the loading as evidence, where it is most of it."""
    share = find_open_share(found, scene)
    return (reading(Figure.IN_OPENS, 100 * share, scene.frame),) if is_known(share) and is_most(share) else ()


def name_hot_work(_: Starved, scene: Scene) -> Rows:
    """Name the function of the program that takes most of the workers' working time, if seen."""
    places: Counter[StackPlace] = Counter()
    for stack in list_stacks(scene):
        places[stacks.read_stack(stack.frames).spot] += stack.samples
    spot, enough = find_spot(places, places.total()), places.total() >= LEAST_STACKS
    return name_spot(spot, scene, "their work") if is_known(spot) and enough else ()


@dataclass(frozen=True, slots=True)
class WorkerLooks:
    """Count readings of one worker: that found it without work, and its request queue with a backlog."""

    worker: WorkerScene
    idle: int
    looks: int
    backlogs: int
    queue_looks: int

    @property
    def idle_ratio(self) -> Known[float]:
        """Return the share of readings in which it waited for work."""
        return self.idle / self.looks if self.looks else self.worker.idle_ratio

    @property
    def backlog_ratio(self) -> float:
        """Return the share of readings of its queue that found a request, 0 without readings."""
        return self.backlogs / self.queue_looks if self.queue_looks else 0.0


def _count_looks(pids: Iterable[int], frames: Iterable[Frame]) -> dict[int, list[int]]:
    """Count by worker PID: idle readings, readings, backlogs, readings of its queue."""
    counts = {pid: [0, 0, 0, 0] for pid in pids}
    for frame in frames:
        for process in frame.processes:
            count, wait = counts.get(process.pid), process.waits_for
            if count is not None and not isinstance(wait, Missing):  # hot: a call for each would show
                count[0] += wait.reason is WaitReason.WORK
                count[1] += 1
        for loader in frame.loader:
            for queue in loader.queues:
                count, pending = counts.get(queue.pid), queue.pending_bytes
                if count is not None and is_known(pending):
                    count[2] += pending > 0
                    count[3] += 1
    return counts


@once
def _look_at_all(scene: Scene) -> dict[int, list[int]]:
    since_ns = scene.frame.taken_ns - int(RECENT_S * 1e9)
    frames = (frame for frame in scene.history if frame.taken_ns >= since_ns)
    return _count_looks((worker.pid for rank in scene.ranks for worker in rank.workers), frames)


def look_at_workers(found: Starved, scene: Scene) -> tuple[WorkerLooks, ...]:
    """Count for each worker of the rank how often it was idle and had a backlog lately."""
    counts = _look_at_all(scene)
    return tuple(WorkerLooks(worker, *counts[worker.pid]) for worker in found.workers)


def never_idle(found: Starved, scene: Scene) -> bool:
    """Tell whether every worker had work nearly always since the wait began: the loader never keeps up."""
    begun_ns = known_or(find_onset(found, scene), 0)
    frames = (frame for frame in scene.history if frame.taken_ns >= begun_ns)
    counts = _count_looks((worker.pid for worker in found.workers), frames).values()
    return bool(counts) and all(
        looks >= LEAST_LOOKS and idle < IDLE_HARDLY * looks for idle, looks, *_ in counts
    )


class StackEnd(Enum):
    """Name where the innermost frames of a main thread that loads are."""

    LOCK = "a lock that processes share"
    OWN = "the end of a queue, a pool or a future"
    HANDS = "the full end of a queue"
    LINE = "a line of the program"
    LIBRARY = "a library"


_ENDS: Mapping[LibraryCall | None, StackEnd] = {
    LibraryCall.PROCESS_LOCK: StackEnd.LOCK,
    LibraryCall.FILE_LOCK: StackEnd.LOCK,
    LibraryCall.QUEUE_PUT: StackEnd.HANDS,
    LibraryCall.QUEUE_GET: StackEnd.OWN,
    LibraryCall.PROCESS_EVENT: StackEnd.OWN,
}


def name_place(frames: tuple[StackFrame, ...]) -> StackEnd:
    """Say where a stack that loads is; the own lock of a queue is that queue."""
    if all(stacks.is_native(frame.file) for frame in frames[stacks.find_users(frames) + 1 :]):
        return StackEnd.LINE
    call = describe_stack(Role.WORKER, ThreadKind.MAIN, frames).call
    return _ENDS.get(call) or (StackEnd.OWN if stacks.waits_for_others(frames) else StackEnd.LIBRARY)


class LockSign(Enum):
    """Say how the workers' waits are known to be for a lock."""

    SHOWN = "an acquire is in their stacks, or they wait for a lock on a file"
    LIKELY = "they sleep in lines of the program, one of them at a time does not, and no thread works"
    OPEN = "for a lock, or for threads of their own"
    OWN = "for threads of their own"
    HANDS = "to hand over their batches"
    NONE = "for no lock"


@dataclass(frozen=True, slots=True)
class LockWait:
    """Say whether the workers wait for a lock: for ``ratio`` of their time, ``in_stacks`` at an acquire."""

    sign: LockSign
    ratio: float = 0.0
    least: float = WORKER_LOCK
    """The share above which it counts."""
    in_stacks: float = 0.0

    @property
    def is_lock(self) -> bool:
        """Tell whether it is a lock as far as anything is known."""
        return self.sign in (LockSign.SHOWN, LockSign.LIKELY)


_OTHERS = tuple(kind for kind in ThreadKind if kind is not ThreadKind.MAIN)


def work_elsewhere(found: Starved, scene: Scene, asleep: float) -> bool:
    """Tell whether other threads of the workers compute or read: the main ones, asleep, wait for these."""
    # If a lock's holder reads, its main thread's wait shows it.
    pids = {worker.pid for worker in found.workers}
    demands = (
        demand_of(one, _OTHERS) for frame in scene.frames for one in frame.processes if one.pid in pids
    )
    if known_or(mean_known(demands, NO_WORKERS), 0.0) >= OTHERS_WORK * asleep:
        return True
    asked = sum(known_or(one.asked_read_bytes_s, 0.0) for one in found.workers)
    return asked >= SOME_BYTES_S and known_or(found.blocked, 0.0) * len(found.workers) < HOLDER


_ANSWERS = SOCKETS | {WaitReason.CONNECTION, WaitReason.POLL, WaitReason.EPOLL}


@once
def find_lock(scene: Scene) -> LockWait:
    """Say whether the workers of the starved rank wait for a lock: by samples, stacks, what else they do."""
    found = find_starved(scene)
    if not isinstance(found, Starved) or name_state(found) in (WorkerState.IDLE, WorkerState.UNREAD):
        return LockWait(LockSign.NONE)
    load, count = name_state(found), len(found.workers)
    # With a single worker the lock is held elsewhere.
    least = WORKER_LOCK * (count - 1) / count if count > 1 else WORKER_LOCK
    on_files = mean_wait(found.workers, (WaitReason.FILE_LOCK,))
    asleep = on_files + mean_wait(found.workers, LOCKS)
    places: Counter[StackEnd] = Counter()
    for stack in list_stacks(scene):
        places[name_place(stack.frames)] += stack.samples
    total = places.total() if places.total() >= LEAST_STACKS else 0
    lock, own, full, line = (
        share_of(places[place] if total else 0, total or LEAST_STACKS)
        for place in (StackEnd.LOCK, StackEnd.OWN, StackEnd.HANDS, StackEnd.LINE)
    )
    # Only working stacks are counted; idle time shrinks their share of all the time.
    idle = known_or(found.idle, 0.0)
    at_lock, at_own, hands = ((1.0 - idle) * one.ratio for one in (lock, own, full))
    if (1.0 - idle) * lock.low >= least and at_lock > max(at_own, hands):
        return LockWait(LockSign.SHOWN, max(asleep, at_lock), least, at_lock)
    if on_files >= least:
        return LockWait(LockSign.SHOWN, on_files, least, at_lock)
    if asleep < least:
        return LockWait(LockSign.NONE, asleep, least, at_lock)
    if max(at_own, hands) >= least:
        return LockWait(LockSign.HANDS if hands > at_own else LockSign.OWN, asleep, least)
    if work_elsewhere(found, scene, asleep):
        return LockWait(LockSign.OWN, asleep, least)
    # Workers outside the lock, on average; idle ones are neither in nor out.
    out = count * max(0.0, 1.0 - asleep - idle)
    if load is WorkerState.COMPUTE:
        may_be = known_or(found.cores_free, 0.0) >= FREE_CORES and out <= ALONE
    else:
        may_be = load is WorkerState.OTHER_WAIT and mean_wait(found.workers, _ANSWERS) < BLOCKED_WORKER
    if count < 2 or not may_be:
        return LockWait(LockSign.NONE, asleep, least)
    # The driver of a card waits in a futex, too.
    on_cards = {pid for card in scene.cards for pid in known_or(card.pids, ())}
    certain = (
        count >= CERTAIN_FROM
        and load is WorkerState.OTHER_WAIT
        and line.ratio >= MOST
        and HOLDER <= out <= ALONE
        and all(is_known(one.asked_read_bytes_s) and one.pid not in on_cards for one in found.workers)
    )
    return LockWait(LockSign.LIKELY if certain else LockSign.OPEN, asleep, least)
