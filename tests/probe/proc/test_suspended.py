"""Frozen control groups: what the kernel's files say of them, in fixture trees and where this machine makes some."""

import os
import subprocess
import sys

import pytest

from tests.cgroups import Tree
from tests.freezing import freezing
from tests.waiting import wait_until
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Freezer
from tpmon.probe.proc import suspended as freezer
from tpmon.probe.proc.suspended import REFRESH_EVERY_NS, FreezerReader, parse_frozen, read_freezer

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
    reader = FreezerReader(tree.proc)
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
