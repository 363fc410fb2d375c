"""Stacks merged where they begin alike: who passes each line, and in which order they are read."""

from tests.dumps import (
    ALL_REDUCE,
    BROADCAST,
    IN_LOCK,
    WORKER_WAITS,
    make_native,
    make_rank,
    make_round,
    make_thread,
    make_worker,
)
from tpmon.judge.dumps.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.judge.dumps.hot import TOP, build_tree, show_stacks
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.report.stacks import write_dump_tree
from tpmon.view.layout import WIDTH

FEEDS = (StackFrame("feed", "/run/data.py", 7),)


def groups_of(*processes):
    return fold_rounds([make_round(*processes)], DumpOrigin(1, "train.py", NOT_APPLICABLE)).groups


def tree_text(*processes):
    return [
        f"{'  ' * line.depth}{line.threads} {line.shown.text if is_known(line.shown) else '?'}"
        f"{' =' + str(sum(len(one.threads) for one in line.ends)) if line.ends else ''}"
        for line in build_tree(groups_of(*processes))
    ]


def test_lines_that_all_pass_come_once_and_a_fork_goes_in():
    job = [make_rank(rank, frames=ALL_REDUCE) for rank in range(3)]
    assert tree_text(*job, make_rank(3, frames=IN_LOCK), make_rank(4, frames=BROADCAST)) == [
        "5 <module> train.py:90",
        "  4 train train.py:40",
        "    3 all_reduce =3",
        "    1 hold train.py:12 =1",
        "  1 train train.py:55",
        "  1 broadcast =1",
    ]


def test_a_stack_that_ends_where_another_goes_on_is_a_fork_too():
    assert tree_text(make_rank(0, frames=IN_LOCK), make_rank(1, frames=IN_LOCK[:2])) == [
        "2 <module> train.py:90",
        "2 train train.py:40 =1",
        "  1 hold train.py:12 =1",
    ]


def test_ranks_come_before_their_many_workers():
    workers = [make_worker(0, n, frames=(StackFrame("main", "/run/w.py", 1), *WORKER_WAITS[1:])) for n in range(9)]
    assert tree_text(make_rank(0, frames=IN_LOCK), *workers)[0] == "1 <module> train.py:90"


def test_the_tree_holds_threads_beside_the_main_ones_after_those_each_once():
    feeder = [make_thread(70 + n, name="QueueFeederThread", kind=ThreadKind.OTHER, frames=FEEDS) for n in range(3)]
    watchdog = make_native(90, "pt_nccl_watchdg")
    job = [make_rank(0, *feeder, watchdog, frames=IN_LOCK), make_rank(1, frames=IN_LOCK[:2])]
    assert tree_text(*job) == [
        "2 <module> train.py:90",
        "2 train train.py:40 =1",
        "  1 hold train.py:12 =1",
        "3 feed data.py:7 =3",
        "1 ? =1",
    ]
    dump = fold_rounds([make_round(*job)], DumpOrigin(1, "train.py", 2))
    said = "\n".join(write_dump_tree(dump, build_tree(dump.groups)))
    assert (
        "\n\n2x <module> train.py:90\ntrain train.py:40\n  = rank 1: state S\n  1x hold train.py:12\n"
        "    = rank 0: state S\n3x feed data.py:7\n  = 3x QueueFeederThread of rank 0: state S\n"
        "1x native thread pt_nccl_watchdg\n  = pt_nccl_watchdg of rank 0: state S\n\ncost "
    ) in said
    assert said.startswith("dump     ")


def test_the_tree_of_several_hosts_names_them_and_a_deep_one_stays_in_its_columns():
    frames = [tuple(StackFrame(f"step_{n}", "/run/a.py", n + 1) for n in range(depth)) for depth in range(1, 60)]
    here = make_round(*[make_rank(n, frames=one) for n, one in enumerate(frames)])
    there = make_round(make_rank(99, frames=frames[0]), host="node-02")
    dumps = [fold_rounds([one], DumpOrigin(1, "train.py", 60)) for one in (here, there)]
    dump = fold_dumps(dumps)
    lines = write_dump_tree(dump, build_tree(dump.groups))
    assert "  = ranks 0,99 on node-01, node-02: state S" in lines
    assert max(map(len, lines)) <= WIDTH


def test_stacks_that_were_not_read_are_lines_of_their_own_at_the_end():
    tree = build_tree(groups_of(make_rank(0), make_rank(1, frames=Missing("denied"))))
    assert tree[-1].shown is NOT_APPLICABLE
    assert (tree[-1].parent, tree[-1].threads) == (TOP, 1)


def test_a_stack_as_deep_as_its_program_recurses_is_laid_out():
    deep = tuple(StackFrame(f"step_{n}", "/run/a.py", n + 1) for n in range(5_000))
    tree = build_tree(groups_of(make_rank(0, frames=deep), make_rank(1, frames=deep[:4_000])))
    assert len(tree) == 5_000
    assert {line.depth for line in tree} == {0, 1}


def test_marks_name_groups_by_what_they_are():
    few = groups_of(make_rank(1, frames=IN_LOCK))
    many = groups_of(*[make_rank(n) for n in range(3)], make_rank(3, frames=IN_LOCK), make_rank(4, frames=IN_LOCK))
    (mark,) = [one.mark for one in show_stacks(few)]
    marks = [one.mark for one in show_stacks(many)]
    assert mark in marks
    assert len(set(marks)) == len(marks)
