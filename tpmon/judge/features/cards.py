"""Condense the Window into the figures of the job's cards: use, slices, whose work it is. Pure.

As in the rules, U is NVML utilisation, P power over its limit, C the SM clock over its maximum. Rules never
judge a single second. Most readings of a sliced card cover all of it, with all its tenants.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from operator import add
from typing import Any

from tpmon.judge.features.readings import all_known, mean_known, median_known
from tpmon.model import gpu
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, GpuState, MigInstance
from tpmon.model.known import Known, Missing, is_known, join_known, known_or, map_known

SHARED_PCT = 5.0
UNLISTED_PCT = 70.0
MOST_NAMED = 3

Shares = tuple[Known[float], Known[float]]
"""How long, in percent, the driver saw the job's kernels; and with the time that they may have waited."""


def _mean_of(pids: Sequence[int], shares: Iterable[Known[Mapping[int, float]]]) -> Known[float]:
    return mean_known(
        sum(share.get(pid, 0.0) for pid in pids) if is_known(share) else share for share in shares
    )


def _find_others(
    samples: Sequence[GpuSample], busy_pct: Known[float]
) -> tuple[tuple[int, ...], Shares] | None:
    """Return who shares a card with the job, by PID where they are listed; None for its own card."""
    last = samples[-1]
    if not gpu.is_listed(last) or (is_known(busy_pct) and busy_pct < SHARED_PCT):
        return None
    ours = known_or(last.pids, ())
    foreign = tuple(one.pid for one in gpu.list_processes(last) if one.pid not in ours and not one.of_job)
    shares = [gpu.share_card(one) for one in samples]
    own = _mean_of(ours, shares)
    if not is_known(own):
        return (foreign, (own, own)) if foreign else None
    theirs = {pid: known_or(_mean_of((pid,), shares), 0.0) for pid in foreign}
    there = tuple(pid for pid in foreign if theirs[pid] >= SHARED_PCT)
    if there:  # cards give each process equal turns
        return there, (own, own + min(own * len(there), sum(theirs[pid] for pid in there)))
    told = own + sum(theirs.values())
    if not is_known(last.lists_only) or not is_known(busy_pct) or busy_pct < UNLISTED_PCT:
        return None
    # Some drivers give 0 % for every process in a container: beside a busy card that is no reading.
    if told < gpu.USED_PCT or told >= gpu.EXPLAINED_RATIO * busy_pct:
        return None
    # Their number is unknown: the job may have waited for all that they did.
    return (), (own, own + busy_pct - told)


NO_SLICE = Missing("which MIG slice the job computes on is not known")


def find_slice(sample: GpuSample) -> MigInstance | None:
    """Return the one slice that lists processes of the job; a card's only slice is its holder's."""
    pids = set(known_or(sample.pids, ()))
    slices = sample.mig_instances
    own = [one for one in slices if len(slices) == 1 or pids & set(known_or(one.pids, ()))]
    return own[0] if len(own) == 1 else None


def is_sliced(sample: GpuSample) -> bool:
    """Tell whether a card is known to be cut into MIG slices."""
    return is_known(sample.mig) and sample.mig


BUSY_PCT = 90.0
STARVED_PCT = 70.0
WORKING_CLOCK_RATIO = 0.8
QUIET_LINK_BYTES_S = 5 * (1 << 20)

LULL_PCT = 30.0
STEPS_SPAN_S = 30.0
LEAST_TURNS = 4


@dataclass(frozen=True, slots=True)
class CardScene:
    """Hold one of the job's cards over the span; ``last`` is its newest reading."""

    last: GpuSample
    pids: tuple[int, ...]
    """The job's processes that work on it; all that have a context where that is not known."""
    visible_only: bool
    """They only hold it open, as CUDA does with every visible card."""
    shared: str
    """That others compute on it, "" where they do not: readings of the whole card are then not the job's."""
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
        return ratio_of(self.last.memory_used_bytes, self.last.memory_total_bytes)


def ratio_of(value: Known[float], limit: Known[float]) -> Known[float]:
    """Return a reading over its limit, 0-1."""
    zero = Missing("its limit reads 0")
    return join_known(lambda part, most: part / most if most > 0 else zero, value, limit)


def _link_bytes_s(samples: Sequence[GpuSample]) -> Known[float]:
    """Add the links that have counters; a link without one does not count as quiet."""
    pcie = mean_known(join_known(add, one.pcie_tx_bytes_s, one.pcie_rx_bytes_s) for one in samples)
    nvlink = mean_known(join_known(add, one.nvlink_tx_bytes_s, one.nvlink_rx_bytes_s) for one in samples)
    return pcie if nvlink == gpu.NO_NVLINK else join_known(add, pcie, nvlink)


def _clock_ratio(samples: Sequence[GpuSample], busy_pct: Known[float]) -> Known[float]:
    if is_known(busy_pct):
        # Rounding must not drop the seconds of a card that is always equally busy.
        least = busy_pct - 0.5
        samples = [one for one in samples if is_known(one.sm_pct) and one.sm_pct >= least]
    return median_known(ratio_of(one.sm_clock_mhz, one.sm_clock_max_mhz) for one in samples)


def _takes_turns(samples: Sequence[GpuSample]) -> bool:
    """Tell whether a card works and rests in turn, and has not stayed in one state for longer."""
    told = [one.sm_pct for one in samples if is_known(one.sm_pct)]
    marks = [pct >= STARVED_PCT for pct in told if not LULL_PCT < pct < STARVED_PCT]
    *turns, newest = [len(list(turn)) for _, turn in groupby(marks)] or [0]
    return len(turns) + 1 >= LEAST_TURNS and newest <= max(turns) + 1


_OF_ALL = ("power_ratio", "sm_active_pct", "tensor_pct", "dram_pct", "pcie_bytes_s", "link_bytes_s")
"""Figures that everybody on a card adds to."""


def _see_shared(card: CardScene, samples: Sequence[GpuSample]) -> CardScene:
    """Drop readings of the whole card where others compute on it, too."""
    others = _find_others(samples, card.busy_pct)
    if others is None:
        return card
    pids, (least, most) = others
    if is_known(least) and least >= BUSY_PCT:
        return card
    named, more = ", ".join(map(str, pids[:MOST_NAMED])), len(pids) - MOST_NAMED
    named += f" and {more} more" if more > 0 else ""
    # Of other containers, where a card is shared in turns (drivers from 535.113).
    others_are = f"PID {named}" if pids else "processes that the driver does not list here"
    shared = f"card {card.index} is shared with {others_are}"
    figures: dict[str, Any] = dict.fromkeys(_OF_ALL, Missing(shared))
    figures["busy_pct"] = most
    if not is_known(most) or most >= STARVED_PCT:
        part = f", and the job has {least:.0f} % of it" if is_known(least) else f": {least.reason}"
        figures["busy_pct"] = Missing(f"{shared}{part}")
    return replace(card, shared=shared, **figures)


def _see_slice(card: CardScene, samples: Sequence[GpuSample]) -> CardScene:
    own = find_slice(samples[-1])
    whole = Missing("it is read of the whole card only, not of a MIG slice")
    figures: dict[str, Any] = dict.fromkeys(_OF_ALL, whole) | {
        "sm_active_pct": NO_SLICE,
        "busy_pct": Missing("MIG slices have no utilisation"),
    }
    memory: dict[str, Any] = dict.fromkeys(("memory_used_bytes", "memory_total_bytes"), NO_SLICE)
    if own is not None:
        every = (one for sample in samples for one in sample.mig_instances)
        figures["sm_active_pct"] = mean_known(one.sm_active_pct for one in every if one.uuid == own.uuid)
        memory = {name: getattr(own, name) for name in memory}
    return replace(card, last=replace(card.last, **memory), **figures)


def _busier_direction(one: GpuSample) -> Known[float]:
    both = (one.pcie_tx_bytes_s, one.pcie_rx_bytes_s)
    return max((value for value in both if is_known(value)), default=one.pcie_rx_bytes_s)


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
        shared="",
        busy_pct=busy_pct,
        power_ratio=over(lambda one: ratio_of(one.power_w, one.power_limit_w)),
        clock_ratio=_clock_ratio(samples, busy_pct),
        sm_active_pct=over(lambda one: one.sm_active_pct),
        tensor_pct=over(lambda one: one.tensor_pct),
        dram_pct=over(lambda one: one.dram_pct),
        pcie_bytes_s=over(_busier_direction),
        link_bytes_s=_link_bytes_s(samples),
        lost_readings=sum(1 for _ in takewhile(lambda one: one.state is GpuState.LOST, reversed(samples))),
    )
    return _see_slice(card, samples) if is_sliced(last) else _see_shared(card, samples)


def list_samples(frames: Iterable[Frame], uuid: str) -> list[GpuSample]:
    """Return every reading of a card."""
    return [one for frame in frames for one in known_or(frame.gpus, ()) if one.uuid == uuid]


def _holders(gpus: Known[tuple[GpuSample, ...]]) -> dict[str, GpuSample]:
    return {one.uuid: one for one in known_or(gpus, ()) if is_known(one.pids) and one.pids}


def _by_card(frames: Iterable[Frame], uuids: Iterable[str]) -> dict[str, list[GpuSample]]:
    found: dict[str, list[GpuSample]] = {uuid: [] for uuid in uuids}
    for frame in frames:
        for sample in known_or(frame.gpus, ()):
            if sample.uuid in found:
                found[sample.uuid].append(sample)
    return found


def see_cards(frames: Sequence[Frame], history: Sequence[Frame] = ()) -> tuple[CardScene, ...]:
    """Condense the job's own cards over the Frames of a span, oldest first."""
    # A card that works and rests in turn (steps of some seconds) is judged over a longer span. CUDA opens
    # every visible card: where only open files tell, an idle card beside a busy one counts as unused, as does
    # one on which a process has only a context. A card that does not answer may list no process: it is the
    # job's if it was in ``history``.
    gpus = frames[-1].gpus
    if not is_known(gpus):
        return ()
    holders = _holders(gpus)
    silent = {one.uuid for one in gpu.list_silent(gpus)} - holders.keys()
    for frame in history if silent else ():
        holders |= {uuid: one for uuid, one in _holders(frame.gpus).items() if uuid in silent}
    uuids = [one.uuid for one in gpus if one.uuid in holders]
    now_ns = frames[-1].taken_ns
    longer = _by_card((one for one in history if now_ns - one.taken_ns <= STEPS_SPAN_S * 1e9), uuids)
    seen = {
        uuid: longer[uuid] if _takes_turns(longer[uuid]) else own
        for uuid, own in _by_card(frames, uuids).items()
    }
    strays = gpu.find_contexts(
        [samples[-1] for samples in seen.values()],
        lambda card, pid: _mean_of((pid,), map(gpu.share_card, seen[card.uuid])),
    )
    cards = []
    for uuid, samples in seen.items():
        card = _see_card(samples, holders[uuid])
        pids = tuple(pid for pid in card.pids if (uuid, pid) not in strays)
        cards += [replace(card, pids=pids)] if pids else []
    used = [card for card in cards if not card.last.pids_are_visible_only or known_or(card.busy_pct, 1) >= 1]
    return tuple(used or cards)


_OF_THE_CARD = (
    *("memory_used_bytes", "memory_total_bytes", "temperature_c", "throttle_known", "ecc_uncorrected"),
    *("remapped_rows_pending", "remapped_rows_failed", "recovery_action", "pcie_generation", "pcie_width"),
)


def doubt_cards(cards: tuple[CardScene, ...], ranks: int) -> tuple[CardScene, ...]:
    """Drop the readings of cards of which some are not the job's, and nothing tells which."""
    # That is where only open device files tell and more cards work than ranks: another's heat is no fault.
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
