"""Write what may be read of a job and what not: what ``tpmon doctor`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results.doctor import Access, Check, Checkup, JobCheckup, is_obstacle, list_obstacles
from tpmon.model.units import clean_text
from tpmon.view.layout import LABEL_WIDTH, WIDTH, lay_paragraph, wrap_all

_WORDS = {Access.ALLOWED: "yes", Access.DENIED: "NO", Access.ABSENT: "-", Access.UNKNOWN: "?"}
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
        lines += ["", *lay_paragraph("jobs", "none of this user's is running; only the machine was checked")]
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
        first, *rest = wrap_all(clean_text(check.why, 600), WIDTH - len(_INDENT)) or [""]
        lines.append(f"{head}{check.name:<{_NAME_WIDTH}}{first}")
        lines += [f"{_INDENT}{line}" for line in rest]
        fix = check.fix if is_known(check.fix) and check.access is not Access.ALLOWED else ""
        if fix and fix != told:
            lines.append(f"{_INDENT}try: {fix}")
        told = fix or told
    return lines
