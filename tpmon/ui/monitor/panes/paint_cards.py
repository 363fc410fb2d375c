"""Paint everything known of each card: the GPU pane when it has the screen to itself."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.model.gpu import GpuProcess, GpuSample, MigInstance, name_recovery
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.model.units import format_bytes, format_seconds, say_pct
from tpmon.ui.kit.cells import cut
from tpmon.ui.kit.table import explain, paint_pairs, show
from tpmon.ui.monitor.alerts import age_of, card_ink, list_held
from tpmon.ui.monitor.panes.gpus import order_cards, write_pids
from tpmon.ui.monitor.state import Ink, Line, ViewState


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _mhz(value: float) -> str:
    return f"{value:.0f} MHz"


def _degrees(value: float) -> str:
    return f"{value:.0f} C"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _pair(used: Known[float], limit: Known[float], write: Callable[[float], str]) -> str:
    if isinstance(used, Missing):
        bound = f", at most {write(limit)}" if is_known(limit) else ""
        return f"? {used.reason}{bound}"
    return f"{write(used)} of {explain(limit, write)}"


def _rates(sent: Known[float], received: Known[float]) -> str:
    if isinstance(sent, Missing) and isinstance(received, Missing):
        return f"? {sent.reason}"
    return f"sent {explain(sent, format_bytes)}/s, received {explain(received, format_bytes)}/s"


def describe_card(view: ViewState, card: GpuSample) -> list[tuple[str, str]]:
    """Return everything known of one card as labels and values; a reason for what is missing."""
    return [
        ("state", f"{card.state.value}, last answer {format_seconds(age_of(view, card.age_s))} ago"),
        ("SM busy (NVML)", _busy(card)),
        ("SM active (GPM)", explain(card.sm_active_pct, say_pct)),
        ("occupancy", explain(card.occupancy_pct, say_pct)),
        ("tensor cores", explain(card.tensor_pct, say_pct)),
        ("DRAM", explain(card.dram_pct, say_pct)),
        ("memory busy", explain(card.memory_busy_pct, say_pct)),
        ("memory used", _pair(card.memory_used_bytes, card.memory_total_bytes, format_bytes)),
        ("power", _power(card)),
        ("SM clock", _pair(card.sm_clock_mhz, card.sm_clock_max_mhz, _mhz)),
        ("memory clock", _pair(card.memory_clock_mhz, card.memory_clock_max_mhz, _mhz)),
        ("temperature", _temperatures(card)),
        ("held down by", _throttle(card)),
        ("PCIe link", _pcie(card)),
        ("PCIe", _rates(card.pcie_tx_bytes_s, card.pcie_rx_bytes_s)),
        ("NVLink", _rates(card.nvlink_tx_bytes_s, card.nvlink_rx_bytes_s)),
        ("ECC uncorrected", explain(card.ecc_uncorrected, str)),
        ("rows to remap", explain(card.remapped_rows_pending, _yes)),
        ("remapping failed", explain(card.remapped_rows_failed, _yes)),
        ("recovery action", explain(card.recovery_action, name_recovery)),
        ("Xids", " ".join(str(code) for code in card.xids) or "none since attaching"),
        ("MIG", explain(card.mig, lambda on: "on" if on else "off")),
        *((f"  instance {one.gpu_instance}", _instance(one)) for one in card.mig_instances),
        ("job's PIDs", write_pids(card) if is_known(card.pids) else f"? {card.pids.reason}"),
        ("processes", _processes(card)),
    ]


def _busy(card: GpuSample) -> str:
    if not is_known(card.sm_pct):
        return f"? {card.sm_pct.reason}"
    if not card.sm_samples:
        return f"{say_pct(card.sm_pct)}, one-shot value"
    idle = explain(map_known(lambda ratio: 100 * ratio, card.sm_idle_ratio), say_pct)
    busy = explain(map_known(lambda ratio: 100 * ratio, card.sm_busy_ratio), say_pct)
    return f"{say_pct(card.sm_pct)}, mean of {card.sm_samples} samples, {idle} of them idle, {busy} busy"


def _power(card: GpuSample) -> str:
    told = _pair(card.power_w, card.power_limit_w, _watts)
    return f"{told}, from {card.power_source}" if is_known(card.power_source) else told


def _temperatures(card: GpuSample) -> str:
    core, memory = explain(card.temperature_c, _degrees), explain(card.memory_temperature_c, _degrees)
    return f"{core}, memory {memory}, below its limit by {explain(card.temperature_margin_c, _degrees)}"


def _throttle(card: GpuSample) -> str:
    if isinstance(card.throttle_known, Missing):
        return f"? {card.throttle_known.reason}"
    told = [f"{one.reason} {say_pct(one.pct)} of the window ({one.source})" for one in card.throttle_shares]
    told += [f"{reason} now" for reason in card.throttle]
    return ("! " if list_held(card) else "") + ", ".join(told) if told else "nothing"


def _pcie(card: GpuSample) -> str:
    if isinstance(card.pcie_generation, Missing) and isinstance(card.pcie_width, Missing):
        return f"? {card.pcie_generation.reason}"
    generation = (
        f"generation {explain(card.pcie_generation, str)} of {explain(card.pcie_generation_max, str)}"
    )
    return f"{generation}, width {explain(card.pcie_width, str)} of {explain(card.pcie_width_max, str)}"


def _instance(one: MigInstance) -> str:
    memory = _pair(one.memory_used_bytes, one.memory_total_bytes, format_bytes)
    return f"{memory}, SM active {explain(one.sm_active_pct, say_pct)}"


def _processes(card: GpuSample) -> str:
    if not is_known(card.processes):
        return f"? {card.processes.reason}"
    return ", ".join(_process(one) for one in card.processes) or "none"


def _process(one: GpuProcess) -> str:
    other = "" if one.of_job else " (not this job)"
    return f"{one.pid}{other} {show(one.used_bytes, format_bytes)}"


def paint_gpus_in_full(view: ViewState, width: int) -> list[Line]:
    """Paint everything known of every card, below each other."""
    frame = view.frame
    if not is_known(frame):
        return []
    if not is_known(frame.gpus):
        return paint_pairs([("GPUs", f"? {frame.gpus.reason}")], width)
    driver = frame.driver
    if is_known(driver):
        told = f"{explain(driver.driver_version, str)}, CUDA {explain(driver.cuda_version, str)}"
    else:
        told = f"? {driver.reason}"
    lines = paint_pairs([("driver", told)], width)
    for card in order_cards(frame.gpus):
        ink = card_ink(card)
        heading = cut(f" GPU {card.index}  {card.name}  {card.uuid}", width)
        lines.append(((heading, ink if ink is not Ink.PLAIN else Ink.STRONG),))
        lines += paint_pairs(describe_card(view, card), width)
    return lines
