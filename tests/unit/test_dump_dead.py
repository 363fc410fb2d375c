"""Children that died and whose end nobody asked about are told with each look; those that ended well are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tpmon.probe.dump import find_dead


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
