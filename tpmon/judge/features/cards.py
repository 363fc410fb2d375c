"""Condense the Window into the figures of the job's cards: use, slices, whose work it is. Pure.

As in the rules, U is NVML utilisation, P power over its limit, C the SM clock over its maximum. Rules never
judge a single second. Most readings of a sliced card cover all of it, with all its tenants.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tpmon.judge.features.readings import all_known, mean_known, median_known
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import (
    EXPLAINED_RATIO,
    NO_NVLINK,
    USED_PCT,
    GpuSample,
    GpuState,
    MigInstance,
    bytes_on,
    is_listed,
    list_processes,
    list_silent,
    share_card,
    tell_contexts,
)
from tpmon.model.known import Known, Missing, is_known, join_known, known_or, map_known

SHARED_PCT = 5.0
"""SM % above which another process takes card time from the job; a desktop is below it."""
UNLISTED_PCT = 70.0
"""U above which unlisted others can be told; below it the job's card starves anyway, and single samples of a
process that works in bursts miss U."""

NOT_SHARED = Missing("the card is the job's own")


@dataclass(frozen=True, slots=True)
class Others:
    """Hold who else computes on a card, and how much of the time the job's own kernels ran."""

    named: str
    """Who they are, "" for nobody."""
    pids: tuple[int, ...]
    """Theirs, as far as the driver lists them here."""
    least_pct: Known[float]
    """How long the driver saw the job's kernels, percent."""
    most_pct: Known[float]
    """The same with the time that they may have waited: cards give each process equal turns."""


NOBODY = Others("", (), NOT_SHARED, NOT_SHARED)
UNLISTED = "processes that the driver does not list here"
"""Processes of other containers on a card shared in turns (drivers from 535.113)."""


def _mean_of(pids: Sequence[int], shares: Sequence[Known[Mapping[int, float]]]) -> Known[float]:
    return mean_known(
        sum(share.get(pid, 0.0) for pid in pids) if is_known(share) else share for share in shares
    )


def find_others(samples: Sequence[GpuSample], busy_pct: Known[float]) -> Others:
    """Return who shares a card with the job over a span of readings; ``busy_pct`` is its U."""
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
    # Some drivers give 0 % for every process in a container: beside a busy card that is no reading.
    if told < USED_PCT or told >= EXPLAINED_RATIO * busy_pct:
        return NOBODY
    # Their number is unknown: the job may have waited for all that they did.
    return Others(UNLISTED, (), own, own + busy_pct - told)


def _name(pids: Sequence[int]) -> str:
    return f"PID {', '.join(map(str, pids))}"


def find_strays(cards: Mapping[str, Sequence[GpuSample]]) -> frozenset[tuple[str, int]]:
    """Return the cards, by UUID, on which a process only has a context: it works on another one.

    Never a card that is lost, or known only by open files.
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


NO_UTILISATION = Missing("MIG slices have no utilisation")
WHOLE_CARD = Missing("it is read of the whole card only, not of a MIG slice")
NO_SLICE = Missing("which MIG slice the job computes on is not known")


@dataclass(frozen=True, slots=True)
class CardSlice:
    """Hold the activity of the job's slice over a span, and its memory now."""

    sm_active_pct: Known[float]
    memory_used_bytes: Known[int]
    memory_total_bytes: Known[int]


def _own(sample: GpuSample) -> MigInstance | None:
    """Return the one slice that lists processes of the job; a card's only slice is its holder's."""
    pids = set(known_or(sample.pids, ()))
    slices = sample.mig_instances
    if len(slices) == 1:
        return slices[0]
    own = [one for one in slices if pids & set(known_or(one.pids, ()))]
    return own[0] if len(own) == 1 else None


def find_slice(samples: Sequence[GpuSample]) -> CardSlice:
    """Return the job's slice of a card; its figures are Missing where there is none or several."""
    own = _own(samples[-1])
    if own is None:
        return CardSlice(NO_SLICE, NO_SLICE, NO_SLICE)

    def active(sample: GpuSample) -> Known[float]:
        found = (one.sm_active_pct for one in sample.mig_instances if one.uuid == own.uuid)
        return next(found, NO_SLICE)

    return CardSlice(mean_known(map(active, samples)), own.memory_used_bytes, own.memory_total_bytes)


def is_sliced(sample: GpuSample) -> bool:
    """Tell whether a card is known to be cut into MIG slices."""
    return is_known(sample.mig) and sample.mig


BUSY_PCT = 90.0
"""U above which a card counts as busy; never tried on a card (docs/thresholds.md)."""
STARVED_PCT = 70.0
"""U below which a card waits for its host."""
WORKING_CLOCK_RATIO = 0.8
"""C above which low power is not due to a low clock; below it power is scaled by the clock."""
QUIET_LINK_BYTES_S = 5 * (1 << 20)
"""PCIe and NVLink bytes/s below which nothing is exchanged: a collective spins."""

LULL_PCT = 30.0
"""U of a second in which a card mostly rests between two steps; above STARVED_PCT it works in one."""
STEPS_SPAN_S = 30.0
"""Span for a card that works and rests in turn: ten seconds hold only one or two such steps."""
LEAST_TURNS = 4
"""Turns of work and rest in that span that make them steps; fewer are a single change."""


@dataclass(frozen=True, slots=True)
class CardScene:
    """Hold one of the job's cards over the span; ``last`` is its newest reading."""

    last: GpuSample
    pids: tuple[int, ...]
    """The job's processes that work on it; all that have a context where that is not known."""
    visible_only: bool
    """They only hold it open, as CUDA does with every visible card."""
    others: tuple[int, ...]
    """Processes of others that compute on it: readings of the whole card are then not the job's."""
    shares_unlisted: bool
    """Only the card's utilisation shows these others; they are not listed."""
    busy_pct: Known[float]
    """U; on a shared card at most the part of the job's own processes."""
    power_ratio: Known[float]
    clock_ratio: Known[float]
    """Median over the seconds with at least average work: at rest a card saves power."""
    sm_active_pct: Known[float]
    tensor_pct: Known[float]
    dram_pct: Known[float]
    pcie_bytes_s: Known[float]
    """The busier direction."""
    link_bytes_s: Known[float]
    """PCIe and NVLink, both directions."""
    lost_readings: int
    """How many of the newest readings in a row found the card lost."""

    @property
    def index(self) -> int:
        """Return the NVML index."""
        return self.last.index

    @property
    def work_ratio(self) -> Known[float]:
        """Return its power over what the limit allows at its clock: a low clock draws less."""

        def at_clock(power: float, clock: float) -> float:
            return power / clock if 0 < clock < WORKING_CLOCK_RATIO else power

        return join_known(at_clock, self.power_ratio, self.clock_ratio)

    @property
    def memory_ratio(self) -> Known[float]:
        """Return the filled share of its memory, 0-1."""
        return ratio_of_memory(self.last.memory_used_bytes, self.last.memory_total_bytes)


def ratio_of_memory(used: Known[int], total: Known[int]) -> Known[float]:
    """Return the filled share of a card's memory, 0-1."""
    nothing = Missing("the card has no memory of its own")
    return join_known(lambda part, whole: part / whole if whole else nothing, used, total)


def _ratio(value: Known[float], limit: Known[float]) -> Known[float]:
    zero = Missing("its limit reads 0")
    return join_known(lambda part, most: part / most if most > 0 else zero, value, limit)


def _link_bytes_s(samples: Sequence[GpuSample]) -> Known[float]:
    """Add the links that have counters; a link without one does not count as quiet."""
    pcie = mean_known(_add(one.pcie_tx_bytes_s, one.pcie_rx_bytes_s) for one in samples)
    nvlink = mean_known(_add(one.nvlink_tx_bytes_s, one.nvlink_rx_bytes_s) for one in samples)
    return pcie if nvlink == NO_NVLINK else _add(pcie, nvlink)


def _add(one: Known[float], other: Known[float]) -> Known[float]:
    return join_known(operator.add, one, other)


def _larger(one: Known[float], other: Known[float]) -> Known[float]:
    if is_known(one) and is_known(other):
        return max(one, other)
    return one if is_known(one) else other


def _count_lost(samples: Sequence[GpuSample]) -> int:
    count = 0
    for sample in reversed(samples):
        if sample.state is not GpuState.LOST:
            break
        count += 1
    return count


def _clock_ratio(samples: Sequence[GpuSample], busy_pct: Known[float]) -> Known[float]:
    if is_known(busy_pct):
        # Rounding must not drop the seconds of a card that is always equally busy.
        least = busy_pct - 0.5
        samples = [one for one in samples if is_known(one.sm_pct) and one.sm_pct >= least]
    return median_known(_ratio(one.sm_clock_mhz, one.sm_clock_max_mhz) for one in samples)


def _takes_turns(samples: Sequence[GpuSample]) -> bool:
    """Tell whether a card works and rests in turn, and has not stayed in one state for longer."""
    told = [one.sm_pct for one in samples if is_known(one.sm_pct)]
    marks = [pct >= STARVED_PCT for pct in told if not LULL_PCT < pct < STARVED_PCT]
    *turns, newest = [len(list(turn)) for _, turn in groupby(marks)] or [0]
    return len(turns) + 1 >= LEAST_TURNS and newest <= max(turns) + 1


def _own_busy_pct(index: int, others: Others) -> Known[float]:
    """Return U of the job's processes on a shared card, if the job clearly leaves it idle."""
    if is_known(others.most_pct) and others.most_pct < STARVED_PCT:
        return others.most_pct
    shared = f"card {index} is shared with {others.named}"
    if is_known(others.least_pct):
        return Missing(f"{shared}, and the job has {others.least_pct:.0f} % of it")
    return Missing(f"{shared}: {others.least_pct.reason}")


_OF_ALL = ("power_ratio", "sm_active_pct", "tensor_pct", "dram_pct", "pcie_bytes_s", "link_bytes_s")
"""Figures that everybody on a card adds to."""


def _see_shared(card: CardScene, samples: Sequence[GpuSample]) -> CardScene:
    """Drop readings of the whole card where others compute on it, too."""
    others = find_others(samples, card.busy_pct)
    if not others.named or (is_known(others.least_pct) and others.least_pct >= BUSY_PCT):
        return card
    shared = Missing(f"card {card.index} is shared with {others.named}")
    figures: dict[str, Any] = dict.fromkeys(_OF_ALL, shared)
    figures["busy_pct"] = _own_busy_pct(card.index, others)
    return replace(card, others=others.pids, shares_unlisted=not others.pids, **figures)


def _see_slice(card: CardScene, samples: Sequence[GpuSample]) -> CardScene:
    own = find_slice(samples)
    last = replace(
        card.last, memory_used_bytes=own.memory_used_bytes, memory_total_bytes=own.memory_total_bytes
    )
    figures: dict[str, Any] = dict.fromkeys(_OF_ALL, WHOLE_CARD) | {"sm_active_pct": own.sm_active_pct}
    return replace(card, last=last, busy_pct=NO_UTILISATION, **figures)


def _see_card(samples: Sequence[GpuSample], holder: GpuSample) -> CardScene:
    """Condense one card; ``holder`` is the reading that says whose it is."""
    last = samples[-1]

    def over(read: Callable[[GpuSample], Known[float]]) -> Known[float]:
        return mean_known([read(sample) for sample in samples])

    busy_pct = over(lambda one: one.sm_pct)
    card = CardScene(
        last=last,
        pids=known_or(holder.pids, ()),
        visible_only=holder.pids_are_visible_only,
        others=(),
        shares_unlisted=False,
        busy_pct=busy_pct,
        power_ratio=over(lambda one: _ratio(one.power_w, one.power_limit_w)),
        clock_ratio=_clock_ratio(samples, busy_pct),
        sm_active_pct=over(lambda one: one.sm_active_pct),
        tensor_pct=over(lambda one: one.tensor_pct),
        dram_pct=over(lambda one: one.dram_pct),
        pcie_bytes_s=over(lambda one: _larger(one.pcie_tx_bytes_s, one.pcie_rx_bytes_s)),
        link_bytes_s=_link_bytes_s(samples),
        lost_readings=_count_lost(samples),
    )
    return _see_slice(card, samples) if is_sliced(last) else _see_shared(card, samples)


def _holders(gpus: Known[tuple[GpuSample, ...]]) -> dict[str, GpuSample]:
    return {one.uuid: one for one in known_or(gpus, ()) if is_known(one.pids) and one.pids}


def _newest(frames: Sequence[Frame], seconds: float) -> Sequence[Frame]:
    first = len(frames)
    while first and frames[-1].taken_ns - frames[first - 1].taken_ns <= seconds * 1e9:
        first -= 1
    return frames[first:]


def _by_card(frames: Sequence[Frame], uuids: Sequence[str]) -> dict[str, list[GpuSample]]:
    found: dict[str, list[GpuSample]] = {uuid: [] for uuid in uuids}
    for frame in frames:
        for sample in known_or(frame.gpus, ()):
            if sample.uuid in found:
                found[sample.uuid].append(sample)
    return found


def see_cards(frames: Sequence[Frame], history: Sequence[Frame] = ()) -> tuple[CardScene, ...]:
    """Condense the job's own cards over the Frames of a span, oldest first.

    A card that works and rests in turn (steps of some seconds) is judged over a longer span. CUDA opens every
    visible card: where only open files tell, an idle card beside a busy one counts as unused, as does one on
    which a process has only a context. A card that does not answer may list no process: it is the job's if it
    was in ``history``.
    """
    gpus = frames[-1].gpus
    if not is_known(gpus):
        return ()
    holders = _holders(gpus)
    silent = {one.uuid for one in list_silent(gpus)} - holders.keys()
    for frame in history if silent else ():
        holders |= {uuid: one for uuid, one in _holders(frame.gpus).items() if uuid in silent}
    uuids = [one.uuid for one in gpus if one.uuid in holders]
    mine, longer = _by_card(frames, uuids), _by_card(_newest(history, STEPS_SPAN_S), uuids)
    seen = {uuid: longer[uuid] if _takes_turns(longer[uuid]) else mine[uuid] for uuid in uuids}
    strays = find_strays(seen)
    cards = []
    for uuid, samples in seen.items():
        card = _see_card(samples, holders[uuid])
        pids = tuple(pid for pid in card.pids if (uuid, pid) not in strays)
        cards += [replace(card, pids=pids)] if pids else []
    used = [card for card in cards if not card.last.pids_are_visible_only or known_or(card.busy_pct, 1) >= 1]
    return tuple(used or cards)


_OF_THE_CARD = (
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_c",
    "throttle_known",
    "ecc_uncorrected",
    "remapped_rows_pending",
    "remapped_rows_failed",
    "recovery_action",
    "pcie_generation",
    "pcie_width",
)


def doubt_cards(cards: tuple[CardScene, ...], ranks: int) -> tuple[CardScene, ...]:
    """Drop the readings of cards of which some are not the job's, and nothing tells which.

    That is where only open device files tell and more cards work than ranks: another's heat is no fault.
    """
    if len(cards) > max(ranks, 1):
        # A card that is only held open and does not answer may be any visible one.
        cards = tuple(one for one in cards if not one.visible_only or one.last.state is GpuState.OK) or cards
    doubted = [card for card in cards if card.visible_only]
    if not ranks or len(doubted) <= ranks:
        return cards
    which = ", ".join(str(card.index) for card in doubted)
    unknown = Missing(f"which of the cards {which} the job uses is not known: only open device files tell")
    readings: dict[str, Any] = dict.fromkeys(_OF_THE_CARD, unknown)
    figures: dict[str, Any] = dict.fromkeys(("busy_pct", "clock_ratio", *_OF_ALL), unknown)
    return tuple(
        replace(
            card,
            last=replace(card.last, throttle=(), throttle_shares=(), xids=(), **readings),
            lost_readings=0,
            **figures,
        )
        if card.visible_only
        else card
        for card in cards
    )


def held_pct(card: CardScene, reason: str) -> float:
    """Return the percentage of the last window in which a reason held the card's clocks; 0: none seen."""
    return max((one.pct for one in card.last.throttle_shares if one.reason == reason), default=0.0)


def mean_busy_pct(cards: Sequence[CardScene]) -> Known[float]:
    """Return the mean U of the cards; Missing when one of them was not read."""
    busy = all_known(card.busy_pct for card in cards)
    nothing = Missing("the job uses no card")
    return map_known(lambda values: statistics.fmean(values) if values else nothing, busy)


def cards_of(pid: int, cards: Sequence[CardScene]) -> tuple[CardScene, ...]:
    """Return the cards that a process computes on."""
    return tuple(card for card in cards if pid in card.pids)
