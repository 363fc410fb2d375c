"""What a recording adds to a step, and how many iterations a trace holds, are what a real torch program counts itself."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch_build import needs_torch
from tests.verdicts.weight import ALLOWED, PROGRAM, Weighed, weigh_captured, weigh_own
from tpmon.trace.analysis import analyze

pytestmark = [pytest.mark.torch, needs_torch]
TIMES = 12
TRIES = 3
"""What else a machine does moves a step by more than a fifth: one good try is enough, or the median of steady ones."""
UNTOLD = ("inference_of_a_stack", "inference_of_equal_layers", "inference_of_an_encoder", "inference_of_images")
"""Layers and iterations look alike in these."""


def make(folder: Path, at: int) -> Path:
    made = folder / str(at)
    made.mkdir()
    return made


@pytest.mark.parametrize("options", [pytest.param("plain", marks=pytest.mark.long), "all"])
@pytest.mark.parametrize("kineto", [False, pytest.param(True, marks=pytest.mark.long)], ids=["hook", "kineto"])
def test_a_capture_says_by_how_much_it_inflates_the_step(tmp_path: Path, options: str, *, kineto: bool) -> None:
    tries = (weigh_captured("small_linears", options, str(make(tmp_path, at)), kineto=kineto) for at in range(TRIES))
    assert any(row.holds for row in tries)


def test_the_profiler_that_tpmon_makes_says_it_too(tmp_path: Path) -> None:
    by_kind: dict[str, list[Weighed]] = {}
    for row in weigh_own("small_linears", str(tmp_path), made=True, steady=TRIES):
        by_kind.setdefault(row.options, []).append(row)
    assert len(by_kind) == 5
    for rows in by_kind.values():
        assert statistics.median(row.off for row in rows) <= ALLOWED, [f"{row}, {row.drift:.2f}" for row in rows]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = str(tmp_path_factory.mktemp("counted"))
    command = [sys.executable, "-W", "ignore", PROGRAM, folder, "--count", str(TIMES), "--options", "plain,stacks"]
    done = subprocess.run(command, check=True, timeout=500, capture_output=True, text=True)
    rows = map(json.loads, done.stdout.splitlines())
    return {f"{row['loop']} {row['options']}": row["path"] for row in rows}


def test_repeats_are_iterations_of_the_loop_or_there_are_none(counted: dict[str, str]) -> None:
    wrong = {}
    for name, path in counted.items():
        loop, options = name.split()
        overview = analyze([path]).files[0].overview
        repeats, mean_ms = overview.repeats, overview.step_ms
        none = loop in UNTOLD and options == "plain"
        # Start-up is left out, with all iterations that are slow in it: a repeat must be as long as one iteration.
        of_one_ms = (repeats * mean_ms + overview.left_out_us / 1000) / TIMES
        good = repeats == 0 if none else 2 < repeats <= TIMES and mean_ms < 1.5 * of_one_ms
        if not good:
            wrong[name] = repeats
    assert not wrong
