"""tpmon run around torchrun: each rank has the hook, and launcher and workers show none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.capturing import ROOT, TPMON, capture, run, start
from tests.programs.causes.running import end_tree
from tests.programs.conftest import READY_S, TORCHRUN
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.model.hook import HookState, StepReading
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_table
from tpmon.probe.hooked.page import StepReader
from tpmon.probe.job.job import find_descendants

pytestmark = [pytest.mark.torch, pytest.mark.long, needs_torch]

PROGRAM = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.zeros(4096, 4))
    while True:
        for (batch,) in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn"):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
"""


def test_ranks_under_torchrun_have_the_hook_and_nobody_else_looks_like_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    command = [*TPMON, "run", "--", *TORCHRUN, "--standalone", "--nproc-per-node", "2", str(script)]
    with start(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as job:
        reader = StepReader()

        def read() -> list[StepReading]:
            table = read_table()
            members = (job.pid, *find_descendants(job.pid, table))
            asked = [Identity(pid, table[pid].start_ticks) for pid in members if pid in table]
            return [one for one in reader.read_steps(asked).values() if is_known(one)]

        def all_step() -> bool:
            return sum(one.counts.steps > 50 and is_known(one.settings) for one in read()) >= 2

        try:
            assert wait_until(all_step, 4 * READY_S)
            ranks = sorted(read(), key=lambda one: one.rank)
            assert [(one.rank, one.world_size, one.state) for one in ranks] == [
                (0, 2, HookState.RUNNING),
                (1, 2, HookState.RUNNING),
            ]
            for one in ranks:
                assert (one.settings.loader.workers, one.settings.loader.batch_size) == (1, 4)
            table = read_table()
            assert len(find_descendants(job.pid, table)) >= 4  # two ranks, a worker each
        finally:
            reader.close()
            end_tree(job)
        assert job.stdout.read() == ""


def test_the_exported_file_puts_the_hook_into_a_training_that_is_captured(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "hook.zip"
    script.write_text(PROGRAM)
    assert run([*TPMON, "hook", "export", str(file)]).returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(file), "PYTHONWARNINGS": "ignore"}
    with start([sys.executable, str(script)], cwd=tmp_path, env=environment, stderr=subprocess.STDOUT) as job:
        reader = StepReader()
        process = Identity(job.pid, read_table()[job.pid].start_ticks)

        def trains() -> bool:
            reading = reader.read_steps([process])[process]
            return is_known(reading) and reading.counts.steps > 20 and reading.state is HookState.RUNNING

        try:
            assert wait_until(trains, READY_S)
            code, _, said = capture(job.pid, "--steps", "2", "--out", str(tmp_path / "out"))
            assert code == 0, said
            assert len(os.listdir(tmp_path / "out")) == 1
        finally:
            reader.close()
            end_tree(job)
        assert job.stdout.read() == ""
