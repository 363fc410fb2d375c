"""Say of one dump who waits for whom, by the graph of waits of the hang watch, and what that decides. Pure.

A dump has no history: it tells whom the others wait for now, and what would be to blame if it stays so. Whom
it names is whom the graph blames, and nobody where as many ranks stand there: a job at work looks the same.
Hung it calls only what stood between its looks at a wait that does not end by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tpmon.judge.answers.result import reading_aged, tell
from tpmon.judge.dumps.camps import MOST_CAMPS, DumpScene, ThreadSeen, say_place, say_where, set_scene
from tpmon.judge.hang.graph import Blame, End, Goes, Grace, Sink, WaitFacts
from tpmon.judge.hang.ranks import find_end
from tpmon.judge.watch.picture import Picture, sleeps
from tpmon.judge.watch.tracker import HANG_AFTER_S, NO_WATCH, WatchedTime
from tpmon.model.dump import DeadChild, Dump, Motion, OddOne
from tpmon.model.figures import Figure
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.text.dump_words import ONCE_HINT, name_process, name_rank, name_ranks, say_motion, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.verdict import IN_WORDS, Confidence, Evidence, Finding, Kind, SinceIs
from tpmon.model.waits import WaitReason

MOST_DEAD = 2
LEAST_LOOKS = 3
SURE_S = 60.0
UNDECIDED = Missing("where the threads are does not decide it; tpmon diagnose judges")
NOBODY = Missing("no stack of a rank was read")
_MOVE = Missing("the ranks move")
_MAY_END = "it may end by itself"
_Dead = Sequence[tuple[str, DeadChild]]


def draw_dump(seen: Sequence[ThreadSeen], dump: Dump, dead: _Dead) -> WaitFacts:
    """Return what the graph of waits is drawn from, of one dump, with the facts of each of its machines."""
    hosts: dict[str, list[ThreadSeen]] = {}
    for one in seen:
        hosts.setdefault(one.thread.host, []).append(one)
    several = hosts if len(hosts) > 1 else {}
    here = {host: [one for one in dead if one[0] == host] for host in several}
    parts = {host: _draw(those, dump, here[host]) for host, those in several.items()}
    return replace(_draw(seen, dump, dead), hosts=parts)


def _draw(seen: Sequence[ThreadSeen], dump: Dump, dead: _Dead) -> WaitFacts:
    scene = set_scene(seen, dump.world_size, known_or(dump.not_asked, 0), dead)
    died = tuple(one for _, one in dead)
    picture = Picture(0, 0, 1, scene, tuple(seen), traits={}, errors=dump.errors, dead=died)
    return WaitFacts(picture, may_be_elsewhere=isinstance(dump.world_size, Missing))


def judge_dump(facts: WaitFacts, dump: Dump, watch: WatchedTime = NO_WATCH) -> Dump:
    """Return a dump with whom the waits of its ranks lead to, in a sentence, and what that decides.

    What ``watch`` saw stand still stands for as long, and may then be a hang even if it ended by itself.
    """
    scene = facts.picture.scene
    end = find_end(facts) if scene.ranks else Goes("")
    outside, named = _find_outside(scene), None
    away = {one.process for one in outside}
    norm = (one for one in scene.ranks if one.process not in away)
    waiting = [one for one in norm if one.doing.wait is WaitReason.COLLECTIVE]
    moves = bool(waiting) and all(one.motion is Motion.MOVING for one in waiting)
    if isinstance(end, Blame) and not (end.is_of_all or moves) and _stands_out(end.seen, outside, scene):
        named = end.seen
    said = f"the ranks move: {say_where(scene)}" if moves else _describe(end, named, waiting, scene)
    unread = f"; {name_ranks(scene.unread)} could not be read" if scene.unread else ""
    told = [named] if named is not None else scene.ranks if len(scene.camps) == 1 and not moves else []
    once = ONCE_HINT if told and told[0].motion is Motion.ONCE else ""
    return replace(
        dump,
        summary=f"{said}{_say_stood(told)}{unread}{once}",
        odd_one_out=_name(named, outside) if named is not None else NOT_APPLICABLE,
        verdict=_MOVE if moves else _judge(end, named, waiting, scene, dump, watch=watch),
    )


def _find_outside(scene: DumpScene) -> Sequence[ThreadSeen]:
    """Return the ranks that are not where the norm is: ranks that wait for others, else the largest camp.

    Those that rest all the time keep any number of ranks that wait; else they must be as few as these.
    """
    ranks = scene.ranks
    away = [one for one in ranks if one.doing.wait is not WaitReason.COLLECTIVE]
    # A rank that waits for its card may be in the same collective: its host waits only for the card.
    hosts = [one for one in away if one.doing.wait is not WaitReason.DEVICE]
    away = [one for one in ranks if one.is_stopped] or hosts or away
    if 0 < len(away) < len(ranks):
        return away if all(map(_rests, away)) or 2 * len(away) <= len(ranks) else ()
    rest = [one for camp in scene.camps[1:] for one in camp.ranks]
    return rest if 2 * len(rest) < len(ranks) else ()


def _rests(seen: ThreadSeen) -> bool:
    at_rest = seen.motion in (Motion.FROZEN, Motion.SLOW) and seen.thread.state != "R"
    return seen.is_stopped or at_rest


def _stands_out(seen: ThreadSeen, outside: Sequence[ThreadSeen], scene: DumpScene) -> bool:
    """Tell whether a thread, or the rank that waits for it, is where the others are not."""
    thread, ranks = seen.thread, scene.ranks
    process = (thread.host, thread.pid if thread.role is Role.RANK else thread.rank_pid)
    if len(ranks) > 1 and not any(one.process == process for one in outside):
        return False
    beside = [one for one in scene.workers if (one.thread.host, one.thread.rank_pid) == process]
    if thread.role is Role.WORKER and len(beside) > 1:
        return any(one.doing.place != seen.doing.place for one in beside)
    return len(ranks) > 1 or seen.process != ranks[0].process


def _name(seen: ThreadSeen, outside: Sequence[ThreadSeen]) -> OddOne:
    thread, waits, since_s = seen.thread, say_wait(seen.thread), seen.sighting.since_s
    pids = [one.thread.pid for one in outside if one.thread.pid not in (thread.pid, thread.rank_pid)]
    who = (thread.host, thread.pid, thread.rank, thread.worker)
    return OddOne(*who, seen.doing.text, waits, seen.motion, since_s, tuple(pids))


def _describe(end: End, named: ThreadSeen | None, waiting: Sequence[ThreadSeen], scene: DumpScene) -> str:
    """Say where everybody is, and whom the others wait for."""
    ranks = scene.ranks
    if not ranks:
        threads = (one for one in scene.workers if one.is_read) if scene.not_asked else ()
        places = [f"{name_process(one.thread)} {say_place(one)}" for one in threads][:MOST_CAMPS]
        return ", ".join(places) or ("no rank could be read" if scene.unread else "no rank was found")
    said, blamed = say_where(scene), end if isinstance(end, Blame) else None
    if blamed is not None and named is not None:
        norm = scene.camps[0]
        where = f"{len(norm.ranks)} of {scene.local} ranks are in {norm.doing.text}; "
        said = f"{'' if waiting or len(ranks) < 2 else where}{blamed.text}{_say_host(named, scene)}"
    elif blamed is not None and blamed.seen.thread.role is Role.WORKER and len(ranks) == 1:
        said += f"; all its {len(scene.workers_of(ranks[0]))} workers are in {blamed.seen.doing.text}"
    elif blamed is not None and not scene.not_asked and (blamed.is_of_all or len(ranks) == 1):
        said = blamed.text
    sink = blamed.sink if blamed is not None else None
    if scene.remote and named is None and sink is not Sink.ELSEWHERE:
        noun = "rank is" if scene.remote == 1 else "ranks are"
        said += f"; {scene.remote} {noun} elsewhere: run tpmon dump there, and tpmon fold on the results"
    dead = [
        f"; process {one.pid} ({one.name}) of {name_rank(rank.thread)} is dead: {one.how}"
        for rank in ranks
        for host, one in scene.dead
        if sink is not Sink.DEAD and (host, one.parent) == rank.process
    ]
    return f"{said}{''.join(dead[:MOST_DEAD])}"


def _say_host(seen: ThreadSeen, scene: DumpScene) -> str:
    several = len({one.thread.host for one in scene.ranks}) > 1
    return f" ({name_process(seen.thread)} is on {seen.thread.host})" if several else ""


def _say_stood(those: Sequence[ThreadSeen]) -> str:
    """Say what threads did between the looks, and for how long all of them stood; "" where they differ."""
    told = [one.sighting.told for one in those]
    if len({motion for motion, _ in told}) != 1:
        return ""
    times = [since_s for _, since_s in told]
    known = [time for time in times if is_known(time)]
    said = say_motion(told[0][0], min(known) if len(known) == len(times) else times[0])
    return f", {said}" if said else ""


def _judge(
    end: End,
    named: ThreadSeen | None,
    waiting: Sequence[ThreadSeen],
    scene: DumpScene,
    dump: Dump,
    *,
    watch: WatchedTime,
) -> Finding | Missing:
    """Return what the stacks decide: hung, what would be hung if nothing changes, or why neither is told."""
    if not scene.ranks or not isinstance(end, Blame):
        return UNDECIDED if scene.ranks else NOBODY
    if end.sink in (Sink.STOPPED, Sink.DEAD, Sink.ELSEWHERE):
        return _find(end, waiting if end.is_of_all else [end.seen], scene, dump, watch)
    if watch is not NO_WATCH:
        # As of a job that is watched: whoever stands, for as long as nothing moves.
        return _find(end, waiting if end.is_of_all else [end.seen, *waiting], scene, dump, watch)
    if named is None or not waiting:
        return UNDECIDED
    if named.motion in (Motion.MOVING, Motion.SLOW):
        who = name_process(named.thread)
        return Missing(f"{who} moves between the looks while others wait: slow, and so far no hang")
    return _find(end, [named, *waiting], scene, dump, watch)


def _find(
    end: Blame, still: Sequence[ThreadSeen], scene: DumpScene, dump: Dump, watch: WatchedTime
) -> Finding:
    """Write the verdict: hung where all of ``still`` stood for long enough, else what it would be."""
    thread, stood_s, looks = end.seen.thread, _stood_s(still, watch), dump.rounds
    may_end, who = end.grace > Grace.ENDLESS, "" if end.is_of_all else f": {name_process(end.seen.thread)}"
    is_hung = not scene.unread and looks >= LEAST_LOOKS and stood_s >= _find_need_s(end, watch)
    why = "one look tells no hang" if looks == 1 else "not all of them stood still"
    if stood_s:
        unsure = "not all ranks could be read" if scene.unread else "too short to tell a hang"
        why = _MAY_END if may_end else unsure
        why = f"still for at least {format_seconds(stood_s)} ({why})"
    hung = f"{end.text}; nothing of it moved for at least {format_seconds(stood_s)}"
    unread = [f"{len(scene.unread)} ranks whose stacks could not be read"] if scene.unread else []
    elsewhere = [f"{scene.remote} ranks that are not in the picture"] if scene.remote else []
    again = f"tpmon diagnose {thread.pid} --until hung --for 5m"
    look = (
        again
        if is_hung or may_end or looks >= LEAST_LOOKS
        else f"tpmon dump {thread.pid} --rounds 3 --every 16"
    )
    if end.sink is Sink.ELSEWHERE:
        look = "tpmon dump --job --json on every machine of the job, and tpmon fold on the results"
    elif _say_host(end.seen, scene):
        look = f"{look}  # on {thread.host}"
    return Finding(
        kind=Kind.HUNG if is_hung else Kind.NOT_ENOUGH_EVIDENCE,
        cause=end.cause if is_hung else NOT_APPLICABLE,
        confidence=Confidence.MEDIUM if is_hung and stood_s >= SURE_S else Confidence.LOW,
        share_pct=NOT_APPLICABLE,
        share_low_pct=NOT_APPLICABLE,
        share_high_pct=NOT_APPLICABLE,
        since=_date_back(dump.taken, stood_s),
        since_is=SinceIs.LOWER_BOUND,
        since_source="first look that found it so",
        summary=hung if is_hung else f"{why}; if it stays so, hung ({end.cause}{who})",
        try_=look,
        also_try=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=(_row(Figure.DUMP_WAITS, end.text), _row(Figure.DUMP_LOOKS, str(looks))),
        against=(_row(Figure.DUMP_MAY_END, _MAY_END),) if may_end else (),
        ruled_out=(),
        unknown=("whether steps or the log go on", *unread, *elsewhere),
        pid=NOT_APPLICABLE if end.is_of_all else thread.pid,
        rank=NOT_APPLICABLE if end.is_of_all else thread.rank,
        card=NOT_APPLICABLE,
        where=NOT_APPLICABLE if end.is_of_all else end.seen.doing.text,
    )


def _date_back(taken: datetime, seconds: float) -> datetime:
    """Return the time so long before a dump; its own time, which a node may tell wrong, where none is."""
    try:
        return taken - timedelta(seconds=seconds)
    except OverflowError:
        return taken


def _stood_s(still: Sequence[ThreadSeen], watch: WatchedTime) -> float:
    """Return how long all of them stood still, 0 where that is not known of one.

    Whoever sleeps again and again in one line stands as long as a watch saw no rank move.
    """
    times = [one.sighting.since_s for one in still if one.motion is Motion.FROZEN]
    known = [time for time in times if is_known(time)]
    if watch is not NO_WATCH:
        known += [watch.still_s for one in still if one.motion is Motion.SLOW and sleeps(one)]
    return max(min(known), watch.still_s) if known and len(known) == len(still) else 0.0


def _find_need_s(end: Blame, watch: WatchedTime) -> float:
    """Return how long they must have stood: without a watch no wait that may end by itself is a hang."""
    if end.grace <= Grace.ENDLESS:
        return HANG_AFTER_S if watch is NO_WATCH else watch.hang_after_s
    if watch is NO_WATCH:
        return math.inf
    from tpmon.judge.hang.detection import need_s  # noqa: PLC0415  # a dump alone does without

    return need_s(watch, end.grace)


def _row(figure: Figure, text: str) -> Evidence:
    return tell(reading_aged(figure, IN_WORDS, 0.0, text=text))
