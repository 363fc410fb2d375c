"""Find in a picture who keeps a job from going on, and why: one cause of the table, one culprit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.advice_needs import Need
from tpmon.judge.fold_scene import Seen
from tpmon.judge.hang_beside import weigh_beside
from tpmon.judge.hang_cards import blame_card, is_network_busy, may_card_spin, say_card_works
from tpmon.judge.hang_causes import (
    Blame,
    Patience,
    blame_exit,
    blame_gil,
    blame_thread,
    give_patience,
    pick_blame,
    say_place,
)
from tpmon.judge.hang_loader import blame_children, blame_loader, blame_other_end
from tpmon.judge.hang_picture import Picture
from tpmon.judge.hang_servers import asks_another
from tpmon.judge.hang_stances import Stance, find_stance
from tpmon.judge.phase_kinds import Phase
from tpmon.judge.rules_cpu import MOST_DIGITS
from tpmon.judge.scene import Scene
from tpmon.judge.scene_gpu import CardScene, cards_of
from tpmon.judge.stillness import IDLE_CARD_PCT
from tpmon.model.dump_words import list_numbers, name_rank, name_ranks
from tpmon.model.known import Missing, is_known
from tpmon.model.process import ProcessSample, Role

_PATIENT = (Phase.CHECKPOINT, Phase.VALIDATION, Phase.COMPILE, Phase.LOAD, Phase.IMPORT)
_ASKS = (Stance.IO, Stance.TIMED, Stance.LOCK)
_CHILD_WORDS = ("queue.get", "pool result", "pipe read", "process join", "future.result", "subprocess")
_BARRIER = "barrier"
POLLS_RATIO = 0.15
"""Share of its CPU in the kernel from which a thread that gets nothing there asks it again and again."""
OTHERS_RATIO = 0.1
"""CPUs that the other threads of its process may use meanwhile: those of a pool wait by yielding."""
FEW_BYTES_S = 1e6
"""Bytes a second up to which a process neither reads nor writes what matters."""
FEW_FAULTS_S = 100.0
"""Page faults a second up to which the kernel's time is none of making memory."""


def find_blame(scene: Scene, picture: Picture) -> Blame | str:
    """Return who keeps the job from going on, or what shows that nobody does."""
    mains = picture.scene.ranks
    stances = [(seen, find_stance(seen, picture)) for seen in mains]
    for seen, stance in stances:
        if stance is Stance.MOVES:
            return f"{name_rank(seen.thread)} moves: {seen.doing.text}"
        if stance is Stance.INPUT:
            return f"{name_rank(seen.thread)} waits for input"
    server = picture.main_of(scene.watch.served)
    if server is not None:
        return f"{name_rank(server.thread)} waits for requests: {server.doing.text}"
    waiting = [seen for seen, stance in stances if stance is Stance.RANKS]
    outside = [(seen, stance) for seen, stance in stances if stance is not Stance.RANKS]
    unread = picture.scene.unread
    if not outside and not unread:
        return _blame_nobody(waiting, scene, picture)
    blames = [(seen, _blame_rank(seen, stance, scene, picture)) for seen, stance in outside]
    untold = next((blame for _, blame in blames if isinstance(blame, str)), None)
    if untold is not None:
        return untold
    told = [blame for _, blame in blames if isinstance(blame, Blame)]
    # A card that may be busy and does next to nothing is in a collective, where there are others to wait for.
    spins = [one for one in told if one.cause == "gpu-wait" and may_card_spin(one.seen, scene)]
    if spins and (len(spins) < len(told) or picture.scene.remote or unread or waiting):
        told = [one for one in told if one not in spins]
        spinning = [one.seen for one in spins]
        outside = [(seen, stance) for seen, stance in outside if seen not in spinning]
        waiting = [*waiting, *spinning]
    if unread:
        return _blame_unread(waiting, scene, picture)
    if not told:
        return give_patience(_blame_nobody(waiting, scene, picture), _longest(spins))
    # What one of them does on purpose, the others wait for.
    first = give_patience(pick_blame(told), _longest(told))
    return _blame_missing(first, waiting, outside) if waiting else first


def _longest(blames: Sequence[Blame]) -> Patience:
    return max((blame.patience for blame in blames), key=list(Patience).index, default=Patience.SURE)


def _blame_unread(waiting: Sequence[Seen], scene: Scene, picture: Picture) -> Blame | str:
    """Say what the kernel tells of a rank whose stack could not be read, where all others wait for it."""
    unread = picture.scene.unread
    first = picture.main_of(unread[0].pid)
    process = next((one for one in scene.frame.processes if one.pid == unread[0].pid), None)
    all_wait = bool(waiting) and len(waiting) == len(picture.scene.ranks)
    if not all_wait or first is None or process is None:
        return f"{name_ranks(unread)} could not be read"
    reason = first.sighting.frames
    why = f" ({reason.reason})" if isinstance(reason, Missing) else ""
    waits = f", by the kernel in: {process.waits_for}" if is_known(process.waits_for) else ""
    places = " or ".join(dict.fromkeys(seen.doing.text for seen in waiting))
    count, local = len(waiting), len(waiting) + len(unread)
    verb = "waits" if count == 1 else "wait"
    text = (
        f"{count} of {local} ranks {verb} in {places}; the stack of {name_ranks(unread)} was not "
        f"read{why}{waits}"
    )
    # Where it stands is not known, so that it may be anything that is meant to take long.
    return Blame("missing-rank", first, text, Patience.MEANT, also=tuple(waiting))


def _blame_missing(blame: Blame, waiting: Sequence[Seen], outside: Sequence[tuple[Seen, Stance]]) -> Blame:
    """Say of the one that the others wait for that it is not with them."""
    count, local = len(waiting), len(waiting) + len(outside)
    places = " or ".join(dict.fromkeys(seen.doing.text for seen in waiting))
    head = f"{count} of {local} ranks {'waits' if count == 1 else 'wait'} in {places}"
    culprit = blame.seen.thread
    pids = (culprit.pid, culprit.rank_pid)  # a worker is blamed in the words of its rank
    more = [seen.thread for seen, _ in outside if seen.thread.pid not in pids]
    others = f"; {name_ranks(more)} not there either" if more else ""
    cause = blame.cause if blame.cause in ("dead-worker", "lost-batch") else "missing-rank"
    return replace(blame, cause=cause, text=f"{head}; {blame.text}{others}")


def find_ended(scene: Scene) -> list[int]:
    """Return the numbers of ranks that ran on this machine and are gone."""
    living = [one for one in scene.frame.processes if one.role is Role.RANK and one.state not in ("Z", "X")]
    here = {one.rank for one in living if is_known(one.rank)}
    local = [one.local_rank for one in living if is_known(one.local_rank)]
    size = scene.frame.target.world_size
    # A job that goes on with fewer ranks does not wait for the numbers beyond.
    ended = {one for one in scene.watch.numbers - here if not is_known(size) or one < size}
    if len(local) == len(living) == len(here) and local:
        # The ranks of one launcher are numbered without a gap, on the machine as in the job.
        first = min(here) - min(local) if min(here) >= min(local) else 0
        started = max(*local, _started_here(scene, living, local))
        ended |= {first + number for number in range(started) if number not in local} - here
    return sorted(ended)


def _started_here(scene: Scene, living: Sequence[ProcessSample], local: Sequence[int]) -> int:
    """Return how many ranks the one launcher of this machine started as it says, 0 where none says so.

    torchrun waits for the others when one of its ranks ends well, as one does whose data are fewer. The
    variable alone tells nothing: some set it for ranks that run in other containers.
    """
    if len(set(local)) < len(local) or all(one.role is not Role.LAUNCHER for one in scene.frame.processes):
        return 0
    told = {
        one.value
        for process in living
        if is_known(process.environment)
        for one in process.environment
        if one.name == "LOCAL_WORLD_SIZE"
    }
    (value,) = told if len(told) == 1 else ("",)
    size = int(value) if value.isdecimal() and len(value) <= MOST_DIGITS else 0
    world = scene.frame.target.world_size
    return size if is_known(world) and size <= world else 0


def _blame_nobody(waiting: Sequence[Seen], scene: Scene, picture: Picture) -> Blame:
    """Say who is missing where all ranks that were read wait for others; nobody is while their cards work."""
    blame = _find_absent(waiting, scene, picture)
    works = next((said for seen in waiting if (said := say_card_works(seen, scene))), "")
    if works:
        return replace(give_patience(blame, Patience.WORKS), text=f"{blame.text}; meanwhile {works}")
    return give_patience(blame, Patience.MEANT) if is_network_busy(scene, picture) else blame


def _find_absent(waiting: Sequence[Seen], scene: Scene, picture: Picture) -> Blame:
    first = waiting[0]
    count = len(waiting)
    places = dict.fromkeys(seen.doing.text for seen in waiting)
    who = "the rank here waits" if count == 1 else f"all {count} ranks here wait"
    where = " or ".join(places)
    ended = find_ended(scene)
    if ended:
        names = f"rank{'s' if len(ended) > 1 else ''} {list_numbers(ended)}"
        verb = "have ended" if len(ended) > 1 else "has ended"
        left = who.replace(" here", f" that {'are' if count > 1 else 'is'} left")
        text = f"{names} {verb}; {left} in {where}"
        return Blame("missing-rank", first, text, needs=frozenset((Need.RANK_GONE,)), also=tuple(waiting))
    remote = picture.scene.remote
    if remote:
        numbers = [seen.thread.rank for seen in waiting if is_known(seen.thread.rank)]
        size = picture.scene.world_size
        known = is_known(size) and len(numbers) == count
        names = list_numbers(set(range(size)) - set(numbers)) if known and is_known(size) else ""
        elsewhere = (
            f"rank{'s' if remote > 1 else ''} {names}"
            if names
            else f"{remote} rank{'s' if remote > 1 else ''}"
        )
        at = f"{who}: {_say_camps(waiting)}" if len(places) > 1 else f"{who} in {where}"
        text = (
            f"{at}; the one that is missing is elsewhere (or ended), of {elsewhere}: "
            "run tpmon dump --job --json there, and tpmon fold on the results"
        )
        # At a barrier ranks wait for what one does alone, such as a validation or a checkpoint.
        meant = any(_BARRIER in seen.doing.text for seen in waiting)
        return Blame(
            "remote-rank",
            first,
            text,
            Patience.MEANT if meant else Patience.SURE,
            needs=frozenset((Need.LOCAL_RANKS_WAIT,)),
            also=tuple(waiting),
        )
    if len(places) > 1:
        text = f"all {count} ranks wait for each other in different collectives: {_say_camps(waiting)}"
        return Blame("missing-rank", _find_camps(waiting)[-1][0], text, also=tuple(waiting))
    if count == 1:
        return Blame(
            "no-progress", first, f"{name_rank(first.thread)} {say_place(first)}, and no other rank is known"
        )
    text = f"all {count} ranks wait in {where}, none is outside of it: the network, or the backend itself"
    return Blame("no-progress", first, text, also=tuple(waiting))


def _find_camps(waiting: Sequence[Seen]) -> list[list[Seen]]:
    """Return the ranks that wait by the place where they do, the largest group first."""
    places = dict.fromkeys(seen.doing.text for seen in waiting)
    camps = [[seen for seen in waiting if seen.doing.text == place] for place in places]
    return sorted(camps, key=len, reverse=True)


def _say_camps(waiting: Sequence[Seen]) -> str:
    return ", ".join(
        f"{name_ranks(seen.thread for seen in camp)} in {camp[0].doing.text}" for camp in _find_camps(waiting)
    )


def _blame_rank(seen: Seen, stance: Stance, scene: Scene, picture: Picture) -> Blame | str:
    """Say what keeps one rank that does not wait for other ranks."""
    blame = weigh_beside(_blame_stance(seen, stance, scene, picture), seen, stance, scene, picture)
    if isinstance(blame, str) or blame.patience is Patience.WORKS:
        return blame
    if stance in _ASKS and blame.seen is seen and asks_another(seen):
        return replace(blame, patience=Patience.WORKS)
    # A writer in a thread, or in a process, may do what a rank waits for.
    own = [one for one in (blame.seen, *blame.also) if one.thread.role is not Role.WORKER]
    meant = any(one.doing.phase in _PATIENT for one in (seen, *own))
    return give_patience(blame, Patience.MEANT) if meant else blame


def _blame_stance(seen: Seen, stance: Stance, scene: Scene, picture: Picture) -> Blame | str:
    name = name_rank(seen.thread)
    if stance in (Stance.STOPPED, Stance.UNREAD):
        return f"{name} is stopped" if stance is Stance.STOPPED else f"{name}: not enough looks"
    if stance is Stance.BATCH:
        return blame_loader(seen, scene, picture)
    if stance is Stance.GIL:
        return blame_gil(seen, picture)
    if stance is Stance.EXIT:
        return blame_exit(seen, picture)
    if any(word in seen.doing.text for word in _CHILD_WORDS):
        child = blame_children(seen, scene, picture)
        if child is not None:
            return child
    if stance is Stance.IO:
        other = blame_other_end(seen, scene, picture)
        if other is not None:
            return other
    cards = cards_of(seen.thread.pid, scene.gpus)
    if cards and (stance is Stance.DEVICE or (stance is Stance.RUNS and _may_wait(seen, cards, picture))):
        return blame_card(seen, scene, picture)
    return blame_thread(seen, stance, name, picture, polls=_polls(seen, picture))


def _may_wait(seen: Seen, cards: Sequence[CardScene], picture: Picture) -> bool:
    """Tell whether a thread that runs may be waiting for a card: it does not compute beside idle ones."""
    if picture.goes_round(seen):
        return False
    return any(not is_known(one.busy_pct) or one.busy_pct >= IDLE_CARD_PCT for one in cards)


def _polls(seen: Seen, picture: Picture) -> bool:
    """Tell whether a thread that goes round asks the kernel again and again, and gets nothing.

    Such a call gives the interpreter's lock away, as a long call of a library does; that one computes
    outside of the kernel, or moves bytes, or makes memory.
    """
    trait, toll = picture.trait_of(seen), picture.tolls.get(seen.thread.pid)
    if trait is None or toll is None or not trait.goes_round or picture.rests(seen):
        return False
    return (
        trait.kernel_ratio >= POLLS_RATIO
        and toll.cpu_s - trait.used_s <= OTHERS_RATIO * picture.seconds
        and toll.faults <= FEW_FAULTS_S * picture.seconds
        and toll.moved_bytes <= FEW_BYTES_S * picture.seconds
    )
