"""Write the training jobs of this machine as a table: what ``tpmon ps`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.results import JobSummary
from tpmon.model.units import format_seconds
from tpmon.report.table import Reading, lay_columns, lay_paragraph

NO_JOBS = (
    "no training job on this machine: no Python process that has loaded torch",
    "Try: tpmon demo starts a small one and attaches to it",
)


def write_jobs(jobs: Sequence[JobSummary]) -> list[str]:
    """Write a row for each job, longest running first; two lines of words when there is none."""
    if not jobs:
        return list(NO_JOBS)
    reading = Reading()
    rows = [
        (
            str(job.pid),
            job.user,
            str(job.ranks),
            str(job.workers),
            reading.show("GPUs", job.gpus),
            format_seconds(job.uptime_s),
            job.script,
        )
        for job in sorted(jobs, key=lambda job: (-job.uptime_s, job.pid))
    ]
    headers = ("PID", "USER", "RANKS", "WORKERS", "GPUS", "UPTIME", "SCRIPT")
    lines = lay_columns(headers, rows, ("USER", "SCRIPT"))
    missed = reading.missed()
    return lines + lay_paragraph("not read", missed) if missed else lines
