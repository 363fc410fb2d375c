"""Hooked trainings watched by tpmon: steps, split and verdict by the program's own clock; each rank under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.programs.capturing import ROOT, TPMON, capture, run, start
from tests.programs.causes.running import end_tree
from tests.programs.conftest import READY_S, TORCHRUN
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import judge
from tpmon.model.codec import decode, encode
from tpmon.model.frame import Frame, Window
from tpmon.model.hook import HookState, StepReading, StepRule, list_shares
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.model.verdict import Kind
from tpmon.probe.base.procread import read_table
from tpmon.probe.collect.collector import Collector
from tpmon.probe.hooked.page import StepReader
from tpmon.probe.job.job import find_descendants
from tpmon.probe.job.resolve import find_job

pytestmark = [pytest.mark.torch, needs_torch]

PROGRAM = Path(__file__).with_name("hook_split_train.py")
WATCHED_S = 8
BATCH = 8


def told_by(path: Path) -> list[dict]:
    """Return what the program has told so far; its last line may be half written."""
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    path = tmp_path / "told"
    path.touch()
    with start([sys.executable, "-W", "ignore", str(PROGRAM), str(path)]) as process:
        try:
            assert wait_until(lambda: len(told_by(path)) >= 5, READY_S)
            yield process.pid, path
        finally:
            process.kill()


def watch(pid: int, seconds: int) -> list[Frame]:
    """Collect and judge a Frame a second, as the session does."""
    window, standing, frames = Window(), Standing(), []
    with closing(Collector(find_job(pid))) as collector:
        for _ in range(seconds + 1):
            frame = collector.collect()
            window.append(frame)
            judged = judge(tuple(window), standing)
            standing = judged.standing
            frames.append(judged.frame)
            time.sleep(1)
    return frames


def test_steps_split_and_verdict_are_those_of_the_program(job: tuple[int, Path]) -> None:
    pid, path = job
    frames = watch(pid, WATCHED_S)
    first, last = frames[0], frames[-1]
    assert is_known(first.steps), "the first reading tells the steps already"
    assert is_known(last.steps)
    pace = last.steps
    assert (last.hook[0].state, last.hook[0].error) == (HookState.RUNNING, "")
    assert (pace.rule, last.hook[0].batch_size) == (StepRule.BATCH_AFTER_UPDATE, BATCH)

    # The program's own clock, over the span of the last reading.
    told = told_by(path)
    ended_s = last.taken_ns / 1e9 - pace.step_age_s
    end = min(told, key=lambda one: abs(one["at"] - ended_s))
    begin = min(told, key=lambda one: abs(one["at"] - (ended_s - pace.span_s)))
    steps, seconds = end["steps"] - begin["steps"], end["at"] - begin["at"]
    assert pace.rate_hz == pytest.approx(steps / seconds, rel=0.03)
    assert pace.samples_hz == pytest.approx(BATCH * steps / seconds, rel=0.03)
    assert abs(pace.count - end["steps"]) <= 2
    ends = [one["at"] for one in told if one["at"] <= ended_s + 0.01]
    middle = median(1000 * (late - early) for early, late in pairwise(ends))
    assert pace.p50_ms == pytest.approx(middle, rel=0.1)
    parts = [late - early for early, late in zip(begin["spent"], end["spent"], strict=True)]
    for (phase, share), part in zip(list_shares(pace), parts, strict=True):
        assert share == pytest.approx(100 * part / sum(parts), abs=3), phase

    assert last.ranks[0].step == pace.count
    finding = last.verdict
    assert (finding.kind, finding.cause) == (Kind.DATA_BOUND, "no-workers")
    assert any("hook" in row.source for row in finding.evidence)
    assert finding.share_pct == pytest.approx(100 * parts[0] / sum(parts), abs=3)
    again = decode(Frame, encode(last))
    assert again.steps.count == pace.count
    assert "steps/s" in last.facts


LOOP = """
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


@pytest.mark.long
def test_ranks_under_torchrun_have_the_hook_and_nobody_else_looks_like_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
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


@pytest.mark.long
def test_the_exported_file_puts_the_hook_into_a_training_that_is_captured(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "hook.zip"
    script.write_text(LOOP)
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
