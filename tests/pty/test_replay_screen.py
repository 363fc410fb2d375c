"""`tpmon replay` on a real terminal: the same screen, keys of time, and the terminal as it was."""

import re
import sys

import pytest

from tests.frames import make_frame
from tests.recordings import judge_steps, run_seconds, write_recording

pytestmark = pytest.mark.pty

COMMAND = [sys.executable, "-m", "tpmon", "replay"]


@pytest.fixture
def recording(tmp_path):
    return str(write_recording(tmp_path / "a.tpmon", judge_steps(run_seconds(150, make_frame()))))


def shown(terminal):
    found = re.search(r"REPLAY (\d\d:\d\d:\d\d)", terminal.text())
    return found and found[1]


def test_it_plays_and_goes_where_it_is_told_and_leaves_the_terminal_as_it_was(open_terminal, recording):
    terminal = open_terminal(command=[*COMMAND, recording, "--at", "03:09", "--speed", "8"])
    terminal.until(lambda: (shown(terminal) or "") > "03:09:00")
    terminal.press("p")
    terminal.until("8x paused")
    terminal.press("^")
    terminal.until("REPLAY 03:07:41 of 03:07:41-03:10:10  8x paused")
    terminal.press("]]")
    terminal.until("REPLAY 03:07:43")
    terminal.press(":03:10\r")
    terminal.until("REPLAY 03:10:00")
    terminal.press("d")
    terminal.until("d works in a recording with stacks in it")
    terminal.press("b")
    terminal.until("recorded, not live")
    terminal.press("Y")
    terminal.until("copied the screen")
    terminal.quit()
    assert b"REPLAY 03:10:00" in terminal.raw.rpartition(b"\x1b[?1049l")[2], "the copy stays"


def test_it_is_paused_where_it_was_asked_to_begin_and_plays_on_to_its_end(open_terminal, recording):
    terminal = open_terminal(command=[*COMMAND, recording, "--at", "-3s"], columns=80, rows=24)
    terminal.until("REPLAY 03:10:07")
    terminal.until("1x paused")
    terminal.press("p")
    terminal.until("REPLAY 03:10:10")
    terminal.until("paused")
    terminal.press("p")
    terminal.until("before its end")
    terminal.quit()
