"""Start a hooked training, and ask tpmon for a capture of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.programs.causes.running import end_tree
from tests.programs.conftest import READY_S

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("HOOK_PYTHON", sys.executable)
"""The Python of the trainings; make test-pythons tries others. tpmon itself runs in that of the tests."""
TPMON = (sys.executable, "-m", "tpmon")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(command: Sequence[str], seconds: float = READY_S, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=seconds, check=False
    )


def start(command: Sequence[str], **options: object) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    return subprocess.Popen(command, text=True, **(pipes | options))


@contextmanager
def started(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command, wait until it says "ready", and kill it with all that it started."""
    with start(command, **options) as job:
        try:
            assert "ready\n" in iter(job.stdout.readline, ""), "it did not start"
            yield job
        finally:
            end_tree(job)


@contextmanager
def training(**environment: str) -> Iterator[int]:
    """Start a hooked training of one process and one worker, 10 ms a batch, that goes on until killed."""
    command = [PYTHON, "-W", "ignore", str(HERE / "hook_loops.py"), "--forever"]
    with started(command, stderr=subprocess.DEVNULL, env={**ENVIRONMENT, **environment}) as job:
        yield job.pid


def run_json(python: str, program: str, folder: Path, *flags: str) -> dict[str, object]:
    """Run a program of this folder that captures itself, and return what it prints."""
    done = run([python, "-W", "ignore", str(HERE / program), str(folder), *flags], 4 * READY_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def captured(pid: int, *flags: str) -> tuple[dict[str, object], str]:
    """Capture to the end, and return what was told and what was said meanwhile."""
    code, told, said = capture(pid, *flags)
    assert (code, told.get("state")) == (0, "done"), said
    return told, said


def capture(pid: int, *flags: str) -> tuple[int, dict[str, object], str]:
    done = run([*TPMON, "capture", str(pid), "--json", *flags])
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr
