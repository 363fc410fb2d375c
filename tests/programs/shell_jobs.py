"""Start jobs of every kind in one shell, once a module, and read from themselves who is who."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hangs.programs import find_port
from tests.programs.causes.running import end_tree
from tests.programs.conftest import READY_S, TORCHRUN, start_logged
from tests.waiting import wait_until

LOG = "output.log"


@dataclass(frozen=True)
class Started:
    """Hold what a job itself says: the PID the shell gave it, its ranks, its workers by number, and its log.

    ``workers[rank_pid][number]`` is a PID; told by torch, not by tpmon.
    """

    root: int
    ranks: dict[int, int]
    workers: dict[int, dict[int, int]]
    log: Path


def commands(folder: Path) -> dict[str, tuple[tuple[str, ...], int]]:
    node = (*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    node += ("--master-port", find_port())
    quiet = ("--load", "0.02")

    def train(name: str, *options: str) -> tuple[str, ...]:
        return ("job_train.py", "--ready", str(folder / name), *options)

    return {
        "torchrun": ((*TORCHRUN, "--standalone", "--nproc-per-node", "2", *train("torchrun", *quiet)), 2),
        "node 0": ((*node, "--node-rank", "0", *train("node 0", "--workers", "1", *quiet)), 1),
        "node 1": ((*node, "--node-rank", "1", *train("node 1", "--workers", "1", *quiet)), 1),
        "spawned workers": ((sys.executable, *train("spawned workers", "--context", "spawn", *quiet)), 1),
        "served workers": ((sys.executable, *train("served workers", "--context", "forkserver", *quiet)), 1),
        "spawned ranks": (
            (sys.executable, *train("spawned ranks", "--spawn", "2", "--workers", "1", "--look-s", "0.5", *quiet)),
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
    return Started(root, ranks, workers, folder / LOG)


def read_rank(pid: int) -> int:
    """Return RANK; 0 where there is none, and then the program is told by its parent."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(one[5:]) for one in variables if one.startswith(b"RANK=")), 0)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """Start every job in the background of one shell, which reaps none, and wait until all of them train."""
    folder = tmp_path_factory.mktemp("shell")
    all_jobs = commands(folder)
    for name in all_jobs:
        (folder / name).mkdir()
    lines = [
        f"{shlex.join(command)} > {shlex.quote(str(folder / name / LOG))} 2>&1 &"
        f" echo $! > {shlex.quote(str(folder / name / 'root'))}"
        for name, (command, _) in all_jobs.items()
    ]
    shell, _ = start_logged(["bash", "-c", "\n".join([*lines, "exec sleep infinity"])], folder)
    try:
        train = {name: count for name, (_, count) in all_jobs.items()}
        started = wait_until(lambda: {name: len(trainers(folder / name)) for name in train} == train, READY_S)
        assert started, "\n".join((folder / name / LOG).read_text()[-500:] for name in train)
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
    return Started(root, dict(enumerate(ranks)), {}, folder / LOG)
