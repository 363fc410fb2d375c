"""The key ``t`` in a terminal on a running training without a hook: two consents, a capture, and the hook is out."""

import os
import subprocess
import sys

import pytest

from tests.captures import read_told
from tests.command_line import TPMON
from tests.hooks import list_pages
from tests.programs.capturing import HERE, started
from tests.pty.conftest import SECONDS
from tests.torch_build import needs_torch
from tests.waiting import wait_until

pytestmark = [pytest.mark.pty, pytest.mark.torch, needs_torch]


def test_t_asks_twice_captures_two_steps_and_leaves_the_run_as_it_was(open_terminal, tmp_path):
    losses = tmp_path / "losses"
    command = [sys.executable, str(HERE / "late_capture_train.py"), str(losses)]
    with started(command, stdin=subprocess.PIPE, env=os.environ) as job:
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path)]  # where the trace goes
        terminal = open_terminal(command=[*there, *TPMON, "attach", str(job.pid)])
        terminal.until("late_capture_train")
        terminal.press("t")
        terminal.until(f"the hook into pid {job.pid} (CPython ")
        for said in ("written into its memory: ", "can go wrong: ", "t or Enter asks once more; esc leaves"):
            assert said in terminal.text()
        assert list_pages(job.pid) == [], "nobody has agreed"
        terminal.press("t")
        terminal.until("t or Enter writes it into the process now")
        assert list_pages(job.pid) == [], "nobody has agreed twice"
        terminal.press("t")
        terminal.until("t or Enter profiles one step and says the price")
        terminal.until("hook put in by hand")
        terminal.press("-")
        terminal.until(f"2 steps of process {job.pid}, by torch.profiler")
        terminal.press("t")
        terminal.until("t or Enter records them at this price")
        terminal.press("t")
        terminal.until(f"pid {job.pid}: the hook is out: patches undone, pages closed, files gone")
        terminal.until(lambda: "hook put in by hand" not in terminal.text())
        terminal.quit()
        (trace,) = tmp_path.rglob("*.json*")
        own = [name for name in read_told(str(trace)).names if name.startswith("own step")]
        assert len(own) == 2
        assert list_pages(job.pid) == []
        before = losses.stat().st_size
        assert wait_until(lambda: losses.stat().st_size > before + 1000, SECONDS)
        assert job.communicate("", timeout=SECONDS) == ("", "")
    assert job.returncode == 0
