"""Say whom ranks wait for that are all in a collective: one that ended, one elsewhere, or each other. Pure.

What a rank does alone on another machine, such as a save, looks like a hang from here. Such waits have
minutes, unless NCCL or the job's records show that they cannot end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.dumps.collective_words import name_numbers
from tpmon.judge.dumps.collectives import WORLD
from tpmon.judge.dumps.outlier import ThreadSeen, awaits_one
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.activity import find_exchange
from tpmon.judge.hang.devices import is_network_busy, say_card_works
from tpmon.judge.hang.ends import find_ended, say_rank_ends
from tpmon.judge.hang.sinks import Blame, Grace, Sink, blame, give_grace
from tpmon.judge.hang.threads import find_camps, say_camps, say_place
from tpmon.judge.stacks.classify import last_name
from tpmon.judge.watch.picture import Picture
from tpmon.model.host import LOOPBACK
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known, known_or
from tpmon.model.results.collectives import CollectiveCause
from tpmon.model.text.dump_words import list_others, name_rank
from tpmon.model.waits import WaitReason

_TRANSFER = re.compile(r"p2p|(?:^|_)(?:recv|send)(?:$|_)|^_communicate")
_JOINS_GROUP = re.compile(r"torch/distributed/rendezvous\.py$")
"""Where a rank waits until all others have joined."""


def blame_nobody(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> Blame:
    """Say who is missing where all ranks that were read wait for others; nobody while their cards work."""
    found = _find_absent(waiting, scene, picture)
    works = next((said for seen in waiting if (said := say_card_works(seen, scene))), "")
    if works:
        return replace(give_grace(found, Grace.COMPUTE), text=f"{found.text}; meanwhile {works}")
    if found.sink is Sink.ENDED or _is_loss_told(scene):
        return found
    exchange = find_exchange(waiting, scene)
    if exchange:
        return replace(give_grace(found, Grace.COMPUTE), text=f"{found.text}; meanwhile {exchange}")
    return give_grace(found, Grace.SLOW) if is_network_busy(scene, picture) else found


def _find_absent(waiting: Sequence[ThreadSeen], scene: Scene, picture: Picture) -> Blame:
    ended = find_ended(scene)
    if ended:
        return _blame_ended(ended, waiting, scene)
    if picture.scene.remote:
        return _blame_remote(waiting, scene, picture)
    return doubt_all_here(_blame_each_other(waiting), scene)


def _say_all(waiting: Sequence[ThreadSeen]) -> str:
    return "the rank here waits" if len(waiting) == 1 else f"all {len(waiting)} ranks here wait"


def say_waiting(waiting: Sequence[ThreadSeen], local: int) -> str:
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
    gone = ended[0] if len(ended) == 1 else NOT_APPLICABLE
    return blame(Sink.ENDED, waiting[0], text, also=waiting[1:], is_of_all=True, gone=gone)


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
    grace = _grace_of_remote(waiting, scene)
    return blame(Sink.ELSEWHERE, waiting[0], text, grace, also=waiting[1:], is_of_all=True)


def _blame_each_other(waiting: Sequence[ThreadSeen]) -> Blame:
    """Say where the ranks wait if all ranks are here and wait; mostly none is to blame."""
    first, count, camps = waiting[0], len(waiting), find_camps(waiting)
    others = tuple(waiting[1:])
    if len(camps) > 1 and any(map(_is_transfer, waiting)):
        text = (
            f"all {count} ranks wait, in transfers and collectives of which none ends: {say_camps(waiting)}"
        )
        return blame(Sink.EACH_OTHER, first, text, also=others, is_of_all=True)
    hosts = [seen for seen in waiting if seen.doing.wait is WaitReason.COLLECTIVE]
    if len(camps) > 1 and len(hosts) < count and not any(awaits_one((seen,)) for seen in hosts):
        # A host may wait for its card at any line after the collective. At a barrier it waits itself, and is
        # in no collective that another has launched.
        text = f"all {count} ranks wait for each other, in one collective or in several: {say_camps(waiting)}"
        return blame(Sink.EACH_OTHER, first, text, also=others, is_of_all=True)
    if len(camps) > 1:
        text = f"all {count} ranks wait for each other in different collectives: {say_camps(waiting)}"
        if len(camps[-1]) == len(camps[-2]):
            # With as many on each side, none is more in the wrong place than the others.
            return blame(Sink.APART, first, text, also=others, is_of_all=True)
        odd = camps[-1][0]
        return blame(Sink.APART, odd, text, also=tuple(seen for seen in waiting if seen is not odd))
    grace = Grace.SLOW if awaits_one(waiting) else Grace.ENDLESS
    if count == 1 and any(_JOINS_GROUP.search(one.file) for one in first.frames):
        text = f"{name_rank(first.thread)} {say_place(first)} for ranks that have not joined"
        return blame(Sink.JOINING, first, text, is_of_all=True)
    if count == 1:
        text = f"{name_rank(first.thread)} {say_place(first)}, and no other rank is known"
        return blame(Sink.EACH_OTHER, first, text, grace)
    where = _say_places(waiting)
    text = f"all {count} ranks wait in {where}, none is outside of it: the network, or the backend itself"
    return blame(Sink.EACH_OTHER, first, text, grace, also=others, is_of_all=True)


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


def doubt_all_here(found: Blame, scene: Scene) -> Blame:
    """Give ranks that all wait the grace of a wait for another machine, where others may run there.

    A rank that is not where the others are stays the one to look at.
    """
    if not may_run_elsewhere(scene) or _is_loss_told(scene):
        return found
    text = f"{found.text}; or one elsewhere is missing: how many ranks there are is not known"
    is_of_all = found.is_of_all or found.cause == "no-progress"
    return replace(give_grace(found, Grace.REMOTE), text=text, is_of_all=is_of_all)


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
