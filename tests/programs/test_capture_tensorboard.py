"""TensorBoard's profiler plugin reads what either back end recorded (make test-tensorboard)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.programs import capturing, test_kineto_real
from tests.torch_build import needs_torch

TENSORBOARD_PYTHON = os.environ.get("TENSORBOARD_PYTHON", "")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.long,
    needs_torch,
    pytest.mark.skipif(not TENSORBOARD_PYTHON, reason="make test-tensorboard has a Python with the plugin"),
]

STEPS = 3
OPERATOR = "aten::addmm"
PROGRAM = """
import importlib.metadata, json, sys
from torch_tb_profiler.io import Cache
from torch_tb_profiler.profiler.loader import RunLoader
run = RunLoader("run", sys.argv[1], Cache()).load()
print(json.dumps({
    "version": importlib.metadata.version("torch-tb-profiler"),
    "profiles": [
        {
            "steps": [row[0] for row in one.overview["steps"]["rows"]],
            "views": [view.display_name for view in one.views],
            "calls": {row["name"]: row["calls"] for row in one.operation_table_by_name["data"]},
        }
        for one in run.profiles.values()
    ],
}))
"""


@pytest.mark.parametrize(
    ("start", "backend"),
    [(capturing.training, test_kineto_real.FROM_HOOK), (test_kineto_real.training_pid, test_kineto_real.FROM_KINETO)],
    ids=["hook", "kineto"],
)
def test_tensorboard_reads_what_was_captured(
    tmp_path: Path, start: Callable[[], AbstractContextManager[int]], backend: str
) -> None:
    with start() as pid:
        code, told, said = capturing.capture(pid, "--steps", str(STEPS), "--out", str(tmp_path / "out"))
    assert (code, told["backend"]) == (0, backend), said
    (name,) = os.listdir(tmp_path / "out")
    done = capturing.run([TENSORBOARD_PYTHON, "-c", PROGRAM, str(tmp_path / "out")])
    assert (done.returncode, done.stderr) == (0, "")  # it complains of ranges that intersect, and drops them
    read = json.loads(done.stdout)
    (profile,) = read["profiles"]
    first = told["files"][0]["first_step"]
    begins = first if isinstance(first, int) else 0
    assert profile["steps"] == [str(begins + step) for step in range(STEPS)]
    assert profile["views"] == ["Overview", "Operator", "Trace"]
    assert profile["calls"][OPERATOR] % STEPS == 0
    print(
        f"\n{backend}\n  {name.partition('-')[2]}\n  torch-tb-profiler {read['version']}: steps"
        f" {', '.join(profile['steps'])}; views {', '.join(profile['views'])};"
        f" {len(profile['calls'])} operators, {profile['calls'][OPERATOR]} calls of {OPERATOR}"
    )
