"""Programs that guard their files, forget modules, recurse, or hold a Python under another name."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from tests.inject.targets import find, looping, refuse, require_mounts, running
from tests.inject.test_late_hook import python  # noqa: F401
from tpmon.foreign_file import own
from tpmon.inject.late_hook import LateHook
from tpmon.inject.payload import make_payload
from tpmon.inject.refusal import RefusalReason
from tpmon.model.process import Identity
from tpmon.model.results.late import LateState
from tpmon.probe.base.procread import read_stat, read_table

TURNS = """
from select import select
print("ready", flush=True)
while not select([0], [], [], 0)[0]:
    sum(range(300))
    turn()
print("ended", flush=True)
"""

GUARD = """
import builtins, os
def guard(place, name):
    before = getattr(place, name)
    def refuse(path, *more, **named):
        if "tpmon" in str(path):
            raise PermissionError(path)
        return before(path, *more, **named)
    setattr(place, name, refuse)
def turn():
    pass
"""
DROPS = """
import sys
def turn():
    for name in list(sys.modules):
        if name.startswith("tpmon"):
            sys.modules.pop(name, None)
"""
ODD = {
    "open of its own": GUARD + "guard(builtins, 'open')",
    "os.open of its own": GUARD + "guard(os, 'open')\nguard(os, 'rename')",
    "drops modules": DROPS,
}


@pytest.mark.parametrize("name", ODD)
def test_it_goes_in_and_out_and_nothing_is_raised_in_the_program(python, name):  # noqa: F811
    with looping(python, ODD[name] + TURNS) as job:
        process = find(job)
        for _ in range(2):
            assert LateHook(process).install().state is LateState.INSTALLED
            assert LateHook(process).remove().state is LateState.REMOVED
        assert LateHook(process).remove().state is LateState.ABSENT
        assert job.communicate(timeout=60) == ("ended\n", "")


DEEP = """
import sys
def call(left):
    return call(left - 1) if left else loop()
def turn():
    pass
def loop():
    exec(program, globals())
    return 0
program = '''PROGRAM'''
call(sys.getrecursionlimit() - 60)
""".replace("PROGRAM", TURNS)


def test_a_program_that_is_deep_in_a_recursion_is_left_alone(python):  # noqa: F811
    with looping(python, DEEP) as job:
        assert refuse(find(job), deadline_s=0.5) is RefusalReason.BUSY
        assert job.communicate(timeout=60) == ("ended\n", "")


def test_a_program_with_few_descriptors_left():
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 200))\ndef turn():\n    pass\n"
    with looping(program=limit + TURNS) as job:
        assert refuse(find(job)) is RefusalReason.DESCRIPTORS
        assert LateHook(find(job)).remove().state is LateState.ABSENT
        resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (200, 200))
        assert LateHook(find(job)).install().state is LateState.INSTALLED
        assert job.communicate(timeout=60) == ("ended\n", "")


def test_where_one_place_is_full_the_next_is_taken():
    require_mounts()
    mounts = "mount --make-rprivate / && mount -t tmpfs -o size=16k none /tmp"
    loop = f"def turn():\n    pass\n{TURNS}"
    command = ["unshare", "-mp", "--fork", "--kill-child", "sh", "-c", f"{mounts} && exec $0 -c '{loop}'"]
    with running([*command, os.path.realpath(sys.executable)]) as job:
        (pid,) = [one.pid for one in read_table().values() if one.parent == job.pid]
        hook = LateHook(Identity(pid, read_stat(pid).start_ticks))
        assert hook.install().state is LateState.INSTALLED
        assert hook.remove().state is LateState.REMOVED
        assert os.listdir(f"/proc/{pid}/root/tmp") == []


@pytest.mark.parametrize(("name", "runs"), [("python3.9", True), ("python", True), ("train", False)])
def test_only_a_program_that_is_named_as_a_python_compiles(tmp_path, name, runs):
    """Another that holds a Python, a frozen training, would train a second time."""
    program, ran = tmp_path / name, tmp_path / "ran"
    program.write_text(f"#!/bin/sh\necho > {ran}\n")
    program.chmod(0o755)
    place = tmp_path / "proc" / "7"
    (place / "ns").mkdir(parents=True)
    (place / "exe").symlink_to(program)
    for one in ("7", "self"):
        (tmp_path / "proc" / one / "ns").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / one / "ns" / "mnt").symlink_to("mnt:[1]")
    make_payload(7, (3, 9), own(), str(tmp_path / "proc"))
    assert ran.exists() is runs
