"""Say what keeps one thread of a picture and who is to blame, and how processes ended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.outlier import SLOW_PHASES, ThreadSeen
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.stacks.classify import is_users, package_of
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import UNREAD, Picture, find_gil_holder, find_wait
from tpmon.model.dump import DeadChild, Motion, WaitKind
from tpmon.model.figures import Origin
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, known_or
from tpmon.model.process import Outcome, ProcessEnd, Role, ThreadKind
from tpmon.model.text.dump_words import LOCK_CALLS, name_process, name_rank, name_ranks, say_wait
from tpmon.model.waits import DRIVERS, PIPES, SOCKETS, Wait, WaitReason, is_wait, is_wait_in

_NEED_OF_CALL: Mapping[LibraryCall | None, tuple[Need, ...]] = {
    LibraryCall.QUEUE_GET: (Need.QUEUE_WAIT,),
    LibraryCall.SEMAPHORE: (Need.LOCK_WAIT,),
    LibraryCall.SUBPROCESS: (Need.PROCESS_WAIT,),
    LibraryCall.PROCESS_JOIN: (Need.PROCESS_WAIT,),
    LibraryCall.POOL_RESULT: (Need.PROCESS_WAIT,),
    LibraryCall.PIPE_READ: (Need.PROCESS_WAIT,),
    LibraryCall.PIPE_WRITE: (Need.PROCESS_WAIT,),
}
"""What a library wait is for: what feeds it, its lock, or a process."""

_DAEMONS = frozenset(("tqdm", "wandb", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml"))
"""Packages whose threads are all daemons: a progress bar's monitor, the senders of loggers."""

FEW_BYTES_S = 1e6
"""Bytes a second up to which a process reads and writes nothing that matters."""
FEW_FAULTS_S = 100.0
"""Page faults a second up to which the kernel's time is not spent on making memory."""


class Grace(IntEnum):
    """Say how long a wait may last before it is a hang, by its kind, shortest first."""

    ENDLESS = 0
    """It does not end by itself."""
    TIMED = 1
    """It may end by itself."""
    LOOP = 2
    """It runs in one place."""
    REMOTE = 3
    """What it waits for cannot be seen and may take minutes: a rank elsewhere, or the reason of a sleep."""
    SLOW = 4
    """It takes long in healthy runs, too."""
    COMPUTE = 5
    """It computes, or something that it may wait for does."""
    TRANSFER = 6
    """It reads or writes, or a pool of its threads computes."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Hold a cause with its culprit, one sentence about it, and what was seen for it.

    ``also`` are further threads to show (a lock's holder, workers that a rank waits for); ``dead`` are ended
    processes to show.
    """

    cause: str
    seen: ThreadSeen
    text: str
    grace: Grace = Grace.ENDLESS
    needs: tuple[Need, ...] = ()
    also: tuple[ThreadSeen, ...] = ()
    origins: tuple[Origin, ...] = ()
    dead: tuple[DeadChild, ...] = ()
    is_of_all: bool = False
    """No single rank is to blame: ``seen`` is only the first of them."""
    gone: Applicable[int] = NOT_APPLICABLE
    """The number of the one rank to blame, where it has ended and ``seen`` waits for it."""


def say_place(seen: ThreadSeen) -> str:
    """Say where a thread is and what it waits for: "is in decode data.py:88, blocked in a read of ..."."""
    doing = seen.doing
    if doing.wait is WaitReason.COLLECTIVE:
        return f"waits in {doing.text}"
    if doing.wait is WaitReason.BATCH:
        return f"waits for a batch ({doing.text.removeprefix('data wait: ')})"
    at_lock = is_wait(seen.thread.waits_for, WaitReason.LOCK) and not is_known(seen.thread.waits_on)
    at_lock = at_lock and not seen.is_stopped
    waits = "waiting for a lock" if at_lock else say_wait(seen.thread)
    if doing.wait is WaitReason.CALL and at_lock:
        waits = ""
    verb = "" if doing.has_verb else "is in "
    return f"{verb}{doing.text}{f', {waits}' if waits else ''}"


def name_thread(seen: ThreadSeen) -> str:
    """Name a thread that is not the main one: "thread log-flusher (4711)"."""
    tid = f" ({seen.thread.tid})" if is_known(seen.thread.tid) else ""
    return f"thread {seen.thread.name}{tid}"


def pick_blame(blames: Sequence[Blame]) -> Blame:
    """Return the surest blame; of equal ones, one that says more than "no-progress"."""
    return min(blames, key=lambda one: (one.grace, one.cause == "no-progress"))


def give_grace(blame: Blame, grace: Grace) -> Blame:
    """Give a blame at least this grace."""
    return replace(blame, grace=max(blame.grace, grace))


def find_camps(waiting: Sequence[ThreadSeen]) -> list[list[ThreadSeen]]:
    """Return the waiting ranks by place, the largest group first."""
    sites = dict.fromkeys(seen.doing.site for seen in waiting)
    camps = [[seen for seen in waiting if seen.doing.site == site] for site in sites]
    return sorted(camps, key=len, reverse=True)


def say_camps(waiting: Sequence[ThreadSeen]) -> str:
    """Say which ranks wait at which place."""
    return ", ".join(
        f"{name_ranks(seen.thread for seen in camp)} in {camp[0].doing.text}" for camp in find_camps(waiting)
    )


def blame_thread(
    seen: ThreadSeen,
    wait: Known[WaitReason],
    name: str,
    picture: Picture,
    *,
    polls: bool = False,
    circles: bool = False,
) -> Blame:
    """Say what keeps a thread whose own stack tells: a rank's main thread, or a worker's.

    ``polls``: it asks the kernel again and again and gets nothing; ``circles``: it was seen at several lines.
    """
    if wait is WaitReason.GIL:
        return blame_gil(seen, picture)
    text, target = f"{name} {say_place(seen)}", seen.thread.waits_on
    if wait is WaitReason.READ_WRITE:
        return Blame("blocked-io", seen, text, needs=(need_of_io(seen),))
    if wait is WaitReason.LOCK and is_known(target) and target.call in LOCK_CALLS:
        holders = _find_lock_holders(seen, picture)
        told = "".join(f"; {name_process(one.thread)} {say_place(one)}" for one in holders)
        return Blame("lock", seen, f"{text}{told}", needs=(Need.FILE_LOCK_WAIT,), also=holders)
    if wait is WaitReason.LOCK:
        holders = _find_holders(seen, picture)
        if seen.doing.wait is WaitReason.CALL:
            call = seen.doing.call
            verb = "nothing comes" if call is LibraryCall.QUEUE_GET else "it does not end"
            text, needs = f"{text}{_say_feeders(holders, verb)}", _NEED_OF_CALL.get(call, ())
        else:
            workers = (Need.WORKERS_PRESENT,) if seen.thread.role is Role.WORKER else ()
            text, needs = f"{text}{_say_holders(seen, holders)}", (*workers, Need.LOCK_WAIT)
        return Blame("lock", seen, text, needs=needs, also=holders)
    if wait is WaitReason.RUNNING:
        grace = _grace_of_run(seen, picture, polls=polls, circles=circles)
        verb = "computes" if grace is Grace.COMPUTE else "runs without end"
        text = f"{name} {verb} in {seen.doing.text}"
        return Blame("spin", seen, text, grace, needs=(Need.SPINNING,))
    needs = (Need.PROCESS_WAIT,) if wait is WaitReason.CHILD else ()
    return Blame("no-progress", seen, text, Grace.TIMED, needs=needs)


def need_of_io(seen: ThreadSeen) -> Need:
    """Return what a read or write that does not return waits for: a peer, another process, or a file."""
    target, wait = seen.thread.waits_on, seen.thread.waits_for
    others = target.others if is_known(target) else target
    if is_known(target) and target.kind in (WaitKind.SOCKET, WaitKind.UNIX):
        return Need.SOCKET_WAIT
    if is_known(target) and (target.kind is WaitKind.PIPE or others is not NOT_APPLICABLE):
        return Need.NOBODY_AT_PIPE if is_known(others) and not others else Need.PROCESS_WAIT
    if is_wait_in(wait, DRIVERS | {WaitReason.FIFO}) or not is_known(target):
        return need_of_wait(wait)
    return Need.BLOCKED_READ


def need_of_wait(wait: Known[Wait]) -> Need:
    """Return the same where only the kernel wait is known."""
    if is_wait_in(wait, SOCKETS | {WaitReason.CONNECTION}):
        return Need.SOCKET_WAIT
    if is_wait(wait, WaitReason.FIFO):
        return Need.NOBODY_AT_PIPE
    if is_wait_in(wait, DRIVERS):
        return Need.GPU_WAIT
    return Need.PROCESS_WAIT if is_wait_in(wait, PIPES) else Need.BLOCKED_READ


def _find_lock_holders(seen: ThreadSeen, picture: Picture) -> tuple[ThreadSeen, ...]:
    target = seen.thread.waits_on
    if not is_known(target) or not is_known(target.others):
        return ()
    mains = (picture.main_of(end.pid) for end in target.others if end.pid != seen.thread.pid)
    return tuple(main for main in mains if main is not None)


def _say_feeders(feeders: Sequence[ThreadSeen], verb: str) -> str:
    """Say who might put something into a queue: "; nothing comes: thread prefetch (7) is in ..."."""
    if not feeders:
        return f"; {verb}, and no other thread of it runs the program"
    first = feeders[0]
    return f"; {verb}: {name_thread(first)} {say_place(first)}"


def gets_something(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a thread's process read, wrote or made memory between the dumps."""
    toll = picture.tolls.get(seen.thread.pid)
    return toll is not None and (
        toll.faults > FEW_FAULTS_S * picture.seconds or toll.moved_bytes > FEW_BYTES_S * picture.seconds
    )


def _grace_of_run(seen: ThreadSeen, picture: Picture, *, polls: bool, circles: bool) -> Grace:
    """Say how long a running thread may go on: longer at work than in an endless loop.

    A thread is at work if it gets something from the kernel, or loads data in a worker or the main thread.
    One that holds the GIL at one line is in one C call, which may end.
    """
    trait = picture.trait_of(seen)
    if trait is None or not (polls or picture.goes_round(seen)) or gets_something(seen, picture):
        return Grace.COMPUTE
    if seen.motion is Motion.FROZEN and trait.gil_ratio >= 1.0:
        return Grace.LOOP if polls or circles else Grace.SLOW
    loads = seen.thread.role is not Role.RANK or seen.doing.phase is Phase.DATA_WAIT
    return Grace.COMPUTE if loads else Grace.LOOP


def _find_holders(seen: ThreadSeen, picture: Picture) -> tuple[ThreadSeen, ...]:
    """Return the threads that may hold what ``seen`` waits for: the known one, else those at rest."""
    others, tids = _list_others(seen, picture), _find_awaited_tids(seen)
    known = tuple(one for one in others if one.thread.tid in tids)
    if known:
        return known
    at_rest = [
        one
        for one in others
        if one.doing.wait is not WaitReason.WORK
        and one.thread.kind is ThreadKind.OTHER
        and find_wait(one, picture) not in (WaitReason.NOTHING, UNREAD)
    ]
    # A checkpoint writer sets the grace of all: three threads of a logger must not hide it.
    return tuple(sorted(at_rest, key=lambda one: one.doing.phase not in SLOW_PHASES)[:3])


def _list_others(seen: ThreadSeen, picture: Picture) -> list[ThreadSeen]:
    return [
        one for one in picture.threads_of(seen.thread.pid) if one.thread.tid != seen.thread.tid and one.frames
    ]


def _find_awaited_tids(seen: ThreadSeen) -> set[int]:
    target = seen.thread.waits_on
    others = known_or(target.others, ()) if is_known(target) else ()
    return {end.tid for end in others if is_known(end.tid)}


def _say_holders(seen: ThreadSeen, holders: Sequence[ThreadSeen]) -> str:
    target = seen.thread.waits_on
    if is_known(target) and is_known(target.others) and target.others:
        return "".join(f"; that thread {say_place(one)}" for one in holders)
    if holders:
        first = holders[0]
        return f"; perhaps held by {name_thread(first)}, which {say_place(first)}"
    return "; who holds it cannot be seen: no other thread runs the program"


def blame_gil(seen: ThreadSeen, picture: Picture) -> Blame:
    """Say who holds the GIL without running Python: a library that kept it."""
    holder = find_gil_holder(seen, picture) or seen
    name = name_rank(seen.thread) if seen.thread.role is Role.RANK else name_process(seen.thread)
    needs = (Need.LOCK_WAIT,)
    place = f"{holder.doing.text}, in C code that does not give it back"
    if holder is seen:
        return Blame("lock", seen, f"{name} holds the interpreter's lock (GIL) in {place}", needs=needs)
    if not picture.rests(holder):
        text = f"{name} waits for the interpreter's lock (GIL): {name_thread(holder)} runs in {place}"
        grace = Grace.COMPUTE if gets_something(holder, picture) else Grace.SLOW
        return Blame("lock", holder, text, grace, needs=needs, also=(seen,))
    text = f"{name} waits for the interpreter's lock (GIL): {name_thread(holder)} holds it in {place}"
    return Blame("lock", holder, text, needs=needs, also=(seen,))


def blame_exit(seen: ThreadSeen, picture: Picture) -> Blame | str:
    """Say which thread keeps a program whose main thread has finished."""
    name = name_rank(seen.thread)
    left = [one for one in _list_others(seen, picture) if one.thread.kind is ThreadKind.OTHER]
    if any(find_wait(one, picture) in (WaitReason.NOTHING, WaitReason.RUNNING) for one in left):
        return f"{name} has finished, and a thread of it still works"
    tids = _find_awaited_tids(seen)
    awaited = [one for one in left if one.thread.tid in tids or not _is_daemon(one)]
    if not awaited:
        text = f"{name} has finished and waits for threads that were not seen"
        return Blame("lock", seen, text, Grace.TIMED)
    ordered = sorted(awaited, key=lambda one: _order_left(one, tids))
    first = ordered[0]
    known = first.thread.tid in tids
    why = "Python waits for it because it is no daemon thread" if known else "perhaps Python waits for it"
    text = f"{name} has finished, but {name_thread(first)} of it has not: it {say_place(first)}; {why}"
    return Blame("lock", first, text, needs=(Need.THREAD_LEFT,), also=(seen, *ordered[1:3]))


def _is_daemon(seen: ThreadSeen) -> bool:
    """Tell whether a thread is of a library that starts only daemon threads."""
    return any(package_of(one.file) in _DAEMONS for one in seen.frames) and not any(
        map(is_users, seen.frames)
    )


def _order_left(seen: ThreadSeen, tids: Collection[int]) -> tuple[bool, bool, bool]:
    """Put first the thread that the interpreter is known to wait for, then those that run the program."""
    own = any(map(is_users, seen.frames))
    return seen.thread.tid not in tids, seen.doing.wait is WaitReason.WORK, not own


def tell_ends(dead: Iterable[DeadChild], scene: Scene) -> list[DeadChild]:
    """Add how dead processes were seen to end, which tells the OOM killer from any other SIGKILL."""
    seen = {end.pid: end.how for _, end in list_ends(scene)}
    return [replace(one, how=seen.get(one.pid, one.how)) for one in dead]


def find_killed(parent: int, scene: Scene) -> list[DeadChild]:
    """Return the children of a process that were seen to fail, and that it has reaped since."""
    failed = {end.pid: end for _, end in list_ends(scene) if end.outcome is Outcome.FAILED}
    children = {
        one.pid: one
        for frame in scene.history
        for one in frame.processes
        if one.parent == parent and one.pid in failed
    }
    return [
        DeadChild(one.pid, parent, one.name, failed[one.pid].how, one.role is not Role.LAUNCHER)
        for one in children.values()
    ]


def say_rank_ends(numbers: Sequence[int], scene: Scene) -> str:
    """Say how ranks ended: " (exit 1)", of several with their numbers; "" where nobody saw it."""
    seen = {end.rank: end.how for _, end in list_ends(scene) if end.role is Role.RANK and is_known(end.rank)}
    several = len(numbers) > 1
    told = ", ".join(
        f"rank {number}: {seen[number]}" if several else seen[number] for number in numbers if number in seen
    )
    return f" ({told})" if told else ""


def list_ends(scene: Scene) -> list[tuple[int, ProcessEnd]]:
    """Return who ended in the history and when (CLOCK_MONOTONIC ns of the Frame), oldest first."""
    return [(frame.taken_ns, end) for frame in scene.history for end in known_or(frame.ends, ())]
