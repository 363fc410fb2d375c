"""Say what one thread waits for by its stack and kernel wait: who has its lock, or at what it ends. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.describe import LibraryCall, was_forked
from tpmon.judge.dumps.outlier import SLOW_PHASES, ThreadSeen
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.graph import Leads, Step, key_of
from tpmon.judge.hang.sinks import Blame, End, Goes, Grace, Sink, blame
from tpmon.judge.stacks.classify import find_users, is_users, package_of
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import UNREAD, Picture, find_gil_holder, find_wait
from tpmon.model.dump import Motion, WaitKind
from tpmon.model.known import NOT_APPLICABLE, Known, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.text.dump_words import LOCK_CALLS, name_process, name_rank, name_ranks, say_wait
from tpmon.model.waits import DRIVERS, LOCKS, PIPES, SOCKETS, Wait, WaitReason, is_wait, is_wait_in

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
_JOINS = (LibraryCall.THREAD_JOIN, LibraryCall.EXIT)
_DAEMONS = frozenset(("tqdm", "wandb", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml"))
"""Packages whose threads are all daemons: a progress bar's monitor, the senders of loggers."""
POLLS_RATIO = 0.15
"""Share of its CPU in the kernel above which a thread that gets nothing there polls."""
LINE_S = 60.0
"""How long a thread must be seen at only one line to be in one call: a loop changes lines."""
OTHERS_RATIO = 0.1
"""CPUs that the other threads of its process may use meanwhile: those of a pool wait by yielding."""


def name_of(seen: ThreadSeen) -> str:
    """Name the process of a thread: a rank by its number, any other with its PID."""
    thread = seen.thread
    return name_rank(thread) if thread.role is Role.RANK else f"{name_process(thread)} ({thread.pid})"


def name_thread(seen: ThreadSeen) -> str:
    """Name a thread that is not the main one: "thread log-flusher (4711)"."""
    tid = f" ({seen.thread.tid})" if is_known(seen.thread.tid) else ""
    return f"thread {seen.thread.name}{tid}"


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


def expand_thread(
    seen: ThreadSeen, wait: Known[WaitReason], name: str, scene: Scene, picture: Picture
) -> Step:
    """Say what a thread waits for that its own stack tells: a rank's main thread, or a worker's."""
    if wait is WaitReason.GIL:
        return find_gil(seen, picture)
    text, target = f"{name} {say_place(seen)}", seen.thread.waits_on
    if wait is WaitReason.FILE_LOCK:
        return blame(Sink.LOCK_FILE, seen, f"{text}, and no process of this job is seen to hold it")
    if wait is WaitReason.READ_WRITE:
        return blame(Sink.READ, seen, text, needs=(need_of_io(seen),))
    if wait is WaitReason.LOCK and is_known(target) and target.call in LOCK_CALLS:
        return _hold_file(seen, text, picture)
    if wait is WaitReason.LOCK:
        return _find_lone_fork(seen, text, scene, picture) or _hold_lock(seen, text, picture)
    if wait is WaitReason.RUNNING:
        grace = _grace_of_run(seen, scene, picture)
        sink = Sink.COMPUTES if grace is Grace.COMPUTE else Sink.SPIN
        verb = "computes" if sink is Sink.COMPUTES else "runs without end"
        return blame(sink, seen, f"{name} {verb} in {seen.doing.text}", grace)
    if wait is WaitReason.SLEEP:
        return blame(Sink.SLEEP, seen, text)
    if wait is WaitReason.CHILD:
        return blame(Sink.CHILD, seen, text)
    return blame(Sink.EVENT if is_wait_in(seen.thread.waits_for, LOCKS) else Sink.REST, seen, text)


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


def _hold_file(seen: ThreadSeen, text: str, picture: Picture) -> Step:
    target = seen.thread.waits_on
    ends = known_or(target.others, ()) if is_known(target) else ()
    mains = (picture.main_of(end.pid) for end in ends if end.pid != seen.thread.pid)
    holders = tuple(main for main in mains if main is not None)
    told = "".join(f"; {name_process(one.thread)} {say_place(one)}" for one in holders)
    return blame(Sink.FILE_LOCK, seen, f"{text}{told}", also=holders)


def _find_lone_fork(seen: ThreadSeen, text: str, scene: Scene, picture: Picture) -> Blame | None:
    """Say of a forked process at a lock that no thread is left in it which could answer."""
    target = seen.thread.waits_on
    if not was_forked(seen.frames) or (is_known(target) and known_or(target.others, ())):
        return None
    process = next((one for one in scene.frame.processes if one.pid == seen.thread.pid), None)
    idle = [one for one in list_others(seen, picture) if one.doing.wait is WaitReason.WORK]
    if process is None or process.threads > 1 + len(idle):
        return None
    below = seen.frames[find_users(seen.frames) + 1 :]
    library = next((name for one in reversed(below) if (name := package_of(one.file))), "")
    whose = f" of {library}" if library else ""
    text = (
        f"{text}: it was forked from a process with threads, and the threads{whose} that it waits for "
        "are not in it"
    )
    return blame(Sink.FORK, seen, text, needs=_needs_of_lock(seen))


def _needs_of_lock(seen: ThreadSeen) -> tuple[Need, ...]:
    if seen.doing.wait is WaitReason.CALL:
        return _NEED_OF_CALL.get(seen.doing.call, ())
    workers = (Need.WORKERS_PRESENT,) if seen.thread.role is Role.WORKER else ()
    return (*workers, Need.LOCK_WAIT)


def _hold_lock(seen: ThreadSeen, text: str, picture: Picture) -> Step:
    """Lead to the threads that may hold what ``seen`` waits for, or feed its queue."""
    holders = _find_holders(seen, picture)
    writers = () if holders or seen.doing.call is not LibraryCall.QUEUE_PUT else _find_writers(seen, picture)
    if writers:
        return Leads(tuple(map(key_of, writers)), lambda ends: ends[0])
    if seen.doing.wait is WaitReason.CALL:
        verb = "nothing comes" if seen.doing.call is LibraryCall.QUEUE_GET else "it does not end"
        text = f"{text}{_say_feeders(holders, verb)}"
    else:
        text = f"{text}{_say_holders(seen, holders)}"
    found = blame(Sink.LOCK, seen, text, needs=_needs_of_lock(seen), also=holders)
    # A guess is shown, and not followed.
    sure = _find_awaited_tids(seen) or seen.doing.call in _JOINS
    return Leads(tuple(map(key_of, holders)), lambda _: found) if holders and sure else found


def _find_writers(seen: ThreadSeen, picture: Picture) -> tuple[ThreadSeen, ...]:
    """Return the process beside it that has the lock of a shared queue, and writes into its full pipe."""
    owner, pid = seen.thread.rank_pid, seen.thread.pid
    return tuple(
        one
        for one in picture.threads
        if one.thread.rank_pid == owner
        and one.thread.pid != pid
        and one.doing.call is LibraryCall.QUEUE_PUT
        and is_wait(one.thread.waits_for, WaitReason.PIPE_WRITE)
    )[:1]


def _say_feeders(feeders: Sequence[ThreadSeen], verb: str) -> str:
    """Say who might put something into a queue: "; nothing comes: thread prefetch (7) is in ..."."""
    if not feeders:
        return f"; {verb}, and no other thread of it runs the program"
    return f"; {verb}: {name_thread(feeders[0])} {say_place(feeders[0])}"


def _say_holders(seen: ThreadSeen, holders: Sequence[ThreadSeen]) -> str:
    target = seen.thread.waits_on
    if is_known(target) and known_or(target.others, ()):
        return "".join(f"; that thread {say_place(one)}" for one in holders)
    if holders:
        return f"; perhaps held by {name_thread(holders[0])}, which {say_place(holders[0])}"
    return "; who holds it cannot be seen: no other thread runs the program"


def _find_holders(seen: ThreadSeen, picture: Picture) -> tuple[ThreadSeen, ...]:
    """Return the threads that may hold what ``seen`` waits for: the known one, else those at rest."""
    others, tids = list_others(seen, picture), _find_awaited_tids(seen)
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


def list_others(seen: ThreadSeen, picture: Picture) -> list[ThreadSeen]:
    """Return the other threads of its process that run Python."""
    return [
        one for one in picture.threads_of(seen.thread.pid) if one.thread.tid != seen.thread.tid and one.frames
    ]


def _find_awaited_tids(seen: ThreadSeen) -> set[int]:
    target = seen.thread.waits_on
    others = known_or(target.others, ()) if is_known(target) else ()
    return {end.tid for end in others if is_known(end.tid)}


def _grace_of_run(seen: ThreadSeen, scene: Scene, picture: Picture) -> Grace:
    """Say how long a running thread may go on: longer at work than in an endless loop.

    A thread is at work if it gets something from the kernel, or loads data in a worker or the main thread.
    One that holds the GIL at one line is in one C call, which may end.
    """
    trait, is_rank = picture.trait_of(seen), seen.thread.role is Role.RANK
    is_main = is_rank and seen.thread.kind is ThreadKind.MAIN
    polls = is_main and _polls(seen, picture)
    if trait is None or not (polls or picture.goes_round(seen)) or picture.gets_something(seen):
        return Grace.COMPUTE
    if seen.motion is Motion.FROZEN and trait.gil_ratio >= 1.0:
        return Grace.LOOP if polls or (is_main and _changes_lines(seen, scene)) else Grace.SLOW
    loads = not is_rank or seen.doing.phase is Phase.DATA_WAIT
    return Grace.COMPUTE if loads else Grace.LOOP


def _changes_lines(seen: ThreadSeen, scene: Scene) -> bool:
    """Tell whether samples found a main thread at several lines of its one function."""
    one = next((one for one in scene.watch.ranks if one.pid == seen.thread.pid), None)
    if one is None or not one.corner_ns:
        return False
    at_line_s = (scene.frame.taken_ns - one.stack_ns) / 1e9
    return one.stack is None or (one.stack_ns > one.corner_ns and at_line_s <= LINE_S)


def _polls(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a thread that loops asks the kernel again and again, and gets nothing.

    Long library calls release the GIL, too, but compute outside the kernel, move bytes or make memory.
    """
    trait, toll = picture.trait_of(seen), picture.tolls.get(seen.thread.pid)
    if trait is None or toll is None or not trait.goes_round or picture.rests(seen):
        return False
    return (
        trait.kernel_ratio >= POLLS_RATIO
        and toll.cpu_ns / 1e9 - trait.used_s <= OTHERS_RATIO * picture.seconds
        and not picture.gets_something(seen)
    )


def find_gil(seen: ThreadSeen, picture: Picture) -> Step:
    """Lead to who holds the GIL without running Python: a library that kept it."""
    holder = find_gil_holder(seen, picture) or seen
    name = name_rank(seen.thread) if seen.thread.role is Role.RANK else name_process(seen.thread)
    place = f"{holder.doing.text}, in C code that does not give it back"
    if holder is seen:
        return blame(Sink.GIL, seen, f"{name} holds the interpreter's lock (GIL) in {place}")
    text = f"{name} waits for the interpreter's lock (GIL): {name_thread(holder)}"
    if not picture.rests(holder):
        grace = Grace.COMPUTE if picture.gets_something(holder) else None
        return blame(Sink.GIL_RUNS, holder, f"{text} runs in {place}", grace, also=(seen,))
    return blame(Sink.GIL, holder, f"{text} holds it in {place}", also=(seen,))


def find_left(seen: ThreadSeen, picture: Picture) -> Step:
    """Lead to the thread that keeps a program whose main thread has finished."""
    name = name_rank(seen.thread)
    left = [one for one in list_others(seen, picture) if one.thread.kind is ThreadKind.OTHER]
    if any(find_wait(one, picture) in (WaitReason.NOTHING, WaitReason.RUNNING) for one in left):
        return Goes(f"{name} has finished, and a thread of it still works")
    tids = _find_awaited_tids(seen)
    awaited = [one for one in left if one.thread.tid in tids or not _is_daemon(one)]
    if not awaited:
        return blame(
            Sink.THREADS_UNSEEN, seen, f"{name} has finished and waits for threads that were not seen"
        )
    ordered = sorted(awaited, key=lambda one: _order_left(one, tids))
    first = ordered[0]
    known = first.thread.tid in tids
    why = "Python waits for it because it is no daemon thread" if known else "perhaps Python waits for it"
    text = f"{name} has finished, but {name_thread(first)} of it has not: it {say_place(first)}; {why}"
    found = blame(Sink.THREAD_LEFT, first, text, also=(seen, *ordered[1:3]))
    return Leads((key_of(first),), lambda _: found)


def _is_daemon(seen: ThreadSeen) -> bool:
    """Tell whether a thread is of a library that starts only daemon threads."""
    return any(package_of(one.file) in _DAEMONS for one in seen.frames) and not any(
        map(is_users, seen.frames)
    )


def _order_left(seen: ThreadSeen, tids: Collection[int]) -> tuple[bool, bool, bool]:
    """Put first the thread that the interpreter is known to wait for, then those that run the program."""
    own = any(map(is_users, seen.frames))
    return seen.thread.tid not in tids, seen.doing.wait is WaitReason.WORK, not own


def close_circle(members: Sequence[ThreadSeen]) -> End:
    """Say that threads wait for each other; a full pipe that one of them should read is why."""
    ranks = [one for one in members if one.thread.role is Role.RANK and one.thread.kind is ThreadKind.MAIN]
    first = (ranks or list(members))[0]
    chain = [first, *(one for one in members if one is not first)]
    chain.sort(
        key=lambda one: (
            one is not first,
            one.thread.pid != first.thread.pid,
            one.thread.kind is not ThreadKind.MAIN,
        )
    )
    said = "; ".join(f"{_name_member(one)} {say_place(one)}" for one in chain)
    writer = next((one for one in members if is_wait(one.thread.waits_for, WaitReason.PIPE_WRITE)), None)
    if writer is None:
        return blame(Sink.CIRCLE, first, f"{said}: they wait for each other", also=chain[1:])
    text = f"{said}, which is full: {name_of(first)} reads nothing from it while it waits"
    return blame(Sink.FULL_PIPE, first, text, also=chain[1:])


def _name_member(seen: ThreadSeen) -> str:
    main = seen.thread.kind is ThreadKind.MAIN
    return name_of(seen) if main else f"{name_thread(seen)} of {name_of(seen)}"
