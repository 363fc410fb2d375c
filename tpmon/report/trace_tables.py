"""Write the further tables of a trace: patterns, products, rates of kernels, modules, Python, allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tpmon.model.known import Applicable, is_known
from tpmon.model.memory_chart import (
    LEGEND,
    ROWS,
    describe_curve,
    draw_curve,
    draw_steps,
    name_place,
    say_span,
    span_curves,
    top_of,
)
from tpmon.model.trace import KernelRow, TraceFile, TraceReport
from tpmon.model.trace_tables import (
    AllocationRow,
    FrameRow,
    ModuleRow,
    OperatorGroupRow,
    PatternRow,
    ProductRow,
    RangeRow,
)
from tpmon.model.trace_words import NA, ms_of_us, number, pct, size
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.table import LABEL_WIDTH, WIDTH, lay_columns, lay_paragraph

_LINE_CHARS = 400
MOST_CURVES = 8
_NO_STACKS = "none recorded (with_stack=True)"
_NO_MODULES = "none recorded (with_stack=True and modules called)"


def lay_top(
    headers: Sequence[str], rows: Sequence[Sequence[str]], top: int, left: Iterable[str], name: str
) -> list[str]:
    """Lay the first rows of a table and say how many more there are; nothing without rows."""
    if not rows:
        return []
    hidden = len(rows) - top
    more = [f"  {hidden} more (--top, --csv {name})"] if hidden > 0 else []
    return lay_columns(headers, rows[:top], left=left) + more


def write_patterns(patterns: tuple[PatternRow, ...]) -> list[str]:
    """Write what costs time, each with what helps."""
    lines: list[str] = []
    for row in patterns:
        lines += lay_paragraph("pattern", f"{row.name}, {pct(row.share_pct)} of the window: {row.seen}")
        for advice in row.advice:
            lines += lay_paragraph("", f"try: {advice}")
    return lines


def write_products(rows: tuple[ProductRow, ...], top: int) -> list[str]:
    """Write matrix products, convolutions and attention by number type."""
    cells = [
        (
            ms_of_us(row.total_us),
            pct(row.share_pct),
            f"{row.calls:,}",
            number(row.tflop_s, 2),
            pct(row.peak_pct),
            pct(row.misaligned_pct),
            row.dtype if is_known(row.dtype) else NA,
            row.kind,
        )
        for row in rows
    ]
    headers = ("ms", "share", "calls", "TFLOP/s", "of peak", "misaligned", "type", "product")
    return lay_top(headers, cells, top, ("type", "product"), "products")


def write_rates(kernels: tuple[KernelRow, ...], top: int) -> list[str]:
    """Write what kernels reach of their card, of those whose shapes tell it."""
    rows = [
        (
            number(row.gb_s, 0),
            pct(row.gb_s_peak_pct),
            number(row.tflop_s, 2),
            pct(row.tflop_s_peak_pct),
            row.bound_by if is_known(row.bound_by) else NA,
            row.limited_by if is_known(row.limited_by) else NA,
            row.name,
        )
        for row in kernels[:top]
        if is_known(row.gb_s) or is_known(row.tflop_s)
    ]
    headers = ("GB/s", "of peak", "TFLOP/s", "of peak ", "held by", "occ. limit", "kernel")
    return lay_columns(headers, rows, left=("held by", "occ. limit", "kernel")) if rows else []


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


def write_modules(rows: tuple[ModuleRow, ...], top: int) -> list[str]:
    """Write the modules of the model."""
    cells = [
        (
            ms_of_us(row.forward_total_us),
            ms_of_us(row.backward_total_us),
            ms_of_us(row.forward_self_us),
            ms_of_us(row.host_total_us),
            ms_of_us(row.host_self_us),
            f"{row.calls:,}",
            f"{row.name} in {row.inside}" if is_known(row.inside) else row.name,
        )
        for row in rows
    ]
    headers = ("gpu fwd ms", "bwd ms", "fwd self ms", "host ms", "host self ms", "calls", "module")
    return lay_top(headers, cells, top, ("module",), "modules") if rows else [f"modules: {_NO_MODULES}"]


def write_frames(rows: tuple[FrameRow, ...], top: int) -> list[str]:
    """Write the Python functions."""
    cells = [
        (
            ms_of_us(row.self_us),
            ms_of_us(row.total_us),
            f"{row.calls:,}",
            f"{row.name}  < {row.called_by}" if is_known(row.called_by) else row.name,
        )
        for row in rows
    ]
    headers = ("self ms", "ms", "calls", "Python function")
    return lay_top(headers, cells, top, ("Python function",), "frames")


def write_ranges(rows: tuple[RangeRow, ...], top: int) -> list[str]:
    """Write the ranges that the program marked itself."""
    cells = [
        (
            ms_of_us(row.host_total_us),
            ms_of_us(row.host_self_us),
            ms_of_us(row.host_mean_us),
            ms_of_us(row.device_total_us),
            f"{row.count:,}",
            row.name,
        )
        for row in rows
    ]
    headers = ("host ms", "host self ms", "mean ms", "gpu ms", "count", "range (record_function)")
    return lay_top(headers, cells, top, ("range (record_function)",), "ranges")


def write_allocations(rows: tuple[AllocationRow, ...], top: int) -> list[str]:
    """Write which operators allocate, the cards first."""
    cells = [
        (
            f"{row.kind} {row.device}" if row.device >= 0 else row.kind,
            size(row.at_peak_bytes),
            size(row.kept_bytes),
            format_bytes(row.allocated_bytes),
            f"{row.allocations:,}",
            row.operator,
        )
        for row in sorted(rows, key=_by_device_and_peak)
    ]
    headers = ("memory of", "at peak", "kept", "allocated", "times", "by operator")
    return lay_top(headers, cells, top, ("memory of", "by operator"), "allocations")


def _by_device_and_peak(row: AllocationRow) -> tuple[bool, str, int, int, int]:
    at_peak = row.at_peak_bytes if is_known(row.at_peak_bytes) else 0
    return row.kind == "cpu", row.kind, row.device, -at_peak, -row.allocated_bytes


def write_groups(rows: tuple[OperatorGroupRow, ...], top: int, name: str) -> list[str]:
    """Write operators by shape or by line."""
    cells = [
        (
            ms_of_us(row.host_self_us),
            ms_of_us(row.device_self_us),
            ms_of_us(row.device_total_us),
            f"{row.calls:,}",
            f"{row.name}  {row.group if is_known(row.group) else NA}",
        )
        for row in rows
    ]
    headers = ("host self ms", "gpu self ms", "gpu ms", "calls", "operator")
    return lay_top(headers, cells, top, ("operator",), name)


def _write_asked(
    rows: Applicable[tuple[OperatorGroupRow, ...]], top: int, name: str, without: str
) -> list[str]:
    if not is_known(rows) or not rows:
        return [f"{name}: {without}"]
    return write_groups(rows, top, name)


_WRITERS: dict[str, Callable[[TraceFile, int], list[str]]] = {
    "patterns": lambda file, _top: write_patterns(file.patterns) or ["patterns: none seen"],
    "products": lambda file, top: write_products(file.products, top) or ["products: none recorded"],
    "rates": lambda file, top: write_rates(file.kernels, top) or ["rates: no shapes (record_shapes=True)"],
    "modules": lambda file, top: (
        write_modules(file.modules, top) if is_known(file.modules) else [f"modules: {_NO_MODULES}"]
    ),
    "frames": lambda file, top: (
        write_frames(file.frames, top) if is_known(file.frames) else [f"frames: {_NO_STACKS}"]
    ),
    "allocations": lambda file, top: (
        write_allocations(file.memory.by_operator, top)
        or ["allocations: none recorded (profile_memory=True)"]
    ),
    "shapes": lambda file, top: _write_asked(
        file.shapes, top, "shapes", "none recorded (record_shapes=True)"
    ),
    "lines": lambda file, top: _write_asked(file.lines, top, "lines", _NO_STACKS),
    "ranges": lambda file, top: (
        write_ranges(file.ranges, top) or ["ranges: none recorded (torch.profiler.record_function)"]
    ),
    "curve": lambda file, _top: write_curves(file) or ["curve: none recorded (profile_memory=True)"],
}
TEXT_TABLES = tuple(_WRITERS)
"""Tables that can be written alone as text."""


def write_table(file: TraceFile, table: str, top: int) -> list[str]:
    """Write one table of ``TEXT_TABLES`` of one file; where it has no row, the reason."""
    return _WRITERS[table](file, top)


def write_tables(report: TraceReport, table: str, top: int) -> list[str]:
    """Write one table of ``TEXT_TABLES`` alone, of each file."""
    lines: list[str] = []
    for file in report.files:
        lines += [*lay_paragraph("trace", file.path), *write_table(file, table, top), ""]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines[:-1]]


def write_more(file: TraceFile, top: int) -> list[str]:
    """Write the further tables that a trace has, each after an empty line."""
    parts = [write_ranges(file.ranges, top), write_products(file.products, top)]
    parts.append(write_modules(file.modules, top) if is_known(file.modules) and file.modules else [])
    parts.append(write_frames(file.frames, top) if is_known(file.frames) else [])
    parts.append(write_allocations(file.memory.by_operator, top))
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
        labels = [format_bytes(top_of(curve)), *[""] * (ROWS - 2), format_bytes(0)]
        rows = draw_curve(curve, span, columns)
        lines += [f"{label:{LABEL_WIDTH}}{row}".rstrip() for label, row in zip(labels, rows, strict=True)]
    if not lines:
        return []
    hidden = len(curves) - MOST_CURVES
    more = [f"  {hidden} more (--csv curve)"] if hidden > 0 else []
    return [f"memory over {say_span(span)}: {LEGEND}", *lines[1:], *more]
