"""Describe what the steps of a trace are made of: device work by kind, phases, rates."""

from __future__ import annotations

from tpmon.model.known import Missing, is_known
from tpmon.model.results import trace as results
from tpmon.model.results.trace_tables import PhaseRow, StepWork, WorkRow
from tpmon.view.blocks import Block, Paragraph, Sheet, cap, lay_sheet
from tpmon.view.layout import NA, Figures, TableFigure, ms_of_us, number, pct, said, thousands
from tpmon.view.trace import shorten_kernel

_HIDDEN_MS = TableFigure[WorkRow]("hidden ms", lambda row: row.overlapping_us - row.us, ms_of_us, 3)
WORK: Figures[WorkRow] = (
    TableFigure("ms", lambda row: row.us, ms_of_us, 1),
    TableFigure("of busy", lambda row: row.share_pct, pct, 2),
    _HIDDEN_MS,
    TableFigure("count", lambda row: row.count, thousands, 4),
    TableFigure("work", lambda row: row.category, keep=0, left=True),
    TableFigure("longest kernel", lambda row: row.largest, shorten_kernel, 3, 16, left=True, grows=True),
)
HIDDEN = 0.01
"""Share (0-1) of the busy time that is hidden under other work from which on a column says so."""
PHASES: Figures[PhaseRow] = (
    TableFigure("host ms", lambda row: row.host_us, ms_of_us, 1),
    TableFigure("gpu ms", lambda row: row.device_us, ms_of_us, 2),
    TableFigure("of busy", lambda row: row.device_pct, pct, 3),
    TableFigure("phase of a step", lambda row: row.phase, width=16, left=True, grows=True),
)


def list_work(file: results.TraceFile) -> list[Block]:
    """List what the steps are made of: device time by kind of work, phases, what a second computes."""
    work = file.step_work
    blocks: list[Block] = []
    if work.categories:
        busy = f"busy {ms_of_us(work.busy_us)} of {ms_of_us(work.step_us)} ms"
        of = f"a mean {work.unit}" if work.unit else "the whole trace"
        title = f"what the device computes, {of}, {busy}"
        hides = any(row.overlapping_us - row.us >= HIDDEN * work.busy_us for row in work.categories)
        shown = tuple(one for one in WORK if hides or one is not _HIDDEN_MS)
        blocks.append(lay_sheet(title, shown, work.categories, findable=False, table="work"))
    if is_known(work.phases):
        blocks.append(
            lay_sheet(
                "forward, backward and optimizer",
                PHASES,
                work.phases,
                lambda row: (
                    f"{row.phase}: host {ms_of_us(row.host_us)} ms, device {ms_of_us(row.device_us)} ms"
                ),
                unknown="-",
                findable=False,
                table="phases",
            )
        )
    else:
        blocks.append(Paragraph("phases", f"{NA}: {work.phases.reason}"))
    if is_known(work.replays):
        one = work.replays
        each = f"{one.count:,} replays of {ms_of_us(one.mean_us)} ms on the device"
        blocks.append(Paragraph("CUDA graphs", f"{each}, {pct(one.share_pct)} of the busy time"))
    return [*blocks, *_say_rates(work)]


def sum_up_work(file: results.TraceFile) -> list[Block]:
    """Say in a few lines what the steps are made of: the tables are in ``list_work``."""
    work = file.step_work
    blocks = [cap(one, _MOST_SUMMED) if isinstance(one, Sheet) else one for one in list_work(file)]
    if not is_known(work.phases):
        return blocks
    times = (
        f"{row.phase} {ms_of_us(row.host_us)} host"
        + (f", {ms_of_us(row.device_us)} device" if is_known(row.device_us) else "")
        for row in work.phases
    )
    phases = Paragraph("phases", f"ms of a {work.unit or 'trace'}: {'; '.join(times)}")
    return [phases if isinstance(one, Sheet) and one.table == "phases" else one for one in blocks]


def _say_rates(work: StepWork) -> list[Block]:
    rates = work.rates
    if is_known(rates.tflop_s):
        least = "at least " if is_known(rates.counted_pct) and rates.counted_pct < _ALL_PCT else ""
        rate = f"{rates.tflop_s:,.1f}" if rates.tflop_s >= _LEAST_TFLOP_S else f"{rates.tflop_s:.2g}"
        reached = f"{least}{rate} TFLOP/s over all of the step"
        if is_known(rates.mfu_pct) and is_known(rates.peak_tflop_s):
            peak = f"of {rates.peak_tflop_s:,.4g} in {said(rates.dtype)}"
            reached += f", {rates.mfu_pct:.1f} % of the peak (MFU) {peak}"
        else:
            why = rates.mfu_pct.reason if isinstance(rates.mfu_pct, Missing) else ""
            reached += f"; of the peak (MFU) {NA}: {why}"
        if least:
            reached += f"; shapes tell {pct(rates.counted_pct)} of the products' time"
    else:
        reached = f"{NA}: {rates.tflop_s.reason}"
    blocks: list[Block] = [Paragraph("TFLOP/s", reached)] if work.categories else []
    if not is_known(rates.samples):
        return [*blocks, Paragraph("samples/s", f"{NA}: {rates.samples.reason}")]
    speed = f"{number(rates.samples_per_s)}, {number(rates.samples, digits=0)} a {work.unit or 'trace'}"
    if is_known(rates.tokens):
        speed += f"; {number(rates.tokens_per_s, digits=0)} tokens/s"
    return [*blocks, Paragraph("samples/s", f"{speed}, of this process")]


_MOST_SUMMED = 7
"""Kinds of work on the page of all tables; the rest are small."""
_LEAST_TFLOP_S = 10.0
"""Below this a rate has two digits wherever they stand."""
_ALL_PCT = 99.0
"""Of the products' time: from here on all of it counts as told by shapes."""
