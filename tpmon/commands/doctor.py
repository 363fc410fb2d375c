"""The command ``doctor``: what may be read of a job, why not, and what would change it."""

from __future__ import annotations

from datetime import datetime

from tpmon.config import Options
from tpmon.errors import ExitCode, NoTargetError, NotPermittedError, TpmonError
from tpmon.model.codec import encode
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity, Role
from tpmon.model.results.doctor import Checkup, list_obstacles
from tpmon.probe.base.procread import PROC, is_python_name, read_exe, read_stat, read_status
from tpmon.probe.doctor.checks import Patient, make_patient, read_checkup
from tpmon.probe.job.job import Member, user_name
from tpmon.probe.job.resolve import find_job, find_own_jobs
from tpmon.report.doctor import write_checkup
from tpmon.report.text import Output, complain

MOST_JOBS = 4


def run_doctor(pid: int | None, options: Options, output: Output) -> int:
    """Try every source of the job around ``pid``, or of all own jobs, and write what came of it.

    Raises:
        NoTargetError: when there is no such process.
        NotPermittedError: when the process is hidden.
    """
    patients = [find_patient(pid)] if pid is not None else find_own_patients()
    checkup = read_checkup(patients, stacks=not options.no_stacks)
    if options.json:
        output.write_json(encode(checkup))
    else:
        output.write_lines(*write_checkup(checkup))
    return pick_exit_code(checkup)


def pick_exit_code(checkup: Checkup) -> int:
    """Return 0, or 4 when something that tpmon needs may not be read or is not there."""
    return ExitCode.NOT_PERMITTED if list_obstacles(checkup) else ExitCode.OK


def find_own_patients() -> list[Patient]:
    """Name the jobs of this user, the oldest first, at most ``MOST_JOBS``; say when there are more."""
    jobs = find_own_jobs()
    if len(jobs) > MOST_JOBS:
        complain(
            f"tpmon: you run {len(jobs)} training jobs here; these are the {MOST_JOBS} oldest:"
            " tpmon doctor PID for another one"
        )
    return [make_patient(job) for job in jobs[:MOST_JOBS]]


def find_patient(pid: int) -> Patient:
    """Name the job around a process, or the process alone where it is in none that may be read.

    Raises:
        NoTargetError: when there is no such process, or nothing of it is left.
        NotPermittedError: when the process is hidden.
    """
    try:
        return make_patient(find_job(pid))
    except (NoTargetError, NotPermittedError) as error:
        alone = _make_lone_patient(pid, error)
        if alone is None:
            raise
        return alone


def _make_lone_patient(pid: int, error: TpmonError) -> Patient | None:
    """Name a process that is in no job that may be read; None where there is nothing to try."""
    try:
        stat = read_stat(pid)
        uid = read_status(pid).uid
        exe = read_exe(pid, PROC)
    except OSError:
        return None
    if stat.kernel or stat.state in "ZX":
        return None
    member: Applicable[Member] = NOT_APPLICABLE
    if not is_known(exe) or is_python_name(exe):
        member = Member(
            identity=Identity(pid, stat.start_ticks),
            parent=stat.parent,
            role=Role.RANK,
            rank=NOT_APPLICABLE,
            local_rank=NOT_APPLICABLE,
            worker=NOT_APPLICABLE,
            rank_pid=NOT_APPLICABLE,
            name=stat.name,
            label=stat.name,
            started=datetime.now().astimezone(),
            environment=(),
        )
    return Patient(pid, stat.name, user_name(uid), (pid,), member, error.what)
