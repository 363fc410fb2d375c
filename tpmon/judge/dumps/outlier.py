"""Find the rank or worker that is not where the others are, and waits that may last long. Pure.

The largest group is the norm. Ranks in a collective wait for those outside it, so they are the norm against
as many others, and against any number that stand still. If all wait alike, nobody is accused: the cause is on
another machine, in the network, or in something that all of them wait for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpmon.judge.dumps.describe import StackDoing, describe_stack
from tpmon.judge.dumps.merge import Sighting
from tpmon.judge.stacks.classify import is_native, is_users, last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.model.dump import DeadChild, DumpError, DumpThread, Motion, OddOne, WaitKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import ONCE_HINT, name_process, name_rank, name_ranks, say_motion, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.waits import WaitReason, is_wait

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
    def is_stopped(self) -> bool:
        """Tell whether a signal, a debugger or a freezer holds it."""
        return self.thread.state in ("T", "t") or is_known(self.thread.frozen)


@dataclass(frozen=True, slots=True)
class Camp:
    """Hold ranks whose main threads do the same at the same line, in a collective of the same name."""

    doing: StackDoing
    ranks: tuple[ThreadSeen, ...]

    @property
    def waits_for_ranks(self) -> bool:
        """Tell whether they wait for other ranks."""
        return self.doing.wait is WaitReason.COLLECTIVE


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
        here = self.local + self.not_asked
        return max(0, self.world_size - here) if is_known(self.world_size) else 0

    def workers_of(self, rank: ThreadSeen) -> tuple[ThreadSeen, ...]:
        """Return the main threads of a rank's loader workers."""
        return tuple(
            seen for seen in self.workers if (seen.thread.host, seen.thread.rank_pid) == rank.process
        )

    def dead_of(self, rank: ThreadSeen) -> tuple[DeadChild, ...]:
        """Return the children of a rank that ended badly."""
        return tuple(one for host, one in self.dead if (host, one.parent) == rank.process)


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


def set_scene(
    seen: Sequence[ThreadSeen],
    world_size: Applicable[int],
    not_asked: int = 0,
    dead: Sequence[tuple[str, DeadChild]] = (),
) -> DumpScene:
    """Divide the ranks into camps by the line of the user's code at which they do the same."""
    engines = _find_engines(seen)
    ranks = [_stand_in(one, engines) for one in seen if _is_main_of(one, Role.RANK)]
    read = [one for one in ranks if one.is_read]
    by_place: dict[tuple[object, ...], list[ThreadSeen]] = {}
    for one in read:
        by_place.setdefault(_camp_of(one), []).append(one)
    camps = tuple(
        Camp(those[0].doing, tuple(those)) for those in sorted(by_place.values(), key=len, reverse=True)
    )
    return DumpScene(
        camps=camps,
        unread=tuple(one.thread for one in ranks if not one.is_read),
        workers=tuple(one for one in seen if _is_main_of(one, Role.WORKER)),
        world_size=world_size,
        not_asked=not_asked,
        dead=tuple(dead),
        pinning=tuple(filter(is_pinning, seen)),
    )


MOST_CAMPS = 3
MOST_DEAD = 2


@dataclass(frozen=True, slots=True)
class OutlierAnswer:
    """Hold who is odd, if anybody is, and one sentence that says where everybody is."""

    odd: Applicable[OddOne]
    summary: str


def find_odd(scene: DumpScene, errors: Sequence[DumpError] = ()) -> OutlierAnswer:
    """Find the odd one out among the main threads of a job."""
    ranks = scene.ranks
    if not ranks:
        if scene.unread:
            return OutlierAnswer(NOT_APPLICABLE, f"no rank could be read{_say_unread(scene, errors)}")
        if scene.not_asked:
            return OutlierAnswer(NOT_APPLICABLE, _say_workers(scene))
        return OutlierAnswer(NOT_APPLICABLE, "no rank was found")
    norm, odd = divide(scene)
    unread = f"{_say_dead(scene)}{_say_unread(scene, errors)}"
    if not odd:
        return _answer_alike(scene, unread)
    if norm is None:
        all_wait = all(camp.waits_for_ranks for camp in scene.camps)
        remote = _say_remote(scene) if all_wait else ""
        return OutlierAnswer(NOT_APPLICABLE, f"{_say_camps(scene)}{remote}{unread}")
    if all(seen.motion is Motion.MOVING for seen in norm.ranks):
        return OutlierAnswer(NOT_APPLICABLE, f"the ranks move: {_say_camps(scene)}{unread}")
    first = odd[0]
    head = f"{_say_norm(norm, scene)}; "
    worker, held = _find_worker(first, scene)
    more = f"; {name_ranks(seen.thread for seen in odd[1:])} not there either" if len(odd) > 1 else ""
    others = tuple(seen.thread.pid for seen in odd[1:])
    several = len({seen.thread.host for seen in ranks}) > 1
    said = f"{name_rank(first.thread, with_host=several)} {_say_place(first)}"
    hint = ONCE_HINT if first.motion is Motion.ONCE else ""
    summary = f"{head}{said}{f'; {held}' if held else ''}{more}{unread}{hint}"
    return OutlierAnswer(_name(worker or first, others), summary)


def _say_workers(scene: DumpScene) -> str:
    read = [seen for seen in scene.workers if seen.is_read]
    said = [f"{name_process(seen.thread)} {_say_place(seen)}" for seen in read[:MOST_CAMPS]]
    rest = len(read) - MOST_CAMPS
    more = [f"{rest} more {'worker' if rest == 1 else 'workers'}"] if rest > 0 else []
    return ", ".join((*said, *more)) or "no rank was asked for"


def divide(scene: DumpScene) -> tuple[Camp | None, tuple[ThreadSeen, ...]]:
    """Return the norm and the ranks outside it; no norm where none is clearly the larger part."""
    stopped = tuple(seen for seen in scene.ranks if seen.is_stopped)
    if 0 < len(stopped) < len(scene.ranks):
        camps = [camp for camp in scene.camps if not all(seen.is_stopped for seen in camp.ranks)]
        return camps[0], stopped
    if len(scene.camps) < 2:
        return None, ()
    total = len(scene.ranks)
    waiting = [camp for camp in scene.camps if camp.waits_for_ranks]
    first, second = scene.camps[0], scene.camps[1]
    if waiting:
        outside = tuple(seen for seen in scene.ranks if seen.doing.wait is not WaitReason.COLLECTIVE)
        # A rank that waits for its card may be in the same collective: its host waits only for the card.
        hosts = tuple(seen for seen in outside if seen.doing.wait is not WaitReason.DEVICE)
        still = all(seen.motion in (Motion.FROZEN, Motion.SLOW) for seen in hosts)
        if hosts and (still or 2 * len(hosts) <= total):
            return waiting[0], worst_first(hosts)
        if outside and 2 * len(outside) <= total:
            return waiting[0], worst_first(outside)
        if not outside and scene.remote:
            return None, tuple(seen for camp in scene.camps[1:] for seen in camp.ranks)
    if 2 * len(first.ranks) > total and len(first.ranks) > len(second.ranks):
        return first, worst_first(tuple(seen for camp in scene.camps[1:] for seen in camp.ranks))
    return None, tuple(seen for camp in scene.camps[1:] for seen in camp.ranks)


_STILL = (Motion.FROZEN, Motion.ONCE, Motion.SLOW, Motion.MOVING)


def worst_first(ranks: Sequence[ThreadSeen]) -> tuple[ThreadSeen, ...]:
    """Put ranks that did not move first, of these those that nothing excuses, then uninterruptible ones."""

    def order(seen: ThreadSeen) -> tuple[int, bool, bool]:
        return _STILL.index(seen.motion), bool(say_excuse(seen)), seen.thread.state != "D"

    return tuple(sorted(ranks, key=order))


def say_excuse(seen: ThreadSeen) -> str:
    """Say why what a rank does may end by itself, "" where nothing speaks for it."""
    phase, thread = seen.doing.phase, seen.thread
    if phase in (*SLOW_PHASES, Phase.LOGGING):
        return f"{phase.value} may take long"
    if thread.state == "R" or is_wait(thread.waits_for, WaitReason.RUNNING):
        return "it computes"
    if seen.doing.wait is WaitReason.DEVICE:
        return "it waits for its card"
    return "a sleep ends by itself" if is_wait(thread.waits_for, WaitReason.SLEEP) else ""


def _name(seen: ThreadSeen, others: tuple[int, ...]) -> OddOne:
    thread = seen.thread
    return OddOne(
        host=thread.host,
        pid=thread.pid,
        rank=thread.rank,
        worker=thread.worker,
        doing=seen.doing.text,
        waits=say_wait(thread),
        motion=seen.motion,
        since_s=seen.sighting.since_s,
        others=others,
    )


def _say_place(seen: ThreadSeen) -> str:
    """Say where one rank is: "is in decode data.py:88, blocked in a read of ..."."""
    # The place already says that it waits for a batch.
    waits = "" if seen.doing.wait is WaitReason.BATCH and not seen.is_stopped else say_wait(seen.thread)
    motion = say_motion(seen.motion, seen.sighting.since_s)
    told = (_say_doing(seen.doing.text, seen.doing.wait), waits, motion)
    verb = "waits in" if seen.doing.wait is WaitReason.COLLECTIVE else "" if seen.doing.has_verb else "is in"
    return f"{verb} {', '.join(word for word in told if word)}".strip()


def _say_doing(text: str, wait: WaitReason, whose: str = "its") -> str:
    return (
        f"{whose} wait for a batch ({text.removeprefix('data wait: ')})" if wait is WaitReason.BATCH else text
    )


def _say_all_at(who: str, count: int, doing: StackDoing) -> str:
    """Say where several ranks are: "7 of 8 ranks wait in all_reduce (ddp backward)"."""
    waits = doing.wait is WaitReason.COLLECTIVE
    verb = ("waits" if waits else "is") if count == 1 else "wait" if waits else "are"
    return f"{who} {verb} in {_say_doing(doing.text, doing.wait, 'its' if count == 1 else 'their')}"


def _say_norm(norm: Camp, scene: DumpScene) -> str:
    waiting = [camp for camp in scene.camps if camp.waits_for_ranks]
    if norm.waits_for_ranks and len(waiting) < len(scene.camps):
        # Those in another collective wait for the same ranks.
        texts = dict.fromkeys(camp.doing.text for camp in waiting)
        count = sum(len(camp.ranks) for camp in waiting)
        return f"{count} of {scene.local} ranks {'waits' if count == 1 else 'wait'} in {' or '.join(texts)}"
    return _say_all_at(f"{len(norm.ranks)} of {scene.local} ranks", len(norm.ranks), norm.doing)


def _say_camps(scene: DumpScene) -> str:
    shown = [f"{name_ranks(seen.thread for seen in camp.ranks)} in {camp.doing.text}" for camp in scene.camps]
    if len(shown) > MOST_CAMPS:
        rest = len(shown) - MOST_CAMPS
        shown = [*shown[:MOST_CAMPS], f"the rest in {rest} other {'place' if rest == 1 else 'places'}"]
    return ", ".join(shown)


def _say_unread(scene: DumpScene, errors: Sequence[DumpError]) -> str:
    if not scene.unread:
        return ""
    reasons = {(error.host, error.pid): error.reason for error in errors}
    known = [reason for one in scene.unread if (reason := reasons.get((one.host, one.pid)))]
    why = f" ({known[0]})" if known else ""
    return f"; {name_ranks(scene.unread)} could not be read{why}"


def _say_dead(scene: DumpScene) -> str:
    """Say which processes of ranks are dead: "; process 4712 (python) of rank 0 is dead: SIGKILL"."""
    told = [
        f"process {one.pid} ({one.name}) of {name_rank(rank.thread)} is dead: {one.how}"
        for rank in scene.ranks
        for one in scene.dead_of(rank)
    ]
    more = [f"{len(told) - MOST_DEAD} more dead"] if len(told) > MOST_DEAD else []
    return "".join(f"; {one}" for one in (*told[:MOST_DEAD], *more))


def _answer_alike(scene: DumpScene, unread: str) -> OutlierAnswer:
    """Say where all ranks are; only a worker can be odd then."""
    first = scene.ranks[0]
    count = len(scene.ranks)
    wait = first.doing.wait
    if scene.local == 1:
        said = f"{name_rank(first.thread)} {_say_place(first)}"
    else:
        who = f"all {count} ranks here" if scene.remote else f"all {count} ranks"
        who = f"all {count} ranks asked for" if scene.not_asked else who
        who = f"{count} of {scene.local} ranks" if scene.unread else who
        said = f"{_say_all_at(who, count, first.doing)}{_say_common(scene)}"
    worker, held = _find_worker(first, scene) if count == 1 else (None, "")
    if held:
        said += f"; {held}"
    if scene.remote:
        said += _say_remote(scene)
    elif wait is WaitReason.COLLECTIVE and not scene.unread and not scene.not_asked and count > 1:
        said += "; none is outside of it: look at the network, or at ranks that ended"
        # Ranks that a program started itself have no WORLD_SIZE.
        said += ", or that run elsewhere" if isinstance(scene.world_size, Missing) else ""
    odd = _name(worker, ()) if worker else NOT_APPLICABLE
    hint = ONCE_HINT if first.motion is Motion.ONCE else ""
    return OutlierAnswer(odd, f"{said}{unread}{hint}")


def _say_remote(scene: DumpScene) -> str:
    """Say that ranks are on other machines, and how to see where they are; "" where none is."""
    if not scene.remote:
        return ""
    noun = "rank is elsewhere or has ended" if scene.remote == 1 else "ranks are elsewhere or have ended"
    return f"; {scene.remote} {noun}: run tpmon dump there, and tpmon fold on the results"


def _say_common(scene: DumpScene) -> str:
    times = [seen.sighting.since_s for seen in scene.ranks]
    known = [time for time in times if is_known(time)]
    if known and len(known) == len(times):
        return f", frozen for at least {format_seconds(min(known))}"
    motions = {seen.motion for seen in scene.ranks}
    return f", {motions.pop().value}" if len(motions) == 1 and Motion.ONCE not in motions else ""


def _find_worker(rank: ThreadSeen, scene: DumpScene) -> tuple[ThreadSeen | None, str]:
    """Find the worker that a rank waits for, and say what its workers do; "" where it waits for none."""
    if rank.doing.wait is not WaitReason.BATCH:
        return None, ""
    workers = scene.workers_of(rank)
    died = bool(scene.dead_of(rank))
    if not workers:
        return None, "" if died else "no worker of it was seen"
    read = [seen for seen in workers if seen.is_read]
    busy = worst_first(tuple(seen for seen in read if seen.doing.wait is not WaitReason.WORK))
    if not read:
        return None, "its workers could not be read"
    pin = next((one for one in scene.pinning if one.process == rank.process), None)
    if not busy and pin is not None:
        return None, f"its thread {pin.thread.name} {_say_place(pin)}, and its workers wait for work"
    if not busy:
        alone, several = (" that lives", " that live") if died else ("", "")
        only = f"its worker{alone} waits" if len(read) == 1 else f"all its {len(read)} workers{several} wait"
        return None, f"{only} for work too{'' if died else ': a batch was lost on the way'}"
    first = busy[0]
    if len(busy) == len(workers) and len({seen.doing.place for seen in busy}) == 1 and len(workers) > 1:
        return None, f"all its {len(workers)} workers are in {first.doing.text}, {say_wait(first.thread)}"
    return first, f"{name_process(first.thread)} {_say_place(first)}"


HANG_AFTER_S = 30.0
"""How long nothing may move, unless the user or the run's own rhythm says otherwise."""
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
