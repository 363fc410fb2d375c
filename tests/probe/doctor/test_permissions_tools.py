"""What is said of py-spy, the clipboard and the log of the kernel; checks that hang or fail."""

import os
import time
from dataclasses import replace

import pytest

from tests.permissions import ABSENT, ALLOWED, DENIED, UNKNOWN, fix_of
from tpmon.model.known import Missing
from tpmon.probe.doctor import checks as permissions_tools
from tpmon.probe.doctor.checks import Plan, check_spy, judge_clipboard, judge_log, judge_spy, read_privileges, run_plans
from tpmon.probe.doctor.rules import make_check
from tpmon.probe.host.machine import pick_lines
from tpmon.probe.spy.failure import SpyOutcome

# programs

INSTALL = "pip install -U py-spy"


def outcome(output: bytes = b"", errors: bytes = b"", status: int = 0, *, late: bool = False) -> SpyOutcome:
    return SpyOutcome(output, errors, status, 0.0, 0.0, late, flooded=False)


@pytest.mark.parametrize(
    ("path", "said", "access", "why", "fix"),
    [
        ("/bin/py-spy", outcome(b"py-spy 0.4.1\n"), ALLOWED, "py-spy 0.4.1 at /bin/py-spy", ""),
        ("/bin/py-spy", outcome(b"py-spy 0.3.14\n"), ALLOWED, "ask for 0.4 or newer", INSTALL),
        (Missing("py-spy is not installed"), outcome(), ABSENT, "not installed", INSTALL),
        ("/bin/py-spy", Missing("Exec format error"), DENIED, "cannot be started: Exec format", INSTALL),
        ("/bin/py-spy", outcome(b"\x1b[31mgarbage"), DENIED, "does not work: ?[31mgarbage", INSTALL),
        ("/bin/py-spy", outcome(status=3), DENIED, "does not work: status 3", INSTALL),
        ("/bin/py-spy", outcome(errors=b"no libc\nx", status=1), DENIED, "does not work: no libc", "pip install"),
        ("/bin/py-spy", outcome(late=True), UNKNOWN, "no answer within 5 s", "/bin/py-spy --version"),
    ],
)
def test_whether_py_spy_works(path, said, access, why, fix):
    check = judge_spy(path, said, "", INSTALL)
    assert check.access is access
    assert why in check.why
    assert fix_of(check).startswith(fix)


def test_the_real_py_spy_is_asked_and_a_missing_or_hanging_one_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(permissions_tools, "SPY_S", 0.3)
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    assert check_spy(lambda: str(fake)).access is UNKNOWN
    assert check_spy(lambda: "/no/such/py-spy").access is DENIED
    assert check_spy(lambda: Missing("not here")).access is ABSENT
    monkeypatch.setattr(permissions_tools, "SPY_S", 30.0)
    fake.write_text("#!/bin/sh\necho py-spy 0.4.9\n")
    assert check_spy(lambda: str(fake)).why == f"py-spy 0.4.9 at {fake}"
    if os.geteuid() == 0:
        fake.chmod(0o4755)
        assert read_privileges(str(fake)) == "setuid root"
    assert read_privileges("/no/such/py-spy") == ""


@pytest.mark.parametrize(
    ("environment", "tmux", "access", "fix"),
    [
        ({}, Missing("not asked"), UNKNOWN, ""),
        ({"STY": "77.x"}, Missing("not asked"), DENIED, ""),
        ({"TMUX": "/tmp/t,1,0"}, "external", ALLOWED, ""),
        ({"TMUX": "/tmp/t,1,0"}, "on", ALLOWED, ""),
        ({"TMUX": "/tmp/t,1,0"}, "off", DENIED, "tmux set-option -s set-clipboard on"),
        ({"TMUX": "/tmp/t,1,0"}, Missing("no answer within 2 s"), UNKNOWN, ""),
    ],
)
def test_whether_a_copy_reaches_the_clipboard(environment, tmux, access, fix):
    check = judge_clipboard(environment, tmux)
    assert (check.access, fix_of(check)) == (access, fix)


def test_the_kernels_log_may_be_closed():
    assert judge_log(131072, "sudo tpmon bundle 7").access is ALLOWED
    closed = judge_log(Missing("Operation not permitted"), "sudo tpmon bundle 7")
    assert (closed.access, fix_of(closed)) == (DENIED, "sudo tpmon bundle 7")


def test_of_the_kernels_log_what_concerns_a_training_is_kept():
    log = (
        "<6>[    1.0] usb 1-1: new device\n"
        "<4>[  100.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4211, GPU has fallen off the bus.\n"
        "<3>[  101.0] Out of memory: Killed process 4213 (python) total-vm:1kB\x1b[2J\n"
        "<3>[  102.0] INFO: task python:4211 blocked for more than 122 seconds.\n"
        "<4>[  103.0] nfs: server fs not responding, still trying\n"
        "<6>[  104.0] random: crng init done\n"
    )
    lines = pick_lines(log)
    assert len(lines) == 4
    assert lines[0].startswith("[  100.5] NVRM: Xid")
    assert "\x1b" not in "".join(lines)
    assert len(pick_lines(log * 1000)) == 400


# every check for itself


def test_a_check_that_hangs_or_fails_costs_itself_alone():
    def hang():
        time.sleep(30)
        raise AssertionError("nobody waits for this")

    def fail():
        raise ZeroDivisionError("by design")

    def refuse():
        raise PermissionError(1, "Operation not permitted")

    good = make_check("good", ALLOWED, "fine")
    plans = (
        Plan("hangs", hang, 0.3, needed=True),
        Plan("fails", fail, 5.0),
        Plan("refused", refuse, 5.0),
        Plan("good", lambda: good, 5.0, needed=True),
    )
    begun = time.monotonic()
    hung, failed, refused, last = run_plans(plans)
    assert time.monotonic() - begun < 20
    assert (hung.access, hung.why, hung.needed) == (UNKNOWN, "no answer within 0.3 s", True)
    assert (failed.access, failed.why) == (UNKNOWN, "the check failed: ZeroDivisionError: by design")
    assert refused.why == "the check failed: PermissionError: Operation not permitted"
    assert last == replace(good, needed=True)
