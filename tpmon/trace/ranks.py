"""Several ranks beside each other: who computes, who waits, and which ranks have no trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.trace import RankRow, RankTable, TraceFile
from tpmon.trace.breakdown import Activity, comm_rows
from tpmon.trace.classes import flag, is_comm_host, is_host_backend, is_transfer
from tpmon.trace.columns import Ints
from tpmon.trace.comms import find_annotations
from tpmon.trace.read import Trace
from tpmon.trace.schema import Category
from tpmon.trace.spans import unite, unite_all
from tpmon.trace.steps import NEVER, Steps

SPREAD = 1.2
"""The straggler is named where the longest wait is this many times the shortest one."""
LEAST_SPREAD_MS = 1.0
_ALONE = Missing("one rank alone does not tell waiting from moving data")
_UNMATCHED = Missing("no collective is in the traces of all ranks")
_TWICE = Missing("several traces of one rank: they are of different times")
_MOST_RANKS = 1_000_000
"""A trace that says more says nothing: no job is that large."""

Key = tuple[str, str, str, int]
"""Group, collective, step, and which one in it: by order, or by its sequence number in all steps ("")."""
OUTSIDE = "outside of the steps"


@dataclass(frozen=True, slots=True)
class RankParts:
    """Hold of one trace what the comparison needs: its row, and when each collective ran, in ns."""

    row: RankRow
    world_size: Known[int]
    collectives: dict[Key, tuple[int, int]]
    transfers: int


def take_parts(
    trace: Trace, file: TraceFile, steps: Steps, activity: Activity, launched_by: Ints
) -> RankParts:
    """Take from a trace what ``compare_ranks`` needs; times of several devices as their mean."""
    on_device = len(trace.work.start) > 0
    start, end = steps.start, steps.end
    parts = []
    for one in activity.each():
        compute = one.kernel if on_device else one.cpu
        talk = one.talk()
        both = unite_all([compute, talk]).within(start, end)
        alone = (compute.within(start, end), talk.within(start, end))
        parts.append((*alone, alone[0] + alone[1] - both, (end - start) - both))
    computing, talking, overlap, other = np.mean(np.array(parts, dtype=np.float64), axis=(0, 2)).tolist()
    row = RankRow(
        rank=file.rank,
        path=file.path,
        step_ms=float((end - start).mean()) / 1e6,
        compute_ms=computing / 1e6,
        comm_ms=talking / 1e6,
        overlap_ms=overlap / 1e6,
        other_ms=other / 1e6,
        wait_ms=_ALONE,
        transfer_ms=_ALONE,
    )
    return RankParts(row, file.world_size, *_collectives(trace, steps, launched_by))


def _collectives(trace: Trace, steps: Steps, launched_by: Ints) -> tuple[dict[Key, tuple[int, int]], int]:
    """Return start and duration of the collectives by their numbers, and how many transfers there are.

    A transfer from one rank to another (send, receive) is none: the other end has another name and order.
    """
    rows = np.flatnonzero(comm_rows(trace))
    if len(rows):
        start, length = trace.work.start[rows], trace.work.duration[rows]
        said = [trace.collectives[number] if number >= 0 else None for number in trace.work.collective[rows]]
        kernels = [trace.names[number].split("(")[0] for number in trace.work.name[rows]]
        names = [one.name if one else kernel for one, kernel in zip(said, kernels, strict=True)]
        groups = [one.group if one else "" for one in said]
        numbers = [one.sequence if one else -1 for one in said]
        # A kernel of torch before 2.2 does not tell what it is of; all-to-all sends and receives, too.
        around = find_annotations(trace, rows, launched_by, shaped=False).tolist()
        titles = [trace.names[trace.host.name[row]] if row >= 0 else "" for row in around]
        names = [
            title if not one and is_transfer(title) else name
            for one, title, name in zip(said, titles, names, strict=True)
        ]
        calls = launched_by[rows]
        enqueued = np.where(calls >= 0, trace.calls.start[calls], NEVER) if len(trace.calls.start) else start
    else:
        host = trace.host
        wanted = is_host_backend if len(trace.work.start) else is_comm_host
        named = flag(trace.names, wanted)[host.name] & (host.category == Category.ANNOTATION)
        rows = np.flatnonzero(named)
        start, length = host.start[rows], host.duration[rows]
        names = [trace.names[number] for number in host.name[rows]]
        groups, numbers, enqueued = [""] * len(rows), [-1] * len(rows), start
    found: dict[Key, tuple[int, int]] = {}
    seen: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    times = zip(start.tolist(), length.tolist(), strict=True)
    transfers = 0
    for group, name, number, step, when in zip(
        groups, names, numbers, _name_steps(steps, enqueued), times, strict=True
    ):
        if is_transfer(name):
            transfers += 1
        elif number >= 0:
            found[group, name, "", number] = when
        else:
            found[group, name, step, seen[group, name, step]] = when
            seen[group, name, step] += 1
    return found, transfers


def _name_steps(steps: Steps, enqueued: Ints) -> list[str]:
    """Name the step in which each collective was enqueued; ``OUTSIDE`` for those before or behind them.

    How many of those a rank has depends on how far its host runs ahead: they would shift all others.
    """
    at = np.searchsorted(steps.host_start, enqueued, side="right") - 1
    inside = (at >= 0) & (enqueued < steps.host_end[-1])
    return [
        steps.names[step] if good else OUTSIDE
        for step, good in zip(at.tolist(), inside.tolist(), strict=True)
    ]


def _match(parts: Sequence[RankParts]) -> list[Key]:
    """Return the collectives that all ranks have, of steps in which all have the same number of that kind.

    Where one rank has more of them than another, order does not tell which one is missing.
    """
    shared = set.intersection(*(set(part.collectives) for part in parts))
    counts = [Counter(key[:3] for key in part.collectives) for part in parts]
    return sorted(
        key
        for key in shared
        if key[2] != OUTSIDE and (not key[2] or len({count[key[:3]] for count in counts}) == 1)
    )


def compare_ranks(parts: Sequence[RankParts]) -> RankTable:
    """Lay ranks side by side. A rank given twice, or without a number, keeps its row.

    Where a rank is given twice nothing is matched: its traces are of different times.
    What a collective takes on the rank where it is shortest moves data; what it takes longer elsewhere
    is waiting for that rank. Ranges that overlap on a rank count once.
    """
    sizes = [
        part.world_size for part in parts if is_known(part.world_size) and part.world_size <= _MOST_RANKS
    ]
    world: Known[int] = max(sizes) if sizes else Missing("no trace says the size of the job")
    told = [part.row.rank for part in parts if is_known(part.row.rank)]
    have = set(told)
    is_twice = len(have) < len(told)
    missing = tuple(rank for rank in range(world) if rank not in have) if is_known(world) and have else ()
    shared = [] if is_twice else _match(parts)
    every = set().union(*(part.collectives for part in parts))
    transfers = sum(part.transfers for part in parts)
    why = _TWICE if is_twice else _UNMATCHED
    rows = sorted((_split_waits(part, shared, parts, why) for part in parts), key=_order)
    straggler: Applicable[int] = NOT_APPLICABLE
    spread: Applicable[float] = NOT_APPLICABLE
    summary = f"{_say_traces(len(parts), len(told), len(have))}, "
    summary += why.reason if is_twice else f"{len(shared)} of {len(every)} collectives matched"
    waits = [(row.wait_ms, row.rank) for row in rows if is_known(row.wait_ms)]
    if len(waits) > 1:
        least, rank = min(waits, key=lambda one: one[0])
        most = max(wait for wait, _rank in waits)
        if most - least >= LEAST_SPREAD_MS and most >= SPREAD * least and is_known(rank):
            straggler, spread = rank, most - least
            summary += f"; rank {rank} waits least, the others for it: up to {spread:.1f} ms"
    if transfers:
        summary += f"; {transfers} sends and receives left out"
    if missing:
        summary += f"; no trace of {len(missing)} ranks"
    return RankTable(tuple(rows), world, missing, straggler, spread, len(shared), len(every), summary)


def _say_traces(traces: int, told: int, ranks: int) -> str:
    """Say how many ranks there are; of traces that tell no rank, or the same one, only how many."""
    if told == traces == ranks:
        return f"{traces} ranks"
    untold = f", {traces - told} of them without a rank" if told < traces else ""
    return f"{traces} traces{untold}"


def _split_waits(part: RankParts, shared: Sequence[Key], parts: Sequence[RankParts], why: Missing) -> RankRow:
    """Split the collectives that every rank has into waiting and moving data."""
    if not shared:
        return replace(part.row, wait_ms=why, transfer_ms=why)
    own = np.array([part.collectives[key] for key in shared], dtype=np.int64)
    least = np.array([min(one.collectives[key][1] for one in parts) for key in shared], dtype=np.int64)
    total = unite(own[:, 0], own[:, 1]).total
    transfer = unite(own[:, 0] + own[:, 1] - least, least).total
    return replace(part.row, wait_ms=(total - transfer) / 1e6, transfer_ms=transfer / 1e6)


def _order(row: RankRow) -> tuple[int, str]:
    return (row.rank if is_known(row.rank) else 1 << 30), row.path
