"""Say why a batch or a result does not come: a process died, one is stuck, or nobody has it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.outlier import ThreadSeen, is_pinning
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.activity import find_beside, weigh_beside
from tpmon.judge.hang.causes import (
    Blame,
    Grace,
    blame_thread,
    find_killed,
    give_grace,
    name_thread,
    pick_blame,
    say_place,
    tell_ends,
)
from tpmon.judge.stacks.classify import is_library, read_stack
from tpmon.judge.watch.picture import UNREAD, Picture, find_wait, is_idle
from tpmon.judge.watch.servers import ASKS, asks_another
from tpmon.model.dump import DeadChild
from tpmon.model.figures import Origin
from tpmon.model.known import Known, is_known, known_or
from tpmon.model.process import WORKER_NAME, Role, ThreadKind
from tpmon.model.text.dump_words import CHILD_WAITS, name_process, name_rank
from tpmon.model.waits import WaitReason

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
    needs = (Need.WORKER_DIED, Need.WORKERS_PRESENT)
    return Blame("dead-worker", seen, text, needs=needs, origins=(Origin.PROC,), dead=tuple(dead))


def _find_awaited(seen: ThreadSeen) -> set[int]:
    target = seen.thread.waits_on
    if not is_known(target) or target.call not in CHILD_WAITS or not is_known(target.others):
        return set()
    return {end.pid for end in target.others}


def _blame_workers(
    seen: ThreadSeen, workers: Sequence[ThreadSeen], scene: Scene, picture: Picture, what: str = _BATCH
) -> Blame | str | None:
    """Say which of the processes that a rank waits for holds it up; None where all of them are idle."""
    name = name_rank(seen.thread)
    told: list[Blame] = []
    moving: Blame | None = None
    for worker in workers:
        if is_idle(worker, picture):
            beside = find_beside(worker, scene, picture)
            if beside is not None:
                return f"{name_process(worker.thread)} waits, and {beside.text}"
            continue
        wait = find_wait(worker, picture)
        if wait is UNREAD or wait is WaitReason.STOPPED:
            return f"{name_process(worker.thread)} {'could not be read' if wait is UNREAD else 'is stopped'}"
        if wait is WaitReason.NOTHING and seen.doing.call in _TASKS:
            return f"{name_process(worker.thread)} moves: {worker.doing.text}"
        blame = _blame_worker(worker, wait, scene, picture)
        if isinstance(blame, str):
            return blame
        blame = replace(blame, text=f"{name} waits for {what}; {blame.text}", also=(*blame.also, seen))
        if wait is WaitReason.NOTHING:
            moving = moving or blame
        told.append(blame)
    # While one of them gets on, the others may wait for it, or be slow.
    return moving or (pick_blame(told) if told else None)


def _blame_worker(worker: ThreadSeen, wait: Known[WaitReason], scene: Scene, picture: Picture) -> Blame | str:
    """Say what keeps a process that is not idle; one that moves may retry without end."""
    who = f"{name_process(worker.thread)} ({worker.thread.pid})"
    if wait is WaitReason.NOTHING:
        return Blame("no-progress", worker, f"{who} moves: {worker.doing.text}", Grace.TRANSFER)
    blame = weigh_beside(blame_thread(worker, wait, who, picture), worker, wait, scene, picture)
    # Clients of stores wait for an answer with time-outs and retries of their own.
    asks = isinstance(blame, Blame) and blame.seen is worker and wait in ASKS and asks_another(worker)
    return give_grace(blame, Grace.COMPUTE) if isinstance(blame, Blame) and asks else blame


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


def blame_loader(seen: ThreadSeen, scene: Scene, picture: Picture) -> Blame | str:
    """Say why a batch does not come: a worker is dead or stuck, or nobody has it."""
    pid, name = seen.thread.pid, name_rank(seen.thread)
    workers = picture.scene.workers_of(seen)
    blame = _blame_workers(seen, workers, scene, picture) if workers else None
    if isinstance(blame, str):
        return blame
    dead = [one for one in picture.dead if one.parent == pid and _was_worker(one, seen, scene)]
    if dead:
        return _blame_dead(seen, dead, _BATCH, scene)
    # Loaders that are not torch's have threads or actors, not workers.
    if not workers and Need.TORCH_LOADER not in read_stack(seen.frames).needs:
        text = f"{name} {say_place(seen)}; the loader is not torch's, what fills its queue is not known"
        return Blame("no-progress", seen, text, Grace.TIMED)
    if not workers:
        return Blame(
            "dead-worker", seen, f"{name} waits for a batch, and none of its workers is alive", Grace.TIMED
        )
    if blame is not None:
        return blame
    pin = next(filter(is_pinning, picture.threads_of(pid)), None)
    if pin is not None:
        return _blame_pin(seen, pin, picture)
    ready = [one.ready_batches for one in scene.frame.loader if one.pid == pid]
    if any(is_known(one) and one >= 1 for one in ready):
        return f"{name}: a batch is ready in the loader's pipe"
    count = len(workers)
    idle = "its worker waits" if count == 1 else f"all its {count} workers wait"
    text = f"{name} waits for a batch, {idle} for work, and nothing is in their queues: the batch was lost"
    needs = (Need.WORKERS_PRESENT,)
    return Blame("lost-batch", seen, text, needs=needs, also=tuple(workers[:4]), origins=(Origin.PIPES,))


def _blame_pin(seen: ThreadSeen, pin: ThreadSeen, picture: Picture) -> Blame | str:
    """Say what keeps the thread that puts all batches into pinned memory."""
    wait = find_wait(pin, picture)
    who = f"{name_rank(seen.thread)} waits for a batch; {name_thread(pin)} of it"
    if wait in (WaitReason.NOTHING, UNREAD):
        return f"{who} {'moves' if wait is WaitReason.NOTHING else 'could not be read'}"
    blame = blame_thread(pin, wait, who, picture)
    return blame if wait is WaitReason.GIL else replace(blame, also=(seen, *blame.also))


def blame_children(seen: ThreadSeen, scene: Scene, picture: Picture) -> Blame | str | None:
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
        return None
    ends = "the end of a process" if awaited else "a result"
    blame = _blame_workers(seen, children, scene, picture, ends)
    if isinstance(blame, Blame) and not blame.needs:
        return replace(blame, needs=(Need.PROCESS_WAIT,))
    if blame is not None:
        return blame
    killed = [one for one in find_killed(pid, scene) if _may_answer(one, seen)]
    if killed:
        return _blame_dead(seen, killed, "a result", scene)
    count = len(children)
    who = "the process that it started waits" if count == 1 else f"all {count} processes that it started wait"
    text = (
        f"{name} waits for a result ({seen.doing.text}), and {who} for work: the result was lost, or "
        "the process that had it died"
    )
    return Blame("lost-batch", seen, text, also=tuple(children[:4]))


def blame_other_end(seen: ThreadSeen, scene: Scene, picture: Picture) -> Blame | str | None:
    """Say what keeps the process at the other end of what a rank waits on; None where none is known."""
    target = seen.thread.waits_on
    if not is_known(target) or not is_known(target.others):
        return None
    pids = {end.pid for end in target.others} - {seen.thread.pid}
    mains = [one for pid in sorted(pids) if (one := picture.main_of(pid)) is not None]
    return _blame_workers(seen, mains, scene, picture, "an answer") if mains else None
