"""The tab of memory: its peaks, its curves drawn in characters, and which operators allocate."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from tpmon.model.memory_chart import (
    LEGEND,
    RESERVED,
    ROWS,
    Span,
    describe_curve,
    draw_curve,
    draw_steps,
    name_place,
    say_span,
    span_curves,
    top_of,
)
from tpmon.model.trace import MemoryPeak, StepRow, TraceFile
from tpmon.model.trace_tables import AllocationRow, MemoryCurve
from tpmon.model.trace_words import NA, pct, say_growth, size
from tpmon.model.units import format_bytes
from tpmon.ui.cells import fit_line, pad
from tpmon.ui.lines import Ink, Line
from tpmon.ui.sheet import Block, Paragraph, Sheet, as_number, fit_column
from tpmon.ui.table import Column

_MOST_CURVES = 16
"""All of them are drawn at each key: a damaged file names hundreds of devices."""
_LABEL_WIDTH = 9
"""That of the strip of the time: the steps of both stand below each other."""


def list_memory(file: TraceFile) -> list[Block]:
    """List the peaks of memory, its curve over time, and what allocates."""
    memory = file.memory
    if not memory.peaks:
        text = "no allocations in the trace: tpmon capture --memory, or profile_memory=True, records them"
        return [Paragraph(NA, text)]
    blocks: list[Block] = [_peaks_sheet(memory.peaks), *_list_curves(file)]
    if memory.by_operator:
        blocks.append(_allocations_sheet(memory.by_operator))
    return blocks


def _peaks_sheet(peaks: tuple[MemoryPeak, ...]) -> Sheet[MemoryPeak]:
    return Sheet(
        "memory",
        (
            Column("of", 8, 0, _name_peak, right=False),
            Column("peak allocated", 14, 1, lambda row: size(row.allocated_bytes)),
            Column("peak reserved", 13, 2, lambda row: size(row.reserved_bytes)),
            Column("unused", 7, 6, lambda row: pct(row.unused_pct)),
            Column("growth", 8, 5, lambda row: say_growth(row.growth_bytes)),
            Column("allocated in all", 16, 3, lambda row: size(row.allocations_bytes)),
            Column("freed in all", 12, 4, lambda row: size(row.frees_bytes)),
            Column("events", 9, 7, lambda row: f"{row.events:,}"),
        ),
        peaks,
        lambda row: f"{_name_peak(row)}: peak {size(row.allocated_bytes)}",
    )


def _name_peak(row: MemoryPeak) -> str:
    return name_place(row.kind, row.device)


def _list_curves(file: TraceFile) -> list[Block]:
    curves = file.memory.curves
    if not curves:
        return [Paragraph(NA, "the trace has no totals of memory: there is no curve over time")]
    steps = file.overview.step_table if file.overview.steps else ()
    span = span_curves(curves, steps)
    blocks: list[Block] = [Paragraph("curves", f"{say_span(span)}: {LEGEND}")]
    for curve in curves[:_MOST_CURVES]:
        draw = partial(_paint_curve, curve, span, steps)
        name = name_place(curve.kind, curve.device)
        blocks.append(Paragraph(name, describe_curve(curve), draw=draw))
    if len(curves) > _MOST_CURVES:
        blocks.append(Paragraph("more", f"{len(curves) - _MOST_CURVES} more devices: --csv curve has them"))
    return blocks


def _paint_curve(curve: MemoryCurve, span: Span, steps: tuple[StepRow, ...], width: int) -> tuple[Line, ...]:
    columns = max(1, width - _LABEL_WIDTH - 1)
    ruler = draw_steps(steps, span, columns)
    lines: list[Line] = [((f" {pad('step', _LABEL_WIDTH - 1)}{ruler}", Ink.DIM),)] if ruler else []
    labels = [format_bytes(top_of(curve)), *[""] * (ROWS - 2), format_bytes(0)]
    for label, row in zip(labels, draw_curve(curve, span, columns), strict=True):
        parts = (("".join(cells), dim) for dim, cells in groupby(row, lambda cell: cell == RESERVED))
        spans = [(text, Ink.DIM if dim else Ink.GOOD) for text, dim in parts]
        lines.append(fit_line(((f" {pad(label, _LABEL_WIDTH - 1)}", Ink.DIM), *spans), width))
    return tuple(lines)


def _allocations_sheet(rows: tuple[AllocationRow, ...]) -> Sheet[AllocationRow]:
    return Sheet(
        "allocated by operator",
        (
            fit_column("of", 1, lambda row: name_place(row.kind, row.device), rows, right=False),
            Column("alive at the peak", 17, 2, lambda row: size(row.at_peak_bytes)),
            Column("kept", 7, 3, lambda row: size(row.kept_bytes)),
            Column("allocated", 9, 4, lambda row: size(row.allocated_bytes)),
            Column("times", 9, 5, lambda row: f"{row.allocations:,}"),
            Column("operator", 16, 0, lambda row: row.operator, right=False, grows=True),
        ),
        rows,
        lambda row: row.operator,
        (
            ("alive at the peak", lambda row: as_number(row.at_peak_bytes)),
            ("kept", lambda row: as_number(row.kept_bytes)),
            ("allocated", lambda row: row.allocated_bytes),
            ("times", lambda row: row.allocations),
        ),
        findable=True,
    )
