"""Follow the waits of all ranks to what keeps the job from going on: a sink, or a missing rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.camps import SLOW_PHASES, ThreadSeen, say_place, say_waiting, worst_first
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.merge import ThreadKey
from tpmon.judge.features.cards import cards_of
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.activity import (
    blame_cards,
    expand_card,
    expand_unseen_card,
    may_be_busy,
    may_card_spin,
    read_history,
    weigh_beside,
)
from tpmon.judge.hang.graph import (
    GROUP,
    Blame,
    End,
    Goes,
    Grace,
    Graph,
    Leads,
    Sink,
    Step,
    WaitFacts,
    blame,
    build,
    give_grace,
    key_of,
    pick_blame,
    pick_end,
)
from tpmon.judge.hang.group import blame_nobody, doubt_all_here
from tpmon.judge.hang.loader import TASKS, expand_batch, expand_children, expand_peers
from tpmon.judge.hang.readings import draw_facts
from tpmon.judge.hang.threads import (
    close_circle,
    expand_thread,
    find_left,
    list_others,
    name_of,
    name_thread,
    need_of_io,
    runs_program,
)
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import UNREAD
from tpmon.judge.watch.servers import ASKS, asks_actor, asks_another, asks_here, waits_for_itself
from tpmon.judge.watch.tracker import asks_frozen
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.text.dump_words import name_rank, name_ranks
from tpmon.model.waits import INPUTS, WaitReason, describe_wait, is_wait

_SLOW_PHASES = (*SLOW_PHASES, Phase.LOGGING)
"""Also those that send a run's last records, and end when they have arrived."""
_CHILD_CALLS = (*TASKS, LibraryCall.QUEUE_GET, LibraryCall.PIPE_READ, LibraryCall.MANAGER_CALL)
_FOR_WORK = (LibraryCall.QUEUE_GET, LibraryCall.EVENT, LibraryCall.PROCESS_EVENT)
"""Calls in which threads of healthy programs wait for their next task."""
_TICKING_CALLS = (None, LibraryCall.SELECT, *_FOR_WORK)
"""Calls with a time-out by which programs keep to a pace, and wait for nobody in particular."""
_SURE = (Sink.FORK, Sink.FULL_PIPE, Sink.CIRCLE)
"""Sinks that end no sooner because of the part of the run in which they are."""
_PACES = (Sink.SLEEP, Sink.EVENT, Sink.REST, Sink.EVENT_LOOP)
"""Sinks of a main thread that may only wait for its own clock."""


def draw_graph(facts: WaitFacts) -> Graph:
    """Draw who waits for whom, from the main threads of all ranks on."""
    ranks = {key_of(one): one for one in facts.picture.scene.ranks}
    others: dict[ThreadKey, ThreadSeen] = {}
    outside = (node for node, one in ranks.items() if facts.wait_of(one) is not WaitReason.COLLECTIVE)
    group = Leads(tuple(outside), pick_end)

    def find(node: ThreadKey) -> ThreadSeen:
        """Return the thread of a node; most jobs are told by the main threads of their ranks alone."""
        if node not in ranks and not others:
            others.update((key_of(one), one) for one in facts.picture.threads)
        return ranks[node] if node in ranks else others[node]

    def expand(node: ThreadKey) -> Step:
        if node == GROUP:
            return group
        seen = find(node)
        return (_expand_rank if node in ranks else _expand_other)(seen, facts.at(seen))

    def close(node: ThreadKey, circle: frozenset[ThreadKey]) -> End:
        """Say what a circle of waits ends at; of one through the collective, that the rank is not in it."""
        if GROUP not in circle:
            return close_circle([find(one) for one in sorted(circle)])
        seen = find(node)
        return blame(Sink.PEER, seen, f"{name_of(seen)} {say_place(seen)}")

    return build(ranks, expand, close)


def _expand_other(seen: ThreadSeen, facts: WaitFacts) -> Step:
    """Say what keeps a thread that is no rank's main one; a process that moves may retry without end."""
    wait, is_main = facts.wait_of(seen), seen.thread.kind is ThreadKind.MAIN
    who = name_of(seen) if is_main else f"{name_thread(seen)} of it"
    process = facts.process_of(seen)
    unchanged_s = math.inf if process is None else known_or(process.waits_unchanged_s, math.inf)
    if wait is WaitReason.NOTHING:
        return blame(Sink.WORKER_MOVES, seen, f"{who} moves: {seen.doing.text}")
    if wait is WaitReason.SLEEP and unchanged_s < facts.picture.seconds:
        return blame(Sink.WORKER_MOVES, seen, f"{who} sleeps again and again in {seen.doing.text}")
    step = expand_thread(seen, wait, who, facts)
    mains = [main for one in seen.ends if (main := facts.picture.rank_or_main(one.pid)) is not None]
    writes = wait is WaitReason.READ_WRITE and is_wait(seen.thread.waits_for, WaitReason.PIPE_WRITE)
    if writes and mains and isinstance(step, Blame):
        # It waits for the process that should read from its full pipe.
        return Leads(tuple(key_of(one) for one in mains if one is not seen), lambda _: step)

    def weigh(end: End) -> End:
        found = weigh_beside(end, seen, wait, facts)
        # Clients of stores wait for an answer with time-outs and retries of their own.
        asks = isinstance(found, Blame) and found.seen is seen and wait in ASKS and asks_another(seen)
        return give_grace(found, Grace.COMPUTE) if isinstance(found, Blame) and asks else found

    return _map(step, weigh) if is_main else step


def _map(step: Step, change: Callable[[End], End]) -> Step:
    """Change the end of a node, wherever its wait leads to."""
    if isinstance(step, Leads):
        return Leads(step.to, lambda ends: change(step.join(ends)))
    return change(step)


def _expand_rank(seen: ThreadSeen, facts: WaitFacts) -> Step:
    wait = facts.wait_of(seen)
    if wait is WaitReason.COLLECTIVE:
        return Leads((GROUP,), pick_end)
    step = _expand_wait(seen, wait, facts)
    return _map(step, lambda end: _weigh_rank(end, seen, wait, facts))


def _weigh_rank(end: End, seen: ThreadSeen, wait: Known[WaitReason], facts: WaitFacts) -> End:
    """Give the wait of a rank the grace of what it may wait for."""
    found = weigh_beside(end, seen, wait, facts)
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


def _expand_wait(seen: ThreadSeen, wait: Known[WaitReason], facts: WaitFacts) -> Step:
    name = name_rank(seen.thread)
    if wait is UNREAD:
        return Goes(f"{name}: not enough looks")
    if wait is WaitReason.STOPPED and facts.history:
        return Goes(f"{name} is stopped")  # since when tells its reading
    if not facts.picture.looks and wait is WaitReason.OTHER:
        return facts.unseen[seen.thread.pid]
    if wait in INPUTS:
        return blame(Sink.PERSON, seen, f"{name} {say_place(seen)}")
    if wait is WaitReason.BATCH:
        return expand_batch(seen, facts)
    if wait is WaitReason.THREADS:
        return find_left(seen, facts)
    if waits_for_itself(seen):
        text = (
            f"{name} {say_place(seen)}: its coroutines await each other, or a task that has ended "
            "(which of them, no stack shows), and no other process can wake it"
        )
        return blame(Sink.EVENT_LOOP, seen, text)
    # A thread that waits for the GIL is no further: what it asked for may have come.
    asks = seen.doing.call in _CHILD_CALLS or facts.picture.polls(seen) or facts.picture.asks_below(seen)
    process = facts.process_of(seen) if wait in (WaitReason.SLEEP, WaitReason.OTHER) else None
    frozen = process is not None and asks_frozen(process, facts.history[-1])
    other = expand_children(seen, facts) if (asks or frozen) and wait is not WaitReason.GIL else None
    # Who sleeps beside processes without a task does not wait for them.
    other = other if asks or isinstance(other, Leads) else None
    if other is None and wait is WaitReason.READ_WRITE:
        other = expand_peers(seen, facts)
    if other is not None:
        return other
    cards = cards_of(seen.thread.pid, facts.cards)
    # A running thread may wait for a card, unless it loops, or its cards are idle.
    spins = not cards or (not facts.picture.goes_round(seen) and any(map(may_be_busy, cards)))
    if wait is WaitReason.DEVICE or (wait is WaitReason.RUNNING and spins):
        card = expand_card(seen, facts) if cards else expand_unseen_card(seen, facts)
        if card is not None:
            return card
    return expand_thread(seen, wait, name, facts)


def find_end(facts: WaitFacts) -> End:
    """Return what keeps the job from going on, or what shows that nothing does.

    Actors without a task may get one later, or be what the others wait for.
    """
    waits = {key_of(seen): facts.wait_of(seen) for seen in facts.picture.scene.ranks}
    ranks = [seen for seen in facts.picture.scene.ranks if waits[key_of(seen)] is not WaitReason.TASK]
    free = [seen for seen in facts.picture.scene.ranks if waits[key_of(seen)] is WaitReason.TASK]
    names = name_ranks(seen.thread for seen in free)
    if free and not ranks:
        return Goes(f"{names}: no task was given")
    waiting = [seen for seen in ranks if waits[key_of(seen)] is WaitReason.COLLECTIVE]
    others = [seen for seen in ranks if waits[key_of(seen)] is not WaitReason.COLLECTIVE]
    end = _find_end(waiting, others, facts)
    if not free or isinstance(end, Goes):
        return end
    end = give_grace(end, Grace.SLOW)
    is_theirs = end.cause in ("no-progress", "missing-rank") and not end.needs
    if not is_theirs or len(waiting) < len(ranks):
        return replace(end, text=f"{end.text}; {names} without a task")
    text = f"{say_waiting(waiting, len(waits))}; {names} without a task"
    end = replace(end, cause="missing-rank", seen=free[0], text=text, also=tuple(waiting))
    return replace(end, is_of_all=len(free) > 1)


def _find_end(waiting: Sequence[ThreadSeen], others: Sequence[ThreadSeen], facts: WaitFacts) -> End:
    # Of equal ones a dump names the same.
    outside = worst_first(others)
    for seen in outside:
        wait = facts.wait_of(seen)
        if wait is WaitReason.NOTHING:
            return Goes(f"{name_rank(seen.thread)} moves: {seen.doing.text}")
        # A job whose other ranks wait for the one at the prompt is not idle.
        if wait in INPUTS and not waiting:
            return Goes(f"{name_rank(seen.thread)} waits for input")
    server = facts.picture.main_of(facts.watch.served)
    if server is not None:
        return Goes(f"{name_rank(server.thread)} waits for requests: {server.doing.text}")
    unread = facts.picture.scene.unread
    if not outside and not unread:
        return blame_nobody(waiting, facts)
    graph = draw_graph(facts)
    ends = [graph.follow(key_of(seen)) for seen in outside]
    told = [one for one in ends if isinstance(one, Blame)]
    if len(told) < len(ends):
        return pick_end(ends)
    # A card that may be busy but does next to nothing is in a collective, if there are other ranks.
    spins = [one for one in told if one.cause == "gpu-wait" and may_card_spin(one.seen, facts)]
    if spins and (len(spins) < len(told) or facts.picture.scene.remote or unread or waiting):
        told = [one for one in told if one not in spins]
        spinning = [one.seen for one in spins]
        outside = tuple(seen for seen in outside if seen not in spinning)
        waiting = [*waiting, *spinning]
    # A dump names who is seen outside, unless the kernel holds an unread one; it calls nobody hung for that.
    if unread and (facts.history or not outside or any(one.state == "D" for one in unread)):
        return _blame_unread(waiting, facts)
    if not told:
        least = max((one.grace for one in spins), default=Grace.ENDLESS)
        return give_grace(blame_nobody(waiting, facts), least)
    if not waiting and len(told) > 1 and all(one.cause == "gpu-wait" for one in told):
        found = blame_cards(told)
        return found if found.grace is Grace.TRANSFER else doubt_all_here(found, facts)
    # The others wait for what one of them does on purpose.
    first = give_grace(pick_blame(told), max(one.grace for one in told))
    works = next((one for one in spins if one.grace is Grace.TRANSFER), None)
    if works is not None and first.cause not in ("dead-worker", "lost-batch"):
        # It may do what the others wait for.
        first = replace(give_grace(first, Grace.TRANSFER), text=f"{first.text}; meanwhile {works.text}")
    if waiting:
        return _blame_missing(first, waiting, outside, len(waiting) + len(outside) + len(unread))
    # A program that sleeps polls for a file, or keeps to a pace, unless somebody waits for it.
    alone = first.sink in _PACES and first.seen in outside
    alone = alone and _keeps_pace(first.seen, facts.at(first.seen))
    return _judge_pace(first, facts) if alone else first


def _keeps_pace(seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether a main thread sleeps, or wakes up by itself at one place: only its own clock moves it."""
    wait, trait = facts.wait_of(seen), facts.picture.trait_of(seen)
    if wait is WaitReason.SLEEP:
        return True
    asks = asks_another(seen) or seen.doing.call not in _TICKING_CALLS
    if (wait is not WaitReason.OTHER or asks) and not waits_for_itself(seen):
        return False
    if trait is not None and trait.used_s > 0:
        return True
    # One that wakes up less often than it was looked at: by the switches of a process whose other threads, as
    # those of CUDA would, have none. What came before it stood still is left out.
    pid, rested_s = seen.thread.pid, (facts.watch.taken_ns - facts.watch.still_ns) / 2e9
    alone = len(facts.picture.threads_of(pid)) < 2 and not cards_of(pid, facts.cards)
    history = read_history(facts.history, pid, rested_s)
    return alone and any(known_or(one.switches_s, 0.0) > 0 for one in history)


def _judge_pace(found: Blame, facts: WaitFacts) -> End:
    """Say what a main thread polls: a thread of its own that stands at a lock, else nothing that is seen."""
    seen, here, scene = found.seen, facts.at(found.seen), facts.picture.scene
    own = (one for one in list_others(seen, here) if one.thread.kind is ThreadKind.OTHER)
    stuck = next((one for one in own if runs_program(one) and _is_stuck(one, here)), None)
    if stuck is not None:
        text = f"{found.text}; {name_thread(stuck)} of it {say_place(stuck)}"
        return blame(Sink.EVENT, seen, text, also=(stuck,))
    talks = any(one.thread.kind is ThreadKind.COMM for one in here.picture.threads_of(seen.thread.pid))
    if talks and (len(scene.ranks) == 1 or scene.remote):
        # C code of a store sleeps too, until ranks have come that are not seen here.
        return give_grace(found, Grace.REMOTE)
    return Goes(f"{found.text}, and nobody waits for it")


def _is_stuck(seen: ThreadSeen, facts: WaitFacts) -> bool:
    """Tell whether a thread stands at a lock, but not for want of work, or in a read that nobody answers."""
    wait = facts.wait_of(seen)
    if wait is WaitReason.READ_WRITE:
        return need_of_io(seen) in (Need.BLOCKED_READ, Need.NOBODY_AT_PIPE) or asks_another(seen)
    return wait is WaitReason.LOCK and seen.doing.call not in _FOR_WORK


def find_poller(scene: Scene) -> ThreadSeen | None:
    """Return a main thread of a job whose ranks all keep a pace, and wait for nobody; None for any other."""
    picture = scene.watch.picture
    if picture is None or picture.scene.unread:
        return None
    facts, mains = draw_facts(scene, picture), picture.scene.ranks
    polls = all(_keeps_pace(seen, facts) for seen in mains)
    return mains[0] if polls and isinstance(find_end(facts), Goes) else None


def _blame_unread(waiting: Sequence[ThreadSeen], facts: WaitFacts) -> End:
    """Say what /proc shows of a rank whose stack could not be read, where all others wait for it."""
    unread = facts.picture.scene.unread
    first = facts.picture.main_of(unread[0].pid)
    process = facts.process_of(first) if first is not None else None
    all_wait = bool(waiting) and len(waiting) == len(facts.picture.scene.ranks)
    if not all_wait or first is None or process is None:
        return Goes(f"{name_ranks(unread)} could not be read")
    reason = first.sighting.frames
    why = f" ({reason.reason})" if isinstance(reason, Missing) else ""
    waits = f", by the kernel in: {describe_wait(process.waits_for)}" if is_known(process.waits_for) else ""
    head = say_waiting(waiting, len(waiting) + len(unread))
    text = f"{head}; the stack of {name_ranks(unread)} was not read{why}{waits}"
    # Its place is not known, so it may be anything that is slow.
    return blame(Sink.UNREAD, first, text, also=waiting)


def _blame_missing(
    found: Blame, waiting: Sequence[ThreadSeen], outside: Sequence[ThreadSeen], local: int
) -> Blame:
    """Say that the rank which the others wait for is not with them."""
    head = say_waiting(waiting, local)
    culprit = found.seen.thread
    pids = (culprit.pid, culprit.rank_pid)  # a worker is blamed in the words of its rank
    more = [seen.thread for seen in outside if seen.thread.pid not in pids]
    others = f"; {name_ranks(more)} not there either" if more else ""
    cause = found.cause if found.cause in ("dead-worker", "lost-batch", "stopped") else "missing-rank"
    return replace(found, cause=cause, text=f"{head}; {found.text}{others}")
