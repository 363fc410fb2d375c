"""The demo training, really started: it trains, it shows what is wrong, and it never outlives its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import tpmon
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.commands.demo import BOTTLENECKS, DemoJob, DemoOptions, start_demo
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.job import find_descendants

pytestmark = [pytest.mark.torch, needs_torch]

TRAIN = str(Path(tpmon.__file__).parent / "demo" / "train.py")
START = (
    "from tpmon.commands.demo import *; import time; demo = start_demo(DemoOptions(bottleneck='none'));"
    " print(demo.pid, flush=True); time.sleep(99)"
)


def read_tree(pid: int) -> list[int]:
    return find_descendants(pid, read_table())


def count_switches(pid: int) -> int:
    """Return how often the main thread of ``pid`` was given a CPU."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[2])


def is_alive(pid: int) -> bool:
    process = read_table().get(pid)
    return process is not None and process.state != "Z"


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="demo-") as short:  # tmp_path is too long for sockets
        monkeypatch.setenv("TMPDIR", short)
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[[DemoOptions], DemoJob]]:
    jobs: list[DemoJob] = []

    def start_one(options: DemoOptions) -> DemoJob:
        jobs.append(start_demo(options))
        return jobs[-1]

    yield start_one
    ended = [job.stop(15) for job in jobs]
    assert all(ended)


def test_it_trains_and_stop_leaves_nothing(start: Callable[[DemoOptions], DemoJob]) -> None:
    job = start(DemoOptions(bottleneck="none", seconds=60))
    assert "libtorch" in Path(f"/proc/{job.pid}/maps").read_text()
    tree = read_tree(job.pid)
    assert [Path(f"/proc/{pid}/comm").read_text() for pid in tree[1:]] == ["pt_data_worker\n"] * 2
    private = Path(job.log_path).parent
    assert private.stat().st_mode & 0o777 == 0o700
    assert os.getsid(job.pid) != os.getsid(0)
    steps = Path(job.log_path).read_text().count("step")
    assert wait_until(lambda: Path(job.log_path).read_text().count("step") > steps)
    assert job.stop(15)
    assert not any(map(is_alive, tree))
    assert not private.exists()


@pytest.mark.long
def test_ranks_run_under_torchrun_and_end_with_it(start: Callable[[DemoOptions], DemoJob]) -> None:
    job = start(DemoOptions(ranks=2, workers=1, bottleneck="straggler", seconds=60))
    tree = read_tree(job.pid)
    ranks = {
        entry
        for pid in tree
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if entry.startswith(b"RANK=")
    }
    assert ranks == {b"RANK=0", b"RANK=1"}
    assert len(tree) == 1 + 2 + 2
    os.kill(job.pid, signal.SIGKILL)  # torchrun cannot end its ranks: the keeper must
    assert wait_until(lambda: not any(map(is_alive, tree)))
    log = Path(job.log_path)
    assert wait_until(lambda: list(log.parent.iterdir()) == [log])  # the log of a failed training stays


def test_it_ends_with_its_starter_even_when_that_is_killed(directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE) as starter:
        tree = read_tree(int(starter.stdout.readline()))
        assert len(tree) == 3
        starter.kill()
    assert wait_until(lambda: not any(map(is_alive, tree)))
    assert wait_until(lambda: not list(directory.glob("tpmon-demo-*")))


@pytest.mark.long
def test_hang_stops_both_ranks_for_good(start: Callable[[DemoOptions], DemoJob]) -> None:
    job = start(DemoOptions(bottleneck="hang", workers=0, seconds=10))
    ranks = read_tree(job.pid)[1:]
    assert len(ranks) == 2

    def stand_still() -> bool:
        before = [count_switches(pid) for pid in ranks]
        time.sleep(1.0)  # the absence of a switch has no event to wait for
        return before == [count_switches(pid) for pid in ranks]

    assert wait_until(stand_still, 30)
    assert all(map(is_alive, ranks))


def run_alone(name: str, directory: str) -> subprocess.CompletedProcess[str]:
    workers = "0" if name == "no-workers" else "1"
    return subprocess.run(
        [sys.executable, TRAIN, "--bottleneck", name, "--workers", workers, "--seconds", "1"],
        env={**os.environ, "TMPDIR": directory},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Run the bottlenecks that are tested beside the other tests, two at a time: much of a run is waiting."""
    tests = [
        one for one in request.session.items if one.originalname == "test_each_bottleneck_trains_and_ends_by_itself"
    ]
    names = [one.callspec.params["name"] for one in tests]
    with tempfile.TemporaryDirectory(prefix="demo-") as short, ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run_alone, name, short) for name in names}


SHORT = ("slow-transform",)
"""Tried by make test; the others by make test-long, and all of them by whoever starts the demo."""


@pytest.mark.parametrize(
    "name",
    [
        one.name if one.name in SHORT else pytest.param(one.name, marks=pytest.mark.long)
        for one in BOTTLENECKS
        if one.ranks == 1
    ],
)
def test_each_bottleneck_trains_and_ends_by_itself(
    runs: dict[str, Future[subprocess.CompletedProcess[str]]], name: str
) -> None:
    done = runs[name].result()
    assert done.returncode == 0, done.stderr
    assert "epoch 0 step 1 loss" in done.stdout
    assert "rank 0 done after" in done.stdout
