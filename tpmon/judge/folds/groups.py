"""Fold the stacks of a job into groups, over ranks, workers, threads and hosts. Pure.

Clocks of two hosts are never compared; a Dump of part of a job says nothing about the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from tpmon.judge.dumps.camps import ThreadSeen, order_threads, see_threads
from tpmon.judge.dumps.merge import (
    LEAST_APART_S,
    Sighting,
    ThreadKey,
    join_looks,
    key_thread,
    looks_of_dump,
    looks_of_round,
)
from tpmon.judge.folds.accused import NOBODY, draw_dump, judge_dump
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime
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
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import list_numbers
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


def _count_not_asked(dumps: Sequence[Dump]) -> int:
    """Count the ranks that none of several partial Dumps was asked for."""
    newest = dumps[-1]
    seen = {one.pid for dump in dumps for one in _threads_of(dump) if one.role is Role.RANK}
    last = {one.pid for one in _threads_of(newest) if one.role is Role.RANK}
    return max(0, known_or(newest.not_asked, 0) - len(seen - last))


def _count_rounds(dumps: Sequence[Dump]) -> int:
    """Count the rounds; several Dumps of one time count as one."""
    rounds: list[int] = []
    begun: datetime | None = None
    for dump in dumps:
        if begun is None or (dump.taken - begun).total_seconds() >= LEAST_APART_S:
            rounds, begun = [*rounds, 0], dump.taken
        rounds[-1] = max(rounds[-1], dump.rounds)
    return sum(rounds)


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


def fold_dumps(dumps: Sequence[Dump], watch: WatchedTime = NO_WATCH) -> Dump:
    """Fold Dumps of several hosts into one, those of one host as rounds in turn; ValueError without any.

    ``watch`` says for how long somebody who watches all of these hosts saw no rank move.
    """
    if not dumps:
        raise ValueError("a fold needs a dump")
    ordered = sorted(dumps, key=lambda dump: (dump.taken, dump.host, dump.pid))
    joined = [_join_dumps(group) for group in group_dumps(ordered)]
    jobs, living = [job for _, job in joined], set[ThreadKey]().union(*(those for those, _ in joined))
    looks = [look for dump in ordered for look in looks_of_dump(dump) if key_thread(look.thread) in living]
    sightings = join_looks(looks, apart_s=LEAST_APART_S)
    first, last = ordered[0], ordered[-1]
    sizes = [dump.world_size for dump in ordered if is_known(dump.world_size)]
    left_out = [job.not_asked for job in jobs if is_known(job.not_asked)]
    dead = [(job.host, one) for job in jobs for one in job.dead]
    folded = replace(
        last,
        host=", ".join(sorted({dump.host for dump in ordered})),
        pid=first.pid,
        script=first.script,
        world_size=max(sizes) if sizes else last.world_size,
        rounds=max(job.rounds for job in jobs),
        seconds=max(job.seconds for job in jobs),
        idle_threads=sum(job.idle_threads for job in jobs),
        errors=tuple(error for job in jobs for error in job.errors),
        paused_ms=sum(dump.paused_ms for dump in ordered),
        spy_cpu_ms=sum(dump.spy_cpu_ms for dump in ordered),
        not_asked=sum(left_out) if left_out else NOT_APPLICABLE,
        last_write=_find_last_write(jobs),
        dead=tuple(one for _, one in dead),
        collectives=NOT_APPLICABLE,
    )
    return _fold(folded, sightings, dead, watch)


def _fold(
    dump: Dump,
    sightings: Iterable[Sighting],
    dead: Sequence[tuple[str, DeadChild]],
    watch: WatchedTime = NO_WATCH,
) -> Dump:
    """Add the groups to a dump, and what they decide."""
    seen = see_threads(sightings)
    told = judge_dump(draw_dump(seen, dump, dead), dump, watch)
    one = told.odd_one_out
    return replace(told, groups=group_threads(seen, (one.host, one.pid) if is_known(one) else None))


_Key = tuple[Role, ThreadKind, Motion, object]


def _key(seen: ThreadSeen) -> _Key:
    thread, frames = seen.thread, seen.sighting.frames
    what: object = seen.stack
    if not is_known(frames):
        # Native threads of one pool differ only by a number at the end of their names.
        what = (thread.name.rstrip("0123456789"), thread.state, frames is NOT_APPLICABLE)
    return thread.role, thread.kind, seen.sighting.told[0], what


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
    times = [one.sighting.told[1] for one in ordered]
    known = [time for time in times if is_known(time)]
    return StackGroup(
        doing=doing.text,
        threads=tuple(one.thread for one in ordered),
        frames=frames,
        state="".join(sorted({one.thread.state for one in ordered})),
        motion=ordered[0].sighting.told[0],
        since_s=min(known) if known else times[0],
        stack_wait=NOT_APPLICABLE if doing.wait is WaitReason.OTHER else doing.wait,
    )
