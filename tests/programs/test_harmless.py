"""Watching a real training sends it no signal and never stops it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs.chaos_watch import by_pid, watch
from tests.programs.conftest import Program, run_program
from tests.torch_build import needs_torch
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, needs_torch]

TRAIN = (sys.executable, "job_train.py", "--ready", "{ready}")
STRACE = shutil.which("strace")
WATCHED_S = 5.0
SAMPLES_HZ = 100
SIGNAL = re.compile(r"^(\d+) .*--- (SIG\w+) \{(.*)\} ---$", re.MULTILINE)


@contextmanager
def watching(pid: int, members: int) -> Iterator[None]:
    """Run the block, at least ``WATCHED_S`` long, while tpmon writes Frames of the whole job."""
    with watch(pid) as tpmon:
        tpmon.wait_for_next()
        begin = time.monotonic()
        yield
        time.sleep(max(0.0, begin + WATCHED_S - time.monotonic()))
        # "stopped" among them: strace stops what it traces for an instant, and a Frame may fall into one.
        frames = [frame for frame in tpmon.frames if frame["target"]["state"] != "ended"]
        assert len(frames) >= WATCHED_S - 1
        assert {len(by_pid(frame)) for frame in frames} == {members}
        assert tpmon.interrupt() == (130, "")


def read_signals(log: Path) -> list[tuple[int, str, str]]:
    return [(int(pid), name, details) for pid, name, details in SIGNAL.findall(log.read_text())]


class Sampler:
    """Look who traces each thread and whether it is stopped, as fast as asked, on descriptors kept open."""

    def __init__(self, pids: list[int]) -> None:
        self._files = {
            f"{pid}/{task.name}": os.open(task / "status", os.O_RDONLY)
            for pid in pids
            for task in Path(f"/proc/{pid}/task").iterdir()
        }
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks: Counter[str] = Counter()
        self.tracers: Counter[str] = Counter()
        self.states: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for fd in self._files.values():
            os.close(fd)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            for name, fd in self._files.items():
                fields = os.pread(fd, 4096, 0).split()
                self.looks[name] += 1
                self.tracers[fields[fields.index(b"TracerPid:") + 1].decode()] += 1
                self.states[fields[fields.index(b"State:") + 1].decode()] += 1
            due = max(due + 0.8 / SAMPLES_HZ, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def sampling(pids: list[int]) -> Iterator[Sampler]:
    sampler = Sampler(pids)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.close()


def worker_pids(program: Program) -> list[int]:
    return [int(path.name.split("-")[3]) for path in program.folder.glob("worker-*")]


@dataclass(frozen=True)
class Watched:
    """Hold two programs that tpmon watched: one behind strace, whose log is ``log``, and a free one."""

    traced: Program | None
    log: Path
    free: Program
    sampler: Sampler


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Start both programs, and then watch both, at the same time: most of it is waiting."""
    folder = tmp_path_factory.mktemp("harmless")
    log = folder / "strace.log"
    behind = ("strace", "-f", "-qq", "-e", "trace=none", "-e", "signal=all", "-o", str(log))
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = [
            pool.submit(stack.enter_context, run_program((*before, *TRAIN), folder / name, 1))
            for name, before in (("free", ()), ("traced", behind))
            if not before or STRACE
        ]
        free, *rest = [one.result() for one in starts]
        assert all(wait_until(lambda one=one: len(worker_pids(one)) == 2) for one in (free, *rest))
        members = [free.pid, *worker_pids(free)]
        with ExitStack() as looks:
            for program in rest:
                looks.enter_context(watching(program.trainers[0], members=3))
            looks.enter_context(watching(free.pid, members=3))
            with sampling(members) as sampler:
                enough = WATCHED_S * SAMPLES_HZ
                assert wait_until(lambda: min(sampler.looks.values(), default=0) >= enough, 30)
        yield Watched(rest[0] if rest else None, log, free, sampler)


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
def test_no_signal_reaches_the_training(watched: Watched) -> None:
    (trainer,) = watched.traced.trainers
    members = {trainer, *worker_pids(watched.traced)}
    seen = [one for one in read_signals(watched.log) if one[1] != "SIGCHLD"]
    assert seen == [], "signals reached the training"
    children = [details for _, name, details in read_signals(watched.log) if name == "SIGCHLD"]
    assert all(int(re.search(r"si_pid=(\d+)", details)[1]) not in members for details in children)
    # a signal that nobody feels would have been seen
    os.kill(trainer, signal.SIGWINCH)
    assert wait_until(lambda: "SIGWINCH" in [name for _, name, _ in read_signals(watched.log)], 10)


def test_no_thread_of_the_training_is_traced_or_stopped(watched: Watched) -> None:
    assert set(watched.sampler.tracers) == {"0"}
    assert set(watched.sampler.states) <= {"R", "S", "D"}
    assert len(watched.sampler.looks) > 3
    # a stop, and a tracer, would have been seen
    worker = worker_pids(watched.free)[0]
    with sampling([worker]) as sampler:
        os.kill(worker, signal.SIGSTOP)
        assert wait_until(lambda: "T" in sampler.states, 10)
        os.kill(worker, signal.SIGCONT)
        if STRACE:
            with subprocess.Popen(
                ["strace", "-qq", "-e", "trace=none", "-p", str(worker)], stderr=subprocess.DEVNULL
            ) as tracer:
                assert wait_until(lambda: str(tracer.pid) in sampler.tracers, 10)
                tracer.terminate()
