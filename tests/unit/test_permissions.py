"""What the doctor makes of captured text: Yama, containers, hidepid, filters, drivers, ports, py-spy."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from tests.children import child
from tests.fake_proc import FakeProc
from tpmon.model.doctor import Access, Check
from tpmon.model.dump import DumpError, DumpRound, ErrorKind
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.probe import permissions_tools
from tpmon.probe.gpu_wire import CardLine, DriverLine, FailureLine, Identity
from tpmon.probe.kernel_log import pick_lines
from tpmon.probe.memory_trial import try_memory
from tpmon.probe.nvml import blank_fast
from tpmon.probe.permissions import Plan, run_plans
from tpmon.probe.permissions_job import (
    judge_cards,
    judge_inside,
    judge_ras,
    parse_listeners,
    parse_step,
)
from tpmon.probe.permissions_nvml import (
    NvmlAnswer,
    ask_nvml,
    judge_counters,
    judge_nvml,
    list_minors,
    parse_admin_only,
)
from tpmon.probe.permissions_process import (
    SOURCES,
    Trial,
    explain_read,
    judge_source,
    judge_stacks,
    try_source,
)
from tpmon.probe.permissions_rules import (
    Own,
    judge_capability,
    judge_container,
    judge_hidepid,
    judge_perf,
    judge_profile,
    judge_seccomp,
    judge_yama,
    make_check,
    parse_hidepid,
)
from tpmon.probe.permissions_tools import check_spy, judge_clipboard, judge_log, judge_spy, read_privileges
from tpmon.probe.stack_child import Outcome
from tpmon.probe.stack_refusal import (
    Standing,
    parse_capabilities,
    parse_field,
    parse_profile,
    read_dumpable,
    read_standing,
)

ALLOWED, DENIED, ABSENT, UNKNOWN = Access.ALLOWED, Access.DENIED, Access.ABSENT, Access.UNKNOWN
STATUS = (
    b"Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nCapPrm:\t0000000000000000\nCapEff:\t%016x\nSeccomp:\t%d\n"
)
NO_YAMA = Missing("this kernel has no Yama")


def own(
    uid: int = 1000, *capabilities: int, contained: bool = False, all_users: bool = True, filtered: int = 0
):
    mask = sum(1 << number for number in capabilities)
    return Own(uid, 19 in capabilities, contained, all_users, STATUS % (mask, filtered))


def fix_of(check: Check) -> str:
    return check.fix if is_known(check.fix) else ""


# rules of the machine


@pytest.mark.parametrize(
    ("scope", "who", "access", "why", "fix"),
    [
        (NO_YAMA, own(), ALLOWED, "no Yama", ""),
        (0, own(), ALLOWED, "ptrace_scope is 0", ""),
        (1, own(), DENIED, "only a process's own ancestors", "sudo sysctl kernel.yama.ptrace_scope=0"),
        (1, own(1000, 19), ALLOWED, "and tpmon has CAP_SYS_PTRACE", ""),
        (
            1,
            own(0, contained=True),
            DENIED,
            "only a process's own ancestors",
            "docker run --cap-add SYS_PTRACE",
        ),
        (2, own(), DENIED, "only who has CAP_SYS_PTRACE", "sudo tpmon attach PID"),
        (2, own(0, 19), ALLOWED, "and tpmon has", ""),
        (3, own(0, 19), DENIED, "until the machine starts anew", ""),
    ],
)
def test_what_yama_allows(scope, who, access, why, fix):
    check = judge_yama(scope, who)
    assert (check.name, check.access, fix_of(check)) == ("yama", access, fix)
    assert why in check.why


@pytest.mark.parametrize(
    ("who", "access", "why", "fix"),
    [
        (own(), ALLOWED, "your own jobs do not need it", ""),
        (own(0, 19), ALLOWED, "tpmon has CAP_SYS_PTRACE", ""),
        (own(0, 19, all_users=False), ALLOWED, "inside its own user namespace", ""),
        (own(0, 21), DENIED, "root, but without", "docker run --cap-add SYS_PTRACE"),
    ],
)
def test_what_the_capability_allows(who, access, why, fix):
    check = judge_capability(who)
    assert (check.access, fix_of(check)) == (access, fix)
    assert why in check.why


@pytest.mark.parametrize(
    ("who", "access", "why", "fix"),
    [
        (own(), ALLOWED, "outside of containers", ""),
        (own(0, contained=True), UNKNOWN, "the processes of this container alone", "docker run --pid=host"),
        (own(0, 19, all_users=False), UNKNOWN, "in a user namespace", ""),
        (own(0, 19, contained=True, all_users=False), UNKNOWN, "in a user namespace", ""),
    ],
)
def test_what_a_container_takes_away(who, access, why, fix):
    check = judge_container(who)
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
    assert parse_hidepid(text) == expected


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
    check = judge_hidepid(hidden, group, who, frozenset((27, 1000)))
    assert check.access is access
    assert fix_of(check) == ("sudo mount -o remount,hidepid=0 /proc" if access is DENIED else "")


def test_a_filter_is_found_by_what_it_does_to_tpmon_itself():
    refused = Missing("Operation not permitted")
    assert judge_seccomp(own().status, 1).access is ALLOWED
    passed = judge_seccomp(own(filtered=2).status, 1)
    assert (passed.access, passed.why) == (
        ALLOWED,
        "a seccomp filter binds tpmon, but lets process_vm_readv pass",
    )
    held = judge_seccomp(own(filtered=2).status, refused)
    assert (held.access, fix_of(held)) == (DENIED, "docker run --cap-add SYS_PTRACE")
    assert "a seccomp filter forbids it" in held.why
    assert (
        "a sandbox does not have it" in judge_seccomp(own().status, Missing("Function not implemented")).why
    )


@pytest.mark.parametrize(
    ("modules", "attribute", "deny", "access", "fix"),
    [
        ("capability,yama,apparmor\n", b"unconfined\n", "", ALLOWED, ""),
        ("", b"", "", ALLOWED, ""),
        (
            "apparmor",
            b"docker-default (enforce)\n",
            "",
            UNKNOWN,
            "docker run --security-opt apparmor=unconfined",
        ),
        ("selinux", b"unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0", "0 0", ALLOWED, ""),
        ("selinux", b"system_u:system_r:container_t:s0:c1,c2\0", "0 0", UNKNOWN, ""),
        (
            "selinux",
            b"unconfined_u:unconfined_r:unconfined_t:s0\0",
            "1 1",
            DENIED,
            "sudo setsebool deny_ptrace off",
        ),
    ],
)
def test_what_a_security_profile_says(modules, attribute, deny, access, fix):
    check = judge_profile(modules, parse_profile(attribute), deny)
    assert (check.access, fix_of(check)) == (access, fix)


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
    check = judge_perf(paranoid, who)
    assert check.access is access
    assert fix_of(check) == ("sudo sysctl kernel.perf_event_paranoid=2" if access is DENIED else "")
    assert not check.needed


def test_fields_of_status_are_parsed():
    status = own(1000, 19, filtered=2).status
    assert parse_field(status, b"Seccomp") == b"2"
    assert parse_field(status, b"Nothing") == b""
    assert parse_capabilities(status) == 1 << 19
    assert parse_capabilities(status, b"CapPrm") == 0


# the files of a process


def test_each_file_of_an_own_process_may_be_read():
    with child("say('up')\nhear()") as one:
        for source in SOURCES:
            assert try_source(source, one.pid) == Trial(one.pid, ""), source.name
        assert try_memory(one.pid) == 1
        gone = one.pid
    for source in SOURCES:
        assert try_source(source, gone).gone


def test_a_process_that_ended_is_not_counted_as_a_refusal():
    source = SOURCES[0]

    def never(pid: int) -> tuple[str, str]:
        raise AssertionError(pid)

    assert judge_source(source, [Trial(1, ""), Trial(2, "No such file", gone=True)], never).access is ALLOWED
    assert judge_source(source, [Trial(2, "No such file", gone=True)], never).access is UNKNOWN


def test_it_is_said_of_which_processes_a_file_may_not_be_read():
    trials = [Trial(10, ""), *(Trial(pid, "Permission denied") for pid in (11, 12, 13, 14))]
    check = judge_source(SOURCES[3], trials, lambda pid: (f"it is {pid}", f"sudo tpmon attach {pid}"))
    assert (check.name, check.access, check.needed) == ("environ", DENIED, True)
    assert check.why.endswith("permission denied of 4 of 5 processes (11, 12, 13, ...); it is 11")
    assert check.fix == "sudo tpmon attach 11"


STANDING = Standing(0, 1000, 1000, may_ptrace=False, dumpable=True)


@pytest.mark.parametrize(
    ("standing", "why", "fix"),
    [
        (replace(STANDING, uid=1001), "belongs to uid 1001, tpmon runs as 1000", "sudo tpmon attach 7"),
        (replace(STANDING, dumpable=False), "not dumpable", "sudo tpmon attach 7"),
        (STANDING, "more capabilities than tpmon", "sudo tpmon attach 7"),
        (replace(STANDING, own_uid=0), "root without CAP_SYS_PTRACE", "docker run --cap-add SYS_PTRACE"),
        (replace(STANDING, own_uid=0, may_ptrace=True), "a sandbox forbids it", ""),
        (replace(STANDING, own_uid=0, may_ptrace=True, all_users=False), "run tpmon outside of it", ""),
    ],
)
def test_why_a_file_may_not_be_read(standing, why, fix):
    said = explain_read(standing, "7")
    assert why in said[0]
    assert said[1] == fix


def test_a_fake_process_tells_what_decides(tmp_path):
    proc = FakeProc(tmp_path / "proc")
    proc.add(50, 1, ("python", "train.py"), uid=4711)
    (proc.path / "self").mkdir()
    (proc.path / "self" / "status").write_bytes(own().status)
    (proc.path / "sys" / "kernel" / "yama").mkdir(parents=True)
    (proc.path / "sys" / "kernel" / "yama" / "ptrace_scope").write_text("2\n")
    standing = read_standing(50, proc.proc)
    assert (standing.ptrace_scope, standing.uid, standing.may_ptrace) == (2, 4711, False)
    # The files belong to whoever runs this test, as those of a process that protects itself belong to root.
    assert read_dumpable(50, proc.proc) is False
    assert not is_known(read_dumpable(51, proc.proc))


HOST = "node-07"
LOOK = DumpRound(HOST, None, 0, (), (), 0.0, 14.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "access", "fix"),
    [
        (ErrorKind.DENIED, DENIED, "the fix"),
        (ErrorKind.NO_SPY, ABSENT, "pip install --upgrade py-spy"),
        (ErrorKind.UNKNOWN_PYTHON, DENIED, "pip install --upgrade py-spy"),
        (ErrorKind.FAILED, DENIED, "tpmon dump 70"),
        (ErrorKind.LATE, UNKNOWN, "tpmon dump 70"),
        (ErrorKind.BUSY, UNKNOWN, "tpmon dump 70"),
        (ErrorKind.TRACED, UNKNOWN, ""),
        (ErrorKind.GONE, UNKNOWN, ""),
    ],
)
def test_what_a_dump_of_one_process_says(kind, access, fix):
    error = DumpError(HOST, 70, Role.RANK, 0, NOT_APPLICABLE, kind, "the reason")
    check = judge_stacks(replace(LOOK, errors=(error,)), "the fix")
    assert (check.access, check.why, fix_of(check), check.needed) == (access, "the reason", fix, True)
    assert judge_stacks(LOOK, "").access is ALLOWED


# the job


def test_listening_ports_are_parsed_and_judged():
    table = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:1F90 0100007F:6D7C 01 00000000:00000000\n"
        "   2: torn\n"
    )
    six = "  sl  local\n   0: 00000000000000000000000000000000:6D7C 0000:0000 0A 0:0\n"
    assert parse_listeners(table) == {28028}
    assert parse_listeners(six) == {28028}
    assert parse_listeners("") == frozenset()
    assert judge_ras(frozenset((28028,)), True, 7).access is ALLOWED
    inside = judge_ras(frozenset((28028,)), False, 7)
    assert (inside.access, fix_of(inside)) == (DENIED, "sudo nsenter --net --target 7 tpmon attach 7")
    assert judge_ras(frozenset((80,)), True, 7).access is ABSENT
    moved = judge_ras(frozenset((28028,)), True, 7, 9000)
    assert (moved.access, moved.why.partition(":")[0]) == (ABSENT, "nothing listens on port 9000")
    assert judge_ras(frozenset((9000,)), True, 7, 9000).access is ALLOWED
    off = judge_ras(frozenset((28028,)), True, 7, Missing("NCCL_RAS_ENABLE=0 turned it off"))
    assert (off.access, off.why) == (ABSENT, "NCCL's status port: NCCL_RAS_ENABLE=0 turned it off")
    assert judge_ras(Missing("no such process"), True, 7).access is UNKNOWN


def test_cards_that_the_job_holds_and_nvml_does_not_show():
    both = frozenset((0, 3))
    assert judge_cards(frozenset(), both, "", 7).access is ABSENT
    assert judge_cards(frozenset((3,)), both, "", 7).access is ALLOWED
    hidden = judge_cards(frozenset((3, 4)), both, "", 7)
    assert hidden.access is DENIED
    assert hidden.why.endswith("but NVML does not show /dev/nvidia4 to this shell")
    assert hidden.fix == "docker run --gpus all"
    assert (
        judge_cards(frozenset((4,)), both, "991", 7).fix == "srun --overlap --pty --jobid=991 tpmon attach 7"
    )
    assert judge_cards(Missing("permission denied"), both, "", 7).access is UNKNOWN
    assert judge_cards(both, Missing("NVML does not answer"), "", 7).access is UNKNOWN
    assert parse_step(b"A=1\0SLURM_JOB_ID=991\0B=2\0") == "991"
    assert parse_step(b"MY_SLURM_JOB_ID=991\0") == ""


def test_a_job_in_a_container_below_is_said():
    assert judge_inside((7,), 7).why == "the job runs in the same PID namespace as tpmon"
    assert "7 is 1 inside" in judge_inside((7, 1), 7).why


# NVML


def make_card(index: int = 0, reason: str = "", lost: str = "", minor: Known[int] = 0) -> CardLine:
    identity = Identity("H100", minor, 1980.0, 2619.0, 5, 16, 90.0)
    return CardLine(
        index,
        f"GPU-{index}",
        0,
        1.0,
        lost or NOT_APPLICABLE,
        blank_fast(reason),
        NOT_APPLICABLE,
        NOT_APPLICABLE,
        identity,
    )


def make_answer(count: int, *cards: CardLine, failure: FailureLine | None = None) -> NvmlAnswer:
    if failure is not None:
        return NvmlAnswer(Missing("none"), failure, ())
    return NvmlAnswer(DriverLine("570.1", "12.8", count), Missing("none"), cards)


@pytest.mark.parametrize(
    ("answer", "loaded", "access", "why", "fix"),
    [
        (make_answer(1, make_card()), True, ALLOWED, "driver 570.1: 1 card answers", ""),
        (make_answer(2, make_card(), make_card(1)), True, ALLOWED, "2 cards answer", ""),
        (make_answer(0), True, DENIED, "shows no card to this shell", "docker run --gpus all"),
        (
            make_answer(2, make_card()),
            True,
            UNKNOWN,
            "1 of 2 cards gave no answer in time",
            "sudo dmesg | grep -i xid",
        ),
        (
            make_answer(1, make_card(lost="GPU is lost")),
            True,
            UNKNOWN,
            "card 0: GPU is lost",
            "sudo dmesg | grep",
        ),
        (
            make_answer(1, make_card(reason="no permission")),
            True,
            DENIED,
            "no permission for util",
            "sudo tpmon",
        ),
        (
            make_answer(0, failure=FailureLine(12, "libnvidia-ml.so.1 not found")),
            False,
            ABSENT,
            "no NVIDIA",
            "",
        ),
        (
            make_answer(0, failure=FailureLine(12, "x")),
            True,
            DENIED,
            "(a container without GPUs?)",
            "docker run --gpus",
        ),
        (make_answer(0, failure=FailureLine(9, "not loaded")), False, ABSENT, "no NVIDIA driver", ""),
        (
            make_answer(0, failure=FailureLine(18, "driver and library differ")),
            True,
            DENIED,
            "was updated",
            "sudo reboot",
        ),
        (
            make_answer(0, failure=FailureLine(4, "no permission")),
            True,
            DENIED,
            "/dev/nvidiactl",
            "sudo tpmon",
        ),
        (
            make_answer(0, failure=FailureLine(0, "the nvidia-ml-py package")),
            True,
            DENIED,
            "package",
            "pip install",
        ),
        (
            NvmlAnswer(Missing("no answer"), Missing("none"), ()),
            True,
            UNKNOWN,
            "no answer",
            "sudo dmesg | grep -i xid",
        ),
    ],
)
def test_what_nvml_says(answer, loaded, access, why, fix):
    check = judge_nvml(answer, loaded)
    assert check.access is access
    assert why in check.why
    assert fix_of(check).startswith(fix)
    assert bool(fix_of(check)) == bool(fix)


def test_minors_are_those_of_the_cards_that_said_one():
    assert list_minors(make_answer(2, make_card(minor=3), make_card(1, minor=Missing("?")))) == {3}
    assert not is_known(list_minors(make_answer(0, failure=FailureLine(12, "x"))))


def test_the_child_that_asks_nvml_has_a_deadline_and_may_fail(tmp_path):
    begun = time.monotonic()
    late = ask_nvml(0.3, ("sleep", "60"))
    assert time.monotonic() - begun < 20
    assert isinstance(late.driver, Missing)
    assert "no answer in time" in late.driver.reason
    ended = ask_nvml(20.0, ("true",))
    assert isinstance(ended.driver, Missing)
    assert "ended without a word (exit 0)" in ended.driver.reason
    garbage = tmp_path / "garbage"
    garbage.write_text("#!/bin/sh\necho garbage\necho '{\"driver\": 3}'\n")
    garbage.chmod(0o755)
    assert not is_known(ask_nvml(20.0, (str(garbage),)).driver)
    assert not is_known(ask_nvml(20.0, ("/no/such/program",)).driver)


def test_counters_of_profilers():
    text = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: %d\nDmaRemapPeerMmio: 1\n"
    assert parse_admin_only(text % 1) is True
    assert parse_admin_only(text % 0) is False
    assert not is_known(parse_admin_only(""))
    closed = judge_counters(True, privileged=False)
    assert closed.access is DENIED
    assert "NVreg_RestrictProfilingToAdminUsers=0" in fix_of(closed)
    assert judge_counters(True, privileged=True).access is ALLOWED
    assert judge_counters(False, privileged=False).access is ALLOWED
    assert judge_counters(Missing("no driver"), privileged=False).access is ABSENT


# programs


def outcome(output: bytes = b"", errors: bytes = b"", status: int = 0, *, late: bool = False) -> Outcome:
    return Outcome(output, errors, status, 0.0, 0.0, late, flooded=False)


@pytest.mark.parametrize(
    ("path", "said", "access", "why", "fix"),
    [
        ("/bin/py-spy", outcome(b"py-spy 0.4.1\n"), ALLOWED, "py-spy 0.4.1 at /bin/py-spy", ""),
        (
            "/bin/py-spy",
            outcome(b"py-spy 0.3.14\n"),
            ALLOWED,
            "ask for 0.4 or newer",
            "pip install py-spy --upgrade",
        ),
        (Missing("py-spy is not installed"), outcome(), ABSENT, "not installed", "pip install py-spy"),
        (
            "/bin/py-spy",
            Missing("Exec format error"),
            DENIED,
            "cannot be started: Exec format",
            "pip install py-spy",
        ),
        (
            "/bin/py-spy",
            outcome(b"\x1b[31mgarbage"),
            DENIED,
            "does not work: ?[31mgarbage",
            "pip install py-spy",
        ),
        ("/bin/py-spy", outcome(status=3), DENIED, "does not work: status 3", "pip install py-spy"),
        (
            "/bin/py-spy",
            outcome(errors=b"no libc\nx", status=1),
            DENIED,
            "does not work: no libc",
            "pip install",
        ),
        ("/bin/py-spy", outcome(late=True), UNKNOWN, "no answer within 5 s", "/bin/py-spy --version"),
    ],
)
def test_whether_py_spy_works(path, said, access, why, fix):
    check = judge_spy(path, said, "")
    assert (check.access, check.needed) == (access, True)
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
    assert judge_log(131072).access is ALLOWED
    closed = judge_log(Missing("Operation not permitted"))
    assert (closed.access, fix_of(closed)) == (DENIED, "sudo tpmon bundle PID")


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
    def hang() -> Check:
        time.sleep(30)
        raise AssertionError("nobody waits for this")

    def fail() -> Check:
        raise ZeroDivisionError("by design")

    def refuse() -> Check:
        raise PermissionError(1, "Operation not permitted")

    good = make_check("good", ALLOWED, "fine")
    plans = (
        Plan("hangs", hang, 0.3, needed=True),
        Plan("fails", fail, 5.0),
        Plan("refused", refuse, 5.0),
        Plan("good", lambda: good, 5.0),
    )
    begun = time.monotonic()
    hung, failed, refused, last = run_plans(plans)
    assert time.monotonic() - begun < 20
    assert (hung.access, hung.why, hung.needed) == (UNKNOWN, "no answer within 0.3 s", True)
    assert (failed.access, failed.why) == (UNKNOWN, "the check failed: ZeroDivisionError: by design")
    assert refused.why == "the check failed: PermissionError: Operation not permitted"
    assert last is good
