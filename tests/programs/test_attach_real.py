"""`tpmon attach PID --json --once` on real jobs of many kinds, all started in one shell."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs.chaos_watch import Document, ask_once, by_pid, run_tpmon, watch
from tests.programs.conftest import HERE, READY_S, TORCHRUN, end_tree, wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]

LOAD = 0.25


@dataclass(frozen=True)
class Started:
    """Hold what a job itself says: the PID the shell gave it, its ranks, and its workers by number.

    ``workers[rank_pid][number]`` is a PID; told by torch, not by tpmon.
    """

    root: int
    ranks: dict[int, int]
    workers: dict[int, dict[int, int]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def commands(folder: Path) -> dict[str, tuple[tuple[str, ...], int]]:
    """Return the command line of each job and how many processes train in it."""
    node = (*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    node += ("--master-port", str(free_port()))
    quiet = ("--load", "0.02")

    def train(name: str, *options: str) -> tuple[str, ...]:
        return ("chaos_train.py", "--ready", str(folder / name), *options)

    return {
        "torchrun": (
            (*TORCHRUN, "--standalone", "--nproc-per-node", "2", *train("torchrun", "--load", str(LOAD))),
            2,
        ),
        "node 0": ((*node, "--node-rank", "0", *train("node 0", "--workers", "1", *quiet)), 1),
        "node 1": ((*node, "--node-rank", "1", *train("node 1", "--workers", "1", *quiet)), 1),
        "spawned workers": ((sys.executable, *train("spawned workers", "--context", "spawn", *quiet)), 1),
        "served workers": ((sys.executable, *train("served workers", "--context", "forkserver", *quiet)), 1),
        "spawned ranks": (
            (
                *(sys.executable, "job_spawn.py", "--ready", str(folder / "spawned ranks")),
                *("--context", "spawn", "--workers", "1", "--seconds", "600"),
            ),
            2,
        ),
    }


def trainers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def read_truth(folder: Path, root: int) -> Started:
    ranks = {read_rank(pid): pid for pid in trainers(folder)}
    workers: dict[int, dict[int, int]] = {pid: {} for pid in ranks.values()}
    for path in folder.glob("worker-*"):
        _, rank, number, pid = path.name.split("-")
        workers[ranks[int(rank)]][int(number)] = int(pid)
    return Started(root, ranks, workers)


def read_rank(pid: int) -> int:
    """Return RANK; 0 where there is none, and then the program is told by its parent."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(one[5:]) for one in variables if one.startswith(b"RANK=")), 0)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """Start every job in the background of one shell, and wait until all of them train."""
    folder = tmp_path_factory.mktemp("shell")
    all_jobs = commands(folder)
    for name in all_jobs:
        (folder / name).mkdir()
    lines = [
        f"{shlex.join(command)} & echo $! > {shlex.quote(str(folder / name / 'root'))}"
        for name, (command, _) in all_jobs.items()
    ]
    log = folder / "output.log"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join([*lines, "wait"])],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        train = {name: count for name, (_, count) in all_jobs.items()}
        started = wait_until(lambda: {name: len(trainers(folder / name)) for name in train} == train, READY_S)
        assert started, log.read_text()[-2000:]
        yield {
            name: read_truth(folder / name, int((folder / name / "root").read_text()))
            for name in all_jobs
            if name != "spawned ranks"
        } | {"spawned ranks": spawned_ranks(folder / "spawned ranks")}
    finally:
        end_tree(shell)


def spawned_ranks(folder: Path) -> Started:
    """Number the ranks of mp.spawn as it started them: its children, in the kernel's order."""
    root = int((folder / "root").read_text())
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    ranks = [pid for pid in map(int, children) if pid in trainers(folder)]
    return Started(root, dict(enumerate(ranks)), {})


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
    text = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True
    ).stdout
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
