"""Fold the stacks of a job: identical ones together, over ranks, workers, threads, looks and hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tpmon.judge.dumps.fold_hosts import find_last_write, group_dumps, join_dumps
from tpmon.judge.dumps.fold_looks import (
    LEAST_APART_S,
    Sighting,
    ThreadKey,
    join_looks,
    key_thread,
    looks_of_dump,
    looks_of_round,
)
from tpmon.judge.dumps.odd_one import find_odd
from tpmon.judge.dumps.outlier import Seen, order_threads, see_threads, set_scene
from tpmon.judge.dumps.standstill_picture import Span, judge_scene
from tpmon.model.dump import DUMP_SCHEMA, DeadChild, Dump, DumpError, DumpRound, Motion, OddOne, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding

_ROLES = (Role.RANK, Role.WORKER, Role.HELPER, Role.COMPILE, Role.LAUNCHER)


@dataclass(frozen=True, slots=True)
class Origin:
    """Name the job that a dump is of; ``not_asked`` counts ranks of it here that nobody asked for."""

    pid: int
    script: str
    world_size: Applicable[int]
    not_asked: Applicable[int] = NOT_APPLICABLE


def fold_rounds(
    rounds: Sequence[DumpRound],
    origin: Origin,
    *,
    earlier: Applicable[DumpRound] = NOT_APPLICABLE,
) -> Dump:
    """Fold the rounds of one host, in whatever order they come.

    ``earlier`` is a look of a dump before: what it cost was told there.

    Raises:
        ValueError: when there is no round.
    """
    if not rounds:
        raise ValueError("a fold needs a round")
    rounds = sorted(rounds, key=lambda one: one.taken_ns)
    last = rounds[-1]
    before = (earlier,) if is_known(earlier) else ()
    looks = [look for one in (*before, *rounds) for look in looks_of_round(one)]
    sightings = join_looks(looks, last.taken_ns / 1e9, begun_s=rounds[0].taken_ns / 1e9)
    dead = [(last.host, one) for one in last.dead]
    looks_taken = len(before) + len(rounds)
    span = Span(last.taken, looks_taken, origin.pid)
    folded = _fold(sightings, origin.world_size, last.errors, known_or(origin.not_asked, 0), dead, span=span)
    return Dump(
        schema=DUMP_SCHEMA,
        host=last.host,
        taken=last.taken,
        pid=origin.pid,
        script=origin.script,
        world_size=origin.world_size,
        rounds=looks_taken,
        seconds=(last.taken_ns - (*before, *rounds)[0].taken_ns) / 1e9,
        summary=folded.summary,
        odd_one_out=folded.odd,
        groups=folded.groups,
        idle_threads=sum(process.idle for process in last.processes),
        verdict=folded.verdict,
        errors=last.errors,
        paused_ms=sum(one.paused_ms for one in rounds),
        spy_cpu_ms=sum(one.spy_cpu_ms for one in rounds),
        not_asked=origin.not_asked,
        dead=last.dead,
    )


def fold_dumps(dumps: Sequence[Dump]) -> Dump:
    """Fold Dumps of several hosts into one; several of one host count as looks, one after the other.

    Raises:
        ValueError: when there is no Dump.
    """
    if not dumps:
        raise ValueError("a fold needs a dump")
    ordered = sorted(dumps, key=lambda dump: (dump.taken, dump.host, dump.pid))
    jobs = [join_dumps(group) for group in group_dumps(ordered)]
    living = frozenset[ThreadKey]().union(*(job.living for job in jobs))
    looks = [look for dump in ordered for look in looks_of_dump(dump) if key_thread(look.thread) in living]
    sightings = join_looks(looks, apart_s=LEAST_APART_S)
    first, last = ordered[0], ordered[-1]
    sizes = [dump.world_size for dump in ordered if is_known(dump.world_size)]
    world_size: Applicable[int] = max(sizes) if sizes else last.world_size
    errors = tuple(error for job in jobs for error in job.errors)
    left_out = [job.not_asked for job in jobs if is_known(job.not_asked)]
    dead = [(job.host, one) for job in jobs for one in job.dead]
    looks_taken = max(job.rounds for job in jobs)
    span = Span(last.taken, looks_taken, first.pid)
    folded = _fold(sightings, world_size, errors, sum(left_out), dead, span=span)
    return Dump(
        schema=DUMP_SCHEMA,
        host=", ".join(sorted({dump.host for dump in ordered})),
        taken=last.taken,
        pid=first.pid,
        script=first.script,
        world_size=world_size,
        rounds=looks_taken,
        seconds=max(job.seconds for job in jobs),
        summary=folded.summary,
        odd_one_out=folded.odd,
        groups=folded.groups,
        idle_threads=sum(job.idle_threads for job in jobs),
        verdict=folded.verdict,
        errors=errors,
        paused_ms=sum(dump.paused_ms for dump in ordered),
        spy_cpu_ms=sum(dump.spy_cpu_ms for dump in ordered),
        not_asked=sum(left_out) if left_out else NOT_APPLICABLE,
        last_write=find_last_write(jobs),
        dead=tuple(one for _, one in dead),
    )


@dataclass(frozen=True, slots=True)
class _Folded:
    groups: tuple[StackGroup, ...]
    odd: Applicable[OddOne]
    summary: str
    verdict: Known[Finding]


def _fold(
    sightings: Iterable[Sighting],
    world_size: Applicable[int],
    errors: Sequence[DumpError],
    not_asked: int,
    dead: Sequence[tuple[str, DeadChild]],
    *,
    span: Span,
) -> _Folded:
    seen = see_threads(sightings)
    scene = set_scene(seen, world_size, not_asked, dead)
    answer = find_odd(scene, errors)
    odd = (answer.odd.host, answer.odd.pid) if is_known(answer.odd) else None
    return _Folded(group_threads(seen, odd), answer.odd, answer.summary, judge_scene(scene, span))


_Key = tuple[Role, ThreadKind, Motion, object]


def _key(seen: Seen) -> _Key:
    thread, frames = seen.thread, seen.sighting.frames
    what: object = seen.stack
    if not is_known(frames):
        # Native threads of one pool differ by a number at the end of their names alone.
        what = (thread.name.rstrip("0123456789"), thread.state, frames is NOT_APPLICABLE)
    return thread.role, thread.kind, seen.motion, what


def group_threads(seen: Iterable[Seen], odd: tuple[str, int] | None = None) -> tuple[StackGroup, ...]:
    """Group threads of equal stacks, kind and motion; every thread is in exactly one group.

    The main thread of the process ``odd`` comes first, then main threads of ranks, of workers, of
    others, then all other threads; large groups before small ones.
    """
    members: dict[_Key, list[Seen]] = {}
    for one in seen:
        members.setdefault(_key(one), []).append(one)
    groups = [_make_group(those) for those in members.values()]

    def order(group: StackGroup) -> tuple[bool, bool, int, int, tuple[float, str, int, int, str]]:
        first = group.threads[0]
        is_main = first.kind is ThreadKind.MAIN
        is_odd = is_main and any((one.host, one.pid) == odd for one in group.threads)
        return not is_odd, not is_main, _ROLES.index(first.role), -len(group.threads), order_threads(first)

    return tuple(sorted(groups, key=order))


def _make_group(those: Sequence[Seen]) -> StackGroup:
    ordered = sorted(those, key=lambda one: order_threads(one.thread))
    frames: Applicable[tuple[StackFrame, ...]] = ordered[0].sighting.frames
    words = Counter(one.doing.text for one in ordered)
    times = [one.sighting.since_s for one in ordered]
    known = [time for time in times if is_known(time)]
    return StackGroup(
        doing=min(words, key=lambda text: (-words[text], text)),
        threads=tuple(one.thread for one in ordered),
        frames=frames,
        state="".join(sorted({one.thread.state for one in ordered})),
        motion=ordered[0].motion,
        since_s=min(known) if known else times[0],
    )
