"""Fold the stacks of a job into groups, over ranks, workers, threads and hosts, and judge them alone. Pure.

Clocks of two hosts are never compared; a Dump of part of a job says nothing about the rest. Stacks show a
hang only where threads stood all the time: one dump names whom the others wait for and decides nothing, nor
do dumps of a rank that computes, sleeps, saves or is on another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tpmon.judge.answers.result import reading_aged, tell
from tpmon.judge.dumps.merge import (
    LEAST_APART_S,
    Sighting,
    ThreadKey,
    join_looks,
    key_thread,
    looks_of_dump,
    looks_of_round,
)
from tpmon.judge.dumps.outlier import (
    HANG_AFTER_S,
    DumpScene,
    ThreadSeen,
    awaits_one,
    divide,
    find_odd,
    order_threads,
    say_excuse,
    see_threads,
    set_scene,
)
from tpmon.model.dump import (
    DUMP_SCHEMA,
    DeadChild,
    Dump,
    DumpError,
    DumpRound,
    DumpThread,
    Motion,
    StackGroup,
)
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import list_numbers, name_rank, say_wait
from tpmon.model.units import format_seconds
from tpmon.model.verdict import IN_WORDS, Confidence, Evidence, Finding, Kind, SinceIs
from tpmon.model.waits import WaitReason


def group_dumps(dumps: Iterable[Dump]) -> tuple[tuple[Dump, ...], ...]:
    """Group Dumps by host and job, each group oldest first."""
    groups: dict[tuple[str, int], list[Dump]] = {}
    for dump in sorted(dumps, key=lambda one: (one.taken, one.host, one.pid)):
        groups.setdefault((dump.host, dump.pid), []).append(dump)
    return tuple(map(tuple, groups.values()))


def _join_dumps(dumps: Sequence[Dump]) -> tuple[set[ThreadKey], Dump]:
    """Join the Dumps of one job on one host, oldest first; also return the threads that still live."""
    living: set[ThreadKey] = set()
    errors: list[DumpError] = []
    for dump in dumps:
        here = {key_thread(thread) for thread in _threads_of(dump)}
        if _is_part(dump):
            looked = {(one.host, one.pid) for one in here} | {(one.host, one.pid) for one in dump.errors}
            living = {one for one in living if (one.host, one.pid) not in looked} | here
            errors = [*(one for one in errors if (one.host, one.pid) not in looked), *dump.errors]
        else:
            living, errors = here, list(dump.errors)
    first = min(dumps, key=lambda dump: dump.taken.timestamp() - dump.seconds)
    newest, whole = dumps[-1], [dump for dump in dumps if not _is_part(dump)]
    return living, replace(
        newest,
        errors=tuple(errors),
        not_asked=NOT_APPLICABLE if whole else _count_not_asked(dumps),
        idle_threads=(whole[-1] if whole else newest).idle_threads,
        rounds=_count_rounds(dumps),
        seconds=(newest.taken - first.taken).total_seconds() + first.seconds,
    )


def _find_last_write(jobs: Sequence[Dump]) -> Applicable[datetime]:
    """Return when any host's log was last written, else why that is not known."""
    known = [job.last_write for job in jobs if is_known(job.last_write)]
    unread = (job.last_write for job in jobs if isinstance(job.last_write, Missing))
    return max(known) if known else next(unread, NOT_APPLICABLE)


def find_clash(dumps: Sequence[Dump]) -> str:
    """Say which Dumps of one host name (localhost) are of two machines, by their ranks; "" for none."""
    ranks: dict[tuple[str, int], int] = {}
    for dump in dumps:
        for thread in _threads_of(dump):
            if thread.role is Role.RANK and is_known(thread.rank):
                other = ranks.setdefault((thread.host, thread.pid), thread.rank)
                if other != thread.rank:
                    return f"process {thread.pid} on {thread.host} is rank {other} and rank {thread.rank}"
    for group in group_dumps(dump for dump in dumps if not _is_part(dump)):
        before = _ranks_of(group[0])
        for dump in group[1:]:
            now = _ranks_of(dump)
            if before and now and not before & now:
                both = f"ranks {list_numbers(before)} and ranks {list_numbers(now)}"
                return f"job {dump.pid} on {dump.host} has {both}"
    return ""


def _threads_of(dump: Dump) -> list[DumpThread]:
    return [thread for group in dump.groups for thread in group.threads]


def _ranks_of(dump: Dump) -> set[int]:
    return {one.rank for one in _threads_of(dump) if one.role is Role.RANK and is_known(one.rank)}


def _is_part(dump: Dump) -> bool:
    return is_known(dump.not_asked)


def _count_not_asked(dumps: Sequence[Dump]) -> Applicable[int]:
    """Count the ranks that none of several partial Dumps was asked for."""
    newest = dumps[-1]
    if not is_known(newest.not_asked):
        return NOT_APPLICABLE
    seen = {one.pid for dump in dumps for one in _threads_of(dump) if one.role is Role.RANK}
    last = {one.pid for one in _threads_of(newest) if one.role is Role.RANK}
    return max(0, newest.not_asked - len(seen - last))


def _count_rounds(dumps: Sequence[Dump]) -> int:
    """Count the rounds; several Dumps of one time count as one."""
    rounds, most = 0, 0
    before: datetime | None = None
    for dump in dumps:
        if before is not None and (dump.taken - before).total_seconds() < LEAST_APART_S:
            most = max(most, dump.rounds)
        else:
            rounds, most = rounds + most, dump.rounds
            before = dump.taken
    return rounds + most


LEAST_LOOKS = 3
SURE_S = 60.0
"""Seconds above which a picture is trusted more; never fully, it is one origin."""
UNDECIDED = Missing("where the threads are does not decide it; tpmon diagnose judges")
NOBODY = Missing("no stack of a rank was read")
_MOVE = Missing("the ranks move")


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Hold who would be to blame if nothing changes; ``seen`` is not applicable for a rank elsewhere.

    ``still`` must all stand still; ``excuse`` says why it may end by itself, "" for no reason.
    """

    cause: str
    seen: Applicable[ThreadSeen]
    text: str
    still: tuple[ThreadSeen, ...]
    excuse: str


def _find_suspect(scene: DumpScene) -> _Suspect | Missing:
    if not scene.ranks:
        return NOBODY
    ranks, several = scene.ranks, _has_hosts(scene)
    stopped = tuple(seen for seen in ranks if seen.is_stopped)
    if stopped:
        first = stopped[0]
        text = f"{name_rank(first.thread, with_host=several)} is {say_wait(first.thread)}"
        return _Suspect("stopped", first, text, stopped[:1], "")
    if dead := _find_dead(scene, with_host=several):
        return dead
    waiting = tuple(seen for seen in ranks if seen.doing.wait is WaitReason.COLLECTIVE)
    if waiting == ranks and scene.remote:
        who = f"all {len(ranks)} ranks here wait" if len(ranks) > 1 else "the rank here waits"
        text = f"{who} for ranks that are elsewhere"
        return _Suspect("remote-rank", NOT_APPLICABLE, text, ranks, "what those do is not in the picture")
    norm, odd = divide(scene)
    if norm is None or not norm.waits_for_ranks or not odd:
        return UNDECIDED
    return _blame_odd(tuple(seen for seen in waiting if seen not in odd), odd, scene)


def _blame_odd(
    waiting: Sequence[ThreadSeen], odd: Sequence[ThreadSeen], scene: DumpScene
) -> _Suspect | Missing:
    first = odd[0]
    name = name_rank(first.thread, with_host=_has_hosts(scene))
    if all(seen.motion is Motion.MOVING for seen in waiting):
        return _MOVE
    if first.motion in (Motion.MOVING, Motion.SLOW):
        return Missing(f"{name} moves between the looks while others wait: slow, and so far no hang")
    verb = "waits" if len(waiting) == 1 else "wait"
    excuse = say_excuse(first) or ("they wait for what one rank does alone" if awaits_one(waiting) else "")
    others = f", {len(odd) - 1} more not there either" if len(odd) > 1 else ""
    text = f"{len(waiting)} of {scene.local} ranks {verb} for {name} in {first.doing.text}{others}"
    return _Suspect("missing-rank", first, text, (first, *waiting), excuse)


def _find_dead(scene: DumpScene, *, with_host: bool) -> _Suspect | None:
    for seen in scene.ranks:
        dead = scene.dead_of(seen)
        if dead and seen.doing.wait is WaitReason.BATCH:
            one, name = dead[0], name_rank(seen.thread, with_host=with_host)
            text = f"{name} waits for a batch, and its process {one.pid} ({one.name}) is dead: {one.how}"
            return _Suspect("dead-worker", seen, text, (seen,), "")
    return None


def _has_hosts(scene: DumpScene) -> bool:
    return len({seen.thread.host for seen in scene.ranks}) > 1


def _find(suspect: _Suspect, scene: DumpScene, dump: Dump) -> Finding:
    """Write the verdict: hung where all stood still for long enough, else what it would be."""
    stood_s = _stood_s(suspect.still)
    looks, hung = dump.rounds, f"hung ({suspect.cause})"
    is_hung = not suspect.excuse and looks >= LEAST_LOOKS and stood_s >= HANG_AFTER_S
    if is_hung:
        summary = f"{suspect.text}; nothing of it moved for at least {format_seconds(stood_s)}"
    elif not stood_s:
        why = "one look tells no hang" if looks == 1 else "not all of them stood still"
        summary = f"{why}; if it stays so, {hung}: {suspect.text}"
    else:
        why = suspect.excuse or "too short to tell a hang"
        still = f"still for at least {format_seconds(stood_s)} ({why})"
        summary = f"{still}; if it stays so, {hung}: {suspect.text}"
    seen = suspect.seen
    return Finding(
        kind=Kind.HUNG if is_hung else Kind.NOT_ENOUGH_EVIDENCE,
        cause=suspect.cause if is_hung else NOT_APPLICABLE,
        confidence=Confidence.MEDIUM if is_hung and stood_s >= SURE_S else Confidence.LOW,
        share_pct=NOT_APPLICABLE,
        share_low_pct=NOT_APPLICABLE,
        share_high_pct=NOT_APPLICABLE,
        since=_date_back(dump.taken, stood_s),
        since_is=SinceIs.LOWER_BOUND,
        since_source="first look that found it so",
        summary=summary,
        try_=_say_next(suspect, scene, dump, is_hung=is_hung),
        also_try=NOT_APPLICABLE,
        ceiling=NOT_APPLICABLE,
        evidence=(_row(Figure.DUMP_WAITS, suspect.text), _row(Figure.DUMP_LOOKS, str(looks))),
        against=(_row(Figure.DUMP_MAY_END, suspect.excuse),) if suspect.excuse else (),
        ruled_out=(),
        unknown=_list_unknown(scene),
        pid=seen.thread.pid if is_known(seen) else NOT_APPLICABLE,
        rank=seen.thread.rank if is_known(seen) else NOT_APPLICABLE,
        card=NOT_APPLICABLE,
        where=seen.doing.text if is_known(seen) else NOT_APPLICABLE,
    )


def _date_back(taken: datetime, seconds: float) -> datetime:
    """Return the time so long before a dump; the dump's own time where there is no such date."""
    try:
        return taken - timedelta(seconds=seconds)
    except OverflowError:
        return taken


def _stood_s(still: Sequence[ThreadSeen]) -> float:
    """Return how long all of them stood still, 0 where that is not known of one."""
    times = [seen.sighting.since_s for seen in still if seen.motion is Motion.FROZEN]
    known = [time for time in times if is_known(time)]
    return min(known) if len(known) == len(still) else 0.0


def _say_next(suspect: _Suspect, scene: DumpScene, dump: Dump, *, is_hung: bool) -> str:
    if suspect.cause == "remote-rank":
        return "tpmon dump --job --json on every machine of the job, and tpmon fold on the results"
    seen = suspect.seen
    pid = seen.thread.pid if is_known(seen) else dump.pid
    where = f"  # on {seen.thread.host}" if is_known(seen) and _has_hosts(scene) else ""
    if is_hung or suspect.excuse or dump.rounds >= LEAST_LOOKS:
        return f"tpmon diagnose {pid} --until hung --for 5m{where}"
    return f"tpmon dump {pid} --rounds 3 --every 16{where}"


def _list_unknown(scene: DumpScene) -> tuple[str, ...]:
    unread = [f"{len(scene.unread)} ranks whose stacks could not be read"] if scene.unread else []
    elsewhere = [f"{scene.remote} ranks that are not in the picture"] if scene.remote else []
    return ("whether steps or the log go on", *unread, *elsewhere)


def _row(figure: Figure, text: str) -> Evidence:
    return tell(reading_aged(figure, IN_WORDS, 0.0, text=text))


ROLES = (Role.RANK, Role.WORKER, Role.HELPER, Role.COMPILE, Role.LAUNCHER)


@dataclass(frozen=True, slots=True)
class DumpOrigin:
    """Name the job that a dump is of; ``not_asked`` counts local ranks that were not asked for."""

    pid: int
    script: str
    world_size: Applicable[int]
    not_asked: Applicable[int] = NOT_APPLICABLE


def fold_rounds(
    rounds: Sequence[DumpRound], origin: DumpOrigin, *, earlier: Applicable[DumpRound] = NOT_APPLICABLE
) -> Dump:
    """Fold the rounds of one host, in any order; ValueError without a round.

    ``earlier`` is a round of the dump before, which reported its cost.
    """
    if not rounds:
        raise ValueError("a fold needs a round")
    rounds = sorted(rounds, key=lambda one: one.taken_ns)
    last = rounds[-1]
    before = (earlier,) if is_known(earlier) else ()
    looks = [look for one in (*before, *rounds) for look in looks_of_round(one)]
    sightings = join_looks(looks, last.taken_ns / 1e9, begun_s=rounds[0].taken_ns / 1e9)
    dump = Dump(
        schema=DUMP_SCHEMA,
        host=last.host,
        taken=last.taken,
        pid=origin.pid,
        script=origin.script,
        world_size=origin.world_size,
        rounds=len(before) + len(rounds),
        seconds=(last.taken_ns - (*before, *rounds)[0].taken_ns) / 1e9,
        summary="",
        odd_one_out=NOT_APPLICABLE,
        groups=(),
        idle_threads=sum(process.idle for process in last.processes),
        verdict=NOBODY,
        errors=last.errors,
        paused_ms=sum(one.paused_ms for one in rounds),
        spy_cpu_ms=sum(one.spy_cpu_ms for one in rounds),
        not_asked=origin.not_asked,
        dead=last.dead,
    )
    return _fold(dump, sightings, [(last.host, one) for one in last.dead])


def fold_dumps(dumps: Sequence[Dump]) -> Dump:
    """Fold Dumps of several hosts into one, those of one host as rounds in turn; ValueError without any."""
    if not dumps:
        raise ValueError("a fold needs a dump")
    ordered = sorted(dumps, key=lambda dump: (dump.taken, dump.host, dump.pid))
    joined = [_join_dumps(group) for group in group_dumps(ordered)]
    jobs, living = [job for _, job in joined], set[ThreadKey]().union(*(those for those, _ in joined))
    looks = [look for dump in ordered for look in looks_of_dump(dump) if key_thread(look.thread) in living]
    sightings = join_looks(looks, apart_s=LEAST_APART_S)
    first, last = ordered[0], ordered[-1]
    sizes = [dump.world_size for dump in ordered if is_known(dump.world_size)]
    world_size: Applicable[int] = max(sizes) if sizes else last.world_size
    left_out = [job.not_asked for job in jobs if is_known(job.not_asked)]
    dead = [(job.host, one) for job in jobs for one in job.dead]
    folded = Dump(
        schema=DUMP_SCHEMA,
        host=", ".join(sorted({dump.host for dump in ordered})),
        taken=last.taken,
        pid=first.pid,
        script=first.script,
        world_size=world_size,
        rounds=max(job.rounds for job in jobs),
        seconds=max(job.seconds for job in jobs),
        summary="",
        odd_one_out=NOT_APPLICABLE,
        groups=(),
        idle_threads=sum(job.idle_threads for job in jobs),
        verdict=NOBODY,
        errors=tuple(error for job in jobs for error in job.errors),
        paused_ms=sum(dump.paused_ms for dump in ordered),
        spy_cpu_ms=sum(dump.spy_cpu_ms for dump in ordered),
        not_asked=sum(left_out) if left_out else NOT_APPLICABLE,
        last_write=_find_last_write(jobs),
        dead=tuple(one for _, one in dead),
    )
    return _fold(folded, sightings, dead)


def _fold(dump: Dump, sightings: Iterable[Sighting], dead: Sequence[tuple[str, DeadChild]]) -> Dump:
    """Add the groups to a dump, and what they decide."""
    seen = see_threads(sightings)
    scene = set_scene(seen, dump.world_size, known_or(dump.not_asked, 0), dead)
    answer, suspect = find_odd(scene, dump.errors), _find_suspect(scene)
    odd = (answer.odd.host, answer.odd.pid) if is_known(answer.odd) else None
    return replace(
        dump,
        summary=answer.summary,
        odd_one_out=answer.odd,
        groups=group_threads(seen, odd),
        verdict=suspect if isinstance(suspect, Missing) else _find(suspect, scene, dump),
    )


_Key = tuple[Role, ThreadKind, Motion, object]


def _key(seen: ThreadSeen) -> _Key:
    thread, frames = seen.thread, seen.sighting.frames
    what: object = seen.stack
    if not is_known(frames):
        # Native threads of one pool differ only by a number at the end of their names.
        what = (thread.name.rstrip("0123456789"), thread.state, frames is NOT_APPLICABLE)
    return thread.role, thread.kind, seen.motion, what


def group_threads(seen: Iterable[ThreadSeen], odd: tuple[str, int] | None = None) -> tuple[StackGroup, ...]:
    """Group threads of equal stacks, kind and motion; every thread is in exactly one group.

    The main thread of process ``odd`` comes first, then main threads of ranks, of workers, of others, then
    all other threads; large groups first.
    """
    members: dict[_Key, list[ThreadSeen]] = {}
    for one in seen:
        members.setdefault(_key(one), []).append(one)
    groups = [_make_group(those) for those in members.values()]

    def order(group: StackGroup) -> tuple[bool, bool, int, int, tuple[float, str, int, int, str]]:
        first = group.threads[0]
        is_main = first.kind is ThreadKind.MAIN
        is_odd = is_main and any((one.host, one.pid) == odd for one in group.threads)
        return not is_odd, not is_main, ROLES.index(first.role), -len(group.threads), order_threads(first)

    return tuple(sorted(groups, key=order))


def _make_group(those: Sequence[ThreadSeen]) -> StackGroup:
    ordered = sorted(those, key=lambda one: order_threads(one.thread))
    frames: Applicable[tuple[StackFrame, ...]] = ordered[0].sighting.frames
    doings = Counter(one.doing for one in ordered)
    doing = min(doings, key=lambda one: (-doings[one], one.text))
    times = [one.sighting.since_s for one in ordered]
    known = [time for time in times if is_known(time)]
    return StackGroup(
        doing=doing.text,
        threads=tuple(one.thread for one in ordered),
        frames=frames,
        state="".join(sorted({one.thread.state for one in ordered})),
        motion=ordered[0].motion,
        since_s=min(known) if known else times[0],
        stack_wait=NOT_APPLICABLE if doing.wait is WaitReason.OTHER else doing.wait,
    )
