"""Condense the Window into the figures of the job's cards: means over a span, and what they add up to.

Names as in the rules: U is NVML utilisation, P is power over its limit, C is the SM clock over its
maximum. A single second of one card says little; a rule never looks at one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tpmon.judge.features.card_slices import NO_UTILISATION, WHOLE_CARD, find_slice, is_sliced
from tpmon.judge.features.card_users import Others, find_others, find_strays
from tpmon.judge.features.medians import mean_known, median_known
from tpmon.model.card_use import list_silent
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import NO_NVLINK, GpuSample, GpuState
from tpmon.model.known import Known, Missing, is_known, known_or, map_known

BUSY_PCT = 90.0
"""U from which a card counts as busy; never tried on a card (docs/thresholds.md)."""
STARVED_PCT = 70.0
"""U below which a card waits for its host."""
WORKING_CLOCK_RATIO = 0.8
"""C from which low power is not just a low clock; below it the power is measured by the clock."""
QUIET_LINK_BYTES_S = 5 * (1 << 20)
"""PCIe and NVLink bytes/s below which nothing is exchanged: a collective that spins."""

LULL_PCT = 30.0
"""U of a second in which a card mostly rests between two steps; above STARVED_PCT it works in one."""
STEPS_SPAN_S = 30.0
"""Span for a card that works and rests in turn: ten seconds hold one or two of such steps, or a part."""
LEAST_TURNS = 4
"""Turns of work and rest in that span that make them steps; with fewer the card has changed once."""


@dataclass(frozen=True, slots=True)
class CardScene:
    """Hold one of the job's cards over the span; ``last`` is its newest reading."""

    last: GpuSample
    pids: tuple[int, ...]
    """The job's processes that work on it; all that have a context where that is not told."""
    visible_only: bool
    """True where they only hold it open, as CUDA does with every card that it may see."""
    others: tuple[int, ...]
    """Processes of others that compute on it; what is read of the whole card is not the job's then."""
    shares_unlisted: bool
    """True where those others are told by the card's utilisation alone, and not listed."""
    busy_pct: Known[float]
    """U; of a shared card the part of the job's own processes, at most."""
    power_ratio: Known[float]
    clock_ratio: Known[float]
    """Median of the seconds in which it works as much as on average: at rest a card saves power."""
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
        """Return its power over what its limit leaves it at its clock: a low one draws less."""
        if not is_known(self.power_ratio):
            return self.power_ratio
        if not is_known(self.clock_ratio):
            return self.clock_ratio
        slow = 0 < self.clock_ratio < WORKING_CLOCK_RATIO
        return self.power_ratio / self.clock_ratio if slow else self.power_ratio

    @property
    def memory_ratio(self) -> Known[float]:
        """Return the filled share of its memory, 0-1."""
        used, total = self.last.memory_used_bytes, self.last.memory_total_bytes
        if not is_known(used):
            return used
        if not is_known(total):
            return total
        return used / total if total else Missing("the card has no memory of its own")


def _ratio(value: Known[float], limit: Known[float]) -> Known[float]:
    if not is_known(value):
        return value
    if not is_known(limit):
        return limit
    return value / limit if limit > 0 else Missing("its limit reads 0")


def _link_bytes_s(samples: Sequence[GpuSample]) -> Known[float]:
    """Add the links that the card has counters for; a link without one is not thought quiet."""
    pcie = mean_known(_add(one.pcie_tx_bytes_s, one.pcie_rx_bytes_s) for one in samples)
    nvlink = mean_known(_add(one.nvlink_tx_bytes_s, one.nvlink_rx_bytes_s) for one in samples)
    return pcie if nvlink == NO_NVLINK else _add(pcie, nvlink)


def _add(one: Known[float], other: Known[float]) -> Known[float]:
    if not is_known(one):
        return one
    return map_known(lambda value: value + one, other)


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
        # Rounding must not leave out the seconds of a card that is always as busy.
        least = busy_pct - 0.5
        samples = [one for one in samples if is_known(one.sm_pct) and one.sm_pct >= least]
    return median_known(_ratio(one.sm_clock_mhz, one.sm_clock_max_mhz) for one in samples)


def _takes_turns(samples: Sequence[GpuSample]) -> bool:
    """Tell whether a card works and rests in turn, and has not stayed at one of them for longer."""
    told = [one.sm_pct for one in samples if is_known(one.sm_pct)]
    marks = [pct >= STARVED_PCT for pct in told if not LULL_PCT < pct < STARVED_PCT]
    *turns, newest = [len(list(turn)) for _, turn in groupby(marks)] or [0]
    return len(turns) + 1 >= LEAST_TURNS and newest <= max(turns) + 1


def _own_busy_pct(index: int, others: Others) -> Known[float]:
    """Return U of the job's own processes on a shared card, where it is plain that they leave it idle."""
    if is_known(others.most_pct) and others.most_pct < STARVED_PCT:
        return others.most_pct
    shared = f"card {index} is shared with {others.named}"
    if is_known(others.least_pct):
        return Missing(f"{shared}, and the job has {others.least_pct:.0f} % of it")
    return Missing(f"{shared}: {others.least_pct.reason}")


_OF_ALL = ("power_ratio", "sm_active_pct", "tensor_pct", "dram_pct", "pcie_bytes_s", "link_bytes_s")
"""Figures to which all who use a card add."""


def _see_shared(card: CardScene, samples: Sequence[GpuSample]) -> CardScene:
    """Leave out what is read of the whole card where others compute on it, too."""
    others = find_others(samples, card.busy_pct)
    if not others.named or (is_known(others.least_pct) and others.least_pct >= BUSY_PCT):
        return card
    shared = Missing(f"card {card.index} is shared with {others.named}")
    figures: dict[str, Any] = dict.fromkeys(_OF_ALL, shared)
    figures["busy_pct"] = _own_busy_pct(card.index, others)
    return replace(card, others=others.pids, shares_unlisted=not others.pids, **figures)


def _see_slice(card: CardScene, samples: Sequence[GpuSample]) -> CardScene:
    """Put the job's MIG slice in the place of the card."""
    own = find_slice(samples)
    last = replace(
        card.last, memory_used_bytes=own.memory_used_bytes, memory_total_bytes=own.memory_total_bytes
    )
    figures: dict[str, Any] = dict.fromkeys(_OF_ALL, WHOLE_CARD) | {"sm_active_pct": own.sm_active_pct}
    return replace(card, last=last, busy_pct=NO_UTILISATION, **figures)


def _see_card(samples: Sequence[GpuSample], holder: GpuSample) -> CardScene:
    """Condense one card; ``holder`` is its reading that says whose it is."""
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
    """Return the cards that processes of the job are on, by UUID."""
    return {one.uuid: one for one in known_or(gpus, ()) if is_known(one.pids) and one.pids}


def _newest(frames: Sequence[Frame], seconds: float) -> Sequence[Frame]:
    """Return the Frames of the last ``seconds``."""
    first = len(frames)
    while first and frames[-1].taken_ns - frames[first - 1].taken_ns <= seconds * 1e9:
        first -= 1
    return frames[first:]


def _by_card(frames: Sequence[Frame], uuids: Sequence[str]) -> dict[str, list[GpuSample]]:
    """Return the readings of some cards, oldest first, by UUID."""
    found: dict[str, list[GpuSample]] = {uuid: [] for uuid in uuids}
    for frame in frames:
        for sample in known_or(frame.gpus, ()):
            if sample.uuid in found:
                found[sample.uuid].append(sample)
    return found


def see_cards(frames: Sequence[Frame], history: Sequence[Frame] = ()) -> tuple[CardScene, ...]:
    """Condense the job's own cards over the Frames of a span, oldest first.

    A card that works and rests in turn, as with steps of some seconds, is seen over a longer one.
    CUDA opens every card it may see, so where only open files tell, an idle card beside a busy one
    is taken for unused, and so is one on which a process has a context only. A card that does not answer
    may list no process: it is the job's if it was within ``history``.
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
    cards = [
        _without_strays(_see_card(samples, holders[uuid]), uuid, strays) for uuid, samples in seen.items()
    ]
    cards = [card for card in cards if card.pids]
    used = [card for card in cards if not (card.last.pids_are_visible_only and _is_unused(card))]
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
    """Leave out what is read of cards of which some are not the job's, and nothing tells which.

    That is so where only open device files tell and more cards work than there are ranks: another job's
    heat is no fault of this one.
    """
    if len(cards) > max(ranks, 1):
        # A card that is only held open and does not answer may be any that CUDA may see.
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


def _without_strays(card: CardScene, uuid: str, strays: frozenset[tuple[str, int]]) -> CardScene:
    if not strays:
        return card
    return replace(card, pids=tuple(pid for pid in card.pids if (uuid, pid) not in strays))


def _is_unused(card: CardScene) -> bool:
    return is_known(card.busy_pct) and card.busy_pct < 1.0


def held_pct(card: CardScene, reason: str) -> float:
    """Return for which share of the last window, percent, a reason held the card's clocks; 0: none seen."""
    return max((one.pct for one in card.last.throttle_shares if one.reason == reason), default=0.0)


def mean_busy_pct(cards: Sequence[CardScene]) -> Known[float]:
    """Return the mean U of the cards; Missing when one of them was not read."""
    total = 0.0
    for card in cards:
        if not is_known(card.busy_pct):
            return card.busy_pct
        total += card.busy_pct
    return total / len(cards) if cards else Missing("the job uses no card")


def cards_of(pid: int, cards: Sequence[CardScene]) -> tuple[CardScene, ...]:
    """Return the cards that a process computes on."""
    return tuple(card for card in cards if pid in card.pids)
