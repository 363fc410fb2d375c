"""Describe the cards of a machine: their table, what throttles each, and everything known of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.model import gpu
from tpmon.model.known import Applicable, Known, Missing, NotApplicable, is_known, known_or, map_known
from tpmon.model.units import format_bytes, format_pct, format_seconds, say_pct
from tpmon.view.layout import Cell, Column, Ink, explain, show, show_pair


def order_cards(cards: Sequence[gpu.GpuSample]) -> list[gpu.GpuSample]:
    """Return the cards, worst first: the job's before others, failed, throttled, then by index."""
    urgency = {Ink.BAD: 0, Ink.WARN: 1}
    return sorted(cards, key=lambda card: (is_foreign(card), urgency.get(card_ink(card), 2), card.index))


def is_foreign(card: gpu.GpuSample) -> bool:
    """Tell whether nothing of the job is on a card."""
    return is_known(card.pids) and not card.pids


def write_throttle(card: gpu.GpuSample) -> str:
    """Write what holds the clocks down, with the share of the window: "power cap 34 %, thermal"."""
    if isinstance(card.throttle_known, Missing):
        return "?"
    shares = {share.reason: share.pct for share in card.throttle_shares if share.pct > 0}
    now = dict.fromkeys(card.throttle)
    told = [f"{reason} {format_pct(pct)} %" for reason, pct in shares.items()]
    told += [f"{reason} now" for reason in now if reason not in shares]
    return ", ".join(told)


def say_troubles(card: gpu.GpuSample) -> str:
    """Write what is wrong with a card and what holds it down, "-" for nothing."""
    told = []
    if card.state is not gpu.GpuState.OK:
        told.append(f"{card.state.value.upper()}: last answer {format_seconds(card.age_s)} ago")
    if card.xids:
        told.append("Xid " + " ".join(str(code) for code in card.xids[-3:]))
    if card.remapped_rows_failed is True:
        told.append("row remapping failed")
    if card.remapped_rows_pending is True:
        told.append("row remap pending")
    if is_known(card.ecc_uncorrected) and card.ecc_uncorrected:
        told.append(f"{card.ecc_uncorrected} uncorrected memory errors")
    if is_known(card.recovery_action) and card.recovery_action:
        told.append(f"asks to {gpu.name_recovery(card.recovery_action)}")
    throttle = write_throttle(card)
    if throttle:
        told.append(throttle)
    return "; ".join(told) or "-"


def write_pids(card: gpu.GpuSample) -> str:
    """Write the job's PIDs on a card; "visible" where they may merely hold it open."""
    if not is_known(card.pids):
        return "?"
    told = " ".join(str(pid) for pid in card.pids)
    return (f"{told} (visible)" if card.pids_are_visible_only else told) if told else "-"


_whole = "{:.0f}".format


def list_card_columns() -> list[Column[gpu.GpuSample]]:
    """Return the columns of the table of cards in a text report."""

    def why(card: gpu.GpuSample) -> Cell:
        ink, text = card_ink(card), say_troubles(card)
        return (f"! {text}", ink) if ink is not Ink.PLAIN else text

    def memory(card: gpu.GpuSample) -> str:
        return show_pair(card.memory_used_bytes, card.memory_total_bytes, format_bytes)

    return [
        Column("GPU", 3, 0, lambda c: str(c.index)),
        Column("SM %", 4, 1, lambda c: show(c.sm_pct, format_pct)),
        Column("act %", 5, 11, lambda c: show(c.sm_active_pct, format_pct)),
        Column("memory", 11, 6, memory),
        Column("mem busy %", 10, 13, lambda c: show(c.memory_busy_pct, format_pct)),
        Column("W/limit", 8, 3, lambda c: show_pair(c.power_w, c.power_limit_w, _whole)),
        Column("MHz/max", 9, 4, lambda c: show_pair(c.sm_clock_mhz, c.sm_clock_max_mhz, _whole)),
        Column("C", 3, 5, lambda c: show(c.temperature_c, _whole)),
        Column("PIDs", MOST_PIDS, 10, write_pids, right=False),
        Column("held down by", 8, 2, why, right=False, grows=True),
    ]


MOST_PIDS = 40
"""Cells of the PIDs of a card in a text report."""


def summarize_cards(cards: Sequence[gpu.GpuSample]) -> str:
    """Write the ranges of some cards in one line: "SM 94 to 97 %, 598 to 640 W, 58 to 63 C"."""
    told = [f"! GPU {card.index} {say_troubles(card)}" for card in cards if card_ink(card) is not Ink.PLAIN]
    for before, read, after in _RANGES:
        values = [value for card in cards if is_known(value := read(card))]
        if values:
            low, high = f"{min(values):.0f}", f"{max(values):.0f}"
            told.append(f"{before}{low if low == high else f'{low} to {high}'}{after}")
        elif before:
            told.append(f"{before}?")
    if all(card_ink(card) is Ink.PLAIN and is_known(card.throttle_known) for card in cards):
        told.append("none held down")
    return ", ".join(told)


_RANGES: tuple[tuple[str, Callable[[gpu.GpuSample], Known[float]], str], ...] = (
    ("SM ", lambda card: card.sm_pct, " %"),
    ("", lambda card: card.power_w, " W"),
    ("", lambda card: card.sm_clock_mhz, " MHz"),
    ("", lambda card: card.temperature_c, " C"),
)


def card_ink(card: gpu.GpuSample) -> Ink:
    """Return the ink of a card: bad where lost or failed, warning where throttled, late or in need."""
    failed = any(map(gpu.is_card_fault, card.xids)) or card.remapped_rows_failed is True
    if card.state is gpu.GpuState.LOST or failed:
        return Ink.BAD
    told = any(xid not in gpu.HARMLESS_XIDS for xid in card.xids) or card.remapped_rows_pending is True
    counted = known_or(card.ecc_uncorrected, 0) > 0 or known_or(card.recovery_action, 0) != 0
    if card.state is gpu.GpuState.STALE or list_held(card) or told or counted:
        return Ink.WARN
    return Ink.PLAIN


def list_held(card: gpu.GpuSample) -> tuple[str, ...]:
    """Return the reasons that hold the clocks down now, without normal ones."""
    return tuple(reason for reason in card.throttle if reason not in gpu.NORMAL_REASONS)


def _pair(used: Known[float], limit: Known[float], write: Callable[[float], str]) -> str:
    if isinstance(used, Missing):
        bound = f", at most {write(limit)}" if is_known(limit) else ""
        return f"? {used.reason}{bound}"
    return f"{write(used)} of {explain(limit, write)}"


def _rates(sent: Known[float], received: Known[float]) -> str:
    if isinstance(sent, Missing) and isinstance(received, Missing):
        return f"? {sent.reason}"
    return f"sent {explain(sent, format_bytes)}/s, received {explain(received, format_bytes)}/s"


_watts = "{:.0f} W".format
_mhz = "{:.0f} MHz".format
_degrees = "{:.0f} C".format


def describe_card(card: gpu.GpuSample, age_s: float) -> list[tuple[str, str]]:
    """Return everything known of one card as labels and values, with reasons for what is missing."""

    def say_yes(value: bool) -> str:
        return "yes" if value else "no"

    memory = explain(card.memory_temperature_c, _degrees)
    margin = f"below its limit by {explain(card.temperature_margin_c, _degrees)}"
    source = f", from {card.power_source}" if is_known(card.power_source) else ""
    return [
        ("state", f"{card.state.value}, last answer {format_seconds(age_s)} ago"),
        ("SM busy (NVML)", _busy(card)),
        ("SM active (GPM)", explain(card.sm_active_pct, say_pct)),
        ("occupancy", explain(card.occupancy_pct, say_pct)),
        ("tensor cores", explain(card.tensor_pct, say_pct)),
        ("DRAM", explain(card.dram_pct, say_pct)),
        ("memory busy", explain(card.memory_busy_pct, say_pct)),
        ("video and JPEG decoders", f"{_engine(card.decoder_pct)}, {_engine(card.jpeg_pct)}"),
        ("memory used", _pair(card.memory_used_bytes, card.memory_total_bytes, format_bytes)),
        ("power", f"{_pair(card.power_w, card.power_limit_w, _watts)}{source}"),
        ("SM clock", _pair(card.sm_clock_mhz, card.sm_clock_max_mhz, _mhz)),
        ("memory clock", _pair(card.memory_clock_mhz, card.memory_clock_max_mhz, _mhz)),
        ("temperature", f"{explain(card.temperature_c, _degrees)}, memory {memory}, {margin}"),
        ("held down by", _throttle(card)),
        ("PCIe link", _pcie(card)),
        ("PCIe", _rates(card.pcie_tx_bytes_s, card.pcie_rx_bytes_s)),
        ("NVLink", _rates(card.nvlink_tx_bytes_s, card.nvlink_rx_bytes_s)),
        ("ECC uncorrected", explain(card.ecc_uncorrected, str)),
        ("rows to remap", explain(card.remapped_rows_pending, say_yes)),
        ("remapping failed", explain(card.remapped_rows_failed, say_yes)),
        ("recovery action", explain(card.recovery_action, gpu.name_recovery)),
        ("Xids", " ".join(str(code) for code in card.xids) or "none since attaching"),
        ("MIG", explain(card.mig, lambda on: "on" if on else "off")),
        *map(_describe_instance, card.mig_instances),
        ("job's PIDs", write_pids(card) if is_known(card.pids) else f"? {card.pids.reason}"),
        ("processes", explain(card.processes, lambda all_: ", ".join(map(_say_process, all_)) or "none")),
    ]


def _engine(pct: Applicable[float]) -> str:
    return "not read" if isinstance(pct, NotApplicable) else explain(pct, say_pct)


def _busy(card: gpu.GpuSample) -> str:
    if not is_known(card.sm_pct):
        return f"? {card.sm_pct.reason}"
    if not card.sm_samples:
        return f"{say_pct(card.sm_pct)}, one-shot value"
    idle = explain(map_known(lambda ratio: 100 * ratio, card.sm_idle_ratio), say_pct)
    busy = explain(map_known(lambda ratio: 100 * ratio, card.sm_busy_ratio), say_pct)
    return f"{say_pct(card.sm_pct)}, mean of {card.sm_samples} samples, {idle} of them idle, {busy} busy"


def _throttle(card: gpu.GpuSample) -> str:
    if isinstance(card.throttle_known, Missing):
        return f"? {card.throttle_known.reason}"
    told = [f"{one.reason} {say_pct(one.pct)} of the window ({one.source})" for one in card.throttle_shares]
    told += [f"{reason} now" for reason in card.throttle]
    return ("! " if list_held(card) else "") + ", ".join(told) if told else "nothing"


def _pcie(card: gpu.GpuSample) -> str:
    if isinstance(card.pcie_generation, Missing) and isinstance(card.pcie_width, Missing):
        return f"? {card.pcie_generation.reason}"
    newest = explain(card.pcie_generation_max, str)
    generation = f"generation {explain(card.pcie_generation, str)} of {newest}"
    return f"{generation}, width {explain(card.pcie_width, str)} of {explain(card.pcie_width_max, str)}"


def _describe_instance(one: gpu.MigInstance) -> tuple[str, str]:
    memory = _pair(one.memory_used_bytes, one.memory_total_bytes, format_bytes)
    return f"  instance {one.gpu_instance}", f"{memory}, SM active {explain(one.sm_active_pct, say_pct)}"


def _say_process(one: gpu.GpuProcess) -> str:
    other = "" if one.of_job else " (not this job)"
    return f"{one.pid}{other} {show(one.used_bytes, format_bytes)}"
