"""Follow the waits of all ranks to what keeps the job from going on: a sink, or a missing rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.merge import ThreadKey
from tpmon.judge.dumps.outlier import SLOW_PHASES, ThreadSeen, worst_first
from tpmon.judge.features.cards import CardScene, cards_of
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import IDLE_CARD_PCT
from tpmon.judge.hang.activity import weigh_beside
from tpmon.judge.hang.devices import blame_cards, expand_card, expand_unseen_card, may_card_spin
from tpmon.judge.hang.graph import GROUP, Graph, Leads, Step, build, key_of
from tpmon.judge.hang.group import blame_nobody, doubt_all_here, say_waiting
from tpmon.judge.hang.loader import expand_batch, expand_children, expand_peers
from tpmon.judge.hang.sinks import Blame, End, Goes, Grace, Sink, blame, give_grace, pick_blame
from tpmon.judge.hang.threads import (
    close_circle,
    expand_thread,
    find_left,
    list_others,
    name_of,
    name_thread,
    say_place,
)
from tpmon.judge.stacks.classify import is_users
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import UNREAD, Picture, find_wait
from tpmon.judge.watch.servers import ASKS, asks_actor, asks_another, asks_here, waits_for_itself
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.text.dump_words import name_rank, name_ranks
from tpmon.model.waits import INPUTS, WaitReason, describe_wait, is_wait

_SLOW_PHASES = (*SLOW_PHASES, Phase.LOGGING)
"""Also those that send a run's last records, and end when they have arrived."""
_CHILD_CALLS = (
    LibraryCall.QUEUE_GET,
    LibraryCall.POOL_RESULT,
    LibraryCall.PIPE_READ,
    LibraryCall.PROCESS_JOIN,
    LibraryCall.FUTURE,
    LibraryCall.SUBPROCESS,
    LibraryCall.MANAGER_CALL,
)
_FOR_WORK = (LibraryCall.QUEUE_GET, LibraryCall.EVENT, LibraryCall.PROCESS_EVENT)
"""Calls in which threads of healthy programs wait for their next task."""
_SURE = (Sink.FORK, Sink.FULL_PIPE, Sink.CIRCLE)
"""Sinks that end no sooner because of the part of the run in which they are."""

Wait = tuple[ThreadSeen, Known[WaitReason]]


@dataclass(frozen=True, slots=True)
class _Cast:
    """Hold the threads of a picture by node, and the ranks of the job with what each waits for."""

    scene: Scene
    picture: Picture
    threads: Mapping[ThreadKey, ThreadSeen]
    waits: tuple[Wait, ...]


def draw_graph(scene: Scene, picture: Picture) -> Graph:
    """Draw who waits for whom, from the main threads of all ranks on."""
    waits = tuple((seen, find_wait(seen, picture)) for seen in picture.scene.ranks)
    threads = {key_of(one): one for one in (*picture.threads, *picture.scene.ranks)}
    cast = _Cast(scene, picture, threads, waits)
    starts = [key_of(seen) for seen, _ in waits]
    return build(starts, lambda node: _expand(node, cast), lambda node, circle: _close(node, circle, cast))


def _expand(node: ThreadKey, cast: _Cast) -> Step:
    if node == GROUP:
        outside = [key_of(seen) for seen, wait in cast.waits if wait is not WaitReason.COLLECTIVE]
        return Leads(tuple(outside), pick_end)
    seen = cast.threads[node]
    wait = next((wait for one, wait in cast.waits if one is seen), None)
    if wait is not None:
        return _expand_rank(seen, wait, cast)
    return _expand_other(seen, cast)


def pick_end(ends: Sequence[End]) -> End:
    """Return what goes on, else the surest blame."""
    goes = next((one for one in ends if isinstance(one, Goes)), None)
    return goes or pick_blame([one for one in ends if isinstance(one, Blame)])


def _close(node: ThreadKey, circle: frozenset[ThreadKey], cast: _Cast) -> End:
    """Say what a circle of waits ends at; of one through the collective, that the rank is not in it."""
    if GROUP in circle:
        seen = cast.threads[node]
        return blame(Sink.PEER, seen, f"{name_of(seen)} {say_place(seen)}")
    return close_circle([cast.threads[one] for one in sorted(circle)])


def _expand_other(seen: ThreadSeen, cast: _Cast) -> Step:
    """Say what keeps a thread that is no rank's main one; a process that moves may retry without end."""
    wait, is_main = find_wait(seen, cast.picture), seen.thread.kind is ThreadKind.MAIN
    who = name_of(seen) if is_main else f"{name_thread(seen)} of it"
    if wait is WaitReason.NOTHING:
        return blame(Sink.WORKER_MOVES, seen, f"{who} moves: {seen.doing.text}")
    if wait is WaitReason.SLEEP and _keeps_pace(seen, cast):
        return blame(Sink.WORKER_MOVES, seen, f"{who} sleeps again and again in {seen.doing.text}")
    step = expand_thread(seen, wait, who, cast.scene, cast.picture)
    pipes = expand_pipe(seen, cast.picture, step) if wait is WaitReason.READ_WRITE else None
    return pipes or (_map(step, lambda end: _weigh_other(end, seen, wait, cast)) if is_main else step)


def _keeps_pace(seen: ThreadSeen, cast: _Cast) -> bool:
    """Tell whether a process sleeps for short times: it tries again, or keeps to a pace."""
    process = next((one for one in cast.scene.frame.processes if one.pid == seen.thread.pid), None)
    return process is not None and known_or(process.waits_unchanged_s, math.inf) < cast.picture.seconds


def _weigh_other(end: End, seen: ThreadSeen, wait: Known[WaitReason], cast: _Cast) -> End:
    found = weigh_beside(end, seen, wait, cast.scene, cast.picture)
    # Clients of stores wait for an answer with time-outs and retries of their own.
    asks = isinstance(found, Blame) and found.seen is seen and wait in ASKS and asks_another(seen)
    return give_grace(found, Grace.COMPUTE) if isinstance(found, Blame) and asks else found


def _map(step: Step, change: Callable[[End], End]) -> Step:
    """Change the end of a node, wherever its wait leads to."""
    if isinstance(step, Leads):
        return Leads(step.to, lambda ends: change(step.join(ends)))
    return change(step)


def expand_pipe(seen: ThreadSeen, picture: Picture, found: Step) -> Leads | None:
    """Lead from a write into a full pipe to the process that should read it; None for anything else."""
    target = seen.thread.waits_on
    others = known_or(target.others, ()) if is_known(target) else ()
    mains = [main for one in others if (main := picture.rank_or_main(one.pid)) is not None]
    if not is_wait(seen.thread.waits_for, WaitReason.PIPE_WRITE) or not mains or not isinstance(found, Blame):
        return None
    return Leads(tuple(key_of(one) for one in mains if one is not seen), lambda _: found)


def _expand_rank(seen: ThreadSeen, wait: Known[WaitReason], cast: _Cast) -> Step:
    """Say what keeps one rank."""
    if wait is WaitReason.COLLECTIVE:
        return Leads((GROUP,), pick_end)
    return _map(_expand_wait(seen, wait, cast), lambda end: _weigh_rank(end, seen, wait, cast))


def _weigh_rank(end: End, seen: ThreadSeen, wait: Known[WaitReason], cast: _Cast) -> End:
    """Give the wait of a rank the grace of what it may wait for."""
    found = weigh_beside(end, seen, wait, cast.scene, cast.picture)
    if isinstance(found, Goes) or found.sink in _SURE:
        return found
    asks = wait in ASKS and asks_another(seen) and found.sink is not Sink.EVENT_LOOP
    if asks and (found.seen is seen or found.cause == "no-progress"):
        # A batch of rollouts takes as long as its longest answer; the server may rest in its loop meanwhile.
        long = asks_actor(seen) or asks_here(seen)
        if long or found.seen is seen:
            return give_grace(found, Grace.TRANSFER if long else Grace.COMPUTE)
    if found.grace in (Grace.COMPUTE, Grace.TRANSFER):
        return found
    # A writer, be it a thread or a process, may do what a rank waits for.
    own = [one for one in (found.seen, *found.also) if one.thread.role is not Role.WORKER]
    # Loggers keep idle threads in most programs: for these only the rank's own stack counts.
    is_slow = seen.doing.phase in _SLOW_PHASES or any(one.doing.phase in SLOW_PHASES for one in own)
    return give_grace(found, Grace.SLOW) if is_slow else found


def _expand_wait(seen: ThreadSeen, wait: Known[WaitReason], cast: _Cast) -> Step:
    scene, picture, name = cast.scene, cast.picture, name_rank(seen.thread)
    if wait in (WaitReason.STOPPED, UNREAD):
        return Goes(f"{name} is stopped" if wait is WaitReason.STOPPED else f"{name}: not enough looks")
    if wait in INPUTS:
        return blame(Sink.PERSON, seen, f"{name} {say_place(seen)}")
    if wait is WaitReason.BATCH:
        return expand_batch(seen, scene, picture)
    if wait is WaitReason.THREADS:
        return find_left(seen, picture)
    if waits_for_itself(seen):
        text = f"{name} {say_place(seen)}: its tasks wait for each other, and no other process can wake it"
        return blame(Sink.EVENT_LOOP, seen, text)
    # A thread that waits for the GIL is no further: what it asked for may have come.
    asks = seen.doing.call in _CHILD_CALLS or picture.polls(seen) or picture.asks_below(seen)
    child = expand_children(seen, scene, picture) if asks and wait is not WaitReason.GIL else None
    if child is not None:
        return child
    other = expand_peers(seen, scene, picture) if wait is WaitReason.READ_WRITE else None
    if other is not None:
        return other
    cards = cards_of(seen.thread.pid, scene.gpus)
    if cards and (
        wait is WaitReason.DEVICE or (wait is WaitReason.RUNNING and _may_wait(seen, cards, picture))
    ):
        return expand_card(seen, scene, picture)
    at_card = not cards and wait in (WaitReason.DEVICE, WaitReason.RUNNING)
    unseen = expand_unseen_card(seen, picture) if at_card else None
    return unseen or expand_thread(seen, wait, name, scene, picture)


def _may_wait(seen: ThreadSeen, cards: Sequence[CardScene], picture: Picture) -> bool:
    """Tell whether a running thread may wait for a card: not if it loops, or its cards are idle."""
    if picture.goes_round(seen):
        return False
    return any(not is_known(one.busy_pct) or one.busy_pct >= IDLE_CARD_PCT for one in cards)


def find_end(scene: Scene, picture: Picture) -> End:
    """Return what keeps the job from going on, or what shows that nothing does.

    Actors without a task may get one later, or be what the others wait for.
    """
    waits = [(seen, find_wait(seen, picture)) for seen in picture.scene.ranks]
    free = [seen for seen, wait in waits if wait is WaitReason.TASK]
    if free and len(free) == len(waits):
        return Goes(f"{name_ranks(seen.thread for seen in free)}: no task was given")
    end = _find_end([one for one in waits if one[1] is not WaitReason.TASK], scene, picture)
    if not free or isinstance(end, Goes):
        return end
    end = give_grace(end, Grace.SLOW)
    names = f"{name_ranks(seen.thread for seen in free)} without a task"
    waiting = [seen for seen, wait in waits if wait is WaitReason.COLLECTIVE]
    is_theirs = end.cause in ("no-progress", "missing-rank") and not end.needs
    if not is_theirs or len(waiting) + len(free) < len(waits):
        return replace(end, text=f"{end.text}; {names}")
    text = f"{say_waiting(waiting, len(waits))}; {names}"
    return replace(
        end, cause="missing-rank", seen=free[0], text=text, also=tuple(waiting), is_of_all=len(free) > 1
    )


def _find_end(waits: Sequence[Wait], scene: Scene, picture: Picture) -> End:
    waiting = [seen for seen, wait in waits if wait is WaitReason.COLLECTIVE]
    # Of equal ones a dump names the same.
    order = worst_first([seen for seen, wait in waits if wait is not WaitReason.COLLECTIVE])
    outside = [(seen, find_wait(seen, picture)) for seen in order]
    for seen, wait in outside:
        if wait is WaitReason.NOTHING:
            return Goes(f"{name_rank(seen.thread)} moves: {seen.doing.text}")
        # A job whose other ranks wait for the one at the prompt is not idle.
        if wait in INPUTS and not waiting:
            return Goes(f"{name_rank(seen.thread)} waits for input")
    server = picture.main_of(scene.watch.served)
    if server is not None:
        return Goes(f"{name_rank(server.thread)} waits for requests: {server.doing.text}")
    unread = picture.scene.unread
    if not outside and not unread:
        return blame_nobody(waiting, scene, picture)
    graph = draw_graph(scene, picture)
    ends = [graph.follow(key_of(seen)) for seen, _ in outside]
    going = next((one for one in ends if isinstance(one, Goes)), None)
    if going is not None:
        return going
    told = [one for one in ends if isinstance(one, Blame)]
    # A card that may be busy but does next to nothing is in a collective, if there are other ranks.
    spins = [one for one in told if one.cause == "gpu-wait" and may_card_spin(one.seen, scene)]
    if spins and (len(spins) < len(told) or picture.scene.remote or unread or waiting):
        told = [one for one in told if one not in spins]
        spinning = [one.seen for one in spins]
        outside = [(seen, wait) for seen, wait in outside if seen not in spinning]
        waiting = [*waiting, *spinning]
    if unread:
        return _blame_unread(waiting, scene, picture)
    if not told:
        least = max((one.grace for one in spins), default=Grace.ENDLESS)
        return give_grace(blame_nobody(waiting, scene, picture), least)
    if not waiting and len(told) > 1 and all(one.cause == "gpu-wait" for one in told):
        found = blame_cards(told)
        return found if found.grace is Grace.TRANSFER else doubt_all_here(found, scene)
    # The others wait for what one of them does on purpose.
    first = give_grace(pick_blame(told), max(one.grace for one in told))
    works = next((one for one in spins if one.grace is Grace.TRANSFER), None)
    if works is not None and first.cause not in ("dead-worker", "lost-batch"):
        # It may do what the others wait for.
        first = replace(give_grace(first, Grace.TRANSFER), text=f"{first.text}; meanwhile {works.text}")
    if waiting:
        return _blame_missing(first, waiting, outside)
    # A program that sleeps polls for a file, or keeps to a pace, unless somebody waits for it.
    alone = first.sink is Sink.SLEEP and any(seen is first.seen for seen, _ in outside)
    return _judge_sleep(first, picture) if alone else first


def _judge_sleep(found: Blame, picture: Picture) -> End:
    """Say what a main thread polls: a thread of its own that stands at a lock, else nothing that is seen."""
    stuck = next((one for one in list_others(found.seen, picture) if _is_stuck(one, picture)), None)
    talks = any(one.thread.kind is ThreadKind.COMM for one in picture.threads_of(found.seen.thread.pid))
    if stuck is None and talks and (len(picture.scene.ranks) == 1 or picture.scene.remote):
        # C code of a store sleeps too, until ranks have come that are not seen here.
        return give_grace(found, Grace.REMOTE)
    if stuck is None:
        return Goes(f"{found.text}, and nobody waits for it")
    text = f"{found.text}; {name_thread(stuck)} of it {say_place(stuck)}"
    return blame(Sink.EVENT, found.seen, text, also=(stuck,))


def _is_stuck(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a thread of the program stands at a lock, and does not only wait for work."""
    at_lock = find_wait(seen, picture) is WaitReason.LOCK and seen.doing.call not in _FOR_WORK
    return at_lock and seen.thread.kind is ThreadKind.OTHER and any(map(is_users, seen.frames))


def find_poller(scene: Scene) -> ThreadSeen | None:
    """Return the main thread of a job whose ranks all sleep, and wait for nobody; None for any other."""
    picture = scene.watch.picture
    if picture is None or picture.scene.unread:
        return None
    mains = picture.scene.ranks
    sleep = all(find_wait(seen, picture) is WaitReason.SLEEP for seen in mains)
    return mains[0] if sleep and isinstance(find_end(scene, picture), Goes) else None


def _blame_unread(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> End:
    """Say what /proc shows of a rank whose stack could not be read, where all others wait for it."""
    unread = picture.scene.unread
    first = picture.main_of(unread[0].pid)
    process = next((one for one in scene.frame.processes if one.pid == unread[0].pid), None)
    all_wait = bool(waiting) and len(waiting) == len(picture.scene.ranks)
    if not all_wait or first is None or process is None:
        return Goes(f"{name_ranks(unread)} could not be read")
    reason = first.sighting.frames
    why = f" ({reason.reason})" if isinstance(reason, Missing) else ""
    waits = f", by the kernel in: {describe_wait(process.waits_for)}" if is_known(process.waits_for) else ""
    head = say_waiting(waiting, len(waiting) + len(unread))
    text = f"{head}; the stack of {name_ranks(unread)} was not read{why}{waits}"
    # Its place is not known, so it may be anything that is slow.
    return blame(Sink.UNREAD, first, text, also=waiting)


def _blame_missing(found: Blame, waiting: Sequence[ThreadSeen], outside: Sequence[Wait]) -> Blame:
    """Say that the rank which the others wait for is not with them."""
    head = say_waiting(waiting, len(waiting) + len(outside))
    culprit = found.seen.thread
    pids = (culprit.pid, culprit.rank_pid)  # a worker is blamed in the words of its rank
    more = [seen.thread for seen, _ in outside if seen.thread.pid not in pids]
    others = f"; {name_ranks(more)} not there either" if more else ""
    cause = found.cause if found.cause in ("dead-worker", "lost-batch") else "missing-rank"
    return replace(found, cause=cause, text=f"{head}; {found.text}{others}")
