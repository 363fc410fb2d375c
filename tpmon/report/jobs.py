"""Write the training jobs of this machine as a table: what ``tpmon ps`` prints."""

from __future__ import annotations

from tpmon.model.results import JobList
from tpmon.model.units import format_seconds
from tpmon.report.table import Reading, lay_columns, lay_paragraph

NO_JOBS = (
    "no training job on this machine: no Python process that has loaded torch",
    "Try: tpmon demo starts a small one and attaches to it",
)
NO_OWN_JOBS = "no training job on this machine that this user may read"


def write_jobs(jobs: JobList) -> list[str]:
    """Write a row for each job, longest running first, and what could not be read; words for no job."""
    hidden = _say_unread(jobs.unread, jobs.unanswered)
    if not jobs.jobs:
        return [NO_OWN_JOBS, *hidden] if hidden else list(NO_JOBS)
    reading = Reading()
    rows = [
        (
            str(job.pid),
            job.user,
            reading.show("state", job.state, lambda state: state.value),
            reading.show("ranks", job.ranks),
            reading.show("workers", job.workers),
            reading.show("GPUs", job.gpus),
            format_seconds(job.uptime_s),
            f"{job.script} {reading.show('arguments', job.arguments)}".rstrip(),
        )
        for job in sorted(jobs.jobs, key=lambda job: (-job.uptime_s, job.pid))
    ]
    headers = ("PID", "USER", "STATE", "RANKS", "WORKERS", "GPUS", "UPTIME", "SCRIPT")
    lines = lay_columns(headers, rows, ("USER", "STATE", "SCRIPT"))
    missed = reading.missed()
    return [*lines, *(lay_paragraph("not read", missed) if missed else ()), *hidden]


def _say_unread(unread: int, unanswered: int) -> list[str]:
    said = []
    if unread:
        said.append(f"{_count(unread)} of other users could not be read (sudo tpmon ps shows them)")
    if unanswered:
        said.append(f"{_count(unanswered)} did not answer in time and may be jobs too (tpmon ps looks again)")
    return said


def _count(processes: int) -> str:
    return "1 Python process" if processes == 1 else f"{processes} Python processes"
