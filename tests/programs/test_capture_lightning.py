"""A capture of a real Lightning run; make test-frameworks runs it in the Python of the frameworks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.programs.capturing import run_json
from tpmon.hook import wire_capture as w

# Torch is asked of that Python alone: the one of the tests may have none.
pytestmark = [pytest.mark.torch, pytest.mark.long]

HAS_LIGHTNING = "import importlib.util, sys; sys.exit(importlib.util.find_spec('lightning') is None)"


def test_a_lightning_run_is_captured(tmp_path: Path) -> None:
    python = os.environ.get("FRAMEWORKS_PYTHON", "")
    if not python:
        pytest.skip("FRAMEWORKS_PYTHON=PATH of a Python with torch and lightning is not set")
    if subprocess.run([python, "-c", HAS_LIGHTNING], check=False).returncode:
        pytest.skip(f"no lightning in {python}")
    report = run_json(python, "capture_lightning.py", tmp_path / "out")
    assert report["told"]["state"] == w.STATE_VERIFIED
    assert (report["file"]["marks"], report["file"]["optimizer"], report["file"]["wrong"]) == (6, 6, [])
    assert (report["same_losses"], report["steps"], report["problem"]) == (True, 60, "")
    assert report["file"]["conditions"]["model"] == "Module"
