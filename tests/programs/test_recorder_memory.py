"""A recording of memory and the lines that torch writes of blocks from before: none of ours, all of the program's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]
WARNED = "Memory block of unknown size was allocated before the profiling started"
STEPS, FREED = 3, 900
"""Steps of a window, and how many blocks from before it each of them frees: more than a thousand in the window."""

PROGRAM = f"""
import json, sys, torch
import torch.autograd.profiler
from tpmon.hook import recorder, wire_capture
held = [torch.randn(4) for _ in range({3 * STEPS * FREED})]
if sys.argv[1] == "plain":
    recorder.UnknownBlocks.begin = lambda self: False
found = []
def window(path):
    one = recorder.Recorder(wire_capture.OPTION_MEMORY)
    one.prepare()
    one.start({{}})
    for step in range({STEPS}):
        one.mark(step)
        del held[-{FREED}:]
        torch.randn(16)
    one.stop()
    one.save(path)
    one.drop()
    with open(path) as file:
        found.append(sum(event["name"] == "[memory]" for event in json.load(file)["traceEvents"]))
window(sys.argv[2])
window(sys.argv[2])
print(json.dumps(found), flush=True)
print("the program's own", file=sys.stderr, flush=True)
with torch.profiler.profile(profile_memory=True):
    del held[-{FREED}:]
"""


@pytest.mark.parametrize("how", ["hooked", "plain"])
def test_no_line_of_torch_comes_of_two_windows_and_the_programs_own_comes_as_ever(
    tmp_path: Path, how: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(tmp_path / "trace.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "KINETO_LOG_LEVEL": "99",
        },
    )
    ours, _, theirs = done.stderr.partition("the program's own\n")
    assert min(json.loads(done.stdout)) >= 2 * STEPS  # each step allocates a block and frees it
    if how == "plain":
        assert ours.count(WARNED) > 1, "torch warns no more: then nothing is left to keep back"
    else:
        assert ours == ""
        assert theirs.count(WARNED) == 1
