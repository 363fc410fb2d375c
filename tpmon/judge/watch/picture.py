"""Combine several dumps of a job into one picture: where each thread is, and what it waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from tpmon.judge.dumps.camps import DumpScene, ThreadSeen, see_threads, set_scene
from tpmon.judge.dumps.describe import LibraryCall, is_in_task
from tpmon.judge.dumps.merge import RESTS_RATIO, join_looks, looks_of_round
from tpmon.judge.stacks.classify import find_users, is_at, is_library, is_native, is_users
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import (
    DeadChild,
    DumpError,
    DumpRound,
    ErrorKind,
    Motion,
    ProcessToll,
    ThreadLook,
    WaitKind,
)
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import INPUTS, IO, PIPES, QUEUES, WaitReason, is_wait, is_wait_in

LEAST_ROUNDS = 3
LEAST_SPAN_S = 4.0
POLL_RATIO = 0.05
FEW_BYTES_S = 1e6
FEW_FAULTS_S = 100.0
LEAST_USED_S = 0.3

Corner = tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class Trait:
    """Hold what all dumps together say about one thread.

    ``used_s`` is the CPU that it used from the first dump to the last. ``ready``: runnable in every dump, so
    if it used none, others had the CPUs. ``gil_ratio`` is the share of the dumps in which it held the GIL;
    ``kernel_ratio`` the share of its CPU time in the kernel, 0 where unknown or too little to tell.
    ``goes_round``: always in one function of the program, at any line, above nothing but the standard
    library.
    """

    used_s: float
    ready: bool
    gil_ratio: float
    goes_round: bool
    kernel_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """Hold what the last dumps together say about every thread.

    ``looks``: how many; at 0 what readings alone say, at 1 where each thread is now, whether it moves or not.

    ``traits`` are by process and thread, of threads that were in every dump; ``tolls`` are what each process
    used from the first dump to the last.
    """

    first_ns: int
    last_ns: int
    looks: int
    scene: DumpScene
    threads: tuple[ThreadSeen, ...]
    traits: Mapping[tuple[int, int], Trait]
    errors: tuple[DumpError, ...]
    dead: tuple[DeadChild, ...] = ()
    tolls: Mapping[int, ProcessToll] = field(default_factory=dict)
    _by_pid: dict[int, tuple[ThreadSeen, ...]] = field(default_factory=dict, compare=False, repr=False)
    """The threads of each process, once one of them was asked for: 512 ranks have thousands."""
    _holders: dict[int, ThreadSeen | None] = field(default_factory=dict, compare=False, repr=False)
    """Which thread of a process held the GIL in every dump: each of its hundreds asks."""

    @property
    def seconds(self) -> float:
        """Return the time from the first dump to the last."""
        return (self.last_ns - self.first_ns) / 1e9

    def threads_of(self, pid: int) -> tuple[ThreadSeen, ...]:
        """Return the threads of one process."""
        if not self._by_pid:
            threads: defaultdict[int, list[ThreadSeen]] = defaultdict(list)
            for one in self.threads:
                threads[one.thread.pid].append(one)
            self._by_pid.update((one, tuple(those)) for one, those in threads.items())
        return self._by_pid.get(pid, ())

    def holder_of(self, pid: int) -> ThreadSeen | None:
        """Return the thread of a process that held the GIL in every dump."""
        if pid not in self._holders:
            traits = ((one, self.trait_of(one)) for one in self.threads_of(pid))
            held = (one for one, trait in traits if trait is not None and trait.gil_ratio >= 1.0)
            self._holders[pid] = next(held, None)
        return self._holders[pid]

    def main_of(self, pid: int) -> ThreadSeen | None:
        """Return the main thread of one process."""
        return next((one for one in self.threads_of(pid) if one.thread.kind is ThreadKind.MAIN), None)

    def trait_of(self, seen: ThreadSeen) -> Trait | None:
        """Return the trait of a thread; None where it was not in every dump."""
        tid = seen.thread.tid
        return self.traits.get((seen.thread.pid, tid)) if is_known(tid) else None

    def rests(self, seen: ThreadSeen) -> bool:
        """Tell whether a thread hardly ran; even a wait with a time-out wakes up now and then."""
        trait = self.trait_of(seen)
        if trait is None:
            return seen.thread.state not in ("R", "?")
        return trait.used_s <= RESTS_RATIO * self.seconds and not trait.ready

    def gets_something(self, seen: ThreadSeen) -> bool:
        """Tell whether a thread's process read, wrote or made memory between the dumps."""
        toll = self.tolls.get(seen.thread.pid)
        return toll is not None and (
            toll.faults > FEW_FAULTS_S * self.seconds or toll.moved_bytes > FEW_BYTES_S * self.seconds
        )

    def polls(self, seen: ThreadSeen) -> bool:
        """Tell whether nothing but its own clock moves a main thread: it asks at one line, and gets nothing.

        What asks over a network is moved by answers that nobody counts.
        """
        trait = self.trait_of(seen)
        if seen.motion is not Motion.SLOW or seen.thread.kind is not ThreadKind.MAIN or trait is None:
            return False
        if trait.ready or trait.used_s > POLL_RATIO * self.seconds or self.gets_something(seen):
            return False
        return self.asks_below(seen) or is_wait_in(seen.thread.waits_for, _TICKS)

    def rank_or_main(self, pid: int) -> ThreadSeen | None:
        """Return what keeps a rank, else the main thread of any other process."""
        return next((one for one in self.scene.ranks if one.thread.pid == pid), None) or self.main_of(pid)

    def asks_below(self, seen: ThreadSeen) -> bool:
        """Tell whether only processes that a rank started have the other end of what it waits at."""
        mains = [self.main_of(end.pid) for end in seen.ends]
        return bool(mains) and all(
            one is not None and one.thread.role is Role.HELPER and one.thread.rank_pid == seen.thread.pid
            for one in mains
        )

    def goes_round(self, seen: ThreadSeen) -> bool:
        """Tell whether a thread loops in one function; long C calls of torch and numpy free the GIL."""
        trait = self.trait_of(seen)
        return trait is not None and trait.goes_round and trait.gil_ratio > 0 and not self.rests(seen)


def find_corner(stacks: Iterable[Sequence[StackFrame]]) -> Corner | None:
    """Return the one function of the user in which all stacks end, at any line; None for several.

    Only the standard library may be below it: a call into torch or another library may be at work.
    """
    found: Corner | None = None
    for frames in stacks:
        inner = find_users(frames)
        if inner < 0 or not all(map(is_standard, frames[inner + 1 :])):
            return None
        corner = (*frames[:inner], replace(frames[inner], line=0))
        if found is not None and corner != found:
            return None
        found = corner
    return found


def is_standard(frame: StackFrame) -> bool:
    """Tell whether a frame is of the standard library."""
    return is_library(frame.file) and "-packages/" not in frame.file and "torch" not in frame.file


def choose_rounds(rounds: Sequence[DumpRound]) -> tuple[DumpRound, ...]:
    """Return the newest dumps that make a picture, oldest first; () where there are too few."""
    for count in range(LEAST_ROUNDS, len(rounds) + 1):
        chosen = tuple(rounds[-count:])
        if chosen[-1].taken_ns - chosen[0].taken_ns >= LEAST_SPAN_S * 1e9:
            return chosen
    return ()


def came_late(rounds: Sequence[DumpRound], since_ns: int) -> bool:
    """Tell whether the newest dump after ``since_ns`` missed the stack of a rank only for lack of time."""
    newest = [one for one in rounds if one.taken_ns > since_ns][-1:]
    return any(
        error.kind is ErrorKind.LATE and error.role is Role.RANK for one in newest for error in one.errors
    )


def draw_picture(rounds: Sequence[DumpRound], world_size: Applicable[int]) -> Picture | None:
    """Combine dumps into a picture; None where no stack of a rank could be read."""
    last = rounds[-1]
    looks = [look for one in rounds for look in looks_of_round(one)]
    threads = see_threads(join_looks(looks, last.taken_ns / 1e9))
    if not any(
        one.thread.role is Role.RANK and one.thread.kind is ThreadKind.MAIN and one.is_read for one in threads
    ):
        return None
    return Picture(
        first_ns=rounds[0].taken_ns,
        last_ns=last.taken_ns,
        looks=len(rounds),
        scene=set_scene(threads, world_size),
        threads=threads,
        traits=_find_traits(rounds),
        errors=last.errors,
        dead=last.dead,
        tolls=_find_tolls(rounds),
    )


def _find_tolls(rounds: Sequence[DumpRound]) -> dict[int, ProcessToll]:
    begun = {(one.pid, one.start_ticks): one.toll for one in rounds[0].processes}
    found = {}
    for one in rounds[-1].processes:
        before = begun.get((one.pid, one.start_ticks), NOT_APPLICABLE)
        if is_known(before) and is_known(one.toll):
            found[one.pid] = ProcessToll(
                max(0, one.toll.cpu_ns - before.cpu_ns),
                max(0, one.toll.faults - before.faults),
                max(0, one.toll.moved_bytes - before.moved_bytes),
            )
    return found


def _find_traits(rounds: Sequence[DumpRound]) -> dict[tuple[int, int], Trait]:
    looks: dict[tuple[int, int], list[ThreadLook]] = {}
    for one in rounds:
        for process in one.processes:
            for thread in process.threads:
                if is_known(thread.tid):
                    looks.setdefault((process.pid, thread.tid), []).append(thread)
    found: dict[tuple[int, int], Trait] = {}
    for key, same in looks.items():
        used_ns = _grew(same[0].run_ns, same[-1].run_ns)
        if used_ns is None or len(same) != len(rounds):
            continue
        stacks = [look.frames for look in same if is_known(look.frames)]
        in_kernel_ns = _grew(same[0].kernel_ns, same[-1].kernel_ns) or 0
        found[key] = Trait(
            used_s=used_ns / 1e9,
            ready=all(look.state == "R" for look in same),
            gil_ratio=sum(look.holds_gil is True for look in same) / len(same),
            goes_round=len(stacks) == len(same) and find_corner(stacks) is not None,
            kernel_ratio=min(1.0, in_kernel_ns / used_ns) if used_ns >= LEAST_USED_S * 1e9 else 0.0,
        )
    return found


def _grew(before: Applicable[int], now: Applicable[int]) -> int | None:
    return max(0, now - before) if is_known(before) and is_known(now) else None


_IO_KINDS = (WaitKind.FILE, WaitKind.PIPE, WaitKind.SOCKET, WaitKind.UNIX)
_IO_WAITS = IO | PIPES | {WaitReason.CONNECTION}
_IDLE_CALLS = (
    LibraryCall.QUEUE_GET,
    LibraryCall.PROCESS_POOL,
    LibraryCall.IDLE_THREAD,
    LibraryCall.IDLE_PROCESS,
    LibraryCall.MANAGER,
)
_RAY_LOOP = ("ray/_private/worker.py", "main_loop")


TICKS_RATIO = 0.1
_TICKS = frozenset((WaitReason.TIMED_LOCK, WaitReason.SLEEP))
"""Waits that a poll repeats."""


UNREAD = Missing("its looks do not tell what it waits for")


def find_gil_holder(seen: ThreadSeen, picture: Picture) -> ThreadSeen | None:
    """Return the thread of the same process that held the GIL in every dump."""
    return picture.holder_of(seen.thread.pid) if picture.traits else None


def waits_for_gil(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a thread is stuck because it or another holds the GIL in C code.

    A thread that waits for the GIL wakes up 200 times a second; that is no movement.
    """
    holder = find_gil_holder(seen, picture)
    if holder is None or holder.motion is not Motion.FROZEN or seen.motion is Motion.MOVING:
        return False
    if holder is seen:
        return seen.thread.state != "R" and picture.rests(seen)
    trait = picture.trait_of(seen)
    ticks = trait is None or trait.used_s <= TICKS_RATIO * picture.seconds
    return ticks and (is_wait(seen.thread.waits_for, WaitReason.TIMED_LOCK) or seen.thread.state == "R")


def sleeps(seen: ThreadSeen) -> bool:
    """Tell whether a thread sleeps for a time that it chose itself."""
    return is_wait(seen.thread.waits_for, WaitReason.SLEEP)


def _reads_input(seen: ThreadSeen) -> bool:
    target = seen.thread.waits_on
    fd = is_known(target) and target.fd == 0
    return fd or is_wait_in(seen.thread.waits_for, INPUTS) or seen.doing.phase is Phase.INPUT


def find_wait(seen: ThreadSeen, picture: Picture) -> Known[WaitReason]:
    """Say what a thread waits for, by all dumps together; ``UNREAD`` where they do not tell."""
    if seen.is_stopped:
        return WaitReason.STOPPED
    if not seen.is_read:
        return UNREAD
    if not picture.looks:
        return _find_wait_by_kernel(seen, picture)
    if waits_for_gil(seen, picture):
        return WaitReason.GIL
    # One look tells where a thread is now, whether it moves or not.
    polls, is_now = picture.polls(seen), picture.looks == 1
    if seen.motion in (Motion.MOVING, Motion.SLOW) and not polls and not is_now:
        return WaitReason.RUNNING if picture.goes_round(seen) else WaitReason.NOTHING
    if seen.motion is not Motion.FROZEN and not polls and not is_now:
        return UNREAD
    if picture.rests(seen) and _reads_input(seen):
        return WaitReason.TERMINAL
    if has_no_task(seen, picture):
        return WaitReason.TASK
    if seen.doing.wait not in (WaitReason.CALL, WaitReason.OTHER):
        return seen.doing.wait
    if seen.thread.state == "R" and not picture.rests(seen) and not polls:
        return WaitReason.RUNNING
    return _find_rest(seen)


def _find_wait_by_kernel(seen: ThreadSeen, picture: Picture) -> WaitReason:
    """Say the same where no stack was read: most kernel waits may be for anything."""
    if _reads_input(seen):
        return WaitReason.TERMINAL
    if is_wait_in(seen.thread.waits_for, QUEUES) and is_known(seen.thread.waits_for):
        return seen.thread.waits_for.reason
    # One that sleeps may be what the others wait for.
    return WaitReason.SLEEP if all(map(sleeps, picture.scene.ranks)) else WaitReason.OTHER


def _find_rest(seen: ThreadSeen) -> WaitReason:
    """Say what a resting thread waits for when its stack does not tell."""
    target = seen.thread.waits_on
    if seen.doing.call is LibraryCall.EXIT:
        return WaitReason.THREADS
    if sleeps(seen):
        return WaitReason.SLEEP
    if is_known(target) and target.kind in (WaitKind.LOCK, WaitKind.THREAD):
        return WaitReason.LOCK
    if is_wait(seen.thread.waits_for, WaitReason.CHILD):
        return WaitReason.CHILD
    if is_known(target) and target.kind in _IO_KINDS:
        return WaitReason.LOCK if target.call in ("flock", "fcntl") else WaitReason.READ_WRITE
    if seen.thread.state == "D" or is_wait_in(seen.thread.waits_for, _IO_WAITS):
        return WaitReason.READ_WRITE
    return WaitReason.LOCK if is_wait(seen.thread.waits_for, WaitReason.LOCK) else WaitReason.OTHER


def has_no_task(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a process is a ray actor that has no request: its driver may be at work."""
    inner = next((one for one in reversed(seen.frames) if not is_native(one.file)), None)
    if inner is None or not is_at(inner, *_RAY_LOOP) or not picture.rests(seen):
        return False
    others = (one for one in picture.threads_of(seen.thread.pid) if one.thread.tid != seen.thread.tid)
    return not any(is_users(frame) for one in others for frame in one.frames)


def is_idle(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a worker or a process of a pool has nothing to do."""
    wait = find_wait(seen, picture)
    if wait in (WaitReason.WORK, WaitReason.BATCH):
        return True
    # In a pool what a task waits for is no wait for a task.
    if seen.thread.role is Role.RANK or is_in_task(seen.frames):
        return False
    return seen.doing.call in _IDLE_CALLS and picture.rests(seen)
