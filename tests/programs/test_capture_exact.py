"""Exactly the steps that were asked for, on each kind of run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.programs.capturing import ROOT, capture, run_json
from tests.programs.conftest import TORCHRUN, run_program
from tpmon.hook import wire_capture as w

pytestmark = [
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]

RANKS = 4
TRIALS = 10
STEPS = 3


def test_four_ranks_record_the_same_steps_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own number of each step is in the trace, so that the hook's need not be believed."""
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", str(RANKS), "capture_ranks.py", "{ready}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with run_program(command, tmp_path / "ready", RANKS) as program:
        for trial in range(TRIALS):
            out = tmp_path / f"out{trial}"
            code, told, said = capture(program.pid, "--all-ranks", "--steps", str(STEPS), "--out", str(out))
            assert (code, told["state"], told["notes"]) == (0, "done", []), (trial, said)
            files = {file["rank"]: read_told(file["path"]) for file in told["files"]}
            assert sorted(files) == list(range(RANKS))
            own = {
                rank: sorted(name for name in one.names if name.startswith("own step"))
                for rank, one in files.items()
            }
            assert len(own[0]) == STEPS
            assert {rank: names for rank, names in own.items() if names != own[0]} == {}, trial
            for one in files.values():
                assert (one.marks, one.wrong) == (files[0].marks, ())
                assert (len(one.marks), one.optimizer) == (STEPS, STEPS)


def test_a_compiled_run_is_captured_and_not_compiled_again(tmp_path: Path) -> None:
    report = run_json(sys.executable, "capture_compiled.py", tmp_path / "out")
    assert report["told"]["state"] == w.STATE_VERIFIED
    assert (report["file"]["marks"], report["file"]["optimizer"], report["file"]["wrong"]) == (5, 5, [])
    assert report["same_losses"] is True
    assert report["graphs"][0] == report["graphs"][1] == report["told_graphs"] > 0
    assert report["problem"] == ""


@pytest.mark.parametrize("first", [False, True], ids=["between", "before the first step"])
def test_a_capture_during_a_validation_waits_for_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = (sys.executable, "capture_validating.py", "{ready}", *(("--first",) if first else ()))
    with run_program(command, tmp_path / "ready", 1) as program:
        code, told, said = capture(program.pid, "--steps", str(STEPS), "--out", str(tmp_path / "out"))
        assert (code, told["state"], told["notes"]) == (0, "done", []), said
        assert first or "waits for the next training step, the loop evaluates now" in said
        found = read_told(told["files"][0]["path"])
        assert (len(found.marks), found.optimizer, found.wrong) == (STEPS, STEPS, ())
        assert found.conditions["mode"] == "training"
