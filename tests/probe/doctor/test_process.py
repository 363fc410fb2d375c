"""Whether the files, the memory and the stacks of a process may be read, and why not."""

from dataclasses import replace

import pytest

from tests.children import child
from tests.fake_proc import FakeProc
from tests.permissions import ABSENT, ALLOWED, DENIED, UNKNOWN, fix_of, own
from tpmon.model.dump import DumpError, DumpRound, ErrorKind
from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.model.process import Role
from tpmon.probe.doctor.job import SOURCES, Trial, explain_read, judge_source, judge_stacks, try_source
from tpmon.probe.proc.access import AccessStanding, Caller, RuntimeKind, read_dumpable, read_standing
from tpmon.probe.proc.memory import try_memory


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

    def never(pid):
        raise AssertionError(pid)

    assert judge_source(source, [Trial(1, ""), Trial(2, "No such file", gone=True)], never).access is ALLOWED
    assert judge_source(source, [Trial(2, "No such file", gone=True)], never).access is UNKNOWN


def test_it_is_said_of_which_processes_a_file_may_not_be_read():
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
