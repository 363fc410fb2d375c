"""The further tables of operators and kernels: by shape, ranges, products, modules, Python, rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpmon.model.known import Applicable, Missing, is_known
from tpmon.model.trace import KernelRow, TraceFile
from tpmon.model.trace_tables import FrameRow, ModuleRow, OperatorGroupRow, ProductRow, RangeRow
from tpmon.model.trace_words import NA, ms_of_us, number, pct, said
from tpmon.ui.sheet import Block, Paragraph, Sheet, as_number, fit_column
from tpmon.ui.table import Column
from tpmon.ui.trace_view import Grouping
from tpmon.ui.trace_words import shorten_kernel

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
    times: list[tuple[str, Callable[[OperatorGroupRow], Any]]] = [
        ("host self ms", lambda row: row.host_self_us),
        ("host ms", lambda row: row.host_total_us),
    ]
    if is_known(own[0].device_self_us):
        times[:0] = [
            ("gpu self ms", lambda row: row.device_self_us),
            ("gpu ms", lambda row: row.device_total_us),
        ]
    columns = [
        fit_column(head, keep, _in_ms(read), own)
        for (head, read), keep in zip(times, (0, 4, 3, 5), strict=False)
    ]
    sheet: Sheet[OperatorGroupRow] = Sheet(
        f"operators {title}",
        (
            *columns,
            fit_column("calls", 6, lambda row: f"{row.calls:,}", own),
            fit_column("operator", 2, lambda row: row.name, own, right=False, most=28),
            Column(_HEADS[by], 20, 1, lambda row: said(row.group), right=False, grows=True),
        ),
        own,
        lambda row: f"{row.name}  {said(row.group)}",
        (*((head, _by(read)) for head, read in times), ("calls", lambda row: row.calls)),
        source=(lambda row: said(row.group) if is_known(row.group) else row.name)
        if by is Grouping.LINES
        else lambda row: row.name,
        findable=True,
    )
    return [sheet]


_HEADS = {Grouping.SHAPES: "input shapes and types", Grouping.LINES: "line"}


def _in_ms(read: Callable[[Any], Applicable[float]]) -> Callable[[Any], str]:
    return lambda row: "-" if not is_known(value := read(row)) else ms_of_us(value)


def _by(read: Callable[[Any], object]) -> Callable[[Any], float]:
    return lambda row: as_number(read(row))


def list_operator_tables(file: TraceFile) -> list[Block]:
    """List what stands below the operators: ranges, products, modules and Python functions."""
    blocks: list[Block] = []
    if file.ranges:
        blocks.append(_ranges_sheet(file.ranges))
    if file.products:
        blocks.append(_products_sheet(file.products))
    if is_known(file.modules) and file.modules:
        blocks.append(_modules_sheet(file.modules))
    if is_known(file.frames) and file.frames:
        blocks.append(_frames_sheet(file.frames))
    return blocks


def _ranges_sheet(rows: tuple[RangeRow, ...]) -> Sheet[RangeRow]:
    return Sheet(
        "ranges of the program (record_function)",
        (
            fit_column("host ms", 1, _in_ms(lambda row: row.host_total_us), rows),
            fit_column("host self ms", 3, _in_ms(lambda row: row.host_self_us), rows),
            fit_column("mean ms", 4, _in_ms(lambda row: row.host_mean_us), rows),
            fit_column("gpu ms", 2, _in_ms(lambda row: row.device_total_us), rows),
            fit_column("count", 5, lambda row: f"{row.count:,}", rows),
            Column("range", 16, 0, lambda row: row.name, right=False, grows=True),
        ),
        rows,
        lambda row: row.name,
        (
            ("host ms", _by(lambda row: row.host_total_us)),
            ("host self ms", _by(lambda row: row.host_self_us)),
            ("gpu ms", _by(lambda row: row.device_total_us)),
            ("count", lambda row: row.count),
        ),
        findable=True,
    )


def _products_sheet(rows: tuple[ProductRow, ...]) -> Sheet[ProductRow]:
    return Sheet(
        "matrix products, convolutions, attention by number type",
        (
            fit_column("ms", 1, _in_ms(lambda row: row.total_us), rows),
            fit_column("share", 2, lambda row: pct(row.share_pct), rows),
            fit_column("calls", 5, lambda row: f"{row.calls:,}", rows),
            fit_column("TFLOP/s", 3, lambda row: number(row.tflop_s, 2), rows),
            fit_column("of peak", 4, lambda row: pct(row.peak_pct), rows),
            fit_column("misaligned", 6, lambda row: pct(row.misaligned_pct), rows),
            fit_column("type", 0, lambda row: said(row.dtype), rows, right=False),
            Column("product", 12, 0, lambda row: row.kind, right=False, grows=True),
        ),
        rows,
        lambda row: f"{row.kind} in {said(row.dtype)}: {ms_of_us(row.total_us)} ms",
        (("ms", lambda row: row.total_us), ("calls", lambda row: row.calls)),
    )


def _modules_sheet(rows: tuple[ModuleRow, ...]) -> Sheet[ModuleRow]:
    on_device = is_known(rows[0].forward_total_us)
    where = "gpu " if on_device else ""
    times: list[tuple[str, int, Callable[[ModuleRow], Any]]] = [
        (f"{where}backward ms", 2, lambda row: row.backward_total_us),
        ("host ms", 3, lambda row: row.host_total_us),
        ("host self ms", 6, lambda row: row.host_self_us),
    ]
    if on_device:
        times[:0] = [("gpu forward ms", 1, lambda row: row.forward_total_us)]
        times.append(("gpu forward self", 7, lambda row: row.forward_self_us))
        times.append(("gpu backward self", 8, lambda row: row.backward_self_us))
    return Sheet(
        "modules",
        (
            *(fit_column(head, keep, _in_ms(read), rows) for head, keep, read in times),
            fit_column("calls", 4, lambda row: f"{row.calls:,}", rows),
            Column("module", 28, 0, _name_module, right=False, grows=True),
        ),
        rows,
        lambda row: row.name,
        tuple((head, _by(read)) for head, _keep, read in times),
    )


def _name_module(row: ModuleRow) -> str:
    return f"{row.name} in {row.inside}" if is_known(row.inside) else row.name


def _frames_sheet(rows: tuple[FrameRow, ...]) -> Sheet[FrameRow]:
    return Sheet(
        "Python functions",
        (
            fit_column("self ms", 1, _in_ms(lambda row: row.self_us), rows),
            fit_column("ms", 2, _in_ms(lambda row: row.total_us), rows),
            fit_column("calls", 3, lambda row: f"{row.calls:,}", rows),
            Column("function", 30, 0, lambda row: row.name, right=False, grows=True),
            fit_column(
                "called by",
                4,
                lambda row: row.called_by if is_known(row.called_by) else "-",
                rows,
                right=False,
                most=40,
            ),
        ),
        rows,
        lambda row: row.name,
        (
            ("self ms", lambda row: row.self_us),
            ("ms", lambda row: row.total_us),
            ("calls", lambda row: row.calls),
        ),
        source=lambda row: row.called_by if is_known(row.called_by) else row.name,
        findable=True,
    )


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
        blocks.append(_rates_sheet(rated))
    elif file.kernels:
        blocks.append(Paragraph(NA, "no rates of kernels: their shapes are not known (record_shapes=True)"))
    return blocks


def _rates_sheet(rows: tuple[KernelRow, ...]) -> Sheet[KernelRow]:
    return Sheet(
        "rates of the kernels, by the shapes of their operators",
        (
            fit_column("GB/s", 1, lambda row: number(row.gb_s, 0), rows),
            fit_column("of peak", 2, lambda row: pct(row.gb_s_peak_pct), rows),
            fit_column("TFLOP/s", 3, lambda row: number(row.tflop_s, 2), rows),
            fit_column("of its peak", 4, lambda row: pct(row.tflop_s_peak_pct), rows),
            fit_column("held by", 5, lambda row: said(row.bound_by), rows, right=False),
            fit_column("ms", 6, lambda row: ms_of_us(row.total_us), rows),
            Column("kernel", 16, 0, lambda row: shorten_kernel(row.name), right=False, grows=True),
        ),
        rows,
        lambda row: row.name,
        (
            ("GB/s", lambda row: as_number(row.gb_s)),
            ("TFLOP/s", lambda row: as_number(row.tflop_s)),
            ("ms", lambda row: row.total_us),
        ),
        findable=True,
    )
