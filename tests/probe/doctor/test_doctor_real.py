"""The doctor behind real walls: a seccomp filter, hidepid, namespaces, a process that protects itself."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import child
from tests.command_line import SECONDS, call_behind
from tests.nobody import AS_NOBODY
from tests.permissions import fix_of
from tests.waiting import wait_until
from tpmon.model.codec import decode
from tpmon.model.results.doctor import Access, Check, Checkup
from tpmon.probe.spy.failure import find_spies

pytestmark = pytest.mark.usefixtures("small_environment")

ROOT = Path(__file__).parents[3]
DENIED, ALLOWED = Access.DENIED, Access.ALLOWED
NAP = "say('up')\ntime.sleep(50)\n"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"),
    reason="only root can build these walls, with setpriv and unshare",
)

# A filter that answers process_vm_readv (310 on x86-64) with EPERM and lets all else pass, then exec.
FILTER = """
import ctypes, os, struct, sys
def step(code, yes, no, value):
    return struct.pack("=HBBI", code, yes, no, value)
steps = step(0x20, 0, 0, 0) + step(0x15, 0, 1, 310) + step(0x06, 0, 0, 0x00050001) + step(0x06, 0, 0, 0x7FFF0000)
text = ctypes.create_string_buffer(steps, len(steps))
program = struct.pack("@HxxxxxxP", 4, ctypes.addressof(text))
held = ctypes.create_string_buffer(program, len(program))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.c_void_p(ctypes.addressof(held)), 0, 0):
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def look(pid: int | str, before: tuple[str, ...] = ()) -> tuple[int, Checkup]:
    """Call doctor as JSON behind a command that puts a wall up."""
    done = call_behind(before, "doctor", str(pid), "--json")
    if done.returncode == 77:
        pytest.skip("no seccomp filter may be installed here")
    assert done.stderr == ""
    return done.returncode, decode(Checkup, done.stdout)


def enter(*options: str, what: str) -> tuple[str, ...]:
    """Return the command that enters new namespaces, or skip the test."""
    command = ("unshare", *options)
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"no {what} is permitted here")
    return command


CONTAINER = ("--pid", "--fork", "--mount-proc", "--kill-child")


def checks_of(checkup: Checkup) -> dict[str, Check]:
    (job,) = checkup.jobs
    return {check.name: check for check in (*checkup.machine, *job.checks)}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has the call's number of x86-64")
def test_a_seccomp_filter_is_told_from_everything_else():
    with child(NAP) as one:
        code, checkup = look(one.pid, (sys.executable, "-c", FILTER))
        checks = checks_of(checkup)
        assert wait_until(lambda: one.pid not in find_spies())
    # py-spy reads /proc/PID/mem instead, so that all that is needed is there.
    assert (code, checks["stacks"].access) == (0, ALLOWED)
    assert checks["seccomp"].access is DENIED
    assert "a seccomp filter forbids it" in checks["seccomp"].why
    assert fix_of(checks["seccomp"]) == "", "stacks are read all the same"
    assert "(seccomp)" in checks["memory"].why
    for name in ("stat", "io", "environ", "fd", "syscall"):
        assert checks[name].access is ALLOWED, name


PROTECTED = """
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # changing the user cleared it
ctypes.CDLL(None).prctl(4, int(sys.argv[1]), 0, 0, 0)
say('up')
time.sleep(50)
"""


@needs_root
def test_a_process_that_protects_itself_is_told_from_one_that_does_not():
    with child(PROTECTED, "0") as shy, child(PROTECTED, "1") as open_:
        code, checkup = look(shy.pid, AS_NOBODY)
        checks = checks_of(checkup)
        _, other = look(open_.pid, AS_NOBODY)
    assert code == 4
    for name in ("io", "environ", "fd", "syscall", "memory"):
        assert checks[name].access is DENIED, name
        assert "not dumpable" in checks[name].why
        assert f"tpmon attach {shy.pid}" in fix_of(checks[name])
    for name in ("stat", "io", "environ", "fd", "syscall", "memory"):
        assert checks_of(other)[name].access is ALLOWED, name


@needs_root
def test_a_proc_that_hides_processes_is_said_and_ends_with_4():
    mount = f'mount -t proc -o hidepid=2 proc /proc && exec {" ".join(AS_NOBODY)} "$@"'
    hide = enter("--mount", "sh", "-c", mount, "sh", what="mount of /proc")
    with child(NAP) as one:
        done = call_behind(hide, "doctor", str(one.pid))
    assert (done.returncode, done.stdout) == (4, "")
    what, hint = done.stderr.splitlines()
    assert what == f"tpmon: process {one.pid} is hidden from this user (hidepid)"
    assert f"tpmon attach {one.pid}" in hint
    assert hint.endswith("(doctor: hidepid)")
    with child(PROTECTED, "1") as own:
        code, checkup = look(own.pid, hide)
    hidden = checks_of(checkup)["hidepid"]
    assert (hidden.access, hidden.fix) == (DENIED, "sudo mount -o remount,hidepid=0 /proc")
    assert checks_of(checkup)["stat"].access is ALLOWED
    assert code in (0, 4)  # whether this user may start py-spy is another matter


@needs_root
def test_a_user_namespace_is_told_from_a_sandbox():
    with child(NAP) as one:
        code, checkup = look(one.pid, enter("--user", "--map-root-user", what="user namespace"))
        checks = checks_of(checkup)
    assert code == 4
    for name in ("io", "environ", "fd", "syscall", "memory", "stacks"):
        assert checks[name].access is DENIED, name
        assert "outside of tpmon's user namespace" in checks[name].why
    assert checks["container"].access is Access.UNKNOWN
    assert "user namespace" in checks["container"].why
    assert checks["capability"].why.endswith("inside its own user namespace")


@needs_root
def test_a_container_of_its_own_is_said_and_its_processes_may_be_read():
    inside = (
        f"{sys.executable} -c 'import time; time.sleep(50)' & "
        f"{sys.executable} -B -m tpmon doctor $! --json; code=$?; kill $!; exit $code"
    )
    command = [*enter(*CONTAINER, what="PID namespace"), "sh", "-c", inside]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT)
    checks = checks_of(decode(Checkup, done.stdout))
    assert checks["container"].access is Access.UNKNOWN
    assert fix_of(checks["container"]) == "", "the job in there could be looked into"
    for name in ("stat", "io", "environ", "fd", "memory"):
        assert checks[name].access is ALLOWED, name


@needs_root
def test_a_job_in_a_container_below_is_read_and_its_inner_number_said(tmp_path):
    with subprocess.Popen(
        [*enter(*CONTAINER, what="PID namespace"), sys.executable, "-c", "print('up', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as outer:
        assert outer.stdout.readline() == "up\n"
        inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        code, checkup = look(inner)
        outer.kill()
    checks = checks_of(checkup)
    assert code == 0, checks
    assert f"{inner} is 1 inside" in checks["place"].why
