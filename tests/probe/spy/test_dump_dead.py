"""Children that died and whose end nobody asked about are told with each look; those that ended well are not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.fake_proc import FakeProc
from tpmon.model.dump import DeadChild
from tpmon.probe.base.procread import TICKS_PER_S
from tpmon.probe.job.exit_status import find_dead


def start(code: str) -> subprocess.Popen[bytes]:
    """Start a child, wait for its end and leave it unreaped."""
    child = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


def test_a_killed_child_is_told_with_its_signal_and_one_that_ended_well_is_not():
    killed = start(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    failed = start("raise SystemExit(3)")
    well = start("pass")
    try:
        dead = {one.pid: one for one in find_dead({os.getpid()})}
        assert dead[killed.pid].how == "SIGKILL"
        assert dead[failed.pid].how == "exit 3"
        assert dead[killed.pid].parent == os.getpid()
        assert well.pid not in dead
    finally:
        for child in (killed, failed, well):
            child.wait()
    assert not {killed.pid, failed.pid} & {one.pid for one in find_dead({os.getpid()})}


@pytest.mark.parametrize(
    ("killed_s_ago", "how"),
    [(30, "SIGKILL; OOM killer (kernel log)"), (1800, "SIGKILL; OOM killer (kernel log)"), (7200, "SIGKILL")],
)
def test_the_oom_killer_is_named_however_late_the_look_is_but_not_for_who_had_the_number_before(
    tmp_path, monkeypatch, killed_s_ago, how
):
    """The child began an hour ago: a kill of two hours ago was one of another process."""
    up_s = 100_000.0
    monkeypatch.setattr(time, "monotonic", lambda: up_s)
    made = FakeProc(tmp_path / "proc")
    made.add(500, 1, ("python", "train.py"))
    for pid, age_s in ((501, 3600), (502, 60)):
        start = made.now - age_s * TICKS_PER_S
        made.add(pid, 500, state="Z", name="pt_data_worker", start=start, wait_status=int(signal.SIGKILL))
    stamp_us = int((up_s - killed_s_ago) * 1e6)
    kmsg = tmp_path / "kmsg"
    kmsg.write_text(f"3,100,{stamp_us},-;Out of memory: Killed process 501 (pt_data_worker) total-vm:1kB\n")
    found = sorted(find_dead({500}, made.proc, str(kmsg)), key=lambda one: one.pid)
    assert found == [DeadChild(501, 500, "pt_data_worker", how), DeadChild(502, 500, "pt_data_worker", "SIGKILL")]
