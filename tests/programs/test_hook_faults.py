"""An error of the hook's own, wherever it comes up, is never the training's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.capturing import ENVIRONMENT, HERE
from tests.programs.conftest import READY_S
from tests.torch_build import needs_torch

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]


def test_an_error_at_each_ninth_line_of_the_hook_leaves_the_training_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "hook_faults.py"), str(tmp_path / "out"), "9"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=6 * READY_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["lines"]["captured"] > 100
