"""Describe the analysis of traces in blocks, for the text report and the tabs of the screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, zip_longest

from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.results import trace as results
from tpmon.model.results.trace_tables import FrameRow, MemoryCurve, OperatorGroupRow, PatternRow, ProductRow
from tpmon.model.units import clean_text, format_bytes
from tpmon.view import trace
from tpmon.view.blocks import Block, Paragraph, Sheet, bar, lay_sheet, list_orders
from tpmon.view.layout import (
    LABEL_WIDTH,
    NA,
    Cell,
    Column,
    Ink,
    Line,
    TableFigure,
    fit_column,
    fit_line,
    list_columns,
    ms_of_us,
    pad,
    pct,
    said,
    size,
    thousands,
)
from tpmon.view.trace_job import say_line
from tpmon.view.trace_work import list_work, sum_up_work

_BAR = 20


def parts_sheet(
    title: str, parts: Sequence[trace.WordPart], *more: Column[trace.WordPart]
) -> Sheet[trace.WordPart]:
    """Make a table of parts with a bar for each."""
    return Sheet(
        title,
        (
            Column("", 22, 0, lambda part: part.name, right=False),
            Column("ms", 12, 1, lambda part: ms_of_us(part.us)),
            Column("share", 7, 2, lambda part: pct(part.share_pct)),
            Column("", _BAR, 4, lambda part: bar(known_or(part.share_pct, 0.0), _BAR), right=False),
            *more,
        ),
        tuple(parts),
        lambda part: f"{part.name} {ms_of_us(part.us)} ms, {pct(part.share_pct)}",
    )


def list_overview(file: results.TraceFile) -> list[Block]:
    """List what slows the run, the times and parts of its steps, and how busy its devices were."""
    overview = file.overview
    blocks: list[Block] = [
        *_say_verdict(file.verdict),
        Paragraph("trace", trace.say_file(file)),
        *_say_lost(file.lost),
    ]
    steps = f"none marked; the whole trace is {overview.step_ms + overview.left_out_us / 1000:,.3f} ms"
    if overview.steps or overview.repeats:
        count = f"{overview.repeats} repeats stand in for them" if overview.repeats else f"{overview.steps}"
        over = f" over the usual {overview.judged_steps}" if overview.judged_steps < overview.steps else ""
        steps = (
            f"{count}, mean {overview.step_ms:,.3f} ms{over}, p50 {overview.step_p50_ms:,.3f}, "
            f"p95 {overview.step_p95_ms:,.3f}; marks of the host alone {overview.host_step_ms:,.3f} ms"
        )
    blocks.append(Paragraph("steps", steps))
    blocks += [Paragraph("note", note, Ink.WARN) for note in overview.notes]
    blocks += [block for pattern in file.patterns for block in list_pattern(pattern)]
    parts = trace.list_parts(trace.KINDS, overview.breakdown_us, overview.overlapping_us)
    overlapping: Column[trace.WordPart] = Column(
        "ms, overlapping", 15, 3, lambda part: ms_of_us(part.overlapping_us)
    )
    blocks.append(parts_sheet("of a step, exclusive", parts, overlapping))
    if overview.gpus:
        cards = lay_sheet(
            "devices",
            trace.CARDS,
            overview.gpus,
            lambda card: (
                f"GPU {card.device} {said(card.name)}: kernels {pct(card.utilization_pct)} of the window"
            ),
            findable=False,
            table="gpus",
        )
        blocks.append(cards)
    if overview.steps or overview.repeats:
        blocks.append(_steps_sheet(overview.step_table, overview.steps or overview.repeats))
    return blocks


def _say_verdict(verdict: results.TraceVerdict) -> list[Block]:
    said_of = [Paragraph("verdict", f"{trace.name_verdict(verdict)}: {verdict.summary}", Ink.STRONG)]
    if is_known(verdict.weight):
        said_of.append(Paragraph("note", verdict.weight, Ink.WARN))
    for text, cost in zip_longest(verdict.advice, verdict.advice_pct, fillvalue=NOT_APPLICABLE):
        costs = f" ({pct(cost)} of the window)" if is_known(cost) else ""
        said_of.append(Paragraph("try", f"{text}{costs}"))
    if is_known(verdict.ceiling):
        said_of.append(Paragraph("ceiling", verdict.ceiling))
    said_of += map(say_line, verdict.lines)
    shares = ", ".join(f"{one.name} {one.pct:.1f} %" for one in verdict.shares)
    return [*said_of, *([Paragraph("shares", shares)] if shares else [])]


def list_pattern(pattern: PatternRow) -> list[Block]:
    """Describe what costs time, and what helps."""
    seen = f"{pattern.name}, {pct(pattern.share_pct)} of the window: {pattern.seen}"
    said_of = Paragraph("pattern", seen)
    return [said_of, *(Paragraph("try", advice) for advice in pattern.advice)]


def _say_lost(lost: results.Lost) -> list[Block]:
    parts = []
    if lost.events or lost.bytes:
        what = [f"{lost.events:,} events"] if lost.events else []
        what += [format_bytes(lost.bytes)] if lost.bytes else []
        parts.append(f"{', '.join(what)} could not be read")
    if lost.apart:
        parts.append(f"{lost.apart:,} of them begin and end apart (ph B and E): another tracer wrote them")
    if lost.values:
        parts.append(f"{lost.values:,} events without some of their values")
    if lost.broken_off:
        parts.append(f"the file is not whole: {lost.reason}")
    return [Paragraph("lost", "; ".join(parts), Ink.WARN)] if parts else []


def _steps_sheet(steps: tuple[results.StepRow, ...], in_all: int) -> Sheet[results.StepRow]:
    longest = max((step.ms for step in steps), default=0.0) or 1.0
    return Sheet(
        "steps",
        (
            *list_columns(trace.STEPS, steps),
            Column("", _BAR, 4, lambda step: bar(100 * step.ms / longest, _BAR), right=False),
        ),
        steps,
        lambda step: f"{step.name}: {step.ms:,.3f} ms, the mark of the host {step.host_ms:,.3f} ms",
        (("ms", lambda step: step.ms), ("host ms", lambda step: step.host_ms)),
        hidden=max(0, in_all - len(steps)),
        place_ms=lambda step: (step.start_ms, step.start_ms + step.ms),
        table="steps",
    )


def list_gaps(file: results.TraceFile) -> list[Block]:
    """Split the idle time of each device by cause, or the time of the host where there is no device."""
    if file.gaps:
        return [block for gaps in file.gaps for block in _device_gaps(gaps)]
    if not is_known(file.host_us):
        return [Paragraph(NA, "no device work in the trace, and nothing of the host either")]
    said_why = "no device work in the trace, so no device was idle; this is what the host did with the window"
    return [
        Paragraph(NA, said_why),
        parts_sheet("host, window of the steps", trace.list_parts(trace.HOST_CAUSES, file.host_us)),
    ]


def _device_gaps(gaps: results.DeviceGaps) -> list[Block]:
    largest: Sheet[results.LargeGap] = Sheet(
        f"largest gaps of GPU {gaps.device}",
        list_columns(trace.GAPS, gaps.largest),
        gaps.largest,
        lambda gap: (
            f"gap of {ms_of_us(gap.us)} ms at {gap.start_ms:,.3f} ms: "
            f"{trace.name_cause(gap.cause)}, {trace.say_gap(gap)}"
        ),
        (("gap ms", lambda gap: gap.us), ("at ms", lambda gap: -gap.start_ms)),
        source=lambda gap: known_or(gap.source, "") or known_or(gap.operator, ""),
        place_ms=lambda gap: (gap.start_ms, gap.start_ms + gap.us / 1000),
        table="idle",
        findable=True,
    )
    by_cause = parts_sheet("idle by cause, share of the window", trace.list_causes(gaps))
    share = pct(100 * gaps.idle / (gaps.window or 1.0))
    idle = f"idle {ms_of_us(gaps.idle)} of {ms_of_us(gaps.window)} ms, {share}"
    return [Paragraph(f"GPU {gaps.device}", idle), by_cause, largest]


_GROUPED = {
    trace.Grouping.SHAPES: (
        "input shapes and types",
        "no shapes in the trace: record_shapes=True records them",
    ),
    trace.Grouping.LINES: ("line", "no stacks in the trace: with_stack=True records them"),
}
"""The head of the column, and why the table may be empty."""


def list_groups(rows: Applicable[Sequence[OperatorGroupRow]], by: trace.Grouping) -> list[Block]:
    """List the operators in groups of calls."""
    head, without = _GROUPED[by]
    if not is_known(rows) or not rows:
        return [Paragraph(NA, rows.reason if isinstance(rows, Missing) else without)]
    own = tuple(rows)
    times = (*trace.DEVICE_TIMES, *trace.HOST_TIMES) if is_known(own[0].device_self_us) else trace.HOST_TIMES
    fitted = [replace(one, keep=keep, width=0) for one, keep in zip(times, (0, 4, 3, 5), strict=False)]
    calls: TableFigure[OperatorGroupRow] = TableFigure(
        "calls", lambda row: row.calls, thousands, 6, sorts=True
    )
    figures = (*fitted, calls)

    def name_source(row: OperatorGroupRow) -> str:
        return said(row.group) if by is trace.Grouping.LINES and is_known(row.group) else row.name

    sheet: Sheet[OperatorGroupRow] = Sheet(
        f"operators by {head}" if by is trace.Grouping.SHAPES else "operators by line of the program",
        (
            *list_columns(figures, own, "-"),
            fit_column("operator", 2, lambda row: row.name, own, right=False, most=28),
            Column(head, 20, 1, lambda row: said(row.group), right=False, grows=True),
        ),
        own,
        lambda row: f"{row.name}  {said(row.group)}",
        list_orders(figures),
        source=name_source,
        findable=True,
        table=by.value,
    )
    return [sheet]


def list_operator_tables(file: results.TraceFile) -> list[Block]:
    """List the tables below the operators: ranges, products, modules and Python functions."""
    blocks: list[Block] = []
    if file.ranges:
        title = "ranges of the program (record_function)"
        blocks.append(lay_sheet(title, trace.RANGES, file.ranges, unknown="-", table="ranges"))
    if file.products:
        products: Sheet[ProductRow] = lay_sheet(
            "matrix products, convolutions, attention by number type",
            trace.PRODUCTS,
            file.products,
            lambda row: f"{row.kind} in {said(row.dtype)}: {ms_of_us(row.total_us)} ms",
            findable=False,
            table="products",
        )
        blocks.append(products)
    if is_known(file.modules) and file.modules:
        figures = trace.list_module_figures(on_device=is_known(file.modules[0].forward_total_us))
        modules = lay_sheet("modules", figures, file.modules, unknown="-", findable=False, table="modules")
        blocks.append(modules)
    if is_known(file.frames) and file.frames:
        frames: Sheet[FrameRow] = lay_sheet(
            "Python functions",
            trace.FRAMES,
            file.frames,
            source=lambda row: known_or(row.called_by, row.name),
            table="frames",
        )
        blocks.append(frames)
    return blocks


def list_kernel_tables(file: results.TraceFile) -> list[Block]:
    """List the tables below the kernels: their share of the card's peak, and the one to profile."""
    blocks: list[Block] = []
    hot = file.hot_kernel
    if is_known(hot):
        text = f"{hot.share_pct:.1f} % of the kernels' time: {hot.name}"
        text, pasted = (f"{text}; profile it: ", hot.command) if is_known(hot.command) else (text, "")
        blocks.append(Paragraph("hottest", text, pasted=pasted))
    rated = tuple(row for row in file.kernels if is_known(row.gb_s) or is_known(row.tflop_s))
    if rated:
        title = "rates of the kernels, by the shapes of their operators"
        blocks.append(lay_sheet(title, trace.RATES, rated, table="rates"))
    elif file.kernels:
        blocks.append(Paragraph(NA, "no rates of kernels: their shapes are not known (record_shapes=True)"))
    return blocks


"""For longer steps ranks have tenths of a millisecond, so that every column fits 80 cells."""


def list_operators(file: results.TraceFile) -> list[Block]:
    """List the operators, the largest self time first."""
    operators = file.operators
    if not operators:
        return [Paragraph(NA, "the trace has no operators of the host"), *list_operator_tables(file)]
    times = (
        (*trace.DEVICE_TIMES, *trace.HOST_TIMES)
        if is_known(operators[0].device_self_us)
        else trace.HOST_TIMES
    )
    sheet = lay_sheet("operators", (*times, *trace.OPERATORS), operators, table="operators")
    return [sheet, *list_operator_tables(file)]


def list_device(file: results.TraceFile) -> list[Block]:
    """List what the steps are made of, then kernels and copies."""
    work, kernels = list_work(file), list_kernels(file)
    return [*work, *kernels] if file.step_work.categories else [*kernels, *work]


def list_kernels(file: results.TraceFile) -> list[Block]:
    """List kernels and copies, the longest first."""
    blocks: list[Block] = []
    if file.kernels:
        blocks.append(lay_sheet("kernels", trace.KERNELS, file.kernels, table="kernels"))
    else:
        blocks.append(Paragraph(NA, "the trace has no kernels: it was recorded on the CPU alone"))
    if file.launched_before:
        before = f"{file.launched_before:,} kernels and copies were launched before the trace begins"
        blocks.append(Paragraph("note", f"{before}: no operator"))
    if file.copies:
        blocks.append(lay_sheet("copies", trace.COPIES, file.copies, table="copies"))
    return [*blocks, *list_kernel_tables(file)]


def list_communication(file: results.TraceFile) -> list[Block]:
    """List the communication of one trace."""
    comms = file.communication
    whose = trace.name_rank(file) if is_known(file.rank) else clean_text(os.path.basename(file.path))
    if not is_known(comms):
        return [Paragraph(NA, f"no communication in the trace of {whose}")]
    sheet = lay_sheet("collectives", trace.COLLECTIVES, comms.collectives, table="collectives")
    hidden = 100 * comms.overlap_us / comms.comm_us if comms.comm_us else 0.0
    told = f"{whose}: {ms_of_us(comms.comm_us)} ms, {hidden:.1f} % of it hidden by computation"
    return [Paragraph("comms", f"{told}, {ms_of_us(comms.exposed_us)} ms exposed"), sheet]


_MOST_CURVES = 16
"""All are drawn at each key, and a damaged file may name hundreds of devices."""


def list_memory(file: results.TraceFile) -> list[Block]:
    """List the peaks of memory, its curve over time, and what allocates."""
    memory = file.memory
    if not memory.peaks:
        text = "no allocations in the trace: tpmon capture --memory, or profile_memory=True, records them"
        return [Paragraph(NA, text)]
    peaks = lay_sheet(
        "memory",
        trace.PEAKS,
        memory.peaks,
        lambda row: f"{trace.name_place(row.kind, row.device)}: peak {size(row.allocated_bytes)}",
        findable=False,
        table="memory",
    )
    blocks: list[Block] = [peaks, *list_curves(file)]
    if memory.by_operator:
        title = "allocated by operator"
        blocks.append(
            lay_sheet(
                title, trace.ALLOCATIONS, memory.by_operator, lambda row: row.operator, table="allocations"
            )
        )
    return blocks


_LEAST_DRAWN = 64 << 10
"""Of fewer bytes no chart is drawn: the line beside it says all of them."""


def list_curves(file: results.TraceFile) -> list[Block]:
    """Draw the memory of each device over time."""
    curves = file.memory.curves
    if not curves:
        return [Paragraph(NA, "the trace has no totals of memory: there is no curve over time")]
    steps = file.overview.step_table if file.overview.steps else ()
    span = trace.span_curves(curves, steps)
    times = f"{span.begin_ms:,.3f} to {span.end_ms:,.3f} ms"
    blocks: list[Block] = [Paragraph("curves", f"{times}: {trace.LEGEND}")]
    for curve in curves[:_MOST_CURVES]:
        said = Paragraph(trace.name_place(curve.kind, curve.device), trace.describe_curve(curve))
        drawn = trace.top_of(curve) >= _LEAST_DRAWN
        blocks.append(replace(said, draw=partial(_paint_curve, curve, span, steps)) if drawn else said)
    if len(curves) > _MOST_CURVES:
        blocks.append(Paragraph("more", f"{len(curves) - _MOST_CURVES} more devices: --csv curve has them"))
    return blocks


def _paint_curve(
    curve: MemoryCurve, span: trace.ChartSpan, steps: tuple[results.StepRow, ...], width: int
) -> tuple[Line, ...]:
    columns = max(1, width - LABEL_WIDTH - 1)
    ruler = trace.draw_steps(steps, span, columns)
    lines: list[Line] = [((f" {pad('step', LABEL_WIDTH - 1)}{ruler}", Ink.DIM),)] if ruler else []
    for label, row in trace.label_curve(curve, span, columns):
        parts = (("".join(cells), dim) for dim, cells in groupby(row, lambda cell: cell == trace.RESERVED))
        spans = [(text, Ink.DIM if dim else Ink.GOOD) for text, dim in parts]
        lines.append(fit_line(((f" {pad(label, LABEL_WIDTH - 1)}", Ink.DIM), *spans), width))
    return tuple(lines)


_SHOWN_US = 0.5
"""A change of less is 0.000 ms in the table: neither faster nor slower."""
_TITLES = {
    "phase": "of a step, exclusive",
    "idle": "idle by cause, of a step",
    "device-operator": "operators by device time, self of a step, start-up included",
    "operator": "operators, host self of a step, start-up included",
    "kernel": "kernels of a step, start-up included",
}


def name_result(comparison: results.TraceComparison) -> tuple[str, Ink]:
    """Return a word for whether a change helped, with its ink."""
    if not is_known(comparison.helped):
        return "! NO ANSWER", Ink.WARN
    if comparison.helped:
        return ("IT HELPED?", Ink.STRONG) if comparison.unchecked else ("IT HELPED", Ink.GOOD)
    low, high = comparison.ratio_low, comparison.ratio_high
    if is_known(low) and is_known(high) and low <= 1 <= high:
        return "NO DIFFERENCE", Ink.STRONG
    if comparison.ratio < 1:
        return "! SLOWER", Ink.WARN
    return f"FASTER, SHORT OF {comparison.target:g}x", Ink.STRONG


def list_changes(comparison: results.TraceComparison) -> list[Block]:
    """List whether the change helped, then phases, causes of idle time, operators and kernels."""
    _word, ink = name_result(comparison)
    blocks: list[Block] = [Paragraph("result", clean_text(comparison.summary, 1000), ink)]
    blocks += [Paragraph("differs", clean_text(one, 1000), Ink.WARN) for one in comparison.differences]
    if comparison.unchecked and comparison.differences:  # else the summary says it
        blocks.append(Paragraph("note", f"not checked: {', '.join(comparison.unchecked)}"))
    files = f"{clean_text(comparison.before, 1000)} -> {clean_text(comparison.after, 1000)}"
    blocks.append(Paragraph("against", files))
    for part, title in _TITLES.items():
        rows = tuple(change for change in comparison.changes if change.part == part)
        if rows:
            blocks.append(_changes_sheet(part, title, rows))
        elif part == "idle":
            blocks.append(
                Paragraph(NA, "idle time by cause: not both traces have device work and host events")
            )
    return blocks


def _changes_sheet(part: str, title: str, rows: tuple[results.Change, ...]) -> Sheet[results.Change]:
    findable = part in ("device-operator", "operator", "kernel")

    def shorten(row: results.Change) -> str:
        return trace.shorten_kernel(row.name)

    return Sheet(
        title,
        (
            Column("before ms", 11, 3, lambda row: ms_of_us(row.before_us)),
            Column("after ms", 11, 2, lambda row: ms_of_us(row.after_us)),
            Column("change ms", 11, 1, _paint_change),
            Column(
                part.removeprefix("device-"),
                16,
                0,
                shorten if part == "kernel" else trace.name_change,
                right=False,
                grows=True,
            ),
        ),
        rows,
        _say_change,
        (
            ("change ms", lambda row: row.after_us - row.before_us),
            ("before ms", lambda row: row.before_us),
            ("after ms", lambda row: row.after_us),
        ),
        source=(lambda row: row.name) if findable else (lambda _row: ""),
        findable=findable,
        table="changes",
    )


def _paint_change(row: results.Change) -> Cell:
    change_us = row.after_us - row.before_us
    text = f"{change_us / 1000:+,.3f}"
    if abs(change_us) < _SHOWN_US:
        return text, Ink.DIM
    return text, Ink.WARN if change_us > 0 else Ink.GOOD


def _say_change(row: results.Change) -> str:
    change_us = row.after_us - row.before_us
    return (
        f"{trace.name_change(row)}: {ms_of_us(row.before_us)} ms before, {ms_of_us(row.after_us)} ms after, "
        f"{change_us / 1000:+,.3f} ms"
    )


_WITHOUT = {
    "patterns": "none seen",
    "work": "no device work in the trace",
    "phases": "neither a backward pass nor a step of an optimizer is in the trace",
    "products": "none recorded",
    "rates": "no shapes (record_shapes=True)",
    "modules": "none recorded (with_stack=True and modules called)",
    "frames": "none recorded (with_stack=True)",
    "allocations": "none recorded (profile_memory=True)",
    "shapes": "none recorded (record_shapes=True)",
    "lines": "none recorded (with_stack=True)",
    "ranges": "none recorded (torch.profiler.record_function)",
    "curve": "none recorded (profile_memory=True)",
}
"""Tables that can be shown alone, and why one may be empty."""
TABLES = tuple(_WITHOUT)


def list_table(file: results.TraceFile, table: str) -> list[Block]:
    """Return one table of ``TABLES`` of one file, or the reason why it is empty."""
    blocks: list[Block] = []
    if table == "patterns":
        blocks = [block for pattern in file.patterns for block in list_pattern(pattern)]
    elif table == "curve":
        blocks = list_curves(file) if file.memory.curves else []
    elif table in ("shapes", "lines"):
        rows = file.shapes if table == "shapes" else file.lines
        blocks = list_groups(rows, trace.Grouping(table)) if is_known(rows) and rows else []
    else:
        found = [*list_work(file), *list_operator_tables(file), *list_kernel_tables(file), *list_memory(file)]
        blocks = [block for block in found if isinstance(block, Sheet) and block.table == table]
    return blocks or [Paragraph(table, _WITHOUT[table])]


def list_trace(file: results.TraceFile) -> list[Block]:
    """Return the text report of one trace, its file first."""
    listed = (
        list_overview,
        sum_up_work,
        list_gaps,
        list_operators,
        list_kernels,
        list_memory,
        list_communication,
    )
    first = Paragraph("trace", trace.say_file(file))
    return [first, *(block for blocks in listed for block in blocks(file) if block != first)]
