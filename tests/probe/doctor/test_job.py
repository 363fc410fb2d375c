"""What is said of the files, memory and stacks of a process, of ports, cards and containers, and of NVML."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.children import child
from tests.permissions import ABSENT, ALLOWED, DENIED, UNKNOWN, fix_of, own
from tpmon.model.dump import DumpError, DumpRound, ErrorKind
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.own_command import install_command
from tpmon.probe.doctor.job import (
    SOURCES,
    Trial,
    check_groups,
    check_ras,
    explain_read,
    judge_cards,
    judge_inside,
    judge_ras,
    judge_source,
    judge_stacks,
    parse_listeners,
    parse_step,
    try_source,
)
from tpmon.probe.doctor.nvml import (
    NvmlAnswer,
    ask_nvml,
    find_cards,
    judge_counters,
    judge_nvml,
    list_minors,
    parse_admin_only,
)
from tpmon.probe.gpu.nvml import blank_fast
from tpmon.probe.gpu.nvml_queries import NO_PERMISSION, describe_code
from tpmon.probe.gpu.wire import CardIdentity, CardLine, DriverLine, FailureLine
from tpmon.probe.proc import access as stack_refusal
from tpmon.probe.proc.access import (
    AccessStanding,
    Caller,
    RuntimeKind,
    find_unreadable,
    judge_file,
    parse_pythons,
    read_dumpable,
    read_refusal,
    read_standing,
)
from tpmon.probe.proc.memory import try_memory
from tpmon.probe.records.servers import PORT
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy.failure import SpyOutcome


def test_each_file_of_an_own_process_may_be_read():
    with child("say('up')\nhear()") as one:
        for source in SOURCES:
            assert try_source(source, one.pid) == Trial(one.pid, ""), source.name
        assert try_memory(one.pid) == 1
        gone = one.pid
    for source in SOURCES:
        assert try_source(source, gone).gone


def test_it_is_said_of_which_processes_a_file_may_not_be_read_and_one_that_ended_is_not_counted():
    gone = Trial(2, "No such file", gone=True)
    assert judge_source(SOURCES[0], [Trial(1, ""), gone], pytest.fail).access is ALLOWED
    assert judge_source(SOURCES[0], [gone], pytest.fail).access is UNKNOWN
    trials = [Trial(10, ""), *(Trial(pid, "Permission denied") for pid in (11, 12, 13, 14))]
    check = judge_source(SOURCES[3], trials, lambda pid: (f"it is {pid}", f"sudo tpmon attach {pid}"))
    assert (check.name, check.access) == ("environ", DENIED)
    assert check.why.endswith("permission denied of 4 of 5 processes (11, 12, 13, ...); it is 11")
    assert check.fix == "sudo tpmon attach 11"


STANDING = AccessStanding(0, 1000, 1000, may_ptrace=False, dumpable=True)
ROOT = replace(STANDING, own_uid=0, uid=0, gid=100, caller=Caller(0, root_may=False))
ENTER, ATTACH = "docker exec -it", "CONTAINER tpmon attach 7  # on the host"
AS_USER = "--reuid=1000 --regid=100 --clear-groups"
INSIDE = Caller(1000, RuntimeKind.ENGINE, root_may=False)


@pytest.mark.parametrize(
    ("standing", "why", "fix"),
    [
        (replace(STANDING, uid=1001), "belongs to uid 1001, tpmon runs as 1000", "sudo tpmon attach 7"),
        (replace(STANDING, dumpable=False), "not dumpable", "sudo tpmon attach 7"),
        (STANDING, "more capabilities than tpmon", "sudo tpmon attach 7"),
        (replace(ROOT, uid=1000), "belongs to uid 1000, tpmon runs as 0", f"setpriv {AS_USER} tpmon attach 7"),
        (replace(STANDING, uid=1001, caller=INSIDE), "belongs to uid 1001", f"{ENTER} -u 1001 {ATTACH}"),
        (ROOT, "root without CAP_SYS_PTRACE, and the process has more capabilities", ""),
        (replace(ROOT, caller=replace(INSIDE, uid=0)), "root without CAP", f"{ENTER} --privileged -u 0 {ATTACH}"),
        (replace(ROOT, may_ptrace=True), "a sandbox forbids it", ""),
        (replace(ROOT, may_ptrace=True, all_users=False), "run tpmon outside of it", ""),
    ],
)
def test_why_a_file_may_not_be_read(standing, why, fix):
    said = explain_read(standing, 7)
    assert why in said[0]
    assert said[1] == fix
    assert standing.own_uid or "sudo" not in said[1]


def test_a_fake_process_tells_what_decides(fake):
    fake.add(50, 1, ("python", "train.py"), uid=4711)
    (fake.path / "self").mkdir()
    (fake.path / "self" / "status").write_bytes(own().status)
    (fake.path / "sys" / "kernel" / "yama").mkdir(parents=True)
    (fake.path / "sys" / "kernel" / "yama" / "ptrace_scope").write_text("2\n")
    standing = read_standing(50, fake.proc)
    assert (standing.ptrace_scope, standing.uid, standing.may_ptrace) == (2, 4711, False)
    # The files belong to whoever runs this test, as those of a process that protects itself belong to root.
    assert read_dumpable(50, fake.proc) is False
    assert not is_known(read_dumpable(51, fake.proc))


HOST = "node-07"
INSTALL = "pipx runpip tpmon install -U py-spy"
LOOK = DumpRound(HOST, None, 0, (), (), 0.0, 14.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "access", "fix"),
    [
        (ErrorKind.DENIED, DENIED, "the fix"),
        (ErrorKind.NO_SPY, ABSENT, INSTALL),
        (ErrorKind.UNKNOWN_PYTHON, DENIED, INSTALL),
        (ErrorKind.FAILED, DENIED, "tpmon dump 70"),
        (ErrorKind.LATE, UNKNOWN, "tpmon dump 70"),
        (ErrorKind.BUSY, UNKNOWN, "tpmon dump 70"),
        (ErrorKind.TRACED, UNKNOWN, ""),
        (ErrorKind.GONE, UNKNOWN, ""),
    ],
)
def test_what_a_dump_of_one_process_says(kind, access, fix):
    error = DumpError(HOST, 70, Role.RANK, 0, NOT_APPLICABLE, kind, "the reason")
    check = judge_stacks(replace(LOOK, errors=(error,)), "the fix", INSTALL)
    assert (check.access, check.why, fix_of(check)) == (access, "the reason", fix)
    assert judge_stacks(LOOK, "", "").access is ALLOWED


# the job

ENTER_NETWORK = "sudo nsenter --net --target 7 tpmon attach 7"


def test_listening_ports_and_the_step_of_a_job_are_parsed():
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
    assert parse_step(b"A=1\0SLURM_JOB_ID=991\0B=2\0") == "991"
    assert parse_step(b"MY_SLURM_JOB_ID=991\0") == ""


OFF = Missing("NCCL_RAS_ENABLE=0 turned it off")


@pytest.mark.parametrize(
    ("ports", "same_network", "port", "access", "why"),
    [
        ({28028}, True, PORT, ALLOWED, "NCCL's status port 28028 is open"),
        ({9000}, True, 9000, ALLOWED, "NCCL's status port 9000 is open"),
        ({28028}, False, PORT, DENIED, "network namespace of the job's own"),
        ({80}, True, PORT, ABSENT, "nothing listens on port 28028: "),
        ({28028}, True, 9000, ABSENT, "nothing listens on port 9000: "),
        ({28028}, True, OFF, ABSENT, "NCCL's status port: NCCL_RAS_ENABLE=0 turned it off"),
        (Missing("no such process"), True, PORT, UNKNOWN, "no such process"),
    ],
)
def test_whether_nccls_status_port_may_be_asked(ports, same_network, port, access, why):
    check = judge_ras(ports, same_network, 7, port)
    assert (check.access, fix_of(check)) == (access, ENTER_NETWORK if access is DENIED else "")
    assert why in check.why


def test_a_kernel_without_ipv6_has_one_table_of_listeners(tmp_path):
    (tmp_path / "9" / "net").mkdir(parents=True)
    for pid in ("9", "self"):
        (tmp_path / pid / "ns").mkdir(parents=True, exist_ok=True)
        (tmp_path / pid / "ns" / "net").symlink_to("net:[1]")
    (tmp_path / "9" / "environ").write_bytes(b"")
    table = b"  sl local\n   0: 0100007F:6D7C 00000000:0000 0A 0 0 0\n   1: \xff\n"
    (tmp_path / "9" / "net" / "tcp").write_bytes(table)
    assert check_ras(9, str(tmp_path)).access is ALLOWED
    (tmp_path / "9" / "net" / "tcp").unlink()
    assert check_ras(9, str(tmp_path)).access is UNKNOWN


BOTH = frozenset((0, 3))


@pytest.mark.parametrize(
    ("held", "shown", "access", "why", "fix"),
    [
        (frozenset(), BOTH, ABSENT, "the job holds no NVIDIA card open", ""),
        (frozenset((3,)), BOTH, ALLOWED, "the job holds /dev/nvidia3, and NVML shows it all", ""),
        (frozenset((3, 4)), BOTH, DENIED, "but NVML does not show /dev/nvidia4 to this shell", "docker run --gpus all"),
        (Missing("permission denied"), BOTH, UNKNOWN, "permission denied", ""),
        (BOTH, Missing("NVML does not answer"), UNKNOWN, "NVML does not answer", ""),
    ],
)
def test_cards_that_the_job_holds_and_nvml_does_not_show(held, shown, access, why, fix):
    check = judge_cards(held, shown, "docker run --gpus all")
    assert (check.access, fix_of(check)) == (access, fix)
    assert check.why.endswith(why)


@pytest.mark.parametrize(
    ("ns_pids", "same_network", "access", "words"),
    [
        ((7,), True, ALLOWED, "the job runs in the same PID namespace as tpmon"),
        ((7, 1), True, ALLOWED, "7 is 1 inside"),
        ((7, 1), Missing("denied"), ALLOWED, "7 is 1 inside"),
        # The panes of connections point here where they are not read for that.
        ((7,), False, DENIED, "in the same PID namespace as tpmon; its network namespace is its own"),
        ((7, 1), False, DENIED, "7 is 1 inside"),
    ],
)
def test_a_job_in_a_container_below_or_with_a_network_of_its_own_is_said(ns_pids, same_network, access, words):
    check = judge_inside(ns_pids, 7, same_network)
    assert (check.access, fix_of(check)) == (access, "" if access is ALLOWED else ENTER_NETWORK)
    assert words in check.why


# NVML


def make_card(index: int = 0, reason: str = "", lost: str = "", minor: Known[int] = 0) -> CardLine:
    identity = CardIdentity("H100", minor, 1980.0, 2619.0, 5, 16, 90.0, True)
    no, fast = NOT_APPLICABLE, blank_fast(reason)
    return CardLine(index, f"GPU-{index}", 0, 1.0, lost or no, fast, no, no, identity)


def make_answer(count: int, *cards: CardLine) -> NvmlAnswer:
    return NvmlAnswer(DriverLine("570.1", "12.8", count), Missing("none"), cards)


def fail(code: int, reason: str = "x") -> NvmlAnswer:
    return NvmlAnswer(Missing("none"), FailureLine(code, reason), ())


LOST, REFUSED = make_card(lost="GPU is lost"), make_card(reason=describe_code(NO_PERMISSION))
SILENT = "1 of 2 cards gave no answer in time"
XIDS = "sudo dmesg | grep -i xid"


@pytest.mark.parametrize(
    ("answer", "loaded", "access", "why", "fix"),
    [
        (make_answer(1, make_card()), True, ALLOWED, "driver 570.1: 1 card answers", ""),
        (make_answer(2, make_card(), make_card(1)), True, ALLOWED, "2 cards answer", ""),
        (make_answer(0), True, DENIED, "shows no card to this shell", "srun --overlap"),
        (make_answer(2, make_card()), True, UNKNOWN, f"{SILENT}: persistence mode may be off", "sudo nvidia-smi -pm 1"),
        (make_answer(2, LOST), True, UNKNOWN, SILENT, XIDS),
        (make_answer(1, LOST), True, UNKNOWN, "card 0: GPU is lost", "sudo dmesg | grep"),
        (make_answer(1, REFUSED), True, DENIED, "no permission for util", "sudo tpmon"),
        (fail(12, "libnvidia-ml.so.1 not found"), False, ABSENT, "no NVIDIA", ""),
        (fail(12), True, DENIED, "the driver's library package is missing", "ldconfig -p | grep libnvidia-ml"),
        (fail(9, "not loaded"), False, ABSENT, "no NVIDIA driver", ""),
        (fail(18, "driver and library differ"), True, DENIED, "was updated", "sudo reboot"),
        (fail(4, "no permission"), True, DENIED, "/dev/nvidiactl", "sudo tpmon"),
        (fail(0, "the nvidia-ml-py package"), True, DENIED, "package", install_command("nvidia-ml-py")),
        (NvmlAnswer(Missing("no answer"), Missing("none"), ()), True, UNKNOWN, "no answer", XIDS),
    ],
)
def test_what_nvml_says(answer, loaded, access, why, fix):
    check = judge_nvml(answer, loaded, Caller(), "srun --overlap")
    assert check.access is access
    assert why in check.why
    assert fix_of(check).startswith(fix)
    assert bool(fix_of(check)) == bool(fix)


def test_cards_that_this_shell_does_not_see_are_looked_for_where_they_can_be():
    inside = Caller(0, RuntimeKind.ENGINE, root_may=False)
    step = "srun --overlap --pty --jobid=991 tpmon attach 7"
    assert find_cards(Caller(), "991", "7") == find_cards(inside, "991", "7") == step
    assert find_cards(inside, "", "7") == "docker run --gpus all"
    assert find_cards(Caller(), "", "7") == "lspci | grep -i nvidia; sudo dmesg | grep -i nvrm"
    missing = judge_nvml(fail(12), True, inside, "")
    assert (missing.fix, "(a container without GPUs?)" in missing.why) == ("docker run --gpus all", True)
    for card in (REFUSED, LOST):
        assert "sudo" not in fix_of(judge_nvml(make_answer(1, card), True, Caller(0), ""))
    assert list_minors(make_answer(2, make_card(minor=3), make_card(1, minor=Missing("?")))) == {3}
    assert not is_known(list_minors(fail(12)))


def test_a_job_in_no_control_group_misses_nothing_and_one_out_of_view_needs_the_hosts_namespace(tree):
    tree.process(7, "0::/\n")
    idle = check_groups((7,), tree.proc)
    assert (idle.access, fix_of(idle)) == (ABSENT, "")
    tree.mount("cg", "nsdelegate", version=2)
    tree.process(7, "0::/../other\n")
    beside = check_groups((7,), tree.proc)
    assert beside.access is ABSENT
    assert fix_of(beside) in (
        "",  # no engine is around this machine
        "docker run --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:ro  # at its next start",
    )
    assert "outside this container's view; seen from the job's own container" in beside.why


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


NAP = "say('up')\nhear()"
MAPS = b"""\
55d0-55d1 r--p 00000000 08:01 11 /home/u/env/bin/python3.11
55d1-55d2 r-xp 00001000 08:01 11 /home/u/env/bin/python3.11
7f00-7f01 r-xp 00000000 08:01 12 /home/u/my env/lib/libpython3.11.so.1.0
7f02-7f03 r-xp 00000000 08:01 13 /usr/lib/libc.so.6
7f04-7f05 r-xp 00000000 08:01 14 /opt/lib/libpython3.10.so.1.0 (deleted)
7f06-7f07 rw-p 00000000 00:00 0
"""
COMPLAINT = b"Permission Denied: Try running again\nError: Permission denied (os error 13)\n"
AS_ROOT = AccessStanding(Missing("no Yama"), 0, 1000, may_ptrace=True, gid=100, caller=Caller(0))


@pytest.fixture
def closed(monkeypatch):
    """Refuse to open every program and library of Python, as a FUSE mount does to root."""
    really = os.open

    def refuse(path, flags, *more):
        if "/root/" in str(path) and "python" in Path(path).name:
            raise PermissionError(13, "Permission denied")
        return really(path, flags, *more)

    monkeypatch.setattr(stack_refusal.os, "open", refuse)


@pytest.mark.usefixtures("closed")
def test_the_file_is_named_and_the_user_who_may_read_it(monkeypatch):
    monkeypatch.setattr(stack_refusal, "read_standing", lambda _pid, _proc: AS_ROOT)
    outcome = SpyOutcome(b"", COMPLAINT, 1, 0.0, 0.0, late=False, flooded=False)
    with child(NAP) as one:
        path = find_unreadable(one.pid)
        refused = read_refusal(one.pid)
        failure = spy_failure.explain_outcome(one.pid, outcome, 1.0)
    assert "python" in Path(path).name
    assert refused.why == f"py-spy may not read {path} as root"
    assert refused.fix == f"setpriv --reuid=1000 --regid=100 --clear-groups tpmon attach {one.pid}"
    assert failure.kind is ErrorKind.DENIED
    assert failure.reason == f"not permitted: {refused.why} (doctor: stacks); {refused.fix}"


def test_the_files_of_python_are_found_and_those_that_may_be_read_are_not_blamed(monkeypatch):
    assert parse_pythons(MAPS) == ("/home/u/env/bin/python3.11", "/home/u/my env/lib/libpython3.11.so.1.0")
    assert parse_pythons(b"") == ()
    monkeypatch.setattr(stack_refusal, "read_standing", lambda _pid, _proc: AS_ROOT)
    with child(NAP) as one:
        assert find_unreadable(one.pid) == ""
        assert "a sandbox forbids it although" in read_refusal(one.pid).why
    assert find_unreadable(one.pid) == ""
    # Who is the job's user already is not sent to itself.
    refusal = judge_file(AccessStanding(0, 1000, 1000, may_ptrace=False), "/x/python3", 7)
    assert (refusal.why, refusal.fix) == ("py-spy may not read /x/python3 as uid 1000", "")
