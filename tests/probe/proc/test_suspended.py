"""Frozen control groups and traced processes, in fixture trees and where this machine makes some."""

import os
import subprocess
import sys

import pytest

from tests.cgroups import Tree
from tests.frames import make_process, make_worker
from tests.freezing import freezing
from tests.judging import make_looks
from tests.waiting import wait_until
from tests.waits import wait_of
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Freezer, Tracer
from tpmon.model.text.job_words import say_stop
from tpmon.model.waits import FROZEN
from tpmon.probe.proc import suspended as freezer
from tpmon.probe.proc.access import name_tracer, read_tracer
from tpmon.probe.proc.suspended import (
    REFRESH_EVERY_NS,
    SuspendedReader,
    are_all_suspended,
    leave_out_frozen,
    mark_held,
    parse_frozen,
    read_freezer,
)

V1, V2 = "docker/0123", "system.slice/train.service"
"""Groups as Docker and systemd make them."""


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def freeze_v1(tree: Tree, group: str, *, own: bool, state: str = "FROZEN") -> None:
    """Write what a group of v1 says that was frozen itself, or of which one above was."""
    tree.write(f"cg/freezer/{group}/freezer.state", f"{state}\n")
    tree.write(f"cg/freezer/{group}/freezer.self_freezing", f"{int(own)}\n")
    tree.write(f"cg/freezer/{group}/freezer.parent_freezing", f"{int(not own)}\n")


def freeze_v2(tree: Tree, group: str, *, own: bool, frozen: bool = True) -> None:
    """Write the same of a group of v2."""
    tree.write(f"cg/unified/{group}/cgroup.events", f"populated 1\nfrozen {int(frozen)}\n")
    tree.write(f"cg/unified/{group}/cgroup.freeze", f"{int(own)}\n")


def v1_job(tree: Tree, group: str = f"{V1}/job") -> None:
    tree.mount("cg/freezer", "freezer")
    tree.write("cg/freezer/release_agent", "")
    tree.process(7, f"6:freezer:/{group}\n0::/\n", state="D")


def v2_job(tree: Tree, group: str = f"{V2}/job") -> None:
    tree.mount("cg/unified", "", version=2)
    tree.process(7, f"0::/{group}\n")


@pytest.mark.parametrize(
    ("version", "raw", "expected"),
    [
        (1, b"FROZEN\n", True),
        (1, b"FREEZING\n", False),
        (1, b"THAWED\n", False),
        (1, b"", False),
        (2, b"populated 1\nfrozen 1\n", True),
        (2, b"populated 1\nfrozen 0\n", False),
        (2, b"populated 1\n", False),
    ],
)
def test_what_the_kernel_writes_of_a_group_is_read(version, raw, expected):
    assert parse_frozen(version, raw) is expected


def test_a_group_of_v1_that_was_frozen_from_above_names_the_one_to_thaw(tree):
    v1_job(tree)
    freeze_v1(tree, f"{V1}/job", own=False)
    freeze_v1(tree, V1, own=True)
    assert read_freezer(7, tree.proc) == Freezer(1, f"/{V1}", str(tree.path / "cg/freezer" / V1))


def test_a_group_of_v2_that_was_frozen_itself_is_the_one_to_thaw(tree):
    v2_job(tree)
    freeze_v2(tree, f"{V2}/job", own=True)
    freeze_v2(tree, V2, own=False, frozen=False)
    assert read_freezer(7, tree.proc) == Freezer(2, f"/{V2}/job", str(tree.path / "cg/unified" / V2 / "job"))


def test_a_group_that_was_frozen_above_the_view_says_where_it_cannot_be_thawed(tree):
    v2_job(tree, "job")
    freeze_v2(tree, "job", own=False)
    tree.write("cg/unified/cgroup.events", "populated 1\nfrozen 1\n")
    found = read_freezer(7, tree.proc)
    assert (found.version, found.group) == (2, "this container")
    assert isinstance(found.directory, Missing)


def test_a_group_that_runs_or_is_the_root_freezes_nothing(tree):
    v1_job(tree)
    freeze_v1(tree, f"{V1}/job", own=True, state="THAWED")
    tree.process(8, "6:freezer:/\n0::/\n")
    assert read_freezer(7, tree.proc) is NOT_APPLICABLE
    assert read_freezer(8, tree.proc) is NOT_APPLICABLE
    assert read_freezer(9, tree.proc) is NOT_APPLICABLE, "no such process"


def test_a_group_that_cannot_be_looked_at_is_missing_and_not_said_to_run(tree):
    tree.mount("cg/unified", "", version=2)
    tree.process(7, "0::/../other\n")
    assert read_freezer(7, tree.proc) == Missing("its control group is outside this container's view")


def test_others_are_asked_while_a_rank_is_frozen_alone(tree, monkeypatch):
    v1_job(tree)
    freeze_v1(tree, f"{V1}/job", own=True, state="THAWED")
    tree.process(8, f"6:freezer:/{V1}/job\n0::/\n")
    asked: list[int] = []
    find = freezer.find_groups
    monkeypatch.setattr(freezer, "find_groups", lambda pid, *rest: asked.append(pid) or find(pid, *rest))
    reader = SuspendedReader(tree.proc)
    assert reader.read([7], [7, 8], 1) == {}
    assert asked == [7]
    freeze_v1(tree, f"{V1}/job", own=True)
    assert reader.read([7], [7, 8], 2).keys() == {7, 8}
    assert asked == [7, 8], "groups are looked up now and then, their state each time"
    reader.read([7], [7, 8], 3)
    assert asked == [7, 8]
    reader.read([7], [7, 8], 1 + REFRESH_EVERY_NS)
    assert asked == [7, 8, 7, 8]


@pytest.mark.parametrize("version", [1, 2])
def test_a_real_frozen_process_is_told_until_it_is_thawed(version):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeper:
        try:
            with freezing([sleeper.pid], version) as group:
                found = read_freezer(sleeper.pid)
                assert (found.version, found.directory) == (version, str(group))
                assert read_freezer(os.getpid()) is NOT_APPLICABLE
            assert wait_until(lambda: read_freezer(sleeper.pid) is NOT_APPLICABLE)
        finally:
            sleeper.kill()


GROUP = Freezer(1, "/train", "/sys/fs/cgroup/freezer/train")
GDB = Tracer(913, "gdb", "gdb -p 4211")
UNSEEN = Missing("its control group is outside this container's view")


def test_a_frozen_process_waits_for_its_group_whatever_it_was_interrupted_in():
    (rank, worker) = mark_held(
        (make_process(state="D", waits_for="sleep"), make_worker()), {4211: GROUP, 4221: GROUP}, {}
    )
    assert (rank.frozen, rank.waits_for) == (GROUP, FROZEN)
    assert (worker.frozen, worker.waits_for) == (GROUP, FROZEN)
    assert say_stop(rank) == "frozen by control group /train"


def test_a_zombie_is_never_frozen_and_what_is_not_known_changes_no_words():
    (zombie,) = mark_held((make_process(state="Z", waits_for="zombie"),), {4211: GROUP}, {})
    assert (zombie.frozen, zombie.waits_for) == (NOT_APPLICABLE, wait_of("zombie"))
    (unseen,) = mark_held((make_process(waits_for="sleep"),), {4211: UNSEEN}, {})
    assert (unseen.frozen, unseen.waits_for) == (UNSEEN, wait_of("sleep"))
    assert say_stop(unseen) == ""


def test_a_job_whose_processes_run_is_the_same_tuple():
    running = (make_process(), make_worker())
    assert mark_held(running, {}, {}) is running


def test_a_job_is_held_when_every_rank_is_however_it_is():
    frozen = make_process(frozen=GROUP)
    traced = make_process(4212, rank=1, state="t", tracer=GDB)
    assert are_all_suspended((frozen, traced, make_worker()))
    assert not are_all_suspended((frozen, make_process(4213, rank=2)))
    assert not are_all_suspended((make_worker(state="T"),))


def test_looks_at_a_frozen_main_thread_count_for_nothing():
    looks = (make_looks(4211, io=10), make_looks(4212))
    ranks = (make_process(state="D", frozen=GROUP), make_process(4212, rank=1))
    assert leave_out_frozen(looks, ranks) == looks[1:]
    assert leave_out_frozen(looks, (make_process(),)) is looks
    assert leave_out_frozen(UNSEEN, ranks) is UNSEEN


def test_a_tracer_is_named_with_its_command_and_no_secret_of_it(tmp_path):
    folder = tmp_path / "913"
    folder.mkdir()
    (folder / "comm").write_text("gdb\n")
    (folder / "cmdline").write_bytes(b"gdb\0--api-key\0sk-12345678\0-p\x004211\0")
    assert name_tracer(913, str(tmp_path)) == Tracer(913, "gdb", "gdb --api-key *** -p 4211")
    gone = name_tracer(914, str(tmp_path))
    assert (gone.name, gone.command) == ("?", Missing("its command line: No such file or directory"))


def test_a_process_that_nobody_here_traces_says_so():
    own = os.getpid()
    assert read_tracer(own, own) == Missing("its tracer is in another container: its PID is not visible here")
    gone = read_tracer(own, 0)
    assert isinstance(gone, Missing)
    assert "No such file" in gone.reason
