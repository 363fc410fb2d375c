"""What a capture holds beside operators when it is asked for: shapes, stacks, memory, and the run's own marks."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.programs.capturing import ENVIRONMENT, HERE, capture
from tests.programs.conftest import READY_S
from tests.torch_build import needs_torch

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]

COMMAND = (sys.executable, "-W", "ignore", str(HERE / "capture_details.py"))
STEPS = 3
WARNED = "Memory block of unknown size was allocated before the profiling started"
"""What torch writes of its own accord while it records allocations of the host, once in a thousand of them."""


def test_shapes_stacks_memory_and_marks_are_in_the_trace_and_losses_are_the_same(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with subprocess.Popen(
        [*COMMAND, "--until", str(stop)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout.readline() == "ready\n"
            code, told, said = capture(
                job.pid, "--steps", str(STEPS), "--shapes", "--stacks", "--memory",
                "--out", str(tmp_path / "out"),
            )  # fmt: skip
            stop.touch()
            printed, noise = job.communicate(timeout=READY_S)
        finally:
            job.kill()
    assert (code, told["state"], told["notes"]) == (0, "done", []), said
    assert [line for line in noise.splitlines() if WARNED not in line] == []
    assert "--memory: torch warns on the run's standard error" in said
    losses = json.loads(printed)
    (file,) = told["files"]
    found = read_told(file["path"])
    assert (len(found.marks), found.optimizer, found.wrong) == (STEPS, STEPS, ())
    with gzip.open(file["path"]) as packed:
        events = json.load(packed)["traceEvents"]

    # Shapes: the first layer's product of a batch, once a step.
    products = [one["args"] for one in events if one["name"] == "aten::addmm"]
    assert sum([4, 8] in one["Input Dims"] for one in products) == STEPS
    assert all(one["Input type"][0] == "float" for one in products)

    # Stacks: the function of the program, in its own file, beneath which the product ran.
    python = [one for one in events if one.get("cat") == "python_function"]
    own = [one for one in python if one["name"].endswith("named_by_the_test")]
    assert len(own) == STEPS
    assert all("capture_details.py(" in one["name"] for one in own)

    # Memory: what is allocated within the window, with addresses and sizes.
    memory = [one["args"] for one in events if one["name"] == "[memory]"]
    assert len(memory) > 10 * STEPS
    assert {one["Bytes"] > 0 for one in memory} == {True, False}

    # Marks: a range of that name in each step, of the thread and within the time of its step.
    named = [one for one in events if one["name"] == "named part"]
    steps = [one for one in events if one["name"].startswith("ProfilerStep#")]
    assert [one["cat"] for one in named] == ["user_annotation"] * STEPS
    inside = Counter(
        step["name"]
        for step in steps
        for one in named
        if one["tid"] == step["tid"] and step["ts"] <= one["ts"] <= step["ts"] + step["dur"] - one["dur"]
    )
    assert inside == {step["name"]: 1 for step in steps}

    plain = subprocess.run(
        [*COMMAND, "--steps", str(len(losses))],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=True,
    )
    assert json.loads(plain.stdout) == losses
