"""Which processes make a job, and what is said of PIDs that belong to none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.children import Child, child
from tests.fake_proc import BASH, FakeProc
from tpmon.errors import ExitCode, NoTargetError, NotPermittedError, TpmonError, UsageError
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.model.results import JobState
from tpmon.probe.job import Job
from tpmon.probe.jobs import list_jobs
from tpmon.probe.target import find_job, find_only_job

RANK, WORKER, LAUNCHER, HELPER = Role.RANK, Role.WORKER, Role.LAUNCHER, Role.HELPER


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def roles(job: Job) -> dict[int, Role]:
    return {member.identity.pid: member.role for member in job.members}


def ranks(job: Job) -> dict[int, object]:
    return {member.identity.pid: member.rank for member in job.members if member.role is RANK}


def refusal(pid: int, proc: str) -> TpmonError:
    with pytest.raises(TpmonError) as caught:
        find_job(pid, proc)
    return caught.value


@pytest.mark.parametrize("asked", [100, 101, 102, 110, 121])
def test_a_job_is_the_same_whichever_member_is_asked(fake: FakeProc, asked: int) -> None:
    fake.add(50, 1, ("-bash",))
    fake.add_torchrun(100, 50)
    job = find_job(asked, fake.proc)
    assert (job.root.pid, job.asked_pid) == (100, asked)
    assert roles(job) == {100: LAUNCHER, 101: RANK, 102: RANK} | dict.fromkeys((110, 111, 120, 121), WORKER)
    places = {m.identity.pid: (m.rank, m.worker, m.rank_pid, m.parent) for m in job.members}
    assert places[102] == (1, NOT_APPLICABLE, 102, 100)
    assert places[121] == (1, 1, 102, 102)
    assert places[100] == (NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE, 50)
    assert (job.world_size, job.rank_source, job.script) == (4, "environment", "train.py")


def test_two_jobs_of_one_shell_stay_two(fake: FakeProc) -> None:
    fake.add(50, 1, ("bash", "run_both.sh"))
    for pid in (60, 70):
        fake.add(pid, 50, ("python", "train.py"), torch=True)
        fake.add(pid + 1, pid, ("python", "train.py"), name="pt_data_worker")
    assert set(roles(find_job(61, fake.proc))) == {60, 61}
    assert set(roles(find_job(70, fake.proc))) == {70, 71}


def test_two_torchrun_nodes_on_one_host_stay_two(fake: FakeProc) -> None:
    fake.add(50, 1, BASH)
    fake.add_torchrun(100, 50)
    fake.add_torchrun(200, 50, first=2)
    assert ranks(find_job(110, fake.proc)) == {101: 0, 102: 1}
    assert ranks(find_job(220, fake.proc)) == {201: 2, 202: 3}
    assert find_job(200, fake.proc).world_size == 4


def place_of_rank(rank: int, *, run: str = "", port: int = 29500, world: int = 3) -> dict[str, str]:
    """Return the start environment of a rank that meets the others at one address of this host."""
    environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    return environ | ({"TORCHELASTIC_RUN_ID": run} if run else {})


@pytest.mark.parametrize("asked", [101, 102, 103, 110])
def test_ranks_whose_launcher_died_are_one_job_and_it_is_said(fake: FakeProc, asked: int) -> None:
    for rank, pid in ((1, 101), (0, 102), (2, 103)):
        fake.add(pid, 1, ("python", "train.py"), environ=place_of_rank(rank, run="a"), torch=True)
    fake.add(110, 101, ("python", "train.py"), name="pt_data_worker", torch=True)
    fake.add(200, 1, ("python", "train.py"), environ=place_of_rank(1, run="b"), torch=True)
    job = find_job(asked, fake.proc)
    assert (job.root.pid, job.asked_pid, job.world_size) == (102, asked, 3)
    assert roles(job) == {101: RANK, 102: RANK, 103: RANK, 110: WORKER}
    assert ranks(job) == {102: 0, 101: 1, 103: 2}
    assert job.rank_source == "environment; their launcher is gone"
    assert job.remark == "the launcher of this job is gone; 3 ranks live on here: 102, 101, 103"
    assert find_job(200, fake.proc).remark == "the launcher of this job is gone; one rank lives on here: 200"
    listed = [(job.pid, job.ranks, job.workers) for job in list_jobs(fake.proc).jobs]
    assert sorted(listed) == [(102, 3, 1), (200, 1, 0)]


def test_ranks_that_were_started_one_by_one_are_one_job(fake: FakeProc) -> None:
    fake.add(50, 1, ("bash", "start.sh"))
    for rank, pid in enumerate((60, 61)):
        fake.add(pid, 50, ("python", "train.py"), environ=place_of_rank(rank, world=2), torch=True)
    job = find_job(61, fake.proc)
    assert (job.root.pid, ranks(job), job.remark) == (60, {60: 0, 61: 1}, "")
    assert job.rank_source == "environment; no launcher above them, they meet at one address"


def test_ranks_that_cannot_be_of_one_run_stay_apart(fake: FakeProc) -> None:
    """One left over from an earlier run, one of another container, one at another port."""
    for pid, rank in ((60, 0), (61, 1), (62, 1)):
        fake.add(pid, 1, ("python", "train.py"), environ=place_of_rank(rank), torch=True)
    fake.add(70, 1, ("python", "train.py"), environ=place_of_rank(2), torch=True, network="net:[2]")
    fake.add(80, 1, ("python", "train.py"), environ=place_of_rank(2, port=29501), torch=True)
    fake.add_torchrun(100)
    assert sorted(job.pid for job in list_jobs(fake.proc).jobs) == [60, 61, 62, 70, 80, 100]
    assert set(roles(find_job(60, fake.proc))) == {60}


def test_a_launcher_above_an_interactive_shell_does_not_count(fake: FakeProc) -> None:
    fake.add(50, 1, ("slurmstepd: [77.0]",), name="slurmstepd", exe="/usr/sbin/slurmstepd")
    fake.add(51, 50, BASH)
    fake.add(60, 51, ("python", "a.py"), torch=True)
    fake.add(70, 51, ("python", "b.py"), torch=True)
    assert set(roles(find_job(60, fake.proc))) == {60}
    assert set(roles(find_job(70, fake.proc))) == {70}


@pytest.mark.parametrize(
    ("title", "root"),
    [("slurmstepd: [77.0]", 50), ("slurmstepd: [77.batch]", 60), ("slurmstepd: [77.extern]", 60)],
)
def test_only_a_numbered_slurm_step_is_a_launcher(fake: FakeProc, title: str, root: int) -> None:
    fake.add(50, 1, (title,), name="slurmstepd", exe="/usr/sbin/slurmstepd")
    place = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8"}
    if root == 50:
        place["SLURM_STEP_ID"] = "0"
    fake.add(60, 50, ("python", "train.py"), environ=place, torch=True)
    job = find_job(60, fake.proc)
    assert job.root.pid == root
    member = job.members[-1]
    expected = (3, 1, 8, "Slurm environment") if root == 50 else (0, 0, 1, "single process")
    assert (member.rank, member.local_rank, job.world_size, job.rank_source) == expected


def test_scripts_and_wrappers_may_stand_between_launcher_and_ranks(fake: FakeProc) -> None:
    fake.add(50, 1, BASH)
    fake.add(60, 50, ("/usr/bin/mpirun", "-n", "2", "bash", "run.sh"))
    for local, pid in enumerate((61, 71)):
        place = {
            "OMPI_COMM_WORLD_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_SIZE": "2",
        }
        fake.add(pid, 60, ("bash", "run.sh"), environ=place)
        fake.add(pid + 1, pid, ("timeout", "1h", "uv", "run", "train.py"), environ=place)
        fake.add(pid + 2, pid + 1, ("uv", "run", "train.py"), environ=place)
        fake.add(pid + 3, pid + 2, ("python", "train.py"), environ=place, torch=True)
    job = find_job(74, fake.proc)
    assert job.root.pid == 60
    assert ranks(job) == {64: 0, 74: 1}
    assert 61 not in roles(job)
    assert roles(job)[72] is HELPER
    assert job.rank_source == "MPI environment"
    assert find_job(71, fake.proc).root.pid == 60


def test_launchers_of_one_command_are_one(fake: FakeProc) -> None:
    fake.add(60, 1, ("mpiexec.hydra", "-n", "1", "python", "train.py"))
    fake.add(61, 60, ("/opt/mpi/bin/hydra_pmi_proxy", "--control-port", "x:1"))
    fake.add(62, 61, ("python", "train.py"), torch=True, environ={"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert find_job(62, fake.proc).root.pid == 60


def test_without_a_launcher_the_highest_python_with_torch_is_the_root(fake: FakeProc) -> None:
    fake.add(50, 1, ("python", "-m", "wandb", "agent", "sweep"))
    fake.add(60, 50, ("python", "train.py"), torch=True)
    fake.add(61, 60, ("sh", "-c", "python eval.py"))
    fake.add(62, 61, ("python", "eval.py"), torch=True)
    fake.add(63, 60, ("/usr/bin/wandb-core",), name="wandb-core")
    job = find_job(62, fake.proc)
    assert roles(job) == {60: RANK, 62: HELPER, 63: HELPER}
    assert {m.identity.pid: m.label for m in job.members} == {60: "train.py", 62: "eval.py", 63: "wandb-core"}
    assert (job.world_size, job.rank_source) == (1, "single process")
    assert "Python without torch" in refusal(50, fake.proc).what
    assert refusal(50, fake.proc).try_this == "tpmon attach 60 (train.py)"


def test_a_jupyter_kernel_is_a_job_and_its_server_is_not(fake: FakeProc) -> None:
    fake.add(40, 1, ("slurmstepd: [9.0]",), name="slurmstepd")
    fake.add(50, 40, ("python", "/venv/bin/jupyter-lab"), torch=True)
    fake.add(60, 50, ("python", "-m", "ipykernel_launcher", "-f", "k.json"), torch=True)
    job = find_job(60, fake.proc)
    assert roles(job) == {60: RANK}
    assert job.script == "Jupyter kernel"
    assert refusal(50, fake.proc).try_this == "tpmon attach 60 (Jupyter kernel)"


def test_ray_daemons_are_no_part_of_a_job(fake: FakeProc) -> None:
    fake.add(40, 1, ("slurmstepd: [9.0]",), name="slurmstepd")
    fake.add(50, 40, ("/venv/ray/core/src/ray/raylet/raylet",), name="raylet")
    fake.add(51, 50, ("python", "-u", "/venv/ray/dashboard/agent.py"), torch=True)
    fake.add(60, 50, ("ray::TrainWorker",), exe="/usr/bin/python3.11", torch=True)
    assert roles(find_job(60, fake.proc)) == {60: RANK}
    assert refusal(51, fake.proc).exit_code == ExitCode.NO_TARGET


def test_accelerate_with_one_process_has_one_rank(fake: FakeProc) -> None:
    fake.add(50, 1, ("python", "/venv/bin/accelerate", "launch", "train.py"), torch=True)
    fake.add(51, 50, ("python", "train.py"), torch=True)
    job = find_job(51, fake.proc)
    assert roles(job) == {50: LAUNCHER, 51: RANK}
    assert ranks(job) == {51: 0}
    assert [m.label for m in job.members] == ["accelerate launch", "train.py"]


def test_a_python_wrapper_without_torch_is_not_taken_for_the_rank(fake: FakeProc) -> None:
    place = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    fake.add(50, 1, ("mpirun", "conda", "run", "python", "train.py"))
    fake.add(51, 50, ("python", "/opt/conda/bin/conda", "run"), environ=place)
    fake.add(52, 51, ("bash", "/tmp/conda-run"), environ=place)
    fake.add(53, 52, ("python", "train.py"), environ=place, torch=True)
    assert roles(find_job(53, fake.proc)) == {50: LAUNCHER, 51: HELPER, 53: RANK}


def test_a_python_program_that_gives_ranks_their_places_is_a_launcher(fake: FakeProc) -> None:
    fake.add(50, 1, ("python", "my_launcher.py"))
    for local in range(2):
        place = {"RANK": str(local), "LOCAL_RANK": str(local), "WORLD_SIZE": "2"}
        fake.add(51 + local, 50, ("python", "train.py"), environ=place, torch=True)
    job = find_job(52, fake.proc)
    assert roles(job) == {50: LAUNCHER, 51: RANK, 52: RANK}
    assert ranks(job) == {51: 0, 52: 1}


def test_trials_that_all_carry_rank_0_stay_jobs_of_their_own(fake: FakeProc) -> None:
    fake.add(50, 1, ("python", "sweep.py"))
    for pid in (51, 52):
        place = {"RANK": "0", "WORLD_SIZE": "1"}
        fake.add(pid, 50, ("python", "train.py"), environ=place, torch=True)
    assert roles(find_job(52, fake.proc)) == {52: RANK}


def test_the_first_rank_of_lightning_starts_the_others(fake: FakeProc) -> None:
    fake.add(50, 1, ("python", "fit.py"), torch=True, threads=("pt_gloo_runloop",))
    place = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}
    fake.add(51, 50, ("python", "fit.py"), environ=place, torch=True)
    job = find_job(51, fake.proc)
    assert ranks(job) == {50: 0, 51: 1}
    assert job.world_size == 2


def test_versions_are_read_without_importing(fake: FakeProc) -> None:
    fake.add(60, 1, ("python", "train.py"), torch=True)
    package = fake.path / "60" / "root" / "venv/lib/python3.11/site-packages/torch"
    assert isinstance(find_job(60, fake.proc).torch_version, Missing)
    package.mkdir(parents=True)
    (package.parent / "torch-2.3.1+cu121.dist-info").mkdir()
    assert find_job(60, fake.proc).torch_version == "2.3.1+cu121"
    (package / "version.py").write_text("from typing import Optional\n__version__ = '2.4.0'\n")
    job = find_job(60, fake.proc)
    assert (job.torch_version, job.python_version) == ("2.4.0", "3.11")
    (fake.path / "60" / "maps").write_text(
        "7f00-7f01 r-xp 0 08:01 2    /venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so (deleted)\n"
    )
    assert find_job(60, fake.proc).torch_version == Missing("torch was replaced on disk since the start")


def test_only_variables_that_matter_are_shown_and_secrets_are_hidden(fake: FakeProc) -> None:
    environ = {
        "HOME": "/root",
        "OMP_NUM_THREADS": "8",
        "NCCL_DEBUG": "INFO\x1b[2J",
        "NCCL_NET_TOKEN": "hunter2",
        "MY_RANK": "5",
    }
    fake.add(60, 1, ("python", "train.py"), environ=environ, torch=True)
    settings = find_job(60, fake.proc).members[0].environment
    assert not isinstance(settings, Missing)
    assert {setting.name: setting.value for setting in settings} == {
        "OMP_NUM_THREADS": "8",
        "NCCL_DEBUG": "INFO?[2J",
        "NCCL_NET_TOKEN": "(hidden)",
    }


def test_each_wrong_target_has_its_own_message(fake: FakeProc) -> None:
    fake.add(2, 0, (), name="kthreadd", kernel=True)
    fake.add(50, 1, ("sleep", "100"))
    fake.add(60, 1, ("python", "serve.py"))
    fake.add_torchrun(100)
    fake.add(105, 100, (), name="python", state="Z")
    said = {pid: refusal(pid, fake.proc) for pid in (2, 50, 60, 105, 999)}
    assert {error.exit_code for error in said.values()} == {ExitCode.NO_TARGET}
    assert said[2].what == "process 2 (kthreadd) is a kernel thread"
    assert said[50].what == "process 50 (sleep) is not Python"
    assert said[60].what == "process 60 (serve.py) is Python without torch (yet)"
    assert said[60].try_this.startswith("when its import is done, tpmon attach 60 again")
    assert said[105].what == "process 105 (python) has ended; its parent 100 (pt_elastic) has not noticed"
    assert said[105].try_this == "tpmon attach 100 (torchrun)"
    assert said[999].what == "no process 999 on this machine"
    assert said[999].try_this == "tpmon ps lists the training jobs of this machine"


def test_a_shell_names_the_jobs_below_it(fake: FakeProc) -> None:
    fake.add(50, 1, ("bash", "run.sh"))
    fake.add(60, 50, ("python", "a.py"), torch=True)
    fake.add_torchrun(100, 50)
    error = refusal(50, fake.proc)
    assert error.what == "process 50 (bash) is not Python"
    assert error.try_this == "tpmon attach 60 (a.py) or 100 (torchrun)"


def test_a_launcher_of_something_else_is_refused(fake: FakeProc) -> None:
    fake.add(50, 1, ("mpirun", "./cfd"))
    fake.add(51, 50, ("./cfd",))
    fake.add(60, 1, ("srun", "python", "train.py"))
    fake.add(61, 60, ("srun", "python", "train.py"))
    assert "nothing below it is Python with torch" in refusal(51, fake.proc).what
    assert "its tasks run below slurmstepd" in refusal(61, fake.proc).what


def test_a_pid_of_a_container_is_translated_or_the_right_one_is_named(fake: FakeProc) -> None:
    fake.add(50, 1, ("sleep", "9"), inside=(1,))
    fake.add(1000, 50, ("python", "train.py"), torch=True, inside=(17,))
    job = find_job(17, fake.proc)
    assert (job.root.pid, job.asked_pid) == (1000, 1000)
    assert job.remark == "PID 17 in its container is 1000 here"
    fake.add(17, 1, ("sleep", "9"))
    error = refusal(17, fake.proc)
    assert error.what == "process 17 (sleep) is not Python"
    assert error.try_this == "tpmon attach 1000 (which is 17 in its container)"
    fake.remove(17)
    fake.add(1001, 50, ("python", "other.py"), torch=True, inside=(17,))
    error = refusal(17, fake.proc)
    assert error.what == "no process 17 here, and 2 processes go by it in their containers: 1000, 1001"


def test_the_process_of_the_container_is_named_before_the_jobs_below_our_own(fake: FakeProc) -> None:
    fake.add(60, 1, ("python", "ours.py"), torch=True)
    fake.add(1000, 1, ("python", "train.py"), torch=True, inside=(1,))
    error = refusal(1, fake.proc)
    assert error.what == "process 1 (init) is not Python"
    assert error.try_this == (
        "tpmon attach 1000 (which is 1 in its container) or 60 (ours.py) or 1000 (train.py)"
    )


def test_a_thread_is_taken_for_its_process(fake: FakeProc) -> None:
    fake.add(60, 1, ("python", "train.py"), torch=True)
    (fake.path / "6001").mkdir()
    (fake.path / "6001" / "status").write_text("Tgid:\t60\nPid:\t6001\nUid:\t0\t0\t0\t0\nNSpid:\t6001\n")
    job = find_job(6001, fake.proc)
    assert (job.asked_pid, job.remark) == (60, "6001 is a thread of process 60")


def test_the_only_job_of_this_user(fake: FakeProc) -> None:
    fake.add(60, 1, ("python", "theirs.py"), torch=True, uid=os.geteuid() + 1)
    with pytest.raises(NoTargetError):
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


def test_jobs_of_the_machine_are_listed_with_their_cards(fake: FakeProc) -> None:
    fake.add(40, 1, ("python", "server.py"))
    fake.add(41, 1, ("mpirun", "./cfd"))
    fake.add_torchrun(100)
    for number, device in enumerate(("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/null")):
        (fake.path / "101" / "fd" / str(number)).symlink_to(device)
    for number, device in enumerate(("/dev/nvidia3", "/dev/nvidia0")):
        (fake.path / "102" / "fd" / str(number)).symlink_to(device)
    fake.add(300, 1, ("python", "other.py"), torch=True)
    jobs = list_jobs(fake.proc).jobs
    assert [(job.pid, job.script, job.ranks, job.workers, job.gpus) for job in jobs] == [
        (100, "train.py", 2, 4, 2),
        (300, "other.py", 1, 0, 0),
    ]
    assert jobs[0].uptime_s == pytest.approx((1_000_000 - 100) / os.sysconf("SC_CLK_TCK"), abs=30)


def test_jobs_are_told_apart_by_their_arguments_and_state(fake: FakeProc) -> None:
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


HOLD_TORCH = """
import mmap
path = sys.argv[1] + "/libtorch_cpu.so"
with open(path, "wb") as file:
    file.write(bytes(4096))
with open(path, "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if len(sys.argv) > 2:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: as unreadable as another user's
say("ready")
hear()
"""


def test_real_wrong_targets(tmp_path: Path) -> None:
    with child(HOLD_TORCH, str(tmp_path)) as target:
        assert find_job(target.pid).root.pid == target.pid
        os.kill(target.pid, signal.SIGKILL)
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        assert "has ended; its parent" in refusal(target.pid, "/proc").what
    assert refusal(target.pid, "/proc").what.startswith(f"no process {target.pid}")
    with child('say("ready"); hear()') as plain:
        assert "Python without torch (yet)" in refusal(plain.pid, "/proc").what


def test_a_target_that_may_not_be_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    look = (
        "import os, sys\n"
        "from tpmon.errors import NotPermittedError\n"
        "from tpmon.probe.target import find_job\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try:\n    find_job(int(sys.argv[1]))\n"
        "except NotPermittedError as error:\n    print(error.exit_code.value, error.what, error.try_this)\n"
    )
    with child(HOLD_TORCH, str(tmp_path), *(() if os.geteuid() == 0 else ("hide",))) as target:
        said = subprocess.run(
            [sys.executable, "-c", look, str(target.pid)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert said.stdout.startswith("4 process"), said.stderr
        assert f"sudo tpmon attach {target.pid}" in said.stdout
        if os.geteuid() == 0:
            assert "belongs to user root" in said.stdout


FAMILY = """
import mmap
path = sys.argv[1] + "/libtorch_cpu.so"
with open(path, "wb") as file:
    file.write(bytes(4096))
with open(path, "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if (worker := os.fork()) == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: not even its own user may read it
    ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
    time.sleep(50)
while open(f"/proc/{worker}/comm").read().strip() != "pt_data_worker":
    time.sleep(0.01)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
say(str(worker))
hear()
"""

AS_ANOTHER = """
import json
sys.path[:0] = sys.argv[2:]
from tpmon.errors import NotPermittedError
from tpmon.model.codec import to_plain
from tpmon.probe.jobs import list_jobs
from tpmon.probe.target import find_job
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    find_job(int(sys.argv[1]))
    refusal = []
except NotPermittedError as error:
    refusal = [error.what, error.try_this]
say(json.dumps([refusal, to_plain(list_jobs())]))
"""


def ask_as_another(pid: int) -> tuple[list[str], dict[str, Any]]:
    one = Child(AS_ANOTHER, str(pid), *sys.path)
    try:
        refusal, jobs = json.loads(one.hear())
    finally:
        one.close()
    return refusal, jobs


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@needs_root
def test_a_worker_that_may_not_be_read_names_its_rank_that_may(tmp_path: Path) -> None:
    one = Child(FAMILY, str(tmp_path))
    try:
        worker = int(one.hear())
        refusal, _ = ask_as_another(worker)
        assert refusal == [
            f"process {worker} may not be read by this user, but {one.pid} of the same job may",
            f"tpmon attach {one.pid}",
        ]
        assert ask_as_another(one.pid)[0] == []
    finally:
        one.close()


NAME_A_THREAD = """
named = threading.Event()
def run():
    ctypes.CDLL(None).prctl(15, b"pt_autograd_0", 0, 0, 0)
    named.set(); time.sleep(50)
threading.Thread(target=run, daemon=True).start()
named.wait()
"""


@needs_root
def test_jobs_of_other_users_are_counted_or_listed_without_false_counts(tmp_path: Path) -> None:
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


def test_errors_carry_the_exit_codes_of_the_guide() -> None:
    assert (NoTargetError.exit_code, NotPermittedError.exit_code, UsageError.exit_code) == (3, 4, 2)
