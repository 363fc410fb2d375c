"""Start real training programs as a user would, once a module, and leave none behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs.causes.running import end_tree
from tests.waiting import wait_until

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


def start_logged(command: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a command in this folder of programs; its output goes to the file that is returned too."""
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "GLOO_SOCKET_IFNAME": "lo",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(HERE.parents[1]),
            },
        )
    return process, log


@contextmanager
def run_program(command: Sequence[str], folder: Path, trainers: int) -> Iterator[Program]:
    """Run a command in this folder until ``trainers`` processes have trained a batch; end it after use.

    ``{ready}`` in the command stands for the folder where they report.
    """
    if "torch" in sys.modules:
        pytest.fail("a test imported torch, so pytest is the highest Python process with torch here")
    folder.mkdir(parents=True, exist_ok=True)
    process, log = start_logged([word.replace("{ready}", str(folder)) for word in command], folder)

    def ready() -> tuple[int, ...]:
        return tuple(sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()))

    try:
        wait_until(lambda: len(ready()) >= trainers or process.poll() is not None, READY_S)
        if len(started := ready()) < trainers:
            pytest.fail(f"{command} did not start:\n{log.read_text()[-2000:]}")
        yield Program(process.pid, started, folder)
    finally:
        end_tree(process)
