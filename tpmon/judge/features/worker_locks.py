"""Tell workers that wait for each other at a lock from those that wait for threads of their own. Pure.

The kernel's word for both is a futex. What tells them apart is a lock on a file, the stacks of the
workers, what their other threads do meanwhile, and that somebody has a lock that others wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum

from tpmon.judge.features.cpu import FREE_CORES
from tpmon.judge.features.loader import Starved
from tpmon.judge.features.snapshot import Scene, WorkerScene
from tpmon.judge.features.workers import (
    BLOCKED_WORKER,
    LEAST_STACKS,
    Load,
    mean_wait,
    name_load,
    working_stacks,
)
from tpmon.judge.stacks.frames import is_library, is_native, last_name, waits_for_others
from tpmon.judge.stacks.phase_shares import Share, share_of
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known, known_or
from tpmon.model.process import ON_A_CPU
from tpmon.model.stacks import StackFrame

WORKER_LOCK = 0.5
"""Part of the most that workers behind one lock can wait from which the lock is what they wait for: one
of n has it, so that is (n - 1) / n of their time."""
MOSTLY = 0.5
"""Share of the workers' stacks in lines of the program, where a lock of C shows, for it to be one."""
HOLDER = 0.5
"""Workers out of the lock on average, below which none of them has it."""
ALONE = 1.5
"""Workers at work out of the lock on average up to which they may take turns."""
OTHERS_CPU = 0.2
"""Mean demand of the workers' other threads from which these are what is waited for."""
OTHERS_READ_BYTES_S = 20e6
"""Bytes per second of all workers that their other threads must have read."""
CERTAIN_FROM = 3
"""Workers from which their looks may tell a lock: of two, each is found asleep half of the time by chance."""

_FUTEX = ("futex",)
_FILE_LOCKS = ("lock_inode_wait", "lock_file_wait", "fcntl_setlk")
"""Kernel functions in which flock and fcntl wait for a lock on a file."""
_ANSWERS = ("poll", "socket", "connection")
_ACQUIRES = {
    "/multiprocessing/synchronize.py": ("__enter__",),
    "/filelock/_api.py": ("acquire",),
    "/filelock/__init__.py": ("acquire",),
}
"""Functions that take a lock of several processes. ``multiprocessing.Lock().acquire`` itself is C."""
_OWN_FILES = ("/multiprocessing/pool.py", "/multiprocessing/synchronize.py", "/concurrent/futures/thread.py")
_QUEUES = ("/queue.py", "/multiprocessing/queues.py")


class At(Enum):
    """Name what the innermost frames of a worker's main thread are at."""

    LOCK = "a lock that processes share"
    OWN = "the end of a queue, a pool or a future"
    HANDS = "the full end of a queue"
    LINE = "a line of the program"
    LIBRARY = "a library"


class Sign(Enum):
    """Say how the workers' waits are known to be for a lock."""

    SHOWN = "an acquire is in their stacks, or they wait for a lock on a file"
    LIKELY = "they sleep in lines of the program, one of them at a time does not, and no thread works"
    OPEN = "for a lock, or for threads of their own"
    OWN = "for threads of their own"
    HANDS = "to hand over their batches"
    NONE = "for no lock"


@dataclass(frozen=True, slots=True)
class LockWait:
    """Say whether the workers wait for a lock, how much of their time, and how much their stacks show."""

    sign: Sign
    ratio: float = 0.0
    """Share of their time, 0-1, in a lock or what looks like one."""
    least: float = WORKER_LOCK
    """The share from which it counts."""
    in_stacks: float = 0.0
    """Share of their stacks, 0-1, that are at an acquire."""

    @property
    def is_lock(self) -> bool:
        """Tell whether it is a lock as far as anything is known."""
        return self.sign in (Sign.SHOWN, Sign.LIKELY)

    @property
    def looks_so(self) -> bool:
        """Tell whether they are found in what may be a lock, whatever it is."""
        return self.ratio >= self.least


def _inner_frames(frames: Sequence[StackFrame]) -> Iterator[StackFrame]:
    """Return the frames of libraries below the program's innermost line, the innermost first."""
    for frame in reversed(frames):
        if is_native(frame.file):
            continue
        if not is_library(frame.file):
            return
        yield frame


def name_place(frames: Sequence[StackFrame]) -> At:
    """Say what a stack of a worker's main thread is at; a queue's own lock is that queue."""
    inner = tuple(_inner_frames(frames))
    if not inner:
        return At.LINE
    for frame in inner:
        if frame.file.endswith(_QUEUES) and last_name(frame.function) in ("put", "get"):
            return At.HANDS if last_name(frame.function) == "put" else At.OWN
    last = inner[0]
    name = last_name(last.function)
    if any(last.file.endswith(file) and name in names for file, names in _ACQUIRES.items()):
        return At.LOCK
    if waits_for_others(frames) or last.file.endswith(_OWN_FILES):
        return At.OWN
    return At.LIBRARY


def _share_places(found: Starved, scene: Scene) -> dict[At, Share]:
    """Return the shares of the workers' working stacks by what they are at; none where too few were seen."""
    counts: Counter[At] = Counter()
    for stack in working_stacks(found, scene):
        counts[name_place(stack.frames)] += stack.samples
    total = counts.total()
    return {place: share_of(count, total) for place, count in counts.items()} if total >= LEAST_STACKS else {}


def _cpu_of_others(worker: WorkerScene) -> float:
    """Return the demand of a worker's threads but its main one."""
    of_main = 1.0 - sum(share for words, share in worker.waits.items() if words != ON_A_CPU)
    return max(0.0, known_or(worker.demand, 0.0) - max(0.0, of_main))


def _work_elsewhere(found: Starved) -> bool:
    """Tell whether other threads of the workers compute or read meanwhile: these are waited for, no lock.

    What one of them reads itself while it has the lock shows in what its main thread waits for.
    """
    workers = found.workers
    if sum(map(_cpu_of_others, workers)) >= OTHERS_CPU * len(workers):
        return True
    asked = sum(known_or(one.asked_read_bytes_s, 0.0) for one in workers)
    return asked >= OTHERS_READ_BYTES_S and known_or(found.blocked, 0.0) * len(workers) < HOLDER


def _has_card(found: Starved, scene: Scene) -> bool:
    """Tell whether a worker is on a card, whose driver lets it wait in a futex."""
    held = {pid for card in scene.cards for pid in known_or(card.pids, ())}
    return any(worker.pid in held for worker in found.workers)


def _count_out(found: Starved, ratio: float) -> float:
    """Return how many workers are at work out of the lock, on average; one without work is in neither."""
    return len(found.workers) * max(0.0, 1.0 - ratio - known_or(found.idle, 0.0))


def _may_be_lock(found: Starved, ratio: float, load: Load) -> bool:
    """Tell whether their looks leave a lock open, where no stack decides."""
    if load is Load.COMPUTE:
        return known_or(found.cores_free, 0.0) >= FREE_CORES and _count_out(found, ratio) <= ALONE
    return load is Load.OTHER_WAIT and mean_wait(found.workers, _ANSWERS) < BLOCKED_WORKER


def find_lock(found: Starved, scene: Scene) -> LockWait:
    """Say whether the workers wait for a lock, by their looks, their stacks and what else they do."""
    load, count = name_load(found), len(found.workers)
    if load in (Load.IDLE, Load.UNREAD):
        return LockWait(Sign.NONE)
    # Of a single worker the lock is held elsewhere.
    least = WORKER_LOCK * (count - 1) / count if count > 1 else WORKER_LOCK
    on_files = mean_wait(found.workers, _FILE_LOCKS)
    asleep = on_files + mean_wait(found.workers, _FUTEX)
    places = _share_places(found, scene)
    # Only working stacks are counted: of all their time it is as much less as they have no work.
    working = 1.0 - known_or(found.idle, 0.0)
    nothing = share_of(0, LEAST_STACKS)
    lock, own, full, line = (places.get(place, nothing) for place in (At.LOCK, At.OWN, At.HANDS, At.LINE))
    at_lock, at_own, hands = (working * one.ratio for one in (lock, own, full))
    if working * lock.low >= least and at_lock > max(at_own, hands):
        return LockWait(Sign.SHOWN, max(asleep, at_lock), least, at_lock)
    if on_files >= least:
        return LockWait(Sign.SHOWN, on_files, least, at_lock)
    if asleep < least:
        return LockWait(Sign.NONE, asleep, least, at_lock)
    if max(at_own, hands) >= least:
        return LockWait(Sign.HANDS if hands > at_own else Sign.OWN, asleep, least)
    if _work_elsewhere(found):
        return LockWait(Sign.OWN, asleep, least)
    if count < 2 or not _may_be_lock(found, asleep, load):
        return LockWait(Sign.NONE, asleep, least)
    certain = (
        count >= CERTAIN_FROM
        and load is Load.OTHER_WAIT
        and line.ratio >= MOSTLY
        and HOLDER <= _count_out(found, asleep) <= ALONE
        and not _has_card(found, scene)
        and all(is_known(one.asked_read_bytes_s) for one in found.workers)
    )
    return LockWait(Sign.LIKELY if certain else Sign.OPEN, asleep, least)
