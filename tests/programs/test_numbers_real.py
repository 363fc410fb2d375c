"""Compare the collector's numbers with what a real training program and the system itself say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.model.known import is_known
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.resolve import find_job
from tpmon.probe.loader.queues import LoaderProbe, LoaderRank, LoaderWorker, map_queues, read_pipes, read_queue_pipes

pytestmark = [pytest.mark.torch, needs_torch]

HERE = Path(__file__).parent


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of this folder, and kill it with all that it started: a fork server outlives its rank."""
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


CONTEXTS = ["fork", *(pytest.param(one, marks=pytest.mark.long) for one in ("spawn", "forkserver"))]


@pytest.fixture(scope="module")
def training(request, tmp_path_factory):
    """Start a loader program whose workers are started as asked, and hear what it has open."""
    store = tmp_path_factory.mktemp("stores") / request.param
    with running("loader_train.py", "--context", request.param, "--store", str(store)) as process:
        yield process, json.loads(process.stdout.readline())


def tell(process: subprocess.Popen[str], line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def look_for(probe: LoaderProbe, seconds: float):
    """Look ten times a second, forget what was before, and return the last sample."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        probe.look(time.monotonic_ns())
        time.sleep(0.1)
    return probe.latest()[0]


def look_until(rank: LoaderRank, holds) -> bool:
    """Look with a probe of its own until something holds of the sample; a busy machine takes its time."""
    probe = LoaderProbe()
    probe.watch((rank,), 0)

    def look() -> bool:
        probe.look(time.monotonic_ns())
        return holds(probe.latest()[0])

    return wait_until(look, every_s=0.05)


def read_pending_bytes(sample) -> list[int]:
    return [queue.pending_bytes for queue in sample.queues]


@pytest.mark.parametrize("training", CONTEXTS, indirect=True)
def test_a_real_loader_is_full_behind_a_slow_step_and_empty_behind_slow_workers(training):
    process, truth = training
    workers = tuple(LoaderWorker(i, pid, 1) for i, pid in enumerate(truth["workers"]))
    found = map_queues(read_queue_pipes(process.pid), [read_pipes(worker.pid) for worker in workers])
    assert {pipe.read_fd for pipe in found.data} == {truth["data"]}
    assert [pipe.read_fd for pipe in found.index] == truth["index"]

    rank = LoaderRank(0, process.pid, workers, pin_thread=False)
    assert look_until(rank, lambda one: is_known(one.ready_batches) and one.ready_batches >= 2.9)
    full = LoaderProbe()
    full.watch((rank,), 0)
    sample = look_for(full, 1.5)
    assert sample.empty_ratio == 0.0
    assert 0.9 < sample.ready_batches < 4.1, "two workers prefetch two batches each"
    assert abs(sample.ready_batches - round(sample.ready_batches)) < 0.05
    assert look_until(rank, lambda one: read_pending_bytes(one) == [0, 0]), "nothing is left to do"

    tell(process, "make 0.4")
    tell(process, "step 0")
    assert look_until(rank, lambda one: one.ready_bytes == 0)
    empty = LoaderProbe()
    empty.watch((rank,), 0)
    sample = look_for(empty, 2.0)
    assert sample.empty_ratio > 0.8
    assert look_until(rank, lambda one: all(waiting > 0 for waiting in read_pending_bytes(one))), (
        "each has one in work and one to do"
    )

    tell(process, "make 0")
    tell(process, "end 0")
    right, _, count = process.stdout.readline().split()
    assert right == count, "every batch arrived, in order"
    assert process.wait(10) == 0


def test_a_thread_pool_is_counted_named_and_set_against_the_budget():
    """Six OpenMP threads of torch, which also wait for each other at the end of each operation."""
    threads = 6
    with running("pool_train.py", str(threads)) as process:
        assert process.stdout.readline()
        with closing(Collector(find_job(process.pid))) as collector:
            collector.collect()
            time.sleep(1.5)
            frame = collector.collect()
    (rank,) = frame.processes
    assert rank.busy_threads == threads
    assert 2.2 < rank.runnable < threads + 0.3
    pool = frame.cpu.pool
    assert (pool.pid, pool.threads) == (process.pid, threads)
    assert "OpenMP (libgomp: torch)" in pool.library
    budget = len(os.sched_getaffinity(0))
    assert frame.cpu.budget_cores <= budget
    assert frame.cpu.oversubscription == pytest.approx(rank.runnable / frame.cpu.budget_cores)
    assert f"pool {frame.cpu.oversubscription:.1f}x" in frame.facts
    assert "no loader workers" in frame.facts
