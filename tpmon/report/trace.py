"""Write the analysis of traces as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.model.known import Applicable, is_known, known_or
from tpmon.model.results.trace import (
    Change,
    Communication,
    DeviceGaps,
    KernelRow,
    Lost,
    Overview,
    RankTable,
    TraceComparison,
    TraceFile,
    TraceReport,
    TraceVerdict,
)
from tpmon.model.results.trace_tables import AllocationRow, PatternRow
from tpmon.model.units import clean_text, count_of, format_bytes
from tpmon.report.text import LABEL_WIDTH, WIDTH, cut, lay_columns, lay_figures, lay_paragraph
from tpmon.view.snapshot import (
    LEGEND,
    describe_curve,
    draw_steps,
    label_curve,
    name_place,
    say_span,
    span_curves,
)
from tpmon.view.table import Figures, Row
from tpmon.view.trace import (
    ALLOCATIONS,
    CARDS,
    COLLECTIVES_IN_TEXT,
    COPIES,
    DEVICE_TIMES,
    FRAMES,
    GAPS,
    GROUPS,
    HOST_CAUSES,
    HOST_TIMES,
    KERNELS,
    KINDS,
    MODULES,
    NA,
    OPERATORS,
    PEAKS_IN_TEXT,
    PRODUCTS,
    RANGES,
    RATES,
    STEPS,
    WordPart,
    list_causes,
    list_parts,
    list_rank_figures,
    ms_of_us,
    name_change,
    name_verdict,
    pct,
    say_communication,
    say_file,
    say_idle,
    say_missing,
    say_pattern,
)

_PARTS = {
    "phase": "of a step",
    "idle": "idle by cause",
    "operator": "operator, host self",
    "kernel": "kernel",
}
_LINE_CHARS = 400


def write_comparison(comparison: TraceComparison, top: int) -> list[str]:
    """Write the verdict, then at most ``top`` operators and kernels, those that changed most first."""
    lines = lay_paragraph("against", f"{comparison.before} -> {comparison.after}")
    lines += lay_paragraph("result", comparison.summary)
    for difference in comparison.differences:
        lines += lay_paragraph("differs", difference)
    for part, name in _PARTS.items():
        rows = [_row(change) for change in comparison.changes if change.part == part][: max(top, 8)]
        if rows:
            headers = ("before ms", "after ms", "change", name)
            lines += ["", *lay_columns(headers, rows, left=(name,))]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines]


def _row(change: Change) -> tuple[str, str, str, str]:
    difference = change.after_us - change.before_us
    return (
        ms_of_us(change.before_us),
        ms_of_us(change.after_us),
        f"{difference / 1000:+,.3f}",
        name_change(change),
    )


MOST_CURVES = 8


def write_patterns(patterns: tuple[PatternRow, ...]) -> list[str]:
    """Write what costs time, each with what helps."""
    lines: list[str] = []
    for row in patterns:
        lines += lay_paragraph("pattern", say_pattern(row))
        for advice in row.advice:
            lines += lay_paragraph("", f"try: {advice}")
    return lines


def write_rates(kernels: tuple[KernelRow, ...], top: int) -> list[str]:
    """Write what kernels reach of their card, of those whose shapes tell it."""
    return lay_figures(RATES, [row for row in kernels[:top] if is_known(row.gb_s) or is_known(row.tflop_s)])


def write_hot_kernel(file: TraceFile) -> list[str]:
    """Write the longest kernel and how to profile it."""
    hot = file.hot_kernel
    if not is_known(hot):
        return []
    command = hot.command if is_known(hot.command) else NA
    return [
        *lay_paragraph("hottest", f"{hot.share_pct:.1f} % of the kernels' time: {hot.name[:160]}"),
        f"  {command}",
    ]


def _by_device_and_peak(row: AllocationRow) -> tuple[bool, str, int, int, int]:
    """Put the cards first, and of each what holds most."""
    at_peak = known_or(row.at_peak_bytes, 0)
    return row.kind == "cpu", row.kind, row.device, -at_peak, -row.allocated_bytes


Writer = Callable[[TraceFile, int], list[str]]


def _lay(name: str, figures: Figures[Row], read: Callable[[TraceFile], Applicable[Sequence[Row]]]) -> Writer:
    def write(file: TraceFile, top: int) -> list[str]:
        rows = read(file)
        return lay_figures(figures, rows, top, f"--top, --csv {name}") if is_known(rows) else []

    return write


_NO_STACKS = "none recorded (with_stack=True)"
_TABLES: dict[str, tuple[Writer, str]] = {
    "patterns": (lambda file, _top: write_patterns(file.patterns), "none seen"),
    "products": (_lay("products", PRODUCTS, lambda file: file.products), "none recorded"),
    "rates": (lambda file, top: write_rates(file.kernels, top), "no shapes (record_shapes=True)"),
    "modules": (
        _lay("modules", MODULES, lambda file: file.modules),
        "none recorded (with_stack=True and modules called)",
    ),
    "frames": (_lay("frames", FRAMES, lambda file: file.frames), _NO_STACKS),
    "allocations": (
        _lay(
            "allocations", ALLOCATIONS, lambda file: sorted(file.memory.by_operator, key=_by_device_and_peak)
        ),
        "none recorded (profile_memory=True)",
    ),
    "shapes": (_lay("shapes", GROUPS, lambda file: file.shapes), "none recorded (record_shapes=True)"),
    "lines": (_lay("lines", GROUPS, lambda file: file.lines), _NO_STACKS),
    "ranges": (
        _lay("ranges", RANGES, lambda file: file.ranges),
        "none recorded (torch.profiler.record_function)",
    ),
    "curve": (lambda file, _top: write_curves(file), "none recorded (profile_memory=True)"),
}
"""What writes each table, and why there may be none."""
_BELOW = ("ranges", "products", "modules", "frames", "allocations")
"""Tables below the others, in their order."""
TEXT_TABLES = tuple(_TABLES)
"""Tables that can be written alone as text."""


def write_table(file: TraceFile, table: str, top: int) -> list[str]:
    """Write one table of ``TEXT_TABLES`` of one file; where it has no row, the reason."""
    write, without = _TABLES[table]
    return write(file, top) or [f"{table}: {without}"]


def write_tables(report: TraceReport, table: str, top: int) -> list[str]:
    """Write one table of ``TEXT_TABLES`` alone, of each file."""
    lines: list[str] = []
    for file in report.files:
        lines += [*lay_paragraph("trace", file.path), *write_table(file, table, top), ""]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines[:-1]]


def write_more(file: TraceFile, top: int) -> list[str]:
    """Write the further tables that a trace has, each after an empty line."""
    parts = [_TABLES[name][0](file, top) for name in _BELOW]
    return [line for part in parts if part for line in ("", *part)]


def write_curves(file: TraceFile) -> list[str]:
    """Draw the memory of each device over time; of more devices than these only the CSV tells."""
    curves = file.memory.curves
    steps = file.overview.step_table if file.overview.steps else ()
    lines: list[str] = []
    columns = WIDTH - LABEL_WIDTH
    for curve in curves[:MOST_CURVES]:
        span = span_curves(curves, steps)
        lines += ["", *lay_paragraph(name_place(curve.kind, curve.device), describe_curve(curve))]
        ruler = draw_steps(steps, span, columns)
        lines += [f"{'step':{LABEL_WIDTH}}{ruler}"] if ruler else []
        lines += [f"{label:{LABEL_WIDTH}}{row}".rstrip() for label, row in label_curve(curve, span, columns)]
    if not lines:
        return []
    hidden = len(curves) - MOST_CURVES
    more = [f"  {hidden} more (--csv curve)"] if hidden > 0 else []
    return [f"memory over {say_span(span)}: {LEGEND}", *lines[1:], *more]


TOP = 10
MOST_STEPS = 12


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


def _write_parts(name: str, parts: Sequence[WordPart], indent: int = 0) -> list[str]:
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
