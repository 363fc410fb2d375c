"""The fold of stacks: who is grouped, who is odd, who moved, and that order never matters."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import fold, inner, make_native, make_rank, make_round, make_thread, make_worker, odd_pid, rounds
from tests.stacks import ALL_REDUCE, BACKWARD, BROADCAST, DECODE, IN_LOCK, NEXT_BATCH, READS, WORKER_READS, WORKER_WAITS
from tpmon.judge.dumps.describe import collapse_frames, describe_stack
from tpmon.judge.folds.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.judge.folds.hot import TOP, build_tree
from tpmon.model.codec import decode, encode
from tpmon.model.dump import DeadChild, Dump, DumpError, ErrorKind, Motion, ProcessLook
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known, known_or
from tpmon.model.process import Freezer, Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import Wait, WaitReason

# the odd one out


def test_the_sentence_names_who_waits_where_and_who_is_elsewhere():
    waiting = [make_rank(rank) for rank in range(8) if rank != 3]
    blocked = make_rank(3, frames=DECODE, **READS)
    dump = fold(*waiting, blocked)
    assert dump.summary == (
        "7 of 8 ranks wait in all_reduce train.py:40; rank 3 is in decode data.py:88 (data wait),"
        " blocked in a read of /data/7.bin on NFS (/data) (seen once: --rounds 3 shows whether it moves)"
    )
    odd = dump.odd_one_out
    assert (odd.rank, odd.pid, odd.worker) == (3, 4030, NOT_APPLICABLE)
    assert odd.others == ()
    assert dump.groups[0].threads[0].rank == 3
    assert [len(group.threads) for group in dump.groups] == [1, 7]


@pytest.mark.parametrize(
    ("name", "ranks", "world", "odd"),
    [
        ("all wait alike", [ALL_REDUCE] * 4, 4, 0),
        ("all wait alike and more are elsewhere", [ALL_REDUCE] * 2, 4, 0),
        ("one of two is not in the collective", [ALL_REDUCE, IN_LOCK], 2, 4010),
        ("one of two is not in the collective, the first", [IN_LOCK, ALL_REDUCE], 2, 4000),
        ("one waits in another collective", [ALL_REDUCE, ALL_REDUCE, BROADCAST, ALL_REDUCE], 4, 4020),
        ("two collectives, as many ranks in each", [ALL_REDUCE, BROADCAST], 2, 0),
        ("one of four runs elsewhere", [IN_LOCK, IN_LOCK, IN_LOCK, DECODE], 4, 4030),
        ("two and two, none in a collective", [IN_LOCK, IN_LOCK, DECODE, DECODE], 4, 0),
        ("most are not in the collective", [ALL_REDUCE, IN_LOCK, IN_LOCK, IN_LOCK], 4, 0),
        ("one waits, the others are all over", [ALL_REDUCE, IN_LOCK, DECODE, NEXT_BATCH], 4, 0),
        ("one rank alone", [IN_LOCK], 1, 0),
    ],
)
def test_the_odd_one_is_named_and_nobody_is_accused_without_reason(name, ranks, world, odd):
    dump = fold(*(make_rank(rank, frames=frames) for rank, frames in enumerate(ranks)), world=world)
    assert odd_pid(dump) == odd, name


def test_all_that_wait_with_ranks_elsewhere_point_there():
    dump = fold(make_rank(0), make_rank(1), world=4)
    assert dump.summary.startswith(
        "all 2 ranks here wait in all_reduce train.py:40; the one that is missing is elsewhere"
    )
    assert "tpmon fold" in dump.summary
    alone = fold(make_rank(0, frames=IN_LOCK), world=2).summary
    assert alone.startswith(
        "rank 0 is in hold train.py:12, waiting for a lock; who holds it cannot be seen: no other thread runs the program;"
        " 1 rank is elsewhere: run tpmon dump there"
    )


def test_backward_with_a_lock_is_a_collective_where_the_process_talks_to_others():
    loop = [make_native(5000 + rank, "pt_gloo_runloop") for rank in range(2)]
    dump = fold(make_rank(0, loop[0], frames=BACKWARD), make_rank(1, loop[1], frames=IN_LOCK))
    assert dump.summary.startswith("1 of 2 ranks waits in a collective of backward train.py:40; rank 1 is in hold")
    assert odd_pid(dump) == 4010
    silent = fold(make_rank(0, frames=BACKWARD), make_rank(1, frames=IN_LOCK))
    assert odd_pid(silent) == 0
    running = fold(
        make_rank(0, loop[0], frames=BACKWARD, state="R", waits_for="running"), make_rank(1, loop[1], frames=IN_LOCK)
    )
    assert odd_pid(running) == 0


def test_the_worker_that_holds_a_rank_is_named():
    reading = make_worker(0, 1, frames=WORKER_READS, **READS)
    dump = fold(make_rank(0, frames=NEXT_BATCH), make_worker(0, 0), reading, make_worker(0, 2))
    odd = dump.odd_one_out
    assert (odd.rank, odd.worker, odd.pid) == (0, 1, 4002)
    assert dump.summary.startswith("rank 0 waits for a batch; worker 1 of rank 0 (4002) is in")
    assert "(4002) is in decode data.py:88, blocked in a read of /data/7.bin on NFS" in dump.summary
    assert dump.groups[0].threads[0].worker == 1
    # An odd rank that waits for a batch leads to its own worker.
    ranks = [make_rank(rank, frames=NEXT_BATCH if rank == 1 else ALL_REDUCE) for rank in range(3)]
    workers = (make_worker(1, 0, frames=WORKER_READS), make_worker(1, 1), make_worker(0, 0, frames=WORKER_READS))
    odd = fold(*ranks, *workers).odd_one_out
    assert (odd.rank, odd.worker) == (1, 0)


@pytest.mark.parametrize(
    ("count", "fields", "words"),
    [
        (2, {}, "all its 2 workers wait for work: the batch was lost"),
        (3, {"frames": WORKER_READS, **READS}, "all its 3 workers are in decode data.py:88"),
    ],
)
def test_of_workers_that_are_all_at_one_place_none_is_accused(count, fields, words):
    dump = fold(make_rank(0, frames=NEXT_BATCH), *(make_worker(0, number, **fields) for number in range(count)))
    assert words in dump.summary
    assert odd_pid(dump) == 0


def test_a_stopped_or_frozen_rank_is_odd_and_said_to_be_so_also_at_the_same_line():
    dump = fold(make_rank(0), make_rank(1, state="T", waits_for="stopped by a signal"), make_rank(2))
    assert odd_pid(dump) == 4010
    assert "stopped by a signal" in dump.summary
    frozen = replace(make_rank(1), frozen=Freezer(2, "/train/rank1", "/sys/fs/cgroup/train/rank1"))
    dump = fold(make_rank(0), frozen, make_rank(2))
    assert odd_pid(dump) == 4010
    assert "frozen by control group /train/rank1" in dump.summary
    assert {one.pid for group in dump.groups for one in group.threads if is_known(one.frozen)} == {4010}


def test_a_rank_that_could_not_be_read_is_said_and_not_accused():
    reason = "not permitted: it is a process of uid 7"
    error = DumpError("node-01", 4030, Role.RANK, 3, NOT_APPLICABLE, ErrorKind.DENIED, reason)
    unread = make_rank(3, frames=Missing(reason))
    dump = fold(make_rank(0), make_rank(1), make_rank(2), unread, errors=[error])
    assert odd_pid(dump) == 0
    assert dump.summary.startswith("3 of 4 ranks wait in all_reduce")
    assert "rank 3 could not be read" in dump.summary
    assert Counter(is_known(group.frames) for group in dump.groups) == {True: 1, False: 1}


def test_several_odd_ranks_are_listed_and_none_at_all_is_said():
    dump = fold(*(make_rank(rank) for rank in range(4)), *(make_rank(rank, frames=IN_LOCK) for rank in (4, 5, 6)))
    odd = dump.odd_one_out
    assert (odd.rank, odd.others) == (4, (4050, 4060))
    assert "ranks 5-6 not there either" in dump.summary
    assert fold().summary == "no rank was found"
    assert fold(make_rank(0, frames=Missing("gone"))).summary == "no rank could be read; rank 0 could not be read"


# over time


@pytest.mark.parametrize(
    ("stacks", "motion"),
    [
        ([IN_LOCK], Motion.ONCE),
        ([IN_LOCK, IN_LOCK, IN_LOCK], Motion.FROZEN),
        ([inner(1), inner(2), inner(1)], Motion.SLOW),
        ([IN_LOCK, inner(2)], Motion.SLOW),
        ([IN_LOCK, DECODE, IN_LOCK], Motion.MOVING),
    ],
)
def test_looks_tell_frozen_slow_and_moving(stacks, motion):
    dump = rounds(*([make_rank(0, frames=frames)] for frames in stacks), world=1)
    (group,) = dump.groups
    assert group.motion is motion
    assert (group.since_s == 5.0 * (len(stacks) - 1)) == (motion is Motion.FROZEN)
    assert is_known(group.since_s) == (motion is Motion.FROZEN)
    assert dump.rounds == len(stacks)


def test_a_frozen_rank_is_dated_and_its_cpu_is_counted():
    looks = [[make_rank(0), make_rank(1, frames=IN_LOCK, run_ns=n * 10**7)] for n in (1, 2, 4)]
    dump = rounds(*looks, world=2)
    assert dump.summary.endswith("runs the program, frozen for at least 10 s")
    thread = dump.groups[0].threads[0]
    assert (thread.cpu_pct, thread.delay_pct) == (pytest.approx(0.4), 0.0)


@pytest.mark.parametrize(
    ("ran_s", "delayed_s", "motion"),
    [
        (0.0, 0.0, Motion.FROZEN),
        (0.05, 0.0, Motion.FROZEN),
        (1.1, 0.0, Motion.SLOW),
        (5.0, 1.0, Motion.SLOW),
        (5.0, 4.5, Motion.FROZEN),
        (9.9, 0.0, Motion.FROZEN),
    ],
)
def test_one_stack_is_frozen_only_for_what_rests_or_spins(ran_s, delayed_s, motion):
    """A loader's wait that ends and begins again is met in the same stack each time."""
    looks = [
        [make_rank(0, frames=NEXT_BATCH, run_ns=round(part * ran_s * 1e9), delay_ns=round(part * delayed_s * 1e9))]
        for part in (0.0, 0.5, 1.0)
    ]
    assert rounds(*looks, world=1).groups[0].motion is motion


@pytest.mark.parametrize(
    ("slices", "delayed_s", "reason", "motion"),
    [
        (1000, 0.0, WaitReason.SLEEP, Motion.SLOW),
        (27, 6.0, WaitReason.LOCK, Motion.SLOW),
        (2, 0.0, WaitReason.LOCK, Motion.FROZEN),
        (2500, 9.5, WaitReason.RUNNING, Motion.FROZEN),
        (2000, 0.0, WaitReason.TIMED_LOCK, Motion.FROZEN),
    ],
)
def test_what_sleeps_and_wakes_is_not_told_to_be_frozen(slices, delayed_s, reason, motion):
    """A worker that waits 10 ms for each item uses next to no CPU; what waits for the interpreter's lock looks often."""
    looks = [
        [
            make_rank(
                0,
                frames=NEXT_BATCH,
                slices=5 + round(part * slices),
                delay_ns=round(part * delayed_s * 1e9),
                waits_for=Wait(reason),
            )
        ]
        for part in (0.0, 0.5, 1.0)
    ]
    dump = rounds(*looks, world=1)
    assert dump.groups[0].motion is motion
    assert ("frozen" in dump.summary) == is_known(dump.groups[0].since_s) == (motion is Motion.FROZEN)


def test_what_a_forked_process_inherited_is_not_its_own():
    python = "/env/lib/python3.11/multiprocessing"
    forked = (
        *NEXT_BATCH[:3],
        StackFrame("_launch", f"{python}/popen_fork.py", 71),
        StackFrame("BaseProcess._bootstrap", f"{python}/process.py", 314),
        StackFrame("BaseProcess.run", f"{python}/process.py", 108),
        *WORKER_READS[1:],
    )
    assert [one.text for one in collapse_frames(forked)] == ["fetch", "__getitem__ data.py:60", "decode data.py:88"]
    assert describe_stack(Role.WORKER, ThreadKind.MAIN, forked).text == "decode data.py:88"
    waits = (*forked[:6], *WORKER_WAITS[1:])
    assert describe_stack(Role.WORKER, ThreadKind.MAIN, waits).text == "waits for work (queue.get)"
    assert [one.text for one in collapse_frames(waits)] == ["queue.get"]


def test_a_job_that_moves_accuses_nobody_and_a_rank_that_moves_while_the_others_wait_is_said_to():
    first = [make_rank(0), make_rank(1), make_rank(2, frames=IN_LOCK)]
    then = [make_rank(0, frames=IN_LOCK), make_rank(1, frames=IN_LOCK), make_rank(2, frames=ALL_REDUCE)]
    dump = rounds(first, then, first, world=3)
    assert odd_pid(dump) == 0
    assert dump.summary.startswith("the ranks move")
    dump = rounds([*first[:2], make_rank(2, frames=DECODE)], first, world=3)
    assert (dump.odd_one_out.rank, dump.odd_one_out.motion) == (2, Motion.MOVING)
    assert dump.summary.endswith("moving")


def test_native_threads_are_judged_by_their_cpu_and_one_that_ended_between_the_looks_is_left_out():
    idle = make_native(8, "pt_autograd_0", ThreadKind.AUTOGRAD)
    looks = [[make_rank(0, make_native(7, "pt_nccl_watchdg", run_ns=run_ns), idle)] for run_ns in (1, 2)]
    dump = rounds(*looks, world=1)
    found = {group.threads[0].name: group.motion for group in dump.groups if not is_known(group.frames)}
    assert found == {"pt_nccl_watchdg": Motion.MOVING, "pt_autograd_0": Motion.FROZEN}
    extra = make_thread(99, name="Thread-1", kind=ThreadKind.OTHER, frames=IN_LOCK)
    dump = rounds([make_rank(0, extra), make_rank(1)], [make_rank(0)], world=2)
    assert [thread.pid for group in dump.groups for thread in group.threads] == [4000]


# hosts


def test_two_hosts_accuse_nobody_until_they_are_folded():
    ranks = [make_rank(rank, frames=IN_LOCK if rank == 2 else ALL_REDUCE) for rank in range(4)]
    one = fold_rounds([make_round(*ranks[:2], host="a")], DumpOrigin(1, "train.py", 4))
    assert odd_pid(one) == 0
    assert "elsewhere, of ranks 2-3" in one.summary
    two = fold_rounds([make_round(*ranks[2:], host="b", at_s=1.0)], DumpOrigin(2, "train.py", 4))
    both = fold_dumps([two, one])
    odd = both.odd_one_out
    assert (odd.host, odd.rank) == ("b", 2)
    assert (both.host, both.world_size) == ("a, b", 4)
    assert both.summary.startswith("3 of 4 ranks wait in all_reduce train.py:40; rank 2 is in hold")
    assert "(rank 2 is on b)" in both.summary
    assert fold_dumps([one, two]) == both


def test_dumps_of_one_host_are_looks_one_after_the_other():
    ranks = [make_rank(0), make_rank(1, frames=IN_LOCK)]
    early = fold(*ranks)
    late = fold(*ranks, at_s=60.0)
    both = fold_dumps([decode(Dump, encode(early)), decode(Dump, encode(late))])
    assert both.rounds == 2
    assert [group.motion for group in both.groups] == [Motion.FROZEN, Motion.FROZEN]
    assert both.groups[0].since_s == pytest.approx(60.0)
    moved = fold(make_rank(0), make_rank(1, frames=DECODE), at_s=90.0)
    assert fold_dumps([both, moved]).groups[0].motion is Motion.MOVING


def test_nothing_to_fold_is_refused():
    with pytest.raises(ValueError, match="needs a dump"):
        fold_dumps([])
    with pytest.raises(ValueError, match="needs a round"):
        fold_rounds([], DumpOrigin(1, "", 1))


def test_a_dead_child_is_named_and_no_worker_is_blamed_for_its_batch():
    killed = DeadChild(4712, 4000, "pt_data_worker", "SIGKILL")
    waits, idle = make_rank(0, pid=4000, frames=NEXT_BATCH), make_worker(0, 0)

    def fold_beside(dead, *looks):
        return fold_rounds([replace(make_round(*looks), dead=(dead,))], DumpOrigin(1, "train.py", 1))

    alone = fold_beside(killed, waits)
    says = "rank 0 waits for a batch of a process that is dead (4712: SIGKILL)"
    assert alone.summary.startswith(says)
    assert alone.dead == (killed,)
    left = fold_beside(killed, waits, idle)
    assert left.summary.startswith(says)
    assert (
        "its worker waits for work: the batch was lost" in fold_beside(replace(killed, parent=9), waits, idle).summary
    )
    both = fold_dumps([left, fold(make_rank(1, pid=4000), host="node-9", world=2)])
    assert f"1 of 2 ranks waits in all_reduce train.py:40; {says}" in both.summary


# properties

STACKS = [ALL_REDUCE, BROADCAST, BACKWARD, DECODE, NEXT_BATCH, IN_LOCK, inner(1), inner(2), ()]


@st.composite
def jobs(draw) -> list[list[ProcessLook]]:
    """Draw the looks at up to six ranks with workers and other threads."""
    count = draw(st.integers(1, 6))
    looks = []
    for _ in range(draw(st.integers(1, 3))):
        processes: list[ProcessLook] = []
        for rank in range(count):
            others = [
                make_thread(
                    9000 + 10 * rank, name="Thread-1", kind=ThreadKind.OTHER, frames=draw(st.sampled_from(STACKS))
                ),
                make_native(9001 + 10 * rank, "pt_gloo_runloop"),
            ]
            frames = draw(st.sampled_from([*STACKS, Missing("denied")]))
            state = draw(st.sampled_from("RSDT"))
            processes.append(make_rank(rank, *others[: draw(st.integers(0, 2))], frames=frames, state=state))
            for worker in range(draw(st.integers(0, 2))):
                stack = draw(st.sampled_from([WORKER_WAITS, WORKER_READS]))
                processes.append(make_worker(rank, worker, frames=stack))
        looks.append(processes)
    return looks


@given(jobs(), st.randoms(use_true_random=False))
def test_permuting_processes_and_threads_changes_nothing(job, chance):
    before = rounds(*job)
    mixed = []
    for processes in job:
        turned = [replace(one, threads=tuple(chance.sample(one.threads, len(one.threads)))) for one in processes]
        mixed.append(chance.sample(turned, len(turned)))
    assert rounds(*mixed) == before


@given(jobs())
def test_every_thread_is_in_exactly_one_group_and_one_leaf(job):
    dump = rounds(*job)
    expected = sorted((process.pid, thread.tid) for process in job[-1] for thread in process.threads)
    grouped = [(thread.pid, thread.tid) for group in dump.groups for thread in group.threads]
    assert sorted(grouped) == expected
    tree = build_tree(dump.groups)
    leaves = [thread for line in tree for group in line.ends for thread in group.threads]
    assert sorted((thread.pid, thread.tid) for thread in leaves) == expected
    assert sum(line.threads for line in tree if line.parent == TOP) == len(expected)
    threads = {line.mark: line.threads for line in tree}
    assert len(threads) == len(tree), "every line has a mark of its own"
    for line in tree:
        passing = sum(below.threads for below in tree if below.parent == line.mark)
        assert passing + sum(len(group.threads) for group in line.ends) == line.threads


@given(jobs())
def test_a_dump_survives_its_json_and_folds_to_itself(job):
    dump = rounds(*job)
    again = decode(Dump, encode(dump))
    assert encode(again) == encode(dump)
    folded = fold_dumps([again])
    assert folded.summary == dump.summary
    assert [group.doing for group in folded.groups] == [group.doing for group in dump.groups]
    assert (is_known(folded.odd_one_out), odd_pid(folded)) == (is_known(dump.odd_one_out), odd_pid(dump))


@given(st.sampled_from([ALL_REDUCE, BROADCAST, DECODE, IN_LOCK]), st.integers(2, 16), st.integers(2, 32))
def test_ranks_that_are_all_alike_are_never_accused(frames, count, world):
    dump = fold(*(make_rank(rank, frames=frames) for rank in range(count)), world=max(world, count))
    assert odd_pid(dump) == 0


@given(jobs(), st.randoms(use_true_random=False))
def test_rounds_in_any_order_are_the_same_story(job, chance):
    made = [make_round(*processes, at_s=5.0 * number) for number, processes in enumerate(job)]
    origin = DumpOrigin(1, "train.py", 6)
    assert fold_rounds(chance.sample(made, len(made)), origin) == fold_rounds(made, origin)


@given(jobs(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_hosts_in_any_order_are_the_same_job(job, count, chance):
    """Spread the processes over hosts, each with its looks as Dumps of their own."""

    def place_of(dump):
        return sorted(({(thread.pid, thread.tid) for thread in group.threads} for group in dump.groups), key=sorted)

    dumps = []
    for number, processes in enumerate(job):
        for host in range(count):
            here = [one for one in processes if known_or(one.rank, 0) % count == host]
            one = make_round(*here, host=f"node-{host}", at_s=5.0 * number)
            dumps.append(fold_rounds([one], DumpOrigin(100 + host, "train.py", 6)))
    folded = fold_dumps(dumps)
    again = fold_dumps([decode(Dump, encode(one)) for one in chance.sample(dumps, len(dumps))])
    assert encode(again) == encode(folded)
    whole = rounds(*job, world=6)
    assert place_of(folded) == place_of(whole)
    assert odd_pid(folded) == odd_pid(whole)


@given(st.lists(st.sampled_from([*STACKS, Missing("denied")]), min_size=1, max_size=9), st.permutations(range(9)))
def test_ranks_with_other_numbers_are_grouped_alike(stacks, numbers):
    """Give each rank another number: who stands together stays, and whether anybody is odd."""

    def fold_as(order):
        return fold(*(make_rank(order[at], frames=frames) for at, frames in enumerate(stacks)), world=9)

    def together(dump, order):
        groups = ({order.index(known_or(thread.rank, -1)) for thread in group.threads} for group in dump.groups)
        return sorted(groups, key=sorted)

    plain, mixed = fold_as(list(range(9))), fold_as(numbers)
    assert together(mixed, numbers) == together(plain, list(range(9)))
    assert is_known(mixed.odd_one_out) == is_known(plain.odd_one_out)
