"""The further tables of operators and kernels: by shape, ranges, products, modules, Python, rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.known import Applicable, Missing, is_known, known_or
from tpmon.model.results.trace import TraceFile
from tpmon.model.results.trace_tables import FrameRow, OperatorGroupRow, ProductRow
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, lay_sheet, list_orders
from tpmon.ui.kit.table import Column, fit_column, list_columns
from tpmon.ui.traces.state import Grouping
from tpmon.view.table import Figure
from tpmon.view.trace import (
    DEVICE_TIMES,
    FRAMES,
    HOST_TIMES,
    PRODUCTS,
    RANGES,
    RATES,
    list_module_figures,
)
from tpmon.view.trace_words import NA, ms_of_us, said, thousands

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
    calls: Figure[OperatorGroupRow] = Figure("calls", lambda row: row.calls, thousands, 6, sorts=True)
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
