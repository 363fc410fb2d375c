"""Jobs of real torch programs, found and followed from outside."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.conftest import TORCHRUN, Program, TorchrunJob, run_program, wait_until
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.probe.changes import describe_changes
from tpmon.probe.job import Job
from tpmon.probe.jobs import list_jobs
from tpmon.probe.members import Membership
from tpmon.probe.target import find_job

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]

PYTHON = sys.executable
TRAIN = ("job_train.py", "--ready", "{ready}", "--seconds", "300")


def count(job: Job) -> Counter[Role]:
    return Counter(member.role for member in job.members)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_torchrun_job_is_whole_whichever_member_is_asked(torchrun_job: TorchrunJob) -> None:
    everybody = (
        torchrun_job.launcher,
        *torchrun_job.ranks,
        *torchrun_job.workers[0],
        *torchrun_job.workers[1],
    )
    for asked in everybody:
        job = find_job(asked)
        assert (job.root.pid, job.asked_pid) == (torchrun_job.launcher, asked)
        assert count(job) == {Role.LAUNCHER: 1, Role.RANK: 2, Role.WORKER: 4}
    by_pid = {member.identity.pid: member for member in job.members}
    assert by_pid[torchrun_job.launcher].rank is NOT_APPLICABLE
    for rank, pid in enumerate(torchrun_job.ranks):
        member = by_pid[pid]
        assert (member.parent, member.rank, member.local_rank) == (torchrun_job.launcher, rank, rank)
        for number, worker in enumerate(torchrun_job.workers[rank]):
            member = by_pid[worker]
            assert (member.parent, member.rank, member.worker, member.rank_pid) == (pid, rank, number, pid)
    assert (job.world_size, job.rank_source, job.script) == (2, "environment", "job_train.py")
    assert job.torch_version == importlib.metadata.version("torch")
    assert job.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert abs(job.start.timestamp() - Path(f"/proc/{torchrun_job.launcher}").stat().st_ctime) < 60
    settings = by_pid[torchrun_job.ranks[1]].environment
    assert not isinstance(settings, Missing)
    assert {"RANK": "1", "OMP_NUM_THREADS": "1"}.items() <= {one.name: one.value for one in settings}.items()


def test_a_torchrun_job_is_listed(torchrun_job: TorchrunJob) -> None:
    listed = {job.pid: job for job in list_jobs().jobs}
    mine = listed[torchrun_job.launcher]
    assert (mine.script, mine.ranks, mine.workers) == ("job_train.py", 2, 4)
    assert not {*torchrun_job.ranks} & listed.keys()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start two jobs in one shell: one with spawned workers, one with workers of a fork server."""
    train = f"{PYTHON} {' '.join(TRAIN)} --context"
    script = f"{train} spawn & {train} forkserver & wait"
    with run_program(("bash", "-c", script), tmp_path_factory.mktemp("shell"), 2) as program:
        yield program


def test_two_jobs_of_one_shell_stay_two(shell: Program) -> None:
    for pid in shell.trainers:
        job = find_job(pid)
        assert job.root.pid == pid
        assert count(job)[Role.RANK] == 1
        assert count(job)[Role.WORKER] == 2
        assert {member.identity.pid for member in job.members}.isdisjoint({*shell.trainers} - {pid})


def test_spawned_and_served_workers_belong_to_their_rank(shell: Program) -> None:
    parents = []
    for pid in shell.trainers:
        workers = [member for member in find_job(pid).members if member.role is Role.WORKER]
        assert [(member.rank, member.worker, member.rank_pid) for member in workers] == [
            (0, 0, pid),
            (0, 1, pid),
        ]
        assert find_job(workers[1].identity.pid).root.pid == pid
        parents.append({member.parent for member in workers})
    labels = {m.label for pid in shell.trainers for m in find_job(pid).members if m.role is Role.HELPER}
    assert labels == {"resource tracker", "forkserver"}
    assert sorted(parent <= {*shell.trainers} for parent in parents) == [False, True]


def test_two_torchrun_nodes_on_one_host_stay_two(tmp_path: Path) -> None:
    port = str(free_port())
    node = f"{' '.join(TORCHRUN)} --nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port {port}"
    train = f"{' '.join(TRAIN)} --workers 1"
    script = f"{node} --node-rank 0 {train} & {node} --node-rank 1 {train} & wait"
    with run_program(("bash", "-c", script), tmp_path / "ready", 2) as program:
        jobs = [find_job(pid) for pid in program.trainers]
        assert {job.root.pid for job in jobs}.isdisjoint(program.trainers)
        assert len({job.root.pid for job in jobs}) == 2
        for job in jobs:
            assert count(job) == {Role.LAUNCHER: 1, Role.RANK: 1, Role.WORKER: 1}
            assert job.world_size == 2
        ranks = [member for job in jobs for member in job.members if member.role is Role.RANK]
        assert sorted(member.rank for member in ranks) == [0, 1]
        assert [member.local_rank for member in ranks] == [0, 0]


def test_ranks_of_mp_spawn_are_told_without_an_environment_and_ends_are_told(tmp_path: Path) -> None:
    command = (PYTHON, "job_spawn.py", *TRAIN[1:], "--context", "spawn", "--workers", "1")
    with run_program(command, tmp_path / "ready", 2) as program:
        jobs = [find_job(pid) for pid in (program.pid, *program.trainers)]
        assert {job.root.pid for job in jobs} == {program.pid}
        job = jobs[0]
        assert count(job) == {Role.LAUNCHER: 1, Role.RANK: 2, Role.WORKER: 2, Role.HELPER: 1}
        ranks = [member for member in job.members if member.role is Role.RANK]
        assert [(member.rank, member.identity.pid) for member in ranks] == list(enumerate(program.trainers))
        assert job.rank_source == "parentage and threads"
        assert isinstance(job.world_size, Missing)
        membership = Membership(job)
        os.kill(program.trainers[0], signal.SIGKILL)
        gone: dict[int, object] = {}

        def all_gone() -> bool:
            for departure in membership.refresh(time.monotonic_ns()).gone:
                gone[departure.member.identity.pid] = departure.wait_status
            return not membership.members

        # torch's own loader worker notices within 5 s that its rank has gone
        assert wait_until(all_gone), membership.members
        membership.close()
        assert gone.keys() == {member.identity.pid for member in job.members}
        assert gone[program.trainers[0]] == signal.SIGKILL or isinstance(gone[program.trainers[0]], Missing)


def test_a_killed_worker_and_what_follows_are_told(tmp_path: Path) -> None:
    with run_program((PYTHON, *TRAIN), tmp_path / "ready", 1) as program:
        membership = Membership(find_job(program.pid))
        worker = next(member for member in membership.members if member.role is Role.WORKER)
        assert membership.refresh(time.monotonic_ns()).gone == ()
        os.kill(worker.identity.pid, signal.SIGKILL)
        lines: list[str] = []

        def ended() -> bool:
            lines.extend(describe_changes(membership.refresh(time.monotonic_ns())))
            return not membership.members

        assert wait_until(ended), membership.members
        membership.close()
    assert any(f"worker 0 ({worker.identity.pid}) of rank 0 gone" in line for line in lines), lines
    # the test is the parent of the rank and reaps it only at the end, so the status is there to see
    assert f"rank 0 ({program.pid}) gone: exit 1" in lines


def test_a_hundred_short_lived_children_a_second_leave_nothing_behind(tmp_path: Path) -> None:
    command = (PYTHON, "job_churn.py", "--ready", "{ready}", "--seconds", "300")
    with run_program(command, tmp_path / "ready", 1) as program:
        membership = Membership(find_job(program.pid))
        now_ns = time.monotonic_ns()
        membership.refresh(now_ns)
        before = len(os.listdir("/proc/self/fd"))
        met = 0
        for _ in range(60):
            now_ns += 1_000_000_000
            changes = membership.refresh(now_ns)
            met += len(changes.born)
            assert len(membership.members) < 30
            assert {member.role for member in membership.members} == {
                Role.RANK,
                Role.HELPER,
            } or not changes.born
            time.sleep(0.05)
        assert met > 20
        os.kill(program.pid, signal.SIGKILL)
        assert wait_until(
            lambda: bool(membership.refresh(time.monotonic_ns() + now_ns)) and not membership.members
        )
        assert len(os.listdir("/proc/self/fd")) < before
        membership.close()
