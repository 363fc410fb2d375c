"""Lead from a rank to the processes that it waits for: loader workers, a pool's, those at its pipes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.outlier import ThreadSeen, is_pinning
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.activity import find_beside
from tpmon.judge.hang.ends import find_killed, tell_ends
from tpmon.judge.hang.graph import Leads, Step, key_of
from tpmon.judge.hang.sinks import Blame, End, Goes, Sink, blame, pick_blame
from tpmon.judge.hang.threads import name_of, name_thread, say_place
from tpmon.judge.stacks.classify import is_library, read_stack
from tpmon.judge.watch.picture import UNREAD, Picture, find_wait, is_idle
from tpmon.model.dump import DeadChild
from tpmon.model.known import is_known, known_or
from tpmon.model.process import WORKER_NAME, Role, ThreadKind
from tpmon.model.text.dump_words import CHILD_WAITS, name_process, name_rank
from tpmon.model.waits import WaitReason, is_wait

_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_TRACKER = "/resource_tracker.py"
"""Of multiprocessing, and of its copies in loky and multiprocess: it waits on a pipe all its life."""
_BATCH = "a batch"
_TASKS = (LibraryCall.POOL_RESULT, LibraryCall.PROCESS_JOIN, LibraryCall.FUTURE, LibraryCall.SUBPROCESS)
"""Waits for work that was handed over as a whole, however long it takes."""
_RESULTS = (LibraryCall.QUEUE_GET, LibraryCall.POOL_RESULT, LibraryCall.FUTURE)
"""Waits for what another Python process hands over."""


def _blame_dead(seen: ThreadSeen, dead: Sequence[DeadChild], noun: str, scene: Scene) -> Blame:
    name, dead = name_rank(seen.thread), tell_ends(dead, scene)
    pids = ", ".join(f"{one.pid}: {one.how}" for one in dead)
    many = len(dead) > 1
    text = (
        f"{name} waits for {noun} of {'processes' if many else 'a process'} that "
        f"{'are' if many else 'is'} dead ({pids}): {seen.doing.text}"
    )
    awaited = _find_awaited(seen)
    if awaited and awaited.isdisjoint(one.pid for one in dead):
        others = "other processes that it started are" if many else "another process that it started is"
        text = f"{name} {say_place(seen)}; {others} dead ({pids}), which that one may wait for"
    return blame(Sink.DEAD, seen, text, dead=dead)


def _find_awaited(seen: ThreadSeen) -> set[int]:
    target = seen.thread.waits_on
    if not is_known(target) or target.call not in CHILD_WAITS or not is_known(target.others):
        return set()
    return {end.pid for end in target.others}


def _lead_to(
    seen: ThreadSeen, those: Sequence[ThreadSeen], scene: Scene, picture: Picture, what: str
) -> Step | None:
    """Lead to those of the processes that a rank waits for which are not idle; None where all of them are."""
    to: list[ThreadSeen] = []
    for one in those:
        if is_idle(one, picture):
            beside = find_beside(one, scene, picture)
            if beside is not None:
                return Goes(f"{name_process(one.thread)} waits, and {beside.text}")
            continue
        wait = find_wait(one, picture)
        if wait is UNREAD or wait is WaitReason.STOPPED:
            return Goes(
                f"{name_process(one.thread)} {'could not be read' if wait is UNREAD else 'is stopped'}"
            )
        if wait is WaitReason.NOTHING and seen.doing.call in _TASKS:
            return Goes(f"{name_process(one.thread)} moves: {one.doing.text}")
        to.append(one)
    if not to:
        return None
    head = f"{name_rank(seen.thread)} waits for {what}"
    return Leads(tuple(map(key_of, to)), lambda ends: _join(ends, seen, head))


def _join(ends: Sequence[End], seen: ThreadSeen, head: str) -> End:
    """Make one end of several: while one of them gets on, the others may wait for it, or be slow."""
    goes = next((one for one in ends if isinstance(one, Goes)), None)
    if goes is not None:
        return goes
    told = [one for one in ends if isinstance(one, Blame)]
    moving = next((one for one in told if one.sink is Sink.WORKER_MOVES), None)
    found = moving or pick_blame(told)
    return replace(found, text=f"{head}; {found.text}", also=(*found.also, seen))


def _was_worker(dead: DeadChild, seen: ThreadSeen, scene: Scene) -> bool:
    """Tell whether a dead child may have been a loader worker, and not a program of the rank's."""
    if dead.name.startswith(WORKER_NAME):
        return True
    cast = [one for frame in scene.history for one in frame.processes if one.pid == dead.pid]
    if cast:
        return any(one.role is Role.WORKER for one in cast)
    # It died before tpmon came: a worker of an older torch has no name of its own.
    siblings = [one for one in scene.frame.processes if one.rank_pid == seen.thread.pid]
    named = any(one.name.startswith(WORKER_NAME) for one in siblings)
    return not named and known_or(dead.python, False)


def _may_answer(dead: DeadChild, seen: ThreadSeen) -> bool:
    """Tell whether a rank may wait for a dead child: only Python fills a queue or a pool."""
    return seen.doing.call not in _RESULTS or known_or(dead.python, False)


def expand_batch(seen: ThreadSeen, scene: Scene, picture: Picture) -> Step:
    """Say why a batch does not come: a worker is dead or stuck, or nobody has it."""
    pid, name = seen.thread.pid, name_rank(seen.thread)
    workers = picture.scene.workers_of(seen)
    leads = _lead_to(seen, workers, scene, picture, _BATCH)
    if isinstance(leads, Goes):
        return leads
    dead = [one for one in picture.dead if one.parent == pid and _was_worker(one, seen, scene)]
    if dead:
        lost = _blame_dead(seen, dead, _BATCH, scene)
        return lost if leads is None or not isinstance(leads, Leads) else _unless_going(leads, lost)
    # Loaders that are not torch's have threads or actors, not workers.
    if not workers and Need.TORCH_LOADER not in read_stack(seen.frames).needs:
        text = f"{name} {say_place(seen)}; the loader is not torch's, what fills its queue is not known"
        return blame(Sink.FOREIGN_LOADER, seen, text)
    if not workers:
        return blame(Sink.NO_WORKERS, seen, f"{name} waits for a batch, and none of its workers is alive")
    if leads is not None:
        return leads
    pin = next(filter(is_pinning, picture.threads_of(pid)), None)
    if pin is not None:
        return _lead_to_pin(seen, pin, picture)
    ready = [one.ready_batches for one in scene.frame.loader if one.pid == pid]
    if any(is_known(one) and one >= 1 for one in ready):
        return Goes(f"{name}: a batch is ready in the loader's pipe")
    count = len(workers)
    idle = "its worker waits" if count == 1 else f"all its {count} workers wait"
    text = f"{name} waits for a batch, {idle} for work, and nothing is in their queues: the batch was lost"
    return blame(Sink.LOST_BATCH, seen, text, also=workers[:4])


def _unless_going(leads: Leads, lost: Blame) -> Leads:
    """Blame the dead, unless one of the living processes gets on."""

    def join(ends: Sequence[End]) -> End:
        return next((one for one in ends if isinstance(one, Goes)), lost)

    return Leads(leads.to, join)


def _lead_to_pin(seen: ThreadSeen, pin: ThreadSeen, picture: Picture) -> Step:
    """Lead to the thread that puts all batches into pinned memory."""
    wait = find_wait(pin, picture)
    who = f"{name_rank(seen.thread)} waits for a batch; {name_thread(pin)} of it"
    if wait in (WaitReason.NOTHING, UNREAD):
        return Goes(f"{who} {'moves' if wait is WaitReason.NOTHING else 'could not be read'}")

    def join(ends: Sequence[End]) -> End:
        end = ends[0]
        if isinstance(end, Goes) or wait is WaitReason.GIL:
            return end
        return replace(
            end, text=f"{name_rank(seen.thread)} waits for a batch; {end.text}", also=(seen, *end.also)
        )

    return Leads((key_of(pin),), join)


def expand_children(seen: ThreadSeen, scene: Scene, picture: Picture) -> Step | None:
    """Say the same of processes that the program started itself; None where it started none."""
    pid, name = seen.thread.pid, name_rank(seen.thread)
    dead = [one for one in picture.dead if one.parent == pid and _may_answer(one, seen)]
    if dead:
        return _blame_dead(seen, dead, "a result", scene)
    started = [one for one in scene.frame.processes if one.parent == pid]
    pids = {one.pid for one in started if not one.name.startswith(WORKER_NAME)}
    children = [
        one
        for one in picture.threads
        if one.thread.kind is ThreadKind.MAIN
        and one.thread.pid in pids
        and one.is_read
        and not any(at.file.endswith((_TRACKER, _WORKER_LOOP)) and is_library(at.file) for at in one.frames)
    ]
    awaited = _find_awaited(seen)
    if awaited:
        # A join waits for certain processes: where the others are does not matter.
        children = [one for one in children if one.thread.pid in awaited]
    if not children:
        return _find_full_pipe(seen, awaited, scene)
    leads = _lead_to(seen, children, scene, picture, "the end of a process" if awaited else "a result")
    if isinstance(leads, Leads):
        return Leads(leads.to, lambda ends: _need_process(leads.join(ends)))
    if leads is not None:
        return leads
    killed = [one for one in find_killed(pid, scene) if _may_answer(one, seen)]
    if killed:
        return _blame_dead(seen, killed, "a result", scene)
    count = len(children)
    who = "the process that it started waits" if count == 1 else f"all {count} processes that it started wait"
    text = (
        f"{name} waits for a result ({seen.doing.text}), and {who} for work: the result was lost, or "
        "the process that had it died"
    )
    return blame(Sink.LOST_RESULT, seen, text, also=children[:4])


def _need_process(end: End) -> End:
    return replace(end, needs=(Need.PROCESS_WAIT,)) if isinstance(end, Blame) and not end.needs else end


def _find_full_pipe(seen: ThreadSeen, awaited: set[int], scene: Scene) -> Blame | None:
    """Say that a program which the rank waits for writes into a full pipe: only the rank could read it."""
    if seen.doing.call not in _TASKS or not awaited:
        return None
    parents = {one.pid: one.parent for one in scene.frame.processes}
    below = [
        one
        for one in scene.frame.processes
        if is_wait(one.waits_for, WaitReason.PIPE_WRITE)
        and (
            one.pid in awaited or parents.get(parents.get(one.pid, 0), 0) in awaited or one.parent in awaited
        )
    ]
    if not below:
        return None
    who = f"{below[0].label} ({below[0].pid})"
    text = f"{name_rank(seen.thread)} {say_place(seen)}; {who} writes into a full pipe that nobody reads"
    return blame(Sink.FULL_PIPE, seen, text)


def expand_peers(seen: ThreadSeen, scene: Scene, picture: Picture) -> Step | None:
    """Lead to the processes at the other end of what a rank waits on; None where none is known."""
    target = seen.thread.waits_on
    if not is_known(target) or not is_known(target.others):
        return None
    pids = {end.pid for end in target.others} - {seen.thread.pid}
    mains = [one for pid in sorted(pids) if (one := picture.rank_or_main(pid)) is not None]
    ranks = [one for one in mains if one.thread.role is Role.RANK]
    if mains and len(ranks) == len(mains):
        # Which thread serves the socket of a rank is not known: it may be one that no stack shows.
        found = blame(Sink.PEER, seen, f"{name_of(seen)} {say_place(seen)}")
        return Leads(tuple(map(key_of, mains)), lambda ends: _join_ranks(ends, seen, found))
    return _lead_to(seen, mains, scene, picture, "an answer") if mains else None


def _join_ranks(ends: Sequence[End], seen: ThreadSeen, found: Blame) -> End:
    told = [one for one in ends if isinstance(one, Blame)]
    if len(told) < len(ends):
        return next(one for one in ends if isinstance(one, Goes))
    # What holds those ranks holds this one; where they wait for it in a collective, it is a circle.
    return _join(ends, seen, f"{name_rank(seen.thread)} waits for an answer") if told else found
