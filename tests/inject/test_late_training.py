"""``tpmon hook PID`` on a training that was started without the hook: steps, a capture, and out again."""

from __future__ import annotations

import json
import sys

import pytest

from tests.inject.late_matrix import find_ranks, finish, start
from tests.inject.targets import find, looping
from tests.programs.capturing import TPMON, run
from tests.torch_build import needs_torch
from tests.waiting import wait_until
from tpmon import __version__
from tpmon.commands.capture import find_bare
from tpmon.inject.late_hook import LateHook
from tpmon.model.hook import HookState, PutIn, StepReading
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.model.results.late import LateState
from tpmon.probe.hooked.page import NO_HOOK, StepReader

pytestmark = [pytest.mark.torch, needs_torch]


def read(process: Identity) -> object:
    reader = StepReader()
    try:
        return reader.read_steps([process]).get(process)
    finally:
        reader.close()


def counts(process: Identity) -> bool:
    found = read(process)
    return isinstance(found, StepReading) and found.counts.steps > 0


def test_it_is_seen_to_be_in_before_its_first_event_comes():
    """A step may take minutes, and whoever asks meanwhile must not be told to put it in."""
    program = "import time, torch\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n"
    with looping(program=program) as job:
        process = find(job)
        assert LateHook(process).install().state is LateState.INSTALLED
        found = read(process)
        assert isinstance(found, StepReading)
        assert (found.state, is_known(found.put_in), is_known(found.now)) == (HookState.RUNNING, True, False)
        assert len(found.patches) == 4
        assert find_bare(process) is None
        assert LateHook(process).remove().state is LateState.REMOVED
        assert read(process) == NO_HOOK


@pytest.mark.parametrize("loop", ["workers", pytest.param("ddp", marks=pytest.mark.long)])
def test_a_running_training_is_counted_captured_and_left_as_it_was(loop, tmp_path):
    with start(sys.executable, loop) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            pid = str(job.pid)
            (process, *others) = find_ranks(job)
            every = ["--all-ranks"] if others else []
            asked = run([*TPMON, "hook", pid])
            assert (asked.returncode, read(process)) == (2, NO_HOOK)
            assert "nothing was written: nobody agreed" in asked.stderr
            assert "written into its memory" in asked.stderr
            hooked = run([*TPMON, "hook", pid, "--yes", "--json", *every])
            assert hooked.returncode == 0, hooked.stderr
            assert [one["state"] for one in json.loads(hooked.stdout)] == ["installed"] * (1 + len(others))
            assert all(wait_until(lambda one=one: counts(one)) for one in (process, *others))
            found = read(process)
            assert isinstance(found, StepReading)
            assert is_known(found.put_in)
            assert isinstance(found.put_in, PutIn)
            assert found.put_in.by == __version__
            again = run([*TPMON, "hook", pid, "--yes"])
            assert (again.returncode, "the hook is in it already" in again.stderr) == (2, True)
            where = ["--out", str(tmp_path / "capture")]
            captured = run([*TPMON, "capture", pid, "--steps", "5", "--json", *where, *every])
            assert captured.returncode == 0, captured.stderr
            files = json.loads(captured.stdout)["files"]
            assert [one["steps"] for one in files] == [5] * (1 + len(others))
            removed = run([*TPMON, "hook", pid, "--remove", *every])
            assert removed.returncode == 0, removed.stderr
            assert [read(one) for one in (process, *others)] == [NO_HOOK] * (1 + len(others))
            report = finish(job)
        finally:
            job.kill()
    assert report["patched"] == []
    alone = finish(start(sys.executable, loop, len(report["losses"])))
    assert report["losses"] == alone["losses"]
