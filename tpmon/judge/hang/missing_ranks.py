"""Say who is missing where all ranks that could be read wait for others: here, elsewhere, or nobody. Pure.

What one rank does alone on another machine, such as a save, looks like a hang from here, wherever the others
wait for it. So these waits have minutes, unless NCCL or the records of the job tell that they cannot end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.collectives import WORLD
from tpmon.judge.dumps.describe import Wait
from tpmon.judge.dumps.meant_waits import is_meant
from tpmon.judge.dumps.outlier import Seen
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hang.activity import find_exchange
from tpmon.judge.hang.devices import is_network_busy, say_card_works
from tpmon.judge.hang.hang_causes import Blame, Patience, find_camps, give_patience, say_camps, say_place
from tpmon.judge.hang.hang_ends import say_rank_ends
from tpmon.judge.stacks.frames import last_name
from tpmon.judge.watch.picture import Picture
from tpmon.model.host import LOOPBACK
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known, known_or
from tpmon.model.process import ProcessSample, Role
from tpmon.model.results.collectives import CollectiveCause
from tpmon.model.stacks import StackFrame
from tpmon.model.text.clean import MOST_DIGITS
from tpmon.model.text.dump_words import list_numbers, list_others, name_rank

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
        # The ranks of one launcher are numbered without a gap, on the machine as in the job.
        first = min(here) - min(local) if min(here) >= min(local) else 0
        started = max(*local, _started_here(scene, living, local))
        ended |= {first + number for number in range(started) if number not in local} - here
    return sorted(ended)


def _have_one_starter(scene: Scene, living: Sequence[ProcessSample]) -> bool:
    """Tell whether one process started the ranks here: a launcher, the first of them, or a step of Slurm.

    Ranks in a container each see none of the others, and the number of each looks like a gap before it.
    """
    if _has_launcher(scene) or _is_job_local(scene, living):
        return True
    pids, parents = {one.pid for one in living}, {one.parent for one in living}
    return not pids.isdisjoint(parents) or (len(living) > 1 and len(parents) == 1 and 1 not in parents)


def _has_launcher(scene: Scene) -> bool:
    return any(one.role is Role.LAUNCHER for one in scene.frame.processes)


def _is_job_local(scene: Scene, living: Sequence[ProcessSample]) -> bool:
    """Tell whether several ranks say that all of the job were started here: their launcher may be gone."""
    return len(living) > 1 and _tell_local_size(living) == scene.frame.target.world_size


def _started_here(scene: Scene, living: Sequence[ProcessSample], local: Sequence[int]) -> int:
    """Return how many ranks the one launcher of this machine started as it says, 0 where none says so.

    torchrun waits for the others when one of its ranks ends well, as one does whose data are fewer. The
    variable alone tells nothing: some set it for ranks that run in other containers.
    """
    if len(set(local)) < len(local) or not (_has_launcher(scene) or _is_job_local(scene, living)):
        return 0
    size, world = _tell_local_size(living), scene.frame.target.world_size
    return size if is_known(world) and size <= world else 0


def _tell_local_size(living: Sequence[ProcessSample]) -> int:
    """Return how many ranks run on this machine as all that say so say alike, 0 for none."""
    told = {
        one.value
        for process in living
        if is_known(process.environment)
        for one in process.environment
        if one.name == "LOCAL_WORLD_SIZE"
    }
    (value,) = told if len(told) == 1 else ("",)
    return int(value) if value.isdecimal() and len(value) <= MOST_DIGITS else 0


def blame_nobody(waiting: Sequence[Seen], scene: Scene, picture: Picture) -> Blame:
    """Say who is missing where all ranks that were read wait for others; nobody is while their cards work."""
    blame = _find_absent(waiting, scene, picture)
    works = next((said for seen in waiting if (said := say_card_works(seen, scene))), "")
    if works:
        return replace(give_patience(blame, Patience.WORKS), text=f"{blame.text}; meanwhile {works}")
    if Need.RANK_GONE in blame.needs or _is_loss_told(scene):
        return blame
    exchange = find_exchange(waiting, scene)
    if exchange:
        return replace(give_patience(blame, Patience.WORKS), text=f"{blame.text}; meanwhile {exchange}")
    return give_patience(blame, Patience.MEANT) if is_network_busy(scene, picture) else blame


def _find_absent(waiting: Sequence[Seen], scene: Scene, picture: Picture) -> Blame:
    ended = find_ended(scene)
    if ended:
        return _blame_ended(ended, waiting, scene)
    if picture.scene.remote:
        return _blame_remote(waiting, scene, picture)
    return doubt_all_here(_blame_each_other(waiting), scene)


def _say_all(waiting: Sequence[Seen]) -> str:
    return "the rank here waits" if len(waiting) == 1 else f"all {len(waiting)} ranks here wait"


def _say_places(waiting: Sequence[Seen]) -> str:
    return " or ".join(dict.fromkeys(seen.doing.text for seen in waiting))


def _blame_ended(ended: Sequence[int], waiting: Sequence[Seen], scene: Scene) -> Blame:
    """Say that ranks have ended; those that are left wait for them, and none of them is to blame."""
    names = f"rank{'s' if len(ended) > 1 else ''} {list_numbers(ended)}"
    verb = "have ended" if len(ended) > 1 else "has ended"
    left = _say_all(waiting).replace(" here", f" that {'are' if len(waiting) > 1 else 'is'} left")
    text = f"{names} {verb}{say_rank_ends(ended, scene)}; {left} in {_say_places(waiting)}"
    return Blame(
        "missing-rank",
        waiting[0],
        text,
        needs=frozenset((Need.RANK_GONE,)),
        also=tuple(waiting[1:]),
        is_of_all=True,
        gone=ended[0] if len(ended) == 1 else NOT_APPLICABLE,
    )


def _blame_remote(waiting: Sequence[Seen], scene: Scene, picture: Picture) -> Blame:
    """Say that the one that is missing is on another machine."""
    remote, size = picture.scene.remote, picture.scene.world_size
    numbers = [seen.thread.rank for seen in waiting if is_known(seen.thread.rank)]
    known = is_known(size) and len(numbers) == len(waiting)
    names = list_others(numbers, size) if known and is_known(size) else ""
    elsewhere = (
        f"rank{'s' if remote > 1 else ''} {names}" if names else f"{remote} rank{'s' if remote > 1 else ''}"
    )
    who = _say_all(waiting)
    several = len({seen.doing.text for seen in waiting}) > 1
    at = f"{who}: {say_camps(waiting)}" if several else f"{who} in {_say_places(waiting)}"
    text = (
        f"{at}; the one that is missing is elsewhere, of {elsewhere}: it hangs, has ended, or does "
        "something alone, as a save; run tpmon dump --job --json there, and tpmon fold on the results"
    )
    return Blame(
        "remote-rank",
        waiting[0],
        text,
        _weigh_remote(waiting, scene),
        needs=frozenset((Need.LOCAL_RANKS_WAIT,)),
        also=tuple(waiting[1:]),
        is_of_all=True,
    )


def _blame_each_other(waiting: Sequence[Seen]) -> Blame:
    """Say of ranks that all wait, and that are all there are, where they do; most often none is to blame."""
    first, count, camps = waiting[0], len(waiting), find_camps(waiting)
    others = tuple(waiting[1:])
    if len(camps) > 1 and any(map(_is_transfer, waiting)):
        text = (
            f"all {count} ranks wait, in transfers and collectives of which none ends: {say_camps(waiting)}"
        )
        return Blame("no-progress", first, text, also=others, is_of_all=True)
    hosts = [seen for seen in waiting if seen.doing.wait is Wait.RANKS]
    if len(camps) > 1 and len(hosts) < count and not any(is_meant((seen,)) for seen in hosts):
        # The line at which a host waits for its card may be any after the collective. At a barrier it waits
        # itself: there it is in no collective that another has launched.
        text = f"all {count} ranks wait for each other, in one collective or in several: {say_camps(waiting)}"
        return Blame("no-progress", first, text, also=others, is_of_all=True)
    if len(camps) > 1:
        text = f"all {count} ranks wait for each other in different collectives: {say_camps(waiting)}"
        if len(camps[-1]) == len(camps[-2]):
            # Of as many on each side none is more in the wrong place than the others.
            return Blame("missing-rank", first, text, also=others, is_of_all=True)
        odd = camps[-1][0]
        return Blame("missing-rank", odd, text, also=tuple(seen for seen in waiting if seen is not odd))
    patience = Patience.MEANT if is_meant(waiting) else Patience.SURE
    if count == 1:
        text = f"{name_rank(first.thread)} {say_place(first)}, and no other rank is known"
        return Blame("no-progress", first, text, patience)
    where = _say_places(waiting)
    text = f"all {count} ranks wait in {where}, none is outside of it: the network, or the backend itself"
    return Blame("no-progress", first, text, patience, also=others, is_of_all=True)


def may_run_elsewhere(scene: Scene) -> bool:
    """Tell whether ranks may run on other machines because nobody says how many there are.

    A program that starts its ranks itself gives them no WORLD_SIZE. Those of several machines are connected.
    """
    if not isinstance(scene.frame.target.world_size, Missing) or _are_all_recorded(scene):
        return False
    # NCCL holds the ports of InfiniBand open on any host that has some.
    network = [one for one in known_or(scene.frame.network, ()) if one.kind != "ib"]
    apart = bool(network) and all(
        is_known(one.used_by_job) and (not one.used_by_job or one.interface == LOOPBACK) for one in network
    )
    return not apart


def _are_all_recorded(scene: Scene) -> bool:
    """Tell whether the records of the job, or NCCL, count as many ranks as run here."""
    calls = scene.watch.calls
    if calls is None:
        return False
    groups = (group for record in calls.records for group in record.groups if group.description == WORLD)
    sizes = [len(group.ranks) for group in groups if is_known(group.ranks)]
    sizes += [report.processes for report in calls.ras if is_known(report.processes)]
    return max(sizes, default=0) == len(scene.ranks)


def doubt_all_here(blame: Blame, scene: Scene) -> Blame:
    """Give ranks of which all wait the time of a wait for another machine, where others may run there.

    The one that is not where the others are stays the one to look at.
    """
    if not may_run_elsewhere(scene) or _is_loss_told(scene):
        return blame
    text = f"{blame.text}; or one elsewhere is missing: how many ranks there are is not known"
    is_of_all = blame.is_of_all or blame.cause == "no-progress"
    return replace(give_patience(blame, Patience.AWAY), text=text, is_of_all=is_of_all)


def _weigh_remote(waiting: Sequence[Seen], scene: Scene) -> Patience:
    """Say how long ranks may wait for one that cannot be seen.

    While rank 0 saves alone the others wait in the next step's collective, which looks like any other.
    """
    if _is_loss_told(scene):
        return Patience.SURE
    return Patience.MEANT if is_meant(waiting) else Patience.AWAY


def _is_transfer(seen: Seen) -> bool:
    return any(_TRANSFER.search(last_name(one.function)) is not None for one in _frames(seen))


def _frames(seen: Seen) -> Sequence[StackFrame]:
    return known_or(seen.sighting.frames, ())


def _is_loss_told(scene: Scene) -> bool:
    """Tell whether NCCL knows of a dead process, or records show calls that cannot end."""
    calls = scene.watch.calls
    return calls is not None and (
        any(one.dead > 0 for one in calls.ras)
        or any(one.cause is CollectiveCause.MISMATCH for one in calls.findings)
    )
