"""Tell what the workers of a starved rank do: load, locks, files that they open. Pure.

To the kernel, a lock and a wait for own threads are both a futex. File locks, the workers' stacks, what their
other threads do, and the lock's holder tell them apart.

``open``, ``os.stat`` and ``os.scandir`` run in C and leave no frame: only functions of Python and libraries
that do little else are seen. An ``open`` in the program's own lines is not, so a share is a lower bound.
Stacks say what a wait is for, never that there is one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

from tpmon.judge.answers.result import FigureReading, reading
from tpmon.judge.features.cpu import FREE_CORES, are_others_waited_for
from tpmon.judge.features.readings import mean_known
from tpmon.judge.features.snapshot import Scene, WorkerScene, demand_of, once
from tpmon.judge.features.starvation import IDLE_WORKERS, NO_WORKERS, Starved, find_onset, find_starved
from tpmon.judge.stacks.classify import (
    FETCH_FILE,
    StackPlace,
    classify,
    is_library,
    is_native,
    last_name,
    read_stack,
    retries,
    waits_for_others,
)
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import Share, find_spot, main_stacks, share_of
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.units import format_pct
from tpmon.model.waits import LOCKS, SOCKETS, WaitReason

BUSY_WORKER = 0.5
"""Demand, in threads, above which a worker computes all the time: 0.99-1.1; one that waits has 0.00-0.31."""
BLOCKED_WORKER = 0.4
"""Share of blocked readings above which a worker mostly reads; measured 72-100 %."""
RECENT_S = 15.0
"""How far back single workers are compared; ten readings cannot tell 0 % idle from 30 %."""


IDLE_HARDLY = 0.1
"""Share of readings without work below which a worker is hardly ever idle."""
LEAST_LOOKS = 10
"""Readings of a worker that this takes."""


class WorkerState(Enum):
    """Name what workers do most of the time."""

    COMPUTE = "compute"
    READ = "wait for reads"
    OTHER_WAIT = "wait for something that is no read"
    IDLE = "wait for work"
    UNREAD = "not read"


def name_state(found: Starved) -> WorkerState:
    """Say what the workers do most, by their means."""
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


WAITS_IN_VAIN = 0.5
"""Part of the workers' demand that waits for CPUs which nobody uses: more workers would wait too."""


def wait_in_vain(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers wait for CPUs that others leave: something keeps them off these."""
    others = are_others_waited_for(scene)
    if not is_known(others) or others:
        return False
    demands = [(one.demand, one.waiting) for one in found.workers]
    known = [(want, wait) for want, wait in demands if is_known(want) and is_known(wait)]
    wanted = sum(want for want, _ in known)
    return wanted > 0 and sum(wait for _, wait in known) >= WAITS_IN_VAIN * wanted


_SLEEPS = (WaitReason.SLEEP, WaitReason.TIMED_LOCK)
COLLATE_SHARE = 0.5
LEAST_STACKS = 10
"""One slice of a worker on a crowded machine: 3 s at 5 Hz."""


def _waits_for_work(stack: StackCount) -> bool:
    """Tell whether a worker is at its request queue; a dataset may have a queue of its own."""
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
    """Return the share of the workers' working time in collate, 0-1, by their stacks."""
    working = collating = 0
    for stack in working_stacks(found, scene):
        working += stack.samples
        if classify(stack.frames)[1] is DataPart.COLLATE:
            collating += stack.samples
    if working < LEAST_STACKS:
        return Missing("the workers' stacks were not sampled")
    return collating / working


def name_hot_work(found: Starved, scene: Scene) -> tuple[FigureReading, ...]:
    """Name the function of the program that takes most of the workers' working time, if seen."""
    places: Counter[StackPlace] = Counter()
    for stack in working_stacks(found, scene):
        places[read_stack(stack.frames).spot] += stack.samples
    spot = find_spot(places, places.total())
    if not is_known(spot) or places.total() < LEAST_STACKS:
        return ()
    where = spot.where.removeprefix(f"{Phase.DATA_WAIT.value}: ")
    text = f"{where}, {format_pct(100 * spot.ratio)} % of their work"
    return (reading(Figure.MOST_OF_IT, 100 * spot.ratio, scene.frame, text=text),)


def find_retry_share(found: Starved, scene: Scene) -> Known[float]:
    """Return the share of the workers' working time, 0-1, in a client's sleep before it asks again.

    The kernel tells that they sleep, the stacks for what.
    """
    asleep = mean_wait(found.workers, _SLEEPS)
    if asleep < BLOCKED_WORKER:
        return Missing("the workers do not sleep")
    stacks = tuple(working_stacks(found, scene))
    working = sum(stack.samples for stack in stacks)
    if working < LEAST_STACKS:
        return Missing("the workers' stacks were not sampled")
    return min(asleep, sum(stack.samples for stack in stacks if retries(stack.frames)) / working)


def is_refused(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers mostly sleep because a server refuses them, or does not answer."""
    return known_or(find_retry_share(found, scene), 0.0) >= BLOCKED_WORKER


def is_collating(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers' stacks show them mostly in collate."""
    return known_or(find_collate_share(found, scene), 0.0) >= COLLATE_SHARE


@dataclass(frozen=True, slots=True)
class WorkerLooks:
    """Count the recent readings of one worker: by its wait, and by its request queue."""

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
        """Return the share of readings of its queue that found a request, 0 without readings."""
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
                count[0] += process.waits_for.reason is WaitReason.WORK
                count[1] += 1
    return bool(counts) and all(
        looks >= LEAST_LOOKS and idle < IDLE_HARDLY * looks for idle, looks in counts.values()
    )


@once
def _look_at_all(scene: Scene) -> dict[int, list[int]]:
    """Count by worker PID: idle readings, readings, backlogs, readings of its queue."""
    since_ns = scene.frame.taken_ns - int(RECENT_S * 1e9)
    counts = {worker.pid: [0, 0, 0, 0] for rank in scene.ranks for worker in rank.workers}
    for frame in scene.history:
        if frame.taken_ns < since_ns:
            continue
        for process in frame.processes:
            count = counts.get(process.pid)
            if count is None:
                continue
            wait = process.waits_for
            if is_known(wait):
                count[0] += wait.reason is WaitReason.WORK
                count[1] += 1
        for loader in frame.loader:
            for queue in loader.queues:
                count = counts.get(queue.pid)
                pending = queue.pending_bytes
                if count is not None and is_known(pending):
                    count[2] += pending > 0
                    count[3] += 1
    return counts


def look_at_workers(found: Starved, scene: Scene) -> tuple[WorkerLooks, ...]:
    """Count for each worker of the rank how often it was idle and had a backlog lately."""
    counts = _look_at_all(scene)
    return tuple(WorkerLooks(worker, *counts[worker.pid]) for worker in found.workers)


WORKER_LOCK = 0.5
"""Part of the longest wait, (n - 1) / n of the time as one of n has it, above which a lock is the reason."""
MOSTLY = 0.5
"""Share of the workers' stacks in the program's own lines, where a C lock shows, for it to be one."""
HOLDER = 0.5
"""Workers outside the lock on average, below which none of them holds it."""
ALONE = 1.5
"""Workers at work outside the lock on average up to which they may take turns."""
OTHERS_WORK = 0.15
"""Part of the time asleep in locks in which the workers' other threads run, from which the wait is for these:
0.03 to 0.06 where the lock is another process's, 0.28 and more for the threads of a decoder."""
OTHERS_READ_BYTES_S = 20e6
"""Bytes per second that the other threads of all workers must have read."""
CERTAIN_FROM = 3
"""Workers needed to tell a lock by samples: of two, each sleeps half of the time by chance."""

_ANSWERS = SOCKETS | {WaitReason.CONNECTION, WaitReason.POLL, WaitReason.EPOLL}
_ACQUIRES = {
    "/multiprocessing/synchronize.py": ("__enter__",),
    "/filelock/_api.py": ("acquire",),
    "/filelock/__init__.py": ("acquire",),
}
"""Functions that take a lock between processes; ``multiprocessing.Lock().acquire`` itself is C."""
_OWN_FILES = ("/multiprocessing/pool.py", "/multiprocessing/synchronize.py", "/concurrent/futures/thread.py")
_QUEUES = ("/queue.py", "/multiprocessing/queues.py")


class StackEnd(Enum):
    """Name where the innermost frames of a worker's main thread are."""

    LOCK = "a lock that processes share"
    OWN = "the end of a queue, a pool or a future"
    HANDS = "the full end of a queue"
    LINE = "a line of the program"
    LIBRARY = "a library"


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
    """Say whether the workers wait for a lock, how long, and how much of it their stacks show."""

    sign: LockSign
    ratio: float = 0.0
    """Share of their time, 0-1, in a lock or what looks like one."""
    least: float = WORKER_LOCK
    """The share above which it counts."""
    in_stacks: float = 0.0
    """Share of their stacks, 0-1, that are at an acquire."""

    @property
    def is_lock(self) -> bool:
        """Tell whether it is a lock as far as anything is known."""
        return self.sign in (LockSign.SHOWN, LockSign.LIKELY)

    @property
    def looks_so(self) -> bool:
        """Tell whether they wait long enough in what may be a lock."""
        return self.ratio >= self.least


def _inner_frames(frames: Sequence[StackFrame]) -> Iterator[StackFrame]:
    """Return the library frames below the program's innermost line, innermost first."""
    for frame in reversed(frames):
        if is_native(frame.file):
            continue
        if not is_library(frame.file):
            return
        yield frame


def name_place(frames: Sequence[StackFrame]) -> StackEnd:
    """Say where a stack of a worker's main thread is; the own lock of a queue is that queue."""
    inner = tuple(_inner_frames(frames))
    if not inner:
        return StackEnd.LINE
    for frame in inner:
        if frame.file.endswith(_QUEUES) and last_name(frame.function) in ("put", "get"):
            return StackEnd.HANDS if last_name(frame.function) == "put" else StackEnd.OWN
    last = inner[0]
    name = last_name(last.function)
    if any(last.file.endswith(file) and name in names for file, names in _ACQUIRES.items()):
        return StackEnd.LOCK
    if waits_for_others(frames) or last.file.endswith(_OWN_FILES):
        return StackEnd.OWN
    return StackEnd.LIBRARY


def _share_places(found: Starved, scene: Scene) -> dict[StackEnd, Share]:
    """Return the shares of the workers' working stacks by where they are; {} where too few were seen."""
    counts: Counter[StackEnd] = Counter()
    for stack in working_stacks(found, scene):
        counts[name_place(stack.frames)] += stack.samples
    total = counts.total()
    return {place: share_of(count, total) for place, count in counts.items()} if total >= LEAST_STACKS else {}


_OTHERS = tuple(kind for kind in ThreadKind if kind is not ThreadKind.MAIN)


def _find_work_of_others(found: Starved, scene: Scene) -> float:
    """Return the mean demand of the workers' threads but the main ones, each by itself over the span."""
    pids = {worker.pid for worker in found.workers}
    demands = (
        demand_of(one, _OTHERS) for frame in scene.frames for one in frame.processes if one.pid in pids
    )
    return known_or(mean_known(demands, NO_WORKERS), 0.0)


def _work_elsewhere(found: Starved, scene: Scene, asleep: float) -> bool:
    """Tell whether other threads of the workers compute or read: the wait is then for them, not for a lock.

    If a lock's holder reads, its main thread's wait shows it.
    """
    if _find_work_of_others(found, scene) >= OTHERS_WORK * asleep:
        return True
    asked = sum(known_or(one.asked_read_bytes_s, 0.0) for one in found.workers)
    return asked >= OTHERS_READ_BYTES_S and known_or(found.blocked, 0.0) * len(found.workers) < HOLDER


def _has_card(found: Starved, scene: Scene) -> bool:
    """Tell whether a worker uses a card: its driver waits in a futex, too."""
    held = {pid for card in scene.cards for pid in known_or(card.pids, ())}
    return any(worker.pid in held for worker in found.workers)


def _count_out(found: Starved, ratio: float) -> float:
    """Return how many workers work outside the lock, on average; idle ones are neither in nor out."""
    return len(found.workers) * max(0.0, 1.0 - ratio - known_or(found.idle, 0.0))


def _may_be_lock(found: Starved, ratio: float, load: WorkerState) -> bool:
    """Tell whether samples leave a lock possible, where no stack decides."""
    if load is WorkerState.COMPUTE:
        return known_or(found.cores_free, 0.0) >= FREE_CORES and _count_out(found, ratio) <= ALONE
    return load is WorkerState.OTHER_WAIT and mean_wait(found.workers, _ANSWERS) < BLOCKED_WORKER


def find_lock(found: Starved, scene: Scene) -> LockWait:
    """Say whether the workers wait for a lock, by samples, stacks and what else they do."""
    load, count = name_state(found), len(found.workers)
    if load in (WorkerState.IDLE, WorkerState.UNREAD):
        return LockWait(LockSign.NONE)
    # With a single worker the lock is held elsewhere.
    least = WORKER_LOCK * (count - 1) / count if count > 1 else WORKER_LOCK
    on_files = mean_wait(found.workers, (WaitReason.FILE_LOCK,))
    asleep = on_files + mean_wait(found.workers, LOCKS)
    places = _share_places(found, scene)
    # Only working stacks are counted; idle time shrinks their share of all the time.
    working = 1.0 - known_or(found.idle, 0.0)
    nothing = share_of(0, LEAST_STACKS)
    lock, own, full, line = (
        places.get(place, nothing) for place in (StackEnd.LOCK, StackEnd.OWN, StackEnd.HANDS, StackEnd.LINE)
    )
    at_lock, at_own, hands = (working * one.ratio for one in (lock, own, full))
    if working * lock.low >= least and at_lock > max(at_own, hands):
        return LockWait(LockSign.SHOWN, max(asleep, at_lock), least, at_lock)
    if on_files >= least:
        return LockWait(LockSign.SHOWN, on_files, least, at_lock)
    if asleep < least:
        return LockWait(LockSign.NONE, asleep, least, at_lock)
    if max(at_own, hands) >= least:
        return LockWait(LockSign.HANDS if hands > at_own else LockSign.OWN, asleep, least)
    if _work_elsewhere(found, scene, asleep):
        return LockWait(LockSign.OWN, asleep, least)
    if count < 2 or not _may_be_lock(found, asleep, load):
        return LockWait(LockSign.NONE, asleep, least)
    certain = (
        count >= CERTAIN_FROM
        and load is WorkerState.OTHER_WAIT
        and line.ratio >= MOSTLY
        and HOLDER <= _count_out(found, asleep) <= ALONE
        and not _has_card(found, scene)
        and all(is_known(one.asked_read_bytes_s) for one in found.workers)
    )
    return LockWait(LockSign.LIKELY if certain else LockSign.OPEN, asleep, least)


OPENS_RATIO = 0.5
"""Share of the loading in opens and look-ups above which these are the reason, not bytes."""

_STAT = (
    "exists lexists isfile isdir islink getsize getmtime getatime getctime samefile realpath _joinrealpath"
)
_LIBRARIES = tuple(
    (re.compile(file), frozenset(names.split()))
    for file, names in (
        (r"(?:^<frozen |/)(?:genericpath|posixpath)(?:>$|\.py$)", _STAT),
        (r"(?:^<frozen |/)os(?:>$|\.py$)", "walk _walk fwalk makedirs"),
        (r"/glob\.py$", "_listdir _iterdir _lexists _isdir"),
        (
            r"/pathlib(?:/\w+)?\.py$",
            "open stat lstat exists is_file is_dir is_symlink iterdir scandir resolve _scandir",
        ),
        (r"/PIL/Image\.py$", "open"),
        (r"/torchvision/datasets/folder\.py$", "pil_loader find_classes make_dataset"),
        (r"/torch/serialization\.py$", "_open_file.__init__ _open_zipfile_reader.__init__"),
        (r"/numpy/lib/_?npyio(?:_impl)?\.py$", "load"),
        (r"/fsspec/implementations/local\.py$", "_open open info ls exists isfile isdir created modified"),
    )
)
"""Library functions whose own line is an open, a stat or a listing; bare or qualified names."""
_OWN = frozenset(("open", "stat", "lstat", "scandir", "listdir", "getsize", "pil_loader"))
"""Names of the program's own functions that say the same."""


@lru_cache(maxsize=4096)
def _opens(function: str, file: str) -> bool:
    name = last_name(function)
    if not is_library(file):
        return name in _OWN
    return any(path.search(file) and (name in names or function in names) for path, names in _LIBRARIES)


def is_open(frames: tuple[StackFrame, ...]) -> bool:
    """Tell whether the innermost frame opens, looks up or lists files."""
    return bool(frames) and _opens(frames[-1].function, frames[-1].file)


def _loading_stacks(found: Starved, scene: Scene) -> Iterator[StackCount]:
    for frame in scene.history:
        for one in known_or(frame.stacks, ()):
            for stack in main_stacks(one) if one.pid == found.rank.process.pid else ():
                if classify(stack.frames)[0] is Phase.DATA_WAIT:
                    yield stack


def _share(stacks: Iterable[StackCount]) -> Known[float]:
    loading = opening = 0
    for stack in stacks:
        loading += stack.samples
        opening += stack.samples if is_open(stack.frames) else 0
    return opening / loading if loading >= LEAST_STACKS else Missing("stacks of the loading were not sampled")


@once
def find_open_share(scene: Scene) -> Known[float]:
    """Return the share, 0-1, of opens and look-ups in the loading of the rank that starves most."""
    found = find_starved(scene)
    if not isinstance(found, Starved):
        return Missing("no rank waits for its data")
    return _share((working_stacks if found.rank.has_workers else _loading_stacks)(found, scene))


def is_opening(scene: Scene) -> bool:
    """Tell whether most of the loading goes into opens and look-ups."""
    return known_or(find_open_share(scene), 0.0) >= OPENS_RATIO


def name_opens(scene: Scene) -> tuple[FigureReading, ...]:
    """Return the share as evidence where it is worth it."""
    share = find_open_share(scene)
    if not is_known(share) or share < OPENS_RATIO:
        return ()
    return (reading(Figure.IN_OPENS, 100 * share, scene.frame),)
