"""Turn a card's raw lines into a GpuSample: rates from counters, shares of the last window. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

from tpmon.model.frozen import dataclass, replace
from tpmon.model.gpu import GpuProcess, GpuSample, GpuState, ThrottleShare
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known
from tpmon.model.units import clean_text
from tpmon.probe.gpu.bounds import LEAST_W, LIVE, bound, bound_sample, hold_against, most_power_w
from tpmon.probe.gpu.wire import CardIdentity, CardLine, Counter, Counters, Fast, Gpm, Health, Slow

WINDOW_S = 10.0
MAX_SPAN_S = 15.0  # readings further apart (a child restart) say nothing about a second
MAX_XIDS = 64
NAME_LIMIT = 80
SLOW_COUNTER_S = 5.0  # a counter that does not move for so long stands still
FIRST_RATIO = 1.4  # how far the first interval of an energy counter may lie from the sensor

REASON_IDLE = 0x1
# nvml.h, nvmlClocksEventReason*; the last two under their old throttle names only.
REASONS = (
    (0x2, "application clocks"),
    (0x4, "power cap"),
    (0x8, "HW slowdown"),
    (0x10, "sync boost"),
    (0x20, "SW thermal"),
    (0x40, "HW thermal"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
_ALL_BITS = REASON_IDLE | sum(bit for bit, _ in REASONS)

_NO = Missing("not read yet")
_NO_IDENTITY = CardIdentity(_NO, _NO, _NO, _NO, _NO, _NO, _NO, _NO)
_NO_SLOW = Slow(_NO, _NO, _NO, _NO, _NO, _NO)
_NO_HEALTH = Health(_NO, _NO, _NO, _NO)


def name_reasons(mask: int) -> tuple[str, ...]:
    """Describe a mask of clock event reasons, without "idle"."""
    words = [word for bit, word in REASONS if mask & bit]
    if mask & ~_ALL_BITS:
        words.append(f"unknown reason {mask & ~_ALL_BITS:#x}")
    return tuple(words)


def span_s(old: CardLine, new: CardLine) -> float:
    """Return the seconds between two readings."""
    return (new.taken_ns - old.taken_ns) / 1e9


def difference(old: Known[int], new: Known[int]) -> Known[int]:
    """Subtract two readings of a counter; one that went back was restarted, not negative."""
    if isinstance(new, Missing):
        return new
    if isinstance(old, Missing):
        return Missing("first reading")
    return new - old if new >= old else Missing("the counter was restarted")


def counted_s(old: CardLine, new: CardLine, counter: Counter) -> float:
    """Return the seconds between two readings of a counter, which a stalled call delays."""
    moved_us = new.fast.counters.after_us[counter] - old.fast.counters.after_us[counter]
    return span_s(old, new) + moved_us / 1e6


def rate_between(old: CardLine, new: CardLine, counter: Counter) -> Known[float]:
    """Return a counter's units per second between two readings."""
    moved = difference(old.fast.counters.values[counter], new.fast.counters.values[counter])
    seconds = counted_s(old, new, counter)
    if is_known(moved) and not 0 < seconds <= MAX_SPAN_S:
        return Missing("first reading after a gap" if seconds > 0 else "the driver has not read it again")
    return map_known(lambda units: units / seconds, moved)


def rate(window: Sequence[CardLine], counter: Counter) -> Known[float]:
    """Return a counter's units per second between the last two readings of a window."""
    if len(window) < 2:
        return difference(Missing("first reading"), window[-1].fast.counters.values[counter])
    return rate_between(window[-2], window[-1], counter)


def _energy_power(window: Sequence[CardLine]) -> Known[float]:
    """Return the power in watts by the energy counter, since the last reading if it moves each time.

    Some drivers' counters move every few seconds: then from the first move in the window to the last.
    """
    told = [line.fast.counters.values[Counter.ENERGY] for line in window]
    moves = [n for n in range(1, len(told)) if is_known(told[n - 1]) and told[n - 1] != told[n]]
    if not moves or span_s(window[moves[-1]], window[-1]) > SLOW_COUNTER_S:
        return Missing("the energy counter does not move")
    first = moves[-1] - 1 if len(moves) == len(told) - 1 else moves[0]
    return map_known(lambda mj_s: mj_s / 1000, rate_between(window[first], window[moves[-1]], Counter.ENERGY))


def mean_power(window: Sequence[CardLine], limit_w: Known[float]) -> tuple[Known[float], Known[str]]:
    """Return the power in watts since the last reading, and its source.

    The energy counter misses nothing, while the sensor of A100 and H100 sees a quarter of the time (arXiv
    2312.02741). A counter that stands still (some vGPUs) or exceeds what the card can draw is not used.
    """
    by_energy = bound(_energy_power(window), "W", LEAST_W, most_power_w(limit_w))
    sensor = window[-1].fast.power_w
    # The first interval of a counter that moves every few seconds holds no move or too much of one.
    is_first = len(window) == 2 and span_s(window[0], window[1]) < SLOW_COUNTER_S
    doubtful = is_first and is_known(sensor) and is_known(by_energy)
    if is_known(by_energy) and not (doubtful and not 1 / FIRST_RATIO < sensor / by_energy < FIRST_RATIO):
        return by_energy, "energy counter"
    return sensor, sensor if isinstance(sensor, Missing) else "power sensor"


_SHARE_COUNTERS = {
    "power cap": Counter.POWER_CAP,
    "sync boost": Counter.SYNC_BOOST,
    "SW thermal": Counter.SW_THERMAL,
    "HW thermal": Counter.HW_THERMAL,
    "power brake": Counter.POWER_BRAKE,
    "board limit": Counter.BOARD_LIMIT,
    "reliability": Counter.RELIABILITY,
}
# Fields 269 to 271 count the time of their reason; the older ones (74 to 79) that below the application
# clock, which is far below the clocks that a card boosts to (T4: 585 of 1590 MHz).
_EXACT = frozenset((Counter.SW_THERMAL, Counter.HW_THERMAL, Counter.POWER_BRAKE))


def _share_counter(word: str, counters: Counters) -> Counter | None:
    counter = _SHARE_COUNTERS.get(word)
    # Drivers without the new counters have one for all thermal reasons.
    older = counter is Counter.SW_THERMAL and not is_known(counters.values[counter])
    return Counter.THERMAL if older else counter


def _counter_share(window: Sequence[CardLine], counter: Counter) -> float:
    held_ns = 0
    seconds = 0.0
    if window[0].fast.counters.values[counter] == window[-1].fast.counters.values[counter]:
        # Most counters never move; this is their whole cost.
        return 0.0
    for old, new in pairwise(window):
        span = counted_s(old, new, counter)
        moved = difference(old.fast.counters.values[counter], new.fast.counters.values[counter])
        if is_known(moved) and 0 < span <= MAX_SPAN_S:
            held_ns += moved
            seconds += span
    return min(100.0, held_ns / 1e9 / seconds * 100) if seconds else 0.0


def throttle_shares(window: Sequence[CardLine]) -> tuple[ThrottleShare, ...]:
    """Return the share of a window for which each reason held the clocks down, in the order of REASONS.

    A reason's counter misses nothing. Without one, or if it stands still, the share of readings with the bit
    set is used; beside an older counter the larger of both.
    """
    masks = [line.fast.reasons for line in window if is_known(line.fast.reasons)]
    shares = []
    counters = window[-1].fast.counters
    told = reduce(or_, masks, 0)
    strange = told & ~_ALL_BITS
    for bit, word in (*REASONS, *((strange, word) for word in name_reasons(strange))):
        counter = _share_counter(word, counters)
        pct = _counter_share(window, counter) if counter is not None else 0.0
        # Most bits are never set in a window.
        seen = sum(bool(mask & bit) for mask in masks) / len(masks) * 100 if told & bit else 0.0
        source = "counter"
        if seen > pct and not (pct and counter in _EXACT and is_known(counters.values[counter])):
            pct, source = seen, "bit"
        if pct:
            shares.append(ThrottleShare(word, pct, source))
    return tuple(shares)


_BYTE_COUNTERS = {
    "pcie_tx_bytes_s": Counter.PCIE_TX,
    "pcie_rx_bytes_s": Counter.PCIE_RX,
    "nvlink_tx_bytes_s": Counter.NVLINK_TX,
    "nvlink_rx_bytes_s": Counter.NVLINK_RX,
}
"""Rates of a sample that GPM provides; on older cards counters do."""
_COPIED = {one.name for one in fields(GpuSample)} - {
    *("name", "processes", "power_w", "memory_total_bytes"),
    *_BYTE_COUNTERS,
}
_COPIED_OF = {
    kind: [one.name for one in fields(kind) if one.name in _COPIED]
    for kind in (Fast, Slow, Health, CardIdentity, Gpm)
}
"""What a sample takes unchanged from each part of a line, under the same name."""


def _margin(slow: Slow, identity: CardIdentity, temperature: Known[float]) -> Known[float]:
    if not is_known(slow.margin_c) and is_known(identity.slowdown_c) and is_known(temperature):
        return identity.slowdown_c - temperature
    return slow.margin_c


@dataclass(slots=True)
class CardTrack:
    """Keep what is known of one card: the window of its lines and the newest of each slower tier."""

    window: deque[CardLine]
    slow: Slow = _NO_SLOW
    health: Health = _NO_HEALTH
    identity: CardIdentity = _NO_IDENTITY
    xids: tuple[int, ...] = ()
    answered: CardLine | None = None  # the newest line in which the card was not lost
    computed: bool = False  # the driver has reported a process that computed on it

    def add(self, line: CardLine) -> None:
        """Take the next line of the card."""
        if not is_known(line.lost):
            self.answered = line
        if is_known(line.slow):
            self.slow = line.slow
        if is_known(line.health):
            self.health = line.health
        if is_known(line.identity):
            self.identity = line.identity
        listed = known_or(line.fast.processes, ())
        self.computed = self.computed or any(known_or(one.sm_pct, 0.0) > 0 for one in listed)
        self.window.append(line)
        # Two readings stay, however far apart: a rate needs both.
        while len(self.window) > 2 and span_s(self.window[0], line) > WINDOW_S:
            self.window.popleft()

    def add_xid(self, xid: int) -> None:
        """Remember an Xid event, the newest 64 of them."""
        self.xids = (*self.xids, xid)[-MAX_XIDS:]

    def sample(self, uuid: str) -> GpuSample:
        """Make the sample of the newest line, with age 0 and no process marked as the job's."""
        window = tuple(self.window)
        line = window[-1]
        fast, slow, identity, health = line.fast, self.slow, self.identity, self.health
        # Which processes hang on a lost card is what one wants to know of it.
        before = self.answered.fast if is_known(line.lost) and self.answered else fast
        power, power_source = mean_power(window, slow.power_limit_w)
        listed = map_known(
            lambda all_: tuple(GpuProcess(one.pid, one.used_bytes, one.sm_pct, False) for one in all_),
            before.processes,
        )
        busy = fast.busy
        answers = GpuState.REFUSED if fast.is_blank else GpuState.OK
        gpm = fast.gpm if is_known(fast.gpm) else Gpm(*[fast.gpm] * len(fields(Gpm)))
        values: dict[str, Any] = {
            name: getattr(part, name)
            for part in (fast, slow, health, identity, gpm)
            for name in _COPIED_OF[type(part)]
        }
        for name, counter in _BYTE_COUNTERS.items():
            by_gpm = getattr(gpm, name)
            values[name] = by_gpm if is_known(by_gpm) else rate(window, counter)
        sample = GpuSample(
            **values,
            index=line.index,
            uuid=clean_text(uuid, NAME_LIMIT),
            name=clean_text(identity.name, NAME_LIMIT) if is_known(identity.name) else "unknown card",
            state=GpuState.LOST if is_known(line.lost) else answers,
            age_s=0.0,
            sm_pct=map_known(lambda value: value.mean_pct, busy),
            sm_samples=busy.samples if is_known(busy) else 0,
            sm_idle_ratio=busy.idle_ratio if is_known(busy) else busy,
            sm_busy_ratio=busy.busy_ratio if is_known(busy) else busy,
            memory_total_bytes=before.memory_total_bytes,
            power_w=power,
            power_source=power_source,
            temperature_margin_c=_margin(slow, identity, fast.temperature_c),
            throttle=name_reasons(fast.reasons) if is_known(fast.reasons) else (),
            throttle_known=map_known(lambda _: True, fast.reasons),
            throttle_shares=throttle_shares(window),
            xids=self.xids,
            mig_instances=tuple(
                replace(one, uuid=clean_text(one.uuid, NAME_LIMIT)) for one in fast.instances
            ),
            processes=listed,
            pids=map_known(lambda _: (), listed),
            pids_are_visible_only=False,
            lists_only=NOT_APPLICABLE,
        )
        sample = bound_sample(sample)
        if is_known(line.lost):
            return without_live(sample, line.lost)
        sensor_w = [one.fast.power_w for one in window[-2:]]
        return hold_against(sample, sensor_w, identity.is_pcie, self.computed)

    def last_answer_ns(self) -> int:
        """Return when the card last answered, else when it was first seen. CLOCK_MONOTONIC."""
        return (self.answered or self.window[0]).taken_ns


def without_live(sample: GpuSample, reason: str) -> GpuSample:
    """Replace what a card does now by the reason why that is not known."""
    missing = Missing(reason)
    # Identity, health and the process list stay, with the card's age beside them.
    changes: dict[str, Any] = dict.fromkeys((*LIVE, "power_source", "throttle_known"), missing)
    return replace(sample, throttle=(), throttle_shares=(), sm_samples=0, **changes)


def make_silent_sample(index: int, uuid: str, age_s: float, reason: str) -> GpuSample:
    """Make the sample of a card that NVML lists and that has never answered."""
    values: dict[str, Any] = {field.name: Missing(reason) for field in fields(GpuSample)}
    values |= {"index": index, "uuid": uuid, "name": "unknown card", "state": GpuState.STALE}
    values |= {"age_s": age_s, "sm_samples": 0, "throttle": (), "throttle_shares": (), "xids": ()}
    values |= {"mig_instances": (), "pids_are_visible_only": False, "lists_only": NOT_APPLICABLE}
    values |= {"unheard": NOT_APPLICABLE}
    return GpuSample(**values)
