"""Lead from a rank to the processes that it waits for: loader workers, a pool's, those at its pipes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.camps import ThreadSeen, say_place
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.features.ends import find_killed, list_past, tell_ends
from tpmon.judge.hang.activity import find_beside
from tpmon.judge.hang.graph import Blame, End, Goes, Leads, Sink, Step, WaitFacts, blame, key_of, pick_end
from tpmon.judge.hang.threads import list_others, name_thread
from tpmon.judge.stacks.classify import is_at, is_library, last_name, read_stack
from tpmon.judge.watch.picture import UNREAD, is_idle
from tpmon.model.dump import DeadChild
from tpmon.model.known import is_known, known_or
from tpmon.model.process import WORKER_NAME, Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import CHILD_WAITS, name_process, name_rank
from tpmon.model.waits import WaitReason, is_wait

_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_TRACKER = "/resource_tracker.py"
"""Of multiprocessing, and of its copies in loky and multiprocess: it waits on a pipe all its life."""
_REPLACES = "_maintain_pool"
"""Where a pool starts a process in place of one that ended; a forked one still has it in its stack."""
_BATCH = "a batch"
TASKS = (LibraryCall.POOL_RESULT, LibraryCall.PROCESS_JOIN, LibraryCall.FUTURE, LibraryCall.SUBPROCESS)
"""Waits for work that was handed over as a whole, however long it takes."""
_RESULTS = (LibraryCall.QUEUE_GET, LibraryCall.POOL_RESULT, LibraryCall.FUTURE)
"""Waits for what another Python process hands over."""


def _blame_dead(seen: ThreadSeen, dead: Sequence[DeadChild], noun: str, facts: WaitFacts) -> Blame:
    name, dead, many = name_rank(seen.thread), tell_ends(dead, facts.history), len(dead) > 1
    pids = ", ".join(f"{one.pid}: {one.how}" for one in dead)
    those = "processes that are" if many else "a process that is"
    text = f"{name} waits for {noun} of {those} dead ({pids}): {seen.doing.text}"
    awaited = _find_awaited(seen)
    if awaited and awaited.isdisjoint(one.pid for one in dead):
        others = "other processes that it started are" if many else "another process that it started is"
        text = f"{name} {say_place(seen)}; {others} dead ({pids}), which that one may wait for"
    needs = (Need.WORKERS_PRESENT,) if noun is _BATCH else ()
    return replace(blame(Sink.DEAD, seen, text, needs=needs), dead=tuple(dead))


def _find_awaited(seen: ThreadSeen) -> set[int]:
    target = seen.thread.waits_on
    return {end.pid for end in seen.ends} if is_known(target) and target.call in CHILD_WAITS else set()


def _lead_to(seen: ThreadSeen, those: Sequence[ThreadSeen], facts: WaitFacts, what: str) -> Step | None:
    """Lead to those of the processes that a rank waits for which are not idle; None where all of them are."""
    to: list[ThreadSeen] = []
    for one in those:
        name, wait = name_process(one.thread), facts.wait_of(one)
        if is_idle(one, facts.picture) and not _asks_itself(one, facts):
            if (beside := find_beside(one, facts)) is not None:
                return Goes(f"{name} waits, and {beside.text}")
            continue
        if wait is UNREAD or (wait is WaitReason.STOPPED and facts.history):
            return Goes(f"{name} {'could not be read' if wait is UNREAD else 'is stopped'}")
        if wait is WaitReason.NOTHING and seen.doing.call in TASKS:
            return Goes(f"{name} moves: {one.doing.text}")
        to.append(one)
    if not to:
        return None
    head = f"{name_rank(seen.thread)} waits for {what}"
    return Leads(tuple(map(key_of, to)), lambda ends: _join(ends, seen, head))


def _asks_itself(seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether a process waits at a queue of its own, and no other thread of it could fill that."""
    at_own = any(is_at(one, "queue.py", "get") and is_library(one.file) for one in seen.frames)
    return at_own and not list_others(seen, facts)


def _join(ends: Sequence[End], seen: ThreadSeen, head: str) -> End:
    """Make one end of several: while one of them gets on, the others may wait for it, or be slow."""
    moving = [one for one in ends if isinstance(one, Blame) and one.sink is Sink.WORKER_MOVES]
    found = pick_end([*moving[:1], *(one for one in ends if isinstance(one, Goes))] or ends)
    if isinstance(found, Goes):
        return found
    return replace(found, text=f"{head}; {found.text}", also=(*found.also, seen))


def _was_worker(dead: DeadChild, seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether a dead child may have been a loader worker, and not a program of the rank's."""
    if dead.name.startswith(WORKER_NAME):
        return True
    cast = [one for one in list_past(facts.history) if one.pid == dead.pid]
    if cast:
        return any(one.role is Role.WORKER for one in cast)
    # It died before tpmon came: a worker of an older torch has no name of its own.
    siblings = [one for one in facts.processes if one.rank_pid == seen.thread.pid]
    named = any(one.name.startswith(WORKER_NAME) for one in siblings)
    return not named and known_or(dead.python, False)


def _may_answer(dead: DeadChild, seen: ThreadSeen) -> bool:
    """Tell whether a rank may wait for a dead child: only Python fills a queue or a pool."""
    return seen.doing.call not in _RESULTS or known_or(dead.python, False)


def expand_batch(seen: ThreadSeen, facts: WaitFacts) -> Step:
    """Say why a batch does not come: a worker is dead or stuck, or nobody has it."""
    pid, name = seen.thread.pid, name_rank(seen.thread)
    workers = facts.picture.scene.workers_of(seen)
    leads = _lead_to(seen, workers, facts, _BATCH)
    if isinstance(leads, Goes):
        return leads
    dead = [one for one in facts.picture.dead if one.parent == pid and _was_worker(one, seen, facts)]
    if dead:
        lost = _blame_dead(seen, dead, _BATCH, facts)
        if not isinstance(leads, Leads):
            return lost
        return Leads(leads.to, lambda ends: next((one for one in ends if isinstance(one, Goes)), lost))
    # Loaders that are not torch's have threads or actors, not workers.
    if not workers and seen.frames and Need.TORCH_LOADER not in read_stack(seen.frames).needs:
        text = f"{name} {say_place(seen)}; the loader is not torch's, what fills its queue is not known"
        return blame(Sink.FOREIGN_LOADER, seen, text)
    if not workers:
        return blame(Sink.NO_WORKERS, seen, f"{name} waits for a batch, and none of its workers is alive")
    if leads is not None:
        return leads
    pin = next((one for one in facts.picture.scene.pinning if one.process == seen.process), None)
    if pin is not None:
        return _lead_to_pin(seen, pin, facts)
    if any(one.pid == pid and known_or(one.ready_batches, 0) >= 1 for one in facts.loaders):
        return Goes(f"{name}: a batch is ready in the loader's pipe")
    idle = "its worker waits" if len(workers) == 1 else f"all its {len(workers)} workers wait"
    empty = ", and nothing is in their queues" if facts.history else ""
    text = f"{name} waits for a batch, {idle} for work{empty}: the batch was lost"
    return blame(Sink.LOST_BATCH, seen, text, also=workers[:4])


def _lead_to_pin(seen: ThreadSeen, pin: ThreadSeen, facts: WaitFacts) -> Step:
    """Lead to the thread that puts all batches into pinned memory."""
    wait, head = facts.wait_of(pin), f"{name_rank(seen.thread)} waits for a batch"
    if wait in (WaitReason.NOTHING, UNREAD):
        does = "moves" if wait is WaitReason.NOTHING else "could not be read"
        return Goes(f"{head}; {name_thread(pin)} of it {does}")

    def join(ends: Sequence[End]) -> End:
        end = ends[0]
        if isinstance(end, Goes) or wait is WaitReason.GIL:
            return end
        return replace(end, text=f"{head}; {end.text}", also=(seen, *end.also))

    return Leads((key_of(pin),), join)


def expand_children(seen: ThreadSeen, facts: WaitFacts) -> Step | None:
    """Say the same of processes that the program started itself; None where it started none."""
    pid, name = seen.thread.pid, name_rank(seen.thread)
    dead = [one for one in facts.picture.dead if one.parent == pid and _may_answer(one, seen)]
    if dead:
        return _blame_dead(seen, dead, "a result", facts)
    pids = facts.started_by(pid)
    mains = (one for one in facts.picture.threads if one.thread.kind is ThreadKind.MAIN and one.is_read)
    children = [one for one in mains if one.thread.pid in pids and not any(map(_serves, one.frames))]
    awaited = _find_awaited(seen)
    if awaited:
        # A join waits for certain processes: where the others are does not matter.
        children = [one for one in children if one.thread.pid in awaited]
    if not children:
        return _find_full_pipe(seen, awaited, facts)
    leads = _lead_to(seen, children, facts, "the end of a process" if awaited else "a result")
    if isinstance(leads, Leads):
        return Leads(leads.to, lambda ends: _need_process(leads.join(ends)))
    if leads is not None:
        return leads
    killed = [one for one in find_killed(pid, facts.history) if _may_answer(one, seen)]
    if killed:
        return _blame_dead(seen, killed, "a result", facts)
    count = len(children)
    replaced = [one for one in children if any(map(_replaces, one.frames))]
    if replaced:
        later = ", ".join(str(one.thread.pid) for one in replaced)
        text = (
            f"{name} waits for a result ({seen.doing.text}) of a process of its pool that has ended: "
            f"{later} was started in its place, and all {count} processes of the pool wait for work"
        )
        return blame(Sink.DEAD, seen, text, needs=(Need.POOL_FROZEN,), also=(*replaced, *children)[:4])
    who = "the process that it started waits" if count == 1 else f"all {count} processes that it started wait"
    text = (
        f"{name} waits for a result ({seen.doing.text}), and {who} for work: the result was lost, or "
        "the process that had it died"
    )
    need = Need.QUEUE_WAIT if seen.doing.call is LibraryCall.QUEUE_GET else Need.POOL_FROZEN
    return blame(Sink.LOST_RESULT, seen, text, needs=(need,), also=children[:4])


def _serves(frame: StackFrame) -> bool:
    return frame.file.endswith((_TRACKER, _WORKER_LOOP)) and is_library(frame.file)


def _replaces(frame: StackFrame) -> bool:
    return last_name(frame.function) == _REPLACES and is_library(frame.file)


def _need_process(end: End) -> End:
    return replace(end, needs=(Need.PROCESS_WAIT,)) if isinstance(end, Blame) and not end.needs else end


def _find_full_pipe(seen: ThreadSeen, awaited: set[int], facts: WaitFacts) -> Blame | None:
    """Say that a program which the rank waits for writes into a full pipe: only the rank could read it."""
    if seen.doing.call not in TASKS or not awaited:
        return None
    parents = {one.pid: one.parent for one in facts.processes}
    writes = (one for one in facts.processes if is_wait(one.waits_for, WaitReason.PIPE_WRITE))
    for one in writes:
        if awaited & {one.pid, one.parent, parents.get(one.parent, 0)}:
            who = f"{one.label} ({one.pid}) writes into a full pipe that nobody reads"
            return blame(Sink.FULL_PIPE, seen, f"{name_rank(seen.thread)} {say_place(seen)}; {who}")
    return None


def expand_peers(seen: ThreadSeen, facts: WaitFacts) -> Step | None:
    """Lead to the processes at the other end of what a rank waits on; None where none is known."""
    pids = {end.pid for end in seen.ends} - {seen.thread.pid}
    mains = [one for pid in sorted(pids) if (one := facts.picture.rank_or_main(pid)) is not None]
    if not mains or any(one.thread.role is not Role.RANK for one in mains):
        return _lead_to(seen, mains, facts, "an answer") if mains else None
    # Which thread serves the socket of a rank is not known: it may be one that no stack shows. What holds
    # those ranks holds this one; where they wait for it in a collective, it is a circle.
    head = f"{name_rank(seen.thread)} waits for an answer"
    return Leads(tuple(map(key_of, mains)), lambda ends: _join(ends, seen, head))
