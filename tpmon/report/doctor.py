"""Write what may be read and what not, and the training jobs of this machine."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results.doctor import (
    Access,
    Check,
    Checkup,
    JobCheckup,
    JobList,
    is_obstacle,
    list_obstacles,
)
from tpmon.model.units import clean_text, count_cells, format_seconds
from tpmon.report.text import LABEL_WIDTH, WIDTH, TextReading, lay_columns, lay_paragraph, wrap_cells

_WORDS = {
    Access.ALLOWED: "yes",
    Access.DENIED: "NO",
    Access.ABSENT: "-",
    Access.UNKNOWN: "?",
}
_NAME_WIDTH = 13
_INDENT = " " * (LABEL_WIDTH + _NAME_WIDTH + 5)
ALL_WELL = "everything that tpmon needs is allowed"
LEGEND = "yes: it may be read   NO: it may not   -: it is not there   ?: not known   !: tpmon needs it"


def write_checkup(checkup: Checkup) -> list[str]:
    """Write the answer in a sentence and its commands, then each job and the machine, a line a source."""
    lines = lay_paragraph("doctor", f"{_say_answer(checkup)} ({checkup.user} on {checkup.host})")
    for fix in _list_fixes(list_obstacles(checkup)):
        lines.append(f"{'try':<{LABEL_WIDTH}}{fix}")
    for job in checkup.jobs:
        lines += ["", *_write_job(job, brief=len(checkup.jobs) > 1)]
    if not checkup.jobs:
        lines += [
            "",
            *lay_paragraph("jobs", "none of this user's is running; only the machine was checked"),
        ]
    lines += ["", *_write_checks("machine", checkup.machine), "", LEGEND]
    return lines


def _say_answer(checkup: Checkup) -> str:
    obstacles = list_obstacles(checkup)
    if not obstacles:
        unread = [check for job in checkup.jobs for check in job.checks if check.access is Access.UNKNOWN]
        needed = [check.name for check in unread if check.needed]
        return f"nothing is forbidden, but not known: {', '.join(needed)}" if needed else ALL_WELL
    names = ", ".join(dict.fromkeys(check.name for check in obstacles))
    return f"not allowed or not there: {names}"


def _list_fixes(checks: Sequence[Check]) -> list[str]:
    return list(dict.fromkeys(check.fix for check in checks if is_known(check.fix)))


def _write_job(job: JobCheckup, *, brief: bool) -> list[str]:
    """Write a job; with ``brief`` what may be read stands in one line."""
    tried = "1 process" if len(job.pids) == 1 else f"{len(job.pids)} processes"
    lines = lay_paragraph("job", f"{job.pid} {job.name} of {job.user}, {tried} tried")
    if job.remark:
        lines += lay_paragraph("", job.remark)
    if not brief:
        return [*lines, *_write_checks("", job.checks)]
    well = [check.name for check in job.checks if check.access is Access.ALLOWED]
    if well:
        lines += lay_paragraph("", f"may be read: {', '.join(well)}")
    return [*lines, *_write_checks("", [check for check in job.checks if check.access is not Access.ALLOWED])]


def _write_checks(label: str, checks: Sequence[Check]) -> list[str]:
    lines: list[str] = []
    told = ""
    for number, check in enumerate(checks):
        mark = "!" if is_obstacle(check) else " "
        head = f"{'' if number else label:<{LABEL_WIDTH}}{mark}{_WORDS[check.access]:<4}"
        first, *rest = _wrap(clean_text(check.why, 600))
        lines.append(f"{head}{check.name:<{_NAME_WIDTH}}{first}")
        lines += [f"{_INDENT}{line}" for line in rest]
        fix = check.fix if is_known(check.fix) and check.access is not Access.ALLOWED else ""
        if fix and fix != told:
            lines.append(f"{_INDENT}try: {fix}")
        told = fix or told
    return lines


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - len(_INDENT), break_on_hyphens=False) or [""]


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
    reading = TextReading()
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
        said.append(f"{_count(jobs.unanswered)} {may_be}: {why} (tpmon ps tries again)")
    return said


def _count(processes: int) -> str:
    return "1 Python process" if processes == 1 else f"{processes} Python processes"
