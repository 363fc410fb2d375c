"""Jobs of real torch programs that lose members or have many short-lived ones, followed from outside."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.members import describe_changes
from tests.programs.conftest import TORCHRUN, run_program
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon.model.process import Role
from tpmon.model.results.doctor import JobState
from tpmon.probe.job.discovery import list_jobs
from tpmon.probe.job.members import Membership
from tpmon.probe.job.resolve import find_job
from tpmon.probe.job.tree import LAUNCHER_GONE

pytestmark = [pytest.mark.torch, needs_torch]

PYTHON = sys.executable
TRAIN = ("job_train.py", "--ready", "{ready}", "--look-s", "0.5")


def test_a_killed_worker_and_what_follows_are_told(tmp_path: Path) -> None:
    with run_program((PYTHON, *TRAIN), tmp_path / "ready", 1) as program:
        membership = Membership(find_job(program.pid))
        worker = next(member for member in membership.members if member.role is Role.WORKER)
        assert membership.refresh(time.monotonic_ns()).gone == ()
        os.kill(worker.identity.pid, signal.SIGKILL)
        lines: list[str] = []

        def ended() -> bool:
            lines.extend(describe_changes(membership.refresh(time.monotonic_ns())))
            return not membership.members

        assert wait_until(ended), membership.members
        membership.close()
    assert any(f"worker 0 ({worker.identity.pid}) of rank 0 gone" in line for line in lines), lines
    # the test is the parent of the rank and reaps it only at the end, so the status is there to see
    assert f"rank 0 ({program.pid}) gone: exit 1" in lines


def test_a_hundred_short_lived_children_a_second_leave_nothing_behind(tmp_path: Path) -> None:
    with run_program((PYTHON, *TRAIN, "--workers", "0", "--children", "100"), tmp_path / "ready", 1) as program:
        membership = Membership(find_job(program.pid))
        now_ns = time.monotonic_ns()
        membership.refresh(now_ns)
        before = len(os.listdir("/proc/self/fd"))
        met = 0
        for _ in range(60):
            now_ns += 1_000_000_000
            changes = membership.refresh(now_ns)
            met += len(changes.born)
            assert len(membership.members) < 30
            assert {member.role for member in membership.members} == {Role.RANK, Role.HELPER} or not changes.born
            time.sleep(0.05)
        assert met > 20
        os.kill(program.pid, signal.SIGKILL)
        assert wait_until(lambda: bool(membership.refresh(time.monotonic_ns() + now_ns)) and not membership.members)
        assert len(os.listdir("/proc/self/fd")) < before
        membership.close()


@pytest.mark.long
def test_ranks_of_a_killed_torchrun_stay_one_job(tmp_path: Path) -> None:
    command = (*TORCHRUN, "--standalone", "--nproc-per-node", "2", *TRAIN, "--workers", "1")
    with run_program(command, tmp_path / "ready", 2) as program:
        membership = Membership(find_job(program.pid))
        try:
            os.kill(program.pid, signal.SIGKILL)
            assert wait_until(lambda: find_job(program.trainers[0]).root.pid != program.pid)
            jobs = [find_job(pid) for pid in program.trainers]
            assert {job.root for job in jobs} == {jobs[0].root}
            ranks = {one.rank: one.identity.pid for one in jobs[0].members if one.role is Role.RANK}
            assert sorted(ranks) == [0, 1]
            assert sorted(ranks.values()) == sorted(program.trainers)
            assert (jobs[0].world_size, jobs[0].rank_source) == (2, LAUNCHER_GONE)
            listed = {one.pid: one for one in list_jobs().jobs}
            mine = listed[jobs[0].root.pid]
            assert (mine.ranks, mine.state) == (2, JobState.LAUNCHER_GONE)
            assert set(program.trainers) & set(listed) == {mine.pid}
            # who was attached before keeps all of them, and says it too
            membership.refresh(time.monotonic_ns())
            assert membership.job.rank_source == LAUNCHER_GONE
            assert {one.identity.pid for one in membership.members if one.role is Role.RANK} == set(program.trainers)
        finally:
            membership.close()
            for pid in program.trainers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
