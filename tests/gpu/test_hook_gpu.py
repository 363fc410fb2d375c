"""On a machine with an NVIDIA GPU: the device's time of a step by the hook, against that of the program."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.gpu.running import run_tpmon, step
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("card")

MEASURED = 8
"""Steps that the hook measures meanwhile: one every two seconds."""
PARTS = ("step", "forward", "backward", "optimizer")
CLOSE = 0.05


def read_device(pid: int) -> dict[str, Any]:
    """Return the device times of the one rank, {} before the hook measured a step."""
    hooks = run_tpmon("attach", str(pid), "--once", "--json")["hook"]
    device: dict[str, Any] = hooks[0]["device"]
    return {} if "missing" in device else device


def test_the_split_of_the_device_is_that_of_events_of_the_program(tmp_path: Path) -> None:
    with step("split", tmp_path) as run:
        assert wait_until(lambda: read_device(run.pid).get("steps", 0) >= 2, 60, 0.5), "nothing is measured"
        begun_s, first = time.monotonic(), read_device(run.pid)
        assert wait_until(lambda: read_device(run.pid)["steps"] >= first["steps"] + MEASURED, 120, 1.0)
        last, ended_s = read_device(run.pid), time.monotonic()
        truth = [one.device_ms for one in run.read() if begun_s <= one.at_s <= ended_s]
    steps = last["steps"] - first["steps"]
    assert len(truth) > steps, "each step was measured, so the hook's share of them was not tried"
    said = {part: (last[f"{part}_ns"] - first[f"{part}_ns"]) / steps / 1e6 for part in PARTS}
    measured = {part: mean(one[part] for one in truth) for part in PARTS}
    assert said == pytest.approx(measured, rel=CLOSE)
    assert sum(said[part] for part in PARTS[1:]) <= said["step"] * (1 + CLOSE)
