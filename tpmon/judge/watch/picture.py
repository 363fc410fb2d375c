"""Draw one picture of a job from several looks: where every thread stands, and what it used. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from tpmon.judge.dumps.fold_looks import RESTS_RATIO, join_looks, looks_of_round
from tpmon.judge.dumps.outlier import Scene, Seen, see_threads, set_scene
from tpmon.judge.stacks.classify import is_users
from tpmon.judge.stacks.frames import is_library
from tpmon.model.dump import DeadChild, DumpError, DumpRound, ErrorKind, ThreadLook
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame

LEAST_ROUNDS = 3
LEAST_SPAN_S = 4.0
"""Between the first and the last look of a picture."""
LEAST_USED_S = 0.3
"""CPU that a thread must have used until the kernel's part of it is told: ticks are of 10 ms."""

Corner = tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class Trait:
    """Hold what all looks together tell of one thread.

    ``used_s`` is the CPU that it used from the first look to the last; ``ready``: each look found it
    runnable, so that where it used none it got none: others had the CPUs. ``gil_ratio`` is the share of the
    looks in which it held the interpreter's lock, ``kernel_ratio`` that of its CPU inside the kernel, 0
    where it is not known or too little to tell. ``goes_round``: it was in one function of the program
    each time, whatever its line, and in nothing that this calls but the standard library.
    """

    used_s: float
    ready: bool
    gil_ratio: float
    goes_round: bool
    kernel_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Toll:
    """Hold what one process used from the first look to the last: CPU seconds, page faults, bytes moved."""

    cpu_s: float
    faults: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Hold where everybody is as the last looks together tell it.

    ``traits`` are by process and thread, of those that were there in every look; ``tolls`` by process.
    """

    first_ns: int
    last_ns: int
    looks: int
    scene: Scene
    threads: tuple[Seen, ...]
    traits: Mapping[tuple[int, int], Trait]
    errors: tuple[DumpError, ...]
    dead: tuple[DeadChild, ...] = ()
    tolls: Mapping[int, Toll] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return the time from the first look to the last."""
        return (self.last_ns - self.first_ns) / 1e9

    def threads_of(self, pid: int) -> tuple[Seen, ...]:
        """Return the threads of one process."""
        return tuple(one for one in self.threads if one.thread.pid == pid)

    def main_of(self, pid: int) -> Seen | None:
        """Return the main thread of one process."""
        return next((one for one in self.threads_of(pid) if one.thread.kind is ThreadKind.MAIN), None)

    def trait_of(self, seen: Seen) -> Trait | None:
        """Return what the looks together tell of a thread; None where it was not in all of them."""
        tid = seen.thread.tid
        return self.traits.get((seen.thread.pid, tid)) if is_known(tid) else None

    def rests(self, seen: Seen) -> bool:
        """Tell whether a thread hardly ran: a wait with a time-out wakes up, and goes on."""
        trait = self.trait_of(seen)
        if trait is None:
            return seen.thread.state not in ("R", "?")
        return trait.used_s <= RESTS_RATIO * self.seconds and not trait.ready

    def goes_round(self, seen: Seen) -> bool:
        """Tell whether a thread runs in one function alone, and is no long call of a C library.

        Those of torch and numpy let other threads have the interpreter meanwhile.
        """
        trait = self.trait_of(seen)
        return trait is not None and trait.goes_round and trait.gil_ratio > 0 and not self.rests(seen)


def find_corner(stacks: Iterable[Sequence[StackFrame]]) -> Corner | None:
    """Return the one function of the user in which all stacks end, whatever its line; None for several.

    Below it only the standard library may be: what calls torch or another library may be at work.
    """
    found: Corner | None = None
    for frames in stacks:
        inner = next((i for i in range(len(frames) - 1, -1, -1) if is_users(frames[i])), -1)
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
    """Return the newest looks that are enough for a picture, oldest first; () where there are too few."""
    for count in range(LEAST_ROUNDS, len(rounds) + 1):
        chosen = tuple(rounds[-count:])
        if chosen[-1].taken_ns - chosen[0].taken_ns >= LEAST_SPAN_S * 1e9:
            return chosen
    return ()


def came_late(rounds: Sequence[DumpRound], since_ns: int) -> bool:
    """Tell whether the newest look since then got no stack of a rank for want of time alone."""
    newest = [one for one in rounds if one.taken_ns > since_ns][-1:]
    return any(
        error.kind is ErrorKind.LATE and error.role is Role.RANK for one in newest for error in one.errors
    )


def draw_picture(rounds: Sequence[DumpRound], world_size: Applicable[int]) -> Picture | None:
    """Fold looks into a picture; None where no stack of a rank could be read."""
    last = rounds[-1]
    looks = [look for one in rounds for look in looks_of_round(one)]
    threads = see_threads(join_looks(looks, last.taken_ns / 1e9))
    if not any(
        one.thread.role is Role.RANK and one.thread.kind is ThreadKind.MAIN and is_known(one.sighting.frames)
        for one in threads
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


def _find_tolls(rounds: Sequence[DumpRound]) -> dict[int, Toll]:
    begun = {(one.pid, one.start_ticks): one.toll for one in rounds[0].processes}
    found = {}
    for one in rounds[-1].processes:
        before = begun.get((one.pid, one.start_ticks), NOT_APPLICABLE)
        if is_known(before) and is_known(one.toll):
            found[one.pid] = Toll(
                max(0, one.toll.cpu_ns - before.cpu_ns) / 1e9,
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
