"""Tell whose work a card does: the job's own, that of others beside it, or a context that does nothing. Pure.

The driver lists every process with a context and says how busy each keeps the card; it has no sample of a
process that did nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpmon.judge.medians import mean_known
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuProcess, GpuSample, GpuState
from tpmon.model.known import Known, Missing, is_known, known_or

USED_PCT = 1.0
"""SM % from which a process computes on a card."""
SHARED_PCT = 5.0
"""SM % from which another process takes a card's time from the job; a desktop ticks below it."""
BULK_RATIO = 0.5
"""Bytes over those on its fullest card from which a process uses a card on which it does not compute now."""
CONTEXT_RATIO = 0.1
"""The same where the driver does not say who computes: a context alone takes 0.3 to 0.6 GB."""
EXPLAINED_RATIO = 0.8
"""Part of U that the processes with a sample account for, from which those without one did nothing."""

NOT_SHARED = Missing("the card is the job's own")


@dataclass(frozen=True, slots=True)
class Others:
    """Hold who else computes on a card, and for how much of the time the job's own kernels were there."""

    pids: tuple[int, ...]
    least_pct: Known[float]
    """How long the driver saw the job's kernels on it."""
    most_pct: Known[float]
    """The same with what they may have waited for their turn: cards give each process the same time."""


NOBODY = Others((), NOT_SHARED, NOT_SHARED)


def _is_listed(sample: GpuSample) -> bool:
    """Tell whether the card's process list is what says which processes are the job's."""
    return is_known(sample.pids) and bool(sample.pids) and not sample.pids_are_visible_only


def _processes(sample: GpuSample) -> tuple[GpuProcess, ...]:
    return known_or(sample.processes, ())


def _shares(sample: GpuSample) -> Known[Mapping[int, float]]:
    """Return the SM % of the processes of one reading.

    Missing where the driver told it of none, or where what it told leaves open who kept the card busy.
    """
    if is_known(sample.sm_pct) and sample.sm_pct < USED_PCT:
        return {}
    listed = _processes(sample)
    told = {one.pid: one.sm_pct for one in listed if is_known(one.sm_pct)}
    untold = next((one.sm_pct for one in listed if isinstance(one.sm_pct, Missing)), None)
    if untold is None:
        return told or Missing("no process list")
    if told and is_known(sample.sm_pct) and sum(told.values()) >= EXPLAINED_RATIO * sample.sm_pct:
        return told
    return untold


def _mean_of(pids: Sequence[int], shares: Sequence[Known[Mapping[int, float]]]) -> Known[float]:
    """Return the mean over the readings of what some processes have together."""
    return mean_known(
        sum(share.get(pid, 0.0) for pid in pids) if is_known(share) else share for share in shares
    )


def find_others(samples: Sequence[GpuSample], busy_pct: Known[float]) -> Others:
    """Return who shares a card with the job over the readings of a span; ``busy_pct`` is its U."""
    last = samples[-1]
    if not _is_listed(last):
        return NOBODY
    ours = known_or(last.pids, ())
    foreign = [one.pid for one in _processes(last) if one.pid not in ours and not one.of_job]
    if not foreign or (is_known(busy_pct) and busy_pct < SHARED_PCT):
        return NOBODY
    shares = [_shares(one) for one in samples]
    own = _mean_of(ours, shares)
    if not is_known(own):
        return Others(tuple(foreign), own, own)
    theirs = {pid: known_or(_mean_of((pid,), shares), 0.0) for pid in foreign}
    there = tuple(pid for pid in foreign if theirs[pid] >= SHARED_PCT)
    if not there:
        return NOBODY
    return Others(there, own, own + min(own * len(there), sum(theirs[pid] for pid in there)))


def find_strays(cards: Mapping[str, Sequence[GpuSample]]) -> frozenset[tuple[str, int]]:
    """Return the cards, by UUID, on which a process only has a context: it works on another one.

    A card that is lost, or that only open files tell, is never one of them.
    """
    lasts = {uuid: samples[-1] for uuid, samples in cards.items() if samples}
    listed = {uuid: one for uuid, one in lasts.items() if _is_listed(one) and one.state is not GpuState.LOST}
    on = [(uuid, pid) for uuid, one in listed.items() for pid in known_or(one.pids, ())]
    several = {pid for _, pid in on if sum(other == pid for _, other in on) > 1}
    found: set[tuple[str, int]] = set()
    for pid in several:
        mine = [uuid for uuid, other in on if other == pid]
        filled = {uuid: _bytes_of(pid, listed[uuid]) for uuid in mine}
        most = max((one for one in filled.values() if is_known(one)), default=0)
        busy = {uuid: _mean_of((pid,), [_shares(one) for one in cards[uuid]]) for uuid in mine}
        works = {uuid for uuid, pct in busy.items() if is_known(pct) and pct >= USED_PCT}
        for uuid in mine:
            used = filled[uuid]
            ratio = BULK_RATIO if works and is_known(busy[uuid]) else CONTEXT_RATIO
            if uuid not in works and is_known(used) and used < ratio * most:
                found.add((uuid, pid))
    return frozenset(found)


def _bytes_of(pid: int, sample: GpuSample) -> Known[int]:
    found = (one.used_bytes for one in _processes(sample) if one.pid == pid)
    return next(found, Missing("the driver does not list it"))
