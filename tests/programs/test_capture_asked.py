"""What `t` runs on real loops: a plan, a price, a capture, each after a yes; and Ctrl-C on the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.programs.capturing import ENVIRONMENT, TPMON, capture, training
from tests.programs.conftest import READY_S, run_program
from tests.waiting import wait_until
from tpmon.capture.bus import open_bus
from tpmon.capture.talk import Talk
from tpmon.capture_asked import start_capture
from tpmon.model.capture import CaptureAnswer, CaptureStage, CaptureUpdate
from tpmon.model.process import Identity
from tpmon.probe.procread import read_stat
from tpmon.probe.target import find_job

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this environment"),
]

PLANNED, PRICED, RECORDING = CaptureStage.PLANNED, CaptureStage.PRICED, CaptureStage.RECORDING
YES = {stage: CaptureAnswer(stage, goes=True) for stage in (PLANNED, PRICED)}


class Screen:
    """Stand for the screen: it keeps what is told, and answers once at each of the stages given."""

    def __init__(self, pid: int, answers: dict[CaptureStage, CaptureAnswer]) -> None:
        self.told: list[CaptureUpdate] = []
        self.ended = threading.Event()
        self._answers = dict(answers)
        self.talk = Talk(self._take)
        start_capture(lambda: find_job(pid), self.talk)

    def _take(self, update: CaptureUpdate) -> None:
        self.told.append(update)
        answer = self._answers.pop(update.stage, None)
        if answer is not None:
            threading.Timer(0.05, self.talk.answer, (answer,)).start()
        if update.stage is CaptureStage.ENDED:
            self.ended.set()

    def wait(self) -> CaptureUpdate:
        assert self.ended.wait(READY_S), self.told
        return self.told[-1]

    def stages(self) -> list[CaptureStage]:
        return list(dict.fromkeys(update.stage for update in self.told))


def read_asked(pid: int) -> int:
    """Return the number of the last request that the mailbox of a process held, 0 where it never held one."""
    bus = open_bus(Identity(pid, read_stat(pid).start_ticks))
    try:
        return bus.read_asked_number()
    finally:
        bus.close()


def test_t_records_after_two_yeses_and_tells_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with training() as pid:
        held = Screen(pid, {})
        assert wait_until(lambda: PLANNED in held.stages(), READY_S)
        assert held.told[-1].plan[0] == f"5 steps of process {pid}, by torch.profiler from its step hook"
        assert read_asked(pid) == 0, "the price that is known costs nothing"
        held.talk.answer(CaptureAnswer(PLANNED, goes=False))
        assert held.wait().line == ""
        assert (read_asked(pid), os.listdir(tmp_path)) == (0, [])

        priced = Screen(pid, {PLANNED: YES[PLANNED]})
        assert wait_until(lambda: PRICED in priced.stages(), READY_S)
        assert priced.told[-1].price[0].startswith("5 steps: the loop stands still for about")
        priced.talk.answer(CaptureAnswer(PRICED, goes=False))
        assert priced.wait().line == ""
        assert os.listdir(tmp_path) == [], "one step was profiled and thrown away"

        screen = Screen(pid, YES)
        end = screen.wait()
        assert screen.stages() == list(CaptureStage)[list(CaptureStage).index(PLANNED) :]
        assert end.line.startswith("capture done: 5 steps of")
        assert len(read_told(end.trace).marks) == 5
        report = "\n".join(end.report)
        assert "done: torch.profiler from the step hook" in report
        assert "; step before " in report
        assert " ms, during " in report
        assert " ms, after " in report
        assert f":{end.trace} ." in report
        assert "fetch: scp " in report


def test_t_cancels_what_is_under_way_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with training() as pid:
        screen = Screen(pid, YES | {RECORDING: CaptureAnswer(RECORDING, goes=False)})
        end = screen.wait()
        assert end.line.startswith("capture cancelled: ")
        assert (end.trace, end.report[0]) == ("", "cancelled: torch.profiler from the step hook")
        assert os.listdir(tmp_path) == []
        assert Path(f"/proc/{pid}").exists()


def test_t_says_how_a_run_without_a_hook_is_started_again(tmp_path: Path) -> None:
    command = (sys.executable, "job_train.py", "--ready", "{ready}", "--seconds", "600")
    with run_program(command, tmp_path / "ready", 1) as program:
        screen = Screen(program.pid, YES)
        end = screen.wait()
        assert end.line.startswith(
            f"no capture: process {program.pid} has no hook: no profile of it is possible"
        )
        assert "tpmon run -- " in end.line
        assert (end.report, screen.stages()) == ((), [CaptureStage.ENDED])


def test_a_capture_begins_with_the_step_that_was_named(tmp_path: Path) -> None:
    with training() as pid:
        first = capture(pid, "--steps", "1", "--out", str(tmp_path / "first"))[1]["ranks"][0]["first_step"]
        at = first + 200
        code, told, said = capture(pid, "--at", str(at), "--steps", "2", "--out", str(tmp_path / "out"))
        assert (code, told["state"]) == (0, "done"), said
        assert f"begins with step {at}" in said
        (rank,), (file,) = told["ranks"], told["files"]
        assert (rank["first_step"], rank["steps"], file["first_step"]) == (at, 2, at)
        assert f"-step{at}.pt.trace.json" in file["path"]
        assert len(read_told(file["path"]).marks) == 2
        for name in ("step_before_ms", "step_during_ms", "step_after_ms"):
            assert rank[name] > 1.0, "a step reads a batch of some milliseconds"


@pytest.mark.parametrize("after", ["profiling one step", "recording step"])
def test_ctrl_c_takes_a_capture_back(tmp_path: Path, after: str) -> None:
    out = tmp_path / "out"
    with training() as pid:
        with subprocess.Popen(
            [*TPMON, "capture", str(pid), "--json", "--steps", "200", "--out", str(out)],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as tool:
            assert tool.stderr is not None
            assert any(after in line for line in tool.stderr)
            tool.send_signal(signal.SIGINT)
            said = tool.communicate(timeout=READY_S)
        assert (tool.returncode, said[0]) == (130, "")
        assert "Traceback" not in said[1]
        assert wait_until(lambda: not out.exists() or os.listdir(out) == [], READY_S)
        again = capture(pid, "--steps", "1", "--out", str(tmp_path / "again"))
        assert again[1]["state"] == "done", json.dumps(again[1])
        assert not out.exists() or os.listdir(out) == []
