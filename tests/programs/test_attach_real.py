"""`tpmon attach PID --json --once`, and finding by any member, on jobs of many kinds in one shell."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.programs.chaos_watch import Document, ask_once, by_pid, run_tpmon, watch
from tests.programs.shell_jobs import LOAD, Started, jobs
from tests.torch_build import needs_torch, read_torch_version
from tests.waiting import wait_until
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.probe.job.job import Job
from tpmon.probe.job.members import Membership
from tpmon.probe.job.resolve import find_job

__all__ = ["jobs"]  # a fixture of the tests here

pytestmark = [pytest.mark.torch, needs_torch]


@pytest.fixture(scope="module")
def answers(jobs: dict[str, Started]) -> dict[str, Document]:
    """Ask once about a member of each job: the torchrun job by launcher, rank and worker."""
    job = jobs["torchrun"]
    asked = {
        "by launcher": job.root,
        "by rank": job.ranks[1],
        "by worker": job.workers[job.ranks[0]][1],
        "node 0": jobs["node 0"].ranks[0],
        "node 1": jobs["node 1"].root,
        "spawned workers": jobs["spawned workers"].root,
        "served workers": jobs["served workers"].workers[jobs["served workers"].root][0],
        "spawned ranks": jobs["spawned ranks"].ranks[1],
    }
    return dict(zip(asked, ask_once(list(asked.values())), strict=True))


def roles(frame: Document) -> Counter[str]:
    return Counter(process["role"] for process in frame["processes"])


def numbers(process: Document) -> tuple[object, ...]:
    """Return rank, local rank, rank's PID and worker number; None where the key is absent."""
    return tuple(process.get(key) for key in ("rank", "local_rank", "rank_pid", "worker"))


def check_workers(frame: Document, job: Started, local_ranks: dict[int, int] | None = None) -> None:
    seen = by_pid(frame)
    for rank, rank_pid in job.ranks.items():
        local = rank if local_ranks is None else local_ranks[rank]
        assert numbers(seen[rank_pid]) == (rank, local, rank_pid, None)
        for number, pid in job.workers[rank_pid].items():
            assert seen[pid]["role"] == "worker"
            assert numbers(seen[pid]) == (rank, local, rank_pid, number)


@pytest.mark.parametrize("asked", ["by launcher", "by rank", "by worker"])
def test_a_torchrun_job_is_told_whole_by_any_member(
    answers: dict[str, Document], jobs: dict[str, Started], asked: str
) -> None:
    frame, job = answers[asked], jobs["torchrun"]
    assert roles(frame) == {"launcher": 1, "rank": 2, "worker": 4}
    target = frame["target"]
    assert (target["pid"], target["state"], target["script"]) == (job.root, "running", "chaos_train.py")
    assert (target["world_size"], target["local_ranks"], target["rank_source"]) == (2, 2, "environment")
    seen = by_pid(frame)
    assert numbers(seen[job.root]) == (None, None, None, None)
    for rank_pid, workers in job.workers.items():
        assert seen[rank_pid]["parent"] == job.root
        assert len(workers) == 2
        assert {seen[pid]["parent"] for pid in workers.values()} == {rank_pid}
    check_workers(frame, job)
    assert [(row["rank"], row["pid"]) for row in frame["ranks"]] == sorted(job.ranks.items())


def test_what_was_asked_is_repeated(answers: dict[str, Document], jobs: dict[str, Started]) -> None:
    job = jobs["torchrun"]
    asked = [answers[name]["target"]["asked_pid"] for name in ("by launcher", "by rank", "by worker")]
    assert asked == [job.root, job.ranks[1], job.workers[job.ranks[0]][1]]


def test_every_process_has_rates_in_the_only_frame(answers: dict[str, Document]) -> None:
    for process in answers["by rank"]["processes"]:
        assert process["cpu_pct"] >= 0
        assert process["runnable"] >= 0
        assert process["device_read_bytes_s"] >= 0


def test_threads_are_as_many_as_the_system_says(answers: dict[str, Document]) -> None:
    for process in answers["by launcher"]["processes"]:
        fields = Path(f"/proc/{process['pid']}/status").read_text().split()
        assert process["threads"] == int(fields[fields.index("Threads:") + 1]), process["role"]
        assert process["threads"] == sum(group["count"] for group in process["thread_groups"])


def test_two_nodes_on_one_host_stay_two_jobs(answers: dict[str, Document], jobs: dict[str, Started]) -> None:
    for number in (0, 1):
        frame, job = answers[f"node {number}"], jobs[f"node {number}"]
        assert frame["target"]["pid"] == job.root
        assert (frame["target"]["world_size"], frame["target"]["local_ranks"]) == (2, 1)
        assert roles(frame) == {"launcher": 1, "rank": 1, "worker": 1}
        check_workers(frame, job, local_ranks={number: 0})


@pytest.mark.parametrize("name", ["spawned workers", "served workers"])
def test_workers_that_were_not_forked_belong_to_their_rank(
    answers: dict[str, Document], jobs: dict[str, Started], name: str
) -> None:
    frame, job = answers[name], jobs[name]
    assert (frame["target"]["pid"], frame["target"]["world_size"]) == (job.root, 1)
    assert (roles(frame)["rank"], roles(frame)["worker"]) == (1, 2)
    check_workers(frame, job)
    parents = {by_pid(frame)[pid]["parent"] for pid in job.workers[job.root].values()}
    assert (parents == {job.root}) == (name == "spawned workers")


def test_ranks_without_a_number_of_their_own_are_told_by_parentage(
    answers: dict[str, Document], jobs: dict[str, Started]
) -> None:
    frame, job = answers["spawned ranks"], jobs["spawned ranks"]
    assert frame["target"]["pid"] == job.root
    assert frame["target"]["rank_source"] == "parentage and threads"
    assert frame["target"]["world_size"] == {"missing": "no WORLD_SIZE in the start environment"}
    seen = by_pid(frame)
    assert seen[job.root]["role"] == "launcher"
    assert {rank: seen[pid]["rank"] for rank, pid in job.ranks.items()} == {0: 0, 1: 1}
    workers = [one for one in frame["processes"] if one["role"] == "worker"]
    assert sorted(one["parent"] for one in workers) == sorted(job.ranks.values())


def test_jobs_of_one_shell_share_no_process(answers: dict[str, Document]) -> None:
    frames = [answers[name] for name in answers if name not in ("by rank", "by worker")]
    members = Counter(pid for frame in frames for pid in by_pid(frame))
    assert set(members.values()) == {1}


def test_each_job_is_listed_once(jobs: dict[str, Started]) -> None:
    status, output, complaint = run_tpmon("ps", "--json")
    assert (status, complaint) == (0, "")
    listed = {one["pid"]: one for one in json.loads(output)["jobs"]}
    assert {job.root for job in jobs.values()} <= listed.keys()
    members = {pid for job in jobs.values() for rank in job.workers for pid in (rank, *job.workers[rank])}
    assert listed.keys() & members <= {job.root for job in jobs.values()}
    mine = listed[jobs["torchrun"].root]
    assert (mine["script"], mine["ranks"], mine["workers"]) == ("chaos_train.py", 2, 4)


def read_pidstat(pids: list[int]) -> dict[int, float]:
    """Return CPU % of each PID over the second that begins now."""
    command = ["pidstat", "-u", "-p", ",".join(map(str, pids)), "1", "1"]
    text = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines()]
    header = next(line for line in lines if "%CPU" in line)
    # counted from the right: the time at the left has one column or two
    pid, cpu = header.index("PID") - len(header), header.index("%CPU") - len(header)
    averages = [line for line in lines if line and line[0] == "Average:" and "PID" not in line]
    return {int(line[pid]): float(line[cpu]) for line in averages}


@pytest.mark.skipif(shutil.which("pidstat") is None, reason="pidstat (sysstat) is not installed")
def test_cpu_agrees_with_pidstat_over_the_same_second(jobs: dict[str, Started]) -> None:
    job = jobs["torchrun"]
    members = [job.root, *job.ranks.values(), *(pid for one in job.workers.values() for pid in one.values())]
    apart: list[dict[int, tuple[float, float]]] = []
    with watch(job.root) as tpmon:
        for _ in range(3):  # two programs never start at the same instant; the load is steady
            begin = tpmon.wait_for_next()
            theirs = read_pidstat(members)
            frame = tpmon.wait_for(lambda _: True, after_ns=begin["taken_ns"])
            ours = {pid: process["cpu_pct"] for pid, process in by_pid(frame).items()}
            assert ours.keys() == theirs.keys() == {*members}
            apart.append({pid: (ours[pid], theirs[pid]) for pid in members})
            if all(abs(mine - other) <= 5 for mine, other in apart[-1].values()):
                break
        else:
            pytest.fail(f"tpmon and pidstat differ by more than 5 points: {apart}")
        burnt = [apart[-1][pid][0] for pid in job.ranks.values()]
        assert min(burnt) > 100 * LOAD / 2, "the ranks burn too little to compare"
        assert tpmon.interrupt() == (130, "")


def count(job: Job) -> Counter[Role]:
    return Counter(member.role for member in job.members)


def test_a_torchrun_job_is_whole_whichever_member_is_asked(jobs: dict[str, Started]) -> None:
    started = jobs["torchrun"]
    workers = [pid for served in started.workers.values() for pid in served.values()]
    for asked in (started.root, *started.ranks.values(), *workers):
        job = find_job(asked)
        assert (job.root.pid, job.asked_pid) == (started.root, asked)
        assert count(job) == {Role.LAUNCHER: 1, Role.RANK: 2, Role.WORKER: 4}
    by_number = {member.identity.pid: member for member in job.members}
    assert by_number[started.root].rank is NOT_APPLICABLE
    assert (job.world_size, job.rank_source, job.script) == (2, "environment", "chaos_train.py")
    assert job.torch_version == read_torch_version()
    assert job.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert abs(job.start.timestamp() - Path(f"/proc/{started.root}").stat().st_ctime) < 60
    settings = by_number[started.ranks[1]].environment
    assert not isinstance(settings, Missing)
    assert {"RANK": "1", "OMP_NUM_THREADS": "1"}.items() <= {one.name: one.value for one in settings}.items()


def test_what_starts_workers_is_a_helper_with_a_name(jobs: dict[str, Started]) -> None:
    ranks = [jobs[name].root for name in ("spawned workers", "served workers")]
    labels = {m.label for pid in ranks for m in find_job(pid).members if m.role is Role.HELPER}
    assert labels == {"resource tracker", "forkserver"}


def test_ranks_without_an_environment_are_found_by_any_member_and_their_ends_are_told(jobs: dict[str, Started]) -> None:
    """The last of this job."""
    started = jobs["spawned ranks"]
    found = [find_job(pid) for pid in (started.root, *started.ranks.values())]
    assert {job.root.pid for job in found} == {started.root}
    job = found[0]
    assert count(job) == {Role.LAUNCHER: 1, Role.RANK: 2, Role.WORKER: 2, Role.HELPER: 1}
    assert {m.rank: m.identity.pid for m in job.members if m.role is Role.RANK} == started.ranks
    assert job.rank_source == "parentage and threads"
    assert isinstance(job.world_size, Missing)
    membership = Membership(job)
    victim = started.ranks[0]
    os.kill(victim, signal.SIGKILL)
    gone: dict[int, object] = {}

    def all_gone() -> bool:
        for departure in membership.refresh(time.monotonic_ns()).gone:
            gone[departure.member.identity.pid] = departure.wait_status
        return not membership.members

    assert wait_until(all_gone), membership.members
    membership.close()
    assert gone.keys() == {member.identity.pid for member in job.members}
    assert gone[victim] == signal.SIGKILL or isinstance(gone[victim], Missing)
