"""Check a card's readings against what is possible and each other, and list the driver's cards.

A reading that cannot be true becomes Missing with its value and the reason. Drivers hand out values that
nobody set (4294967295), placeholders (generation 1 x1 of a card without PCIe: nvtop#426) and zeros for what
they do not measure (utilisation under WSL: nvtop#109; shares of processes: HAMi-core#218).

The driver's files name a card even while NVML does not answer. Reading them goes into the driver, which may
block: never in the tick. In a container they may list fewer cards than NVML, in a Slurm step more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from tpmon.model.frozen import dataclass, replace
from tpmon.model.gpu import GpuProcess, GpuSample, MigInstance
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.units import clean_text

POWER_RATIO = 1.3  # over the limit: a limiter takes some tenths of a second
CLOCK_RATIO = 1.5  # over the highest: the table of a driver can lag behind its card
APART_PCT, APART_AT_WORK_PCT = 25.0, 40.0
"""SM activity over U, which includes it, below ``REST_PCT`` and from it: the two are of different moments."""
REST_PCT = 20.0  # U below which a card mostly rests; from it on some process computed
FULL_POWER_RATIO, LEAST_FULL_W = 0.75, 50.0  # over the limit: no card that rests draws both
WORK_CLOCK_RATIO = 0.5  # over the highest: a card below it may rest
LANE_BYTES_S = 0.3e9  # of PCIe generation 1, and a fifth; each later one at most doubles it
MOST_PID = 1 << 22  # PID_MAX_LIMIT of include/linux/threads.h
LEAST_W, _MOST_W, _MOST_BYTES = 0.1, 5000.0, 64 << 40
SHARED = Missing("shares the host's memory")  # as a chip that holds CPU and GPU does

LIMITS = (
    (("power_limit_w",), "W", 1, _MOST_W),
    (("sm_clock_max_mhz", "memory_clock_max_mhz"), "MHz", 100, 50_000),
    (("memory_total_bytes",), "bytes", 1, _MOST_BYTES),
    (("pcie_generation_max",), "", 1, 8),
    (("pcie_width_max",), "lanes", 1, 32),
    (("ecc_uncorrected",), "errors", 0, 1e9),
    (("recovery_action",), "", 0, 255),
)
"""Readings, their unit, their least and most; first those that bound others, or none."""
READINGS = (
    (("sm_pct", "memory_busy_pct", "sm_active_pct", "occupancy_pct", "tensor_pct", "dram_pct"), "%", 0, 100),
    (("decoder_pct", "jpeg_pct"), "%", 0, 100),
    (("sm_idle_ratio", "sm_busy_ratio"), "", 0, 1),
    (("pcie_tx_bytes_s", "pcie_rx_bytes_s"), "bytes/s", 0, 5e11),
    (("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), "bytes/s", 0, 4e12),
    (("memory_used_bytes",), "bytes", 0, _MOST_BYTES),
    (("power_w",), "W", LEAST_W, _MOST_W),
    (("sm_clock_mhz", "memory_clock_mhz"), "MHz", 1, 50_000),
    (("temperature_c", "memory_temperature_c"), "C", 1, 150),
    (("temperature_margin_c",), "C", -100, 150),
    (("pcie_generation",), "", 1, 8),
    (("pcie_width",), "lanes", 1, 32),
)
LIVE = tuple(name for names, *_ in READINGS for name in names)  # unknown of a card that no longer answers


def bound(value: Known[Any], unit: str, least: float, most: float) -> Known[Any]:
    """Return a reading, or Missing with its value where that is impossible."""
    if isinstance(value, Missing) or least <= value <= most:
        return value
    limit = f"at most {most:.6g}" if value > most else f"at least {least:.6g}"
    return Missing(f"the driver says {value:.6g} {unit}".rstrip() + f", {limit} can be")


def most_power_w(limit_w: Known[float]) -> float:
    """Return the most power that a card can draw."""
    return min(_MOST_W, POWER_RATIO * limit_w) if is_known(limit_w) and limit_w >= 1 else _MOST_W


def _link_bytes_s(generation: Known[int], width: Known[int]) -> float:
    """Return the most bytes a second that a PCIe link moves in one direction."""
    if not is_known(generation) or not is_known(width):
        return math.inf
    return LANE_BYTES_S * 2.0 ** (generation - 1) * width


def _list_limits(sample: GpuSample) -> dict[str, float]:
    """Return by reading the most that the rest of the sample allows."""
    link = _link_bytes_s(sample.pcie_generation_max, sample.pcie_width_max)
    return {
        "power_w": most_power_w(sample.power_limit_w),
        "sm_clock_mhz": CLOCK_RATIO * known_or(sample.sm_clock_max_mhz, math.inf),
        "memory_clock_mhz": CLOCK_RATIO * known_or(sample.memory_clock_max_mhz, math.inf),
        "memory_used_bytes": known_or(sample.memory_total_bytes, math.inf),
        "pcie_generation": known_or(sample.pcie_generation_max, math.inf),
        "pcie_width": known_or(sample.pcie_width_max, math.inf),
        "pcie_tx_bytes_s": link,
        "pcie_rx_bytes_s": link,
    }


def bound_sample(sample: GpuSample) -> GpuSample:
    """Remove the impossible from a sample."""
    limits: dict[str, float] = {}
    for table in (LIMITS, READINGS):
        changes: dict[str, Any] = {}
        for names, unit, least, most in table:
            for name in names:
                value = getattr(sample, name)
                kept = bound(value, unit, least, min(most, limits.get(name, most)))
                if kept is not value:
                    changes[name] = kept
        sample = replace(sample, **changes) if changes else sample
        limits = _list_limits(sample)
    instances = tuple(map(_bound_instance, sample.mig_instances))
    return _bound_processes(replace(sample, mig_instances=instances) if instances else sample)


def _bound_instance(one: MigInstance) -> MigInstance:
    total = bound(one.memory_total_bytes, "bytes", 0, _MOST_BYTES)
    used = bound(one.memory_used_bytes, "bytes", 0, known_or(total, _MOST_BYTES))
    active_pct = bound(one.sm_active_pct, "%", 0, 100)
    return replace(one, memory_total_bytes=total, memory_used_bytes=used, sm_active_pct=active_pct)


def _bound_processes(sample: GpuSample) -> GpuSample:
    """Check the list of processes; if one PID is garbled (drivers 530: nvitop#75) all may be."""
    most = known_or(sample.memory_total_bytes, _MOST_BYTES)
    listed: list[GpuProcess] = []
    for one in known_or(sample.processes, ()):
        if not 0 <= one.pid <= MOST_PID:
            garbled = Missing(f"the driver lists PID {one.pid}, at most {MOST_PID} can be")
            return replace(sample, processes=garbled, pids=garbled)
        listed.append(replace(one, used_bytes=bound(one.used_bytes, "bytes", 0, most)))
    return replace(sample, processes=tuple(listed)) if listed else sample


def hold_against(
    sample: GpuSample, sensor_w: Sequence[Known[float]], is_pcie: Known[bool], computed: bool
) -> GpuSample:
    """Remove from a bounded sample what other readings of the same second contradict.

    ``sensor_w``: the power now and a second ago, as a sensor lags. ``computed``: the driver has reported a
    process's share before.
    """
    changes = _deny_link(sample, is_pcie)
    against = _deny_rest(sample, sensor_w)
    if is_known(busy_pct := sample.sm_pct) and against:
        # The driver takes all of these from one buffer.
        names = ("sm_pct", "sm_idle_ratio", "sm_busy_ratio", "memory_busy_pct")
        denied = Missing(f"the driver says {busy_pct:.0f} %, but {against}")
        changes |= dict.fromkeys(names, denied) | {"sm_samples": 0}
    elif is_known(busy_pct) and busy_pct >= REST_PCT and not computed:
        changes["processes"] = _deny_zeros(sample.processes, busy_pct)
    return replace(sample, **changes) if changes else sample


def _deny_rest(sample: GpuSample, sensor_w: Sequence[Known[float]]) -> str:
    """Say what contradicts the low utilisation of a card; "" for nothing."""
    busy_pct, active_pct = known_or(sample.sm_pct, 100.0), known_or(sample.sm_active_pct, 0.0)
    if active_pct > busy_pct + (APART_PCT if busy_pct < REST_PCT else APART_AT_WORK_PCT):
        return f"SMs were active {active_pct:.0f} % of the time"
    watts = min((one for one in (sample.power_w, *sensor_w) if is_known(one)), default=0.0)
    limit_w = known_or(sample.power_limit_w, math.inf)
    # A limit may be so low that an idle card draws it, at the clock of one.
    slow = known_or(sample.sm_clock_mhz, math.inf) < WORK_CLOCK_RATIO * known_or(sample.sm_clock_max_mhz, 0.0)
    if busy_pct >= REST_PCT or watts < max(FULL_POWER_RATIO * limit_w, LEAST_FULL_W) or slow:
        return ""
    return f"the card draws {watts:.0f} of {limit_w:.0f} W"


def _deny_zeros(listed: Known[tuple[GpuProcess, ...]], busy_pct: float) -> Known[tuple[GpuProcess, ...]]:
    told = [one.sm_pct for one in known_or(listed, ()) if is_known(one.sm_pct)]
    if isinstance(listed, Missing) or not told or any(told):
        return listed
    zeros = Missing(f"the driver says 0 % for each, but the card was busy {busy_pct:.0f} %")
    return tuple(replace(one, sm_pct=zeros) for one in listed)


def _deny_link(sample: GpuSample, is_pcie: Known[bool]) -> dict[str, Any]:
    if is_pcie is False or sample.memory_total_bytes == SHARED:
        names = ("pcie_generation", "pcie_width", "pcie_generation_max", "pcie_width_max")
        return dict.fromkeys(names, Missing("the card is not connected by PCIe"))
    moved = max(known_or(sample.pcie_tx_bytes_s, 0.0), known_or(sample.pcie_rx_bytes_s, 0.0))
    if moved <= _link_bytes_s(sample.pcie_generation, sample.pcie_width):
        return {}
    link = f"generation {sample.pcie_generation} x{sample.pcie_width}"
    denied = Missing(f"the driver says {link}, but {moved / 1e9:.2g} GB/s went over it")
    return dict.fromkeys(("pcie_generation", "pcie_width"), denied)


MAX_CARDS = 64
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DriverCard:
    """Hold a card as the kernel's driver names it; ``uuid`` is "" where it never came up."""

    minor: int
    uuid: str = ""
    name: str = "unknown card"


Listed = Known[tuple[DriverCard, ...]]  # the driver's cards by PCI address, which is NVML's order


def parse_information(text: str) -> tuple[DriverCard, ...]:
    """Parse the file of one card; nothing for one that the driver leaves out, or without a number."""
    pairs = (line.partition(":") for line in text.splitlines())
    told = {key.strip(): clean_text(value.strip(), 96) for key, _, value in pairs}
    minor, uuid = told.get("Device Minor", ""), told.get("GPU UUID", "")
    if not minor.isdecimal() or told.get("GPU Excluded") == "Yes":
        return ()
    return (DriverCard(int(minor), "" if "?" in uuid else uuid, told.get("Model", "unknown card")),)


def read_driver_cards(proc: str = "/proc") -> tuple[DriverCard, ...]:
    """Read the cards of the kernel's driver; OSError where it lists none."""
    root = f"{proc}/driver/nvidia/gpus"
    found: list[DriverCard] = []
    for bus in sorted(os.listdir(root))[:MAX_CARDS]:
        with open(f"{root}/{bus}/information", encoding="utf-8", errors="replace") as file:
            found += parse_information(file.read(_MAX_BYTES))
    return tuple(found)
