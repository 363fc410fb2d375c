"""Forked loader workers live under the hook, whose events of the device they must never free; steps with and without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.gpu_results import SECONDS_OF_EPOCH, keep
from tests.programs.capturing import run

PROGRAM = Path(__file__).with_name("gpu_fork.py")
WORKERS, PASSES = 4, 6
"""Workers of a pass; three epochs and a validation after each."""
TURNS = 2


def train(device: str, *flags: str) -> dict[str, Any]:
    """Train to the end; what torch says of a worker that was killed is the reason of a failure."""
    command = [sys.executable, "-W", "ignore", str(PROGRAM), "--device", device, "--seconds", SECONDS_OF_EPOCH, *flags]
    done = run(command, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_forked_workers_live_through_epochs_and_validations_under_the_hook(device: str) -> None:
    told = [train(device, *flags) for _ in range(TURNS) for flags in ((), ("--hook",))]
    keep("fork.json", json.dumps(told, indent=1))
    for one in told:
        assert one["exits"] == {"0": WORKERS * PASSES}, one
        assert one["validations"] == 3
        assert one["problem"] == ("" if one["hooked"] else "not hooked")
