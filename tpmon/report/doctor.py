"""Write what may be read of a job and of this machine: ``tpmon doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results import doctor as results
from tpmon.model.units import clean_text, count_of
from tpmon.view.layout import LABEL_WIDTH, WIDTH, lay_paragraph, wrap_all

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
