"""Several ranks beside each other: who computes, who waits, and which ranks have no trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.trace import RankRow, RankTable, TraceFile
from tpmon.trace.breakdown import Activity, comm_rows
from tpmon.trace.classes import flag, is_comm_host
from tpmon.trace.read import Trace
from tpmon.trace.schema import Category
from tpmon.trace.spans import unite_all
from tpmon.trace.steps import Steps

SPREAD = 1.2
"""The straggler is named where the longest wait is this many times the shortest one."""
LEAST_SPREAD_MS = 1.0

Key = tuple[str, str, int]
"""Group, collective, and which one of them: by its sequence number, else by order."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """Hold of one trace what the comparison needs: its row, and how long each collective took, in ns."""

    row: RankRow
    world_size: Known[int]
    collectives: dict[Key, int]


def take_parts(trace: Trace, file: TraceFile, steps: Steps, activity: Activity) -> RankParts:
    """Take from a trace what ``compare_ranks`` needs."""
    on_device = len(trace.work.start) > 0
    compute = activity.kernel if on_device else activity.cpu
    comm = activity.communication
    start, end = steps.start, steps.end
    both = unite_all([compute, comm]).within(start, end)
    alone = (compute.within(start, end), comm.within(start, end))
    overlap = alone[0] + alone[1] - both
    means = [float(part.mean()) / 1e6 for part in (end - start, *alone, overlap, (end - start) - both)]
    return RankParts(RankRow(file.rank, file.path, *means), file.world_size, _collectives(trace, on_device))


def _collectives(trace: Trace, on_device: bool) -> dict[Key, int]:
    """Number the collectives of each group and kind; what overlaps another of its stream counts once."""
    found: dict[Key, int] = {}
    seen: defaultdict[tuple[str, str], int] = defaultdict(int)
    if on_device:
        work = trace.work
        for row in np.flatnonzero(comm_rows(trace)).tolist():
            number = int(work.collective[row])
            said = trace.collectives[number] if number >= 0 else None
            name = said.name if said else trace.names[work.name[row]].split("(")[0]
            group = said.group if said else ""
            order = said.sequence if said and said.sequence >= 0 else seen[group, name]
            seen[group, name] += 1
            found[group, name, order] = int(work.duration[row])
        return found
    host = trace.host
    named = flag(trace.names, is_comm_host)[host.name] & (host.category == Category.ANNOTATION)
    for row in np.flatnonzero(named).tolist():
        name = trace.names[host.name[row]]
        found["", name, seen["", name]] = int(host.duration[row])
        seen["", name] += 1
    return found


def compare_ranks(parts: Sequence[RankParts]) -> RankTable:
    """Lay ranks side by side. A rank given twice, or without a number, keeps its row."""
    rows = tuple(sorted((part.row for part in parts), key=_order))
    sizes = [part.world_size for part in parts if is_known(part.world_size)]
    world: Known[int] = max(sizes) if sizes else Missing("no trace says the size of the job")
    have = {row.rank for row in rows if is_known(row.rank)}
    missing = tuple(rank for rank in range(world) if rank not in have) if is_known(world) and have else ()
    shared = set.intersection(*(set(part.collectives) for part in parts))
    every = set().union(*(part.collectives for part in parts))
    transfer = sum(min(part.collectives[key] for part in parts) for key in shared) / 1e6
    waits = {part.row.path: sum(part.collectives[key] for key in shared) / 1e6 - transfer for part in parts}
    straggler: Applicable[int] = NOT_APPLICABLE
    spread: Applicable[float] = NOT_APPLICABLE
    summary = f"{len(parts)} ranks, {len(shared)} of {len(every)} collectives matched"
    if shared and len(parts) > 1:
        ordered = sorted(parts, key=lambda part: waits[part.row.path])
        least, most = waits[ordered[0].row.path], waits[ordered[-1].row.path]
        rank = ordered[0].row.rank
        if most - least >= LEAST_SPREAD_MS and most >= SPREAD * least and is_known(rank):
            straggler, spread = rank, most - least
            summary += f"; rank {rank} waits least, so the others wait for it: {most - least:.1f} ms"
    if missing:
        summary += f"; no trace of {len(missing)} ranks"
    return RankTable(
        rows,
        world,
        missing,
        straggler,
        spread,
        len(shared),
        len(every),
        transfer if shared else Missing("no collective could be matched"),
        summary,
    )


def _order(row: RankRow) -> tuple[int, str]:
    return (row.rank if is_known(row.rank) else 1 << 30), row.path
