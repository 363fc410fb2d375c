"""Write the training jobs of this machine: ``tpmon ps``."""

from __future__ import annotations

from tpmon.model.results import doctor as results
from tpmon.model.units import count_of, format_seconds
from tpmon.report.blocks import write_rows, write_unread
from tpmon.view.layout import WIDTH, Figures, TableFigure, list_columns, show, wrap_all

NO_JOBS = (
    "no training job on this machine: no Python process that has loaded torch",
    "Try: tpmon demo starts a small one and attaches to it",
)
_PYTHONS = ("Python process", "Python processes")
NO_OWN_JOBS = "no training job on this machine that this user may read"

_JOBS: Figures[results.JobSummary] = (
    TableFigure("PID", lambda job: job.pid),
    TableFigure("USER", lambda job: job.user, keep=5, left=True),
    TableFigure("STATE", lambda job: show(job.state, lambda state: state.value), keep=6, left=True),
    TableFigure("RANKS", lambda job: show(job.ranks, str), keep=4),
    TableFigure("WORKERS", lambda job: show(job.workers, str), keep=8),
    TableFigure("GPUS", lambda job: show(job.gpus, str), keep=7),
    TableFigure("UPTIME", lambda job: format_seconds(job.uptime_s)),
    TableFigure(
        "SCRIPT",
        lambda job: f"{job.script} {show(job.arguments, str)}".rstrip(),
        width=20,
        left=True,
        grows=True,
    ),
)
"""Where a terminal leaves the script too little room, the least needed columns go."""


def write_jobs(jobs: results.JobList, width: int = WIDTH, as_root: str = "") -> list[str]:
    """Write a row a job, longest running first, and what was not read; ``as_root`` shows others' jobs."""
    unread = [*_say_left_over(jobs), *_say_unread(jobs, as_root)]
    hidden = [line for said in unread for line in wrap_all(said, width)]
    if not jobs.jobs:
        said = [NO_OWN_JOBS] if jobs.unread or jobs.unanswered else NO_JOBS
        return [*(line for text in said for line in wrap_all(text, width)), *hidden]
    longest = tuple(sorted(jobs.jobs, key=lambda job: (-job.uptime_s, job.pid)))
    lines = write_rows(list_columns(_JOBS, longest), longest, width=width + 1)
    return [*(line[1:] for line in lines), *write_unread(longest, width=width), *hidden]


def _say_left_over(jobs: results.JobList) -> list[str]:
    said = []
    for one in jobs.left_over:
        left = f"left over: {one.name} of {one.script} ({one.user}), {format_seconds(one.age_s)} old"
        said.append(f"{left}: the rank has ended. They hold {one.holds}. Try: {one.end}")
    return said


def _say_unread(jobs: results.JobList, as_root: str) -> list[str]:
    said = []
    if jobs.unread:
        shows = f" ({as_root} shows them)" if as_root else ""
        said.append(f"{count_of(jobs.unread, *_PYTHONS)} of other users could not be read{shows}")
    if jobs.unanswered:
        why = "; ".join(jobs.unanswered_why) or "no answer in time"
        may_be = "could not be read and may be jobs too"
        said.append(f"{count_of(jobs.unanswered, *_PYTHONS)} {may_be}: {why} (tpmon ps tries again)")
    return said
