"""Say of one thread in a picture what keeps it: other ranks, a batch, a lock, a read, itself. Pure."""

from __future__ import annotations

from enum import Enum

from tpmon.judge.dumps.describe import Wait
from tpmon.judge.dumps.outlier import Seen
from tpmon.judge.stacks.classify import is_users
from tpmon.judge.stacks.frames import is_native, last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import Picture
from tpmon.model.dump import Motion, WaitKind
from tpmon.model.known import is_known, known_or
from tpmon.model.process import Role

_EXIT = "threads to end"
_LOCK = "lock or queue"
_TIMED_LOCK = "lock with a time-out"
_INPUT = ("terminal input", "standard input")
SLEEP = "sleep"
"""The kernel's word for a sleep."""
_IO_KINDS = (WaitKind.FILE, WaitKind.PIPE, WaitKind.SOCKET, WaitKind.UNIX)
_IO_WORDS = ("FUSE", "NFS", "Ceph", "Lustre", "disk", "journal", "socket", "pipe", "FIFO", "connection")
_CHILD = "child process"
_RAY_LOOP = "ray/_private/worker.py"


TICKS_RATIO = 0.1
"""Share of the time on a CPU up to which a thread only asks again for the interpreter's lock."""


class Stance(Enum):
    """Name what keeps a thread where it is."""

    STOPPED = "a signal, a debugger or a freezer"
    MOVES = "nothing"
    INPUT = "a person"
    NO_TASK = "a task"
    RANKS = "other ranks"
    GIL = "the interpreter's lock"
    BATCH = "a batch"
    WORK = "work"
    DEVICE = "the device"
    EXIT = "threads of its own that do not end"
    IO = "a read or write"
    LOCK = "a lock"
    CHILD = "another process"
    TIMED = "a time-out"
    RUNS = "itself"
    UNREAD = "not known"


def is_running(seen: Seen, picture: Picture) -> bool:
    """Tell whether a thread ran, or wanted to, all the time between the looks."""
    return seen.thread.state == "R" and not picture.rests(seen)


def find_gil_holder(seen: Seen, picture: Picture) -> Seen | None:
    """Return the thread of the same process that held the interpreter's lock in every look."""
    return next(
        (
            one
            for one in picture.threads_of(seen.thread.pid)
            if (trait := picture.trait_of(one)) is not None and trait.gil_ratio >= 1.0
        ),
        None,
    )


def waits_for_gil(seen: Seen, picture: Picture) -> bool:
    """Tell whether a thread cannot go on because the interpreter's lock is held in C code, by it or another.

    Who waits for that lock wakes up 200 times a second, which is no movement.
    """
    holder = find_gil_holder(seen, picture)
    if holder is None or holder.motion is not Motion.FROZEN or seen.motion is Motion.MOVING:
        return False
    if holder is seen:
        return seen.thread.state != "R" and picture.rests(seen)
    trait = picture.trait_of(seen)
    ticks = trait is None or trait.used_s <= TICKS_RATIO * picture.seconds
    return ticks and (_waits(seen, _TIMED_LOCK) or seen.thread.state == "R")


def _waits(seen: Seen, *words: str) -> bool:
    waits = seen.thread.waits_for
    return is_known(waits) and any(word in waits for word in words)


def sleeps(seen: Seen) -> bool:
    """Tell whether a thread sleeps for a time that it chose itself."""
    return _waits(seen, SLEEP)


def _reads_input(seen: Seen) -> bool:
    target = seen.thread.waits_on
    fd = is_known(target) and target.fd == 0
    return fd or _waits(seen, *_INPUT) or seen.doing.phase is Phase.INPUT


def find_stance(seen: Seen, picture: Picture) -> Stance:
    """Say what keeps a thread; ``picture`` tells whether it ran and who holds the interpreter's lock."""
    if seen.is_stopped:
        return Stance.STOPPED
    if not is_known(seen.sighting.frames):
        return Stance.UNREAD
    if waits_for_gil(seen, picture):
        return Stance.GIL
    if seen.motion in (Motion.MOVING, Motion.SLOW):
        return Stance.RUNS if picture.goes_round(seen) else Stance.MOVES
    if seen.motion is not Motion.FROZEN:
        return Stance.UNREAD
    if picture.rests(seen) and _reads_input(seen):
        return Stance.INPUT
    if has_no_task(seen, picture):
        return Stance.NO_TASK
    by_place = {
        Wait.RANKS: Stance.RANKS,
        Wait.BATCH: Stance.BATCH,
        Wait.WORK: Stance.WORK,
        Wait.DEVICE: Stance.DEVICE,
    }
    if seen.doing.wait in by_place:
        return by_place[seen.doing.wait]
    if is_running(seen, picture):
        return Stance.RUNS
    return _find_rest(seen)


def _find_rest(seen: Seen) -> Stance:
    """Say what keeps a thread that rests at a place that does not tell."""
    target = seen.thread.waits_on
    if _EXIT in seen.doing.text:
        return Stance.EXIT
    if sleeps(seen):
        return Stance.TIMED
    if is_known(target) and target.kind in (WaitKind.LOCK, WaitKind.THREAD):
        return Stance.LOCK
    if _waits(seen, _CHILD):
        return Stance.CHILD
    if is_known(target) and target.kind in _IO_KINDS:
        return Stance.LOCK if target.call in ("flock", "fcntl") else Stance.IO
    if seen.thread.state == "D" or _waits(seen, *_IO_WORDS):
        return Stance.IO
    return Stance.LOCK if _waits(seen, _LOCK) else Stance.TIMED


def has_no_task(seen: Seen, picture: Picture) -> bool:
    """Tell whether a process is an actor of ray that nobody has asked for anything: its driver may work."""
    frames = [one for one in known_or(seen.sighting.frames, ()) if not is_native(one.file)]
    if not frames or not picture.rests(seen) or last_name(frames[-1].function) != "main_loop":
        return False
    others = (one for one in picture.threads_of(seen.thread.pid) if one.thread.tid != seen.thread.tid)
    busy = any(is_users(frame) for one in others for frame in known_or(one.sighting.frames, ()))
    return frames[-1].file.endswith(_RAY_LOOP) and not busy


def is_idle(seen: Seen, picture: Picture) -> bool:
    """Tell whether a worker or a process of a pool has nothing to do."""
    stance = find_stance(seen, picture)
    if stance in (Stance.WORK, Stance.BATCH):
        return True
    asks = any(word in seen.doing.text for word in ("queue.get", "process pool", "idle executor"))
    return seen.thread.role is not Role.RANK and asks and picture.rests(seen)
