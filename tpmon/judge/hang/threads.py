"""Say what one thread waits for by its stack and kernel wait: who has its lock, or at what it ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.camps import SLOW_PHASES, ThreadSeen, say_place
from tpmon.judge.dumps.describe import LibraryCall, own_frames, was_forked
from tpmon.judge.hang.graph import Blame, End, Goes, Grace, Leads, Sink, Step, WaitFacts, blame, key_of
from tpmon.judge.stacks.classify import find_users, is_users, package_of
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import UNREAD, find_gil_holder, is_standard
from tpmon.model.dump import Motion, WaitKind
from tpmon.model.known import NOT_APPLICABLE, Known, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.text.dump_words import LOCK_CALLS, name_process, name_rank, say_wait
from tpmon.model.waits import DRIVERS, LOCKS, PIPES, SOCKETS, Wait, WaitReason, is_wait, is_wait_in

_NEEDS_OF_CALL: Mapping[LibraryCall | None, tuple[Need, ...]] = {
    LibraryCall.QUEUE_GET: (Need.QUEUE_WAIT,),
    LibraryCall.SEMAPHORE: (Need.LOCK_WAIT,),
    LibraryCall.SUBPROCESS: (Need.PROCESS_WAIT,),
    LibraryCall.PROCESS_JOIN: (Need.PROCESS_WAIT,),
    LibraryCall.POOL_RESULT: (Need.PROCESS_WAIT,),
    LibraryCall.PIPE_READ: (Need.PROCESS_WAIT,),
    LibraryCall.PIPE_WRITE: (Need.PROCESS_WAIT,),
}
"""What a library wait is for: what feeds it, its lock, or a process."""
_NEED_OF_WAIT = (
    (SOCKETS | {WaitReason.CONNECTION}, Need.SOCKET_WAIT),
    (frozenset((WaitReason.FIFO,)), Need.NOBODY_AT_PIPE),
    (DRIVERS, Need.GPU_WAIT),
    (PIPES, Need.PROCESS_WAIT),
)
_JOINS = (LibraryCall.THREAD_JOIN, LibraryCall.EXIT)
_DAEMONS = frozenset(("tqdm", "wandb", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml"))
"""Packages whose threads are all daemons: a progress bar's monitor, the senders of loggers."""
POLLS_RATIO = 0.15
LINE_S = 60.0
OTHERS_RATIO = 0.1


def name_of(seen: ThreadSeen) -> str:
    """Name the process of a thread: a rank by its number, any other with its PID."""
    thread = seen.thread
    return name_rank(thread) if thread.role is Role.RANK else f"{name_process(thread)} ({thread.pid})"


def name_thread(seen: ThreadSeen) -> str:
    """Name a thread that is not the main one: "thread log-flusher (4711)"."""
    tid = f" ({seen.thread.tid})" if is_known(seen.thread.tid) else ""
    return f"thread {seen.thread.name}{tid}"


def expand_thread(seen: ThreadSeen, wait: Known[WaitReason], name: str, facts: WaitFacts) -> Step:
    """Say what a thread waits for that its own stack tells: a rank's main thread, or a worker's."""
    if wait is WaitReason.GIL:
        return find_gil(seen, facts)
    text, target = f"{name} {say_place(seen)}", seen.thread.waits_on
    needs = _NEEDS_OF_CALL.get(seen.doing.call, ())
    if wait is WaitReason.STOPPED:
        return blame(Sink.STOPPED, seen, f"{name} is {say_wait(seen.thread)}")
    if wait is WaitReason.FILE_LOCK:
        return blame(Sink.LOCK_FILE, seen, f"{text}, and no process of this job is seen to hold it")
    if wait is WaitReason.READ_WRITE:
        return blame(Sink.READ, seen, text, needs=(need_of_io(seen), *needs))
    if wait is WaitReason.LOCK and is_known(target) and target.call in LOCK_CALLS:
        return _hold_file(seen, text, facts)
    if wait is WaitReason.LOCK:
        return _find_lone_fork(seen, text, facts) or _hold_lock(seen, text, facts)
    if wait is WaitReason.RUNNING:
        grace = _grace_of_run(seen, facts)
        sink = Sink.COMPUTES if grace is Grace.COMPUTE else Sink.SPIN
        verb = "computes" if sink is Sink.COMPUTES else "runs without end"
        return blame(sink, seen, f"{name} {verb} in {seen.doing.text}", grace)
    if wait in (WaitReason.SLEEP, WaitReason.CHILD):
        return blame(Sink.SLEEP if wait is WaitReason.SLEEP else Sink.CHILD, seen, text)
    if seen.doing.call is LibraryCall.QUEUE_GET:
        text = f"{text}{_say_holders(seen, _find_holders(seen, facts))}"
    sink = Sink.EVENT if is_wait_in(seen.thread.waits_for, LOCKS) else Sink.REST
    return blame(sink, seen, text, needs=needs)


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
    return next((need for waits, need in _NEED_OF_WAIT if is_wait_in(wait, waits)), Need.BLOCKED_READ)


def _hold_file(seen: ThreadSeen, text: str, facts: WaitFacts) -> Step:
    mains = (facts.picture.main_of(end.pid) for end in seen.ends if end.pid != seen.thread.pid)
    holders = tuple(main for main in mains if main is not None)
    told = "".join(f"; {name_process(one.thread)} {say_place(one)}" for one in holders)
    return blame(Sink.FILE_LOCK, seen, f"{text}{told}", also=holders)


def _find_lone_fork(seen: ThreadSeen, text: str, facts: WaitFacts) -> Blame | None:
    """Say of a forked process at a lock that no thread is left in it which could answer."""
    process = facts.process_of(seen)
    if process is None or seen.ends or seen.doing.call in _JOINS:
        return None
    if not (was_forked(seen.frames) or _is_copy(seen, facts.picture.main_of(process.parent))):
        return None
    # Threads of the standard library alone, such as those of queues, answer nobody.
    others = list_others(seen, facts)
    idle = [one for one in others if one.doing.wait is WaitReason.WORK or all(map(is_standard, one.frames))]
    if process.threads > 1 + len(idle):
        return None
    below = seen.frames[find_users(seen.frames) + 1 :]
    installed = (package_of(one.file) for one in reversed(below) if not is_standard(one))
    library = next((f" of {name}" for name in installed if name), "")
    text = f"{text}: it was forked from a process with threads, and the threads{library} that it waits for"
    return blame(Sink.FORK, seen, f"{text} are not in it", needs=_needs_of_lock(seen))


def _is_copy(seen: ThreadSeen, parent: ThreadSeen | None) -> bool:
    """Tell whether a process goes on in the program of its parent, as after os.fork()."""
    if parent is None or not parent.frames or seen.thread.role is not Role.HELPER:
        return False
    begins = [(one.frames[0].function, one.frames[0].file) for one in (seen, parent)]
    return begins[0] == begins[1] and own_frames(seen.frames) == seen.frames


def _needs_of_lock(seen: ThreadSeen) -> tuple[Need, ...]:
    if seen.doing.wait is WaitReason.CALL:
        return _NEEDS_OF_CALL.get(seen.doing.call, ())
    workers = (Need.WORKERS_PRESENT,) if seen.thread.role is Role.WORKER else ()
    return (*workers, Need.LOCK_WAIT)


def _hold_lock(seen: ThreadSeen, text: str, facts: WaitFacts) -> Step:
    """Lead to the threads that may hold what ``seen`` waits for, or feed its queue."""
    holders = _find_holders(seen, facts)
    writer = None if holders or seen.doing.call is not LibraryCall.QUEUE_PUT else _find_writer(seen, facts)
    if writer is not None:
        return Leads((key_of(writer),), lambda ends: ends[0])
    text = f"{text}{_say_holders(seen, holders)}"
    found = blame(Sink.LOCK, seen, text, needs=_needs_of_lock(seen), also=holders)
    # A guess is shown, and not followed.
    sure = _find_awaited_tids(seen) or seen.doing.call in _JOINS
    return Leads(tuple(map(key_of, holders)), lambda _: found) if holders and sure else found


def _find_writer(seen: ThreadSeen, facts: WaitFacts) -> ThreadSeen | None:
    """Return the process beside it that has the lock of a shared queue, and writes into its full pipe."""
    beside = (one for one in facts.picture.threads if one.thread.rank_pid == seen.thread.rank_pid)
    puts = (one for one in beside if one.doing.call is LibraryCall.QUEUE_PUT)
    writes = (one for one in puts if is_wait(one.thread.waits_for, WaitReason.PIPE_WRITE))
    return next((one for one in writes if one.thread.pid != seen.thread.pid), None)


def _say_holders(seen: ThreadSeen, holders: Sequence[ThreadSeen]) -> str:
    """Say who may hold a lock, or feed a queue: "; nothing comes: thread prefetch (7) is in ..."."""
    first = holders[0] if holders else None
    if seen.doing.wait is WaitReason.CALL:
        verb = "nothing comes" if seen.doing.call is LibraryCall.QUEUE_GET else "it does not end"
        none = ", and no other thread of it runs the program"
        return f"; {verb}{f': {name_thread(first)} {say_place(first)}' if first else none}"
    if seen.ends:
        return "".join(f"; that thread {say_place(one)}" for one in holders)
    if first is not None:
        return f"; perhaps held by {name_thread(first)}, which {say_place(first)}"
    return "; who holds it cannot be seen: no other thread runs the program"


def _find_holders(seen: ThreadSeen, facts: WaitFacts) -> tuple[ThreadSeen, ...]:
    """Return the threads that may hold what ``seen`` waits for: the known one, else those at rest."""
    others, tids = list_others(seen, facts), _find_awaited_tids(seen)
    if known := tuple(one for one in others if one.thread.tid in tids):
        return known
    others = [one for one in others if one.thread.kind is ThreadKind.OTHER]
    busy = [one for one in others if one.doing.wait is not WaitReason.WORK]
    at_rest = [one for one in busy if facts.wait_of(one) not in (WaitReason.NOTHING, UNREAD)]
    # A checkpoint writer sets the grace of all: three threads of a logger must not hide it.
    return tuple(sorted(at_rest, key=lambda one: one.doing.phase not in SLOW_PHASES)[:3])


def list_others(seen: ThreadSeen, facts: WaitFacts) -> list[ThreadSeen]:
    """Return the other threads of its process that run Python."""
    threads = facts.picture.threads_of(seen.thread.pid)
    return [one for one in threads if one.thread.tid != seen.thread.tid and one.frames]


def _find_awaited_tids(seen: ThreadSeen) -> set[int]:
    return {end.tid for end in seen.ends if is_known(end.tid)}


def _grace_of_run(seen: ThreadSeen, facts: WaitFacts) -> Grace:
    """Say how long a running thread may go on: longer at work than in an endless loop.

    A thread is at work if it gets something from the kernel, or loads data in a worker or the main thread.
    One that holds the GIL at one line is in one C call, which may end.
    """
    trait, toll = facts.picture.trait_of(seen), facts.picture.tolls.get(seen.thread.pid)
    is_rank = seen.thread.role is Role.RANK
    is_main = is_rank and seen.thread.kind is ThreadKind.MAIN
    if trait is None or facts.picture.gets_something(seen):
        return Grace.COMPUTE
    # It asks the kernel in vain: long library calls release the GIL, too, but compute outside the kernel.
    others_s = math.inf if toll is None else toll.cpu_ns / 1e9 - trait.used_s
    in_kernel = trait.kernel_ratio >= POLLS_RATIO and others_s <= OTHERS_RATIO * facts.picture.seconds
    polls = is_main and in_kernel and trait.goes_round and not facts.picture.rests(seen)
    if not polls and not facts.picture.goes_round(seen):
        return Grace.COMPUTE
    if seen.motion is Motion.FROZEN and trait.gil_ratio >= 1.0:
        return Grace.LOOP if polls or (is_main and _changes_lines(seen, facts)) else Grace.SLOW
    loads = not is_rank or seen.doing.phase is Phase.DATA_WAIT
    return Grace.COMPUTE if loads else Grace.LOOP


def _changes_lines(seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether samples found a main thread at several lines of its one function."""
    one = next((one for one in facts.watch.ranks if one.pid == seen.thread.pid), None)
    if one is None or not one.corner_ns:
        return False
    at_line_s = (facts.watch.taken_ns - one.stack_ns) / 1e9
    return one.stack is None or (one.stack_ns > one.corner_ns and at_line_s <= LINE_S)


def find_gil(seen: ThreadSeen, facts: WaitFacts) -> Step:
    """Lead to who holds the GIL without running Python: a library that kept it."""
    name, holder = name_process(seen.thread), find_gil_holder(seen, facts.picture) or seen
    place = f"{holder.doing.text}, in C code that does not give it back"
    if holder is seen:
        return blame(Sink.GIL, seen, f"{name} holds the interpreter's lock (GIL) in {place}")
    text = f"{name} waits for the interpreter's lock (GIL): {name_thread(holder)}"
    if not facts.picture.rests(holder):
        grace = Grace.COMPUTE if facts.picture.gets_something(holder) else None
        return blame(Sink.GIL_RUNS, holder, f"{text} runs in {place}", grace, also=(seen,))
    return blame(Sink.GIL, holder, f"{text} holds it in {place}", also=(seen,))


def find_left(seen: ThreadSeen, facts: WaitFacts) -> Step:
    """Lead to the thread that keeps a program whose main thread has finished."""
    name, tids = name_rank(seen.thread), _find_awaited_tids(seen)
    left = [one for one in list_others(seen, facts) if one.thread.kind is ThreadKind.OTHER]
    if any(facts.wait_of(one) in (WaitReason.NOTHING, WaitReason.RUNNING) for one in left):
        return Goes(f"{name} has finished, and a thread of it still works")
    awaited = [one for one in left if one.thread.tid in tids or not _is_daemon(one)]
    if not awaited:
        text = f"{name} has finished and waits for threads that were not seen"
        return blame(Sink.THREADS_UNSEEN, seen, text)

    def order(one: ThreadSeen) -> tuple[bool, bool, bool]:
        """Put first the thread that Python is known to wait for, then those that run the program."""
        return one.thread.tid not in tids, one.doing.wait is WaitReason.WORK, not runs_program(one)

    first, *more = sorted(awaited, key=order)
    known = first.thread.tid in tids
    why = "Python waits for it because it is no daemon thread" if known else "perhaps Python waits for it"
    text = f"{name} has finished, but {name_thread(first)} of it has not: it {say_place(first)}; {why}"
    found = blame(Sink.THREAD_LEFT, first, text, also=(seen, *more[:2]))
    return Leads((key_of(first),), lambda _: found)


def runs_program(seen: ThreadSeen) -> bool:
    """Tell whether a thread is in code of the program, at any depth."""
    return any(map(is_users, seen.frames))


def _is_daemon(seen: ThreadSeen) -> bool:
    return not runs_program(seen) and any(package_of(one.file) in _DAEMONS for one in seen.frames)


def close_circle(members: Sequence[ThreadSeen]) -> End:
    """Say that threads wait for each other; a full pipe that one of them should read is why."""
    mains = [one for one in members if one.thread.kind is ThreadKind.MAIN]
    first = next((one for one in mains if one.thread.role is Role.RANK), members[0])
    chain = sorted(
        members, key=lambda one: (one is not first, one.thread.pid != first.thread.pid, one not in mains)
    )
    names = (name_of(one) if one in mains else f"{name_thread(one)} of {name_of(one)}" for one in chain)
    said = "; ".join(f"{name} {say_place(one)}" for name, one in zip(names, chain, strict=True))
    if not any(is_wait(one.thread.waits_for, WaitReason.PIPE_WRITE) for one in members):
        return blame(Sink.CIRCLE, first, f"{said}: they wait for each other", also=chain[1:])
    text = f"{said}, which is full: {name_of(first)} reads nothing from it while it waits"
    return blame(Sink.FULL_PIPE, first, text, also=chain[1:])
