"""Which jobs there are: the only one of this user, the list of all, and whose they are."""

import errno
import os
import time
from functools import partial

import pytest

from tests.children import child
from tests.fake_proc import FakeProc
from tests.targets import HOLD_TORCH, ask_as_another, needs_root, place_of_rank
from tpmon.errors import NoTargetError, NotPermittedError, SeveralJobsError, UsageError
from tpmon.model.known import NOT_APPLICABLE, Known, Missing
from tpmon.model.process import Freezer, Role
from tpmon.model.results.doctor import JobState
from tpmon.probe.base import procread
from tpmon.probe.doctor.checks import make_subject
from tpmon.probe.job import discovery as survey
from tpmon.probe.job import process_facts as facts
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.job import read_owner, user_name
from tpmon.probe.job.resolve import find_job, find_named, find_only_job


def test_the_only_job_of_this_user(fake):
    with pytest.raises(NoTargetError, match=r"^this user runs no training job on this machine$"):
        find_only_job(fake.proc)
    theirs = os.geteuid() + 1
    fake.add(60, 1, ("python", "theirs.py"), torch=True, uid=theirs)
    with pytest.raises(NoTargetError, match=rf"machine; there are those of {user_name(theirs)}: 60 \(theirs.py\)$"):
        find_only_job(fake.proc)
    fake.add_torchrun(100)
    assert find_only_job(fake.proc).root.pid == 100
    fake.add(300, 1, ("python", "second.py"), torch=True)
    with pytest.raises(UsageError, match=r"2 training jobs here: 100 \(train.py\), 300 \(second.py\)$"):
        find_only_job(fake.proc)
    for pid in range(400, 410):
        fake.add(pid, 1, ("python", "third.py"), torch=True)
    with pytest.raises(UsageError, match=r"12 training jobs here: .* and 4 more$") as caught:
        find_only_job(fake.proc)
    assert caught.value.try_this.startswith("tpmon ps")


def test_a_job_is_found_by_the_name_of_its_script_and_of_several_none_is_chosen(fake):
    with pytest.raises(NoTargetError, match=r"^no training job here goes by train: there is none$") as caught:
        find_named("train", fake.proc)
    assert "tpmon demo" in caught.value.try_this
    fake.add_torchrun(100)
    fake.add(300, 1, ("bash", "run.sh"))
    fake.add(310, 300, ("python", "-m", "lab.second", "--lr", "1"), torch=True)
    fake.add(400, 1, ("python", "/theirs/eval.py"), torch=True, uid=os.geteuid() + 1)
    assert [find_named(name, fake.proc) for name in ("train", "train.py", "lab.second", "second", "SEC")] == [
        *(100, 100, 310, 310, 310)
    ]
    assert find_named("eval", fake.proc) == 400, "another user's, where none of ours goes by it"
    fake.add(500, 1, ("python", "/mine/eval_all.py"), torch=True)
    assert find_named("eval", fake.proc) == 500
    fake.add(510, 1, ("python", "/mine/b/second.py"), torch=True)
    with pytest.raises(SeveralJobsError, match=r"^2 training jobs go by sec: 310 \(lab.second\), 510 \(second.py\)$"):
        find_named("sec", fake.proc)
    with pytest.raises(NoTargetError, match=r"goes by trian; there are: 100 \(train.py\), 310 "):
        find_named("trian", fake.proc)


def test_of_two_jobs_on_a_node_the_one_of_the_own_slurm_job_is_meant(fake, monkeypatch):
    for pid, slurm_job in ((100, "77"), (200, "78"), (300, "")):
        step = {"SLURM_JOB_ID": slurm_job, "SLURM_STEP_ID": "0"} if slurm_job else {}
        fake.add(pid, 1, ("python", f"train{pid}.py"), environ=step, torch=True)
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    assert find_only_job(fake.proc).root.pid == 200
    for slurm_job in ("79", ""):
        monkeypatch.setenv("SLURM_JOB_ID", slurm_job)
        with pytest.raises(UsageError, match="3 training jobs here"):
            find_only_job(fake.proc)


def test_an_agent_of_a_slurm_job_watches_no_other_one(fake, monkeypatch):
    find = partial(find_only_job, fake.proc, may_be_of_other_slurm_job=False)
    fake.add(100, 1, ("python", "train.py"), environ={"SLURM_JOB_ID": "77"}, torch=True)
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    with pytest.raises(NoTargetError, match=r"^no training job of Slurm job 78 runs here; there is 100 \(train.py\)$"):
        find()
    assert find_only_job(fake.proc).root.pid == 100
    fake.add(200, 1, ("python", "by_ssh.py"), torch=True)
    assert find().root.pid == 200
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert find().root.pid == 100


def test_processes_that_do_not_answer_in_time_are_counted_and_none_is_called_the_only_job(fake, monkeypatch):
    fake.add_torchrun(100)
    fake.add(300, 1, ("python", "second.py"), torch=True)
    fake.add(301, 1, ("python", "theirs.py"), torch=True, uid=os.geteuid() + 1)
    late = {300, 301}

    def read(stat, proc, *, deep=False):
        if stat.pid in late:
            time.sleep(0.5)
        return read_facts(stat, proc, deep=deep)

    read_facts = facts.read_facts
    monkeypatch.setattr(facts, "read_facts", read)
    monkeypatch.setattr(facts, "read_all_facts", partial(facts.read_all_facts, each_s=0.2))
    listed = list_jobs(fake.proc)
    assert [one.pid for one in listed.jobs] == [100]
    assert (listed.unread, listed.unanswered) == (0, 2)
    with pytest.raises(NoTargetError, match=r"not every process could be read in time.*: 300$"):
        find_only_job(fake.proc)
    late.remove(300)
    late.add(102)
    time.sleep(0.6)  # no second thread asks while the first one waits
    assert [one.pid for one in list_jobs(fake.proc).jobs] == [100, 300]
    fake.remove(300)
    assert find_only_job(fake.proc).root.pid == 100, "what is in the job is no other one"


def test_jobs_of_the_machine_are_listed_with_their_cards(fake):
    fake.add(40, 1, ("python", "server.py"))
    fake.add(41, 1, ("mpirun", "./cfd"))
    fake.add_torchrun(100)
    for number, device in enumerate(("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/null")):
        (fake.path / "101" / "fd" / str(number)).symlink_to(device)
    for number, device in enumerate(("/dev/nvidia3", "/dev/nvidia0")):
        (fake.path / "102" / "fd" / str(number)).symlink_to(device)
    fake.add(300, 1, ("python", "other.py"), torch=True)
    jobs = list_jobs(fake.proc).jobs
    told = [(job.pid, job.script, job.ranks, job.workers, job.gpus) for job in jobs]
    assert told == [(100, "train.py", 2, 4, 2), (300, "other.py", 1, 0, 0)]
    assert jobs[0].uptime_s == pytest.approx((1_000_000 - 100) / os.sysconf("SC_CLK_TCK"), abs=30)


def test_jobs_are_told_apart_by_their_arguments_and_state(fake):
    fake.add(60, 1, ("python", "hang.py", "queue", "--api-key", "sk-12345678"), torch=True, state="T")
    fake.add(70, 1, ("python", "-c", "import torch\nlock()", "x"), torch=True)
    fake.add(80, 1, ("python", "-", "a" * 300), torch=True)
    for rank, pid in ((0, 90), (1, 91)):
        argv = ("python", "train.py", "--rank", str(rank))
        fake.add(pid, 1, argv, environ=place_of_rank(rank, run="a"), torch=True)
    fake.add(100, 1, ("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "t.py"), torch=True)
    told = {job.pid: (job.state, job.script, job.arguments) for job in list_jobs(fake.proc).jobs}
    assert told == {
        60: (JobState.STOPPED, "hang.py", "queue --api-key ***"),
        70: (JobState.RUNNING, "python -c", "import torch lock() x"),
        80: (JobState.RUNNING, "python -", "a" * 199 + "…"),
        90: (JobState.LAUNCHER_GONE, "train.py", "--rank 0"),
        100: (JobState.STARTING, "torch.distributed.run", "--nproc-per-node 2 t.py"),
    }


def test_a_job_whose_ranks_are_frozen_is_stopped(fake, monkeypatch):
    fake.add(70, 1, ("python", "train.py"), torch=True, state="D")
    fake.add(80, 1, ("python", "other.py"), torch=True, state="D")
    group = Freezer(1, "/train", "/sys/fs/cgroup/freezer/train")
    held = {70: group}
    monkeypatch.setattr(survey, "read_freezer", lambda pid, _proc: held.get(pid, NOT_APPLICABLE))
    told = {job.pid: job.state for job in list_jobs(fake.proc).jobs}
    assert told == {70: JobState.STOPPED, 80: JobState.RUNNING}


NAME_A_THREAD = """
named = threading.Event()
def run():
    ctypes.CDLL(None).prctl(15, b"pt_autograd_0", 0, 0, 0)
    named.set(); time.sleep(50)
threading.Thread(target=run, daemon=True).start()
named.wait()
"""


@needs_root
def test_jobs_of_other_users_are_counted_or_listed_without_false_counts(tmp_path):
    """The kernel shows thread names to everybody, so the first job is known to train."""
    with child(NAME_A_THREAD + HOLD_TORCH, str(tmp_path)) as told, child(HOLD_TORCH, str(tmp_path)) as hidden:
        _, jobs = ask_as_another(told.pid)
        mine = {job["pid"]: job for job in jobs["jobs"]}
        assert hidden.pid not in mine
        assert jobs["unread"] >= 2, "the hidden job, and pytest above it"
        missing = {"missing": "this user may not read a process of the job"}
        assert (mine[told.pid]["ranks"], mine[told.pid]["workers"]) == (missing, missing)
        assert "missing" in mine[told.pid]["gpus"]
        known = {job.pid: job for job in list_jobs().jobs}
        assert (known[told.pid].ranks, known[hidden.pid].ranks) == (1, 1)
        assert list_jobs().unread == 0


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

    def refuse(path: str, *limit: int) -> bytes:
        if any(f"/{pid}/{name}" in path for pid in pids for name in ("environ", "maps")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return procread.read_file(path, *limit)

    def read_exe(pid: int, proc: str) -> Known[str]:
        return Missing(os.strerror(errno.EACCES)) if pid in pids else procread.read_exe(pid, proc)

    monkeypatch.setattr(facts, "read_file", refuse)
    monkeypatch.setattr(facts, "read_exe", read_exe)
    monkeypatch.setattr(survey, "read_exe", read_exe)
