"""`tpmon trace` on a real terminal: a screen, and text where it was asked for."""

import sys

import pytest

from tests.goldens.trace_views import build_gpu_run
from tests.pty.conftest import SECONDS
from tests.snapshots import MB, SnapshotBuilder, frame

pytestmark = pytest.mark.pty

COMMAND = [sys.executable, "-m", "tpmon", "trace"]


@pytest.fixture
def trace(tmp_path):
    return build_gpu_run(0, 1).write(tmp_path / "rank0.pt.trace.json")


def test_a_trace_opens_its_screen_and_q_leaves_the_terminal_as_it_was(open_terminal, trace):
    terminal = open_terminal(command=[*COMMAND, trace])
    terminal.until("DATA-BOUND (no-workers)")
    terminal.until("timeline  all 5 steps")
    terminal.press("2")
    terminal.until("largest gaps of GPU 0")
    terminal.press("G")
    terminal.press("y")
    terminal.until("copied the row")
    terminal.quit()
    assert b"gap of 0.240 ms at 14.380 ms" in terminal.raw.rpartition(b"\x1b[?1049l")[2], "the copy stays"


def test_a_comparison_opens_on_its_answer_and_the_trace_is_beside_it(open_terminal, trace, tmp_path):
    before = build_gpu_run(0, 1, 2000.0).write(tmp_path / "before.json")
    terminal = open_terminal(command=[*COMMAND, trace, "--against", before])
    terminal.until("IT HELPED?  1.21x")
    terminal.until(">result   it helped: mean step 12.080 ms before, 10.000 ms after")
    terminal.press("y")
    terminal.until("copied result")
    terminal.press("1")
    terminal.until("══ 1 overview")
    terminal.quit()
    assert b"it helped: mean step" in terminal.raw.rpartition(b"\x1b[?1049l")[2], "the copy stays"
    printed = open_terminal(command=[*COMMAND, trace, "--against", before, "--plain"])
    assert printed.end(SECONDS) == 0
    assert b"\x1b[?1049h" not in printed.raw
    assert b"result   it helped" in printed.raw


def test_a_snapshot_opens_its_screen_and_a_frame_the_editor(open_terminal, tmp_path):
    source = tmp_path / "train.py"
    source.write_text("".join(f"line {number}\n" for number in range(1, 40)))
    built = SnapshotBuilder().segment((MB, MB, "active_allocated", [frame("build", 10, str(source))]))
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\necho "opened $@"; read answer\n')
    editor.chmod(0o755)
    command = [*COMMAND, built.write(tmp_path / "snapshot.pickle")]
    terminal = open_terminal(command=command, EDITOR=str(editor))
    terminal.until("1.0M allocated")
    terminal.press("2")
    terminal.press("\r")
    terminal.until("══ stack")
    terminal.press("o")
    terminal.until(f"opened +10 {source}")
    terminal.press("\r")
    terminal.until("was at")
    terminal.quit()
