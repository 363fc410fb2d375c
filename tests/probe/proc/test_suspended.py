"""Frozen control groups and traced processes, in fixture trees and where this machine makes some."""

import os

import pytest

from tests.cgroups import Tree
from tests.children import child
from tests.frames import make_process, make_worker
from tests.freezing import freezing
from tests.judging import make_looks
from tests.waiting import wait_until
from tests.waits import wait_of
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Freezer, Tracer
from tpmon.model.text.job_words import say_stop
from tpmon.model.waits import FROZEN
from tpmon.probe.proc import suspended
from tpmon.probe.proc.access import name_tracer, read_tracer

V1, V2 = "docker/0123", "system.slice/train.service"
"""Groups as Docker and systemd make them."""


def freeze_v1(tree: Tree, group: str, *, own: bool, frozen: bool = True) -> None:
    """Write what a group of v1 says that was frozen itself, or of which one above was."""
    tree.write(f"cg/freezer/{group}/freezer.state", "FROZEN\n" if frozen else "THAWED\n")
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
    assert suspended.parse_frozen(version, raw) is expected


@pytest.mark.parametrize(
    ("job", "freeze", "frozen", "thaw"),
    [
        # One of v1 that was frozen from above, and one of v2 that was frozen itself.
        (v1_job, freeze_v1, ((f"{V1}/job", False, True), (V1, True, True)), V1),
        (v2_job, freeze_v2, ((f"{V2}/job", True, True), (V2, False, False)), f"{V2}/job"),
    ],
)
def test_a_frozen_group_names_the_one_to_thaw(tree, job, freeze, frozen, thaw):
    job(tree)
    for group, own, is_frozen in frozen:
        freeze(tree, group, own=own, frozen=is_frozen)
    version, top = (1, "cg/freezer") if job is v1_job else (2, "cg/unified")
    assert suspended.read_freezer(7, tree.proc) == Freezer(version, f"/{thaw}", str(tree.path / top / thaw))


def test_a_group_that_was_frozen_above_the_view_cannot_be_thawed_and_one_outside_it_is_not_said_to_run(tree):
    v2_job(tree, "job")
    freeze_v2(tree, "job", own=False)
    tree.write("cg/unified/cgroup.events", "populated 1\nfrozen 1\n")
    found = suspended.read_freezer(7, tree.proc)
    assert (found.version, found.group) == (2, "this container")
    assert isinstance(found.directory, Missing)
    tree.process(7, "0::/../other\n")
    assert suspended.read_freezer(7, tree.proc) == UNSEEN


def test_a_group_that_runs_or_the_root_freezes_nothing_and_others_are_asked_while_a_rank_is(tree, monkeypatch):
    v1_job(tree)
    freeze_v1(tree, f"{V1}/job", own=True, frozen=False)
    tree.process(8, f"6:freezer:/{V1}/job\n0::/\n")
    tree.process(9, "6:freezer:/\n0::/\n")
    assert all(suspended.read_freezer(pid, tree.proc) is NOT_APPLICABLE for pid in (7, 9, 10)), "10 is no process"
    asked: list[int] = []
    find = suspended.find_groups
    monkeypatch.setattr(suspended, "find_groups", lambda pid, *rest: asked.append(pid) or find(pid, *rest))
    reader = suspended.SuspendedReader(tree.proc)
    assert reader.read([7], [7, 8], 1) == {}
    assert asked == [7]
    freeze_v1(tree, f"{V1}/job", own=True)
    assert reader.read([7], [7, 8], 2).keys() == {7, 8}
    assert asked == [7, 8], "groups are looked up now and then, their state each time"
    reader.read([7], [7, 8], 3)
    assert asked == [7, 8]
    reader.read([7], [7, 8], 1 + suspended.REFRESH_EVERY_NS)
    assert asked == [7, 8, 7, 8]


@pytest.mark.parametrize("version", [1, 2])
def test_a_real_frozen_process_is_told_until_it_is_thawed(version):
    with child("say('up'); hear()") as sleeper:
        with freezing([sleeper.pid], version) as group:
            found = suspended.read_freezer(sleeper.pid)
            assert (found.version, found.directory) == (version, str(group))
            assert suspended.read_freezer(os.getpid()) is NOT_APPLICABLE
        assert wait_until(lambda: suspended.read_freezer(sleeper.pid) is NOT_APPLICABLE)


GROUP = Freezer(1, "/train", "/sys/fs/cgroup/freezer/train")
GDB = Tracer(913, "gdb", "gdb -p 4211")
UNSEEN = Missing("its control group is outside this container's view")


@pytest.mark.parametrize(
    ("sample", "freezer", "frozen", "waits_for", "words"),
    [
        (make_process(state="D", waits_for="sleep"), GROUP, GROUP, FROZEN, "frozen by control group /train"),
        (make_worker(4211), GROUP, GROUP, FROZEN, "frozen by control group /train"),
        # A zombie is never frozen, and what is not known changes no words.
        (make_process(state="Z", waits_for="zombie"), GROUP, NOT_APPLICABLE, wait_of("zombie"), ""),
        (make_process(waits_for="sleep"), UNSEEN, UNSEEN, wait_of("sleep"), ""),
    ],
)
def test_a_frozen_process_waits_for_its_group_whatever_it_was_interrupted_in(sample, freezer, frozen, waits_for, words):
    (marked,) = suspended.mark_held((sample,), {4211: freezer}, {})
    assert (marked.frozen, marked.waits_for, say_stop(marked)) == (frozen, waits_for, words)


def test_a_job_is_held_when_every_rank_is_however_it_is():
    frozen = make_process(frozen=GROUP)
    traced = make_process(4212, rank=1, state="t", tracer=GDB)
    assert suspended.are_all_suspended((frozen, traced, make_worker()))
    assert not suspended.are_all_suspended((frozen, make_process(4213, rank=2)))
    assert not suspended.are_all_suspended((make_worker(state="T"),))
    running = (make_process(), make_worker())
    assert suspended.mark_held(running, {}, {}) is running, "the same tuple"


def test_looks_at_a_frozen_main_thread_count_for_nothing():
    looks = (make_looks(4211, io=10), make_looks(4212))
    ranks = (make_process(state="D", frozen=GROUP), make_process(4212, rank=1))
    assert suspended.leave_out_frozen(looks, ranks) == looks[1:]
    assert suspended.leave_out_frozen(looks, (make_process(),)) is looks
    assert suspended.leave_out_frozen(UNSEEN, ranks) is UNSEEN


def test_a_tracer_is_named_with_its_command_and_no_secret_of_it(tmp_path):
    folder = tmp_path / "913"
    folder.mkdir()
    (folder / "comm").write_text("gdb\n")
    (folder / "cmdline").write_bytes(b"gdb\0--api-key\0sk-12345678\0-p\x004211\0")
    assert name_tracer(913, str(tmp_path)) == Tracer(913, "gdb", "gdb --api-key *** -p 4211")
    gone = name_tracer(914, str(tmp_path))
    assert (gone.name, gone.command) == ("?", Missing("its command line: No such file or directory"))
    own = os.getpid()
    assert read_tracer(own, own) == Missing("its tracer is in another container: its PID is not visible here")
    assert "No such file" in read_tracer(own, 0).reason, "nobody here traces it"
