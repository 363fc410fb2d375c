"""Captures with what other Pythons have: of real Lightning runs, and read by TensorBoard's profiler plugin.

``make test-frameworks`` and ``make test-tensorboard`` have those Pythons; each leaves out the tests of the other.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.programs.capturing import HERE, capture, run, run_json, training
from tests.programs.test_kineto_real import FROM_HOOK, FROM_KINETO, recorded_by_kineto, training_pid
from tests.torch_build import needs_torch
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


TENSORBOARD_PYTHON = os.environ.get("TENSORBOARD_PYTHON", "")
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


@needs_torch
@pytest.mark.skipif(not TENSORBOARD_PYTHON, reason="make test-tensorboard has a Python with the plugin")
@pytest.mark.parametrize(
    ("start", "backend"), [(training, FROM_HOOK), (training_pid, FROM_KINETO)], ids=["hook", "kineto"]
)
def test_tensorboard_reads_what_was_captured(
    tmp_path: Path, start: Callable[[], AbstractContextManager[int]], backend: str
) -> None:
    with start() as pid:
        code, told, said = capture(pid, "--steps", str(STEPS), "--out", str(tmp_path / "out"))
    assert (code, told["backend"]) == (0, backend), said
    (name,) = os.listdir(tmp_path / "out")
    done = run([TENSORBOARD_PYTHON, "-c", PROGRAM, str(tmp_path / "out")])
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
