"""``tpmon run --attach`` in a terminal: the screen of a hooked training, which outlives it however it is left."""

import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.command_line import TPMON
from tests.pty.conftest import Terminal
from tests.torch_build import needs_torch

pytestmark = [pytest.mark.pty, pytest.mark.torch, needs_torch]

TRAINING = """
import os, sys, time
import torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("pid", os.getpid(), flush=True)
for step, batch in enumerate(DataLoader(torch.randn(100_000, 16), batch_size=4)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if os.path.exists(sys.argv[1]):
        sys.exit(7)
"""


class Started:
    def __init__(self, terminal: Terminal, log: Path, stop: Path) -> None:
        self.terminal, self.log, self.stop = terminal, log, stop

    @property
    def training(self) -> psutil.Process:
        found = re.search(r"pid (\d+)", self.log.read_text())
        return psutil.Process(int(found[1]))


@pytest.fixture
def started(open_terminal, tmp_path):
    """Start a training under ``tpmon run --attach`` and wait until its steps are on the screen."""
    program, log, stop = tmp_path / "train.py", tmp_path / "run.log", tmp_path / "stop"
    program.write_text(TRAINING)
    train = [sys.executable, str(program), str(stop)]
    terminal = open_terminal(command=[*TPMON, "run", "--attach", "--log", str(log), "--", *train])
    one = Started(terminal, log, stop)
    terminal.until("steps/s")
    yield one
    with suppress(psutil.NoSuchProcess):
        one.training.kill()


def test_q_leaves_the_training_running_and_says_how_to_come_back(started):
    training = started.training
    started.terminal.press("q")
    assert started.terminal.end() == 0
    started.terminal.assert_restored()
    assert f"the training goes on: tpmon attach {training.pid} shows it" in started.terminal.raw.decode()
    assert training.is_running()
    assert os.getsid(training.pid) == training.pid


@pytest.mark.long
def test_a_hang_up_leaves_the_training_running(started):
    training = started.training
    assert started.terminal.hang_up() == 128 + signal.SIGHUP
    assert training.is_running()
    assert training.status() != psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_the_end_of_the_training_is_that_of_tpmon(started):
    started.stop.touch()
    started.terminal.until("ended")
    started.terminal.press("q")
    assert started.terminal.end() == 7
    started.terminal.assert_restored()
    assert f"what it printed: {started.log}" in started.terminal.raw.decode()
