"""Describe what each thread of a dump does, and divide the ranks by where they stand. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tpmon.judge.dumps.describe import StackDoing, describe_stack
from tpmon.judge.dumps.merge import Sighting
from tpmon.judge.stacks.classify import is_native, is_users, last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import DeadChild, DumpThread, Motion, OtherEnd, WaitKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import name_rank, name_ranks, say_wait
from tpmon.model.waits import WaitReason, is_wait, is_wait_in

IN_COLLECTIVE = "a collective of backward"
_PICKLES = frozenset(("_object_to_tensor", "_tensor_to_object"))
_SWAPS = "deepspeed/runtime/swap_tensor/"
"""Parts of a collective that wait for no other rank: they pack an object, or read a file."""
_PIN_FILE = "torch/utils/data/_utils/pin_memory.py"
_QUEUE_FILES = ("/queue.py", "/multiprocessing/queues.py", "/multiprocessing/connection.py")
_DEVICE = re.compile(r"/dev/(?!shm/)")


@dataclass(frozen=True, slots=True)
class ThreadSeen:
    """Hold one thread and what it does; ``stack`` is the same number for equal stacks."""

    sighting: Sighting
    doing: StackDoing
    stack: int = -1

    @property
    def thread(self) -> DumpThread:
        """Return who it is."""
        return self.sighting.thread

    @property
    def process(self) -> tuple[str, int]:
        """Return its process: host and PID."""
        return self.thread.host, self.thread.pid

    @property
    def is_read(self) -> bool:
        """Tell whether its stack was read."""
        return is_known(self.sighting.frames)

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """Return its stack, outermost frame first; () where it was not read."""
        return known_or(self.sighting.frames, ())

    @property
    def motion(self) -> Motion:
        """Return what it did between the dumps."""
        return self.sighting.motion

    @property
    def ends(self) -> tuple[OtherEnd, ...]:
        """Return who can end its wait: who has the other end, or the lock; () where that is not known."""
        target = self.thread.waits_on
        return known_or(target.others, ()) if is_known(target) else ()

    @property
    def is_stopped(self) -> bool:
        """Tell whether a signal, a debugger or a freezer holds it."""
        return self.thread.state in ("T", "t") or is_known(self.thread.frozen)


@dataclass(frozen=True, slots=True)
class Camp:
    """Hold ranks whose main threads do the same at the same line, in a collective of the same name."""

    doing: StackDoing
    ranks: tuple[ThreadSeen, ...]


def count_elsewhere(world_size: Applicable[int], here: int) -> int:
    """Count the ranks of a job that are on other machines; 0 where its size is not known."""
    return max(0, known_or(world_size, 0) - here)


@dataclass(frozen=True, slots=True)
class DumpScene:
    """Hold the ranks of a job by what they do, largest camp first, and the workers of each.

    ``unread`` are main threads of ranks whose stack could not be read; ``not_asked`` counts local ranks that
    were not asked for; ``dead`` are children that ended badly and were not reaped, with their hosts.
    """

    camps: tuple[Camp, ...]
    unread: tuple[DumpThread, ...]
    workers: tuple[ThreadSeen, ...]
    world_size: Applicable[int]
    not_asked: int = 0
    dead: tuple[tuple[str, DeadChild], ...] = ()
    pinning: tuple[ThreadSeen, ...] = ()
    """Threads that move a batch into pinned memory."""

    @property
    def ranks(self) -> tuple[ThreadSeen, ...]:
        """Return the main thread of every rank that was read."""
        return tuple(seen for camp in self.camps for seen in camp.ranks)

    @property
    def local(self) -> int:
        """Count the ranks that are in the dump."""
        return len(self.ranks) + len(self.unread)

    @property
    def remote(self) -> int:
        """Count the ranks of the job that are on other machines."""
        return count_elsewhere(self.world_size, self.local + self.not_asked)

    def workers_of(self, rank: ThreadSeen) -> tuple[ThreadSeen, ...]:
        """Return the main threads of a rank's loader workers."""
        return tuple(
            seen for seen in self.workers if (seen.thread.host, seen.thread.rank_pid) == rank.process
        )


def order_threads(thread: DumpThread) -> tuple[float, str, int, int, str]:
    """Order threads by rank, host, process and number, whatever order they came in."""
    rank = thread.rank if is_known(thread.rank) else float("inf")
    return rank, thread.host, thread.pid, thread.tid if is_known(thread.tid) else -1, thread.name


def see_threads(sightings: Iterable[Sighting]) -> tuple[ThreadSeen, ...]:
    """Describe what each thread does, ordered by rank and process."""
    those = sorted(sightings, key=lambda one: order_threads(one.thread))
    talking = {(one.thread.host, one.thread.pid) for one in those if one.thread.kind is ThreadKind.COMM}
    ranks = {(one.thread.host, one.thread.pid) for one in those if one.thread.role is Role.RANK}
    where = talking if len(ranks) > 1 else talking & ranks
    # Hashing a stack costs most: do it once for each thread.
    numbers: dict[tuple[StackFrame, ...], int] = {}
    told: dict[tuple[int, Role, ThreadKind], StackDoing] = {}
    where -= {(one.thread.host, one.thread.pid) for one in those if _works_in_engine(one)}
    return tuple(_see(one, where, numbers, told) for one in those)


def _works_in_engine(sighting: Sighting) -> bool:
    """Tell whether an engine thread runs Python for its backward pass, and does not wait for ranks."""
    frames = sighting.frames
    if sighting.thread.kind is not ThreadKind.AUTOGRAD or not is_known(frames):
        return False
    if all(is_native(one.file) for one in frames):
        return False
    return _weigh_wait(sighting, _describe_engine(frames)).wait is not WaitReason.COLLECTIVE


def _describe_engine(frames: tuple[StackFrame, ...]) -> StackDoing:
    """Describe an engine thread as the main thread that would do the same without a card."""
    return describe_stack(Role.RANK, ThreadKind.MAIN, frames)


def _weigh_wait(sighting: Sighting, doing: StackDoing) -> StackDoing:
    """Drop the wait for ranks of a thread that meanwhile reads a file, or packs what it sends."""
    if doing.wait is not WaitReason.COLLECTIVE:
        return doing
    thread, frames = sighting.thread, sighting.frames
    target = thread.waits_on
    at_file = is_known(target) and target.kind is WaitKind.FILE
    if is_known(target) and _DEVICE.match(target.name):
        return doing  # in a driver: of the card, or of the network
    inner = frames[-1] if is_known(frames) and frames else None
    works = inner is not None and (last_name(inner.function) in _PICKLES or _SWAPS in inner.file)
    return replace(doing, wait=WaitReason.OTHER) if thread.state == "D" or at_file or works else doing


def _see(
    sighting: Sighting,
    talking: set[tuple[str, int]],
    numbers: dict[tuple[StackFrame, ...], int],
    told: dict[tuple[int, Role, ThreadKind], StackDoing],
) -> ThreadSeen:
    thread, frames = sighting.thread, sighting.frames
    if not is_known(frames):
        words = f"native thread {thread.name}" if thread.kind is not ThreadKind.MAIN else "stack not read"
        return ThreadSeen(sighting, StackDoing(words, WaitReason.OTHER, Phase.OTHER, (words, "", 0)))
    stack = numbers.setdefault(frames, len(numbers))
    key = (stack, thread.role, thread.kind)
    doing = told.get(key)
    if doing is None:
        doing = told[key] = describe_stack(thread.role, thread.kind, frames)
    if (
        doing.phase is Phase.BACKWARD
        and thread.kind is ThreadKind.MAIN
        and is_wait(thread.waits_for, WaitReason.LOCK)
        and (thread.host, thread.pid) in talking
    ):
        # The engine calls the reducer's hooks in C++: a wait for gradients shows only as a lock.
        where = doing.text.removeprefix(Phase.BACKWARD.value).strip()
        text = f"{IN_COLLECTIVE} {where}".strip()
        place, site = ("collective", *doing.place[1:]), (IN_COLLECTIVE, *doing.site)
        doing = replace(doing, text=text, wait=WaitReason.COLLECTIVE, place=place, site=site)
    return ThreadSeen(sighting, _weigh_wait(sighting, doing), stack)


def is_pinning(seen: ThreadSeen) -> bool:
    """Tell whether a thread moves a batch into pinned memory, and does not wait at a queue."""
    if seen.thread.kind is not ThreadKind.PIN:
        return False
    steps = [index for index, one in enumerate(seen.frames) if one.file.endswith(_PIN_FILE)]
    at_queue = any(one.file.endswith(_QUEUE_FILES) for one in seen.frames)
    return bool(steps) and len(seen.frames) - steps[0] > 2 and not at_queue


def _is_main_of(seen: ThreadSeen, role: Role) -> bool:
    return seen.thread.role is role and seen.thread.kind is ThreadKind.MAIN


def _find_engines(seen: Iterable[ThreadSeen]) -> dict[tuple[str, int], ThreadSeen]:
    found: dict[tuple[str, int], ThreadSeen] = {}
    for one in seen:
        if _works_in_engine(one.sighting) and (one.process not in found or one.motion is Motion.MOVING):
            found[one.process] = one
    return found


def _stand_in(main: ThreadSeen, engines: dict[tuple[str, int], ThreadSeen]) -> ThreadSeen:
    """Return what keeps a rank: the engine's thread while its main thread waits for that in backward."""
    engine = engines.get(main.process)
    waits = main.doing.phase is Phase.BACKWARD and is_wait(main.thread.waits_for, WaitReason.LOCK)
    if engine is None or not waits or main.is_stopped:
        return main
    return replace(engine, doing=_weigh_wait(engine.sighting, _describe_engine(engine.frames)))


def _camp_of(seen: ThreadSeen) -> tuple[object, ...]:
    """Return what is equal for ranks of one camp.

    One user line that starts a framework's loop makes many collectives: they are told apart by the operation,
    whose words hold the line, and not by the place in the library.
    """
    doing = seen.doing
    return (doing.place[0], *doing.site) if doing.wait is WaitReason.COLLECTIVE else doing.place


def find_camps(
    ranks: Iterable[ThreadSeen], camp_of: Callable[[ThreadSeen], object] = lambda one: one.doing.site
) -> list[list[ThreadSeen]]:
    """Divide ranks by place, the largest camp first."""
    camps: dict[object, list[ThreadSeen]] = {}
    for one in ranks:
        camps.setdefault(camp_of(one), []).append(one)
    return sorted(camps.values(), key=len, reverse=True)


def set_scene(
    seen: Sequence[ThreadSeen],
    world_size: Applicable[int],
    not_asked: int = 0,
    dead: Sequence[tuple[str, DeadChild]] = (),
) -> DumpScene:
    """Divide the ranks into camps by the line of the user's code at which they do the same."""
    engines = _find_engines(seen)
    ranks = [_stand_in(one, engines) for one in seen if _is_main_of(one, Role.RANK)]
    camps = find_camps((one for one in ranks if one.is_read), _camp_of)
    return DumpScene(
        camps=tuple(Camp(those[0].doing, tuple(those)) for those in camps),
        unread=tuple(one.thread for one in ranks if not one.is_read),
        workers=tuple(one for one in seen if _is_main_of(one, Role.WORKER)),
        world_size=world_size,
        not_asked=not_asked,
        dead=tuple(dead),
        pinning=tuple(filter(is_pinning, seen)),
    )


MOST_CAMPS = 3
_STILL = (Motion.FROZEN, Motion.ONCE, Motion.SLOW, Motion.MOVING)
_OWN_ENDS = frozenset((WaitReason.RUNNING, WaitReason.SLEEP))


def worst_first(ranks: Sequence[ThreadSeen]) -> tuple[ThreadSeen, ...]:
    """Put still ranks first, of these waits that do not end, then uninterruptible ones, then lone ones."""
    alike = Counter(seen.doing.place for seen in ranks)

    def order(seen: ThreadSeen) -> tuple[int, bool, bool, int]:
        held = seen.thread.state != "D"
        return _STILL.index(seen.motion), _may_end(seen), held, alike[seen.doing.place]

    return tuple(sorted(ranks, key=order))


def _may_end(seen: ThreadSeen) -> bool:
    """Tell whether what a rank does may end by itself."""
    doing, thread = seen.doing, seen.thread
    takes_long = doing.phase in (*SLOW_PHASES, Phase.LOGGING) or doing.wait is WaitReason.DEVICE
    return takes_long or thread.state == "R" or is_wait_in(thread.waits_for, _OWN_ENDS)


def say_place(seen: ThreadSeen) -> str:
    """Say where a thread is and what it waits for: "is in decode data.py:88, blocked in a read of ..."."""
    doing, thread = seen.doing, seen.thread
    if doing.wait is WaitReason.COLLECTIVE:
        return _say_at(doing, doing.text)
    if doing.wait is WaitReason.BATCH:
        return f"waits for a batch ({doing.text.removeprefix('data wait: ')})"
    if seen.is_stopped or is_known(thread.waits_on) or not is_wait(thread.waits_for, WaitReason.LOCK):
        return _say_at(doing, doing.text, say_wait(thread))
    return _say_at(doing, doing.text, "" if doing.wait is WaitReason.CALL else "waiting for a lock")


def _say_at(doing: StackDoing, *told: str) -> str:
    verb = "waits in" if doing.wait is WaitReason.COLLECTIVE else "" if doing.has_verb else "is in"
    return f"{verb} {', '.join(filter(None, told))}".strip()


def say_waiting(waiting: Sequence[ThreadSeen], local: int) -> str:
    """Say where those are that wait: "3 of 4 ranks wait in all_reduce train.py:40"."""
    count = len(waiting)
    return f"{count} of {local} ranks {'waits' if count == 1 else 'wait'} in {say_places(waiting)}"


def say_places(ranks: Iterable[ThreadSeen]) -> str:
    """Say where ranks are, each place once."""
    return " or ".join(dict.fromkeys(seen.doing.text for seen in ranks))


def say_where(scene: DumpScene) -> str:
    """Say where the ranks of a job are, whoever is to blame: at most the first places; "" without a rank."""
    ranks, camps = scene.ranks, scene.camps
    away = [seen for seen in ranks if seen.doing.wait is not WaitReason.COLLECTIVE]
    if scene.unread and ranks and not away:
        return say_waiting(ranks, scene.local)
    if len(ranks) < 2:
        return "".join(f"{name_rank(seen.thread)} {say_place(seen)}" for seen in ranks)
    waits = 0 < len(away) < len(ranks)
    odd = away if waits else camps[1].ranks if len(camps) == 2 else ()
    if len(odd) == 1 and (waits or len(ranks) > 2):
        norm = [seen for seen in ranks if seen is not odd[0]]
        are = f"{len(norm)} of {scene.local} ranks are in {norm[0].doing.text}"
        head = say_waiting(norm, scene.local) if norm[0].doing.wait is WaitReason.COLLECTIVE else are
        return f"{head}; {name_rank(odd[0].thread)} {say_place(odd[0])}"
    if len(camps) > 1:
        return say_camps((camp.ranks for camp in camps), MOST_CAMPS)
    whose = " asked for" if scene.not_asked else " here" if scene.remote else ""
    who = f"{len(ranks)} of {scene.local} ranks" if scene.unread else f"all {len(ranks)} ranks{whose}"
    return f"{who} {'are' if away else 'wait'} in {camps[0].doing.text}"


def say_camps(camps: Iterable[Sequence[ThreadSeen]], most: int | None = None) -> str:
    """Say which ranks are at which place, each of the first so many places."""
    said = [f"{name_ranks(seen.thread for seen in camp)} in {camp[0].doing.text}" for camp in camps]
    rest = 0 if most is None else len(said) - most
    more = [f"the rest in {rest} other {'place' if rest == 1 else 'places'}"] if rest > 0 else []
    return ", ".join((*said[:most], *more))


SLOW_PHASES = (Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE, Phase.LOAD, Phase.IMPORT)
_AWAITS_ONE = re.compile(
    r"barrier|/rendezvous|init_process_group|wait_for_everyone|main_process_first"
    r"|/utils/store\.py:|accelerate/state\.py:|_object(?:_list)?$|_object_to_tensor|torch/distributed/checkpoint/"
)
"""Calls by which ranks wait for one of them, as "file:function"."""


def awaits_one(waiting: Iterable[ThreadSeen]) -> bool:
    """Tell whether some wait for what one rank does alone: a save, an evaluation, a start, an object."""
    return any(
        seen.doing.phase in SLOW_PHASES
        or any(
            _AWAITS_ONE.search(f"{one.file}:{last_name(one.function)}")
            for one in seen.frames
            if not is_users(one)
        )
        for seen in waiting
    )
