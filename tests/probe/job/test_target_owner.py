"""Whose job it is where the launcher above its ranks belongs to somebody else."""

import errno
import os
from collections.abc import Callable

import pytest

from tests.fake_proc import FakeProc
from tpmon.errors import NoTargetError, NotPermittedError
from tpmon.model.known import Known, Missing
from tpmon.model.process import Role
from tpmon.probe.base import procread
from tpmon.probe.doctor.checks import make_subject
from tpmon.probe.job import discovery as survey
from tpmon.probe.job import process_facts as facts
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.job import read_owner, user_name
from tpmon.probe.job.resolve import find_job, find_only_job


@pytest.mark.parametrize("asked", [50, 60])
def test_a_job_below_a_launcher_of_root_is_that_of_its_ranks(fake, monkeypatch, asked):
    deny(monkeypatch, 50)
    add_step(fake, user=os.geteuid())
    job = find_job(asked, fake.proc)
    assert (job.root.pid, job.uid) == (50, os.geteuid())
    assert [member.role for member in job.members] == [Role.LAUNCHER, Role.RANK, Role.RANK]
    assert find_only_job(fake.proc).root.pid == 50
    assert [one.user for one in list_jobs(fake.proc).jobs] == [user_name(os.geteuid())]
    patient = make_subject(job)
    assert (patient.user, patient.pids) == (user_name(os.geteuid()), (60, 61))


@pytest.mark.parametrize("asked", [50, 60])
def test_a_job_of_another_user_below_a_launcher_of_root_is_refused(fake, monkeypatch, asked):
    deny(monkeypatch, 50, 60, 61)
    add_step(fake, user=os.geteuid() + 2)
    with pytest.raises(NotPermittedError, match=f"process {asked} belongs to user"):
        find_job(asked, fake.proc)
    with pytest.raises(NoTargetError):
        find_only_job(fake.proc)


def test_a_job_is_its_root_s_once_its_first_rank_has_ended(fake):
    add_step(fake, user=os.geteuid())
    job = find_job(60, fake.proc)
    for pid in (60, 61):
        fake.remove(pid)
    assert read_owner(50, job.parts, job.facts, fake.proc) == os.geteuid() + 1


def add_step(fake: FakeProc, user: int) -> None:
    """Add a Slurm step with two ranks; its slurmstepd belongs to somebody else."""
    title = ("slurmstepd: [77.0]",)
    fake.add(50, 1, title, name="slurmstepd", exe="/usr/sbin/slurmstepd", uid=os.geteuid() + 1)
    for rank in range(2):
        place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": "2"}
        environ = {**place, "SLURM_STEP_ID": "0"}
        threads = ("pt_autograd_0",)
        fake.add(60 + rank, 50, ("python", "t.py"), environ=environ, torch=True, uid=user, threads=threads)


def deny(monkeypatch: pytest.MonkeyPatch, *pids: int) -> None:
    """Refuse what the kernel refuses of another user's processes: environ, maps and program file."""

    def refuse(read: Callable[..., object], path_of: Callable[..., str]) -> Callable[..., object]:
        def reader(*args: object, **options: object) -> object:
            path = path_of(*args)
            if any(f"/{pid}/{name}" in path for pid in pids for name in ("environ", "maps")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return read(*args, **options)

        return reader

    def read_exe(pid: int, proc: str) -> Known[str]:
        return Missing(os.strerror(errno.EACCES)) if pid in pids else procread.read_exe(pid, proc)

    monkeypatch.setattr(facts, "read_file", refuse(procread.read_file, lambda path, *_: str(path)))
    monkeypatch.setattr(facts, "read_maps", refuse(procread.read_maps, lambda pid, *_: f"/{pid}/maps"))
    monkeypatch.setattr(facts, "read_exe", read_exe)
    monkeypatch.setattr(survey, "read_exe", read_exe)
