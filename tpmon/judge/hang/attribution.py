"""Find in a picture who keeps a job from going on, and why: one cause of the table, one culprit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.dumps.meant_waits import PATIENT
from tpmon.judge.dumps.outlier import Seen
from tpmon.judge.features.cards import CardScene, cards_of
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.features.standstill import IDLE_CARD_PCT
from tpmon.judge.hang.activity import weigh_beside
from tpmon.judge.hang.devices import blame_card, blame_cards, blame_unseen_card, may_card_spin
from tpmon.judge.hang.hang_causes import (
    Blame,
    Patience,
    blame_exit,
    blame_gil,
    blame_thread,
    gets_something,
    give_patience,
    pick_blame,
)
from tpmon.judge.hang.loader import blame_children, blame_loader, blame_other_end
from tpmon.judge.hang.missing_ranks import blame_nobody, doubt_all_here
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.hang_stances import Stance, find_stance, sleeps
from tpmon.judge.watch.picture import Picture
from tpmon.judge.watch.servers import ASKS, asks_actor, asks_another, asks_here
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Role
from tpmon.model.text.dump_words import name_rank, name_ranks

_PATIENT = (*PATIENT, Phase.LOGGING)
"""Also what sends a run's last records, and ends when they have arrived."""
_CHILD_WORDS = ("queue.get", "pool result", "pipe read", "process join", "future.result", "subprocess")
POLLS_RATIO = 0.15
"""Share of its CPU in the kernel from which a thread that gets nothing there asks it again and again."""
LINE_S = 60.0
"""How long a thread must be met at one line alone to be in one call: a loop is met at others of it."""
OTHERS_RATIO = 0.1
"""CPUs that the other threads of its process may use meanwhile: those of a pool wait by yielding."""


def find_blame(scene: Scene, picture: Picture) -> Blame | str:
    """Return who keeps the job from going on, or what shows that nobody does.

    Actors that have no task may be at their turn later, or be what the others wait for.
    """
    stances = [(seen, find_stance(seen, picture)) for seen in picture.scene.ranks]
    free = [seen for seen, stance in stances if stance is Stance.NO_TASK]
    if free and len(free) == len(stances):
        return f"{name_ranks(seen.thread for seen in free)}: no task was given"
    blame = _find_blame([one for one in stances if one[1] is not Stance.NO_TASK], scene, picture)
    if not free or isinstance(blame, str):
        return blame
    blame = give_patience(blame, Patience.MEANT)
    names = f"{name_ranks(seen.thread for seen in free)} without a task"
    waiting = [seen for seen, stance in stances if stance is Stance.RANKS]
    is_theirs = blame.cause in ("no-progress", "missing-rank") and not blame.needs
    if not is_theirs or len(waiting) + len(free) < len(stances):
        return replace(blame, text=f"{blame.text}; {names}")
    places = " or ".join(dict.fromkeys(seen.doing.text for seen in waiting))
    verb = "waits" if len(waiting) == 1 else "wait"
    text = f"{len(waiting)} of {len(stances)} ranks {verb} in {places}; {names}"
    return replace(
        blame, cause="missing-rank", seen=free[0], text=text, also=tuple(waiting), is_of_all=len(free) > 1
    )


def _find_blame(stances: Sequence[tuple[Seen, Stance]], scene: Scene, picture: Picture) -> Blame | str:
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
        return blame_nobody(waiting, scene, picture)
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
        return give_patience(blame_nobody(waiting, scene, picture), _longest(spins))
    if not waiting and len(told) > 1 and all(one.cause == "gpu-wait" for one in told):
        blame = blame_cards(told)
        return blame if blame.patience is Patience.FLOWS else doubt_all_here(blame, scene)
    # What one of them does on purpose, the others wait for.
    first = give_patience(pick_blame(told), _longest(told))
    works = next((one for one in spins if one.patience is Patience.FLOWS), None)
    if works is not None and first.cause not in ("dead-worker", "lost-batch"):
        # It may do what the others wait for.
        first = replace(give_patience(first, Patience.FLOWS), text=f"{first.text}; meanwhile {works.text}")
    if waiting:
        return _blame_missing(first, waiting, outside)
    # A sleep ends by itself: a program alone may poll for a file, or keep away from a limit.
    alone = any(seen is first.seen and stance is Stance.TIMED and sleeps(seen) for seen, stance in outside)
    return give_patience(first, patience_of_sleep(scene)) if alone else first


def patience_of_sleep(scene: Scene) -> Patience:
    """Say how long a program alone may sleep: as long as what is meant to, or as its user says."""
    return Patience.AWAY if scene.watch.asked_s is not None else Patience.MEANT


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


def _blame_rank(seen: Seen, stance: Stance, scene: Scene, picture: Picture) -> Blame | str:
    """Say what keeps one rank that does not wait for other ranks."""
    blame = weigh_beside(_blame_stance(seen, stance, scene, picture), seen, stance, scene, picture)
    if isinstance(blame, str):
        return blame
    if stance in ASKS and asks_another(seen) and (blame.seen is seen or blame.cause == "no-progress"):
        # A batch of rollouts takes as long as its longest answer. The server may rest in its loop meanwhile.
        long = asks_actor(seen) or asks_here(seen)
        if long or blame.seen is seen:
            return give_patience(blame, Patience.FLOWS if long else Patience.WORKS)
    if blame.patience in (Patience.WORKS, Patience.FLOWS):
        return blame
    # A writer in a thread, or in a process, may do what a rank waits for.
    own = [one for one in (blame.seen, *blame.also) if one.thread.role is not Role.WORKER]
    # Loggers keep idle threads in most programs: of these only the rank's own stack tells.
    meant = seen.doing.phase in _PATIENT or any(one.doing.phase in PATIENT for one in own)
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
    unseen = None if cards or stance not in (Stance.DEVICE, Stance.RUNS) else blame_unseen_card(seen, picture)
    if unseen is not None:
        return unseen
    polls, circles = _polls(seen, picture), _changes_lines(seen, scene)
    return blame_thread(seen, stance, name, picture, polls=polls, circles=circles)


def _may_wait(seen: Seen, cards: Sequence[CardScene], picture: Picture) -> bool:
    """Tell whether a thread that runs may be waiting for a card: it does not compute beside idle ones."""
    if picture.goes_round(seen):
        return False
    return any(not is_known(one.busy_pct) or one.busy_pct >= IDLE_CARD_PCT for one in cards)


def _changes_lines(seen: Seen, scene: Scene) -> bool:
    """Tell whether samples found a main thread at several lines of the one function that it is in."""
    one = next((one for one in scene.watch.ranks if one.pid == seen.thread.pid), None)
    if one is None or not one.corner_ns:
        return False
    at_line_s = (scene.frame.taken_ns - one.stack_ns) / 1e9
    return one.stack is None or (one.stack_ns > one.corner_ns and at_line_s <= LINE_S)


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
        and not gets_something(seen, picture)
    )
