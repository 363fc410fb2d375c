"""Write the training jobs of this machine, and what may be read of a job: ``tpmon ps``, ``tpmon doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results import doctor as results
from tpmon.model.units import clean_text, count_of, format_seconds
from tpmon.report.blocks import write_rows, write_unread
from tpmon.view.layout import (
    LABEL_WIDTH,
    WIDTH,
    Figures,
    TableFigure,
    lay_paragraph,
    list_columns,
    show,
    wrap_all,
)

_WORDS = {
    results.Access.ALLOWED: "yes",
    results.Access.DENIED: "NO",
    results.Access.ABSENT: "-",
    results.Access.UNKNOWN: "?",
}
_NAME_WIDTH = 13
_INDENT = " " * (LABEL_WIDTH + _NAME_WIDTH + 5)
ALL_WELL = "everything that tpmon needs is allowed"
LEGEND = "yes: it may be read   NO: it may not   -: it is not there   ?: not known   !: tpmon needs it"


def write_checkup(checkup: results.Checkup) -> list[str]:
    """Write the answer in a sentence with its commands, then each job and the machine, a line a source."""
    lines = lay_paragraph("doctor", f"{_say_answer(checkup)} ({checkup.user} on {checkup.host})")
    fixes = dict.fromkeys(check.fix for check in results.list_obstacles(checkup) if is_known(check.fix))
    lines += [f"{'try':<{LABEL_WIDTH}}{fix}" for fix in fixes]
    for job in checkup.jobs:
        lines += ["", *_write_job(job, brief=len(checkup.jobs) > 1)]
    if not checkup.jobs:
        lines += ["", *lay_paragraph("jobs", "none of this user's is running; only the machine was checked")]
    lines += ["", *_write_checks("machine", checkup.machine), "", LEGEND]
    return lines


def _say_answer(checkup: results.Checkup) -> str:
    obstacles = results.list_obstacles(checkup)
    if not obstacles:
        unread = [
            check for job in checkup.jobs for check in job.checks if check.access is results.Access.UNKNOWN
        ]
        needed = [check.name for check in unread if check.needed]
        return f"nothing is forbidden, but not known: {', '.join(needed)}" if needed else ALL_WELL
    names = ", ".join(dict.fromkeys(check.name for check in obstacles))
    return f"not allowed or not there: {names}"


def _write_job(job: results.JobCheckup, *, brief: bool) -> list[str]:
    """Write a job; with ``brief`` all that may be read is in one line."""
    tried = count_of(len(job.pids), "process", "processes")
    lines = lay_paragraph("job", f"{job.pid} {job.name} of {job.user}, {tried} tried")
    if job.remark:
        lines += lay_paragraph("", job.remark)
    if not brief:
        return [*lines, *_write_checks("", job.checks)]
    well = [check.name for check in job.checks if check.access is results.Access.ALLOWED]
    if well:
        lines += lay_paragraph("", f"may be read: {', '.join(well)}")
    return [
        *lines,
        *_write_checks("", [check for check in job.checks if check.access is not results.Access.ALLOWED]),
    ]


def _write_checks(label: str, checks: Sequence[results.Check]) -> list[str]:
    lines: list[str] = []
    told = ""
    for number, check in enumerate(checks):
        mark = "!" if results.is_obstacle(check) else " "
        head = f"{'' if number else label:<{LABEL_WIDTH}}{mark}{_WORDS[check.access]:<4}"
        first, *rest = wrap_all(clean_text(check.why, 600), WIDTH - len(_INDENT)) or [""]
        lines.append(f"{head}{check.name:<{_NAME_WIDTH}}{first}")
        lines += [f"{_INDENT}{line}" for line in rest]
        fix = check.fix if is_known(check.fix) and check.access is not results.Access.ALLOWED else ""
        if fix and fix != told:
            lines.append(f"{_INDENT}try: {fix}")
        told = fix or told
    return lines


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
    unread = _say_unread(jobs, as_root)
    hidden = [line for said in unread for line in wrap_all(said, width)]
    if not jobs.jobs:
        said = [NO_OWN_JOBS] if hidden else NO_JOBS
        return [*(line for text in said for line in wrap_all(text, width)), *hidden]
    longest = tuple(sorted(jobs.jobs, key=lambda job: (-job.uptime_s, job.pid)))
    lines = write_rows(list_columns(_JOBS, longest), longest, width=width + 1)
    return [*(line[1:] for line in lines), *write_unread(longest, width=width), *hidden]


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
