"""Find by the records of all ranks which collective does not end, who waits in it, who never came. Pure.

A process group numbers its collectives, and each rank ends them in order. The group stands at the first that
a rank has called and not finished; a rank that has not called it holds up those that have. Ranks that wait in
one group are missing in the next, so the cause is the rank that is missing somewhere and waits nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import isfinite

from tpmon.judge.dumps.collective_words import (
    JUST_NOW_S,
    OpenCall,
    find_differences,
    find_standings,
    find_waits,
    open_call,
    say_assumed_abort,
    say_uncounted,
    sum_up,
    write_summary,
)
from tpmon.model.dump import Dump
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.collectives import (
    CallDifference,
    CallState,
    CollectiveCall,
    CollectiveCause,
    CollectiveFinding,
    Collectives,
    CollectivesReading,
    GroupRecord,
    RankRecord,
)

DEFAULT_TIMEOUTS_S = {"nccl": 600.0, "gloo": 1800.0}
"""How long a backend waits when the job does not say (torch/distributed/constants.py)."""
MOST_RANKS = 65_536
SILENT_S = 30.0
CLOCKS_S = 60.0
WORLD = "default_pg"
"""What torch calls the group of all ranks of a job."""
_CAUSES = tuple(CollectiveCause)


def judge_collectives(
    readings: Sequence[CollectivesReading],
    world_size: Applicable[int],
    standings: Mapping[int, str],
    now: Applicable[datetime] = NOT_APPLICABLE,
) -> Collectives:
    """Judge all records of a job, of one or several hosts; ``standings`` say where ranks are by stack.

    A record may be much older than ``now``: its sentence then gives the age. Time limits are the record's.
    """
    records = pick_records(record for reading in readings for record in reading.records)
    transfers = find_transfers(records)
    findings = order_findings(find_open(records, world_size), transfers)
    told = tuple(
        replace(one, summary=write_summary(one, standings, _find_age(records, one.waiting, now), transfers))
        for one in findings
    )
    ras = tuple(report for reading in readings for report in reading.ras)
    notes = tuple(note for reading in readings for note in reading.notes)
    age_s = _find_age(records, [], now)
    summary = sum_up(told, records, ras, notes, say_uncounted(find_uncounted(records)), age_s=age_s)
    return Collectives(summary, told, ras, notes, records)


def _find_age(records: Sequence[RankRecord], ranks: Sequence[int], now: Applicable[datetime]) -> float:
    """Return the age in seconds of the oldest record of ``ranks``, of all ranks where none are named."""
    taken = [one.taken for one in records if not ranks or one.rank in ranks]
    if not taken or not is_known(now) or now.tzinfo is None:
        return 0.0
    return max(0.0, (now - min(taken)).total_seconds())


def add_collectives(dump: Dump, reading: CollectivesReading) -> Dump:
    """Return a Dump with the job's records; unchanged where nothing was found and nobody waits."""
    return _join(dump, (reading,))


def fold_collectives(folded: Dump, dumps: Sequence[Dump]) -> Dump:
    """Return the fold of several Dumps with all their records judged together."""
    newest = {(one.host, one.pid): one for one in sorted(dumps, key=lambda one: one.taken)}
    held = [one.collectives for one in newest.values() if is_known(one.collectives)]
    return _join(folded, [CollectivesReading(one.records, one.ras, one.notes) for one in held])


def _join(dump: Dump, readings: Sequence[CollectivesReading]) -> Dump:
    waits = find_waits(dump.groups, _find_silence(dump))
    if not any(one.records or one.ras or (one.notes and waits) for one in readings):
        return dump
    judged = judge_collectives(readings, dump.world_size, find_standings(dump.groups), dump.taken)
    if not judged.findings and (assumed := say_assumed_abort(waits, DEFAULT_TIMEOUTS_S)):
        judged = replace(judged, summary=f"{judged.summary}; {assumed}")
    return replace(dump, collectives=judged)


def _find_silence(dump: Dump) -> Applicable[float]:
    """Return how long the log has been silent, if rank 0 is here and that is long enough to count."""
    mains = [one for group in dump.groups for one in group.threads if one.kind is ThreadKind.MAIN]
    writes = any(one.role is Role.RANK and known_or(one.rank, 0) == 0 for one in mains)
    if not writes or not is_known(dump.last_write) or dump.last_write.tzinfo is None:
        return NOT_APPLICABLE
    silent_s = (dump.taken - dump.last_write).total_seconds()
    return silent_s if silent_s >= SILENT_S else NOT_APPLICABLE


def pick_records(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """Return the newest record of each rank, by rank, without those with impossible times."""
    newest: dict[int, RankRecord] = {}
    for rank, one in _number(filter(_has_times, records)):
        if rank not in newest or newest[rank].taken < one.taken:
            newest[rank] = one
    return tuple(newest[rank] for rank in sorted(newest))


def _has_times(record: RankRecord) -> bool:
    """Tell whether times can be subtracted: somebody else's file may hold anything."""
    calls = [call for group in record.groups for call in group.calls]
    times = [record.taken, *(call.created for call in calls)]
    return all(time.tzinfo is not None for time in times) and all(
        isfinite(known_or(call.timeout_s, 0.0)) for call in calls
    )


@dataclass(frozen=True, slots=True)
class _Seat:
    """Hold what one rank recorded of one group, with its whole record."""

    group: GroupRecord
    record: RankRecord


_GroupKey = tuple[str, str, str, tuple[int, ...]]


def find_open(records: Sequence[RankRecord], world_size: Applicable[int]) -> tuple[CollectiveFinding, ...]:
    """Find in each process group the first collective that was called and not finished by all."""
    groups = _seat_ranks(records)
    whole = {rank for rank, record in _number(records) if record.from_start}
    found = (
        _judge_group(seats, whole | set(seats), world_size)
        for seats in groups.values()
        if _can_compare(seats)
    )
    return tuple(one for one in found if one is not None)


def _number(records: Iterable[RankRecord]) -> list[tuple[int, RankRecord]]:
    return [(one.rank, one) for one in records if is_known(one.rank)]


def _seat_ranks(records: Sequence[RankRecord]) -> dict[_GroupKey, dict[int, _Seat]]:
    """Sort the ranks' records by process group and backend; a group may have two backends."""
    groups: dict[_GroupKey, dict[int, _Seat]] = {}
    for rank, record in _number(records):
        for group in record.groups:
            key = (group.name, group.description, group.backend, known_or(group.ranks, ()))
            groups.setdefault(key, {})[rank] = _Seat(group, record)
    return groups


def _can_compare(seats: Mapping[int, _Seat]) -> bool:
    """Tell whether the numbers of collectives mean the same on every rank of a group."""
    those = seats.values()
    return all(seat.record.from_start for seat in those) or not any(seat.group.batches for seat in those)


def find_uncounted(records: Sequence[RankRecord]) -> tuple[OpenCall, ...]:
    """Find the first open collective of each rank in groups whose numbers cannot be compared."""
    return tuple(
        open_call(rank, seat.record.taken, seat.group, call)
        for seats in _seat_ranks(records).values()
        if not _can_compare(seats)
        for rank, seat in sorted(seats.items())
        if seat.group.last_called > seat.group.last_done
        and (call := _find_call(seat.group, seat.group.last_done + 1)) is not None
    )


def _list_members(seats: Mapping[int, _Seat], world_size: Applicable[int]) -> set[int]:
    """Return the known members: gloo lists only those that called something."""
    members = set(seats)
    for seat in seats.values():
        if is_known(seat.group.ranks):
            members |= set(seat.group.ranks)
        elif seat.group.description == WORLD and is_known(world_size):
            members |= set(range(min(world_size, MOST_RANKS)))
    return members


def _judge_group(
    seats: Mapping[int, _Seat], recorded: set[int], world_size: Applicable[int]
) -> CollectiveFinding | None:
    members = _list_members(seats, world_size)
    # A member without a seat never called anything of this group, if its record is whole.
    counts = {rank: seats[rank].group if rank in seats else None for rank in members & recorded}
    done = {rank: group.last_done if group else 0 for rank, group in counts.items()}
    called = {rank: group.last_called if group else 0 for rank, group in counts.items()}
    waiting = sorted(rank for rank in done if called[rank] > done[rank])
    if not waiting:
        return None
    number = min(done[rank] for rank in waiting) + 1
    first_there = [rank for rank in waiting if done[rank] < number]
    calls = [
        (seat, call)
        for seat in map(seats.__getitem__, first_there)
        if (call := _find_call(seat.group, number)) is not None
    ]
    behind = {rank for rank in done if called[rank] < number}
    old = {rank for rank in behind if rank in seats and _is_older(seats[rank], calls)}
    missing, unread = sorted(behind - old), sorted((members - recorded) | old)
    unfit, differences = _find_mismatch(seats, number)
    first = seats[waiting[0]].group
    taken = max(seats[rank].record.taken for rank in first_there)
    waited_s = max(0.0, (taken - max(call.created for _, call in calls)).total_seconds()) if calls else 0.0
    abort_s, assumed = _find_abort(calls)
    return CollectiveFinding(
        group=first.description or first.name,
        backend=first.backend,
        cause=_name_cause(differences, missing, unread),
        sequence=unfit,
        name=calls[0][1].name if calls else "",
        waiting=tuple(waiting),
        missing=tuple(missing),
        unread=tuple(unread),
        differences=differences,
        waited_s=waited_s,
        abort_s=abort_s,
        abort_assumed=assumed,
        summary="",
    )


def _is_older(seat: _Seat, calls: Sequence[tuple[_Seat, CollectiveCall]]) -> bool:
    """Tell whether a record was written before the first call that its rank seems to miss."""
    mine = seat.record
    return bool(calls) and all(
        (call.created - mine.taken).total_seconds() > (0.0 if mine.host == other.record.host else CLOCKS_S)
        for other, call in calls
    )


def find_transfers(records: Sequence[RankRecord]) -> dict[int, str]:
    """Return the oldest send or receive that each rank waits in."""
    found: dict[int, CollectiveCall] = {}
    for rank, record in _number(records):
        for call in (call for group in record.groups for call in group.calls):
            waits = call.is_transfer and call.state is not CallState.COMPLETED
            if waits and (record.taken - call.created).total_seconds() >= JUST_NOW_S:
                first = found.setdefault(rank, call)
                found[rank] = min(first, call, key=lambda one: one.created)
    return {rank: call.name for rank, call in found.items()}


def _name_cause(
    differences: Sequence[CallDifference], missing: Sequence[int], unread: Sequence[int]
) -> CollectiveCause:
    if differences:
        return CollectiveCause.MISMATCH
    if missing:
        return CollectiveCause.MISSING_RANK
    return CollectiveCause.REMOTE_RANK if unread else CollectiveCause.TRANSFER


def _find_call(group: GroupRecord, number: int) -> CollectiveCall | None:
    return next((call for call in group.calls if call.sequence == number and not call.is_transfer), None)


def _find_mismatch(seats: Mapping[int, _Seat], number: int) -> tuple[int, tuple[CallDifference, ...]]:
    """Find the first number up to the open one at which calls do not fit; the open one and () for none.

    Earlier ones count only if the group's members are known: two groups of one name look alike.
    """
    first = 0 if all(is_known(seat.group.ranks) for seat in seats.values()) else number
    by_number: dict[int, dict[int, CollectiveCall]] = {}
    for rank, seat in seats.items():
        for call in seat.group.calls:
            if not call.is_transfer and first <= call.sequence <= number:
                by_number.setdefault(call.sequence, {})[rank] = call
    for one in sorted(by_number):
        if differences := find_differences(by_number[one]):
            return one, differences
    return number, ()


def _find_abort(calls: Sequence[tuple[_Seat, CollectiveCall]]) -> tuple[Applicable[float], bool]:
    """Return when the first of these calls is given up, and whether that is assumed."""
    ends: list[tuple[float, bool]] = []
    for seat, call in calls:
        limit_s = known_or(call.timeout_s, DEFAULT_TIMEOUTS_S.get(seat.group.backend))
        if limit_s is not None:
            waited_s = (seat.record.taken - call.created).total_seconds()
            ends.append((max(0.0, limit_s - waited_s), not is_known(call.timeout_s)))
    return min(ends) if ends else (NOT_APPLICABLE, False)


def order_findings(
    findings: Sequence[CollectiveFinding], transfers: Collection[int] = ()
) -> tuple[CollectiveFinding, ...]:
    """Order by cause: mismatch, missing rank that waits nowhere (nor in ``transfers``), longest wait."""
    holders: dict[int, set[int]] = {}
    for one in findings:
        for rank in one.waiting:
            holders.setdefault(rank, set()).update(one.missing)
    named = [
        replace(one, cause=CollectiveCause.CROSSED) if _is_in_cycle(one, holders) else one for one in findings
    ]

    def order(one: CollectiveFinding) -> tuple[bool, bool, int, float, str]:
        return (
            one.cause is not CollectiveCause.MISMATCH,
            all(rank in holders or rank in transfers for rank in one.missing),
            _CAUSES.index(one.cause),
            -one.waited_s,
            one.group,
        )

    return tuple(sorted(named, key=order))


def _is_in_cycle(one: CollectiveFinding, holders: Mapping[int, set[int]]) -> bool:
    """Tell whether all that are missing here wait, over other groups, for those that wait here."""
    if one.cause is not CollectiveCause.MISSING_RANK or not all(rank in holders for rank in one.missing):
        return False
    reached: set[int] = set()
    todo = list(one.missing)
    while todo:
        rank = todo.pop()
        if rank not in reached:
            reached.add(rank)
            todo += holders.get(rank, ())
    return not reached.isdisjoint(one.waiting)
