"""What a Frame says of processes that a freezer or a debugger keeps from running."""

import os

from tests.frames import make_process, make_worker
from tests.judging import make_looks
from tests.waits import wait_of
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Freezer, Tracer
from tpmon.model.text.job_words import say_stop
from tpmon.model.waits import FROZEN
from tpmon.probe.proc.access import name_tracer, read_tracer
from tpmon.probe.proc.suspended import are_all_suspended, leave_out_frozen, mark_held

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
