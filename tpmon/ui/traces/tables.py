"""The tabs that are tables: operators, kernels and copies, ranks."""

from __future__ import annotations

import os

from tpmon.model.known import Applicable, is_known
from tpmon.model.results.trace import RankRow, RankTable, TraceFile
from tpmon.model.units import clean_text
from tpmon.ui.kit.lines import Ink
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, lay_sheet
from tpmon.ui.traces.trace_more import list_kernel_tables, list_operator_tables
from tpmon.view.trace import (
    COLLECTIVES_ON_SCREEN,
    COPIES,
    DEVICE_TIMES,
    HOST_TIMES,
    KERNELS,
    OPERATORS,
    list_rank_figures,
)
from tpmon.view.trace_words import NA, name_rank, said, say_communication, say_missing

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


def _ranks_sheet(ranks: tuple[RankRow, ...]) -> Sheet[RankRow]:
    longest = max((row.step_ms for row in ranks), default=0.0)
    return lay_sheet(
        "ranks, ms of the mean step; all waits, all moves: of all matched collectives",
        list_rank_figures(ranks, 3 if longest < _LONG_STEP_MS else 1),
        ranks,
        lambda row: f"rank {said(row.rank)}: step {row.step_ms:,.3f} ms, {clean_text(row.path)}",
        findable=False,
    )
