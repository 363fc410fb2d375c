"""Who waits for whom among the ranks of a job, and how fast its collectives move data.

All of it is made from the lengths of collectives, which need no common clock: one ends on all its ranks at
once, so that it is shortest on the rank that begins it last, and what it takes longer elsewhere is waiting.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.trace import BusRate, GroupWait
from tpmon.trace.figures.comms import SIZES_UNTOLD, bus_factor
from tpmon.trace.ranks import SAME_END_NS, Key, RankCollective, RankMatches, RankParts, lay_calls
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.spans import intersect_total, unite

DRIFT = 1e-4
"""Of a span that clocks may differ in: a quartz is off by up to 100 ppm."""
_SYNCHRONISES = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
"""Collectives that end on no rank before all have begun; a broadcast may end on its root."""
LEAST_WAIT_PCT = 5.0
"""Of its step: who waits for less is not named. Chosen."""
_INCOMPLETE = Missing("not all ranks of its group have a trace, and waiting for one looks like moving data")
STEADILY = 3.0
"""The others wait this many times as long for a late rank as it waits for others: else they take turns.

Of two ranks whose steps vary by chance one seems late by 1.5 times in most traces of six steps.
"""


@dataclass(frozen=True, slots=True)
class JobWaits:
    """Hold what ranks wait for each other, in ms of the mean step that no computation hides.

    ``pairs`` are by who waits, then for whom. ``gains`` is by rank what the step gets shorter where it is as
    fast as the next one. ``step_ms`` is the step of each rank. A rank that is not known has a number below 0.
    ``is_whole``: each collective that was matched is there with all ranks of its group.
    """

    pairs: dict[int, dict[int, float]]
    gains: dict[int, float]
    step_ms: dict[int, float]
    groups: tuple[GroupWait, ...]
    rates: Known[tuple[BusRate, ...]]
    is_whole: bool
    clocks: Clocks

    def of(self, rank: int) -> float:
        """Return what a rank waits for all others, in ms of a step."""
        return sum(self.pairs.get(rank, {}).values())

    def caused(self, rank: int) -> list[float]:
        """Return what each of the others waits for a rank, in ms of a step."""
        return [own.get(rank, 0.0) for own in self.pairs.values()]

    def find_main(self, rank: int) -> tuple[int, float] | None:
        """Return for whom a rank waits most and for how long; None where that is no part of its step."""
        own = self.pairs.get(rank, {})
        late = max(own, key=lambda one: own[one], default=rank)
        least = LEAST_WAIT_PCT / 100 * self.step_ms[rank]
        return (late, own[late]) if own and own[late] >= least else None

    def find_root(self, rank: int) -> int:
        """Return for whom a rank waits in the end: who is late because it waited itself is passed over."""
        seen = [rank]
        while (main := self.find_main(seen[-1])) is not None and main[0] not in seen:
            if len(seen) > 1 and main[1] < max(self.caused(seen[-1])) / 2:
                break
            seen.append(main[0])
        return seen[-1]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Hold by how much the clocks of two ranks differ at least, in ns; 0 where they may agree.

    ``never_met`` are two ranks whose collectives cannot be the same ones, on whatever clocks.
    """

    apart: int
    ranks: tuple[int, int]
    never_met: tuple[int, int] | None


def name_node(parts: Sequence[RankParts], at: int) -> int:
    """Return the rank of a trace; a number below 0 where it is not known."""
    rank = parts[at].row.rank
    return rank if is_known(rank) else -1 - at


def measure_waits(parts: Sequence[RankParts], matches: RankMatches) -> JobWaits:
    """Measure what each rank waits for each other one in the matched collectives of the judged steps."""
    steps: Counter[int] = Counter()
    length: defaultdict[int, float] = defaultdict(float)
    for at, part in enumerate(parts):
        steps[name_node(parts, at)] += part.judged_steps
        length[name_node(parts, at)] += part.judged_ms * part.judged_steps
    step_ms = {node: length[node] / max(count, 1) for node, count in steps.items()}
    judged = {
        members: kept
        for members, keys in matches.found.items()
        if (kept := [key for key in keys if _is_judged(parts, members, key)])
    }
    split = {members: _split(parts, members, keys) for members, keys in judged.items()}
    shown = [_show(parts, at, split) for at in range(len(parts))]
    pairs: dict[int, dict[int, float]] = {node: {} for node in steps}
    gains: defaultdict[int, float] = defaultdict(float)
    groups: list[GroupWait] = []
    rated: defaultdict[str, list[_Moved]] = defaultdict(list)
    whole = True
    for members, one in split.items():
        nodes = [name_node(parts, at) for at in members]
        here: dict[tuple[int, int], float] = {}
        for column, at in enumerate(members):
            scale = shown[at] / 1e6 / max(steps[nodes[column]], 1)
            spent = np.bincount(one.late, weights=one.waits[:, column], minlength=len(nodes)) * scale
            here |= {(nodes[column], nodes[late]): ms for late, ms in enumerate(spent.tolist()) if ms > 0}
        for (waiting, late), ms in here.items():
            pairs[waiting][late] = pairs[waiting].get(late, 0.0) + ms
        for column, node in enumerate(nodes):
            gain = float(one.gained[one.late == column].sum()) / 1e6 / max(steps[node], 1)
            longest = max((ms for (_waiting, late), ms in here.items() if late == node), default=0.0)
            gains[node] = max(gains[node], min(gain, longest))
        groups += _find_late(judged[members][0][0], nodes, here, step_ms)
        complete = _is_complete(parts, matches, members, judged[members])
        whole = whole and complete
        for key in judged[members]:
            calls = [parts[at].collectives[key] for at in members]
            rated[calls[0].title].append(_Moved.of(calls, len(members), complete=complete))
    rates = sorted(
        (_rate(name, moved, sum(steps.values()) or 1) for name, moved in rated.items()),
        key=lambda rate: -rate.step_ms,
    )
    return JobWaits(
        pairs=pairs,
        gains=dict(gains),
        step_ms=step_ms,
        groups=tuple(sorted(groups, key=lambda group: -group.most_ms)),
        rates=tuple(rates) if rates else matches.why,
        is_whole=whole,
        clocks=_compare_clocks(parts, matches),
    )


@dataclass(frozen=True, slots=True)
class _Split:
    """Hold what each rank waits in each collective, from ``start`` on, in ns; a column for each rank.

    ``late`` is the column of the rank that waits least, ``gained`` what is gained where it is as fast as the
    next one.
    """

    start: Ints
    waits: Ints
    late: Ints
    gained: Ints


def _is_judged(parts: Sequence[RankParts], members: Sequence[int], key: Key) -> bool:
    return all(parts[at].collectives[key].start >= parts[at].judged for at in members)


def _split(parts: Sequence[RankParts], members: Sequence[int], keys: Sequence[Key]) -> _Split:
    start, length = lay_calls(parts, members, keys)
    ordered = np.sort(length, axis=1)
    waits = length - ordered[:, :1]
    return _Split(start, waits, length.argmin(axis=1), ordered[:, 1] - ordered[:, 0])


def _show(parts: Sequence[RankParts], at: int, split: dict[tuple[int, ...], _Split]) -> float:
    """Return how much of its waits (0-1) costs a rank time: each moment once, and none that it computes in.

    A rank waits at the begin of a collective, and in several at once where they run beside each other.
    """
    own = [(one, members.index(at)) for members, one in split.items() if at in members]
    start = np.concatenate([np.zeros(0, np.int64), *(one.start[:, column] for one, column in own)])
    waits = np.concatenate([np.zeros(0, np.int64), *(one.waits[:, column] for one, column in own)])
    spans = unite(start, waits)
    shown = spans.total - intersect_total(spans, parts[at].hidden)
    return shown / max(int(waits.sum()), 1)


def _find_late(
    group: str, nodes: Sequence[int], pairs: dict[tuple[int, int], float], step_ms: dict[int, float]
) -> list[GroupWait]:
    """Return the rank of a group that others wait for, and who does; nothing where they take turns."""
    caused: defaultdict[int, float] = defaultdict(float)
    for (_waiting, one), ms in pairs.items():
        caused[one] += ms
    if not caused or min(nodes) < 0:
        return []
    late = max(caused, key=lambda one: caused[one])
    own = {node: pairs.get((node, late), 0.0) for node in nodes}
    waiting = [node for node in nodes if own[node] >= LEAST_WAIT_PCT / 100 * step_ms[node] and own[node] > 0]
    if not waiting:
        return []
    each = [own[node] for node in waiting]
    waited = sum(ms for (node, _late), ms in pairs.items() if node == late)
    if sum(each) / len(each) < STEADILY * waited:
        return []
    return [
        GroupWait(group, tuple(sorted(nodes)), late, tuple(sorted(waiting)), max(each), sum(each) / len(each))
    ]


def _is_complete(
    parts: Sequence[RankParts], matches: RankMatches, members: Sequence[int], keys: Sequence[Key]
) -> bool:
    """Tell whether the traces that have collectives are all of their group."""
    for group in {key[0] for key in keys}:
        size = max(parts[at].group_sizes.get(group, 0) for at in members)
        if len(members) < size or (not size and matches.missing):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Moved:
    """Hold one collective where it is shortest: ns, bytes, and bus bytes by each, on so many ranks."""

    ns: int
    bytes: int
    bus: float
    ranks: int

    @classmethod
    def of(cls, calls: Sequence[RankCollective], ranks: int, *, complete: bool) -> _Moved:
        """Take the time of the rank that waits least; where ranks lack, even that one may wait.

        An annotation tells what a rank sends: of an all-gather that is one part of as many as ranks.
        """
        told = max(call.ranks for call in calls)
        title, size = calls[0].title, max(call.bytes for call in calls)
        if not told and "gather" in title.lower():
            size *= ranks
        bus = size * bus_factor(title, told or ranks) if complete else 0.0
        return cls(max(min(call.duration for call in calls), 1), size, bus, len(calls))


def _rate(name: str, moved: Sequence[_Moved], rank_steps: int) -> BusRate:
    sizes = [one.bytes for one in moved if one.bytes]
    rates = [one.bus / one.ns for one in moved if one.bus]
    why = _INCOMPLETE if sizes else SIZES_UNTOLD
    low, middle, high = np.quantile(rates, (0.1, 0.5, 0.9)).tolist() if rates else (why, why, why)
    size: Known[int] = int(np.median(sizes)) if sizes else SIZES_UNTOLD
    spent_ms = sum(one.ns * one.ranks for one in moved) / 1e6 / rank_steps
    call_us = float(np.median([one.ns for one in moved])) / 1000
    return BusRate(name, len(moved), spent_ms, call_us, size, middle, low, high)


def _compare_clocks(parts: Sequence[RankParts], matches: RankMatches) -> Clocks:
    """Bound how far the clocks of ranks differ by their collectives, of which none ends before all began.

    In the common time rank a ends behind the begin of rank b, and b behind that of a: both bound how far b is
    ahead. Of many collectives a tenth may break that.
    """
    most, pair, never = 0, (0, 0), None
    for members, every in matches.found.items():
        keys = [key for key in every if _SYNCHRONISES.search(parts[members[0]].collectives[key].title)]
        if not keys:
            continue
        start, length = lay_calls(parts, members, keys)
        end = start + length
        slack = SAME_END_NS + DRIFT * float(np.ptp(start[:, 0]))
        first = name_node(parts, members[0])
        for column, at in enumerate(members[1:], start=1):
            least = float(np.quantile(start[:, column] - end[:, 0], 0.9))
            greatest = float(np.quantile(end[:, column] - start[:, 0], 0.1))
            two = (first, name_node(parts, at))
            if least > greatest + slack:
                never = two
            apart = int(max(least, -greatest, 0))
            if apart > max(most, slack):
                most, pair = apart, two
    return Clocks(most, pair, never)
