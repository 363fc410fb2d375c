"""Write the analysis of traces as text: verdict first, then steps, devices, gaps, operators, kernels."""

from __future__ import annotations

from tpmon.model.known import Known, is_known, known_or, map_known
from tpmon.model.trace import (
    Breakdown,
    Communication,
    KernelRow,
    Lost,
    OperatorRow,
    Overview,
    RankTable,
    TraceFile,
    TraceReport,
    TraceVerdict,
)
from tpmon.model.trace_gaps import DeviceGaps, HostTime
from tpmon.model.trace_words import (
    CAUSES,
    KINDS,
    NA,
    ms_of_us,
    name_cause,
    name_ranks,
    name_verdict,
    number,
    pct,
    say_file,
    say_growth,
)
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.table import WIDTH, count_of, cut, lay_columns, lay_paragraph
from tpmon.report.trace_tables import (
    write_curves,
    write_hot_kernel,
    write_more,
    write_patterns,
    write_rates,
)

TOP = 10
MOST_STEPS = 12
_LINE_CHARS = 400


def write_report(report: TraceReport, top: int = TOP) -> list[str]:
    """Write every file, and the ranks beside each other where there are several."""
    lines: list[str] = []
    if is_known(report.ranks):
        lines += [*_write_ranks(report.ranks), ""]
    for file in report.files:
        lines += [*write_file(file, top), ""]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines[:-1]]


def write_file(file: TraceFile, top: int = TOP) -> list[str]:
    """Write the analysis of one trace."""
    lines = lay_paragraph("trace", say_file(file))
    lines += _write_lost(file.lost)
    lines += _write_verdict(file.verdict)
    lines += write_patterns(file.patterns)
    lines += ["", *_write_steps(file.overview)]
    lines += ["", *_write_breakdown(file.overview)]
    if file.overview.gpus:
        lines += ["", *_write_cards(file.overview)]
    for gaps in file.gaps:
        lines += ["", *_write_gaps(gaps, top)]
    if is_known(file.host_us):
        lines += ["", *_write_host(file.host_us)]
    if is_known(file.communication):
        lines += ["", *_write_communication(file.communication, top)]
    lines += ["", *_write_operators(file.operators, top)]
    if file.kernels:
        lines += ["", *_write_kernels(file.kernels, top)]
        rates = write_rates(file.kernels, top)
        lines += ["", *rates] if rates else []
        lines += write_hot_kernel(file)
    if file.copies:
        lines += ["", *_write_copies(file)]
    if file.memory.peaks:
        lines += ["", *_write_memory(file)]
        curves = write_curves(file)
        lines += ["", *curves] if curves else []
    return lines + write_more(file, top)


def _write_lost(lost: Lost) -> list[str]:
    if not (lost.events or lost.values or lost.bytes or lost.broken_off):
        return []
    parts = []
    if lost.events:
        size = f" ({format_bytes(lost.bytes)})" if lost.bytes else ""
        parts.append(f"{count_of(lost.events, 'event')} could not be read{size}")
    elif lost.bytes:
        parts.append(f"{format_bytes(lost.bytes)} could not be read")
    if lost.values:
        parts.append(f"{count_of(lost.values, 'event')} without some of its values")
    if lost.broken_off:
        parts.append(f"the file is not whole: {lost.reason}")
    return lay_paragraph("lost", "; ".join(parts))


def _write_verdict(verdict: TraceVerdict) -> list[str]:
    lines = lay_paragraph("verdict", f"{name_verdict(verdict)}: {verdict.summary}")
    for advice in verdict.advice:
        lines += lay_paragraph("try", advice)
    return lines


def _write_steps(overview: Overview) -> list[str]:
    lines = []
    if overview.steps:
        lines.append(
            f"steps    {overview.steps}, mean {overview.step_ms:.3f} ms, p50 {overview.step_p50_ms:.3f}, "
            f"p95 {overview.step_p95_ms:.3f}; marks of the host alone {overview.host_step_ms:.3f} ms"
        )
        rows = [
            (row.name, f"{row.start_ms:,.3f}", f"{row.host_ms:,.3f}", f"{row.ms:,.3f}")
            for row in overview.step_table[:MOST_STEPS]
        ]
        lines += lay_columns(("step", "start ms", "host ms", "ms"), rows, left=("step",), indent=2)
        hidden = overview.steps - len(rows)
        lines += [f"  {hidden} more"] if hidden else []
    else:
        lines.append(f"steps    none marked; the whole trace is {overview.step_ms:.3f} ms")
    for note in overview.notes:
        lines += lay_paragraph("note", note)
    return lines


def _write_breakdown(overview: Overview) -> list[str]:
    """Write both views: exclusive, whose parts sum to the step, and overlapping, each kind in full."""
    own, full = overview.breakdown_us, overview.overlapping_us
    total = sum(known_or(_part(own, key), 0.0) for key in KINDS) or 1.0
    rows = [
        (name, ms_of_us(own_us), pct(map_known(lambda us: 100 * us / total, own_us)), ms_of_us(full_us))
        for key, name in KINDS.items()
        for own_us, full_us in ((_part(own, key), _part(full, key)),)
    ]
    headers = ("of a step", "ms", "share", "ms, overlapping")
    return lay_columns(headers, rows, left=("of a step",))


def _part(breakdown: Breakdown, key: str) -> Known[float]:
    value: Known[float] = getattr(breakdown, key)
    return value


def _write_cards(overview: Overview) -> list[str]:
    rows = [
        (
            str(card.device),
            pct(card.utilization_pct),
            pct(card.busy_pct),
            pct(card.sm_efficiency_pct),
            pct(card.occupancy_reported_pct),
            pct(card.occupancy_pct),
            pct(card.tensor_core_pct),
            pct(card.tensor_core_unknown_pct),
            f"{card.kernels:,}",
        )
        for card in overview.gpus
    ]
    headers = (
        "gpu",
        "kernels %",
        "busy %",
        "est. SM eff.",
        "occ. reported",
        "recomputed",
        "tensor cores",
        "unknown",
        "kernels",
    )
    return lay_columns(headers, rows, left=("gpu",))


def _write_gaps(gaps: DeviceGaps, top: int) -> list[str]:
    window = gaps.window or 1.0
    share = pct(100 * gaps.idle / window)
    idle_ms, window_ms = ms_of_us(gaps.idle), ms_of_us(gaps.window)
    lines = [f"idle     gpu {gaps.device}: {idle_ms} of {window_ms} ms, {share}, by cause"]
    rows = [
        (CAUSES[name], ms_of_us(us), pct(map_known(lambda value: 100 * value / window, us)))
        for name, us in gaps.causes()
    ]
    lines += lay_columns(("cause", "ms", "of the window"), rows, left=("cause",), indent=2)
    if gaps.largest:
        named = [
            (
                f"{gap.start_ms:,.3f}",
                ms_of_us(gap.us),
                name_cause(gap.cause),
                " ".join(text for text in (gap.call, gap.operator, gap.source) if is_known(text) and text)
                or "-",
            )
            for gap in gaps.largest[: min(top, 5)]
        ]
        lines += lay_columns(("at ms", "gap ms", "cause", "what"), named, left=("cause", "what"), indent=2)
    return lines


def _write_host(host: HostTime) -> list[str]:
    parts = [
        ("data", host.data),
        ("communication", host.comms),
        ("sync", host.sync),
        ("allocator", host.alloc),
        ("compute", host.compute),
        ("other", host.other),
    ]
    total = sum(value for _name, value in parts) or 1.0
    rows = [(name, ms_of_us(value), f"{100 * value / total:.1f} %") for name, value in parts]
    return lay_columns(("host", "ms", "of the window"), rows, left=("host",))


def _write_communication(comms: Communication, top: int) -> list[str]:
    hidden = 100 * comms.overlap_us / comms.comm_us if comms.comm_us else 0.0
    exposed = f"{ms_of_us(comms.exposed_us)} ms exposed"
    lines = [f"comms    {ms_of_us(comms.comm_us)} ms, {hidden:.1f} % of it hidden by computation, {exposed}"]
    rows = [
        (
            row.name,
            str(row.count),
            ms_of_us(row.total_us),
            format_bytes(row.bytes) if is_known(row.bytes) else NA,
            number(row.bus_gb_s),
        )
        for row in comms.collectives[:top]
    ]
    headers = ("collective", "calls", "ms", "bytes", "bus GB/s")
    return lines + lay_columns(headers, rows, left=("collective",), indent=2)


def _write_operators(operators: tuple[OperatorRow, ...], top: int) -> list[str]:
    rows = [
        (
            ms_of_us(row.host_self_us),
            ms_of_us(row.host_total_us),
            ms_of_us(row.device_self_us),
            ms_of_us(row.device_total_us),
            f"{row.calls:,}",
            row.name,
        )
        for row in operators[:top]
    ]
    if not rows:
        return ["operators: none recorded"]
    headers = ("host self ms", "host ms", "gpu self ms", "gpu ms", "calls", "operator")
    hidden = len(operators) - len(rows)
    more = [f"  {hidden} more (--top, --csv operators)"] if hidden else []
    return lay_columns(headers, rows, left=("operator",)) + more


def _write_kernels(kernels: tuple[KernelRow, ...], top: int) -> list[str]:
    rows = [
        (
            ms_of_us(row.total_us),
            f"{row.count:,}",
            number(row.mean_us),
            number(row.max_us),
            number(row.blocks_per_sm),
            number(row.occupancy_reported_pct, 0),
            number(row.occupancy_pct, 0),
            row.tensor_cores,
            row.name,
        )
        for row in kernels[:top]
    ]
    headers = ("ms", "count", "mean us", "max us", "blocks/SM", "occ.", "recomp.", "tensor", "kernel")
    hidden = len(kernels) - len(rows)
    more = [f"  {hidden} more (--top, --csv kernels)"] if hidden else []
    return lay_columns(headers, rows, left=("tensor", "kernel")) + more


def _write_copies(file: TraceFile) -> list[str]:
    rows = [
        (ms_of_us(row.total_us), f"{row.count:,}", format_bytes(row.bytes), number(row.gb_s), row.name)
        for row in file.copies
    ]
    return lay_columns(("ms", "count", "bytes", "GB/s", "copy"), rows, left=("copy",))


def _write_memory(file: TraceFile) -> list[str]:
    rows = [
        (
            f"{row.kind} {row.device}" if row.device >= 0 else row.kind,
            format_bytes(row.allocated_bytes) if is_known(row.allocated_bytes) else NA,
            format_bytes(row.reserved_bytes) if is_known(row.reserved_bytes) else NA,
            format_bytes(row.allocations_bytes),
            format_bytes(row.frees_bytes),
            say_growth(row.growth_bytes),
            pct(row.unused_pct),
        )
        for row in file.memory.peaks
    ]
    headers = (
        "memory",
        "peak allocated",
        "peak reserved",
        "allocated in all",
        "freed in all",
        "growth",
        "unused",
    )
    return lay_columns(headers, rows, left=("memory",))


def _write_ranks(table: RankTable) -> list[str]:
    lines = [cut(f"ranks    {table.summary}", WIDTH)]
    names = name_ranks(table.ranks)
    rows = [
        (
            names[row.path],
            f"{row.step_ms:,.3f}",
            f"{row.compute_ms:,.3f}",
            f"{row.comm_ms:,.3f}",
            f"{row.overlap_ms:,.3f}",
            f"{row.other_ms:,.3f}",
            number(row.wait_ms, 3),
            number(row.transfer_ms, 3),
        )
        for row in table.ranks
    ]
    headers = ("rank", "step ms", "compute", "comms", "of it hidden", "neither", "waits*", "moves data*")
    lines += lay_columns(
        headers, rows, left=() if all(map(str.isdecimal, names.values())) else ("rank",), indent=2
    )
    lines.append("  * in all collectives of the trace; the other columns are of the mean step, in ms")
    if table.missing:
        named = ", ".join(map(str, table.missing[:20])) + (" ..." if len(table.missing) > 20 else "")
        lines.append(cut(f"  no trace of rank {named}", WIDTH))
    return lines
