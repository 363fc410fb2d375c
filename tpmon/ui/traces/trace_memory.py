"""The tab of memory: its peaks, its curves drawn in characters, and which operators allocate."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from tpmon.model.results.trace import MemoryPeak, StepRow, TraceFile
from tpmon.model.results.trace_tables import MemoryCurve
from tpmon.ui.kit.cells import fit_line, pad
from tpmon.ui.kit.lines import Ink, Line
from tpmon.ui.kit.sheet import Block, Paragraph, lay_sheet
from tpmon.view.snapshot import (
    LEGEND,
    RESERVED,
    Span,
    describe_curve,
    draw_steps,
    label_curve,
    name_place,
    say_span,
    span_curves,
)
from tpmon.view.trace import ALLOCATIONS, PEAKS_ON_SCREEN
from tpmon.view.trace_words import NA, size

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
    peaks = lay_sheet("memory", PEAKS_ON_SCREEN, memory.peaks, _say_peak, findable=False)
    blocks: list[Block] = [peaks, *_list_curves(file)]
    if memory.by_operator:
        title = "allocated by operator"
        blocks.append(lay_sheet(title, ALLOCATIONS, memory.by_operator, lambda row: row.operator))
    return blocks


def _say_peak(row: MemoryPeak) -> str:
    return f"{name_place(row.kind, row.device)}: peak {size(row.allocated_bytes)}"


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
    for label, row in label_curve(curve, span, columns):
        parts = (("".join(cells), dim) for dim, cells in groupby(row, lambda cell: cell == RESERVED))
        spans = [(text, Ink.DIM if dim else Ink.GOOD) for text, dim in parts]
        lines.append(fit_line(((f" {pad(label, _LABEL_WIDTH - 1)}", Ink.DIM), *spans), width))
    return tuple(lines)
