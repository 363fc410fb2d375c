"""Lay out what the main threads of a job do, so that the one that differs can be found. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpmon.judge.dumps.describe import Doing, Wait, describe_stack
from tpmon.judge.dumps.fold_looks import Sighting
from tpmon.judge.stacks.frames import is_native, last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import DeadChild, DumpThread, Motion, WaitKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame

_LOCK = "lock or queue (futex)"
IN_COLLECTIVE = "a collective of backward"
_PICKLES = frozenset(("_object_to_tensor", "_tensor_to_object"))
_SWAPS = "deepspeed/runtime/swap_tensor/"
"""Parts of a collective that wait for no other rank: they pack an object, or read a file."""
_PIN_FILE = "torch/utils/data/_utils/pin_memory.py"
_QUEUE_FILES = ("/queue.py", "/multiprocessing/queues.py", "/multiprocessing/connection.py")
_DEVICE = re.compile(r"/dev/(?!shm/)")


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold one thread with what it does in words; ``stack`` is the same number for equal stacks."""

    sighting: Sighting
    doing: Doing
    stack: int = -1

    @property
    def thread(self) -> DumpThread:
        """Return who it is."""
        return self.sighting.thread

    @property
    def motion(self) -> Motion:
        """Return what it did between the looks."""
        return self.sighting.motion

    @property
    def is_stopped(self) -> bool:
        """Tell whether a signal, a debugger or a freezer holds it."""
        return self.thread.state in ("T", "t") or is_known(self.thread.frozen)


@dataclass(frozen=True, slots=True)
class Camp:
    """Hold ranks whose main threads do the same at the same line, in a collective of the same name."""

    doing: Doing
    ranks: tuple[Seen, ...]

    @property
    def waits_for_ranks(self) -> bool:
        """Tell whether they wait for other ranks."""
        return self.doing.wait is Wait.RANKS


@dataclass(frozen=True, slots=True)
class Scene:
    """Hold the ranks of a job by what they do, largest camp first, and the workers of each.

    ``unread`` are main threads of ranks whose stack could not be read, ``not_asked`` counts ranks of
    this machine that nobody asked for. ``dead`` are children that ended badly and nobody asked about, each
    with its host.
    """

    camps: tuple[Camp, ...]
    unread: tuple[DumpThread, ...]
    workers: tuple[Seen, ...]
    world_size: Applicable[int]
    not_asked: int = 0
    dead: tuple[tuple[str, DeadChild], ...] = ()
    pinning: tuple[Seen, ...] = ()
    """Threads that are at a batch, on its way into pinned memory."""

    @property
    def ranks(self) -> tuple[Seen, ...]:
        """Return the main thread of every rank that was read."""
        return tuple(seen for camp in self.camps for seen in camp.ranks)

    @property
    def local(self) -> int:
        """Count the ranks that are in the dump."""
        return len(self.ranks) + len(self.unread)

    @property
    def remote(self) -> int:
        """Count the ranks of the job that are on other machines."""
        here = self.local + self.not_asked
        return max(0, self.world_size - here) if is_known(self.world_size) else 0

    def workers_of(self, rank: Seen) -> tuple[Seen, ...]:
        """Return the main threads of a rank's loader workers."""
        host, pid = rank.thread.host, rank.thread.pid
        return tuple(
            seen for seen in self.workers if seen.thread.host == host and seen.thread.rank_pid == pid
        )

    def dead_of(self, rank: Seen) -> tuple[DeadChild, ...]:
        """Return the children of a rank that ended badly."""
        return tuple(
            one for host, one in self.dead if (host, one.parent) == (rank.thread.host, rank.thread.pid)
        )


def order_threads(thread: DumpThread) -> tuple[float, str, int, int, str]:
    """Order threads by rank, host, process and number, whatever order they came in."""
    rank = thread.rank if is_known(thread.rank) else float("inf")
    return rank, thread.host, thread.pid, thread.tid if is_known(thread.tid) else -1, thread.name


def see_threads(sightings: Iterable[Sighting]) -> tuple[Seen, ...]:
    """Put what each thread does into words, ordered by rank and process."""
    those = sorted(sightings, key=lambda one: order_threads(one.thread))
    talking = {(one.thread.host, one.thread.pid) for one in those if one.thread.kind is ThreadKind.COMM}
    ranks = {(one.thread.host, one.thread.pid) for one in those if one.thread.role is Role.RANK}
    where = talking if len(ranks) > 1 else talking & ranks
    # Hashing a stack is what costs most: once for each thread, and never again.
    numbers: dict[tuple[StackFrame, ...], int] = {}
    told: dict[tuple[int, Role, ThreadKind], Doing] = {}
    where -= {(one.thread.host, one.thread.pid) for one in those if _works_in_engine(one)}
    return tuple(_see(one, where, numbers, told) for one in those)


def _works_in_engine(sighting: Sighting) -> bool:
    """Tell whether a thread of the engine runs Python for its backward pass, and not a wait for ranks."""
    frames = sighting.frames
    if sighting.thread.kind is not ThreadKind.AUTOGRAD or not is_known(frames):
        return False
    if all(is_native(one.file) for one in frames):
        return False
    return _weigh_wait(sighting, _describe_engine(frames)).wait is not Wait.RANKS


def _describe_engine(frames: tuple[StackFrame, ...]) -> Doing:
    """Say what a thread of the engine does: what its main thread would do itself without a card."""
    return describe_stack(Role.RANK, ThreadKind.MAIN, frames)


def _weigh_wait(sighting: Sighting, doing: Doing) -> Doing:
    """Take back that a thread waits for ranks where it reads a file, or packs what it sends, meanwhile."""
    if doing.wait is not Wait.RANKS:
        return doing
    thread, frames = sighting.thread, sighting.frames
    target = thread.waits_on
    at_file = is_known(target) and target.kind is WaitKind.FILE
    if is_known(target) and _DEVICE.match(target.name):
        return doing  # in a driver: of the card, or of the network
    inner = frames[-1] if is_known(frames) and frames else None
    works = inner is not None and (last_name(inner.function) in _PICKLES or _SWAPS in inner.file)
    return replace(doing, wait=Wait.NOTHING) if thread.state == "D" or at_file or works else doing


def _see(
    sighting: Sighting,
    talking: set[tuple[str, int]],
    numbers: dict[tuple[StackFrame, ...], int],
    told: dict[tuple[int, Role, ThreadKind], Doing],
) -> Seen:
    thread, frames = sighting.thread, sighting.frames
    if not is_known(frames):
        words = f"native thread {thread.name}" if thread.kind is not ThreadKind.MAIN else "stack not read"
        return Seen(sighting, Doing(words, Wait.NOTHING, Phase.OTHER, (words, "", 0)))
    stack = numbers.setdefault(frames, len(numbers))
    key = (stack, thread.role, thread.kind)
    doing = told.get(key)
    if doing is None:
        doing = told[key] = describe_stack(thread.role, thread.kind, frames)
    if (
        doing.phase is Phase.BACKWARD
        and thread.kind is ThreadKind.MAIN
        and thread.waits_for == _LOCK
        and (thread.host, thread.pid) in talking
    ):
        # The engine calls the reducer's hooks in C++: a wait for gradients shows as a lock alone.
        where = doing.text.removeprefix(Phase.BACKWARD.value).strip()
        text = f"{IN_COLLECTIVE} {where}".strip()
        doing = replace(doing, text=text, wait=Wait.RANKS, place=("collective", *doing.place[1:]))
    return Seen(sighting, _weigh_wait(sighting, doing), stack)


def is_pinning(seen: Seen) -> bool:
    """Tell whether a thread puts a batch into pinned memory, and does not wait at one of its queues."""
    frames = seen.sighting.frames
    if seen.thread.kind is not ThreadKind.PIN or not is_known(frames):
        return False
    steps = [index for index, one in enumerate(frames) if one.file.endswith(_PIN_FILE)]
    at_queue = any(one.file.endswith(_QUEUE_FILES) for one in frames)
    return bool(steps) and len(frames) - steps[0] > 2 and not at_queue


def _is_main_of(seen: Seen, role: Role) -> bool:
    return seen.thread.role is role and seen.thread.kind is ThreadKind.MAIN


def _find_engines(seen: Iterable[Seen]) -> dict[tuple[str, int], Seen]:
    """Return of each process the thread of the engine that works, before others one that moves."""
    found: dict[tuple[str, int], Seen] = {}
    for one in seen:
        key = (one.thread.host, one.thread.pid)
        if _works_in_engine(one.sighting) and (key not in found or one.motion is Motion.MOVING):
            found[key] = one
    return found


def _stand_in(main: Seen, engines: dict[tuple[str, int], Seen]) -> Seen:
    """Return what keeps a rank: while its main thread waits in backward for the engine, that does."""
    engine = engines.get((main.thread.host, main.thread.pid))
    frames = engine.sighting.frames if engine is not None else NOT_APPLICABLE
    waits = main.doing.phase is Phase.BACKWARD and main.thread.waits_for == _LOCK
    if engine is None or not waits or main.is_stopped or not is_known(frames):
        return main
    return replace(engine, doing=_weigh_wait(engine.sighting, _describe_engine(frames)))


def _camp_of(seen: Seen) -> tuple[str, str, int]:
    """Return what is equal for ranks of one camp.

    The one line of the user that starts a framework's loop makes many collectives: those that wait for
    others are told apart by the operation, whose words hold the line, and not by where in its library.
    """
    doing = seen.doing
    return (doing.place[0], doing.text, 0) if doing.wait is Wait.RANKS else doing.place


def set_scene(
    seen: Sequence[Seen],
    world_size: Applicable[int],
    not_asked: int = 0,
    dead: Sequence[tuple[str, DeadChild]] = (),
) -> Scene:
    """Divide the ranks into camps by the line of the user's code at which they do the same."""
    engines = _find_engines(seen)
    ranks = [_stand_in(one, engines) for one in seen if _is_main_of(one, Role.RANK)]
    read = [one for one in ranks if is_known(one.sighting.frames)]
    sizes = Counter(map(_camp_of, read))
    by_place: dict[tuple[str, str, int], list[Seen]] = {}
    for one in read:
        by_place.setdefault(_camp_of(one), []).append(one)
    camps = tuple(
        Camp(those[0].doing, tuple(those))
        for place, those in sorted(by_place.items(), key=lambda entry: (-sizes[entry[0]], entry[0]))
    )
    return Scene(
        camps=camps,
        unread=tuple(one.thread for one in ranks if not is_known(one.sighting.frames)),
        workers=tuple(one for one in seen if _is_main_of(one, Role.WORKER)),
        world_size=world_size,
        not_asked=not_asked,
        dead=tuple(dead),
        pinning=tuple(filter(is_pinning, seen)),
    )
