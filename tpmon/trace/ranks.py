"""Several ranks beside each other: who computes, who waits, and which ranks have no trace."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.results.trace import RankTable, TraceFile, TraceRankRow
from tpmon.model.units import count_of
from tpmon.trace.figures.breakdown import Activity, comm_rows, subtract
from tpmon.trace.figures.comms import find_annotations, size_collectives, size_of
from tpmon.trace.figures.steady import SteadyPart
from tpmon.trace.figures.steps import NEVER, TraceSteps
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category, is_comm_host, is_host_backend, is_transfer
from tpmon.trace.reading.spans import Spans, unite, unite_all

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
class RankCollective:
    """Hold one collective on one rank, in ns: bytes and ranks of its group are 0 where not told."""

    start: int
    duration: int
    title: str
    bytes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class RankParts:
    """Hold of one trace what the comparison needs: its row, and when each collective ran.

    ``hidden`` is when computation hides communication. ``transfers`` counts sends and receives, which take
    ``transfer_ms`` of a step. ``judged`` is when the steps begin that the verdict is of, in ns,
    ``judged_steps`` how many they are, ``judged_ms`` their mean. ``odd`` says of few that are much longer
    than the others, "" of none; ``is_of_few`` that the mean is of very few.
    """

    row: TraceRankRow
    world_size: Known[int]
    collectives: dict[Key, RankCollective]
    group_sizes: dict[str, int]
    hidden: Spans
    transfers: int
    transfer_ms: float
    steps: tuple[str, ...]
    judged: int
    judged_steps: int
    judged_ms: float
    odd: str = ""
    is_of_few: bool = False
    is_rounded: bool = False
    """Most of what it exchanges is of 16 bit or less."""


def take_parts(
    trace: Trace, file: TraceFile, steady: SteadyPart, steps: TraceSteps, activity: Activity
) -> RankParts:
    """Take from a trace what ``compare_ranks`` needs; times of several devices as their mean."""
    on_device = len(trace.work.start) > 0
    judged, cuts = steady.steps, steady.cuts
    start, end = judged.start, judged.end
    length = steady.measure(start, end)
    parts, hidden = [], []
    for one in activity.each():
        compute = one.kernel if on_device else one.cpu
        communication = one.all_communication()
        hidden.append(subtract(communication, subtract(communication, compute)))
        computes, talks = subtract(compute, cuts), subtract(communication, cuts)
        both = unite_all([computes, talks]).within(start, end)
        alone = (computes.within(start, end), talks.within(start, end))
        parts.append((*alone, alone[0] + alone[1] - both, length - both))  # overlap, other
    means = np.mean(np.array(parts, dtype=np.float64), axis=(0, 2)) / 1e6
    computing, comm_ms, overlap, other = means.tolist()
    step_ms = float(length.mean()) / 1e6
    verdict = file.verdict
    times = (step_ms, computing, comm_ms, overlap, other)
    row = TraceRankRow(file.rank, file.path, *times, _ALONE, _ALONE, verdict.kind, verdict.cause)
    found, moves = _collectives(trace, steps)
    sizes: dict[str, int] = {}
    for told in trace.collectives:
        if told.group_size > 0:  # groups without a name share one key: the smallest of them counts
            sizes[told.group] = min(told.group_size, sizes.get(told.group, told.group_size))
    when = np.array([(one.start, one.duration) for one in moves] or np.zeros((0, 2)), dtype=np.int64)
    spans = subtract(unite(when[:, 0], when[:, 1]), cuts)
    return RankParts(
        row=row,
        world_size=file.world_size,
        collectives=found,
        group_sizes=sizes,
        hidden=unite_all(hidden),
        transfers=len(moves),
        transfer_ms=float(spans.within(judged.start, judged.end).mean()) / 1e6,
        steps=steps.names,
        judged=int(judged.host_start[0]),
        judged_steps=len(judged.names),
        judged_ms=step_ms,
        odd=steady.say_odd(),
        is_of_few=steady.is_of_few,
        is_rounded=_moves_rounded(trace),
    )


_ROUNDED = re.compile(r"bfloat16|half|float8|char|byte", re.IGNORECASE)


def _moves_rounded(trace: Trace) -> bool:
    """Tell whether most elements that a rank sends are of types of 16 bit or less."""
    told = trace.work.collective
    count: list[int] = np.bincount(told[told >= 0], minlength=len(trace.collectives)).tolist()
    sent = [max(one.elements_in, 0) * many for one, many in zip(trace.collectives, count, strict=True)]
    types = zip(trace.collectives, sent, strict=True)
    rounded = sum(elements for one, elements in types if _ROUNDED.search(one.dtype))
    return bool(2 * rounded > sum(sent))


def _collectives(trace: Trace, steps: TraceSteps) -> tuple[dict[Key, RankCollective], list[RankCollective]]:
    """Return the collectives by their numbers, and the transfers.

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
        sizes = [told[1:] for told in size_collectives(trace, rows)]
        launch = trace.work.call[rows]
        known = len(trace.calls.start) > 0
        enqueued = np.where(launch >= 0, trace.calls.start[launch], NEVER) if known else start
    else:
        host = trace.host
        wanted = is_host_backend if len(trace.work.start) else is_comm_host
        rows = np.flatnonzero(trace.named(host, wanted) & (host.category == Category.ANNOTATION))
        start, length = host.start[rows], host.duration[rows]
        names = [trace.names[number] for number in host.name[rows]]
        groups, numbers, enqueued, titles = [""] * len(rows), [-1] * len(rows), start, names
        sizes = [(size_of(trace, row), 0) for row in rows.tolist()]
    found: dict[Key, RankCollective] = {}
    seen: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    told = zip(start.tolist(), length.tolist(), titles, names, sizes, strict=True)
    each = [
        RankCollective(at, ns, _name_collective(title, name), *size) for at, ns, title, name, size in told
    ]
    calls = zip(groups, names, numbers, _name_steps(steps, enqueued), each, strict=True)
    transfers = []
    for group, name, number, step, call in calls:
        if is_transfer(name):
            transfers.append(call)
        elif number >= 0:
            found[group, name, "", number] = call
        else:
            found[group, name, step, seen[group, name, step]] = call
            seen[group, name, step] += 1
    return found, transfers


def _name_collective(title: str, name: str) -> str:
    """Name a collective without the backend, or its kernel without the algorithm."""
    short = title.rpartition(":")[2] or name.removeprefix("ncclKernel_").removeprefix("ncclDevKernel_")
    return clean_name(short if title or "_RING" not in short else short.partition("_RING")[0], 60)


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
    starts, lengths = lay_calls(parts, members, keys)
    ends = starts + lengths
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


@dataclass(frozen=True, slots=True)
class RankMatches:
    """Hold the collectives that are in the traces of all their ranks, and what could not be matched.

    ``spans`` are the traces matched with each other; ``why`` is the reason where none were.
    """

    found: Matched
    spans: tuple[tuple[int, ...], ...]
    shared: int
    every: int
    groupless: int
    world_size: Known[int]
    missing: tuple[int, ...]
    why: Missing
    is_twice: bool


def match_ranks(parts: Sequence[RankParts]) -> RankMatches:
    """Match the collectives of traces: those of one rank apart by their steps, or not at all."""
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
    every = sum(match[1] for match in matches) or len(set().union(*(part.collectives for part in parts)))
    groupless = sum(match[2] for match in matches)
    mixed = is_twice and not spans
    return RankMatches(
        found=found,
        spans=tuple(map(tuple, spans)),
        shared=sum(map(len, found.values())),
        every=every,
        groupless=groupless,
        world_size=world,
        missing=missing,
        why=_GROUPLESS if groupless else _TWICE if mixed else _UNMATCHED,
        is_twice=mixed,
    )


def compare_ranks(parts: Sequence[RankParts], matches: RankMatches) -> RankTable:
    """Lay ranks side by side. A rank given twice, or without a number, keeps its row.

    What a collective takes on the rank where it is shortest moves data; what it takes longer elsewhere is
    waiting for that rank. Ranges that overlap on a rank count once.
    """
    found, why = matches.found, matches.why
    told = [part.row.rank for part in parts if is_known(part.row.rank)]
    laid = {members: lay_calls(parts, members, keys) for members, keys in found.items()}
    having = set().union(*laid)
    waits = [_split_waits(laid, at) if at in having else None for at in range(len(parts))]
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
    each_once = len(set(told)) == len(parts)
    summary = f"{len(parts)} ranks, " if each_once else f"{len(parts)} traces{untold}, "
    matched = f"{matches.shared} of {matches.every} collectives matched"
    summary += why.reason if matches.is_twice else matched
    late = _find_straggler(parts, laid, [split[0] if split else 0.0 for split in waits])
    if late is not None:
        straggler, spread = late
        alone = len(found) == len(matches.spans)
        least = "waits least" if alone else "waits least of a group"
        summary += f"; rank {straggler} {least}, the others for it: up to {spread:.1f} ms"
    if matches.groupless:
        summary += f"; {matches.groupless} left out: their group is not known"
    silent = sum(not part.collectives for part in parts)
    if 0 < silent < len(parts):
        summary += f"; {silent} without any collective left out"
    if transfers := sum(part.transfers for part in parts):
        summary += f"; {transfers} sends and receives left out"
    if matches.missing:
        summary += f"; no trace of {count_of(len(matches.missing), 'rank')}"
    ordered = tuple(sorted(rows, key=lambda row: (known_or(row.rank, 1 << 30), row.path)))
    size, shared, every = matches.world_size, matches.shared, matches.every
    return RankTable(ordered, size, matches.missing, straggler, spread, shared, every, summary)


def lay_calls(parts: Sequence[RankParts], members: Sequence[int], keys: Sequence[Key]) -> tuple[Ints, Ints]:
    """Return start and duration in ns of collectives, a row for each and a column for each trace."""
    calls = [[parts[at].collectives[key] for at in members] for key in keys]
    times = np.array([[(one.start, one.duration) for one in row] for row in calls], dtype=np.int64)
    return times[:, :, 0], times[:, :, 1]


def _find_straggler(
    parts: Sequence[RankParts], laid: Laid, waits: Sequence[float]
) -> tuple[int, float] | None:
    """Return the rank that waits least where others wait for it, and how much longer the longest wait is.

    Of one in each group it is the one that waits least in all: who waits elsewhere is late for it.
    """
    late: list[tuple[float, float, int]] = []
    for members, times in laid.items():
        own = [(_split_waits({members: times}, at)[0], at) for at in members]
        least, first = min(own)
        most = max(own)[0]
        rank = parts[first].row.rank
        if most - least >= LEAST_SPREAD_MS and most >= SPREAD * least and is_known(rank):
            late.append((waits[first], least - most, rank))
    _wait, less, rank = min(late, default=(0.0, 0.0, -1))
    return (rank, -less) if late else None


Laid = dict[tuple[int, ...], tuple[Ints, Ints]]
"""Start and duration of the matched collectives, by the rows of the traces that have them."""


def _split_waits(laid: Laid, at: int) -> tuple[float, float]:
    """Split the matched collectives of one trace into waiting and moving data, in ms."""
    own = [(times, members.index(at)) for members, times in laid.items() if at in members]
    start = np.concatenate([start[:, column] for (start, _length), column in own])
    length = np.concatenate([length[:, column] for (_start, length), column in own])
    least = np.concatenate([length.min(axis=1) for (_start, length), _column in own])
    total = unite(start, length).total
    transfer = unite(start + length - least, least).total
    return (total - transfer) / 1e6, transfer / 1e6
