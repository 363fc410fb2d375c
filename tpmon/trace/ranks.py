"""Several ranks beside each other: who computes, who waits, and which ranks have no trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.results.trace import RankTable, TraceFile, TraceRankRow
from tpmon.trace.figures.breakdown import Activity, comm_rows
from tpmon.trace.figures.comms import find_annotations
from tpmon.trace.figures.steps import NEVER, TraceSteps
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.schema import Category, is_comm_host, is_host_backend, is_transfer
from tpmon.trace.reading.spans import unite, unite_all

SPREAD = 1.2
"""The straggler is named where the longest wait is this many times the shortest one."""
LEAST_SPREAD_MS = 1.0
SAME_END = 0.1
"""Of how far its begins are apart: no further apart are the ends of one collective, on clocks that agree."""
SAME_END_NS = 100_000
"""The same where the begins are close: clocks of the cards of one machine differ by some microseconds."""
_ALONE = Missing("one rank alone does not tell waiting from moving data")
_UNMATCHED = Missing("no collective is in the traces of all its ranks")
_GROUPLESS = Missing("the group of its collectives is not known")
_SILENT = Missing("its trace has no collectives")
_TWICE = Missing("several traces of one rank: they are of different times")
_MOST_RANKS = 1_000_000
"""A trace that says more says nothing: no job is that large."""

Key = tuple[str, str, str, int]
"""Group, collective, step, and which one in it: by order, or by its sequence number in all steps ("")."""
OUTSIDE = "outside of the steps"


@dataclass(frozen=True, slots=True)
class RankParts:
    """Hold of one trace what the comparison needs: its row, and when each collective ran, in ns."""

    row: TraceRankRow
    world_size: Known[int]
    collectives: dict[Key, tuple[int, int]]
    group_sizes: dict[str, int]
    transfers: int
    steps: tuple[str, ...]


def take_parts(trace: Trace, file: TraceFile, steps: TraceSteps, activity: Activity) -> RankParts:
    """Take from a trace what ``compare_ranks`` needs; times of several devices as their mean."""
    on_device = len(trace.work.start) > 0
    start, end = steps.start, steps.end
    parts = []
    for one in activity.each():
        compute = one.kernel if on_device else one.cpu
        communication = one.all_communication()
        both = unite_all([compute, communication]).within(start, end)
        alone = (compute.within(start, end), communication.within(start, end))
        parts.append((*alone, alone[0] + alone[1] - both, (end - start) - both))  # overlap, other
    means = np.mean(np.array(parts, dtype=np.float64), axis=(0, 2)) / 1e6
    computing, comm_ms, overlap, other = means.tolist()
    step_ms = float((end - start).mean()) / 1e6
    row = TraceRankRow(file.rank, file.path, step_ms, computing, comm_ms, overlap, other, _ALONE, _ALONE)
    found, transfers = _collectives(trace, steps)
    sizes: dict[str, int] = {}
    for told in trace.collectives:
        if told.group_size > 0:  # groups without a name share one key: the smallest of them counts
            sizes[told.group] = min(told.group_size, sizes.get(told.group, told.group_size))
    return RankParts(row, file.world_size, found, sizes, transfers, steps.names)


def _collectives(trace: Trace, steps: TraceSteps) -> tuple[dict[Key, tuple[int, int]], int]:
    """Return start and duration of the collectives by their numbers, and how many transfers there are.

    A transfer from one rank to another (send, receive) is none: the other end has another name and order.
    """
    rows = np.flatnonzero(comm_rows(trace))
    if len(rows):
        start, length = trace.work.start[rows], trace.work.duration[rows]
        said = [trace.collectives[number] if number >= 0 else None for number in trace.work.collective[rows]]
        groups = [one.group if one else "" for one in said]
        numbers = [one.sequence if one else -1 for one in said]
        # A kernel of torch before 2.2 does not tell what it is of; all-to-all sends and receives, too.
        around = find_annotations(trace, rows, shaped=False).tolist()
        titles = [trace.names[trace.host.name[row]] if row >= 0 else "" for row in around]
        names = [
            one.name if one else title if is_transfer(title) else trace.names[number].split("(")[0]
            for one, title, number in zip(said, titles, trace.work.name[rows], strict=True)
        ]
        launch = trace.work.call[rows]
        known = len(trace.calls.start) > 0
        enqueued = np.where(launch >= 0, trace.calls.start[launch], NEVER) if known else start
    else:
        host = trace.host
        wanted = is_host_backend if len(trace.work.start) else is_comm_host
        rows = np.flatnonzero(trace.named(host, wanted) & (host.category == Category.ANNOTATION))
        start, length = host.start[rows], host.duration[rows]
        names = [trace.names[number] for number in host.name[rows]]
        groups, numbers, enqueued = [""] * len(rows), [-1] * len(rows), start
    found: dict[Key, tuple[int, int]] = {}
    seen: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    times = zip(start.tolist(), length.tolist(), strict=True)
    calls = zip(groups, names, numbers, _name_steps(steps, enqueued), times, strict=True)
    transfers = 0
    for group, name, number, step, when in calls:
        if is_transfer(name):
            transfers += 1
        elif number >= 0:
            found[group, name, "", number] = when
        else:
            found[group, name, step, seen[group, name, step]] = when
            seen[group, name, step] += 1
    return found, transfers


def _name_steps(steps: TraceSteps, enqueued: Ints) -> list[str]:
    """Name the step in which each collective was enqueued; ``OUTSIDE`` for those before or behind them.

    How many of those a rank has depends on how far its host runs ahead: they would shift all others.
    """
    at = np.searchsorted(steps.host_start, enqueued, side="right") - 1
    inside = (at >= 0) & (enqueued < steps.host_end[-1])
    return [
        steps.names[step] if good else OUTSIDE
        for step, good in zip(at.tolist(), inside.tolist(), strict=True)
    ]


Matched = dict[tuple[int, ...], list[Key]]
"""The collectives that the same traces have, by the rows of these traces."""


def _match(parts: Sequence[RankParts], span: Sequence[int], world: Known[int]) -> tuple[Matched, int, int]:
    """Match the collectives of the traces ``span``, each among those that have it: groups hold some ranks.

    Where one rank has more of a kind in a step than another, order does not tell which one is missing.
    Returns also how many collectives there are, and how many were left out as their group is not known.
    """
    having: defaultdict[Key, list[int]] = defaultdict(list)
    counts: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    for at in span:
        for key in parts[at].collectives:
            having[key].append(at)
            counts[key[:3]][at] += 1
    by_members: defaultdict[tuple[int, ...], list[Key]] = defaultdict(list)
    for key, members in having.items():
        alike = not key[2] or len(set(counts[key[:3]].values())) == 1
        if key[2] != OUTSIDE and alike and _is_whole(parts, span, key[0], members):
            by_members[tuple(members)].append(key)
    found: Matched = {}
    groupless = 0
    for own, keys in by_members.items():
        named, untold = [key for key in keys if key[0]], [key for key in keys if not key[0]]
        if untold and _is_one_group(parts, own, untold, world):
            named += untold
        else:
            groupless += len(untold)
        if named:
            found[own] = sorted(named)
    return found, len(having), groupless


def _is_whole(parts: Sequence[RankParts], span: Sequence[int], group: str, members: Sequence[int]) -> bool:
    """Tell whether the traces that have a collective are all that can have it."""
    if len(members) < 2:
        return False
    if not group:
        return len(members) == len(span)
    sizes = {parts[at].group_sizes.get(group, -1) for at in members}
    size = sizes.pop()
    if sizes:
        return False
    return size < 0 or len(members) == size or (len(members) == len(span) and len(members) < size)


def _is_one_group(
    parts: Sequence[RankParts], members: Sequence[int], keys: Sequence[Key], world: Known[int]
) -> bool:
    """Tell whether collectives without the name of their group are of one: a job of two ranks has no other.

    Nor has one whose calls are all of as many ranks as there are. Else their ends tell: a collective ends on
    all its ranks at once, however late each of them began it.
    """
    if len(members) == 2 and world == 2:
        return True
    if all(parts[at].group_sizes.get("") == len(members) for at in members):
        return True
    times = np.array([[parts[at].collectives[key] for at in members] for key in keys], dtype=np.int64)
    starts, ends = times[:, :, 0], times.sum(axis=2)
    apart, late = np.median(np.ptp(ends, axis=1)), np.median(np.ptp(starts, axis=1))
    return bool(apart <= max(SAME_END_NS, SAME_END * late))


def _find_spans(parts: Sequence[RankParts], taking_part: Sequence[int], *, is_twice: bool) -> list[list[int]]:
    """Return the traces to match with each other: all, or of ranks given twice those of the same steps."""
    if not is_twice:
        return [list(taking_part)]
    by_steps: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for at in taking_part:
        by_steps[parts[at].steps].append(at)
    spans = list(by_steps.values())
    for span in spans:
        ranks = [parts[at].row.rank for at in span if is_known(parts[at].row.rank)]
        if len(set(ranks)) < len(ranks):
            return []
    return spans if any(len(span) > 1 for span in spans) else []


def compare_ranks(parts: Sequence[RankParts]) -> RankTable:
    """Lay ranks side by side. A rank given twice, or without a number, keeps its row.

    Traces of one rank are matched apart by their steps, and not at all where these are the same. What a
    collective takes on the rank where it is shortest moves data; what it takes longer elsewhere is waiting
    for that rank. Ranges that overlap on a rank count once.
    """
    sizes = [one.world_size for one in parts if is_known(one.world_size) and one.world_size <= _MOST_RANKS]
    world: Known[int] = max(sizes) if sizes else Missing("no trace says the size of the job")
    told = [part.row.rank for part in parts if is_known(part.row.rank)]
    have = set(told)
    is_twice = len(have) < len(told)
    missing = tuple(rank for rank in range(world) if rank not in have) if is_known(world) and have else ()
    taking_part = [at for at, part in enumerate(parts) if part.collectives]
    spans = _find_spans(parts, taking_part, is_twice=is_twice)
    matches = [_match(parts, span, world) for span in spans]
    found = {members: keys for match in matches for members, keys in match[0].items()}
    shared = sum(map(len, found.values()))
    every = sum(match[1] for match in matches) or len(set().union(*(part.collectives for part in parts)))
    groupless = sum(match[2] for match in matches)
    why = _GROUPLESS if groupless else _TWICE if is_twice and not spans else _UNMATCHED
    own = [{members: found[members] for members in found if at in members} for at in range(len(parts))]
    waits = [_split_waits(parts, mine, at) if mine else None for at, mine in enumerate(own)]
    rows = [
        replace(
            part.row,
            wait_ms=split[0] if split else why if part.collectives else _SILENT,
            transfer_ms=split[1] if split else why if part.collectives else _SILENT,
        )
        for part, split in zip(parts, waits, strict=True)
    ]
    straggler: Applicable[int] = NOT_APPLICABLE
    spread: Applicable[float] = NOT_APPLICABLE
    untold = f", {len(parts) - len(told)} of them without a rank" if len(told) < len(parts) else ""
    each_once = len(have) == len(parts)
    summary = f"{len(parts)} ranks, " if each_once else f"{len(parts)} traces{untold}, "
    summary += why.reason if why is _TWICE else f"{shared} of {every} collectives matched"
    late = _find_straggler(parts, found, [split[0] if split else 0.0 for split in waits])
    if late is not None:
        straggler, spread = late
        alone = len(found) == len(spans)
        least = "waits least" if alone else "waits least of a group"
        summary += f"; rank {straggler} {least}, the others for it: up to {spread:.1f} ms"
    if groupless:
        summary += f"; {groupless} left out: their group is not known"
    if taking_part and len(taking_part) < len(parts):
        summary += f"; {len(parts) - len(taking_part)} without any collective left out"
    if transfers := sum(part.transfers for part in parts):
        summary += f"; {transfers} sends and receives left out"
    if missing:
        summary += f"; no trace of {len(missing)} ranks"
    ordered = tuple(sorted(rows, key=lambda row: (known_or(row.rank, 1 << 30), row.path)))
    return RankTable(ordered, world, missing, straggler, spread, shared, every, summary)


def _find_straggler(
    parts: Sequence[RankParts], found: Matched, waits: Sequence[float]
) -> tuple[int, float] | None:
    """Return the rank that waits least where others wait for it, and how much longer the longest wait is.

    Of one in each group it is the one that waits least in all: who waits elsewhere is late for it.
    """
    late: list[tuple[float, float, int]] = []
    for members, keys in found.items():
        own = [(_split_waits(parts, {members: keys}, at)[0], at) for at in members]
        least, first = min(own)
        most = max(own)[0]
        rank = parts[first].row.rank
        if most - least >= LEAST_SPREAD_MS and most >= SPREAD * least and is_known(rank):
            late.append((waits[first], least - most, rank))
    _wait, less, rank = min(late, default=(0.0, 0.0, -1))
    return (rank, -less) if late else None


def _split_waits(parts: Sequence[RankParts], found: Matched, at: int) -> tuple[float, float]:
    """Split the matched collectives of one trace into waiting and moving data, in ms."""
    pairs = [(members, key) for members, keys in found.items() for key in keys]
    own = np.array([parts[at].collectives[key] for _members, key in pairs], dtype=np.int64)
    shortest = [min(parts[other].collectives[key][1] for other in members) for members, key in pairs]
    least = np.array(shortest, dtype=np.int64)
    total = unite(own[:, 0], own[:, 1]).total
    transfer = unite(own[:, 0] + own[:, 1] - least, least).total
    return (total - transfer) / 1e6, transfer / 1e6
