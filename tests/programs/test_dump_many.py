"""Dump a hung job of 8 ranks with 8 workers each: what it costs, that nothing stops, and beside busy cores."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from tests.budget.measure import measure_import, slowness
from tests.programs.conftest import HERE, Program, run_program
from tests.programs.test_dump_real import dump
from tests.programs.test_harmless import sampling
from tests.spying import may_sample
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.model.codec import decode
from tpmon.model.dump import Asker, Dump, DumpRequest
from tpmon.model.known import is_known
from tpmon.model.process import Role
from tpmon.probe.job.job import Job
from tpmon.probe.job.resolve import find_job
from tpmon.probe.spy.dump import DumpService, dumpable

pytestmark = [pytest.mark.torch, pytest.mark.budget, needs_torch]

RANKS, WORKERS, CULPRIT = 8, 8, 3
CPU_S = 2.5
WALL_S = 4.0
BUSY_WALL_S = 10.0
TRIES = 3
"""Other programs run beside the tests: one try that costs no more than is promised is enough."""
SLOWER = 3
"""How many times longer than promised a try may take by the clock: others may have the machine meanwhile."""
STOPS_MS = 20.0
BUSY_PER_CORE = 8


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start the job once; every test leaves it as it is."""
    if reason := may_sample():
        pytest.skip(reason)
    command = (sys.executable, "-W", "ignore", "rank_hang.py", "--ready", "{ready}")
    more = ("--fork", str(RANKS), "--workers", str(WORKERS), "--culprit", str(CULPRIT))
    with run_program((*command, *more), tmp_path_factory.mktemp("many"), RANKS) as running:
        assert wait_until(lambda: is_hung(dump(running.pid)), 60), "the culprit was not found"
        yield running


def is_hung(found: Dump) -> bool:
    """Tell whether the culprit was named and nothing was left out."""
    odd = found.odd_one_out
    processes = {thread.pid for group in found.groups for thread in group.threads}
    return (
        is_known(odd)
        and odd.rank == CULPRIT
        and odd.doing.startswith("hold rank_hang.py:")
        and found.summary.startswith(f"{RANKS - 1} of {RANKS} ranks wait in all_reduce rank_hang.py:")
        and len(processes) == RANKS * (1 + WORKERS)
        and found.errors == ()
    )


def test_the_command_stays_within_its_cpu_and_time(program: Program):
    costs: list[float] = []
    while len(costs) < TRIES and min(costs, default=CPU_S + 1) > CPU_S:
        began = time.monotonic()
        # The usage of a child that was waited for includes that of its own children: every py-spy.
        process = subprocess.Popen(
            [sys.executable, "-m", "tpmon", "dump", str(program.pid)],
            cwd=HERE.parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert time.monotonic() - began <= WALL_S * SLOWER
        costs.append(usage.ru_utime + usage.ru_stime)
    assert min(costs) <= CPU_S * slowness([measure_import()])


def ask(job: Job, limit_s: float) -> tuple[Dump, list[int], float]:
    """Do what the key does in this time; returns the fold, how many answers were seen on the way, CPU seconds."""
    service = DumpService(lambda: dumpable(job))
    seen: list[int] = []

    def note() -> None:
        if is_known(service.state) and service.state.running:
            seen.append(service.state.answered)

    service.on_change = note
    cpu_s = time.process_time()
    service.ask(DumpRequest(Asker.KEY))
    assert wait_until(lambda: is_known(service.state) and not service.state.running, limit_s)
    folded = fold_rounds(service.state.rounds, DumpOrigin(job.root.pid, job.script, RANKS))
    return folded, seen, time.process_time() - cpu_s + folded.spy_cpu_ms / 1000


def test_the_key_stays_within_its_cpu_and_stops_nothing(program: Program):
    job = find_job(program.pid)
    costs: list[float] = []
    while len(costs) < TRIES and min(costs, default=CPU_S + 1) > CPU_S:
        found, seen, cpu_s = ask(job, WALL_S * SLOWER)
        assert is_hung(found)
        assert seen == sorted(seen)
        costs.append(cpu_s)
    assert min(costs) <= CPU_S * slowness([measure_import()])
    with sampling(list(program.trainers)) as looks:
        found, *_ = ask(job, WALL_S * SLOWER)
    those = [thread for group in found.groups for thread in group.threads if thread.role is Role.WORKER]
    assert {(thread.rank, thread.worker) for thread in those} == set(product(range(RANKS), range(WORKERS)))
    assert found.paused_ms <= STOPS_MS
    assert found.paused_ms == 0.0, "nothing asked for a stop"
    assert set(looks.tracers) == {"0"}
    assert set(looks.states) <= {"R", "S", "D"}


@contextmanager
def busy_cores() -> Iterator[None]:
    code = "while True: pass"
    count = BUSY_PER_CORE * len(os.sched_getaffinity(0))
    programs = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for one in programs:
            one.kill()
        for one in programs:
            one.wait()


def test_beside_busy_cores_it_comes_in_parts_and_in_time(program: Program):
    job = find_job(program.pid)
    with busy_cores():
        found, seen, _ = ask(job, BUSY_WALL_S * SLOWER)
    assert is_hung(found), found.errors
    assert seen == sorted(seen)
    assert [one for one in seen if 0 < one < RANKS * (1 + WORKERS)], "it comes in one piece"


PTRACE = re.compile(r"^\d+ +(\d+\.\d+) ptrace\((PTRACE_\w+), (\d+)", re.MULTILINE)


def knows_filter() -> bool:
    """Tell whether strace can leave the calls alone that nobody asked for (5.3 and later)."""
    command = ["strace", "--seccomp-bpf", "-f", "-qq", "-e", "trace=ptrace", "true"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def traced_dump(pid: int, log: Path, *arguments: str) -> tuple[Dump, str]:
    """Dump under strace; returns the dump, and what strace saw of ptrace and of signals that were sent."""
    calls = "trace=ptrace,kill,tgkill,tkill,pidfd_send_signal,rt_sigqueueinfo"
    fast = ("--seccomp-bpf",) if knows_filter() else ()
    strace = ("strace", *fast, "-f", "-ttt", "-qq", "-e", calls, "-e", "signal=none", "-o", str(log))
    command = [*strace, sys.executable, "-m", "tpmon", "dump", str(pid), "--json", *arguments]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0 and "ptrace" in done.stderr:
        pytest.skip(f"strace: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return decode(Dump, done.stdout), log.read_text()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_sees_no_stop_and_no_signal_of_a_dump(program: Program, tmp_path: Path):
    found, log = traced_dump(program.pid, tmp_path / "log")
    # strace holds every py-spy up: on a crowded machine some do not answer in time.
    assert len(found.errors) < RANKS * (1 + WORKERS) / 2
    assert found.paused_ms == 0.0
    assert PTRACE.findall(log) == []
    job_pids = {one.identity.pid for one in find_job(program.pid).members}
    sent = {int(pid) for pid in re.findall(r"(?:kill|sigqueueinfo)\((\d+),", log)}
    assert not sent & job_pids


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strace_and_tpmon_count_the_same_stop(program: Program, tmp_path: Path):
    job = find_job(program.pid)
    worker = next(one.identity.pid for one in job.members if one.role is Role.WORKER)
    for _ in range(3):  # on a crowded machine py-spy may not answer in time
        found, log = traced_dump(program.pid, tmp_path / "log", "--pid", str(worker), "--native")
        if not found.errors:
            break
    main = [(float(at), call) for at, call, tid in PTRACE.findall(log) if int(tid) == worker]
    assert main, found.errors or "py-spy read the C stack without a stop?"
    stopped_ms = (main[-1][0] - main[0][0]) * 1000
    assert found.paused_ms == pytest.approx(stopped_ms, rel=0.3, abs=20.0)
