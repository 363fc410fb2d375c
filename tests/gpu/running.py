"""Start the programs of this folder, ask tpmon about them, and read what they say of themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs.capturing import ENVIRONMENT, TPMON, run
from tests.programs.conftest import end_tree

HERE = Path(__file__).parent
READY = "ready"
SETTLE_S = 3.0


@dataclass(frozen=True)
class Training:
    """Hold a program under way; ``pid`` is the training's own, ``process`` what was started."""

    pid: int
    process: subprocess.Popen[str]

    def hear(self, word: str) -> list[str]:
        """Return the words after ``word`` on the line that begins with it; what others print is left out."""
        for line in self.process.stdout:
            first, *rest = line.split() or [""]
            if first == word:
                return rest
        raise AssertionError(f"the program ended before it said {word!r}")


@contextmanager
def start(command: Sequence[str], folder: Path | None = None) -> Iterator[Training]:
    """Start a command until it is ready, in this folder; end it with all that it started.

    Where it says which, the training is another process than the one that is started.
    """
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    pid = process.pid
    try:
        said = Training(pid, process).hear(READY)
        pid = int(said[0]) if said else pid
        yield Training(pid, process)
    finally:
        end_tree(process)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # a profiler may have made itself no ancestor of it
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def train(way: str, device: str = "cuda") -> Iterator[Training]:
    with start([sys.executable, str(HERE / "gpu_train.py"), way, "--device", device]) as one:
        time.sleep(SETTLE_S)
        yield one


def list_ways() -> list[str]:
    """Return the ways of ``gpu_train.py``, read from its text: to import it would load torch here."""
    table = (HERE / "gpu_train.py").read_text().partition("\nWAYS: ")[2].partition("\n}\n")[0]
    return re.findall(r'^    "([a-z-]+)": ', table, re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """Hold what one step of ``gpu_steps.py`` took, by the program itself; ``at_s`` is CLOCK_MONOTONIC."""

    at_s: float
    host_ms: float
    device_ms: dict[str, float]


@dataclass(frozen=True)
class Stepping:
    """Hold a hooked training of ``gpu_steps.py`` and the file where it writes its steps."""

    training: Training
    file: Path

    @property
    def pid(self) -> int:
        return self.training.pid

    @property
    def is_running(self) -> bool:
        """Tell whether the training, and what stands in front of it, go on."""
        return self.training.process.poll() is None and Path(f"/proc/{self.pid}").exists()

    def read(self) -> list[Step]:
        lines = self.file.read_text().split("\n")[:-1]
        return [Step(**json.loads(line)) for line in lines]


@contextmanager
def step(way: str, folder: Path, *before: str, device: str = "cuda") -> Iterator[Stepping]:
    """Train under the hook in one of the ways of ``gpu_steps.py``, behind the words ``before``."""
    file = folder / "steps.jsonl"
    program = [sys.executable, str(HERE / "gpu_steps.py"), way, str(file), "--device", device]
    with start([*before, *program], folder) as one:
        yield Stepping(one, file)


def run_tpmon(*arguments: str) -> dict[str, Any]:
    done = run([*TPMON, *arguments])
    assert done.stdout.strip(), done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
