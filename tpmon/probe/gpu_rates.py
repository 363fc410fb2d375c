"""Turn a card's raw lines into a GpuSample: rates from counters, shares of the last window. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuProcess, GpuSample, GpuState, MigInstance, ThrottleShare
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, map_known
from tpmon.model.units import clean_text
from tpmon.probe.gpu_wire import CardLine, Counters, Fast, Gpm, Health, Identity, Slow

WINDOW_S = 10.0
MAX_SPAN_S = 15.0
"""Two readings further apart (a child restart) say nothing about a second."""
MAX_XIDS = 64
NAME_LIMIT = 80

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
_NO_IDENTITY = Identity(_NO, _NO, _NO, _NO, _NO, _NO, _NO)
_NO_SLOW = Slow(_NO, _NO, _NO, _NO, _NO, _NO)
_NO_HEALTH = Health(_NO, _NO, _NO, _NO)

# What a card that answers no more cannot be said to do now; identity, health and the process
# list stay, with the card's age beside them.
_LIVE = (
    "sm_pct",
    "sm_idle_ratio",
    "sm_busy_ratio",
    "memory_busy_pct",
    "sm_active_pct",
    "occupancy_pct",
    "tensor_pct",
    "dram_pct",
    "pcie_tx_bytes_s",
    "pcie_rx_bytes_s",
    "nvlink_tx_bytes_s",
    "nvlink_rx_bytes_s",
    "memory_used_bytes",
    "power_w",
    "power_source",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "temperature_margin_c",
    "throttle_known",
    "pcie_generation",
    "pcie_width",
)


def name_reasons(mask: int) -> tuple[str, ...]:
    """Say a mask of clock event reasons in words, without "idle"."""
    words = [word for bit, word in REASONS if mask & bit]
    if mask & ~_ALL_BITS:
        words.append(f"reason {mask & ~_ALL_BITS:#x}")
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


def rate(window: Sequence[CardLine], read: Callable[[Counters], Known[int]]) -> Known[float]:
    """Return a counter's units per second between the last two readings of a window."""
    new = read(window[-1].fast.counters)
    if len(window) < 2:
        return new if isinstance(new, Missing) else Missing("first reading")
    seconds = span_s(window[-2], window[-1])
    if not 0 < seconds <= MAX_SPAN_S:
        return Missing("first reading after a gap")
    moved = difference(read(window[-2].fast.counters), new)
    return map_known(lambda units: units / seconds, moved)


def mean_power(window: Sequence[CardLine]) -> tuple[Known[float], Known[str]]:
    """Return the power in watts since the reading before, and where it comes from.

    The energy counter misses nothing; the sensor of A100 and H100 sees a quarter of the time
    (arXiv 2312.02741). A counter that stands still (some vGPUs) is not believed.
    """
    by_energy = map_known(lambda mj_s: mj_s / 1000, rate(window, lambda counters: counters.energy_mj))
    if is_known(by_energy) and by_energy > 0:
        return by_energy, "energy counter"
    sensor = window[-1].fast.power_w
    if isinstance(sensor, Missing):
        return sensor, sensor
    return sensor, "power sensor"


_SHARE_COUNTERS: dict[str, Callable[[Counters], Known[int]]] = {
    "power cap": lambda c: c.power_cap_ns,
    "sync boost": lambda c: c.sync_boost_ns,
    # Drivers without the new counter have one for all thermal reasons.
    "SW thermal": lambda c: c.sw_thermal_ns if is_known(c.sw_thermal_ns) else c.thermal_ns,
    "HW thermal": lambda c: c.hw_thermal_ns,
    "power brake": lambda c: c.power_brake_ns,
    "board limit": lambda c: c.board_limit_ns,
    "reliability": lambda c: c.reliability_ns,
}

# Fields 269 to 271 count the time of their reason; the older ones (74 to 79) that below the application
# clock, which is far below the clocks that a card boosts to (T4: 585 of 1590 MHz).
_EXACT: dict[str, Callable[[Counters], Known[int]]] = {
    "SW thermal": lambda c: c.sw_thermal_ns,
    "HW thermal": lambda c: c.hw_thermal_ns,
    "power brake": lambda c: c.power_brake_ns,
}


def _is_exact(word: str, counters: Counters) -> bool:
    read = _EXACT.get(word)
    return read is not None and is_known(read(counters))


def _counter_share(window: Sequence[CardLine], read: Callable[[Counters], Known[int]]) -> float:
    held_ns = 0
    seconds = 0.0
    if read(window[0].fast.counters) == read(window[-1].fast.counters):
        # Most counters never move; this is the whole cost of them.
        return 0.0
    for old, new in pairwise(window):
        span = span_s(old, new)
        moved = difference(read(old.fast.counters), read(new.fast.counters))
        if is_known(moved) and 0 < span <= MAX_SPAN_S:
            held_ns += moved
            seconds += span
    return min(100.0, held_ns / 1e9 / seconds * 100) if seconds else 0.0


def throttle_shares(window: Sequence[CardLine]) -> tuple[ThrottleShare, ...]:
    """Say for which share of a window each reason held the clocks down, in the order of REASONS.

    A reason's counter misses nothing; where a driver has none, or it stands still, the share of readings with
    the bit set stands in, and beside an older counter where that is larger.
    """
    masks = [line.fast.reasons for line in window if is_known(line.fast.reasons)]
    shares = []
    for bit, word in REASONS:
        read = _SHARE_COUNTERS.get(word)
        pct = _counter_share(window, read) if read else 0.0
        seen = sum(bool(mask & bit) for mask in masks) / len(masks) * 100 if masks else 0.0
        source = "counter"
        if seen > pct and not (pct and _is_exact(word, window[-1].fast.counters)):
            pct, source = seen, "bit"
        if pct:
            shares.append(ThrottleShare(word, pct, source))
    return tuple(shares)


def _first_known(*values: Known[float]) -> Known[float]:
    return next((value for value in values if is_known(value)), values[-1])


def _gpm(gpm: Known[Gpm], read: Callable[[Gpm], Known[float]]) -> Known[float]:
    return gpm if isinstance(gpm, Missing) else read(gpm)


def _list_processes(fast: Fast) -> Known[tuple[GpuProcess, ...]]:
    return map_known(
        lambda listed: tuple(GpuProcess(one.pid, one.used_bytes, one.sm_pct, False) for one in listed),
        fast.processes,
    )


def _clean_instance(instance: MigInstance) -> MigInstance:
    return replace(instance, uuid=clean_text(instance.uuid, NAME_LIMIT))


def _margin(slow: Slow, identity: Identity, temperature: Known[float]) -> Known[float]:
    if is_known(slow.margin_c):
        return slow.margin_c
    if is_known(identity.slowdown_c) and is_known(temperature):
        return identity.slowdown_c - temperature
    return slow.margin_c


@dataclass(slots=True)
class CardTrack:
    """Keep what is known of one card: the window of its lines and the newest of each slower tier."""

    window: deque[CardLine]
    slow: Slow = _NO_SLOW
    health: Health = _NO_HEALTH
    identity: Identity = _NO_IDENTITY
    xids: tuple[int, ...] = ()
    answered: CardLine | None = None
    """The newest line in which the card was not lost."""

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
        power, power_source = mean_power(window)
        listed = _list_processes(fast)
        busy = fast.busy
        sample = GpuSample(
            index=line.index,
            uuid=clean_text(uuid, NAME_LIMIT),
            name=clean_text(identity.name, NAME_LIMIT) if is_known(identity.name) else "unknown card",
            state=GpuState.LOST if is_known(line.lost) else GpuState.OK,
            age_s=0.0,
            sm_pct=map_known(lambda value: value.mean_pct, busy),
            sm_samples=busy.samples if is_known(busy) else 0,
            sm_idle_ratio=busy.idle_ratio if is_known(busy) else busy,
            sm_busy_ratio=busy.busy_ratio if is_known(busy) else busy,
            memory_busy_pct=fast.memory_busy_pct,
            sm_active_pct=_gpm(fast.gpm, lambda g: g.sm_active_pct),
            occupancy_pct=_gpm(fast.gpm, lambda g: g.occupancy_pct),
            tensor_pct=_gpm(fast.gpm, lambda g: g.tensor_pct),
            dram_pct=_gpm(fast.gpm, lambda g: g.dram_pct),
            pcie_tx_bytes_s=_first_known(
                _gpm(fast.gpm, lambda g: g.pcie_tx_bytes_s), rate(window, lambda c: c.pcie_tx_bytes)
            ),
            pcie_rx_bytes_s=_first_known(
                _gpm(fast.gpm, lambda g: g.pcie_rx_bytes_s), rate(window, lambda c: c.pcie_rx_bytes)
            ),
            nvlink_tx_bytes_s=_first_known(
                _gpm(fast.gpm, lambda g: g.nvlink_tx_bytes_s), rate(window, lambda c: c.nvlink_tx_bytes)
            ),
            nvlink_rx_bytes_s=_first_known(
                _gpm(fast.gpm, lambda g: g.nvlink_rx_bytes_s), rate(window, lambda c: c.nvlink_rx_bytes)
            ),
            memory_used_bytes=fast.memory_used_bytes,
            memory_total_bytes=fast.memory_total_bytes,
            power_w=power,
            power_source=power_source,
            power_limit_w=slow.power_limit_w,
            sm_clock_mhz=fast.sm_clock_mhz,
            sm_clock_max_mhz=identity.sm_clock_max_mhz,
            memory_clock_mhz=slow.memory_clock_mhz,
            memory_clock_max_mhz=identity.memory_clock_max_mhz,
            temperature_c=fast.temperature_c,
            memory_temperature_c=fast.memory_temperature_c,
            temperature_margin_c=_margin(slow, identity, fast.temperature_c),
            throttle=name_reasons(fast.reasons) if is_known(fast.reasons) else (),
            throttle_known=map_known(lambda _: True, fast.reasons),
            throttle_shares=throttle_shares(window),
            pcie_generation=slow.pcie_generation,
            pcie_generation_max=identity.pcie_generation_max,
            pcie_width=slow.pcie_width,
            pcie_width_max=identity.pcie_width_max,
            ecc_uncorrected=health.ecc_uncorrected,
            remapped_rows_pending=health.remapped_rows_pending,
            remapped_rows_failed=health.remapped_rows_failed,
            recovery_action=health.recovery_action,
            xids=self.xids,
            mig=slow.mig,
            mig_instances=tuple(_clean_instance(one) for one in fast.instances),
            processes=listed,
            pids=map_known(lambda _: (), listed),
            pids_are_visible_only=False,
            lists_only=NOT_APPLICABLE,
        )
        if not is_known(line.lost):
            return sample
        # Which processes hang on a lost card is what one wants to know of it.
        before = self.answered.fast if self.answered else fast
        listed = _list_processes(before)
        sample = replace(
            sample,
            memory_total_bytes=before.memory_total_bytes,
            processes=listed,
            pids=map_known(lambda _: (), listed),
        )
        return without_live(sample, line.lost)

    def last_answer_ns(self) -> int:
        """Return when the card last answered, else when it was first seen. CLOCK_MONOTONIC."""
        return (self.answered or self.window[0]).taken_ns


def without_live(sample: GpuSample, reason: str) -> GpuSample:
    """Replace what a card does now by the reason why that is not known."""
    missing = Missing(reason)
    changes: dict[str, Any] = dict.fromkeys(_LIVE, missing)
    return replace(sample, throttle=(), throttle_shares=(), sm_samples=0, **changes)


def make_silent_sample(index: int, uuid: str, age_s: float, reason: str) -> GpuSample:
    """Make the sample of a card that NVML lists and that has never answered."""
    values: dict[str, Any] = {field.name: Missing(reason) for field in fields(GpuSample)}
    values |= {"index": index, "uuid": uuid, "name": "unknown card", "state": GpuState.STALE}
    values |= {"age_s": age_s, "sm_samples": 0, "throttle": (), "throttle_shares": (), "xids": ()}
    values |= {"mig_instances": (), "pids_are_visible_only": False, "lists_only": NOT_APPLICABLE}
    values |= {"unheard": NOT_APPLICABLE}
    return GpuSample(**values)
