"""On a machine with an NVIDIA GPU: three real runs that one reading alone would misjudge."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HAS_CUDA = "import sys, torch; sys.exit(not torch.cuda.is_available())"
"""Asked in another process: pytest with torch in it would be the job around every program it starts."""


@pytest.fixture(scope="module", autouse=True)
def card() -> None:
    if subprocess.run([sys.executable, "-c", HAS_CUDA], capture_output=True, check=False).returncode:
        pytest.skip("torch finds no CUDA device, or is not installed")


PROGRAM = Path(__file__).with_name("gpu_train.py")
LOOK = "25s"
HEALTHY = {"balanced", "compute-bound"}


@contextmanager
def train(way: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, str(PROGRAM), way], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(3)
        yield process.pid
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def run_tpmon(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tpmon", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip(), done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def diagnose(pid: int) -> dict[str, Any]:
    return run_tpmon("diagnose", str(pid), "--for", LOOK, "--json")


def test_a_loader_that_the_gpu_hides_is_not_data_bound() -> None:
    with train("queue-work") as pid:
        verdict = diagnose(pid)
    assert verdict["kind"] in HEALTHY, verdict


def test_reserved_memory_without_retries_is_a_note_and_no_fault() -> None:
    with train("fill-memory") as pid:
        frame = run_tpmon("attach", str(pid), "--once", "--json")
        verdict = diagnose(pid)
    assert any(note.startswith("memory-full") for note in frame["notes"]), frame["notes"]
    assert verdict["kind"] in HEALTHY, verdict


@pytest.mark.usefixtures("sampling_works")
def test_ten_thousand_tiny_kernels_a_second_are_launch_bound() -> None:
    with train("tiny-kernels") as pid:
        verdict = diagnose(pid)
    assert (verdict["kind"], verdict["cause"]) == ("launch-bound", "tiny-kernels"), verdict
