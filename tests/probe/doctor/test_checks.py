"""What the rules of the machine allow whom, and what is said of py-spy, the clipboard and the kernel's log."""

import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tpmon
from tests.permissions import ABSENT, ALLOWED, DENIED, UNKNOWN, fix_of, own
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.results.doctor import CHECK_NAMES, NOT_PERMITTED, Access, drop_pointers, point_to, say_refusal
from tpmon.probe.doctor import checks, rules
from tpmon.probe.doctor.nvml import NOT_ASKED
from tpmon.probe.gpu.card_readings import Board
from tpmon.probe.gpu.wire import FailureLine, Line
from tpmon.probe.host.machine import pick_lines
from tpmon.probe.proc.access import (
    LIFT_YAMA,
    Caller,
    RuntimeKind,
    RuntimePlace,
    may_root_trace,
    parse_capabilities,
    parse_place,
    parse_profile,
    read_deny_ptrace,
)
from tpmon.probe.spy.failure import SpyOutcome, explain_empty, explain_outcome
from tpmon.probe.spy.text import Sampled

ENGINE, LXC, WSL, TOOLBOX = RuntimeKind.ENGINE, RuntimeKind.LXC, RuntimeKind.WSL, RuntimeKind.TOOLBOX
GO_INSIDE, ADD = "docker exec -it --privileged -u 0 CONTAINER tpmon attach", "docker run --cap-add SYS_PTRACE"
RELAX = "docker run --security-opt {}  # at its next start"
SHUT = "sudo setsebool deny_ptrace off"
ALONE = "in a container: it sees the processes in there alone"
NO_YAMA = Missing("this kernel has no Yama")
OR_THERE = f"or there: {GO_INSIDE} 7; at the next start of the container, as root in it: {ADD}"
LIFT_ON_HOST, ENTER_FOR_JOB = f"{LIFT_YAMA}  # on the host, as root", f"{GO_INSIDE} --job  # on the host"
BY_ANCESTORS = "only a process's own ancestors, or all where tpmon run --allow-stacks started it, may read"


@pytest.mark.parametrize(
    ("scope", "who", "access", "why", "fix"),
    [
        (NO_YAMA, own(), ALLOWED, "no Yama", ""),
        (0, own(), ALLOWED, "ptrace_scope is 0", ""),
        (1, own(), DENIED, BY_ANCESTORS, "sudo sysctl kernel.yama.ptrace_scope=0"),
        (1, own(1000, 19), ALLOWED, "and tpmon has CAP_SYS_PTRACE", ""),
        (1, own(0, runtime=ENGINE), DENIED, OR_THERE, LIFT_ON_HOST),
        (1, own(0), DENIED, BY_ANCESTORS, ""),
        (1, own(0, runtime=RuntimeKind.UNKNOWN), DENIED, "may read", LIFT_ON_HOST),
        (1, own(runtime=LXC), DENIED, "may read", "sudo tpmon attach 7"),
        (1, own(runtime=WSL), DENIED, "may read", f"sudo {LIFT_YAMA}"),
        (2, own(), DENIED, "only who has CAP_SYS_PTRACE", "sudo tpmon attach 7"),
        (2, own(runtime=ENGINE), DENIED, "only who has CAP_SYS_PTRACE", f"{GO_INSIDE} 7  # on the host"),
        (2, own(0, 19), ALLOWED, "and tpmon has", ""),
        (3, own(0, 19), DENIED, "until the next start of the machine", ""),
    ],
)
def test_what_yama_allows(scope, who, access, why, fix):
    check = rules.judge_yama(scope, who, Missing("not installed"), "7")
    assert (check.name, check.access, fix_of(check)) == ("yama", access, fix)
    assert why in check.why
    # Only scope 1 lets a process name who may look: beyond it the option would change nothing.
    assert ("--allow-stacks" in check.why) == (scope == 1 and access is DENIED)


def test_the_py_spy_that_tpmon_starts_is_the_one_to_be_given_the_right(tmp_path, monkeypatch):
    """pipx puts none on PATH: ``command -v`` finds nothing, or the py-spy of another Python."""
    give = "for py-spy alone: sudo setcap cap_sys_ptrace+ep '/opt/my venv/bin/py-spy'"
    for scope in (1, 2):
        assert rules.judge_yama(scope, own(), "/opt/my venv/bin/py-spy", "7").why.endswith(give)
    for scope, who in ((0, own()), (3, own()), (1, own(0, 19)), (1, own(0, runtime=ENGINE))):
        assert "setcap" not in rules.judge_yama(scope, who, "/bin/py-spy", "7").why
    program = tmp_path / "real"
    program.touch(mode=0o755)
    (tmp_path / "py-spy").symlink_to(program)
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    monkeypatch.setattr(rules, "read_own", lambda _: own())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert rules.check_yama(str(tmp_path)).why.endswith(f"setcap cap_sys_ptrace+ep {program}")
    page = (Path(__file__).parents[3] / "docs" / "permissions.md").read_text(encoding="utf-8")
    assert "command -v py-spy" not in page


@pytest.mark.parametrize(
    ("judge", "who", "access", "why", "fix"),
    [
        (rules.judge_capability, own(), ALLOWED, "your own jobs do not need it", ""),
        (rules.judge_capability, own(0, 19), ALLOWED, "tpmon has CAP_SYS_PTRACE", ""),
        (rules.judge_capability, own(0, 19, all_users=False), ALLOWED, "inside its own user namespace", ""),
        (rules.judge_capability, own(0, 21), DENIED, "root, but without CAP_SYS_PTRACE (a container's default)", ""),
        (rules.judge_capability, own(0, 21, runtime=ENGINE), DENIED, f"next start: {ADD}", ENTER_FOR_JOB),
        (rules.judge_container, own(), ALLOWED, "outside of containers", ""),
        (rules.judge_container, own(0, runtime=ENGINE, own_pids=True), UNKNOWN, ALONE, "docker run --pid=host"),
        (rules.judge_container, own(0, runtime=ENGINE), ALLOWED, "in a container with the host's PIDs", ""),
        (rules.judge_container, own(runtime=WSL, own_pids=True), UNKNOWN, "in a distribution of WSL", ""),
        (rules.judge_container, own(runtime=LXC, own_pids=True), UNKNOWN, "in a container of LXC", ""),
        (rules.judge_container, own(runtime=RuntimeKind.UNKNOWN, own_pids=True), UNKNOWN, "in a container", ""),
        (rules.judge_container, own(runtime=TOOLBOX, all_users=False), UNKNOWN, "in a user namespace", ""),
        (rules.judge_container, own(0, 19, all_users=False), UNKNOWN, "in a user namespace", ""),
        (rules.judge_container, own(0, 19, runtime=ENGINE, all_users=False), UNKNOWN, "in a user namespace", ""),
    ],
)
def test_what_the_capability_allows_and_a_container_takes_away(judge, who, access, why, fix):
    check = judge(who, "--job") if judge is rules.judge_capability else judge(who)
    assert (check.access, fix_of(check)) == (access, fix)
    assert why in check.why


ROOT_MOUNT = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
PROC_MOUNT = "22 21 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw%s\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROOT_MOUNT + PROC_MOUNT % "", (0, None)),
        (ROOT_MOUNT + PROC_MOUNT % ",hidepid=2,gid=4", (2, 4)),
        (PROC_MOUNT % ",gid=27,hidepid=invisible", (2, 27)),
        (PROC_MOUNT % ",hidepid=noaccess", (1, None)),
        (PROC_MOUNT % ",hidepid=ptraceable", (4, None)),
        (PROC_MOUNT % ",hidepid=2" + "30 22 0:20 / /proc/sys ro - proc proc ro,hidepid=0\n", (2, None)),
        ("", (0, None)),
        ("torn line - proc", (0, None)),
    ],
)
def test_hidepid_is_found_in_the_mounts(text, expected):
    assert rules.parse_hidepid(text) == expected


@pytest.mark.parametrize(
    ("hidden", "group", "who", "access"),
    [
        (0, None, own(), ALLOWED),
        (2, None, own(), DENIED),
        (2, 27, own(), ALLOWED),
        (2, 28, own(), DENIED),
        (4, 27, own(), DENIED),
        (2, None, own(0, 19), ALLOWED),
        (2, None, own(0), DENIED),
    ],
)
def test_whom_hidepid_binds(hidden, group, who, access):
    check = rules.judge_hidepid(hidden, group, who, frozenset((27, 1000)))
    assert check.access is access
    remount = "mount -o remount,hidepid=0 /proc"
    fix = f"sudo {remount}" if who.caller.uid else remount
    assert fix_of(check) == (fix if access is DENIED else "")


def test_a_filter_is_found_by_what_it_does_to_tpmon_itself():
    refused = Missing("Operation not permitted")
    assert rules.judge_seccomp(own(), 1).access is ALLOWED
    passed = rules.judge_seccomp(own(filtered=2), 1)
    assert (passed.access, passed.why) == (ALLOWED, "a seccomp filter binds tpmon, but lets process_vm_readv pass")
    held = rules.judge_seccomp(own(filtered=2), refused)
    assert (held.access, fix_of(held)) == (DENIED, "")
    inside = rules.judge_seccomp(own(filtered=2, runtime=ENGINE), refused)
    assert fix_of(inside) == f"{ADD}  # at its next start"
    assert "a seccomp filter forbids it" in held.why
    assert "a sandbox does not have it" in rules.judge_seccomp(own(), Missing("Function not implemented")).why


@pytest.mark.parametrize(
    ("modules", "attribute", "deny", "access", "fix"),
    [
        ("capability,yama,apparmor\n", b"unconfined\n", False, ALLOWED, ""),
        ("", b"", False, ALLOWED, ""),
        ("apparmor", b"vscode (unconfined)\n", False, ALLOWED, ""),
        ("apparmor", b"/usr/bin/python3 (complain)\n", False, ALLOWED, ""),
        ("apparmor", b"docker-default (enforce)\n", False, UNKNOWN, RELAX.format("apparmor=unconfined")),
        ("selinux", b"unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0", False, ALLOWED, ""),
        ("selinux", b"system_u:system_r:container_t:s0:c1,c2\0", False, UNKNOWN, RELAX.format("label=disable")),
        ("selinux", b"unconfined_u:unconfined_r:unconfined_t:s0\0", True, DENIED, f"{SHUT}  # on the host"),
    ],
)
def test_what_a_security_profile_says(modules, attribute, deny, access, fix):
    inside = Caller(1000, ENGINE, root_may=False)
    check = rules.judge_profile(modules, parse_profile(attribute), inside, deny_ptrace=deny)
    assert (check.access, fix_of(check)) == (access, fix)
    outside = rules.judge_profile(modules, parse_profile(attribute), Caller(), deny_ptrace=deny)
    assert (outside.access, fix_of(outside)) == (access, SHUT if deny else "")
    bound = rules.judge_profile(modules, parse_profile(attribute), Caller(root_may=False), deny_ptrace=deny)
    there = f"{SHUT}  # in a shell that may become root: this one may not"
    assert fix_of(bound) == (there if deny else "")


def test_what_selinux_forbids_is_read_from_its_present_value(tmp_path):
    file = tmp_path / "deny_ptrace"
    assert read_deny_ptrace(str(file)) is False
    for text, denied in (("0 1", False), ("1 0", True), ("1 1", True)):
        file.write_text(text)
        assert read_deny_ptrace(str(file)) is denied


def test_where_tpmon_runs_is_told_from_marks_and_not_from_its_pids():
    def place(*marks, manager="", release="6.8.0-45-generic", **more):
        given = {"pods": False, "own_pids": True, **more}
        return parse_place(frozenset(marks), manager, release, **given)

    docker, podman, toolbox = "/.dockerenv", "/run/.containerenv", "/run/.toolboxenv"
    wsl = "5.15.167.4-microsoft-standard-WSL2"
    assert place(own_pids=False) == RuntimePlace(RuntimeKind.HOST, False)
    assert place(docker) == RuntimePlace(ENGINE, True)
    assert place(docker, own_pids=False) == RuntimePlace(ENGINE, False)
    assert place(podman, manager="podman", release=wsl) == RuntimePlace(ENGINE, True)
    assert place(podman, toolbox, own_pids=False) == RuntimePlace(RuntimeKind.TOOLBOX, False)
    assert place(release=wsl) == RuntimePlace(RuntimeKind.WSL, True)
    assert place(manager="lxc") == RuntimePlace(RuntimeKind.LXC, True)
    assert place() == RuntimePlace(RuntimeKind.UNKNOWN, True)
    assert place(podman, pods=True) == RuntimePlace(RuntimeKind.UNKNOWN, True)


def test_the_bounds_of_this_process_say_whether_sudo_can_help_and_what_it_may_do_itself():
    full, none = b"CapBnd:\t000001ffffffffff\n", b"CapBnd:\t00000000a80425fb\n"
    assert may_root_trace(full + b"NoNewPrivs:\t0\n")
    assert not may_root_trace(full + b"NoNewPrivs:\t1\n")
    assert not may_root_trace(none)
    status = own(1000, 19, filtered=2).status
    assert (parse_capabilities(status), parse_capabilities(status, b"CapPrm")) == (1 << 19, 0)


@pytest.mark.parametrize(
    ("paranoid", "who", "access"),
    [
        (2, own(), ALLOWED),
        (-1, own(), ALLOWED),
        (3, own(), DENIED),
        (4, own(1000, 38), ALLOWED),
        (4, own(0, 21), ALLOWED),
        (Missing("no such file"), own(), ABSENT),
    ],
)
def test_what_perf_may_count(paranoid, who, access):
    check = rules.judge_perf(paranoid, who)
    assert check.access is access
    assert fix_of(check) == ("sudo sysctl kernel.perf_event_paranoid=2" if access is DENIED else "")


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
    check = checks.judge_spy(path, said, "", INSTALL)
    assert check.access is access
    assert why in check.why
    assert fix_of(check).startswith(fix)


def test_the_real_py_spy_is_asked_and_one_that_cannot_be_started_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SPY_S", 30.0)
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\necho py-spy 0.4.9\n")
    fake.chmod(0o755)
    assert checks.check_spy(lambda: "/no/such/py-spy").access is DENIED
    assert checks.check_spy(lambda: str(fake)).why == f"py-spy 0.4.9 at {fake}"
    if os.geteuid() == 0:
        fake.chmod(0o4755)
        assert checks.read_privileges(str(fake)) == "setuid root"
    assert checks.read_privileges("/no/such/py-spy") == ""


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
    check = checks.judge_clipboard(environment, tmux)
    assert (check.access, fix_of(check)) == (access, fix)


def test_the_kernels_log_may_be_closed_and_of_it_what_concerns_a_training_is_kept():
    assert checks.judge_log(131072, "sudo tpmon bundle 7").access is ALLOWED
    closed = checks.judge_log(Missing("Operation not permitted"), "sudo tpmon bundle 7")
    assert (closed.access, fix_of(closed)) == (DENIED, "sudo tpmon bundle 7")
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
    def fail(error):
        raise error

    good = rules.make_check("good", ALLOWED, "fine")
    plans = (
        checks.Plan("hangs", lambda: time.sleep(30), 0.3, needed=True),
        checks.Plan("fails", lambda: fail(ZeroDivisionError("by design")), 5.0),
        checks.Plan("refused", lambda: fail(PermissionError(1, "Operation not permitted")), 5.0),
        checks.Plan("good", lambda: good, 5.0, needed=True),
    )
    begun = time.monotonic()
    hung, failed, refused, last = checks.run_plans(plans)
    assert time.monotonic() - begun < 20
    assert (hung.access, hung.why, hung.needed) == (UNKNOWN, "no answer within 0.3 s", True)
    assert (failed.access, failed.why) == (UNKNOWN, "the check failed: ZeroDivisionError: by design")
    assert refused.why == "the check failed: PermissionError: Operation not permitted"
    assert last == replace(good, needed=True)


COLUMNS = 40
"""What a narrow pane has."""
PACKAGE = Path(tpmon.__file__).parent
TAKES_NAME = {"point_to": 1, "say_refusal": 1, "_Optional": 2}
"""The functions that end a reason with a line of the doctor, and which argument names it."""


def no_spy() -> Missing:
    return Missing("no py-spy")


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, path.read_text(encoding="utf-8")


def names_in_calls() -> Iterator[tuple[str, object]]:
    """Yield where a reason is sent to the doctor, and what line it names; None for one that is not spelled out."""
    for path, text in modules():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            place = TAKES_NAME.get(node.func.id)
            if place is None:
                continue
            named = node.args[place] if len(node.args) > place else None
            yield f"{path.name}:{node.lineno}", named.value if isinstance(named, ast.Constant) else None


def test_the_table_of_names_is_that_of_the_checks_that_the_doctor_runs():
    nvml = checks.NvmlOnce(lambda: NOT_ASKED)
    patient = checks.CheckupSubject(os.getpid(), "train.py", "ada", (os.getpid(),), NOT_APPLICABLE, "")
    plans = (*checks.plan_machine(nvml, no_spy), *checks.plan_job(patient, nvml, no_spy))
    assert sorted(plan.name for plan in plans) == sorted(CHECK_NAMES)
    assert {plan.name for plan in plans if plan.needed} == {"py-spy", "stacks", "stat", "environ", "fd"}


def test_every_reason_names_a_line_of_the_doctor_and_is_spelled_in_one_place():
    found = dict(names_in_calls())
    assert len(found) > 30
    # Two pass on what their caller names.
    passed_on = {place.partition(":")[0] for place, name in found.items() if name is None}
    assert passed_on == {"doctor.py", "processes.py"}
    named = {name for name in found.values() if name is not None}
    assert named <= set(CHECK_NAMES)
    for needed in ("py-spy", "stacks", "fd", "io", "smaps_rollup", "environ", "wchan", "syscall", "memory"):
        assert needed in named
    assert {"cgroup", "nvml", "cards", "kernel-log", "hidepid"} <= named
    spelled = {path.name for path, text in modules() if "(doctor:" in text or "doctor says more" in text}
    assert spelled == {"doctor.py"}


SPY_ENDS = {
    "late": SpyOutcome(b"", b"", 0, 0.0, 5.0, late=True, flooded=False),
    "out of its CPU": SpyOutcome(b"", b"", -signal.SIGXCPU, 2.0, 2.0, late=False, flooded=False),
    "too much": SpyOutcome(b"", b"", 0, 0.1, 0.1, late=False, flooded=True),
    "killed": SpyOutcome(b"", b"", -signal.SIGKILL, 0.1, 0.1, late=False, flooded=False),
    "failed": SpyOutcome(b"", b"Error: no luck", 1, 0.1, 0.1, late=False, flooded=False),
    "another Python": SpyOutcome(b"", b"Error: no python version", 1, 0.1, 0.1, late=False, flooded=False),
}


@pytest.mark.parametrize("outcome", SPY_ENDS.values(), ids=SPY_ENDS.keys())
def test_however_py_spy_ends_a_pane_without_stacks_names_their_line(outcome):
    failure = explain_outcome(os.getpid(), outcome, 5.0)
    assert failure is not None
    assert failure.reason != drop_pointers(failure.reason)


@pytest.mark.parametrize("code", [0, 3, 4, 9, 12, 15, 18, 999])
def test_a_pane_without_cards_names_the_line_of_nvml(code):
    board = Board(0)
    board.on_line(Line(failure=FailureLine(code, "what NVML said")), 0)
    gpus = board.read({}, {}, True, 10**9).gpus
    assert isinstance(gpus, Missing)
    assert gpus.reason.endswith(" (doctor: nvml)")
    waiting = Board(0).read({}, {}, True, 60 * 10**9).gpus
    assert isinstance(waiting, Missing)
    assert waiting.reason.endswith(" (doctor: nvml)")


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_a_refusal_fits_a_narrow_pane_and_the_doctor_does_not_point_to_itself(name):
    reason = say_refusal(PermissionError(13, "Permission denied"), name)
    assert reason == point_to(NOT_PERMITTED, name)
    assert len(reason) <= COLUMNS
    assert reason.endswith(f"(doctor: {name})")
    assert drop_pointers(f"PSS: {reason}; more") == "PSS: not permitted; more"
    assert rules.make_check(name, Access.DENIED, reason).why == NOT_PERMITTED


def test_what_no_check_explains_points_nowhere_and_stacks_without_a_thread_name_their_line():
    assert say_refusal(FileNotFoundError(2, "No such file or directory"), "io") == "no such file or directory"
    assert say_refusal(OSError(), "io") == "refused"
    assert explain_empty(Sampled(0, (), 0), b"[]") == "py-spy saw no Python thread (doctor: stacks)"
