"""Write the training jobs of this machine as a table: what ``tpmon ps`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.results.results import JobList
from tpmon.model.units import count_cells, format_seconds
from tpmon.report.text import WIDTH, Reading, lay_columns, lay_paragraph, wrap_cells

NO_JOBS = (
    "no training job on this machine: no Python process that has loaded torch",
    "Try: tpmon demo starts a small one and attaches to it",
)
NO_OWN_JOBS = "no training job on this machine that this user may read"


_HEADERS = ("PID", "USER", "STATE", "RANKS", "WORKERS", "GPUS", "UPTIME", "SCRIPT")
_SCRIPT_LEAST = 20
_DROPPED = ("WORKERS", "GPUS", "STATE", "USER", "RANKS")
"""In which order columns make room for the script in a narrow terminal."""


def write_jobs(jobs: JobList, width: int = WIDTH, as_root: str = "") -> list[str]:
    """Write a row for each job, longest running first, and what could not be read; words for no job.

    Where ``width`` leaves the script too little room, the columns that are needed least go. ``as_root`` is
    the command that shows other users' jobs, "" where none does.
    """
    unread = _say_unread(jobs, as_root)
    hidden = [line for said in unread for line in wrap_cells(said, width)]
    if not jobs.jobs:
        said = [NO_OWN_JOBS] if hidden else NO_JOBS
        return [*(line for text in said for line in wrap_cells(text, width)), *hidden]
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
    lines = _lay_jobs(rows, width)
    missed = reading.missed()
    return [*lines, *(lay_paragraph("not read", missed, width) if missed else ()), *hidden]


def _lay_jobs(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    shown = list(_HEADERS)
    for dropped in (*_DROPPED, ""):
        places = [_HEADERS.index(header) for header in shown]
        table = [[row[place] for place in places] for row in rows]
        bare = lay_columns(shown[:-1], [row[:-1] for row in table])
        if max(map(count_cells, bare)) + 2 + _SCRIPT_LEAST <= width or not dropped:
            break
        shown.remove(dropped)
    return lay_columns(shown, table, ("USER", "STATE", "SCRIPT"), width=width)


def _say_unread(jobs: JobList, as_root: str) -> list[str]:
    said = []
    if jobs.unread:
        shows = f" ({as_root} shows them)" if as_root else ""
        said.append(f"{_count(jobs.unread)} of other users could not be read{shows}")
    if jobs.unanswered:
        why = "; ".join(jobs.unanswered_why) or "no answer in time"
        may_be = "could not be read and may be jobs too"
        said.append(f"{_count(jobs.unanswered)} {may_be}: {why} (tpmon ps looks again)")
    return said


def _count(processes: int) -> str:
    return "1 Python process" if processes == 1 else f"{processes} Python processes"
