"""The pace that the log of a real training tells, attached live, beside the one at which it runs."""

import importlib.util
import sys

import pytest

from tests.programs.chaos_watch import watch
from tests.programs.conftest import run_program
from tests.torch_build import needs_torch

pytestmark = [pytest.mark.torch, needs_torch]

RATE_HZ = 8.0
needs_tqdm = pytest.mark.skipif(importlib.util.find_spec("tqdm") is None, reason="tqdm is not installed")


def _is_counted(frame):
    return frame.get("pace", {}).get("source") == "counted"


@pytest.mark.parametrize(("form", "unit"), [("plain", "step"), pytest.param("tqdm", "it", marks=needs_tqdm)])
def test_the_log_tells_the_pace_of_a_training_without_a_hook(form, unit, tmp_path):
    command = [sys.executable, "pace_train.py", form, str(RATE_HZ), "{ready}"]
    with run_program(command, tmp_path / "ready", 1) as program, watch(program.pid) as watched:
        frame = watched.wait_for(_is_counted)
        frame = watched.wait_for(_is_counted, after_ns=frame["taken_ns"] + 6 * 10**9)
    pace = frame["pace"]
    assert pace["rate_hz"] == pytest.approx(RATE_HZ, rel=0.05)
    assert pace["unit"] == unit
    assert pace["pid"] == program.pid
    assert pace["step"] > RATE_HZ
    assert f"{'steps' if unit == 'step' else unit}/s (log)" in frame["facts"]
    assert frame["output"][0]["pace"] == pace
    assert "loss" in pace if form == "plain" else "total" in pace
