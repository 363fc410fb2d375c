"""The tabs that are tables: operators, kernels and copies, ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

from tpmon.model.known import Applicable, is_known
from tpmon.model.trace import (
    CollectiveRow,
    CopyRow,
    KernelRow,
    OperatorRow,
    RankRow,
    RankTable,
    TraceFile,
)
from tpmon.model.trace_words import NA, ms_of_us, name_rank, name_ranks, number, said, size
from tpmon.model.units import clean_text
from tpmon.ui.lines import Ink
from tpmon.ui.sheet import Block, Paragraph, Sheet, as_number, fit_column
from tpmon.ui.table import Column
from tpmon.ui.trace_more import list_kernel_tables, list_operator_tables
from tpmon.ui.trace_words import shorten_kernel

_LONG_STEP_MS = 1000.0
"""Ranks of steps beyond this are told in tenths of a millisecond, so that every column fits 80 cells."""
Orders = tuple[tuple[str, Callable[[OperatorRow], float]], ...]


def list_operators(file: TraceFile) -> list[Block]:
    """List the operators, those first that take the most time themselves."""
    operators = file.operators
    if not operators:
        return [Paragraph(NA, "the trace has no operators of the host"), *list_operator_tables(file)]
    on_device = is_known(operators[0].device_self_us)
    host: tuple[Column[OperatorRow], ...] = (
        Column("host self ms", 12, 2 if on_device else 1, lambda row: ms_of_us(row.host_self_us)),
        Column("host ms", 12, 4, lambda row: ms_of_us(row.host_total_us)),
    )
    device: tuple[Column[OperatorRow], ...] = (
        Column("gpu self ms", 12, 1, lambda row: ms_of_us(row.device_self_us)),
        Column("gpu ms", 12, 3, lambda row: ms_of_us(row.device_total_us)),
    )
    host_orders: Orders = (
        ("host self ms", lambda row: as_number(row.host_self_us)),
        ("host ms", lambda row: as_number(row.host_total_us)),
    )
    device_orders: Orders = (
        ("gpu self ms", lambda row: as_number(row.device_self_us)),
        ("gpu ms", lambda row: as_number(row.device_total_us)),
    )
    sheet: Sheet[OperatorRow] = Sheet(
        "operators",
        (
            *(device if on_device else ()),
            *host,
            Column("calls", 8, 5, lambda row: f"{row.calls:,}"),
            Column("operator", 16, 0, lambda row: row.name, right=False, grows=True),
        ),
        operators,
        lambda row: row.name,
        (*(device_orders if on_device else ()), *host_orders, ("calls", lambda row: row.calls)),
        findable=True,
    )
    return [sheet, *list_operator_tables(file)]


def list_kernels(file: TraceFile) -> list[Block]:
    """List kernels and copies, the longest first."""
    blocks: list[Block] = []
    if file.kernels:
        blocks.append(_kernels_sheet(file.kernels))
    else:
        blocks.append(Paragraph(NA, "the trace has no kernels: it was recorded on the CPU alone"))
    if file.launched_before:
        text = (
            f"{file.launched_before:,} kernels and copies were launched before the trace begins: no operator"
        )
        blocks.append(Paragraph("note", text))
    if file.copies:
        blocks.append(_copies_sheet(file.copies))
    return [*blocks, *list_kernel_tables(file)]


def _kernels_sheet(kernels: tuple[KernelRow, ...]) -> Sheet[KernelRow]:
    return Sheet(
        "kernels",
        (
            Column("ms", 11, 1, lambda row: ms_of_us(row.total_us)),
            Column("count", 7, 2, lambda row: f"{row.count:,}"),
            Column("mean us", 9, 3, lambda row: number(row.mean_us)),
            Column("max us", 9, 7, lambda row: number(row.max_us)),
            Column("blocks/SM", 9, 8, lambda row: number(row.blocks_per_sm)),
            Column("occ.", 4, 9, lambda row: number(row.occupancy_reported_pct, 0)),
            Column("recomp.", 7, 5, lambda row: number(row.occupancy_pct, 0)),
            Column("limited by", 14, 11, lambda row: said(row.limited_by), right=False),
            Column("tensor", 7, 6, lambda row: row.tensor_cores, right=False),
            Column("operator", 24, 10, lambda row: said(row.operator), right=False),
            Column("kernel", 16, 0, lambda row: shorten_kernel(row.name), right=False, grows=True),
        ),
        kernels,
        lambda row: row.name,
        (
            ("ms", lambda row: row.total_us),
            ("count", lambda row: row.count),
            ("mean us", lambda row: row.mean_us),
            ("max us", lambda row: row.max_us),
        ),
        findable=True,
    )


def _copies_sheet(copies: tuple[CopyRow, ...]) -> Sheet[CopyRow]:
    return Sheet(
        "copies",
        (
            Column("ms", 11, 1, lambda row: ms_of_us(row.total_us)),
            Column("count", 7, 2, lambda row: f"{row.count:,}"),
            Column("bytes", 7, 3, lambda row: size(row.bytes)),
            Column("GB/s", 8, 4, lambda row: number(row.gb_s)),
            Column("copy", 16, 0, lambda row: row.name, right=False, grows=True),
        ),
        copies,
        lambda row: row.name,
        findable=True,
    )


def list_ranks(table: Applicable[RankTable], file: TraceFile) -> list[Block]:
    """Put the ranks beside each other, and list the communication of one."""
    blocks: list[Block] = []
    if is_known(table):
        blocks.append(Paragraph("ranks", table.summary, Ink.STRONG))
        if table.missing:
            named = ", ".join(map(str, table.missing[:20])) + (" ..." if len(table.missing) > 20 else "")
            blocks.append(Paragraph("missing", f"no trace of rank {named}", Ink.WARN))
        blocks.append(_ranks_sheet(table.ranks))
    else:
        blocks.append(Paragraph(NA, "one trace alone: tpmon trace FOLDER puts the ranks beside each other"))
    comms = file.communication
    whose = name_rank(file) if is_known(file.rank) else clean_text(os.path.basename(file.path))
    if is_known(comms):
        hidden = 100 * comms.overlap_us / comms.comm_us if comms.comm_us else 0.0
        text = f"{ms_of_us(comms.comm_us)} ms, {hidden:.1f} % of it hidden by computation, "
        text += f"{ms_of_us(comms.exposed_us)} ms exposed"
        blocks += [Paragraph("comms", f"{whose}: {text}"), _collectives(comms.collectives)]
    else:
        blocks.append(Paragraph(NA, f"no communication in the trace of {whose}"))
    return blocks


def _ranks_sheet(ranks: tuple[RankRow, ...]) -> Sheet[RankRow]:
    names = name_ranks(ranks)
    plain = all(map(str.isdecimal, names.values()))
    longest = max((row.step_ms for row in ranks), default=0.0)
    digits = 3 if longest < _LONG_STEP_MS else 1

    def ms(head: str, keep: int, read: Callable[[RankRow], Applicable[float]]) -> Column[RankRow]:
        return fit_column(head, keep, lambda row: number(read(row), digits), ranks)

    return Sheet(
        "ranks, ms of the mean step; all waits, all moves: of all matched collectives",
        (
            fit_column("rank", 0, lambda row: names[row.path], ranks, right=plain),
            ms("step", 1, lambda row: row.step_ms),
            ms("compute", 3, lambda row: row.compute_ms),
            ms("comms", 4, lambda row: row.comm_ms),
            ms("of it hidden", 5, lambda row: row.overlap_ms),
            ms("neither", 7, lambda row: row.other_ms),
            ms("all waits", 2, lambda row: row.wait_ms),
            ms("all moves", 6, lambda row: row.transfer_ms),
            Column(
                "file", 12, 8, lambda row: clean_text(os.path.basename(row.path)), right=False, grows=True
            ),
        ),
        ranks,
        lambda row: f"rank {said(row.rank)}: step {row.step_ms:,.3f} ms, {clean_text(row.path)}",
        (("step", lambda row: row.step_ms), ("all waits", lambda row: as_number(row.wait_ms))),
    )


def _collectives(rows: tuple[CollectiveRow, ...]) -> Sheet[CollectiveRow]:
    return Sheet(
        "collectives",
        (
            Column("ms", 11, 1, lambda row: ms_of_us(row.total_us)),
            Column("calls", 7, 2, lambda row: f"{row.count:,}"),
            Column("bytes", 7, 3, lambda row: size(row.bytes)),
            Column("bus GB/s", 8, 4, lambda row: number(row.bus_gb_s)),
            Column("collective", 16, 0, lambda row: row.name, right=False, grows=True),
        ),
        rows,
        lambda row: row.name,
        findable=True,
    )
