"""Write what the machine does for a job as text: CPU, memory, bytes moved, GPUs, network."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuSample, GpuState, name_recovery
from tpmon.model.known import Missing, NotApplicable, is_known, known_or
from tpmon.model.text.job_words import WAITING_FROM
from tpmon.model.units import (
    count_of,
    format_bytes,
    format_pct,
    format_rate,
    format_seconds,
    say_bytes_s,
    say_pct,
    say_ratio,
)
from tpmon.report.text import (
    TextReading,
    lay_columns,
    lay_paragraph,
    lay_phrases,
    sum_known,
    write_runnable,
)

MOST_INTERFACES = 3


def _write_whole(value: float) -> str:
    return f"{value:.0f}"


def _write_cores(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:.1f}"


def write_cpu(frame: Frame, reading: TextReading) -> list[str]:
    """Say what the job may use, uses and asks for, and whose pool it is."""
    cpu = frame.cpu
    budget = reading.show("CPU budget", cpu.budget_cores, "{:g} CPUs".format)
    waits = reading.show("wait share", cpu.run_delay_ratio, say_ratio)
    if is_known(cpu.runnable) and cpu.runnable < WAITING_FROM:
        waits = "-"
    lines = lay_phrases(
        "cpu",
        (
            f"budget {budget} ({cpu.budget_reason})",
            f"used {reading.show('CPU used', cpu.used_cores, _write_cores)}",
            f"runnable {reading.show('runnable threads', cpu.runnable, write_runnable)}",
            f"waiting for a CPU {waits} of thread time",
            f"throttled {reading.show('throttling', cpu.throttled_ratio, say_ratio)} of periods",
            f"pressure {reading.show('CPU pressure', cpu.psi_some_pct, say_pct)}",
        ),
    )
    pool = cpu.pool
    if is_known(pool):
        library = reading.show("library of the pool", pool.library)
        ratio = reading.show("oversubscription", cpu.oversubscription, "{:.1f}x".format)
        lines += lay_paragraph(
            "",
            f"largest thread pool: {pool.role.value} {pool.pid}, {library}, {pool.threads} threads,"
            f" {pool.runnable:.1f} runnable; all pools {ratio} the budget",
        )
    host = lay_phrases(
        "",
        (
            f"host {cpu.host_cores} CPUs",
            f"used {reading.show('CPU used of the host', cpu.host_used_cores, _write_cores)}",
            f"load {reading.show('load', cpu.host_load, write_runnable)}",
            f"stolen {reading.show('stolen time', cpu.host_steal_pct, say_pct)}",
        ),
    )
    return lines + host


def write_memory(frame: Frame, reading: TextReading) -> list[str]:
    """Say what memory the job holds, of what limit, and how it grows."""
    memory = frame.memory
    used = reading.show("memory used", memory.used_bytes, format_bytes)
    if not isinstance(memory.limit_bytes, NotApplicable):
        limit = reading.show("memory limit", memory.limit_bytes, format_bytes)
        used += f" of {limit} ({memory.limit_source})"
    growth = reading.show("memory growth", memory.anon_growth_bytes_s, say_bytes_s)
    free = reading.show("free memory", memory.host_available_bytes, format_bytes)
    total = reading.show("memory of the host", memory.host_total_bytes, format_bytes)
    words = [
        f"RSS {_at_least(frame)}{reading.show('RSS', memory.rss_bytes, format_bytes)}",
        f"anonymous {reading.show('anonymous memory', memory.anon_bytes, format_bytes)}, growth {growth}",
        f"used {used}",
        f"swap {reading.show('swap', memory.swap_bytes, format_bytes)}",
        f"major faults {reading.show('major faults', memory.major_faults_s, format_rate)}/s",
        f"pressure {reading.show('memory pressure', memory.psi_some_pct, say_pct)}",
        f"OOM kills {reading.show('OOM kills', memory.oom_kills)}",
        f"host {free} free of {total}",
    ]
    if is_known(memory.shm):
        words.append(
            f"{memory.shm.path} {format_bytes(memory.shm.used_bytes)}"
            f" of {format_bytes(memory.shm.total_bytes)}"
        )
    else:
        reading.show("shared memory", memory.shm)
    return lay_phrases("memory", words)


def _at_least(frame: Frame) -> str:
    """Return what stands before a sum over processes of which some were not read."""
    return "at least " if frame.target.unread else ""


def write_io(frame: Frame, reading: TextReading) -> list[str]:
    """Say how many bytes the job asks for and how many the devices move."""
    asked_read = sum_known([p.asked_read_bytes_s for p in frame.processes])
    asked_write = sum_known([p.asked_write_bytes_s for p in frame.processes])
    device_read = sum_known([p.device_read_bytes_s for p in frame.processes])
    device_write = sum_known([p.device_write_bytes_s for p in frame.processes])
    text = (
        f"asked for {_at_least(frame)}{reading.show('bytes read', asked_read, say_bytes_s)} read,"
        f" {reading.show('bytes written', asked_write, say_bytes_s)} written;"
        f" device {_at_least(frame)}{reading.show('device reads', device_read, say_bytes_s)} read,"
        f" {reading.show('device writes', device_write, say_bytes_s)} written"
    )
    return lay_paragraph("io", text)


def write_card_cells(card: GpuSample, reading: TextReading) -> list[str]:
    """Write utilisation, power and clock of a card."""
    return [
        reading.show("SM %", card.sm_pct, format_pct),
        reading.show("power", card.power_w, _write_whole),
        reading.show("SM clock", card.sm_clock_mhz, _write_whole),
    ]


def write_gpus(frame: Frame, reading: TextReading) -> list[str]:
    """Write the table of the cards, or the one line that says why there is none."""
    if isinstance(frame.gpus, Missing):
        return lay_paragraph("gpus", f"not read: {frame.gpus.reason}")
    if not frame.gpus:
        return lay_paragraph("gpus", "none on this machine")
    names = list(dict.fromkeys(card.name for card in frame.gpus))
    words = [f"{len(frame.gpus)} x {', '.join(names)}"]
    if is_known(frame.driver):
        words.append(f"driver {reading.show('driver version', frame.driver.driver_version)}")
        words.append(f"CUDA {reading.show('CUDA version', frame.driver.cuda_version)}")
    headers = (
        "GPU",
        "SM %",
        "active",
        "mem %",
        "memory",
        "W",
        "limit",
        "MHz",
        "max",
        "C",
        "PIDs of the job",
    )
    rows = []
    for card in frame.gpus:
        used = reading.show("GPU memory", card.memory_used_bytes, format_bytes)
        total = reading.show("GPU memory", card.memory_total_bytes, format_bytes)
        rows.append(
            (
                str(card.index),
                reading.show("SM %", card.sm_pct, format_pct),
                reading.show("SM activity", card.sm_active_pct, format_pct),
                reading.show("memory busy", card.memory_busy_pct, format_pct),
                f"{used}/{total}",
                reading.show("power", card.power_w, _write_whole),
                reading.show("power limit", card.power_limit_w, _write_whole),
                reading.show("SM clock", card.sm_clock_mhz, _write_whole),
                reading.show("SM clock maximum", card.sm_clock_max_mhz, _write_whole),
                reading.show("temperature", card.temperature_c, _write_whole),
                _name_pids(card, reading),
            )
        )
    lines = [*lay_phrases("gpus", words), *lay_columns(headers, rows, (headers[-1],), 2)]
    for card in frame.gpus:
        remarks = _list_remarks(card)
        if remarks:
            lines += lay_phrases("", [f"GPU {card.index}: {remarks[0]}", *remarks[1:]])
    return lines


def _name_pids(card: GpuSample, reading: TextReading) -> str:
    pids = reading.show("processes on the card", card.pids, lambda found: " ".join(map(str, found)) or "none")
    return f"{pids} (by open device files)" if card.pids_are_visible_only else pids


def _list_remarks(card: GpuSample) -> list[str]:
    remarks = []
    if card.state is not GpuState.OK:
        remarks.append(f"{card.state.value}, read {format_seconds(card.age_s)} ago")
    if card.throttle:
        remarks.append(f"clocks held down by {', '.join(card.throttle)}")
    remarks += [f"Xid {code}" for code in card.xids[-3:]]
    if is_known(card.ecc_uncorrected) and card.ecc_uncorrected:
        remarks.append(f"{card.ecc_uncorrected} uncorrected memory errors")
    if is_known(card.recovery_action) and card.recovery_action:
        remarks.append(f"asks to {name_recovery(card.recovery_action)}")
    if card.mig_instances:
        remarks.append(count_of(len(card.mig_instances), "MIG instance"))
    return remarks


def write_network(frame: Frame, reading: TextReading) -> list[str]:
    """Say what the busiest interfaces and the sockets of the job move."""
    lines = []
    if isinstance(frame.network, Missing):
        reading.show("network", frame.network)
    else:
        used = sorted(frame.network, key=lambda n: not known_or(n.used_by_job, False))
        texts = [
            f"{n.interface} in {reading.show('network', n.receive_bytes_s, say_bytes_s)}"
            f" out {reading.show('network', n.send_bytes_s, say_bytes_s)}"
            + (" (the job's)" if known_or(n.used_by_job, False) else "")
            for n in used[:MOST_INTERFACES]
        ]
        if texts:
            lines += lay_phrases("network", texts)
    sockets = frame.sockets
    if isinstance(sockets, Missing):
        reading.show("sockets", sockets)
    elif sockets.connections:
        lines += lay_paragraph(
            "sockets",
            f"{count_of(sockets.connections, 'TCP connection')},"
            f" last sent {reading.show('last send', sockets.last_send_s, format_seconds)} ago,"
            f" last received {reading.show('last receive', sockets.last_receive_s, format_seconds)} ago",
        )
    return lines
