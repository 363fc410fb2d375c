"""The tabs that are tables: operators, kernels, ranks, memory and the further tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from tpmon.model.known import Applicable, Missing, is_known, known_or
from tpmon.model.results.trace import MemoryPeak, RankTable, StepRow, TraceFile, TraceRankRow
from tpmon.model.results.trace_tables import FrameRow, MemoryCurve, OperatorGroupRow, ProductRow
from tpmon.model.units import clean_text
from tpmon.ui.kit.cells import Ink, Line, fit_line, pad
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, lay_sheet, list_orders
from tpmon.ui.kit.table import Column, fit_column, list_columns
from tpmon.ui.traces.state import Grouping
from tpmon.view.snapshot import (
    LEGEND,
    RESERVED,
    ChartSpan,
    describe_curve,
    draw_steps,
    label_curve,
    name_place,
    say_span,
    span_curves,
)
from tpmon.view.table import TableFigure
from tpmon.view.trace import (
    ALLOCATIONS,
    COLLECTIVES_ON_SCREEN,
    COPIES,
    DEVICE_TIMES,
    FRAMES,
    HOST_TIMES,
    KERNELS,
    NA,
    OPERATORS,
    PEAKS_ON_SCREEN,
    PRODUCTS,
    RANGES,
    RATES,
    list_module_figures,
    list_rank_figures,
    ms_of_us,
    name_rank,
    said,
    say_communication,
    say_missing,
    size,
    thousands,
)

_GROUPED = {
    Grouping.SHAPES: ("by input shapes and types", "no shapes in the trace: record_shapes=True records them"),
    Grouping.LINES: ("by line of the program", "no stacks in the trace: with_stack=True records them"),
}


def list_groups(rows: Applicable[Sequence[OperatorGroupRow]], by: Grouping) -> list[Block]:
    """List the operators by what their calls have in common."""
    title, without = _GROUPED[by]
    if not is_known(rows) or not rows:
        return [Paragraph(NA, rows.reason if isinstance(rows, Missing) else without)]
    own = tuple(rows)
    times = (*DEVICE_TIMES, *HOST_TIMES) if is_known(own[0].device_self_us) else HOST_TIMES
    fitted = [replace(one, keep=keep, width=0) for one, keep in zip(times, (0, 4, 3, 5), strict=False)]
    calls: TableFigure[OperatorGroupRow] = TableFigure(
        "calls", lambda row: row.calls, thousands, 6, sorts=True
    )
    figures = (*fitted, calls)
    sheet: Sheet[OperatorGroupRow] = Sheet(
        f"operators {title}",
        (
            *list_columns(figures, own, "-"),
            fit_column("operator", 2, lambda row: row.name, own, right=False, most=28),
            Column(_HEADS[by], 20, 1, lambda row: said(row.group), right=False, grows=True),
        ),
        own,
        lambda row: f"{row.name}  {said(row.group)}",
        list_orders(figures),
        source=(lambda row: said(row.group) if is_known(row.group) else row.name)
        if by is Grouping.LINES
        else lambda row: row.name,
        findable=True,
    )
    return [sheet]


_HEADS = {Grouping.SHAPES: "input shapes and types", Grouping.LINES: "line"}


def list_operator_tables(file: TraceFile) -> list[Block]:
    """List what stands below the operators: ranges, products, modules and Python functions."""
    blocks: list[Block] = []
    if file.ranges:
        title = "ranges of the program (record_function)"
        blocks.append(lay_sheet(title, RANGES, file.ranges, lambda row: row.name, unknown="-"))
    if file.products:
        title = "matrix products, convolutions, attention by number type"
        blocks.append(lay_sheet(title, PRODUCTS, file.products, _say_product, findable=False))
    if is_known(file.modules) and file.modules:
        modules = list_module_figures(on_device=is_known(file.modules[0].forward_total_us))
        sheet = lay_sheet("modules", modules, file.modules, lambda row: row.name, unknown="-", findable=False)
        blocks.append(sheet)
    if is_known(file.frames) and file.frames:
        blocks.append(
            lay_sheet("Python functions", FRAMES, file.frames, lambda row: row.name, source=_find_caller)
        )
    return blocks


def _say_product(row: ProductRow) -> str:
    return f"{row.kind} in {said(row.dtype)}: {ms_of_us(row.total_us)} ms"


def _find_caller(row: FrameRow) -> str:
    return known_or(row.called_by, row.name)


def list_kernel_tables(file: TraceFile) -> list[Block]:
    """List what stands below the kernels: what they reach of their card, and the one to profile."""
    blocks: list[Block] = []
    hot = file.hot_kernel
    if is_known(hot):
        text = f"{hot.share_pct:.1f} % of the kernels' time: {hot.name}"
        text += f"; profile it: {hot.command}" if is_known(hot.command) else ""
        blocks.append(Paragraph("hottest", text))
    rated = tuple(row for row in file.kernels if is_known(row.gb_s) or is_known(row.tflop_s))
    if rated:
        title = "rates of the kernels, by the shapes of their operators"
        blocks.append(lay_sheet(title, RATES, rated, lambda row: row.name))
    elif file.kernels:
        blocks.append(Paragraph(NA, "no rates of kernels: their shapes are not known (record_shapes=True)"))
    return blocks


_LONG_STEP_MS = 1000.0
"""Ranks of steps beyond this are told in tenths of a millisecond, so that every column fits 80 cells."""


def list_operators(file: TraceFile) -> list[Block]:
    """List the operators, those first that take the most time themselves."""
    operators = file.operators
    if not operators:
        return [Paragraph(NA, "the trace has no operators of the host"), *list_operator_tables(file)]
    times = (*DEVICE_TIMES, *HOST_TIMES) if is_known(operators[0].device_self_us) else HOST_TIMES
    sheet = lay_sheet("operators", (*times, *OPERATORS), operators, lambda row: row.name)
    return [sheet, *list_operator_tables(file)]


def list_kernels(file: TraceFile) -> list[Block]:
    """List kernels and copies, the longest first."""
    blocks: list[Block] = []
    if file.kernels:
        blocks.append(lay_sheet("kernels", KERNELS, file.kernels, lambda row: row.name))
    else:
        blocks.append(Paragraph(NA, "the trace has no kernels: it was recorded on the CPU alone"))
    if file.launched_before:
        text = (
            f"{file.launched_before:,} kernels and copies were launched before the trace begins: no operator"
        )
        blocks.append(Paragraph("note", text))
    if file.copies:
        blocks.append(lay_sheet("copies", COPIES, file.copies, lambda row: row.name))
    return [*blocks, *list_kernel_tables(file)]


def list_ranks(table: Applicable[RankTable], file: TraceFile) -> list[Block]:
    """Put the ranks beside each other, and list the communication of one."""
    blocks: list[Block] = []
    if is_known(table):
        blocks.append(Paragraph("ranks", table.summary, Ink.STRONG))
        if table.missing:
            blocks.append(Paragraph("missing", say_missing(table), Ink.WARN))
        blocks.append(_ranks_sheet(table.ranks))
    else:
        blocks.append(Paragraph(NA, "one trace alone: tpmon trace FOLDER puts the ranks beside each other"))
    comms = file.communication
    whose = name_rank(file) if is_known(file.rank) else clean_text(os.path.basename(file.path))
    if is_known(comms):
        blocks.append(Paragraph("comms", f"{whose}: {say_communication(comms)}"))
        blocks.append(
            lay_sheet("collectives", COLLECTIVES_ON_SCREEN, comms.collectives, lambda row: row.name)
        )
    else:
        blocks.append(Paragraph(NA, f"no communication in the trace of {whose}"))
    return blocks


def _ranks_sheet(ranks: tuple[TraceRankRow, ...]) -> Sheet[TraceRankRow]:
    longest = max((row.step_ms for row in ranks), default=0.0)
    return lay_sheet(
        "ranks, ms of the mean step; all waits, all moves: of all matched collectives",
        list_rank_figures(ranks, 3 if longest < _LONG_STEP_MS else 1),
        ranks,
        lambda row: f"rank {said(row.rank)}: step {row.step_ms:,.3f} ms, {clean_text(row.path)}",
        findable=False,
    )


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


def _paint_curve(
    curve: MemoryCurve, span: ChartSpan, steps: tuple[StepRow, ...], width: int
) -> tuple[Line, ...]:
    columns = max(1, width - _LABEL_WIDTH - 1)
    ruler = draw_steps(steps, span, columns)
    lines: list[Line] = [((f" {pad('step', _LABEL_WIDTH - 1)}{ruler}", Ink.DIM),)] if ruler else []
    for label, row in label_curve(curve, span, columns):
        parts = (("".join(cells), dim) for dim, cells in groupby(row, lambda cell: cell == RESERVED))
        spans = [(text, Ink.DIM if dim else Ink.GOOD) for text, dim in parts]
        lines.append(fit_line(((f" {pad(label, _LABEL_WIDTH - 1)}", Ink.DIM), *spans), width))
    return tuple(lines)
