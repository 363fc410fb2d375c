"""Build what ranks recorded of their collectives: dumps as torch writes them, and typed records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.frames import NOW
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.results.collectives import (
    CallState,
    CollectiveCall,
    CollectivesReading,
    GroupRecord,
    RankRecord,
    RasRank,
    RasReport,
    RecordSource,
    SourceNote,
)

HOST = "node-01"
BEHIND = RasRank("00a1b2c3d4e5f607", 1, "behind", "AllReduce", 3, 4, 4242, "10.0.0.1")
RAS = RasReport("2.27.5", 2, 2, (), (BEHIND,), 0, 0)
"""Rank 1 of two has launched one call less."""


def make_entry(
    number: int, name: str = "gloo:all_reduce", group: tuple[str, str] = ("0", "default_pg"), **fields: Any
) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": list(group),
        "thread_name": "python3",
        "thread_id": "140",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": round(NOW.timestamp() * 1e9),
        "input_sizes": [[4, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "timeout_ms": 900_000,
        "is_p2p": False,
        "frames": [],
    } | fields


def make_raw(entries: Iterable[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {},
        "entries": list(entries),
    } | fields


def make_call(sequence: int, name: str = "all_reduce", ago_s: float = 60.0, **fields: Any) -> CollectiveCall:
    plain = CollectiveCall(
        sequence=sequence,
        name=name,
        is_transfer=False,
        state=CallState.SCHEDULED,
        input_sizes=((4, 4),),
        output_sizes=((4, 4),),
        input_types=("Float",),
        output_types=("Float",),
        created=NOW - timedelta(seconds=ago_s),
        timeout_s=600.0,
        line=NOT_APPLICABLE,
    )
    return replace(plain, **fields)


def make_group(done: int, called: int, calls: Sequence[CollectiveCall] | None = None, **fields: Any) -> GroupRecord:
    """Build what a rank recorded of the whole job's group; all calls are all_reduce unless given."""
    if calls is None:
        calls = [make_call(number) for number in range(max(1, done - 2), called + 1)]
    plain = GroupRecord("0", "default_pg", "nccl", (0, 1, 2, 3), called, done, tuple(calls))
    return replace(plain, **fields)


def make_record(rank: int, *groups: GroupRecord, **fields: Any) -> RankRecord:
    plain = RankRecord(HOST, 4000 + 10 * rank, rank, RecordSource.SERVER, NOW, True, groups)
    return replace(plain, **fields)


def reading(
    *records: RankRecord, ras: Sequence[RasReport] = (), notes: Sequence[SourceNote] = ()
) -> CollectivesReading:
    return CollectivesReading(tuple(records), tuple(ras), tuple(notes))


def one_missing() -> list[RankRecord]:
    waiting = [make_record(rank, make_group(17, 18)) for rank in (0, 1, 2)]
    return [*waiting, make_record(3, make_group(17, 17))]
