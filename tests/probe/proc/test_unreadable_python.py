"""A file of the target's Python that py-spy may not open is no process that may not be looked into."""

import os
from pathlib import Path

import pytest

from tests.children import child
from tpmon.model.dump import ErrorKind
from tpmon.model.known import Missing
from tpmon.probe.proc import access as stack_refusal
from tpmon.probe.proc.access import AccessStanding, Caller, find_unreadable, judge_file, parse_pythons, read_refusal
from tpmon.probe.spy import failure as spy_failure
from tpmon.probe.spy.failure import SpyOutcome

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
ROOT = AccessStanding(Missing("no Yama"), 0, 1000, may_ptrace=True, gid=100, caller=Caller(0))


def test_the_files_of_python_are_found_in_the_maps():
    assert parse_pythons(MAPS) == ("/home/u/env/bin/python3.11", "/home/u/my env/lib/libpython3.11.so.1.0")
    assert parse_pythons(b"") == ()


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
    monkeypatch.setattr(stack_refusal, "read_standing", lambda _pid, _proc: ROOT)
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


def test_files_that_may_be_read_are_not_blamed(monkeypatch):
    monkeypatch.setattr(stack_refusal, "read_standing", lambda _pid, _proc: ROOT)
    with child(NAP) as one:
        assert find_unreadable(one.pid) == ""
        assert "a sandbox forbids it although" in read_refusal(one.pid).why
    assert find_unreadable(one.pid) == ""


def test_who_is_the_jobs_user_already_is_not_sent_to_itself():
    own = AccessStanding(0, 1000, 1000, may_ptrace=False)
    assert judge_file(own, "/x/python3", 7).fix == ""
    assert judge_file(own, "/x/python3", 7).why == "py-spy may not read /x/python3 as uid 1000"
