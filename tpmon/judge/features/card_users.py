"""Tell whose work a card does over a span: the job's own, others' beside it, or nobody's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpmon.judge.features.medians import mean_known
from tpmon.model.card_use import (
    EXPLAINED_RATIO,
    USED_PCT,
    bytes_on,
    is_listed,
    list_processes,
    share_card,
    tell_contexts,
)
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, GpuState
from tpmon.model.known import Known, Missing, is_known, known_or

SHARED_PCT = 5.0
"""SM % from which another process takes a card's time from the job; a desktop ticks below it."""
UNLISTED_PCT = 70.0
"""U from which it tells of others that are not listed; below it the job's card is starved either way, and
single samples of a process that works and rests in turn miss U."""

NOT_SHARED = Missing("the card is the job's own")


@dataclass(frozen=True, slots=True)
class Others:
    """Hold who else computes on a card, and for how much of the time the job's own kernels were there."""

    named: str
    """Who they are, "" where there is nobody."""
    pids: tuple[int, ...]
    """Theirs, as far as the driver lists them here."""
    least_pct: Known[float]
    """How long the driver saw the job's kernels on it."""
    most_pct: Known[float]
    """The same with what they may have waited for their turn: cards give each process the same time."""


NOBODY = Others("", (), NOT_SHARED, NOT_SHARED)
UNLISTED = "processes that the driver does not list here"
"""Those of other containers on a card that is shared by turns (drivers from 535.113)."""


def _mean_of(pids: Sequence[int], shares: Sequence[Known[Mapping[int, float]]]) -> Known[float]:
    """Return the mean over the readings of what some processes have together."""
    return mean_known(
        sum(share.get(pid, 0.0) for pid in pids) if is_known(share) else share for share in shares
    )


def find_others(samples: Sequence[GpuSample], busy_pct: Known[float]) -> Others:
    """Return who shares a card with the job over the readings of a span; ``busy_pct`` is its U."""
    last = samples[-1]
    if not is_listed(last) or (is_known(busy_pct) and busy_pct < SHARED_PCT):
        return NOBODY
    ours = known_or(last.pids, ())
    foreign = [one.pid for one in list_processes(last) if one.pid not in ours and not one.of_job]
    shares = [share_card(one) for one in samples]
    own = _mean_of(ours, shares)
    if not is_known(own):
        return Others(_name(foreign), tuple(foreign), own, own) if foreign else NOBODY
    theirs = {pid: known_or(_mean_of((pid,), shares), 0.0) for pid in foreign}
    there = tuple(pid for pid in foreign if theirs[pid] >= SHARED_PCT)
    if there:
        most = own + min(own * len(there), sum(theirs[pid] for pid in there))
        return Others(_name(there), there, own, most)
    told = own + sum(theirs.values())
    if not is_known(last.lists_only) or not is_known(busy_pct) or busy_pct < UNLISTED_PCT:
        return NOBODY
    # Some drivers give 0 % to every process in a container: that is no reading beside a busy card.
    if told < USED_PCT or told >= EXPLAINED_RATIO * busy_pct:
        return NOBODY
    # How many they are is not told: the job may have waited for all that they did.
    return Others(UNLISTED, (), own, own + busy_pct - told)


def _name(pids: Sequence[int]) -> str:
    return f"PID {', '.join(map(str, pids))}"


def find_strays(cards: Mapping[str, Sequence[GpuSample]]) -> frozenset[tuple[str, int]]:
    """Return the cards, by UUID, on which a process only has a context: it works on another one.

    A card that is lost, or that only open files tell, is never one of them.
    """
    lasts = {uuid: samples[-1] for uuid, samples in cards.items() if samples}
    listed = {uuid: one for uuid, one in lasts.items() if is_listed(one) and one.state is not GpuState.LOST}
    on = [(uuid, pid) for uuid, one in listed.items() for pid in known_or(one.pids, ())]
    several = {pid for _, pid in on if sum(other == pid for _, other in on) > 1}
    found: set[tuple[str, int]] = set()
    for pid in several:
        mine = [uuid for uuid, other in on if other == pid]
        used_bytes = {uuid: bytes_on(pid, listed[uuid]) for uuid in mine}
        busy_pct = {uuid: _mean_of((pid,), [share_card(one) for one in cards[uuid]]) for uuid in mine}
        found.update((uuid, pid) for uuid in tell_contexts(used_bytes, busy_pct))
    return frozenset(found)
