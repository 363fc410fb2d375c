"""Describe the verdict of a job over the traces of its ranks, and the ranks beside each other."""

from __future__ import annotations

from tpmon.model.known import is_known
from tpmon.model.results import trace as results
from tpmon.model.results.trace_tables import IdleLine
from tpmon.model.units import clean_text
from tpmon.view import trace
from tpmon.view.blocks import Block, Paragraph, Sheet, lay_sheet
from tpmon.view.layout import NA, Ink, pct, said

_LONG_STEP_MS = 1000.0


def list_job(report: results.TraceReport) -> list[Block]:
    """List what holds the job, who waits for whom and what to try, then a row for each rank."""
    table, job = report.ranks, report.job
    if not is_known(table):
        return [Paragraph(NA, "one trace alone: tpmon trace FOLDER puts the ranks beside each other")]
    if not is_known(job):
        return [Paragraph("ranks", table.summary, Ink.STRONG), _ranks_sheet(table.ranks)]
    matched = f"{table.matched} of {table.collectives} collectives are in all traces of their ranks"
    said_of = [
        *_say_job(job),
        *_list_lines(report, job),
        *([Paragraph("matched", matched)] if table.collectives else []),
    ]
    return [*said_of, _ranks_sheet(table.ranks)]


def _list_lines(report: results.TraceReport, job: results.JobVerdict) -> list[Block]:
    """List the lines in which the late rank stands in the time that makes it late."""
    late = next((file for file in report.files if is_known(job.late) and file.rank == job.late), None)
    if late is None or not is_known(job.held) or job.held.kind is not late.verdict.kind:
        return []
    return [say_line(line) for line in late.verdict.lines]


def say_line(line: IdleLine) -> Paragraph:
    """Say how much of the time that a verdict is about stands in a line of the program."""
    return Paragraph("line", f"{pct(line.share_pct)} of it in {line.name}")


_MOST_GROUPS = 4
_MOST_RATES = 3


def say_job(job: results.JobVerdict) -> Paragraph:
    """Say what holds the job, and who waits for whom."""
    return Paragraph("job", f"{trace.name_verdict(job)}: {job.summary}", Ink.STRONG)


def _say_job(job: results.JobVerdict) -> list[Block]:
    said_of: list[Block] = [say_job(job)]
    if is_known(job.try_):
        cost = f" ({pct(job.share_pct)} of the step)" if job.share_pct else ""
        said_of.append(Paragraph("try", f"{job.try_}{cost}"))
    if is_known(job.ceiling):
        said_of.append(Paragraph("ceiling", job.ceiling))
    if is_known(job.held) and job.held.longer:
        longer = ", ".join(
            f"{trace.CAUSES[one.name]} {one.ms:.1f} ms" for one in job.held.longer[:_MOST_RATES]
        )
        said_of.append(Paragraph("longer", f"of a step than the median of the other ranks: {longer}"))
    if len(job.waits) > 1 or (job.waits and not is_known(job.late)):
        said_of += [Paragraph("waits", trace.say_wait(wait)) for wait in job.waits[:_MOST_GROUPS]]
        if len(job.waits) > _MOST_GROUPS:
            said_of.append(Paragraph("more", f"{len(job.waits) - _MOST_GROUPS} more groups: --json has them"))
    if is_known(job.rates):
        said_of += [Paragraph("bus", trace.say_rate(rate)) for rate in job.rates[:_MOST_RATES]]
    else:
        said_of.append(Paragraph("bus", f"{NA}: {job.rates.reason}"))
    return [*said_of, *(Paragraph("note", note, Ink.WARN) for note in job.notes)]


def _ranks_sheet(ranks: tuple[results.TraceRankRow, ...]) -> Sheet[results.TraceRankRow]:
    longest = max((row.step_ms for row in ranks), default=0.0)
    return lay_sheet(
        "ranks, shares of the mean step; all waits: in all matched collectives of the trace",
        trace.list_rank_figures(ranks, 3 if longest < _LONG_STEP_MS else 1),
        ranks,
        lambda row: f"rank {said(row.rank)}: step {row.step_ms:,.3f} ms, {clean_text(row.path)}",
        findable=False,
        table="ranks",
    )
