"""On a machine with an NVIDIA GPU: what a capture holds of the card, and what it leaves of the run."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.captures import read_told
from tests.gpu.running import Stepping, run_tpmon, step
from tests.programs.capturing import captured

pytestmark = pytest.mark.usefixtures("card")

STEPS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepping]:
    with step("layers", tmp_path_factory.mktemp("run")) as one:
        yield one


def test_a_capture_holds_the_kernels_of_the_steps_and_how_busy_they_kept_the_card(
    run: Stepping, tmp_path: Path
) -> None:
    told, _said = captured(run.pid, "--steps", str(STEPS), "--out", str(tmp_path / "out"))
    (file,) = told["files"]
    assert file["steps"] == STEPS
    marks = read_told(file["path"]).marks
    assert marks == tuple(range(file["first_step"], file["first_step"] + STEPS))
    kernels = count_kernels(file["path"])
    # Each of the 60 layers multiplies forward, and for its weight backward.
    assert kernels >= STEPS * 2 * 60
    assert file["kernels"] == kernels
    overview = run_tpmon("trace", file["path"], "--json")["files"][0]["overview"]
    assert overview["steps"] == STEPS
    (card,) = overview["gpus"]
    assert 0 < card["kernel_busy_us"] <= card["busy_us"] <= overview["window_us"]
    assert 0 < card["busy_pct"] <= 100
    assert overview["breakdown_us"]["kernel"] > 0


def test_a_snapshot_of_the_allocator_is_a_pickle_with_segments(run: Stepping, tmp_path: Path) -> None:
    told, _said = captured(run.pid, "--snapshot", "--steps", str(STEPS), "--out", str(tmp_path / "out"))
    (file,) = told["files"]
    assert (file["kind"], Path(file["path"]).suffix) == ("allocator snapshot", ".pickle")
    with open(file["path"], "rb") as stream:
        held: dict[str, Any] = pickle.load(stream)
    assert sum(one["allocated_size"] for one in held["segments"]) > 0
    assert all(one["blocks"] for one in held["segments"])
    assert any(event["action"] == "alloc" for device in held["device_traces"] for event in device)
    devices = run_tpmon("trace", file["path"], "--json")["files"][0]["devices"]
    device = next(one for one in devices if one["device"] == 0)
    assert device["events"] > 0
    assert device["live"]


def count_kernels(path: str) -> int:
    """Count the kernels of a trace without tpmon's own parser."""
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        events = json.load(file)["traceEvents"]
    return sum(one.get("ph") == "X" and one.get("cat") == "kernel" for one in events)
