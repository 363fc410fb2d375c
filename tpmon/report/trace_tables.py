"""Write the further tables of a trace: patterns, products, rates of kernels, modules, Python, allocations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.model.known import Applicable, is_known, known_or
from tpmon.model.results.trace import KernelRow, TraceFile, TraceReport
from tpmon.model.results.trace_tables import AllocationRow, PatternRow
from tpmon.model.units import clean_text
from tpmon.report.text import LABEL_WIDTH, WIDTH, lay_figures, lay_paragraph
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
from tpmon.view.trace import ALLOCATIONS, FRAMES, GROUPS, MODULES, PRODUCTS, RANGES, RATES
from tpmon.view.trace_words import NA, say_pattern

_LINE_CHARS = 400
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
