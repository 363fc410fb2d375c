"""The command ``doctor``: what may be read of a job, why not, and what would change it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpmon.commands.command import Subcommand, Wanted, find_pid, pid_argument, setting, write_result
from tpmon.errors import ExitCode
from tpmon.model.frozen import dataclass
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from tpmon.probe.doctor.checks import CheckupSubject

MOST_JOBS = 4


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Hold whose sources are tried, and the form of the answer."""

    pid: Wanted = pid_argument("all your jobs")
    json: bool = setting("json")
    ascii: bool = setting("ascii")
    no_stacks: bool = setting("no-stacks")


def run(options: DoctorOptions) -> int:
    """Try every source of the job around a process, or of all own jobs, and write what came of it."""
    from tpmon.model.results.doctor import list_obstacles
    from tpmon.probe.base.worker import step_aside
    from tpmon.probe.doctor.checks import find_subject, read_checkup
    from tpmon.report.doctor import write_checkup

    step_aside()
    subjects = _find_own_subjects() if options.pid is None else [find_subject(find_pid(options.pid))]
    checkup = read_checkup(subjects, stacks=not options.no_stacks)
    write_result(Output(1, options.ascii), checkup, partial(write_checkup, checkup), json=options.json)
    return ExitCode.NOT_PERMITTED if list_obstacles(checkup) else ExitCode.OK


def _find_own_subjects() -> list[CheckupSubject]:
    """Name the jobs of this user, the oldest first, at most ``MOST_JOBS``; say when there are more."""
    from tpmon.probe.doctor.checks import make_subject
    from tpmon.probe.job.resolve import find_own_jobs

    jobs, _ = find_own_jobs()
    if len(jobs) > MOST_JOBS:
        complain(
            f"tpmon: you run {len(jobs)} training jobs here; these are the {MOST_JOBS} oldest:"
            " tpmon doctor PID for another one"
        )
    return [make_subject(job) for job in jobs[:MOST_JOBS]]


COMMAND = Subcommand(
    DoctorOptions,
    run,
    "doctor [PID | NAME] [options]",
    "Try every source that tpmon reads: of the job around PID, or of all your jobs here, and of\n"
    "this machine. Show what may be read and what not, why, and the one command that changes it.\n"
    "Nothing is stopped. Ends with 4 if something that is needed may not be read or is missing.",
)
