"""With every core busy eight times over the screen lives: ``d`` shows stacks as they come, and ``q`` ends it."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.programs.conftest import run_program
from tests.programs.test_dump_many import BUSY_WALL_S, SLOWER, busy_cores
from tests.pty.conftest import ROOT
from tests.spying import may_sample
from tests.torch_build import needs_torch
from tpmon.model.known import is_known
from tpmon.probe.job.job import Job
from tpmon.probe.job.resolve import find_job
from tpmon.probe.spy.failure import find_spy
from tpmon.ui.terminal_io.terminal import LEAVE_SECONDS

pytestmark = [pytest.mark.pty, pytest.mark.torch, needs_torch]

RANKS, WORKERS, CULPRIT = 3, 2, 1
PROCESSES = RANKS * (1 + WORKERS)
LATE_S = 4
"""How long one worker's py-spy takes longer, so that a picture without it is there to be seen."""
READING = re.compile(r"reading (\d+) of (\d+) \.\.\.")


def put_python(folder: Path, late_pid: int) -> str:
    """Make a Python beside which py-spy answers late of one process; return its path."""
    spy = find_spy()
    assert is_known(spy)
    folder.mkdir()
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    slow = f'case "$*" in *"--pid {late_pid}") sleep {LATE_S};; esac'
    (folder / "py-spy").write_text(f'#!/bin/sh\n{slow}\nexec {spy} "$@"\n')
    (folder / "py-spy").chmod(0o755)
    return str(folder / "python")


def find_worker(job: Job) -> int:
    return max(one.identity.pid for one in job.members if is_known(one.worker))


def test_stacks_come_in_parts_and_q_ends_it_while_they_are_read(tmp_path, open_terminal):
    if reason := may_sample():
        pytest.skip(reason)
    sizes = ("--fork", str(RANKS), "--workers", str(WORKERS), "--culprit", str(CULPRIT))
    command = (sys.executable, "-W", "ignore", "rank_hang.py", "--ready", "{ready}", *sizes)
    with run_program(command, tmp_path / "job", RANKS) as program:
        python = put_python(tmp_path / "bin", find_worker(find_job(program.pid)))
        paths = os.pathsep.join((str(ROOT), *(one for one in sys.path if one.endswith("-packages"))))
        attach = [python, "-m", "tpmon", "attach", str(program.pid)]
        terminal = open_terminal(command=attach, PYTHONPATH=paths)

        def read_so_far():
            """Return of how many processes the picture is while it grows, 0 where none grows."""
            found = READING.search(terminal.text())
            return int(found[1]) if found and int(found[2]) == PROCESSES else 0

        def is_part():
            return 0 < read_so_far() < PROCESSES and f"rank {CULPRIT}: hold rank_hang.py:" in terminal.text()

        def is_whole():
            said = " ".join(terminal.text().split())
            return not READING.search(said) and f"rank {CULPRIT} is in hold rank_hang.py:" in said

        terminal.until("q quit")
        with busy_cores():
            terminal.press("d")
            pressed_s = time.monotonic()
            terminal.until(is_part)
            terminal.until(is_whole)
            assert time.monotonic() - pressed_s <= BUSY_WALL_S * SLOWER
            terminal.press("d")
            terminal.until(is_part)
            terminal.press("q")
            assert terminal.end(LEAVE_SECONDS * SLOWER) == 0
        terminal.assert_restored()
