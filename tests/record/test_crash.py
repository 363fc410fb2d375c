"""A crash has a recording of what was at hand beside its report, in bounded time, and is told whatever becomes of it."""

import stat
import subprocess
import sys
import threading

import pytest

from tests.command_line import SECONDS, start_training
from tests.recordings import SUBJECT, judge_steps, run_seconds
from tests.torch_build import needs_torch
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.record import crash, writer
from tpmon.record.crash import Watched, note_watched, write_watched
from tpmon.record.recording import Recording
from tpmon.record.rejudge import rejudge
from tpmon.ui.terminal_io.terminal import report_crash

STEPS = tuple(judge_steps(run_seconds(3)))
BUG = ZeroDivisionError("by design")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Give the folder that reports go to; no session is watched before, nor after."""
    monkeypatch.setattr(crash, "_watched", [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "tpmon"


def watch(steps=STEPS, subject=lambda: SUBJECT):
    note_watched(Watched(subject, lambda: steps))


def test_the_two_lines_name_the_report_and_a_private_recording_of_the_steps_at_hand(state):
    watch(())
    watch()
    what, advice = report_crash(BUG).splitlines()
    (report,), (recording,) = state.glob("crash-*.txt"), state.glob("crash-*.tpmon")
    assert recording.stem == report.stem
    assert what == "tpmon: bug: ZeroDivisionError: by design"
    beside = f", and {recording} (tpmon replay shows it: the job as it was on the screen)"
    assert advice == f"Try: attach {report} to an issue{beside}; --once --json may still work."
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600
    with Recording(str(recording)) as found:
        assert found.subject == SUBJECT
        assert [one.again.verdict for one in rejudge(found)] == [step.judged.verdict for step in STEPS]


@pytest.mark.parametrize("steps", [None, ()])
def test_where_no_session_ran_or_it_has_read_nothing_there_is_the_report_alone(state, steps):
    if steps is not None:
        watch(steps)
    assert report_crash(BUG).endswith(".txt to an issue; --once --json may still work.")
    assert write_watched(str(state / "x.tpmon")) is NOT_APPLICABLE
    assert [one.suffix for one in state.iterdir()] == [".txt"]


def fail():
    raise KeyError("which")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(("subject", "reason"), [(fail, "'which'"), (interrupt, "KeyboardInterrupt")])
def test_a_recording_that_fails_hides_no_crash(state, subject, reason):
    watch(subject=subject)
    said = report_crash(BUG)
    assert said.startswith("tpmon: bug: ZeroDivisionError: by design\nTry: attach ")
    assert f"to an issue (no whole recording beside it: {reason}); --once" in said


def test_one_that_takes_too_long_is_not_waited_for(monkeypatch, state):
    released = threading.Event()
    monkeypatch.setattr(crash, "WRITE_S", 0.05)
    monkeypatch.setattr(writer, "copy_recording", lambda *_: released.wait(SECONDS))
    watch()
    assert write_watched(str(state / "x.tpmon")) == Missing("no answer within 0.05 s")
    released.set()


def test_steps_that_cannot_be_asked_for_hide_no_crash():
    note_watched(Watched(lambda: SUBJECT, fail))
    assert "(no whole recording beside it: 'which')" in report_crash(BUG)


BROKEN = """
import sys
from tpmon.cli import main
from tpmon.judge import judge as module
right, seen = module.judge, []
def judge(window, standing):
    seen.append(1)
    if len(seen) > 3:
        raise ZeroDivisionError("by design")
    return right(window, standing)
module.judge = judge
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.torch
@needs_torch
def test_a_bug_in_a_text_command_leaves_what_it_has_read_of_the_job(state):
    with start_training() as job:
        words = ("attach", str(job.pid), "--json", "-i", "0.5")
        done = subprocess.run(
            [sys.executable, "-c", BROKEN, *words], check=False, capture_output=True, text=True, timeout=SECONDS
        )
        job.kill()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (recording,) = state.glob("crash-*.tpmon")
    assert done.stderr.count("\n") == 2
    assert str(recording) in done.stderr
    with Recording(str(recording)) as found:
        assert found.count_frames() == done.stdout.count("\n") == 3
        assert found.subject.pid == job.pid
