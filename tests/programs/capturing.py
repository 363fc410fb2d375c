"""Start a hooked training, and ask tpmon for a capture of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs.conftest import READY_S
from tpmon.probe.base.procread import read_table
from tpmon.probe.job.job import find_descendants

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("HOOK_PYTHON", sys.executable)
"""The Python of the trainings; make test-pythons tries others. tpmon itself runs in that of the tests."""
TPMON = (sys.executable, "-m", "tpmon")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def training() -> Iterator[int]:
    """Start a hooked training of one process and one worker, 10 ms a batch, that goes on until killed."""
    with subprocess.Popen(
        [PYTHON, "-W", "ignore", str(HERE / "hook_loops.py"), "--forever"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            yield job.pid
        finally:
            for pid in (job.pid, *find_descendants(job.pid, read_table())):
                with_pid = Path(f"/proc/{pid}")
                if with_pid.exists():
                    os.kill(pid, signal.SIGKILL)


def run_json(python: str, program: str, folder: Path, **environment: str) -> dict[str, object]:
    """Run a program of this folder that captures itself, and return what it prints."""
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / program), str(folder)],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=4 * READY_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def capture(pid: int, *flags: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [*TPMON, "capture", str(pid), "--json", *flags],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr
