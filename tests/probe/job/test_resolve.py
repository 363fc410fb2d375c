"""Which processes make a job, who is waited for, and what is said of PIDs that belong to none."""

import os
from contextlib import closing

import pytest

from tests.children import MAP_TORCH, Child, child
from tests.fake_proc import BASH, FakeProc
from tests.targets import HOLD_TORCH, ask_as_another, needs_root, place_of_rank, refusal
from tpmon.errors import ExitCode, NoTargetError, StartingError
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Identity, Role
from tpmon.probe.base.procread import TICKS_PER_S
from tpmon.probe.job import resolve as target
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.job import Job
from tpmon.probe.job.resolve import await_job, find_job, find_job_again

RANK, WORKER, LAUNCHER, HELPER = Role.RANK, Role.WORKER, Role.LAUNCHER, Role.HELPER


def ranks(job: Job) -> dict[int, object]:
    return {member.identity.pid: member.rank for member in job.members if member.role is RANK}


def roles(job: Job) -> dict[int, Role]:
    return {member.identity.pid: member.role for member in job.members}


@pytest.mark.parametrize("asked", [100, 101, 102, 110, 121])
def test_a_job_is_the_same_whichever_member_is_asked(fake, asked):
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
    assert job.remark == "2 of 4 ranks are on this host: tpmon fleet --hosts a,b watches all"


@pytest.mark.parametrize(("number", "where"), [("4711", "--slurm 4711"), ("x; rm", "--hosts a,b")])
def test_a_job_with_ranks_elsewhere_says_which_command_watches_all_nodes(number, where, fake):
    for rank, pid in ((2, 101), (3, 102)):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank - 2), "WORLD_SIZE": "4", "SLURM_JOB_ID": number}
        fake.add(pid, 100, ("python", "train.py"), environ=place, torch=True)
    fake.add(100, 1, ("torchrun",), name="torchrun")
    assert find_job(101, fake.proc).remark == f"2 of 4 ranks are on this host: tpmon fleet {where} watches all"


def test_jobs_and_nodes_of_torchrun_of_one_shell_stay_apart_and_a_launcher_above_the_shell_does_not_count(fake):
    fake.add(50, 1, ("bash", "run_both.sh"))
    for pid in (60, 70):
        fake.add(pid, 50, ("python", "train.py"), torch=True)
        fake.add(pid + 1, pid, ("python", "train.py"), name="pt_data_worker")
    assert [set(roles(find_job(pid, fake.proc))) for pid in (61, 70)] == [{60, 61}, {70, 71}]
    fake.add(90, 1, ("slurmstepd: [77.0]",), name="slurmstepd", exe="/usr/sbin/slurmstepd")
    fake.add(91, 90, BASH)
    for pid in (92, 93):
        fake.add(pid, 91, ("python", "a.py"), torch=True)
    assert [set(roles(find_job(pid, fake.proc))) for pid in (92, 93)] == [{92}, {93}]
    fake.add_torchrun(100, 91)
    fake.add_torchrun(200, 91, first=2)
    assert ranks(find_job(110, fake.proc)) == {101: 0, 102: 1}
    assert ranks(find_job(220, fake.proc)) == {201: 2, 202: 3}
    assert find_job(200, fake.proc).world_size == 4


@pytest.mark.parametrize("asked", [101, 102, 103, 110])
def test_ranks_whose_launcher_died_are_one_job_and_it_is_said(fake, asked):
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


def test_a_job_whose_root_is_gone_is_found_around_a_rank_and_never_by_a_number_alone(fake):
    """Of the launcher 100 only its number is left, which a process of another job has in its container."""
    fake.add(101, 1, ("python", "train.py"), environ=place_of_rank(0, run="a"), torch=True)
    fake.add(102, 1, ("python", "train.py"), environ=place_of_rank(1, run="a"), torch=True)
    fake.add(300, 1, ("python", "other.py"), torch=True, inside=(100,))
    launcher, first, second = (Identity(pid, fake.now - 1_000_000 + pid) for pid in (100, 101, 102))
    assert find_job(100, fake.proc).root.pid == 300, "the number alone leads there"
    job = find_job_again((launcher, first, second), fake.proc)
    assert (job.root.pid, ranks(job)) == (101, {101: 0, 102: 1})
    reused = Identity(101, first.start_ticks - 1)
    assert find_job_again((launcher, reused, second), fake.proc).asked_pid == 102
    with pytest.raises(NoTargetError, match="none of the processes that were watched is there any more"):
        find_job_again((launcher, reused), fake.proc)


def test_ranks_that_were_started_one_by_one_are_one_job(fake):
    fake.add(50, 1, ("bash", "start.sh"))
    for rank, pid in enumerate((60, 61)):
        fake.add(pid, 50, ("python", "train.py"), environ=place_of_rank(rank, world=2), torch=True)
    job = find_job(61, fake.proc)
    assert (job.root.pid, ranks(job), job.remark) == (60, {60: 0, 61: 1}, "")
    assert job.rank_source == "environment; no launcher above them, they meet at one address"


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
PMI = {"PMI_SIZE": "3"}
STARTS: dict[str, tuple[str, dict[str, str]]] = {
    "Slurm": ("SLURM_PROCID", SLURM),
    "PMIx": ("PMI_RANK", PMI | {"PMIX_NAMESPACE": "prterun-1@1"}),
    "parent": ("PMI_RANK", PMI),
    "Horovod": ("HOROVOD_RANK", {"HOROVOD_SIZE": "3"}),
    "torch": ("RANK", {"WORLD_SIZE": "3"}),
}


@pytest.mark.parametrize("start", STARTS)
def test_ranks_of_a_launcher_that_is_hidden_or_unknown_are_one_job(fake, start):
    """With hidepid=2, slurmstepd (40) is not in the table; palsd, jsmd and flux-shell are no launchers of ours."""
    name, environ = STARTS[start]
    for rank, pid in enumerate((60, 61, 62)):
        fake.add(pid, 40, ("python", "fit.py"), environ=environ | {name: str(rank)}, torch=True)
    fake.add(70, 41, ("python", "fit.py"), environ=PMI | {"PMI_RANK": "1"}, torch=True)
    job = find_job(62, fake.proc)
    assert (job.root.pid, job.world_size, ranks(job)) == (60, 3, {60: 0, 61: 1, 62: 2})
    assert [(one.pid, one.ranks) for one in list_jobs(fake.proc).jobs] == [(60, 3), (70, 1)]
    if start == "torch":
        assert job.rank_source == "environment; no launcher above them, one process started them"


def test_ranks_that_cannot_be_of_one_run_stay_apart(fake):
    """One left over from an earlier run, one of another container, one at another port; of two steps; of no start."""
    for pid, rank in ((60, 0), (61, 1), (62, 1)):
        fake.add(pid, 1, ("python", "train.py"), environ=place_of_rank(rank), torch=True)
    fake.add(70, 1, ("python", "train.py"), environ=place_of_rank(2), torch=True, network="net:[2]")
    fake.add(80, 1, ("python", "train.py"), environ=place_of_rank(2, port=29501), torch=True)
    fake.add_torchrun(100)
    for pid, step in ((200, "0"), (201, "1")):
        start = SLURM | {"SLURM_PROCID": step, "SLURM_STEP_ID": step}
        fake.add(pid, 40, ("python", "a.py"), environ=start, torch=True)
    for rank, pid in enumerate((210, 211)):
        fake.add(pid, 1, ("python", "b.py"), environ=PMI | {"PMI_RANK": str(rank)}, torch=True)
    jobs = sorted(job.pid for job in list_jobs(fake.proc).jobs)
    assert jobs == [60, 61, 62, 70, 80, 100, 200, 201, 210, 211]
    assert set(roles(find_job(60, fake.proc))) == {60}


@pytest.mark.parametrize(
    ("title", "root"), [("slurmstepd: [77.0]", 50), ("slurmstepd: [77.batch]", 60), ("slurmstepd: [77.extern]", 60)]
)
def test_only_a_numbered_slurm_step_is_a_launcher(fake, title, root):
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


def test_scripts_and_wrappers_may_stand_between_launcher_and_ranks(fake):
    fake.add(50, 1, BASH)
    fake.add(60, 50, ("/usr/bin/mpirun", "-n", "2", "bash", "run.sh"))
    for local, pid in enumerate((61, 71)):
        place = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), str(local))
        place["OMPI_COMM_WORLD_SIZE"] = "2"
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
    # Launchers of one command are one.
    fake.add(80, 1, ("mpiexec.hydra", "-n", "1", "python", "train.py"))
    fake.add(81, 80, ("/opt/mpi/bin/hydra_pmi_proxy", "--control-port", "x:1"))
    fake.add(82, 81, ("python", "train.py"), torch=True, environ={"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert find_job(82, fake.proc).root.pid == 80


def test_without_a_launcher_the_highest_python_with_torch_is_the_root(fake):
    fake.add(50, 1, ("python", "-m", "wandb", "agent", "sweep"))
    fake.add(60, 50, ("python", "train.py"), torch=True)
    fake.add(61, 60, ("sh", "-c", "python eval.py"))
    fake.add(62, 61, ("python", "eval.py"), torch=True)
    fake.add(63, 60, ("/usr/bin/wandb-core",), name="wandb-core")
    job = find_job(62, fake.proc)
    assert roles(job) == {60: RANK, 62: HELPER, 63: HELPER}
    assert {m.identity.pid: m.label for m in job.members} == {60: "train.py", 62: "eval.py", 63: "wandb-core"}
    assert (job.world_size, job.rank_source) == (1, "single process")
    job = find_job(50, fake.proc)
    assert (job.root.pid, job.asked_pid, job.remark) == (60, 50, "50 (wandb) started the job of 60 (train.py)")


@pytest.mark.parametrize("asked", [60, 100, 101, 110])
def test_the_job_of_a_program_that_starts_a_launcher_is_the_launchers(fake, asked):
    fake.add(50, 1, ("-bash",))
    fake.add(60, 50, ("python", "/venv/bin/yolo", "train", "device=0,1"), torch=True)
    fake.add_torchrun(100, 60)
    job = find_job(asked, fake.proc)
    assert (job.root.pid, job.world_size) == (100, 4)
    assert ranks(job) == {101: 0, 102: 1}
    elsewhere = "2 of 4 ranks are on this host: tpmon fleet --hosts a,b watches all"
    assert job.remark == ("60 (yolo) started the job of 100 (torchrun)" if asked == 60 else elsewhere)
    assert [one.pid for one in list_jobs(fake.proc).jobs] == [100]


def test_runs_of_a_sweep_that_has_torch_are_jobs_of_their_own(fake):
    fake.add(60, 1, ("python", "sweep.py"), torch=True)
    for pid in (70, 80):
        fake.add(pid, 60, ("python", "train.py", "--seed", str(pid)), torch=True, threads=("pt_autograd_0",))
        fake.add(pid + 1, pid, ("python", "train.py", "--seed", str(pid)), name="pt_data_worker")
    assert roles(find_job(71, fake.proc)) == {70: RANK, 71: WORKER}
    assert [one.pid for one in list_jobs(fake.proc).jobs] == [70, 80]
    said = refusal(60, fake.proc)
    assert said.what == "process 60 (sweep.py) started 2 training jobs: 70 (train.py), 80 (train.py)"
    assert said.try_this == "tpmon attach 70, or tpmon attach 80"
    fake.remove(81)
    fake.remove(80)
    assert find_job(60, fake.proc).root.pid == 70


def test_a_jupyter_kernel_is_a_job_and_neither_its_server_nor_a_daemon_of_ray_is_part_of_one(fake):
    fake.add(40, 1, ("slurmstepd: [9.0]",), name="slurmstepd")
    fake.add(50, 40, ("python", "/venv/bin/jupyter-lab"), torch=True)
    fake.add(60, 50, ("python", "-m", "ipykernel_launcher", "-f", "k.json"), torch=True)
    job = find_job(60, fake.proc)
    assert (roles(job), job.script) == ({60: RANK}, "Jupyter kernel")
    assert refusal(50, fake.proc).try_this == "tpmon attach 60 (Jupyter kernel)"
    fake.add(70, 40, ("/venv/ray/core/src/ray/raylet/raylet",), name="raylet")
    fake.add(71, 70, ("python", "-u", "/venv/ray/dashboard/agent.py"), torch=True)
    fake.add(80, 70, ("ray::TrainWorker",), exe="/usr/bin/python3.11", torch=True)
    assert roles(find_job(80, fake.proc)) == {80: RANK}
    assert refusal(71, fake.proc).exit_code == ExitCode.NO_TARGET


def test_a_python_program_that_gives_ranks_their_places_is_a_launcher(fake):
    fake.add(50, 1, ("python", "my_launcher.py"))
    for local in range(2):
        place = {"RANK": str(local), "LOCAL_RANK": str(local), "WORLD_SIZE": "2"}
        fake.add(51 + local, 50, ("python", "train.py"), environ=place, torch=True)
    job = find_job(52, fake.proc)
    assert (roles(job), ranks(job)) == ({50: LAUNCHER, 51: RANK, 52: RANK}, {51: 0, 52: 1})
    # Trials of a sweep that all carry rank 0 stay jobs of their own.
    fake.add(60, 1, ("python", "sweep.py"))
    for pid in (61, 62):
        fake.add(pid, 60, ("python", "train.py"), environ={"RANK": "0", "WORLD_SIZE": "1"}, torch=True)
    assert roles(find_job(62, fake.proc)) == {62: RANK}


def test_versions_are_read_without_importing(fake):
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


def test_only_variables_that_matter_are_shown_and_secrets_are_hidden(fake):
    environ = {"HOME": "/root", "OMP_NUM_THREADS": "8", "NCCL_DEBUG": "INFO\x1b[2J", "MY_RANK": "5"}
    fake.add(60, 1, ("python", "train.py"), environ=environ | {"NCCL_NET_TOKEN": "hunter2"}, torch=True)
    settings = {setting.name: setting.value for setting in find_job(60, fake.proc).members[0].environment}
    assert settings == {"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "INFO?[2J", "NCCL_NET_TOKEN": "***"}


class Starting:
    """Search for PID 60, which becomes another program at one of the looks; by default a training."""

    def __init__(self, fake: FakeProc, at: int, argv=("python", "train.py"), becomes=None) -> None:
        self.fake, self.at, self.looks = fake, at, 0
        self.becomes = becomes or {"argv": ("python", "train.py"), "start": fake.now, "torch": True}
        fake.add(60, 1, argv, start=fake.now)

    def __call__(self) -> Job:
        self.looks += 1
        if self.looks == self.at:
            self.fake.remove(60)
            self.fake.add(60, 1, **self.becomes)
        return find_job(60, self.fake.proc)


def test_a_program_that_imports_is_waited_for_by_who_asked_for_it_and_it_is_said_once(fake):
    said: list[str] = []
    find = Starting(fake, 4)
    with pytest.raises(StartingError) as caught:
        await_job(find, said.append, 0.0)
    assert (said, caught.value.exit_code) == ([], ExitCode.NO_TARGET)
    assert await_job(find, said.append, 60.0, every_s=0.0).root.pid == 60
    assert said == ["process 60 (train.py) is Python without torch (yet); waiting for it, at most 1m00s"]


def test_what_will_be_no_training_job_is_not_waited_for(fake):
    fake.add(60, 1, ("python", "server.py"))  # started hours ago
    fake.add(61, 1, ("vim", "train.py"))
    fake.add(62, 1, ("sh", "start.sh"), start=fake.now)
    fake.add(63, 1, ("torchrun", "train.py"))
    kinds = {pid: isinstance(refusal(pid, fake.proc), StartingError) for pid in (60, 61, 62, 63, 64)}
    assert kinds == {60: False, 61: False, 62: True, 63: True, 64: False}


@pytest.mark.parametrize(("argv", "age_s"), [(("python", "train.py"), 700), (("sh", "start.sh"), 60)])
def test_who_is_waited_for_may_grow_old(fake, argv, age_s, monkeypatch):
    said: list[str] = []
    find = Starting(fake, 4, argv)
    monkeypatch.setattr(target, "now_ticks", lambda: fake.now + (age_s * TICKS_PER_S if find.looks > 1 else 0))
    assert await_job(find, said.append, 60.0, every_s=0.0).root.pid == 60
    assert (find.looks, len(said)) == (4, 1)


def test_another_process_under_the_number_is_not_waited_for(fake):
    find = Starting(fake, 2, becomes={"argv": ("python", "server.py")})  # it has run for hours
    with pytest.raises(NoTargetError, match=r"server\.py") as caught:
        await_job(find, lambda _: None, 60.0, every_s=0.0)
    assert not isinstance(caught.value, StartingError)
    assert find.looks == 2


WRAPPERS = (
    ("timeout", "1h", "python", "train.py"),
    ("bash", "run.sh"),
    ("/bin/sh", "-c", "python train.py; true"),
    ("/usr/bin/uv", "run", "train.py"),
    ("srun", "python", "train.py"),
    ("python", "/opt/conda/bin/conda", "run", "python", "train.py"),
)


@pytest.mark.parametrize("argv", WRAPPERS, ids=lambda argv: argv[0])
def test_a_wrapper_leads_to_the_one_training_below_it_and_says_so(fake, argv):
    fake.add(50, 1, ("-bash",))
    fake.add(60, 50, argv)
    fake.add(70, 60, ("python", "train.py"), torch=True)
    job = find_job(60, fake.proc)
    assert roles(job)[70] is RANK
    assert job.root.pid in (60, 70)
    assert "70 (train.py)" in job.remark or job.root.pid == 60
    assert (
        refusal(50, fake.proc).try_this
        == f"tpmon attach {job.root.pid} ({'srun' if job.root.pid == 60 else 'train.py'})"
    )


def test_a_parent_that_waits_for_a_program_of_torch_is_a_launcher_and_one_that_trained_is_not(fake):
    for pid, kernel in ((60, "do_wait"), (160, "poll_schedule_timeout"), (260, "do_wait")):
        threads = ("pt_autograd_0",) if pid == 260 else ()
        fake.add(pid, 1, ("python", "tune.py"), torch=True, threads=threads)
        fake.add(pid + 1, pid, ("/bin/sh", "-c", "python fit.py"))
        fake.add(pid + 2, pid + 1, ("python", "fit.py"), torch=True)
        (fake.path / str(pid) / "wchan").write_text(kernel)
    waits = find_job(60, fake.proc)
    assert roles(waits) == {60: LAUNCHER, 62: RANK}
    assert (waits.root.pid, waits.world_size) == (60, 1)
    assert waits.remark == "60 (tune.py) only waits for 62 (fit.py): that one is judged"
    assert roles(find_job(62, fake.proc)) == {62: RANK}
    assert roles(find_job(160, fake.proc)) == {160: RANK, 162: HELPER}, "both rest, and it waits for no child"
    assert roles(find_job(260, fake.proc)) == {260: RANK, 262: HELPER}


def test_each_wrong_target_has_its_own_message_and_a_shell_names_the_jobs_below_it(fake):
    fake.add(2, 0, (), name="kthreadd", kernel=True)
    fake.add(40, 1, ("bash", "run.sh"))
    fake.add(41, 40, ("python", "a.py"), torch=True)
    fake.add(50, 1, ("mpirun", "./cfd"))
    fake.add(51, 50, ("./cfd",))
    fake.add(60, 1, ("python", "serve.py"))
    fake.add(70, 1, ("srun", "python", "train.py"))
    fake.add(71, 70, ("srun", "python", "train.py"))
    fake.add_torchrun(100, 40)
    fake.add(105, 100, (), name="python", state="Z")
    said = {pid: refusal(pid, fake.proc) for pid in (2, 40, 51, 60, 71, 105, 999)}
    assert {error.exit_code for error in said.values()} == {ExitCode.NO_TARGET}
    assert said[2].what == "process 2 (kthreadd) is a kernel thread"
    assert said[40].what == "process 40 (bash) started 2 training jobs: 41 (a.py), 100 (torchrun)"
    assert said[40].try_this == "tpmon attach 41, or tpmon attach 100"
    assert "nothing below it is Python with torch" in said[51].what
    assert said[60].what == "process 60 (serve.py) is Python without torch (yet)"
    assert said[60].try_this.startswith("when its import is done, tpmon attach 60 again")
    assert "its tasks run below slurmstepd" in said[71].what
    assert said[105].what == "process 105 (python) has ended; its parent 100 (pt_elastic) has not noticed"
    assert said[105].try_this == "tpmon attach 100 (torchrun)"
    assert said[999].what == "no process 999 on this machine"
    assert said[999].try_this == "tpmon ps lists the training jobs of this machine"


def test_a_pid_of_a_container_or_a_thread_is_translated_or_the_right_one_is_named(fake):
    fake.add(50, 1, ("sleep", "9"), inside=(1,))
    fake.add(1000, 50, ("python", "train.py"), torch=True, inside=(17,))
    job = find_job(17, fake.proc)
    assert (job.root.pid, job.asked_pid, job.remark) == (1000, 1000, "PID 17 in its container is 1000 here")
    fake.add(17, 1, ("sleep", "9"))
    error = refusal(17, fake.proc)
    assert error.what == "process 17 (sleep) is not Python"
    assert error.try_this == "tpmon attach 1000 (which is 17 in its container)"
    fake.remove(17)
    fake.add(1001, 50, ("python", "other.py"), torch=True, inside=(17,))
    error = refusal(17, fake.proc)
    assert error.what == "no process 17 here, and 2 processes go by it in their containers: 1000, 1001"
    (fake.path / "6001").mkdir()
    (fake.path / "6001" / "status").write_text("Tgid:\t1000\nPid:\t6001\nUid:\t0\t0\t0\t0\nNSpid:\t6001\n")
    job = find_job(6001, fake.proc)
    assert (job.asked_pid, job.remark) == (1000, "6001 is a thread of process 1000")


def test_the_process_of_the_container_is_named_before_the_jobs_below_our_own(fake):
    fake.add(60, 1, ("python", "ours.py"), torch=True)
    fake.add(1000, 1, ("python", "train.py"), torch=True, inside=(1,))
    error = refusal(1, fake.proc)
    assert error.what == "process 1 (init) is not Python"
    assert error.try_this == ("tpmon attach 1000 (which is 1 in its container) or 60 (ours.py) or 1000 (train.py)")


def test_a_target_that_may_not_be_read_is_refused_with_the_way_out(tmp_path):
    root = os.geteuid() == 0
    with child(HOLD_TORCH, str(tmp_path), *(() if root else ("hide",))) as one:
        if root:
            what, try_this = ask_as_another(one.pid)[0]
            assert "belongs to user root" in what
        else:
            error = refusal(one.pid, "/proc")
            what, try_this = error.what, error.try_this
            assert error.exit_code is ExitCode.NOT_PERMITTED
        assert what.startswith("process")
        assert f"tpmon attach {one.pid}" in try_this


FAMILY = (
    MAP_TORCH
    + """
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
)


@needs_root
def test_a_worker_that_may_not_be_read_names_its_rank_that_may(tmp_path):
    with closing(Child(FAMILY, str(tmp_path))) as one:
        worker = int(one.hear())
        told = f"process {worker} may not be read by this user, but {one.pid} of the same job may"
        assert ask_as_another(worker)[0] == [told, f"tpmon attach {one.pid}"]
        assert ask_as_another(one.pid)[0] == []
