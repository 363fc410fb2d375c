"""Captures of real loops: exactly the steps asked for, and a run that never notices more than a pause."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.budget.measure import find_working
from tests.captures import read_told
from tests.programs.capturing import HERE, PYTHON, TPMON, capture, captured, run, run_json, start, training
from tests.programs.conftest import READY_S, run_program
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.capture.bus import open_bus
from tpmon.hook.bus import wire
from tpmon.hook.bus import wire_capture as w
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat

pytestmark = [pytest.mark.torch, needs_torch]


def test_a_capture_holds_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    with training() as pid:
        code, told, said = capture(pid, "--steps", "3", "--out", str(tmp_path / "out"))
        assert code == 0, said
        assert "3 steps: the loop pauses for about" in said
        assert (told["schema"], told["state"], told["notes"]) == ("tpmon.capture/1", "done", [])
        (file,) = told["files"]
        assert file["steps"] == 3
        assert read_told(file["path"]).wrong == ()
        assert (len(read_told(file["path"]).marks), read_told(file["path"]).optimizer) == (3, 3)
        assert os.stat(file["path"]).st_mode & 0o777 == 0o600
        assert os.listdir(tmp_path / "out") == [os.path.basename(file["path"])]
        assert told["conditions"]["model"] == "Linear"
        assert read_told(file["path"]).conditions["clocks"] == told["conditions"]["clocks"]
        assert Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_captures_end_as_they_should_whatever_happens(tmp_path: Path) -> None:
    """One process goes through every situation; it ends within a capture, by SystemExit."""
    done = run([PYTHON, "-W", "ignore", str(HERE / "capture_loops.py"), str(tmp_path / "out"), "--leave"], 2 * READY_S)
    assert (done.returncode, done.stderr) == (7, "")
    report = json.loads(done.stdout)
    state = {name: {key: one["state"] for key, one in told.items() if isinstance(one, dict) and "state" in one}
             for name, told in report.items() if isinstance(told, dict)}  # fmt: skip
    exact = report["exact"]
    assert state["exact"] == {"unprobed": w.STATE_REFUSED, "probe": w.STATE_VERIFIED, "capture": w.STATE_VERIFIED}
    conditions = exact["file"].pop("conditions")
    assert exact["file"] == {"marks": 3, "optimizer": 3, "mode": 0o600, "wrong": []}
    assert conditions["inputs"] == ["float32[2, 8]", "float32[2, 1]"]
    assert (conditions["mode"], conditions["dtype"], conditions["autocast"]) == (
        "training",
        "torch.float32",
        {"missing": "it was off where the backward began"},
    )
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
    assert report["requests"]["busy"]["answer"] == [22, wire.ANSWER_BUSY]
    assert (report["hostile"]["counted"], report["hostile"]["problem"]) == (200, "")
    assert report["hostile"]["after"]["state"] == w.STATE_VERIFIED
    assert state["places"] == {
        "gone": w.STATE_REFUSED,
        "full": w.STATE_REFUSED,
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
    assert state["nested"] == {
        "across": w.STATE_VERIFIED,
        "legacy": w.STATE_REFUSED,
        "itt": w.STATE_REFUSED,
        "after": w.STATE_VERIFIED,
    }
    assert (report["nested"]["file"]["marks"], report["nested"]["file"]["optimizer"]) == (4, 4)
    assert report["nested"]["legacy_own"]
    assert report["forked"]["children"] == [0]
    assert report["forked"]["told"]["state"] == w.STATE_VERIFIED
    assert report["problem"] == ""


@pytest.mark.long
def test_twenty_captures_in_a_row_take_no_more_memory_than_the_first(tmp_path: Path) -> None:
    """Where nobody gives back what torch keeps, the process is a quarter larger from the first on."""
    report = run_json(PYTHON, "capture_loops.py", tmp_path / "out", "repeated")
    assert report["states"] == [w.STATE_VERIFIED] * 21
    assert report["bytes"] > 10_000_000
    assert max(map(abs, report["grown"])) < 0.05 * report["before"], report
    assert (report["threads"], report["problem"]) == (1, "")


ONCE = "gpuGetDeviceCount failed"


@pytest.mark.long
def test_torch_writes_nothing_for_a_capture_and_for_the_programs_own_profiler_what_it_ever_wrote(
    tmp_path: Path,
) -> None:
    done = run([PYTHON, "-W", "ignore", str(HERE / "capture_loops.py"), str(tmp_path / "out"), "quiet"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == w.STATE_VERIFIED
    nothing, before, captured, after = done.stderr.split("== ")
    assert (nothing, captured) == ("", "captured\n")
    # A CUDA build without a driver says once that it asked for the cards.
    lines = [[one for one in said.splitlines() if ONCE not in one] for said in (before, after)]
    assert len(lines[0]) == len(lines[1]) > 1


@pytest.mark.long
def test_tpmon_killed_in_the_middle_takes_its_request_with_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with training() as pid:
        with start([*TPMON, "capture", str(pid), "--steps", "1000", "--stacks", "--yes", "--out", str(out)]) as tool:
            assert any("recording step" in line for line in tool.stderr)
            os.kill(find_working(tool.pid), signal.SIGKILL)  # whom the shell waits for would end it in order
        bus = open_bus(Identity(pid, read_stat(pid).start_ticks))
        number = w.parse_progress(bus.page).request
        assert wait_until(lambda: (now := bus.read_progress(number)) is not None and now.state in w.FINAL_STATES)
        now = bus.read_progress(number)
        assert (now.state, now.reason) == (w.STATE_CANCELLED, w.NOBODY_WAITS)
        assert now.steps_done < 1000
        before = bus.read_records(1)[-1][wire.REC_STEPS]
        assert wait_until(lambda: bus.read_records(1)[-1][wire.REC_STEPS] > before + 20)
        bus.close()
        assert os.listdir(out) == []


@pytest.mark.long
def test_a_second_capture_is_told_so_and_a_training_killed_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with training() as pid, start([*TPMON, "capture", str(pid), "--steps", "1000", "--yes", "--out", str(out)]) as tool:
        assert any("recording step" in line for line in tool.stderr)
        code, told, _ = capture(pid, "--out", str(tmp_path / "second"))
        assert (code, told["state"]) == (2, "busy")
        os.kill(pid, signal.SIGKILL)
        tool.stderr.read()
        assert tool.wait() == 3
        assert os.listdir(out) == []


@pytest.mark.long
def test_a_program_that_took_the_signal_is_sent_none(tmp_path: Path) -> None:
    command = (PYTHON, "capture_ways.py", "{ready}", "taking-the-signal")
    with run_program(command, tmp_path / "ready", 1) as program:
        code, told, said = capture(program.pid, "--seconds", "1", "--out", str(tmp_path / "out"))
        assert (code, told["state"]) == (2, "refused"), said
        assert "no signal was sent" in told["notes"][0]
        assert not (tmp_path / "ready" / "signal").exists()
        assert Path(f"/proc/{program.pid}").exists()


@pytest.mark.long
def test_a_loop_without_steps_is_captured_by_time(tmp_path: Path) -> None:
    command = (PYTHON, "capture_ways.py", "{ready}", "stepless")
    with run_program(command, tmp_path / "ready", 1) as program:
        told, said = captured(program.pid, "--seconds", "1", "--out", str(tmp_path / "out"))
        assert "woken by SIGURG" in said
        assert told["files"][0]["events"] > 10
        again = capture(program.pid, "--seconds", "1", "--out", str(tmp_path / "again"))
        assert again[1]["state"] == "done"
