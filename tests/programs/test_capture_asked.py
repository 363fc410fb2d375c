"""What `t` runs on real loops: a plan, a price, a capture, each after a yes; and Ctrl-C on the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.captures import read_told
from tests.frames import make_view
from tests.programs.capturing import TPMON, capture, captured, start, started, training
from tests.programs.conftest import READY_S, TORCHRUN, run_program
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.capture.bus import open_bus
from tpmon.capture.dialog import CaptureDialog
from tpmon.commands.screen import start_capture
from tpmon.model.process import Identity
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureKind, CaptureStage, CaptureUpdate
from tpmon.probe.base.procread import read_stat, read_table
from tpmon.probe.job.resolve import find_job
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.keys import Demand, find_key

pytestmark = [pytest.mark.torch, needs_torch]

PLANNED, PRICED, RECORDING = CaptureStage.PLANNED, CaptureStage.PRICED, CaptureStage.RECORDING
CAPTURE_RANKS = Path(__file__).parent / "capture_ranks.py"
LOOPS = Path(__file__).parent / "hook_loops.py"
YES = {stage: CaptureAnswer(stage, goes=True) for stage in (PLANNED, PRICED)}


class Screen:
    """Stand for the screen: it keeps what is told, and answers once at each of the stages given."""

    def __init__(self, pid: int, answers: dict[CaptureStage, CaptureAnswer]) -> None:
        self.told: list[CaptureUpdate] = []
        self.ended = threading.Event()
        self._answers = dict(answers)
        self.talk = CaptureDialog(self._take)
        start_capture(lambda: find_job(pid), self.talk)

    def _take(self, update: CaptureUpdate) -> None:
        self.told.append(update)
        answer = self._answers.pop(update.stage, None)
        if answer is not None:
            threading.Timer(0.05, self.talk.answer, (answer,)).start()
        if update.stage is CaptureStage.ENDED:
            self.ended.set()

    def press(self, name: str) -> None:
        view = make_view(capture=self.told[-1], overlay=Overlay.CAPTURE)
        key = find_key(name, view)
        assert key is not None, (name, self.told[-1])
        assert isinstance(key.deed, Demand)
        order = key.deed.make(view, ())[1]
        if isinstance(order, CaptureChoice):
            self.talk.choose(order)
        else:
            assert isinstance(order, CaptureAnswer)
            self.talk.answer(order)

    def planned(self, choice: CaptureChoice) -> CaptureUpdate:
        def stands() -> bool:
            return [(one.stage, one.choice) for one in self.told[-1:]] == [(PLANNED, choice)]

        assert wait_until(stands, READY_S), self.told
        return self.told[-1]

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


@pytest.fixture(scope="module")
def hooked() -> Iterator[int]:
    """Give the PID of a hooked training that every test leaves as it is."""
    with training() as pid:
        yield pid


def test_a_capture_holds_the_steps_that_were_asked_for(hooked: int, tmp_path: Path) -> None:
    code, told, said = capture(hooked, "--steps", "3", "--out", str(tmp_path / "out"))
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
    assert Path(f"/proc/{hooked}").exists()


def test_t_records_after_two_yeses_and_tells_what_the_command_prints(
    hooked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = read_asked(hooked)
    held = Screen(hooked, {})
    assert wait_until(lambda: PLANNED in held.stages(), READY_S)
    assert held.told[-1].plan[0] == f"5 steps of process {hooked}, by torch.profiler from its step hook"
    assert read_asked(hooked) == before, "the price that is known costs nothing"
    held.talk.answer(CaptureAnswer(PLANNED, goes=False))
    assert held.wait().line == ""
    assert (read_asked(hooked), os.listdir(tmp_path)) == (before, [])

    priced = Screen(hooked, {PLANNED: YES[PLANNED]})
    assert wait_until(lambda: PRICED in priced.stages(), READY_S)
    assert priced.told[-1].price[0].startswith("5 steps: the loop pauses for about")
    priced.talk.answer(CaptureAnswer(PRICED, goes=False))
    assert priced.wait().line == ""
    assert os.listdir(tmp_path) == [], "one step was profiled and thrown away"

    screen = Screen(hooked, YES)
    end = screen.wait()
    unasked = (CaptureStage.HOOKLESS, CaptureStage.HOOKING, CaptureStage.DEAR)
    assert screen.stages() == [one for one in CaptureStage if one not in unasked]
    assert re.match(r"capture done: 5 steps(, the usual \d)? of \d+\.\d+ ms, ", end.line), end
    trace = read_told(end.trace)
    assert len(trace.marks) == trace.conditions["steps_during"] == 5
    assert all(trace.conditions[f"step_{when}_ms"] > 1.0 for when in ("before", "during", "after"))
    report = "\n".join(end.report)
    assert "done: torch.profiler from the step hook" in report
    assert "; step before " in report
    assert " ms, during " in report
    assert " ms, after " in report
    assert f":{end.trace} ." in report
    assert "fetch: scp " in report


def test_keys_choose_all_ranks_and_fewer_steps_and_that_is_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "here"
    out.mkdir()
    monkeypatch.chdir(out)
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(CAPTURE_RANKS), "{ready}")
    with run_program(command, tmp_path / "ready", 2) as program:
        screen = Screen(program.pid, {})
        plan = screen.planned(CaptureChoice()).plan
        assert plan[0].startswith("5 steps of rank 0, process ")
        screen.press("a")
        assert screen.planned(CaptureChoice(every=True)).plan[0].startswith("5 steps of all 2 ranks here")
        screen.press("t")
        assert wait_until(lambda: screen.told[-1].stage is PRICED, READY_S), screen.told
        assert screen.told[-1].price[0].startswith("5 steps: each rank pauses for about")
        screen.press("-")
        chosen = CaptureChoice(steps=2, every=True)
        assert screen.planned(chosen).plan[0].startswith("2 steps of all 2 ranks here")
        assert os.listdir(out) == [], "nothing is recorded yet"
        screen.press("t")
        assert wait_until(lambda: screen.told[-1].stage is PRICED, READY_S), screen.told
        screen.press("t")
        end = screen.wait()
        assert re.match(r"capture done: 2 steps(, the usual one)? of \d+\.\d+ ms, ", end.line), end
        assert os.path.dirname(end.trace) == str(out)
        files = sorted(Path(end.trace).iterdir())
        traces = [read_told(str(path)) for path in files]
        own = [sorted(name for name in one.names if name.startswith("own step")) for one in traces]
        assert [len(one.marks) for one in traces] == [2, 2]
        assert (len(own[0]), own[0]) == (2, own[1]), "the program's own numbers: the same steps"


def test_a_snapshot_is_asked_for_after_its_plan_was_agreed_to(
    hooked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, screen = read_asked(hooked), Screen(hooked, {})
    offers = screen.planned(CaptureChoice()).offers
    reasons = dict(offers.refused)
    assert reasons[CaptureKind.SNAPSHOT] == "this process does not use CUDA"
    assert reasons[CaptureKind.NSYS_RANGE].startswith("nsys is not in front of this run")
    assert (offers.ranks, offers.every) == (1, "it is the only rank on this machine")
    snapshot = CaptureChoice(CaptureKind.SNAPSHOT, 2)
    screen.talk.choose(snapshot)  # as with a key on a run whose CUDA only seemed to be there
    plan = screen.planned(snapshot).plan
    assert plan[0] == f"the CUDA allocator's history over 2 steps of process {hooked}"
    assert read_asked(hooked) == before
    screen.press("t")
    end = screen.wait()
    assert screen.told[-2].stage is RECORDING
    assert end.line == "capture refused: this process does not use CUDA"
    assert (read_asked(hooked) != before, os.listdir(tmp_path)) == (True, [])


@pytest.mark.long
def test_t_under_an_nsys_that_can_end_the_run_offers_no_range(tmp_path: Path) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text('#!/bin/sh\nshift 3\n"$@"\n')
    nsys.chmod(0o755)
    command = (str(nsys), "profile", "-c", "cudaProfilerApi", sys.executable, str(LOOPS), "--forever")
    with started(command, stderr=subprocess.DEVNULL) as job:
        (pid,) = (stat.pid for stat in read_table().values() if stat.parent == job.pid)
        screen = Screen(pid, {})
        offers = screen.planned(CaptureChoice()).offers
        assert dict(offers.refused)[CaptureKind.NSYS_RANGE] == (
            "--capture-range-end=stop-shutdown of nsys can end the run with the window"
        )
        screen.talk.choose(CaptureChoice(CaptureKind.NSYS_RANGE))
        back = screen.planned(CaptureChoice())
        assert back.plan[0].startswith("5 steps of ")
        assert len(back.offers.refused) == len(dict(back.offers.refused))
        screen.talk.answer(CaptureAnswer(PLANNED, goes=False))
        assert screen.wait().line == ""


def test_t_cancels_what_is_under_way_and_no_file_is_left(
    hooked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    screen = Screen(hooked, YES | {RECORDING: CaptureAnswer(RECORDING, goes=False)})
    end = screen.wait()
    assert end.line.startswith("capture cancelled: ")
    assert (end.trace, end.report[0]) == ("", "cancelled: torch.profiler from the step hook")
    assert os.listdir(tmp_path) == []
    assert Path(f"/proc/{hooked}").exists()


@pytest.mark.long
def test_a_capture_begins_with_the_step_that_was_named(hooked: int, tmp_path: Path) -> None:
    first = capture(hooked, "--steps", "1", "--out", str(tmp_path / "first"))[1]["ranks"][0]["first_step"]
    at = first + 200
    told, said = captured(hooked, "--at", str(at), "--steps", "2", "--out", str(tmp_path / "out"))
    assert f"begins with step {at}" in said
    (rank,), (file,) = told["ranks"], told["files"]
    assert (rank["first_step"], rank["steps"], file["first_step"]) == (at, 2, at)
    assert f"-step{at}.pt.trace.json" in file["path"]
    assert len(read_told(file["path"]).marks) == 2
    written = read_told(file["path"]).conditions
    for when in ("before", "during", "after"):
        name = f"step_{when}_ms"
        assert rank[name] == written[name] > 1.0, "a step reads a batch of some milliseconds"
    assert (written["steps_before"], written["steps_during"]) == (rank["steps_before"], 2)
    assert written["steps_before"] > 100
    assert rank["steps_after"] == written["steps_after"] > 0


@pytest.mark.parametrize("after", [pytest.param("profiling one step", marks=pytest.mark.long), "recording step"])
def test_ctrl_c_takes_a_capture_back(hooked: int, tmp_path: Path, after: str) -> None:
    out = tmp_path / "out"
    with start([*TPMON, "capture", str(hooked), "--json", "--steps", "200", "--yes", "--out", str(out)]) as tool:
        assert any(after in line for line in tool.stderr)
        tool.send_signal(signal.SIGINT)
        said = tool.communicate(timeout=READY_S)
    assert (tool.returncode, said[0]) == (130, "")
    assert "Traceback" not in said[1]
    assert wait_until(lambda: not out.exists() or os.listdir(out) == [], READY_S)
    again = capture(hooked, "--steps", "1", "--out", str(tmp_path / "again"))
    assert again[1]["state"] == "done", json.dumps(again[1])
    assert not out.exists() or os.listdir(out) == []
