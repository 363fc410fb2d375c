"""The tabs that say what holds a run: the overview, and idle time by its cause."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known, known_or
from tpmon.model.results.trace import CardUse, DeviceGaps, LargeGap, Lost, StepRow, TraceFile, TraceVerdict
from tpmon.model.results.trace_tables import PatternRow
from tpmon.model.units import format_bytes
from tpmon.ui.kit.cells import Ink
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, bar, lay_sheet
from tpmon.ui.kit.table import Column, list_columns
from tpmon.view.trace import (
    CARDS,
    GAPS,
    HOST_CAUSES,
    KINDS,
    NA,
    STEPS,
    WordPart,
    list_causes,
    list_parts,
    ms_of_us,
    name_cause,
    name_verdict,
    pct,
    said,
    say_file,
    say_gap,
    say_idle,
    say_pattern,
)

_BAR = 20


def parts_sheet(title: str, parts: Sequence[WordPart], *more: Column[WordPart]) -> Sheet[WordPart]:
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


def list_overview(file: TraceFile) -> list[Block]:
    """Say what holds the run, what its steps take and are made of, and how busy its devices were."""
    overview = file.overview
    blocks: list[Block] = [
        *_say_verdict(file.verdict),
        Paragraph("trace", say_file(file)),
        *_say_lost(file.lost),
    ]
    if overview.steps:
        blocks.append(
            Paragraph(
                "steps",
                f"{overview.steps}, mean {overview.step_ms:,.3f} ms, p50 {overview.step_p50_ms:,.3f}, "
                f"p95 {overview.step_p95_ms:,.3f}; marks of the host alone {overview.host_step_ms:,.3f} ms",
            )
        )
    else:
        blocks.append(Paragraph("steps", f"none marked; the whole trace is {overview.step_ms:,.3f} ms"))
    blocks += [Paragraph("note", note, Ink.WARN) for note in overview.notes]
    blocks += [block for pattern in file.patterns for block in _say_pattern(pattern)]
    parts = list_parts(KINDS, overview.breakdown_us, overview.overlapping_us)
    overlapping: Column[WordPart] = Column(
        "ms, overlapping", 15, 3, lambda part: ms_of_us(part.overlapping_us)
    )
    blocks.append(parts_sheet("of a step, exclusive", parts, overlapping))
    if overview.gpus:
        blocks.append(lay_sheet("devices", CARDS, overview.gpus, _say_card, findable=False))
    if overview.steps:
        blocks.append(_steps_sheet(overview.step_table, overview.steps))
    return blocks


def _say_verdict(verdict: TraceVerdict) -> list[Block]:
    said_of = [Paragraph("verdict", f"{name_verdict(verdict)}: {verdict.summary}", Ink.STRONG)]
    said_of += [Paragraph("try", advice) for advice in verdict.advice]
    shares = ", ".join(f"{one.name} {one.pct:.1f} %" for one in verdict.shares)
    return [*said_of, *([Paragraph("shares", shares)] if shares else [])]


def _say_pattern(pattern: PatternRow) -> list[Block]:
    said_of = Paragraph("pattern", say_pattern(pattern))
    return [said_of, *(Paragraph("try", advice) for advice in pattern.advice)]


def _say_lost(lost: Lost) -> list[Block]:
    parts = []
    if lost.events or lost.bytes:
        what = [f"{lost.events:,} events"] if lost.events else []
        what += [format_bytes(lost.bytes)] if lost.bytes else []
        parts.append(f"{', '.join(what)} could not be read")
    if lost.values:
        parts.append(f"{lost.values:,} events without some of their values")
    if lost.broken_off:
        parts.append(f"the file is not whole: {lost.reason}")
    return [Paragraph("lost", "; ".join(parts), Ink.WARN)] if parts else []


def _say_card(card: CardUse) -> str:
    return f"GPU {card.device} {said(card.name)}: kernels {pct(card.utilization_pct)} of the window"


def _steps_sheet(steps: tuple[StepRow, ...], in_all: int) -> Sheet[StepRow]:
    longest = max((step.ms for step in steps), default=0.0) or 1.0
    return Sheet(
        "steps",
        (
            *list_columns(STEPS, steps),
            Column("", _BAR, 4, lambda step: bar(100 * step.ms / longest, _BAR), right=False),
        ),
        steps,
        lambda step: f"{step.name}: {step.ms:,.3f} ms, the mark of the host {step.host_ms:,.3f} ms",
        (("ms", lambda step: step.ms), ("host ms", lambda step: step.host_ms)),
        hidden=max(0, in_all - len(steps)),
        place_ms=lambda step: (step.start_ms, step.start_ms + step.ms),
    )


def list_gaps(file: TraceFile) -> list[Block]:
    """Split the idle time of each device by cause, or the time of the host where there is no device."""
    if file.gaps:
        return [block for gaps in file.gaps for block in _device_gaps(gaps)]
    if not is_known(file.host_us):
        return [Paragraph(NA, "no device work in the trace, and nothing of the host either")]
    said_why = "no device work in the trace, so no device was idle; this is what the host did with the window"
    return [
        Paragraph(NA, said_why),
        parts_sheet("host, window of the steps", list_parts(HOST_CAUSES, file.host_us)),
    ]


def _device_gaps(gaps: DeviceGaps) -> list[Block]:
    largest: Sheet[LargeGap] = Sheet(
        f"largest gaps of GPU {gaps.device}",
        list_columns(GAPS, gaps.largest),
        gaps.largest,
        lambda gap: (
            f"gap of {ms_of_us(gap.us)} ms at {gap.start_ms:,.3f} ms: {name_cause(gap.cause)}, {say_gap(gap)}"
        ),
        (("gap ms", lambda gap: gap.us), ("at ms", lambda gap: -gap.start_ms)),
        source=lambda gap: known_or(gap.source, "") or known_or(gap.operator, ""),
        place_ms=lambda gap: (gap.start_ms, gap.start_ms + gap.us / 1000),
        findable=True,
    )
    by_cause = parts_sheet("idle by cause, share of the window", list_causes(gaps))
    return [Paragraph(f"GPU {gaps.device}", f"idle {say_idle(gaps)}"), by_cause, largest]
