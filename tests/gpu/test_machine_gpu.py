"""Keep what the driver, tpmon's doctor and the clock say of this machine: what other claims are read beside."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from tests.gpu.gpu_results import keep
from tests.programs.capturing import TPMON, run


def run_and_keep(name: str, *command: str) -> str:
    done = run(command)
    keep(name, done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("card")
def test_the_driver_tells_of_its_cards() -> None:
    path = shutil.which("nvidia-smi")
    if path is None:
        pytest.skip("nvidia-smi is not in PATH")
    assert "Product Name" in run_and_keep("nvidia-smi.txt", path, "-q")


def test_the_doctor_tells_of_the_machine(device: str) -> None:
    assert json.loads(run_and_keep("doctor.json", *TPMON, "doctor", "--json"))["schema"] == "tpmon.doctor/1"


@pytest.mark.usefixtures("card")
def test_the_calls_of_each_card_are_timed() -> None:
    calls = json.loads(run_and_keep("nvml-latency.json", sys.executable, "-m", "tests.gpu.nvml_latency"))
    assert calls["nvmlDeviceGetCount"]["calls"] == 1
