"""Combine several dumps of a job into one picture: where each thread is, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from tpmon.judge.dumps.describe import LibraryCall, is_in_task
from tpmon.judge.dumps.merge import RESTS_RATIO, join_looks, looks_of_round
from tpmon.judge.dumps.outlier import DumpScene, ThreadSeen, see_threads, set_scene
from tpmon.judge.stacks.classify import find_users, is_library, is_native, is_users, last_name
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
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import INPUTS, IO, PIPES, WaitReason, is_wait, is_wait_in

LEAST_ROUNDS = 3
LEAST_SPAN_S = 4.0
"""Between the first and the last dump of a picture."""
POLL_RATIO = 0.05
"""Share of time on a CPU up to which a main thread at one line may poll: a step takes more."""
FEW_BYTES_S = 1e6
"""Bytes a second up to which a process reads and writes nothing that matters."""
FEW_FAULTS_S = 100.0
"""Page faults a second up to which the kernel's time is not spent on making memory."""
LEAST_USED_S = 0.3
"""CPU that a thread must have used before its share in the kernel counts: ticks are 10 ms long."""

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

    @property
    def seconds(self) -> float:
        """Return the time from the first dump to the last."""
        return (self.last_ns - self.first_ns) / 1e9

    def threads_of(self, pid: int) -> tuple[ThreadSeen, ...]:
        """Return the threads of one process."""
        return tuple(one for one in self.threads if one.thread.pid == pid)

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
        target = seen.thread.waits_on
        others = known_or(target.others, ()) if is_known(target) else ()
        return bool(others) and all(self.is_below(one.pid, seen.thread.pid) for one in others)

    def is_below(self, pid: int, rank_pid: int) -> bool:
        """Tell whether a process is one that a rank started."""
        main = self.main_of(pid)
        below = main is not None and main.thread.role is Role.HELPER and main.thread.rank_pid == rank_pid
        return below and pid != rank_pid

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
        if inner < 0 or not all(map(_is_standard, frames[inner + 1 :])):
            return None
        corner = (*frames[:inner], replace(frames[inner], line=0))
        if found is not None and corner != found:
            return None
        found = corner
    return found


def _is_standard(frame: StackFrame) -> bool:
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
    return {
        key: trait
        for key, same in looks.items()
        if len(same) == len(rounds) and (trait := _find_trait(same)) is not None
    }


def _find_trait(same: Sequence[ThreadLook]) -> Trait | None:
    begun_ns, ended_ns = same[0].run_ns, same[-1].run_ns
    if not is_known(begun_ns) or not is_known(ended_ns):
        return None
    used_ns = max(0, ended_ns - begun_ns)
    stacks = [look.frames for look in same if is_known(look.frames)]
    return Trait(
        used_s=used_ns / 1e9,
        ready=all(look.state == "R" for look in same),
        gil_ratio=sum(look.holds_gil is True for look in same) / len(same),
        goes_round=len(stacks) == len(same) and find_corner(stacks) is not None,
        kernel_ratio=_kernel_ratio(same, used_ns),
    )


def _kernel_ratio(same: Sequence[ThreadLook], used_ns: int) -> float:
    begun_ns, ended_ns = same[0].kernel_ns, same[-1].kernel_ns
    if not is_known(begun_ns) or not is_known(ended_ns) or used_ns < LEAST_USED_S * 1e9:
        return 0.0
    return min(1.0, max(0, ended_ns - begun_ns) / used_ns)


_IO_KINDS = (WaitKind.FILE, WaitKind.PIPE, WaitKind.SOCKET, WaitKind.UNIX)
_IO_WAITS = IO | PIPES | {WaitReason.CONNECTION}
_IDLE_CALLS = (
    LibraryCall.QUEUE_GET,
    LibraryCall.PROCESS_POOL,
    LibraryCall.IDLE_THREAD,
    LibraryCall.IDLE_PROCESS,
    LibraryCall.MANAGER,
)
_RAY_LOOP = "ray/_private/worker.py"


TICKS_RATIO = 0.1
"""Share of time on a CPU up to which a thread does no more than ask for the GIL again."""
_TICKS = frozenset((WaitReason.TIMED_LOCK, WaitReason.SLEEP))
"""Waits that a poll repeats."""


UNREAD = Missing("its looks do not tell what it waits for")


def is_running(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a thread ran, or wanted to, all the time between the dumps."""
    return seen.thread.state == "R" and not picture.rests(seen)


def find_gil_holder(seen: ThreadSeen, picture: Picture) -> ThreadSeen | None:
    """Return the thread of the same process that held the GIL in every dump."""
    return next(
        (
            one
            for one in picture.threads_of(seen.thread.pid)
            if (trait := picture.trait_of(one)) is not None and trait.gil_ratio >= 1.0
        ),
        None,
    )


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
    if waits_for_gil(seen, picture):
        return WaitReason.GIL
    polls = picture.polls(seen)
    if seen.motion in (Motion.MOVING, Motion.SLOW) and not polls:
        return WaitReason.RUNNING if picture.goes_round(seen) else WaitReason.NOTHING
    if seen.motion is not Motion.FROZEN and not polls:
        return UNREAD
    if picture.rests(seen) and _reads_input(seen):
        return WaitReason.TERMINAL
    if has_no_task(seen, picture):
        return WaitReason.TASK
    if seen.doing.wait not in (WaitReason.CALL, WaitReason.OTHER):
        return seen.doing.wait
    if is_running(seen, picture) and not polls:
        return WaitReason.RUNNING
    return _find_rest(seen)


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
    frames = [one for one in seen.frames if not is_native(one.file)]
    if not frames or not picture.rests(seen) or last_name(frames[-1].function) != "main_loop":
        return False
    others = (one for one in picture.threads_of(seen.thread.pid) if one.thread.tid != seen.thread.tid)
    busy = any(is_users(frame) for one in others for frame in one.frames)
    return frames[-1].file.endswith(_RAY_LOOP) and not busy


def is_idle(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a worker or a process of a pool has nothing to do."""
    wait = find_wait(seen, picture)
    if wait in (WaitReason.WORK, WaitReason.BATCH):
        return True
    # In a pool what a task waits for is no wait for a task.
    if seen.thread.role is Role.RANK or is_in_task(seen.frames):
        return False
    return seen.doing.call in _IDLE_CALLS and picture.rests(seen)
