"""Find who keeps a job from going on: a cause of the table, or who is missing. Pure.

What a rank does alone on another machine, such as a save, looks like a hang from here. Such waits have
minutes, unless NCCL or the job's records show that they cannot end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.collective_words import name_numbers
from tpmon.judge.dumps.collectives import WORLD
from tpmon.judge.dumps.describe import LibraryCall
from tpmon.judge.dumps.outlier import SLOW_PHASES, ThreadSeen, awaits_one
from tpmon.judge.features.cards import CardScene, cards_of
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import IDLE_CARD_PCT
from tpmon.judge.hang.activity import find_exchange, weigh_beside
from tpmon.judge.hang.causes import (
    Blame,
    Grace,
    blame_exit,
    blame_thread,
    find_camps,
    gets_something,
    give_grace,
    pick_blame,
    say_camps,
    say_place,
    say_rank_ends,
)
from tpmon.judge.hang.devices import (
    blame_card,
    blame_cards,
    blame_unseen_card,
    is_network_busy,
    may_card_spin,
    say_card_works,
)
from tpmon.judge.hang.loader import blame_children, blame_loader, blame_other_end
from tpmon.judge.stacks.classify import last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import UNREAD, Picture, find_wait
from tpmon.judge.watch.servers import ASKS, asks_actor, asks_another, asks_here
from tpmon.model.host import LOOPBACK
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, Role
from tpmon.model.results.collectives import CollectiveCause
from tpmon.model.text.dump_words import list_others, name_rank, name_ranks
from tpmon.model.text.redaction import MOST_DIGITS
from tpmon.model.waits import INPUTS, WaitReason, describe_wait

_TRANSFER = re.compile(r"p2p|(?:^|_)(?:recv|send)(?:$|_)|^_communicate")


def find_ended(scene: Scene) -> list[int]:
    """Return the numbers of ranks that ran on this machine and are gone."""
    living = [one for one in scene.frame.processes if one.role is Role.RANK and one.state not in ("Z", "X")]
    here = {one.rank for one in living if is_known(one.rank)}
    local = [one.local_rank for one in living if is_known(one.local_rank)]
    size = scene.frame.target.world_size
    # A job that goes on with fewer ranks does not wait for the numbers beyond.
    ended = {one for one in scene.watch.numbers - here if not is_known(size) or one < size}
    if len(local) == len(living) == len(here) and local and _have_one_starter(scene, living):
        # A launcher numbers its ranks without a gap, on the machine as in the job.
        first = min(here) - min(local) if min(here) >= min(local) else 0
        started = max(*local, _started_here(scene, living, local))
        ended |= {first + number for number in range(started) if number not in local} - here
    return sorted(ended)


def _have_one_starter(scene: Scene, living: Sequence[ProcessSample]) -> bool:
    """Tell whether one process started the ranks here: a launcher, the first of them, or a step of Slurm.

    Ranks in a container each do not see the others, and the number of each looks like a gap before it.
    """
    if _has_launcher(scene, living):
        return True
    pids, parents = {one.pid for one in living}, {one.parent for one in living}
    return not pids.isdisjoint(parents) or (len(living) > 1 and len(parents) == 1 and 1 not in parents)


def _has_launcher(scene: Scene, living: Sequence[ProcessSample]) -> bool:
    """Tell whether a launcher is here, or several ranks say that all were started here: it may be gone."""
    there = any(one.role is Role.LAUNCHER for one in scene.frame.processes)
    return there or (len(living) > 1 and _tell_local_size(living) == scene.frame.target.world_size)


def _started_here(scene: Scene, living: Sequence[ProcessSample], local: Sequence[int]) -> int:
    """Return how many ranks the launcher of this machine says it started, 0 where none says so.

    torchrun waits for the others when a rank with less data ends well. The variable alone shows nothing: some
    set it for ranks that run in other containers.
    """
    if len(set(local)) < len(local) or not _has_launcher(scene, living):
        return 0
    size, world = _tell_local_size(living), scene.frame.target.world_size
    return size if is_known(world) and size <= world else 0


def _tell_local_size(living: Sequence[ProcessSample]) -> int:
    """Return how many ranks run on this machine, if all ranks that say so agree; else 0."""
    told = {
        one.value
        for process in living
        if is_known(process.environment)
        for one in process.environment
        if one.name == "LOCAL_WORLD_SIZE"
    }
    (value,) = told if len(told) == 1 else ("",)
    return int(value) if value.isdecimal() and len(value) <= MOST_DIGITS else 0


def blame_nobody(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> Blame:
    """Say who is missing where all ranks that were read wait for others; nobody while their cards work."""
    blame = _find_absent(waiting, scene, picture)
    works = next((said for seen in waiting if (said := say_card_works(seen, scene))), "")
    if works:
        return replace(give_grace(blame, Grace.COMPUTE), text=f"{blame.text}; meanwhile {works}")
    if Need.RANK_GONE in blame.needs or _is_loss_told(scene):
        return blame
    exchange = find_exchange(waiting, scene)
    if exchange:
        return replace(give_grace(blame, Grace.COMPUTE), text=f"{blame.text}; meanwhile {exchange}")
    return give_grace(blame, Grace.SLOW) if is_network_busy(scene, picture) else blame


def _find_absent(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> Blame:
    ended = find_ended(scene)
    if ended:
        return _blame_ended(ended, waiting, scene)
    if picture.scene.remote:
        return _blame_remote(waiting, scene, picture)
    return doubt_all_here(_blame_each_other(waiting), scene)


def _say_all(waiting: Sequence[ThreadSeen]) -> str:
    return "the rank here waits" if len(waiting) == 1 else f"all {len(waiting)} ranks here wait"


def _say_waiting(waiting: Sequence[ThreadSeen], local: int) -> str:
    """Say where those are that wait: "3 of 4 ranks wait in all_reduce train.py:40"."""
    count = len(waiting)
    return f"{count} of {local} ranks {'waits' if count == 1 else 'wait'} in {_say_places(waiting)}"


def _say_places(waiting: Sequence[ThreadSeen]) -> str:
    return " or ".join(dict.fromkeys(seen.doing.text for seen in waiting))


def _blame_ended(ended: Sequence[int], waiting: Sequence[ThreadSeen], scene: Scene) -> Blame:
    """Say that ranks have ended; those that are left wait for them, and none of these is to blame."""
    verb = "have ended" if len(ended) > 1 else "has ended"
    left = _say_all(waiting).replace(" here", f" that {'are' if len(waiting) > 1 else 'is'} left")
    ends = f"{name_numbers(ended)} {verb}{say_rank_ends(ended, scene)}"
    text = f"{ends}; {left} in {_say_places(waiting)}"
    return Blame(
        "missing-rank",
        waiting[0],
        text,
        needs=(Need.RANK_GONE,),
        also=tuple(waiting[1:]),
        is_of_all=True,
        gone=ended[0] if len(ended) == 1 else NOT_APPLICABLE,
    )


def _blame_remote(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> Blame:
    remote, size = picture.scene.remote, picture.scene.world_size
    numbers = [seen.thread.rank for seen in waiting if is_known(seen.thread.rank)]
    known = is_known(size) and len(numbers) == len(waiting)
    names = list_others(numbers, size) if known and is_known(size) else ""
    elsewhere = (
        f"rank{'s' if remote > 1 else ''} {names}" if names else f"{remote} rank{'s' if remote > 1 else ''}"
    )
    who = _say_all(waiting)
    several = len({seen.doing.site for seen in waiting}) > 1
    at = f"{who}: {say_camps(waiting)}" if several else f"{who} in {_say_places(waiting)}"
    text = (
        f"{at}; the one that is missing is elsewhere, of {elsewhere}: it hangs, has ended, or does "
        "something alone, such as a save; run tpmon dump --job --json there, and tpmon fold on the results"
    )
    return Blame(
        "remote-rank",
        waiting[0],
        text,
        _grace_of_remote(waiting, scene),
        needs=(Need.LOCAL_RANKS_WAIT,),
        also=tuple(waiting[1:]),
        is_of_all=True,
    )


def _blame_each_other(waiting: Sequence[ThreadSeen]) -> Blame:
    """Say where the ranks wait if all ranks are here and wait; mostly none is to blame."""
    first, count, camps = waiting[0], len(waiting), find_camps(waiting)
    others = tuple(waiting[1:])
    if len(camps) > 1 and any(map(_is_transfer, waiting)):
        text = (
            f"all {count} ranks wait, in transfers and collectives of which none ends: {say_camps(waiting)}"
        )
        return Blame("no-progress", first, text, also=others, is_of_all=True)
    hosts = [seen for seen in waiting if seen.doing.wait is WaitReason.COLLECTIVE]
    if len(camps) > 1 and len(hosts) < count and not any(awaits_one((seen,)) for seen in hosts):
        # A host may wait for its card at any line after the collective. At a barrier it waits itself, and is
        # in no collective that another has launched.
        text = f"all {count} ranks wait for each other, in one collective or in several: {say_camps(waiting)}"
        return Blame("no-progress", first, text, also=others, is_of_all=True)
    if len(camps) > 1:
        text = f"all {count} ranks wait for each other in different collectives: {say_camps(waiting)}"
        if len(camps[-1]) == len(camps[-2]):
            # With as many on each side, none is more in the wrong place than the others.
            return Blame("missing-rank", first, text, also=others, is_of_all=True)
        odd = camps[-1][0]
        return Blame("missing-rank", odd, text, also=tuple(seen for seen in waiting if seen is not odd))
    grace = Grace.SLOW if awaits_one(waiting) else Grace.ENDLESS
    if count == 1:
        text = f"{name_rank(first.thread)} {say_place(first)}, and no other rank is known"
        return Blame("no-progress", first, text, grace)
    where = _say_places(waiting)
    text = f"all {count} ranks wait in {where}, none is outside of it: the network, or the backend itself"
    return Blame("no-progress", first, text, grace, also=others, is_of_all=True)


def may_run_elsewhere(scene: Scene) -> bool:
    """Tell whether ranks may run on other machines because nobody says how many there are.

    A program that starts its ranks itself sets no WORLD_SIZE. Ranks on several machines are connected.
    """
    if not isinstance(scene.frame.target.world_size, Missing) or _are_all_recorded(scene):
        return False
    # NCCL holds the InfiniBand ports of any host open.
    network = [one for one in known_or(scene.frame.network, ()) if one.kind != "ib"]
    apart = bool(network) and all(
        is_known(one.used_by_job) and (not one.used_by_job or one.interface == LOOPBACK) for one in network
    )
    return not apart


def _are_all_recorded(scene: Scene) -> bool:
    """Tell whether the job's records, or NCCL, count as many ranks as run here."""
    calls = scene.watch.calls
    if calls is None:
        return False
    groups = (group for record in calls.records for group in record.groups if group.description == WORLD)
    sizes = [len(group.ranks) for group in groups if is_known(group.ranks)]
    sizes += [report.processes for report in calls.ras if is_known(report.processes)]
    return max(sizes, default=0) == len(scene.ranks)


def doubt_all_here(blame: Blame, scene: Scene) -> Blame:
    """Give ranks that all wait the grace of a wait for another machine, where others may run there.

    A rank that is not where the others are stays the one to look at.
    """
    if not may_run_elsewhere(scene) or _is_loss_told(scene):
        return blame
    text = f"{blame.text}; or one elsewhere is missing: how many ranks there are is not known"
    is_of_all = blame.is_of_all or blame.cause == "no-progress"
    return replace(give_grace(blame, Grace.REMOTE), text=text, is_of_all=is_of_all)


def _grace_of_remote(waiting: Sequence[ThreadSeen], scene: Scene) -> Grace:
    """Say how long ranks may wait for an unseen one: a save of rank 0 looks like any other collective."""
    if _is_loss_told(scene):
        return Grace.ENDLESS
    return Grace.SLOW if awaits_one(waiting) else Grace.REMOTE


def _is_transfer(seen: ThreadSeen) -> bool:
    return any(_TRANSFER.search(last_name(one.function)) for one in seen.frames)


def _is_loss_told(scene: Scene) -> bool:
    """Tell whether NCCL knows of a dead process, or records show calls that cannot end."""
    calls = scene.watch.calls
    return calls is not None and (
        any(one.dead > 0 for one in calls.ras)
        or any(one.cause is CollectiveCause.MISMATCH for one in calls.findings)
    )


_SLOW_PHASES = (*SLOW_PHASES, Phase.LOGGING)
"""Also those that send a run's last records, and end when they have arrived."""
_CHILD_CALLS = (
    LibraryCall.QUEUE_GET,
    LibraryCall.POOL_RESULT,
    LibraryCall.PIPE_READ,
    LibraryCall.PROCESS_JOIN,
    LibraryCall.FUTURE,
    LibraryCall.SUBPROCESS,
)
POLLS_RATIO = 0.15
"""Share of its CPU in the kernel above which a thread that gets nothing there polls."""
LINE_S = 60.0
"""How long a thread must be seen at only one line to be in one call: a loop changes lines."""
OTHERS_RATIO = 0.1
"""CPUs that the other threads of its process may use meanwhile: those of a pool wait by yielding."""


def find_blame(scene: Scene, picture: Picture) -> Blame | str:
    """Return who keeps the job from going on, or what shows that nobody does.

    Actors without a task may get one later, or be what the others wait for.
    """
    waits = [(seen, find_wait(seen, picture)) for seen in picture.scene.ranks]
    free = [seen for seen, wait in waits if wait is WaitReason.TASK]
    if free and len(free) == len(waits):
        return f"{name_ranks(seen.thread for seen in free)}: no task was given"
    blame = _find_blame([one for one in waits if one[1] is not WaitReason.TASK], scene, picture)
    if not free or isinstance(blame, str):
        return blame
    blame = give_grace(blame, Grace.SLOW)
    names = f"{name_ranks(seen.thread for seen in free)} without a task"
    waiting = [seen for seen, wait in waits if wait is WaitReason.COLLECTIVE]
    is_theirs = blame.cause in ("no-progress", "missing-rank") and not blame.needs
    if not is_theirs or len(waiting) + len(free) < len(waits):
        return replace(blame, text=f"{blame.text}; {names}")
    text = f"{_say_waiting(waiting, len(waits))}; {names}"
    return replace(
        blame, cause="missing-rank", seen=free[0], text=text, also=tuple(waiting), is_of_all=len(free) > 1
    )


def _find_blame(
    waits: Sequence[tuple[ThreadSeen, Known[WaitReason]]], scene: Scene, picture: Picture
) -> Blame | str:
    for seen, wait in waits:
        if wait is WaitReason.NOTHING:
            return f"{name_rank(seen.thread)} moves: {seen.doing.text}"
        if wait in INPUTS:
            return f"{name_rank(seen.thread)} waits for input"
    server = picture.main_of(scene.watch.served)
    if server is not None:
        return f"{name_rank(server.thread)} waits for requests: {server.doing.text}"
    waiting = [seen for seen, wait in waits if wait is WaitReason.COLLECTIVE]
    outside = [(seen, wait) for seen, wait in waits if wait is not WaitReason.COLLECTIVE]
    unread = picture.scene.unread
    if not outside and not unread:
        return blame_nobody(waiting, scene, picture)
    blames = [(seen, _blame_rank(seen, wait, scene, picture)) for seen, wait in outside]
    untold = next((blame for _, blame in blames if isinstance(blame, str)), None)
    if untold is not None:
        return untold
    told = [blame for _, blame in blames if isinstance(blame, Blame)]
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
        return give_grace(
            blame_nobody(waiting, scene, picture), max((one.grace for one in spins), default=Grace.ENDLESS)
        )
    if not waiting and len(told) > 1 and all(one.cause == "gpu-wait" for one in told):
        blame = blame_cards(told)
        return blame if blame.grace is Grace.TRANSFER else doubt_all_here(blame, scene)
    # The others wait for what one of them does on purpose.
    first = give_grace(pick_blame(told), max(one.grace for one in told))
    works = next((one for one in spins if one.grace is Grace.TRANSFER), None)
    if works is not None and first.cause not in ("dead-worker", "lost-batch"):
        # It may do what the others wait for.
        first = replace(give_grace(first, Grace.TRANSFER), text=f"{first.text}; meanwhile {works.text}")
    if waiting:
        return _blame_missing(first, waiting, outside)
    # A sleep ends by itself: a lone program may poll for a file, or keep to a limit.
    alone = any(seen is first.seen and wait is WaitReason.SLEEP for seen, wait in outside)
    return give_grace(first, grace_of_sleep(scene)) if alone else first


def grace_of_sleep(scene: Scene) -> Grace:
    """Say how long a lone program may sleep: as long as slow work, or as its user says."""
    return Grace.REMOTE if scene.watch.asked_s is not None else Grace.SLOW


def _blame_unread(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> Blame | str:
    """Say what /proc shows of a rank whose stack could not be read, where all others wait for it."""
    unread = picture.scene.unread
    first = picture.main_of(unread[0].pid)
    process = next((one for one in scene.frame.processes if one.pid == unread[0].pid), None)
    all_wait = bool(waiting) and len(waiting) == len(picture.scene.ranks)
    if not all_wait or first is None or process is None:
        return f"{name_ranks(unread)} could not be read"
    reason = first.sighting.frames
    why = f" ({reason.reason})" if isinstance(reason, Missing) else ""
    waits = f", by the kernel in: {describe_wait(process.waits_for)}" if is_known(process.waits_for) else ""
    head = _say_waiting(waiting, len(waiting) + len(unread))
    text = f"{head}; the stack of {name_ranks(unread)} was not read{why}{waits}"
    # Its place is not known, so it may be anything that is slow.
    return Blame("missing-rank", first, text, Grace.SLOW, also=tuple(waiting))


def _blame_missing(
    blame: Blame, waiting: Sequence[ThreadSeen], outside: Sequence[tuple[ThreadSeen, Known[WaitReason]]]
) -> Blame:
    """Say that the rank which the others wait for is not with them."""
    head = _say_waiting(waiting, len(waiting) + len(outside))
    culprit = blame.seen.thread
    pids = (culprit.pid, culprit.rank_pid)  # a worker is blamed in the words of its rank
    more = [seen.thread for seen, _ in outside if seen.thread.pid not in pids]
    others = f"; {name_ranks(more)} not there either" if more else ""
    cause = blame.cause if blame.cause in ("dead-worker", "lost-batch") else "missing-rank"
    return replace(blame, cause=cause, text=f"{head}; {blame.text}{others}")


def _blame_rank(seen: ThreadSeen, wait: Known[WaitReason], scene: Scene, picture: Picture) -> Blame | str:
    """Say what keeps one rank that does not wait for other ranks."""
    blame = weigh_beside(_blame_wait(seen, wait, scene, picture), seen, wait, scene, picture)
    if isinstance(blame, str):
        return blame
    if wait in ASKS and asks_another(seen) and (blame.seen is seen or blame.cause == "no-progress"):
        # A batch of rollouts takes as long as its longest answer; the server may rest in its loop meanwhile.
        long = asks_actor(seen) or asks_here(seen)
        if long or blame.seen is seen:
            return give_grace(blame, Grace.TRANSFER if long else Grace.COMPUTE)
    if blame.grace in (Grace.COMPUTE, Grace.TRANSFER):
        return blame
    # A writer, be it a thread or a process, may do what a rank waits for.
    own = [one for one in (blame.seen, *blame.also) if one.thread.role is not Role.WORKER]
    # Loggers keep idle threads in most programs: for these only the rank's own stack counts.
    is_slow = seen.doing.phase in _SLOW_PHASES or any(one.doing.phase in SLOW_PHASES for one in own)
    return give_grace(blame, Grace.SLOW) if is_slow else blame


def _blame_wait(seen: ThreadSeen, wait: Known[WaitReason], scene: Scene, picture: Picture) -> Blame | str:
    name = name_rank(seen.thread)
    if wait in (WaitReason.STOPPED, UNREAD):
        return f"{name} is stopped" if wait is WaitReason.STOPPED else f"{name}: not enough looks"
    if wait is WaitReason.BATCH:
        return blame_loader(seen, scene, picture)
    if wait is WaitReason.THREADS:
        return blame_exit(seen, picture)
    # A thread that waits for the GIL is no further: what it asked for may have come.
    if seen.doing.call in _CHILD_CALLS and wait is not WaitReason.GIL:
        child = blame_children(seen, scene, picture)
        if child is not None:
            return child
    if wait is WaitReason.READ_WRITE:
        other = blame_other_end(seen, scene, picture)
        if other is not None:
            return other
    cards = cards_of(seen.thread.pid, scene.gpus)
    if cards and (
        wait is WaitReason.DEVICE or (wait is WaitReason.RUNNING and _may_wait(seen, cards, picture))
    ):
        return blame_card(seen, scene, picture)
    unseen = (
        None
        if cards or wait not in (WaitReason.DEVICE, WaitReason.RUNNING)
        else blame_unseen_card(seen, picture)
    )
    if unseen is not None:
        return unseen
    polls, circles = _polls(seen, picture), _changes_lines(seen, scene)
    return blame_thread(seen, wait, name, picture, polls=polls, circles=circles)


def _may_wait(seen: ThreadSeen, cards: Sequence[CardScene], picture: Picture) -> bool:
    """Tell whether a running thread may wait for a card: not if it loops, or its cards are idle."""
    if picture.goes_round(seen):
        return False
    return any(not is_known(one.busy_pct) or one.busy_pct >= IDLE_CARD_PCT for one in cards)


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
        and not gets_something(seen, picture)
    )
