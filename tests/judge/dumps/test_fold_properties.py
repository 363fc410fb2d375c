"""Properties of the fold: order never matters, and every thread is in exactly one group and one leaf."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import (
    ALL_REDUCE,
    BACKWARD,
    BROADCAST,
    DECODE,
    IN_LOCK,
    NEXT_BATCH,
    WORKER_READS,
    WORKER_WAITS,
    fold,
    inner,
    make_native,
    make_rank,
    make_round,
    make_thread,
    make_worker,
    odd_pid,
    rounds,
)
from tpmon.judge.dumps.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.judge.dumps.hot import TOP, build_tree, leaves
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Dump, ProcessLook
from tpmon.model.known import Missing, is_known, known_or
from tpmon.model.process import ThreadKind

STACKS = [ALL_REDUCE, BROADCAST, BACKWARD, DECODE, NEXT_BATCH, IN_LOCK, inner(1), inner(2), ()]
STATES = ["R", "S", "D", "T"]


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
            state = draw(st.sampled_from(STATES))
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
    assert sorted((thread.pid, thread.tid) for thread in leaves(tree)) == expected
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


def place_of(dump: Dump) -> list[set[tuple[object, object]]]:
    """Return who is together in a group, whatever the order of the groups."""
    return sorted(({(thread.pid, thread.tid) for thread in group.threads} for group in dump.groups), key=sorted)


@given(jobs(), st.randoms(use_true_random=False))
def test_rounds_in_any_order_are_the_same_story(job, chance):
    made = [make_round(*processes, at_s=5.0 * number) for number, processes in enumerate(job)]
    origin = DumpOrigin(1, "train.py", 6)
    assert fold_rounds(chance.sample(made, len(made)), origin) == fold_rounds(made, origin)


@given(jobs(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_hosts_in_any_order_are_the_same_job(job, count, chance):
    """Spread the processes over hosts, each with its looks as Dumps of their own."""
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
