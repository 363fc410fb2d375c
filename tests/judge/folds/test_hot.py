"""Hot functions: what is counted, for whom, in percent of what; and stacks merged where they begin alike."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import make_native, make_rank, make_round, make_thread, make_worker
from tests.samples import count, make_reading, make_sampled, make_sampled_worker
from tests.stacks import ALL_REDUCE, BACKWARD, BROADCAST, DECODE, IN_LOCK, LIB, MAIN, NEXT_BATCH, TRAIN, WORKER_READS
from tpmon.judge.folds.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.judge.folds.hot import MOST_FUNCTIONS, NOT_KEPT, TOP, build_tree, fold_stacks, hot_functions, show_stacks
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.results.sample import CountedFunction, HotFunction, HotGroup, HotSample, SampleReading, SampleRequest
from tpmon.model.stacks import StackFrame
from tpmon.report.stacks import write_dump_tree
from tpmon.view.layout import WIDTH

ORIGIN = DumpOrigin(4000, "train.py", 2)


def add_up(*processes, **fields) -> HotSample:
    return hot_functions(make_reading(*processes, **fields), ORIGIN)


def find(group: HotGroup, function: str) -> HotFunction:
    (found,) = [one for one in group.functions if one.function == function]
    return found


def test_self_is_the_innermost_frame_and_total_the_whole_stack():
    (group,) = add_up(make_sampled(0, count(4000, BACKWARD, 15), count(4000, DECODE, 5))).groups
    engine, decode, train = (find(group, name) for name in ("_engine_run_backward", "decode", "train"))
    assert (engine.self_samples, engine.total_samples, engine.self_pct) == (15, 15, 75.0)
    assert (decode.self_pct, decode.package) == (25.0, "")
    assert (train.self_samples, train.total_samples, train.total_pct) == (0, 20, 100.0)
    assert (engine.package, engine.line) == ("torch", 979)
    assert group.functions[0] is engine
    again = StackFrame("walk", "/run/train.py", 3)
    (group,) = add_up(make_sampled(0, count(4000, (MAIN, again, again, again), 8))).groups
    assert (find(group, "walk").self_samples, find(group, "walk").total_samples) == (8, 8), "once a stack"


def test_functions_are_one_over_ranks_and_their_line_is_the_one_seen_most():
    here, there = StackFrame("step", "/run/train.py", 7), StackFrame("step", "/run/train.py", 9)
    (group,) = add_up(
        make_sampled(0, count(4000, (MAIN, here), 4)),
        make_sampled(1, count(4010, (MAIN, there), 6)),
        make_sampled(2, count(4020, (MAIN, here, *ALL_REDUCE[2:]), 90)),
    ).groups
    step = find(group, "step")
    assert (step.line, step.self_samples, step.total_samples) == (9, 10, 100)
    assert (group.ranks, group.processes, group.looks) == ((0, 1, 2), 3, 100)


def test_main_threads_workers_and_other_threads_are_apart():
    feeder = count(77, (StackFrame("_feed", f"{LIB}/multiprocessing/queues.py", 231),), 20, "QueueFeeder")
    groups = add_up(
        make_sampled_worker(0, 0), make_sampled_worker(0, 1), make_sampled(0, count(4000, NEXT_BATCH, 20), feeder)
    ).groups
    assert [(one.role, one.main, one.processes, one.looks) for one in groups] == [
        (Role.RANK, True, 1, 20),
        (Role.WORKER, True, 2, 40),
        (Role.RANK, False, 1, 20),
    ]
    assert [one.functions[0].function for one in groups] == ["poll", "decode", "_feed"]
    assert (groups[2].cpu_pct, groups[2].delay_pct, groups[2].phases) == (NOT_APPLICABLE, NOT_APPLICABLE, ())


def test_ranks_say_their_phases_and_frames_that_wait_are_counted_for_all_above_them():
    stacks = (count(4000, NEXT_BATCH, 10), count(4000, BACKWARD, 6), count(4000, ALL_REDUCE, 4))
    (group,) = add_up(make_sampled(0, *stacks)).groups
    told = [(one.phase, one.samples, one.pct) for one in group.phases]
    assert told == [("data wait", 10, 50.0), ("backward", 6, 30.0), ("comms", 4, 20.0)]
    assert add_up(make_sampled_worker(0, 0)).groups[0].phases == ()
    (group,) = add_up(make_sampled(0, count(4000, NEXT_BATCH, 15), count(4000, BACKWARD, 5))).groups
    assert group.waiting_pct == 75.0
    assert find(group, "train").waiting_samples == 15
    assert find(group, "poll").waiting_pct == 75.0
    assert find(group, "_engine_run_backward").waiting_samples == 0


def test_cpu_is_the_mean_of_the_main_threads_that_were_read():
    unread = Missing("not read")
    (group,) = add_up(
        make_sampled(0, watched_s=2.0, cpu_s=1.0, delay_s=0.5),
        make_sampled(1, watched_s=2.0, cpu_s=0.0, delay_s=0.0),
        make_sampled(2, watched_s=0.0, cpu_s=unread, delay_s=unread),
    ).groups
    assert (group.cpu_pct, group.delay_pct) == (25.0, 12.5)
    (group,) = add_up(make_sampled(0, watched_s=0.0, cpu_s=unread, delay_s=unread)).groups
    assert (group.cpu_pct, group.delay_pct) == (unread, unread)


def test_lost_looks_and_stacks_that_were_not_kept_are_told():
    hot = add_up(make_sampled(0, count(4000, BACKWARD, 15), looks=20, lost=5, behind_s=1.5))
    assert (hot.lost_samples, hot.behind_s) == (5, 1.5)
    assert (hot.groups[0].looks, find(hot.groups[0], "_engine_run_backward").self_pct) == (15, 100.0)
    (group,) = add_up(make_sampled(0, count(4000, (), 5), count(4000, BACKWARD, 15))).groups
    lost = find(group, NOT_KEPT.function)
    assert (lost.self_samples, lost.self_pct, lost.package) == (5, 25.0, "python")


@pytest.mark.parametrize("counted", [CountedFunction.RUNNING, CountedFunction.GIL])
def test_where_some_samples_do_not_count_shares_are_of_all_looks(counted):
    other = count(9, (TRAIN,), 5, "loader"), count(10, (TRAIN,), 5, "saver")
    process = make_sampled(0, count(4000, BACKWARD, 5), *other, looks=20)
    hot = add_up(process, request=SampleRequest(counted=counted))
    main, others = hot.groups
    assert (main.looks, main.samples, main.functions[0].self_pct) == (20, 5, 25.0)
    assert (others.looks, others.functions[0].self_pct) == (40, 25.0)
    quiet = add_up(make_sampled(0, looks=20, stacks=()), request=SampleRequest(counted=counted)).groups
    assert [(one.looks, one.samples, one.functions) for one in quiet] == [(20, 0, ())]


def test_what_a_worker_inherited_by_fork_is_not_its_own():
    forked = StackFrame("BaseProcess._bootstrap", f"{LIB}/multiprocessing/process.py", 314)
    stack = (MAIN, TRAIN, forked, *WORKER_READS[1:])
    process = make_sampled_worker(0, 0, count(4001, stack, 20))
    (group,) = add_up(process).groups
    assert "train" not in [one.function for one in group.functions]
    (folded,) = fold_stacks(make_reading(process))
    assert folded.frames == (forked, *WORKER_READS[1:])


def test_functions_beyond_the_most_are_counted():
    names = [f"f{n}" for n in range(MOST_FUNCTIONS + 5)]
    stacks = [count(4000, (MAIN, StackFrame(name, "/run/data.py", 1)), 1) for name in names]
    (group,) = add_up(make_sampled(0, *stacks)).groups
    assert (len(group.functions), group.more_functions) == (MOST_FUNCTIONS, 6)


def test_the_whole_is_told():
    hot = add_up(make_sampled(0), asked=3, ended=1, elapsed_s=4.0)
    assert (hot.schema, hot.pid, hot.script, hot.rate_hz) == ("tpmon.sample/1", 4000, "train.py", 20)
    assert (hot.seconds, hot.asked_seconds, hot.paused_ms, hot.spy_cpu_ms) == (4.0, 10.0, 0.0, 80.0)
    assert (hot.asked_processes, hot.sampled_processes, hot.ended_processes) == (3, 1, 1)
    assert add_up().groups == ()


# whatever was sampled

FRAMES = st.sampled_from([MAIN, TRAIN, *ALL_REDUCE, *NEXT_BATCH, *WORKER_READS, *BACKWARD])
STACKS = st.lists(st.tuples(st.booleans(), st.lists(FRAMES, max_size=6).map(tuple), st.integers(1, 50)), max_size=6)
JOBS = st.lists(st.tuples(st.booleans(), STACKS), max_size=4)


def build(job) -> SampleReading:
    processes = []
    for number, (is_worker, stacks) in enumerate(job):
        pid = 4000 + 10 * number
        kept = tuple(
            count(pid if main else pid + 1, frames, samples, f"thread {main}") for main, frames, samples in stacks
        )
        plain = make_sampled(number, count(pid, (MAIN, TRAIN), 1), pid=pid)
        looks = sum(one.samples for one in kept if one.tid == pid)
        role = Role.WORKER if is_worker else Role.RANK
        processes.append(replace(plain, role=role, stacks=kept, looks=looks))
    return make_reading(*processes)


@given(JOBS, st.randoms(use_true_random=False))
def test_the_order_of_processes_changes_nothing(job, random):
    reading = build(job)
    shuffled = list(reading.processes)
    random.shuffle(shuffled)
    other = replace(reading, processes=tuple(shuffled))
    assert hot_functions(reading, ORIGIN) == hot_functions(other, ORIGIN)
    assert fold_stacks(reading) == fold_stacks(other)


@given(JOBS)
def test_self_adds_up_to_the_samples_and_total_is_never_less(job):
    reading = build(job)
    groups = hot_functions(reading, ORIGIN).groups
    for group in groups:
        assert sum(one.self_samples for one in group.functions) == group.samples <= group.looks
        for one in group.functions:
            assert 0 <= one.self_samples <= one.total_samples <= group.samples
            assert one.waiting_samples <= one.total_samples
            assert 0 <= one.self_pct <= one.total_pct <= 100
    seen = sum(stack.samples for process in reading.processes for stack in process.stacks)
    assert sum(group.samples for group in groups) == seen
    assert sum(stack.samples for stack in fold_stacks(reading)) == seen


# stacks merged where they begin alike

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
    # Ranks come before their many workers.
    workers = [make_worker(0, n, frames=(StackFrame("main", "/run/w.py", 1), *WORKER_READS[1:])) for n in range(9)]
    assert tree_text(make_rank(0, frames=IN_LOCK), *workers)[0] == "1 <module> train.py:90"


def test_the_tree_holds_threads_beside_the_main_ones_after_those_each_once():
    feeder = [make_thread(70 + n, name="QueueFeederThread", kind=ThreadKind.OTHER, frames=FEEDS) for n in range(3)]
    watchdog = make_native(90, "pt_nccl_watchdg")
    job = [make_rank(0, *feeder, watchdog, frames=IN_LOCK), make_rank(1, frames=IN_LOCK[:2])]
    # A stack that ends where another goes on is a fork, too.
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


def test_stacks_that_were_not_read_or_are_as_deep_as_a_program_recurses_are_laid_out():
    tree = build_tree(groups_of(make_rank(0), make_rank(1, frames=Missing("denied"))))
    assert (tree[-1].shown, tree[-1].parent, tree[-1].threads) == (NOT_APPLICABLE, TOP, 1)
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
