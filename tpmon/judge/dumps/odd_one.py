"""Find the rank, or the worker of a rank, that is not where the others are, and say so. Pure.

The largest group is the norm. Ranks in a collective wait for those that are not in it, so where some
wait like that, they are the norm against as many others, and against any number of them that stand still.
When all wait alike nobody is accused: the cause is then on another machine, in the network, or in something
that all of them wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.judge.dumps.describe import Wait
from tpmon.judge.dumps.outlier import Camp, Scene, Seen
from tpmon.model.dump import DumpError, Motion, OddOne
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.text.dump_words import ONCE_HINT, name_process, name_rank, name_ranks, say_motion, say_wait
from tpmon.model.units import format_seconds

MOST_CAMPS = 3
MOST_DEAD = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold who is odd, if anybody can be named, and one sentence that says where everybody is."""

    odd: Applicable[OddOne]
    summary: str


def find_odd(scene: Scene, errors: Sequence[DumpError] = ()) -> Answer:
    """Find the odd one out among the main threads of a job."""
    ranks = scene.ranks
    if not ranks:
        if scene.unread:
            return Answer(NOT_APPLICABLE, f"no rank could be read{_say_unread(scene, errors)}")
        if scene.not_asked:
            return Answer(NOT_APPLICABLE, _say_workers(scene))
        return Answer(NOT_APPLICABLE, "no rank was found")
    norm, odd = divide(scene)
    unread = f"{_say_dead(scene)}{_say_unread(scene, errors)}"
    if not odd:
        return _answer_alike(scene, unread)
    if norm is None:
        all_wait = all(camp.waits_for_ranks for camp in scene.camps)
        remote = _say_remote(scene) if all_wait else ""
        return Answer(NOT_APPLICABLE, f"{_say_camps(scene)}{remote}{unread}")
    if all(seen.motion is Motion.MOVING for seen in norm.ranks):
        return Answer(NOT_APPLICABLE, f"the ranks move: {_say_camps(scene)}{unread}")
    first = odd[0]
    head = f"{_say_norm(norm, scene)}; "
    worker, held = _find_worker(first, scene)
    more = f"; {name_ranks(seen.thread for seen in odd[1:])} not there either" if len(odd) > 1 else ""
    others = tuple(seen.thread.pid for seen in odd[1:])
    several = len({seen.thread.host for seen in ranks}) > 1
    said = f"{name_rank(first.thread, with_host=several)} {_say_place(first)}"
    summary = f"{head}{said}{f'; {held}' if held else ''}{more}{unread}{_say_looks(first)}"
    return Answer(_name(worker or first, others), summary)


def _say_workers(scene: Scene) -> str:
    """Say where workers are whose rank was not asked for."""
    read = [seen for seen in scene.workers if is_known(seen.sighting.frames)]
    said = [f"{name_process(seen.thread)} {_say_place(seen)}" for seen in read[:MOST_CAMPS]]
    rest = len(read) - MOST_CAMPS
    more = [f"{rest} more {'worker' if rest == 1 else 'workers'}"] if rest > 0 else []
    return ", ".join((*said, *more)) or "no rank was asked for"


def divide(scene: Scene) -> tuple[Camp | None, tuple[Seen, ...]]:
    """Return the norm and the ranks outside of it; no norm where none is clearly the larger part."""
    stopped = tuple(seen for seen in scene.ranks if seen.is_stopped)
    if 0 < len(stopped) < len(scene.ranks):
        camps = [camp for camp in scene.camps if not all(seen.is_stopped for seen in camp.ranks)]
        return camps[0], stopped
    if len(scene.camps) < 2:
        return None, ()
    total = len(scene.ranks)
    waiting = [camp for camp in scene.camps if camp.waits_for_ranks]
    first, second = scene.camps[0], scene.camps[1]
    if waiting:
        outside = tuple(seen for seen in scene.ranks if seen.doing.wait is not Wait.RANKS)
        # Who waits for its card may be in the same collective: the host of a card waits for that alone.
        hosts = tuple(seen for seen in outside if seen.doing.wait is not Wait.DEVICE)
        still = all(seen.motion in (Motion.FROZEN, Motion.SLOW) for seen in hosts)
        if hosts and (still or 2 * len(hosts) <= total):
            return waiting[0], _worst_first(hosts)
        if outside and 2 * len(outside) <= total:
            return waiting[0], _worst_first(outside)
        if not outside and scene.remote:
            return None, tuple(seen for camp in scene.camps[1:] for seen in camp.ranks)
    if 2 * len(first.ranks) > total and len(first.ranks) > len(second.ranks):
        return first, _worst_first(tuple(seen for camp in scene.camps[1:] for seen in camp.ranks))
    return None, tuple(seen for camp in scene.camps[1:] for seen in camp.ranks)


def _worst_first(ranks: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """Put the ranks that did not move first, among them those that sleep where nothing interrupts."""
    still = (Motion.FROZEN, Motion.ONCE, Motion.SLOW, Motion.MOVING)
    return tuple(sorted(ranks, key=lambda seen: (still.index(seen.motion), seen.thread.state != "D")))


def _name(seen: Seen, others: tuple[int, ...]) -> OddOne:
    thread = seen.thread
    return OddOne(
        host=thread.host,
        pid=thread.pid,
        rank=thread.rank,
        worker=thread.worker,
        doing=seen.doing.text,
        waits=say_wait(thread),
        motion=seen.motion,
        since_s=seen.sighting.since_s,
        others=others,
    )


def _say_place(seen: Seen) -> str:
    """Say where one rank is: "is in decode data.py:88, blocked in a read of ..."."""
    # A wait for a batch is said by the place already.
    waits = "" if seen.doing.wait is Wait.BATCH and not seen.is_stopped else say_wait(seen.thread)
    told = (
        _say_doing(seen.doing.text, seen.doing.wait),
        waits,
        say_motion(seen.motion, seen.sighting.since_s),
    )
    verb = "waits in" if seen.doing.wait is Wait.RANKS else "" if _says_wait(seen) else "is in"
    return f"{verb} {', '.join(word for word in told if word)}".strip()


def _says_wait(seen: Seen) -> bool:
    """Tell whether the words of a place begin with a verb: "waits for work (queue.get)"."""
    return seen.doing.text.startswith(("waits ", "hands "))


def _say_doing(text: str, wait: Wait) -> str:
    return f"its wait for a batch ({text.removeprefix('data wait: ')})" if wait is Wait.BATCH else text


def _say_norm(norm: Camp, scene: Scene) -> str:
    """Say where the norm is: "7 of 8 ranks wait in all_reduce (ddp backward)"."""
    waiting = [camp for camp in scene.camps if camp.waits_for_ranks]
    if norm.waits_for_ranks and len(waiting) < len(scene.camps):
        # Those that wait in another collective wait for the same ranks.
        texts = dict.fromkeys(camp.doing.text for camp in waiting)
        count = sum(len(camp.ranks) for camp in waiting)
        return f"{count} of {scene.local} ranks {'waits' if count == 1 else 'wait'} in {' or '.join(texts)}"
    count = len(norm.ranks)
    verb = ("waits" if count == 1 else "wait") if norm.waits_for_ranks else "is" if count == 1 else "are"
    place = _say_doing(norm.doing.text, norm.doing.wait)
    place = place if count == 1 else place.replace("its wait", "their wait")
    return f"{count} of {scene.local} ranks {verb} in {place}"


def _say_camps(scene: Scene) -> str:
    """Say where the ranks are, a camp each."""
    shown = [f"{name_ranks(seen.thread for seen in camp.ranks)} in {camp.doing.text}" for camp in scene.camps]
    if len(shown) > MOST_CAMPS:
        rest = len(shown) - MOST_CAMPS
        shown = [*shown[:MOST_CAMPS], f"the rest in {rest} other {'place' if rest == 1 else 'places'}"]
    return ", ".join(shown)


def _say_unread(scene: Scene, errors: Sequence[DumpError]) -> str:
    if not scene.unread:
        return ""
    reasons = {(error.host, error.pid): error.reason for error in errors}
    known = [reason for one in scene.unread if (reason := reasons.get((one.host, one.pid)))]
    why = f" ({known[0]})" if known else ""
    return f"; {name_ranks(scene.unread)} could not be read{why}"


def _say_dead(scene: Scene) -> str:
    """Say which processes of ranks are dead: "; process 4712 (python) of rank 0 is dead: SIGKILL"."""
    told = [
        f"process {one.pid} ({one.name}) of {name_rank(rank.thread)} is dead: {one.how}"
        for rank in scene.ranks
        for one in scene.dead_of(rank)
    ]
    more = [f"{len(told) - MOST_DEAD} more dead"] if len(told) > MOST_DEAD else []
    return "".join(f"; {one}" for one in (*told[:MOST_DEAD], *more))


def _say_looks(seen: Seen) -> str:
    return ONCE_HINT if seen.motion is Motion.ONCE else ""


def _answer_alike(scene: Scene, unread: str) -> Answer:
    """Say where all ranks are; only a worker can be odd then."""
    first = scene.ranks[0]
    count = len(scene.ranks)
    wait = first.doing.wait
    if scene.local == 1:
        said = f"{name_rank(first.thread)} {_say_place(first)}"
    else:
        alone = count == 1
        verb = ("waits" if alone else "wait") if wait is Wait.RANKS else "is" if alone else "are"
        place = _say_doing(first.doing.text, wait)
        place = place if alone else place.replace("its wait", "their wait")
        who = f"all {count} ranks here" if scene.remote else f"all {count} ranks"
        who = f"all {count} ranks asked for" if scene.not_asked else who
        who = f"{count} of {scene.local} ranks" if scene.unread else who
        said = f"{who} {verb} in {place}{_say_common(scene)}"
    worker, held = _find_worker(first, scene) if count == 1 else (None, "")
    if held:
        said += f"; {held}"
    if scene.remote:
        said += _say_remote(scene)
    elif wait is Wait.RANKS and not scene.unread and not scene.not_asked and count > 1:
        said += "; none is outside of it: look at the network, or at ranks that ended"
        # Ranks that a program started itself carry no WORLD_SIZE.
        said += ", or that run elsewhere" if isinstance(scene.world_size, Missing) else ""
    odd = _name(worker, ()) if worker else NOT_APPLICABLE
    return Answer(odd, f"{said}{unread}{_say_looks(first)}")


def _say_remote(scene: Scene) -> str:
    """Say that ranks are on other machines, and what tells where those are; "" where none is."""
    if not scene.remote:
        return ""
    noun = "rank is elsewhere or has ended" if scene.remote == 1 else "ranks are elsewhere or have ended"
    return f"; {scene.remote} {noun}: run tpmon dump there, and tpmon fold on the results"


def _say_common(scene: Scene) -> str:
    """Say how long all of them have been there, the shortest time of all."""
    times = [seen.sighting.since_s for seen in scene.ranks]
    known = [time for time in times if is_known(time)]
    if known and len(known) == len(times):
        return f", frozen for at least {format_seconds(min(known))}"
    motions = {seen.motion for seen in scene.ranks}
    return f", {motions.pop().value}" if len(motions) == 1 and Motion.ONCE not in motions else ""


def _find_worker(rank: Seen, scene: Scene) -> tuple[Seen | None, str]:
    """Find the worker that a rank waits for, and say what its workers do; "" where it waits for none."""
    if rank.doing.wait is not Wait.BATCH:
        return None, ""
    workers = scene.workers_of(rank)
    died = bool(scene.dead_of(rank))
    if not workers:
        return None, "" if died else "no worker of it was seen"
    read = [seen for seen in workers if is_known(seen.sighting.frames)]
    busy = _worst_first(tuple(seen for seen in read if seen.doing.wait is not Wait.WORK))
    if not read:
        return None, "its workers could not be read"
    key = (rank.thread.host, rank.thread.pid)
    pin = next((one for one in scene.pinning if (one.thread.host, one.thread.pid) == key), None)
    if not busy and pin is not None:
        return None, f"its thread {pin.thread.name} {_say_place(pin)}, and its workers wait for work"
    if not busy:
        alone, several = (" that lives", " that live") if died else ("", "")
        only = f"its worker{alone} waits" if len(read) == 1 else f"all its {len(read)} workers{several} wait"
        return None, f"{only} for work too{'' if died else ': a batch was lost on the way'}"
    first = busy[0]
    if len(busy) == len(workers) and len({seen.doing.place for seen in busy}) == 1 and len(workers) > 1:
        return None, f"all its {len(workers)} workers are in {first.doing.text}, {say_wait(first.thread)}"
    return first, f"{name_process(first.thread)} {_say_place(first)}"
