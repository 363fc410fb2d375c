"""Put the Dumps of each job of each host together: which threads are there still, and over how long. Pure.

Clocks of two hosts are never compared. A Dump of a part of a job tells nothing of the other part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from tpmon.judge.dumps.fold_looks import LEAST_APART_S, ThreadKey, key_thread
from tpmon.model.dump import DeadChild, Dump, DumpError, DumpThread
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.text.dump_words import list_numbers


@dataclass(frozen=True, slots=True)
class JobLooks:
    """Hold what all Dumps of one job on one host say together."""

    living: frozenset[ThreadKey]
    errors: tuple[DumpError, ...]
    not_asked: Applicable[int]
    idle_threads: int
    rounds: int
    seconds: float
    last_write: Applicable[datetime]
    host: str
    dead: tuple[DeadChild, ...]


def group_dumps(dumps: Iterable[Dump]) -> tuple[tuple[Dump, ...], ...]:
    """Group Dumps by host and job, each group from the oldest to the newest."""
    groups: dict[tuple[str, int], list[Dump]] = {}
    for dump in sorted(dumps, key=lambda one: (one.taken, one.host, one.pid)):
        groups.setdefault((dump.host, dump.pid), []).append(dump)
    return tuple(map(tuple, groups.values()))


def join_dumps(dumps: Sequence[Dump]) -> JobLooks:
    """Join the Dumps of one job on one host, from the oldest to the newest."""
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
    first, newest = min(dumps, key=_begin_of), dumps[-1]
    span_s = (newest.taken - first.taken).total_seconds() + first.seconds
    whole = [dump for dump in dumps if not _is_part(dump)]
    return JobLooks(
        living=frozenset(living),
        errors=tuple(errors),
        not_asked=NOT_APPLICABLE if whole else _count_not_asked(dumps),
        idle_threads=(whole[-1] if whole else newest).idle_threads,
        rounds=_count_rounds(dumps),
        seconds=span_s,
        last_write=newest.last_write,
        host=newest.host,
        dead=newest.dead,
    )


def find_last_write(jobs: Iterable[JobLooks]) -> Applicable[datetime]:
    """Return when any host's log was written last; why not where none could tell."""
    told = [job.last_write for job in jobs]
    known = [one for one in told if is_known(one)]
    return max(known) if known else next((one for one in told if isinstance(one, Missing)), NOT_APPLICABLE)


def find_clash(dumps: Sequence[Dump]) -> str:
    """Say which Dumps of one host's name are of two machines; "" where none are.

    Two machines of one name (localhost) may number their processes alike: their ranks tell them apart.
    """
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


def _begin_of(dump: Dump) -> float:
    return dump.taken.timestamp() - dump.seconds


def _count_not_asked(dumps: Sequence[Dump]) -> Applicable[int]:
    """Count the ranks that none of several partial Dumps was asked for."""
    newest = dumps[-1]
    if not is_known(newest.not_asked):
        return NOT_APPLICABLE
    seen = {one.pid for dump in dumps for one in _threads_of(dump) if one.role is Role.RANK}
    last = {one.pid for one in _threads_of(newest) if one.role is Role.RANK}
    return max(0, newest.not_asked - len(seen - last))


def _count_rounds(dumps: Sequence[Dump]) -> int:
    """Count the looks; what several asked for at one time is one."""
    rounds, most = 0, 0
    before: datetime | None = None
    for dump in dumps:
        if before is not None and (dump.taken - before).total_seconds() < LEAST_APART_S:
            most = max(most, dump.rounds)
        else:
            rounds, most = rounds + most, dump.rounds
            before = dump.taken
    return rounds + most
