"""Captures of real Lightning runs; make test-frameworks runs them in the Python of the frameworks."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.programs.capturing import HERE, capture, run_json
from tests.programs.test_kineto_real import FROM_KINETO, recorded_by_kineto
from tpmon.hook.bus import wire_capture as w

# Torch is asked of that Python alone: the one of the tests may have none.
pytestmark = [pytest.mark.torch, pytest.mark.long]

HAS_LIGHTNING = "import importlib.util, sys; sys.exit(importlib.util.find_spec('lightning') is None)"


@pytest.fixture(scope="module")
def python() -> str:
    """Return the Python of the frameworks; skip without it."""
    path = os.environ.get("FRAMEWORKS_PYTHON", "")
    if not path:
        pytest.skip("FRAMEWORKS_PYTHON=PATH of a Python with torch and lightning is not set")
    if subprocess.run([path, "-c", HAS_LIGHTNING], check=False).returncode:
        pytest.skip(f"no lightning in {path}")
    return path


def test_a_lightning_run_is_captured(python: str, tmp_path: Path) -> None:
    report = run_json(python, "capture_lightning.py", tmp_path / "out")
    assert report["told"]["state"] == w.STATE_VERIFIED
    assert (report["file"]["marks"], report["file"]["optimizer"], report["file"]["wrong"]) == (6, 6, [])
    assert (report["same_losses"], report["steps"], report["problem"]) == (True, 60, "")
    assert report["file"]["conditions"]["model"] == "Module"


def count_whole_updates(path: str) -> int:
    """Count the updates that ended: Lightning trains within them, so that kineto stops at the start of one."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return sum(one["name"].startswith("Optimizer.step") and one["dur"] > 0 for one in events if one["ph"] == "X")


def test_a_lightning_run_is_recorded_by_kineto(python: str, tmp_path: Path) -> None:
    command = [python, "-W", "ignore", str(HERE / "capture_lightning.py")]
    with recorded_by_kineto(command, stderr=subprocess.DEVNULL) as job:
        code, told, said = capture(job.pid, "--steps", "3", "--out", str(tmp_path / "out"))
        assert (code, told["state"], told["backend"]) == (0, "done", FROM_KINETO), said
        (file,) = told["files"]
        found = read_told(file["path"])
        assert (len(found.marks), count_whole_updates(file["path"]), found.wrong) == (3, 3, ())
        assert found.conditions["model"] == "Module"
        assert job.poll() is None
