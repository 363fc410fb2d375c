"""How real members end and what is said of it; a root that replaces itself."""

import os
import signal
import time

import pytest

from tests.children import MAP_TORCH, child
from tests.members import describe_changes
from tpmon.model.known import Missing, is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat
from tpmon.probe.job import exit_status as ending
from tpmon.probe.job.events import Changes, Departure
from tpmon.probe.job.exit_status import UNSEEN, describe_end, parse_oom_victims, read_oom_victims, read_wait_status
from tpmon.probe.job.members import Membership
from tpmon.probe.job.resolve import find_job

SECOND = 1_000_000_000
FAMILY = (
    MAP_TORCH
    + """
say("ready")
while True:
    word = hear()
    if not word:
        break
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
        say(os.getpid())
        if word == "exit":
            time.sleep(float(sys.argv[2]))
            os._exit(3)
        while True:
            time.sleep(60)
    if word == "exit":
        os.waitpid(pid, 0)
        say("reaped")
"""
)


@pytest.fixture
def family(tmp_path):
    with child(FAMILY, str(tmp_path), "0.5") as one:
        membership = Membership(find_job(one.pid))
        yield one, membership
        membership.close()


def wait_for_gone(membership: Membership) -> Departure:
    for _ in range(200):
        changes = membership.refresh(time.monotonic_ns())
        if changes.gone:
            return changes.gone[0]
        time.sleep(0.05)
    pytest.fail("nobody ended")


def test_a_real_worker_killed_is_a_zombie_that_tells_its_signal(family):
    one, membership = family
    one.say("stay")
    worker = int(one.hear())
    assert [member.worker for member in membership.refresh(time.monotonic_ns()).born] == [0]
    os.kill(worker, signal.SIGKILL)
    departure = wait_for_gone(membership)
    assert (departure.member.identity.pid, departure.wait_status) == (worker, signal.SIGKILL)
    assert describe_changes(Changes(gone=(departure,)))[0].startswith(f"worker 0 ({worker}) of rank 0 gone: SIGKILL")


def test_a_real_worker_that_was_reaped_tells_its_exit_code_where_the_kernel_keeps_it(family):
    one, membership = family
    one.say("exit")
    one.hear()
    membership.refresh(time.monotonic_ns())
    assert one.hear() == "reaped"
    status = wait_for_gone(membership).wait_status
    if isinstance(status, Missing):
        assert tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15)
    else:
        assert describe_end(status) == "exit 3"


@pytest.mark.parametrize("kernel", ["has pidfd_open", "is older"])
def test_ends_are_seen_by_a_python_without_pidfd_open(tmp_path, monkeypatch, kernel):
    """Those of conda and many of uv have none: it was not in the headers they were built with."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    if kernel == "is older":
        monkeypatch.setattr(ending, "_PIDFD_OPEN", 1 << 20)
    with child(FAMILY, str(tmp_path), "1.5") as one:
        membership = Membership(find_job(one.pid))
        one.say("exit")
        worker = int(one.hear())
        membership.refresh(time.monotonic_ns())
        assert one.hear() == "reaped"
        departure = wait_for_gone(membership)
        membership.close()
    assert departure.member.identity.pid == worker
    if kernel == "is older":
        assert departure.wait_status == Missing("it was reaped before tpmon could read it")
    elif is_known(departure.wait_status):
        assert describe_end(departure.wait_status) == "exit 3"


def test_the_end_of_an_unwatched_process_is_not_made_up():
    with child('say("ready"); hear()') as one:
        stat = read_stat(one.pid)
        one.kill()
        identity = Identity(one.pid, stat.start_ticks)
        assert read_wait_status(identity, -1) == Missing("it was reaped before tpmon could read it")


@pytest.mark.parametrize(
    ("status", "oom", "text"),
    [
        (0, {}, "exit 0"),
        (3 << 8, {}, "exit 3"),
        (9, {}, "SIGKILL"),
        (9, {"oom_victim": True}, "SIGKILL; OOM killer (kernel log)"),
        (9, {"oom_kills": 1}, "SIGKILL; OOM kill counted in its control group"),
        (11 | 0x80, {"oom_kills": 1}, "SIGSEGV (core dumped)"),
        (63, {}, "signal 63"),
        (Missing("x"), {}, UNSEEN),
        (Missing("x"), {"oom_kills": 2}, f"{UNSEEN}; OOM kill counted in its control group"),
    ],
)
def test_ends_are_put_in_words(status, oom, text):
    assert describe_end(status, **oom) == text


def test_only_recent_victims_count_in_the_kernel_log():
    log = (
        b"3,100,5000000,-;Out of memory: Killed process 41 (python) total-vm:1kB\n"
        b"3,101,95000000,-;Memory cgroup out of memory: Killed process 42 (pt_data_worker) total-vm:1kB\n"
        b"14,102,96000000,-;Killed process 43 said a user\n SUBSYSTEM=x\n"
        b"6,103,97000000,-;eth0: link up\n"
    )
    assert parse_oom_victims(log, since_s=90.0) == [42]


@pytest.mark.parametrize(("up_s", "drift_s", "found"), [(1000.0, 65.0, False), (8e6, 65.0, True)])
def test_the_clock_of_the_kernel_log_may_have_drifted(tmp_path, up_s, drift_s, found):
    """printk stamps are of a clock that nobody corrects: after months they lag by minutes."""
    stamp_us = int((up_s - drift_s) * 1e6)
    (tmp_path / "kmsg").write_text(f"3,100,{stamp_us},-;Out of memory: Killed process 41 (python) total\n")
    victims = read_oom_victims(str(tmp_path / "kmsg"), now_s=up_s)
    assert victims == (frozenset((41,)) if found else frozenset())


EXEC = (
    MAP_TORCH
    + """
say("ready")
script = sys.argv[1] + "/" + hear()
with open(script, "w") as file:
    file.write("import os, time; os.write(1, b'anew\\\\n'); time.sleep(50)")
os.execv(sys.executable, [sys.executable, script])
"""
)


def test_that_the_root_replaced_itself_is_told_once_also_by_the_same_interpreter(tmp_path):
    with child(EXEC, str(tmp_path)) as one:
        membership = Membership(find_job(one.pid))
        try:
            assert membership.refresh(SECOND) == Changes()
            assert membership.refresh(7 * SECOND) == Changes()
            one.say("resume.py")
            assert one.hear() == "anew"
            changes = membership.refresh(13 * SECOND)
            assert changes.root_runs == "resume.py"
            assert describe_changes(changes) == ("the root of the job replaced itself (exec) and now runs resume.py",)
            assert membership.members[0].identity.pid == one.pid
            assert membership.refresh(19 * SECOND).root_runs == ""
        finally:
            membership.close()
