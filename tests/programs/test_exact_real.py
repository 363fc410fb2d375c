"""Frames of a real job that hangs, with its stacks and dumps: a recording gives back what was read, judged alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exact import assert_exact
from tests.programs.conftest import TORCHRUN, run_program
from tests.torch_build import needs_torch
from tpmon.model.frame import Frame
from tpmon.model.known import known_or
from tpmon.model.results.doctor import Update
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.resolve import find_job
from tpmon.session import Session

pytestmark = [pytest.mark.usefixtures("sampling_works"), pytest.mark.torch, needs_torch]

MOST_FRAMES = 120
INTERVAL_S = 0.5
COMMAND = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", "rank_hang.py", "--ready", "{ready}", "--culprit", "1")


class KeptFrames(Collector):
    """Keep each Frame as it was read, before it is judged."""

    def __init__(self, pid: int) -> None:
        super().__init__(find_job(pid), INTERVAL_S)
        self.kept: list[Frame] = []

    def collect(self) -> Frame:
        self.kept.append(super().collect())
        return self.kept[-1]


def test_a_job_that_hangs_is_read_again_as_it_was_and_judged_alike(tmp_path: Path) -> None:
    with run_program(COMMAND, tmp_path, 2) as program:
        source = KeptFrames(program.pid)
        frames = source.kept

        def sink(_: Update) -> None:
            rounds = sum(len(known_or(frame.rounds, ())) for frame in frames)
            dumps = any(one.seconds == 0.0 for frame in frames for one in known_or(frame.stacks, ()))
            if (rounds >= 2 and dumps) or len(frames) >= MOST_FRAMES:
                session.stop()

        session = Session(source, [sink], INTERVAL_S, hang_after_s=10.0, may_look=True)
        session.run()
    assert len(frames) < MOST_FRAMES
    assert_exact(frames)
