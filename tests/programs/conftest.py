"""Start real training programs as a user would, once a module, and leave none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpmon.probe.job import find_descendants
from tpmon.probe.procread import read_table

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
READY_S = 300.0
"""Twelve processes that import torch on two busy cores need two minutes; nothing waits it out."""


@dataclass(frozen=True)
class Program:
    """Name a running program, the processes that reported a first trained batch, and its folder."""

    pid: int
    trainers: tuple[int, ...]
    folder: Path


@contextmanager
def run_program(command: Sequence[str], folder: Path, trainers: int) -> Iterator[Program]:
    """Run a command in this folder until ``trainers`` processes have trained a batch; end it after use.

    ``{ready}`` in the command stands for the folder where they report.
    """
    if "torch" in sys.modules:
        pytest.fail("a test imported torch, so pytest is the highest Python process with torch here")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [word.replace("{ready}", str(folder)) for word in command],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        deadline = time.monotonic() + READY_S
        while (
            len(ready := sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()))
            < trainers
        ):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield Program(process.pid, tuple(ready), folder)
    finally:
        end_tree(process)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and all that descends from it; torchrun's ranks have sessions of their own."""
    members = find_descendants(process.pid, read_table())
    for pid in members or [process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Wait until something holds; False when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
