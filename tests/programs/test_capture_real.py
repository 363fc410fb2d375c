"""Captures of real loops: exactly the steps asked for, and a run that never notices more than a pause."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.programs.conftest import READY_S, TORCHRUN, run_program, wait_until
from tpmon.hook import wire_capture as w
from tpmon.probe.job import find_descendants
from tpmon.probe.procread import read_table

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
TPMON = (sys.executable, "-m", "tpmon")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def training() -> Iterator[int]:
    """Start a hooked training of one process and one worker, 10 ms a batch, that goes on until killed."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "hook_loops.py"), "--forever"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            yield job.pid
        finally:
            for pid in (job.pid, *find_descendants(job.pid, read_table())):
                with_pid = Path(f"/proc/{pid}")
                if with_pid.exists():
                    os.kill(pid, signal.SIGKILL)


def capture(pid: int, *flags: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [*TPMON, "capture", str(pid), "--json", *flags],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def count(path: str) -> dict[str, int]:
    with gzip.open(path) as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    return {
        "marks": sum(one["name"].startswith("ProfilerStep#") for one in events),
        "optimizer": sum(one["name"].startswith("Optimizer.step") for one in events),
    }


def test_a_capture_holds_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    with training() as pid:
        code, told, said = capture(pid, "--steps", "3", "--out", str(tmp_path / "out"))
        assert code == 0, said
        assert "3 steps: the loop stands still for about" in said
        assert (told["schema"], told["state"], told["notes"]) == ("tpmon.capture/1", "done", [])
        (file,) = told["files"]
        assert file["steps"] == 3
        assert count(file["path"]) == {"marks": 3, "optimizer": 3}
        assert os.stat(file["path"]).st_mode & 0o777 == 0o600
        assert os.listdir(tmp_path / "out") == [os.path.basename(file["path"])]
        assert told["conditions"]["model"] == "Linear"
        assert Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_captures_end_as_they_should_whatever_happens(tmp_path: Path) -> None:
    """One process goes through every situation; it ends within a capture, by SystemExit."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "capture_loops.py"), str(tmp_path / "out"), "--leave"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=2 * READY_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")
    report = json.loads(done.stdout)
    state = {name: {key: one["state"] for key, one in told.items() if isinstance(one, dict) and "state" in one}
             for name, told in report.items() if isinstance(told, dict)}  # fmt: skip
    exact = report["exact"]
    assert state["exact"] == {
        "unprobed": w.STATE_REFUSED,
        "probe": w.STATE_VERIFIED,
        "capture": w.STATE_VERIFIED,
    }
    assert exact["file"] == {"steps": 3, "marks": 3, "optimizer": 3, "mode": 0o600, "negative": 0}
    assert exact["same_losses"] is True
    assert len(exact["files"]) == 1
    assert report["without_a_loader"]["file"]["marks"] == 4
    assert report["without_a_loader"]["file"]["optimizer"] == 4
    assert state["requests"] == {
        "missed": w.STATE_MISSED,
        "busy": w.STATE_RECORDING,
        "cancelled": w.STATE_CANCELLED,
        "expired": w.STATE_EXPIRED,
        "late": w.STATE_VERIFIED,
    }
    assert report["requests"]["busy"]["answer"] == [22, w.ANSWER_BUSY]
    assert (report["hostile"]["counted"], report["hostile"]["problem"]) == (100, "")
    assert report["hostile"]["after"]["state"] == w.STATE_VERIFIED
    assert state["places"] == {
        "gone": w.STATE_REFUSED,
        "full": w.STATE_FAILED,
        "removed": w.STATE_FAILED,
        "after": w.STATE_VERIFIED,
    }
    assert report["places"]["left"] == []
    assert state["foreign"] == {
        "active": w.STATE_REFUSED,
        "warming": w.STATE_REFUSED,
        "during": w.STATE_YIELDED,
        "elsewhere": w.STATE_YIELDED,
        "after": w.STATE_VERIFIED,
    }
    assert report["foreign"]["active_own"]
    assert report["foreign"]["during_own"]
    assert report["foreign"]["during_losses"] is True
    assert report["forked"]["children"] == [0]
    assert report["forked"]["told"]["state"] == w.STATE_VERIFIED
    assert report["many"]["states"] == [w.STATE_VERIFIED] * 20
    assert abs(report["many"]["grown"]) < 0.05
    assert report["many"]["threads"] == 1
    for name, (same_losses, still_recording, problem) in report["broken"].items():
        assert (name, same_losses, still_recording, problem) == (name, True, False, "")
    assert report["problem"] == ""


@pytest.mark.long
def test_tpmon_killed_in_the_middle_leaves_a_whole_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with training() as pid:
        with subprocess.Popen(
            [*TPMON, "capture", str(pid), "--steps", "30", "--out", str(out)],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        ) as tool:
            assert tool.stderr is not None
            assert any("recording step" in line for line in tool.stderr)
            tool.kill()
        assert wait_until(lambda: [name for name in os.listdir(out) if name.endswith(".json")] != [], 120)
        (name,) = os.listdir(out)
        assert sum("ProfilerStep#" in one["name"] for one in json.loads((out / name).read_text())["traceEvents"]
                   if one.get("ph") == "X") == 30  # fmt: skip
        assert Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_a_training_killed_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        training() as pid,
        subprocess.Popen(
            [*TPMON, "capture", str(pid), "--steps", "400", "--out", str(out)],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        ) as tool,
    ):
        assert tool.stderr is not None
        assert any("recording step" in line for line in tool.stderr)
        os.kill(pid, signal.SIGKILL)
        tool.stderr.read()
        assert tool.wait() == 3
        assert os.listdir(out) == []


@pytest.mark.long
def test_all_ranks_record_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", "capture_ranks.py", "{ready}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with run_program(command, tmp_path / "ready", 2) as program:
        code, told, said = capture(program.pid, "--all-ranks", "--steps", "4", "--out", str(tmp_path / "out"))
        assert (code, told["state"]) == (0, "done"), said
        assert len({rank["first_step"] for rank in told["ranks"]}) == 1
        assert sorted(file["rank"] for file in told["files"]) == [0, 1]
        for file in told["files"]:
            assert count(file["path"]) == {"marks": 4, "optimizer": 4}


@pytest.mark.long
def test_a_loop_without_steps_is_captured_by_time(tmp_path: Path) -> None:
    command = (sys.executable, "capture_stepless.py", "{ready}")
    with run_program(command, tmp_path / "ready", 1) as program:
        code, told, said = capture(program.pid, "--seconds", "1", "--out", str(tmp_path / "out"))
        assert (code, told["state"]) == (0, "done"), said
        assert "woken by SIGURG" in said
        assert told["files"][0]["events"] > 10
        again = capture(program.pid, "--seconds", "1", "--out", str(tmp_path / "again"))
        assert again[1]["state"] == "done"
