"""Write the analysis of traces as text: verdict first, then steps, devices, gaps, operators, kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results.trace import (
    Communication,
    Lost,
    Overview,
    RankTable,
    TraceFile,
    TraceReport,
    TraceVerdict,
)
from tpmon.model.results.trace_gaps import DeviceGaps
from tpmon.model.units import clean_text, count_of, format_bytes
from tpmon.report.text import WIDTH, cut, lay_columns, lay_figures, lay_paragraph
from tpmon.report.trace_tables import write_curves, write_hot_kernel, write_more, write_patterns, write_rates
from tpmon.view.trace import (
    CARDS,
    COLLECTIVES_IN_TEXT,
    COPIES,
    DEVICE_TIMES,
    GAPS,
    HOST_TIMES,
    KERNELS,
    OPERATORS,
    PEAKS_IN_TEXT,
    STEPS,
    Part,
    list_causes,
    list_parts,
    list_rank_figures,
)
from tpmon.view.trace_words import (
    HOST_CAUSES,
    KINDS,
    ms_of_us,
    name_verdict,
    pct,
    say_communication,
    say_file,
    say_idle,
    say_missing,
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
    tables = [_write_steps(file.overview), _write_breakdown(file.overview)]
    tables.append(lay_figures(CARDS, file.overview.gpus))
    tables += [_write_gaps(gaps, top) for gaps in file.gaps]
    if is_known(file.host_us):
        tables.append(_write_parts("host", list_parts(HOST_CAUSES, file.host_us)))
    if is_known(file.communication):
        tables.append(_write_communication(file.communication, top))
    operators = (*HOST_TIMES, *DEVICE_TIMES, *OPERATORS)
    laid = lay_figures(operators, file.operators, top, "--top, --csv operators")
    tables.append(laid or ["operators: none recorded"])
    tables.append(lay_figures(KERNELS, file.kernels, top, "--top, --csv kernels"))
    if file.kernels:
        rates = write_rates(file.kernels, top)
        tables += [rates] if rates else []
        tables[-1] += write_hot_kernel(file)
    tables.append(lay_figures(COPIES, file.copies))
    if file.memory.peaks:
        tables += [lay_figures(PEAKS_IN_TEXT, file.memory.peaks), write_curves(file)]
    for table in tables:
        lines += ["", *table] if table else []
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
        shown = overview.step_table[:MOST_STEPS]
        lines += lay_figures(STEPS, shown, indent=2)
        hidden = overview.steps - len(shown)
        lines += [f"  {hidden} more"] if hidden else []
    else:
        lines.append(f"steps    none marked; the whole trace is {overview.step_ms:.3f} ms")
    for note in overview.notes:
        lines += lay_paragraph("note", note)
    return lines


def _write_breakdown(overview: Overview) -> list[str]:
    """Write both views: exclusive, whose parts sum to the step, and overlapping, each kind in full."""
    parts = list_parts(KINDS, overview.breakdown_us, overview.overlapping_us)
    rows = [(one.name, ms_of_us(one.us), pct(one.share_pct), ms_of_us(one.overlapping_us)) for one in parts]
    return lay_columns(("of a step", "ms", "share", "ms, overlapping"), rows, left=("of a step",))


def _write_parts(name: str, parts: Sequence[Part], indent: int = 0) -> list[str]:
    rows = [(one.name, ms_of_us(one.us), pct(one.share_pct)) for one in parts]
    return lay_columns((name, "ms", "of the window"), rows, left=(name,), indent=indent)


def _write_gaps(gaps: DeviceGaps, top: int) -> list[str]:
    lines = [f"idle     gpu {gaps.device}: {say_idle(gaps)}, by cause"]
    lines += _write_parts("cause", list_causes(gaps), indent=2)
    return lines + lay_figures(GAPS, gaps.largest, min(top, 5), indent=2)


def _write_communication(comms: Communication, top: int) -> list[str]:
    figures = lay_figures(COLLECTIVES_IN_TEXT, comms.collectives, top, indent=2)
    return [f"comms    {say_communication(comms)}", *figures]


def _write_ranks(table: RankTable) -> list[str]:
    lines = [cut(f"ranks    {table.summary}", WIDTH)]
    lines += lay_figures(list_rank_figures(table.ranks), table.ranks, indent=2)
    lines.append("  * in all collectives of the trace; the other columns are of the mean step, in ms")
    if table.missing:
        lines.append(cut(f"  {say_missing(table)}", WIDTH))
    return lines
