"""Say whom ranks wait for that are all in a collective: one that ended, one elsewhere, or each other. Pure.

What a rank does alone on another machine, such as a save, looks like a hang from here. Such waits have
minutes, unless NCCL or the job's records show that they cannot end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.dumps.camps import ThreadSeen, awaits_one, find_camps, say_camps, say_place, say_places
from tpmon.judge.dumps.collective_words import name_numbers
from tpmon.judge.features.ends import find_ended, say_rank_ends
from tpmon.judge.hang.activity import find_exchange, is_network_busy, say_card_works
from tpmon.judge.hang.graph import Blame, Grace, Sink, WaitFacts, blame, give_grace
from tpmon.judge.stacks.classify import find_users, last_name
from tpmon.judge.stacks.phases import Phase
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.results.collectives import CollectiveCause
from tpmon.model.text.dump_words import list_others, name_rank
from tpmon.model.waits import WaitReason

_TRANSFER = re.compile(r"p2p|(?:^|_)(?:recv|send)(?:$|_)|^_communicate")
_ENGINE = "/torch/autograd/graph.py"
_JOINS_GROUP = re.compile(r"torch/distributed/rendezvous\.py$")
"""Where a rank waits until all others have joined."""


def blame_nobody(waiting: Sequence[ThreadSeen], facts: WaitFacts) -> Blame:
    """Say who is missing where all ranks that were read wait for others; nobody while their cards work."""
    if ended := find_ended(facts.history, facts.watch.numbers):
        found = _blame_ended(ended, waiting, facts)
    elif facts.picture.scene.remote:
        found = _blame_remote(waiting, facts)
    else:
        found = doubt_all_here(_blame_each_other(waiting), facts)
    works = next((said for seen in waiting if (said := say_card_works(seen, facts))), "")
    if not works and (found.sink is Sink.ENDED or _is_loss_told(facts)):
        return found
    if works := works or find_exchange(waiting, facts):
        return replace(give_grace(found, Grace.COMPUTE), text=f"{found.text}; meanwhile {works}")
    return give_grace(found, Grace.SLOW) if is_network_busy(facts) else found


def _say_all(waiting: Sequence[ThreadSeen]) -> str:
    return "the rank here waits" if len(waiting) == 1 else f"all {len(waiting)} ranks here wait"


def _blame_ended(ended: Sequence[int], waiting: Sequence[ThreadSeen], facts: WaitFacts) -> Blame:
    """Say that ranks have ended; those that are left wait for them, and none of these is to blame."""
    verb = "have ended" if len(ended) > 1 else "has ended"
    left = _say_all(waiting).replace(" here", f" that {'are' if len(waiting) > 1 else 'is'} left")
    ends = f"{name_numbers(ended)} {verb}{say_rank_ends(ended, facts.history)}"
    text = f"{ends}; {left} in {say_places(waiting)}"
    found = blame(Sink.ENDED, waiting[0], text, also=waiting[1:], is_of_all=True)
    return replace(found, gone=ended[0] if len(ended) == 1 else NOT_APPLICABLE)


def _blame_remote(waiting: Sequence[ThreadSeen], facts: WaitFacts) -> Blame:
    remote, size = facts.picture.scene.remote, facts.picture.scene.world_size
    numbers = [seen.thread.rank for seen in waiting if is_known(seen.thread.rank)]
    names = list_others(numbers, size) if is_known(size) and len(numbers) == len(waiting) else ""
    noun = "ranks" if remote > 1 else "rank"
    elsewhere = f"{noun} {names}" if names else f"{remote} {noun}"
    camps = find_camps(waiting)
    at = f": {say_camps(camps)}" if len(camps) > 1 else f" in {say_places(waiting)}"
    text = (
        f"{_say_all(waiting)}{at}; the one that is missing is elsewhere, of {elsewhere}: it hangs, has "
        "ended, or does something alone, such as a save; run tpmon dump --job --json there, and tpmon fold "
        "on the results"
    )
    # A save of rank 0 looks like any other collective.
    grace = Grace.ENDLESS if _is_loss_told(facts) else Grace.SLOW if awaits_one(waiting) else Grace.REMOTE
    return blame(Sink.ELSEWHERE, waiting[0], text, grace, also=waiting[1:], is_of_all=True)


def _blame_each_other(waiting: Sequence[ThreadSeen]) -> Blame:
    """Say where the ranks wait if all ranks are here and wait; mostly none is to blame."""
    first, camps = waiting[0], find_camps(waiting)
    if len(waiting) == 1:
        joins, said = any(_JOINS_GROUP.search(one.file) for one in first.frames), say_place(first)
        why = " for ranks that have not joined" if joins else ", and no other rank is known"
        grace = Grace.SLOW if joins or awaits_one(waiting) else Grace.ENDLESS
        sink = Sink.JOINING if joins else Sink.EACH_OTHER
        return blame(sink, first, f"{name_rank(first.thread)} {said}{why}", grace, is_of_all=joins)
    grace, head = Grace.ENDLESS, f"all {len(waiting)} ranks wait"
    hosts = [seen for seen in waiting if seen.doing.wait is WaitReason.COLLECTIVE]
    if len(camps) == 1:
        grace = Grace.SLOW if awaits_one(waiting) else Grace.ENDLESS
        where = f" in {say_places(waiting)}, none is outside of it: the network, or the backend itself"
    elif any(_TRANSFER.search(last_name(one.function)) for seen in waiting for one in seen.frames):
        where = f", in transfers and collectives of which none ends: {say_camps(camps)}"
    elif len(hosts) < len(waiting) and not awaits_one(hosts):
        # A host may wait for its card at any line after the collective. At a barrier it waits itself, and is
        # in no collective that another has launched.
        where = f" for each other, in one collective or in several: {say_camps(camps)}"
    else:
        return _blame_apart(waiting, camps)
    return blame(Sink.EACH_OTHER, first, f"{head}{where}", grace, also=waiting[1:], is_of_all=True)


def _blame_apart(waiting: Sequence[ThreadSeen], camps: Sequence[Sequence[ThreadSeen]]) -> Blame:
    """Say the same of ranks that wait in several collectives: one of them may be in the wrong one."""
    text = f"all {len(waiting)} ranks wait for each other in different collectives: {say_camps(camps)}"
    *_, one, other = camps
    # With as many on each side, none is more in the wrong place than the others.
    alike = len(one) == len(other) and (len(one) > 1 or _part_of(one[0]) == _part_of(other[0]))
    odd = waiting[0] if alike else find_alone(waiting) or other[0]
    also = [seen for seen in waiting if seen is not odd]
    return blame(Sink.APART, odd, text, also=also, is_of_all=alike)


def is_in_backward(seen: ThreadSeen) -> bool:
    """Tell whether a main thread is in a backward pass, whatever it waits for there."""
    return seen.doing.phase is Phase.BACKWARD or any(one.file.endswith(_ENGINE) for one in seen.frames)


def _part_of(seen: ThreadSeen) -> tuple[bool, bool]:
    """Say whether a rank is in a part of the loop, or of its end, that all ranks are meant to reach."""
    below = seen.frames[find_users(seen.frames) + 1 :]
    return is_in_backward(seen), any("barrier" in last_name(frame.function) for frame in below)


def find_alone(waiting: Sequence[ThreadSeen]) -> ThreadSeen | None:
    """Return the one rank in a collective that the others do not reach, where they wait in another one.

    Of two ranks that is the one outside of backward, else the one that is not in a barrier, else the lower.
    """
    camps = find_camps(waiting)
    if len(camps) != 2 or len(camps[1]) > 1:
        return None
    alone = camps[1][0] if len(camps[0]) > 1 else min(waiting, key=_part_of)
    return None if is_in_backward(alone) else alone


def doubt_all_here(found: Blame, facts: WaitFacts) -> Blame:
    """Give ranks that all wait the grace of a wait for another machine, where others may run there.

    A rank that is not where the others are stays the one to look at.
    """
    if not facts.may_be_elsewhere or _is_loss_told(facts):
        return found
    text = f"{found.text}; or one elsewhere is missing: how many ranks there are is not known"
    is_of_all = found.is_of_all or found.cause == "no-progress"
    return replace(give_grace(found, Grace.REMOTE), text=text, is_of_all=is_of_all)


def _is_loss_told(facts: WaitFacts) -> bool:
    """Tell whether NCCL knows of a dead process, or records show calls that cannot end."""
    calls = facts.watch.calls
    return calls is not None and (
        any(one.dead > 0 for one in calls.ras)
        or any(one.cause is CollectiveCause.MISMATCH for one in calls.findings)
    )
