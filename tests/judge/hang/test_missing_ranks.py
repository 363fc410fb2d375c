"""Jobs of which all ranks here wait: for what one does alone elsewhere, for one that is lost, for each other."""

from dataclasses import replace
from typing import Any

import pytest

from tests.collectives import make_group, make_record, reading
from tests.dumps import (
    ALL_REDUCE,
    BACKWARD,
    BROADCAST,
    DECODE,
    IN_LOCK,
    MAIN,
    NFS,
    SITE,
    TRAIN,
    fold,
    make_native,
    make_rank,
    make_round,
    odd_pid,
    rounds,
)
from tests.frames import make_gpu, make_process
from tests.hanging import conclude, expect, said, sample, stand
from tests.judge.hang.test_devices import SPINS
from tpmon.judge.dumps.groups import DumpOrigin, fold_rounds
from tpmon.model.host import NetworkSample, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import EnvironmentSetting, Role, ThreadGroup, ThreadKind
from tpmon.model.results.collectives import RasReport
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

ACCELERATE, TORCH = f"{SITE}/accelerate", f"{SITE}/torch/distributed"
REMOTE = (Kind.HUNG, "remote-rank")
FIRST = (
    MAIN,
    TRAIN,
    StackFrame("main_process_first", f"{ACCELERATE}/accelerator.py", 900),
    StackFrame("_goes_first", f"{ACCELERATE}/state.py", 400),
    StackFrame("wait_for_everyone", f"{ACCELERATE}/state.py", 380),
)
INIT = (
    MAIN,
    StackFrame("init_process_group", f"{TORCH}/distributed_c10d.py", 1700),
    StackFrame("_create_c10d_store", f"{TORCH}/rendezvous.py", 190),
)
SAVE = (
    MAIN,
    TRAIN,
    StackFrame("_save_state_dict", f"{TORCH}/checkpoint/state_dict_saver.py", 300),
    StackFrame("gather_object", f"{TORCH}/distributed_c10d.py", 2900),
)
OBJECTS = (MAIN, TRAIN, StackFrame("broadcast_object_list", f"{TORCH}/distributed_c10d.py", 3000))
RECEIVES = (MAIN, TRAIN, StackFrame("recv_forward", "/w/megatron/core/pipeline_parallel/p2p_communication.py", 400))
GLOO = make_native(9001, "pt_gloo_runloop")
OLD_LOG = {"seconds": 45, "log_age_s": 420.0}
GLOO_RANKS = tuple(make_rank(rank, replace(GLOO, tid=9000 + rank), frames=ALL_REDUCE) for rank in (0, 1))
ASLEEP = make_rank(0, frames=(MAIN, StackFrame("poll", "/run/train.py", 78)), waits_for="sleep")
DEAD = RasReport("2.27.5", 4, 4, (), (), 1, 0)


def turns(frames, demand=1.0):
    """Let a thread that talks to other ranks take a CPU in each process."""
    comm = (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, 1, demand))
    return [
        replace(one, processes=tuple(replace(p, thread_groups=comm, runnable=demand) for p in one.processes))
        for one in frames
    ]


def waits(frames, **fields: Any):
    """Build two ranks of four, from number ``first`` on, that wait in one place."""
    first = fields.pop("first", 0)
    ranks = [make_rank(first + rank, replace(GLOO, tid=9000 + rank), frames=frames) for rank in (0, 1)]
    frames = stand(*ranks, world_size=4, **({"seconds": 60, "log_age_s": None} | fields))
    numbered = {one.pid: number for number, one in enumerate(ranks)}
    return [
        replace(one, processes=tuple(replace(p, local_rank=numbered[p.pid]) for p in one.processes)) for one in frames
    ]


@pytest.mark.parametrize(
    "frames",
    [FIRST, INIT, SAVE, OBJECTS, ALL_REDUCE, BACKWARD],
    ids=["first", "start", "save", "objects", "not in a step", "the next step"],
)
def test_what_one_rank_elsewhere_does_alone_has_five_minutes(frames):
    assert said(waits(frames))[0] is not Kind.HUNG
    assert said(waits(frames, seconds=310)) == REMOTE
    assert said(waits(frames, seconds=310), longest_s=200.0)[0] is not Kind.HUNG, "twice its longest pause"
    finding = conclude(waits(frames, seconds=310))
    assert not is_known(finding.rank), "no rank of this machine is accused"


@pytest.mark.parametrize("frames", [SAVE, BACKWARD], ids=["save", "the next step"])
def test_of_what_one_does_alone_an_old_log_tells_less_than_silent_connections(frames):
    old = {"seconds": 12, "log_age_s": 400.0}
    assert said(waits(frames, **old))[0] is not Kind.HUNG
    spoke = SocketSample(6, 20.0, 30.0, 0, 0)
    assert said(waits(frames, **old, sockets=spoke))[0] is not Kind.HUNG
    silent = SocketSample(6, 380.0, 390.0, 0, 0)
    assert said(waits(frames, **old, sockets=silent)) == REMOTE
    assert said(waits(frames, seconds=12, log_age_s=None, sockets=silent)) == REMOTE
    assert said(waits(frames, seconds=12, log_age_s=1900.0)) == REMOTE


def test_the_log_of_rank_0_counts_where_that_waits_with_the_others():
    assert said(waits(BACKWARD, seconds=40, log_age_s=400.0)) == REMOTE
    assert said(waits(SAVE, seconds=40, log_age_s=400.0))[0] is not Kind.HUNG, "it saves, and is slow"


@pytest.mark.parametrize("frames", [SAVE, BACKWARD], ids=["save", "the next step"])
def test_machines_without_rank_0_write_no_log_in_a_healthy_run_either(frames):
    for seconds in (12, 40, 200):
        assert said(waits(frames, first=2, seconds=seconds, log_age_s=7200.0))[0] is not Kind.HUNG
    assert said(waits(frames, first=2, seconds=310, log_age_s=7200.0)) == REMOTE


def test_a_wait_for_ranks_elsewhere_has_ten_minutes_at_most():
    assert said(waits(BACKWARD, seconds=610), longest_s=1200.0) == REMOTE


def test_who_knows_the_longest_pause_of_a_job_may_say_so():
    assert said(waits(BACKWARD), asked_s=30.0) == REMOTE
    assert said(waits(SAVE), asked_s=30.0)[0] is not Kind.HUNG


def test_a_large_tensor_over_gloo_has_the_time_of_what_is_meant():
    def job(demand, threads=3, waiting=0.0):
        ranks = [make_rank(rank, replace(GLOO, tid=9000 + rank), frames=ALL_REDUCE) for rank in (0, 1)]
        comm = (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, threads, demand))
        return [
            replace(
                one,
                processes=tuple(
                    replace(p, thread_groups=comm, runnable=demand + waiting, waiting=waiting) for p in one.processes
                ),
            )
            for one in stand(*ranks, world_size=2, seconds=60, log_age_s=None)
        ]

    assert said(job(0.02)) == (Kind.HUNG, "no-progress")
    assert said(job(0.6))[0] is not Kind.HUNG
    assert said(job(0.12, threads=15))[0] is Kind.HUNG, "the ticks of five groups"


def test_threads_of_nccl_turn_in_a_collective_that_hangs_too():
    ranks = [make_rank(rank, frames=ALL_REDUCE) for rank in (0, 1)]
    fields: Any = {"world_size": 2, "seconds": 60, "log_age_s": None}
    assert said(turns(stand(*ranks, **fields)))[0] is not Kind.HUNG, "gloo's move a tensor"
    for card, hung in ((SPINS, True), ({"sm_pct": 0.0}, False)):
        cards = tuple(make_gpu(i, pids=(one.pid,), **card) for i, one in enumerate(ranks))
        assert (said(turns(stand(*ranks, gpus=cards, **fields)))[0] is Kind.HUNG) is hung


def test_of_ranks_that_have_ended_and_of_dead_processes_no_thread_that_turns_makes_a_wait():
    assert said(turns(waits(FIRST)))[0] is not Kind.HUNG
    told = [replace(one, collectives=reading(ras=[DEAD])) if is_known(one.rounds) else one for one in waits(FIRST)]
    assert said(turns(told)) == REMOTE


@pytest.mark.parametrize(
    ("frames", "asleep"), [(turns(stand(*GLOO_RANKS, **OLD_LOG)), False), (stand(ASLEEP, **OLD_LOG), True)]
)
def test_only_of_a_wait_for_a_rank_elsewhere_the_log_of_rank_0_tells(frames, asleep):
    assert said(frames)[0] is not Kind.HUNG
    assert (said(frames, asked_s=35.0)[0] is Kind.HUNG) is asleep


def test_the_log_of_rank_0_tells_after_as_long_as_the_run_has_paused_before():
    assert said(waits(BACKWARD, seconds=40, log_age_s=420.0), longest_s=200.0)[0] is not Kind.HUNG
    assert said(waits(BACKWARD, seconds=410, log_age_s=790.0), longest_s=200.0) == REMOTE


def test_the_log_of_another_rank_than_0_is_not_told_as_the_last_sign():
    finding = conclude(waits(BACKWARD, first=2, seconds=310, log_age_s=7200.0))
    assert "log" not in finding.since_source


def test_rank_0_alone_at_a_barrier_is_in_no_collective_that_others_launched():
    barrier = (*BACKWARD[:2], StackFrame("barrier", f"{TORCH}/distributed_c10d.py", 4000))
    item = (MAIN, StackFrame("train", "/run/train.py", 77))
    runs = {"state": "R", "waits_for": "running", "wchan": "0", "call": ""}
    spins = [make_rank(rank, frames=item, holds_gil=False, **runs) for rank in (1, 2, 3)]
    ranks = [make_rank(0, frames=barrier), *spins]
    cards = tuple(make_gpu(i, pids=(one.pid,), **SPINS) for i, one in enumerate(ranks))
    frames = stand(*ranks, world_size=4, gpus=cards, seconds=60, log_age_s=None)
    each = [sample(frames, one.pid, item) for one in spins]
    sampled = [
        replace(row[0], stacks=tuple(one for frame in row for one in frame.stacks)) for row in zip(*each, strict=True)
    ]
    finding = conclude(sampled)
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 0)


def test_a_process_that_nccl_calls_dead_needs_no_patience():
    frames = waits(FIRST)
    told = [replace(one, collectives=reading(ras=[DEAD])) if is_known(one.rounds) else one for one in frames]
    assert said(told) == REMOTE


def test_all_ranks_in_a_save_of_theirs_have_five_minutes():
    ranks = [make_rank(rank, frames=SAVE) for rank in (0, 1)]
    assert said(stand(*ranks, world_size=2, seconds=60, log_age_s=None))[0] is not Kind.HUNG
    assert said(stand(*ranks, world_size=2, seconds=310, log_age_s=None)) == (Kind.HUNG, "no-progress")


def pipeline():
    return [make_rank(rank, frames=RECEIVES if rank < 6 else ALL_REDUCE) for rank in range(8)]


def test_ranks_in_transfers_and_collectives_accuse_none_of_them():
    finding = expect(
        "no-progress",
        stand(*pipeline(), world_size=8, seconds=45, log_age_s=50.0),
        "ranks 0-5 in recv_forward train.py:40, ranks 6-7 in all_reduce",
    )
    assert not is_known(finding.rank)


def test_a_dump_names_no_rank_that_waits_where_others_are_elsewhere():
    dump = rounds(pipeline(), pipeline(), pipeline(), world=16)
    assert odd_pid(dump) == 0
    assert dump.summary.startswith("ranks 0-5 in recv_forward train.py:40, ranks 6-7 in all_reduce train.py:40")
    assert "8 ranks are elsewhere or have ended: run tpmon dump there" in dump.summary
    assert odd_pid(fold(*pipeline(), world=8)) == 4060


def test_a_dump_names_those_that_stand_outside_of_a_collective_though_they_are_the_most():
    def job():
        blocked = [make_rank(rank, frames=DECODE, state="D", waits_on=NFS, call="read") for rank in range(5)]
        return [*blocked, *(make_rank(rank) for rank in (5, 6, 7))]

    dump = rounds(job(), job(), job(), world=8)
    assert odd_pid(dump) == 4000
    assert dump.summary.startswith("3 of 8 ranks wait in all_reduce train.py:40; rank 0 is in decode data.py:88")
    assert "ranks 1-4 not there either" in dump.summary


def named(finding):
    """Return the rows of evidence about ranks, by their names."""
    return [row.name for row in finding.evidence if row.name.startswith("rank ")]


def test_of_ranks_that_wait_for_one_that_ended_that_one_is_named_and_each_other_shown_once():
    frames = stand(make_rank(0), make_rank(1), world_size=3)
    gone = stand(make_rank(0), make_rank(1), make_rank(2), world_size=3)[0]
    frames[0] = replace(gone, taken=frames[0].taken, taken_ns=frames[0].taken_ns)
    finding = conclude(frames)
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 2)
    assert named(finding) == ["rank 0 (4000)", "rank 1 (4010)"]
    assert not is_known(finding.pid), "it is no more"
    two = replace(gone, processes=(*gone.processes, make_process(4030, rank=3, local_rank=3)))
    several = [replace(two, taken=frames[0].taken, taken_ns=frames[0].taken_ns), *frames[1:]]
    several = [replace(one, target=replace(one.target, world_size=4)) for one in several]
    finding = conclude(several)
    assert finding.summary.startswith("ranks 2-3 have ended")
    assert not is_known(finding.rank)


def test_all_ranks_in_one_collective_accuse_none_of_them():
    finding = expect("no-progress", stand(*(make_rank(rank) for rank in range(8)), world_size=8))
    assert not any(map(is_known, (finding.rank, finding.pid, finding.where)))
    assert "tpmon dump 4211 " in finding.try_, "of the job: none of them is named"
    assert len(named(finding)) == len(set(named(finding))) == 4


@pytest.mark.parametrize(("apart", "rank"), [(4, NOT_APPLICABLE), (1, 7), (3, 5)])
def test_of_two_collectives_the_smaller_part_is_named_and_of_equal_ones_none(apart, rank):
    ranks = [make_rank(n, frames=ALL_REDUCE if n < 8 - apart else BROADCAST) for n in range(8)]
    finding = conclude(stand(*ranks, world_size=8))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", rank)
    assert finding.pid == (4000 + 10 * rank if is_known(rank) else NOT_APPLICABLE)
    assert len(named(finding)) == len(set(named(finding))) == 4
    assert ("which the others wait for" in finding.try_) is is_known(rank)


LAUNCHER = make_process(900, role=Role.LAUNCHER, rank=NOT_APPLICABLE, local_rank=NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("numbers", "parents", "launcher", "told"),
    [
        ((3,), (1,), False, False),
        ((0, 3), (70, 80), False, False),
        ((0, 3), (1, 1), False, False),
        ((0, 3), (70, 80), True, True),
        ((0, 3), (70, 70), False, True),
        ((0, 3), (70, 4000), False, True),
    ],
    ids=["a container each", "two containers", "of who knows whom", "a launcher", "a step of Slurm", "the first rank"],
)
def test_a_gap_in_the_numbers_is_one_only_among_ranks_that_one_process_started(numbers, parents, launcher, told):
    parent_of = {4000 + 10 * number: parent for number, parent in zip(numbers, parents, strict=True)}
    frames = []
    for frame in stand(*(make_rank(number) for number in numbers), world_size=4, seconds=60, log_age_s=None):
        ranks = tuple(replace(one, parent=parent_of[one.pid]) for one in frame.processes)
        frames.append(replace(frame, processes=(LAUNCHER, *ranks) if launcher else ranks))
    finding = conclude(frames)
    assert (finding.kind is Kind.HUNG) is told
    assert ("have ended" in finding.summary) is told


@pytest.mark.parametrize(
    ("numbers", "size", "words"),
    [
        ((0, 2), "3", "rank 1 has ended; "),
        ((0, 1), "3", "rank 2 has ended; "),
        ((0, 2), "2", "the one that is missing is elsewhere"),
        ((0, 2), "", "the one that is missing is elsewhere"),
        ((2,), "3", "the one that is missing is elsewhere"),
    ],
    ids=["a gap", "the last", "of two machines", "nobody says it", "a container of its own"],
)
def test_orphans_of_a_launcher_miss_a_rank_where_they_say_that_all_were_started_here(numbers, size, words):
    local = (EnvironmentSetting("LOCAL_WORLD_SIZE", size),)
    looks = [make_rank(number) for number in numbers]

    def wait(seconds):
        frames = stand(*looks, world_size=3, seconds=seconds, log_age_s=None)
        those = [tuple(replace(one, environment=local) for one in frame.processes) for frame in frames]
        return [replace(frame, processes=ranks) for frame, ranks in zip(frames, those, strict=True)]

    assert (conclude(wait(45)).kind is Kind.HUNG) is ("ended" in words)
    assert words in conclude(wait(310)).summary


UNTOLD = Missing("no WORLD_SIZE in the start environment")


LOOPBACK = NetworkSample("lo", "nic", True, 0.0, 0.0, 0.0, 0.0)


def nic(*, used):
    return (NetworkSample("eth0", "nic", used, 0.0, 0.0, 0.0, 0.0), LOOPBACK)


def unsized(*looks, **fields: Any):
    """Build ranks of which nobody says how many there are, as a program has that starts them itself."""
    looks = looks or (make_rank(0), make_rank(1))
    return stand(*looks, world_size=UNTOLD, **({"seconds": 60, "log_age_s": None} | fields))


@pytest.mark.parametrize(
    ("network", "hung"),
    [((), False), (nic(used=True), False), (nic(used=UNTOLD), False), (nic(used=False), True), ((LOOPBACK,), True)],
    ids=["nothing read", "in use", "not read", "every connection ends here", "no interface"],
)
def test_ranks_whose_number_nobody_says_may_wait_for_one_elsewhere(network, hung):
    assert (said(unsized(network=network))[0] is Kind.HUNG) is hung
    finding = expect("no-progress", unsized(seconds=310, network=network))
    assert ("or one elsewhere is missing" in finding.summary) is not hung
    assert not is_known(finding.rank)


def test_which_of_them_writes_the_log_is_not_known_either():
    assert said(unsized(seconds=12, log_age_s=1900.0))[0] is not Kind.HUNG
    silent = SocketSample(6, 380.0, 390.0, 0, 0)
    assert said(unsized(seconds=12, sockets=silent))[0] is Kind.HUNG


def odd_one():
    """Make four ranks of which the last is in another collective."""
    return [make_rank(number, frames=ALL_REDUCE if number < 3 else BROADCAST) for number in range(4)]


def test_a_port_of_infiniband_tells_of_no_other_machine():
    """NCCL holds it open on any host that has one."""
    port = NetworkSample("mlx5_0/1", "ib", True, 0.0, 0.0, 0.0, 0.0)
    finding = conclude(unsized(*odd_one(), seconds=40, network=(port, LOOPBACK)))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 3)
    assert said(unsized(*odd_one(), network=(port,)))[0] is not Kind.HUNG, "of others nothing was read"


def test_the_one_in_another_collective_is_named_also_where_others_may_run_elsewhere():
    assert said(unsized(*odd_one(), network=nic(used=True)))[0] is not Kind.HUNG
    finding = conclude(unsized(*odd_one(), seconds=310, network=nic(used=True)))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 3)
    assert "or one elsewhere is missing" in finding.summary
    assert said(unsized(*odd_one(), seconds=12, log_age_s=1900.0))[0] is not Kind.HUNG, "whose log is it?"


def members(*numbers):
    return reading(*(make_record(rank, make_group(3, 4, ranks=numbers)) for rank in (0, 1)))


@pytest.mark.parametrize(
    ("told", "hung"),
    [
        (members(0, 1), True),
        (members(0, 1, 2, 3), False),
        (reading(ras=[replace(DEAD, processes=2, dead=0)]), True),
        (reading(ras=[replace(DEAD, processes=4, dead=0)]), False),
        (reading(), False),
    ],
    ids=["a record", "of two machines", "NCCL", "NCCL of two machines", "nothing"],
)
def test_what_counts_as_many_ranks_as_run_here_leaves_none_elsewhere(told, hung):
    frames = [
        replace(one, collectives=told) if is_known(one.rounds) else one
        for one in unsized(seconds=40, network=nic(used=True))
    ]
    finding = conclude(frames)
    assert (finding.kind is Kind.HUNG) is hung
    assert not hung or "or one elsewhere is missing" not in finding.summary


def test_of_ranks_of_an_unknown_number_those_here_are_named_as_soon_as_before():
    finding = conclude(unsized(make_rank(0), make_rank(1, frames=IN_LOCK), seconds=40))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 1)
    alone = conclude(unsized(make_rank(0), seconds=60))
    assert alone.kind is not Kind.HUNG, "it waits for others, which are elsewhere"


def test_nor_are_their_cards_said_to_wait_for_each_other_at_once():
    item = (MAIN, StackFrame("train", "/run/train.py", 77))
    runs = {"state": "R", "waits_for": "running", "wchan": "0", "call": ""}
    ranks = [make_rank(rank, frames=item, holds_gil=False, **runs) for rank in (0, 1)]
    cards = tuple(make_gpu(i, pids=(one.pid,), **SPINS) for i, one in enumerate(ranks))
    for seconds, hung in ((60, False), (310, True)):
        frames = unsized(*ranks, gpus=cards, seconds=seconds)
        each = [sample(frames, one.pid, item) for one in ranks]
        both = [replace(a, stacks=(*a.stacks, *b.stacks)) for a, b in zip(*each, strict=True)]
        assert (said(both)[0] is Kind.HUNG) is hung


@pytest.mark.parametrize(("size", "words"), [(2, "at ranks that ended"), (UNTOLD, "or that run elsewhere")])
def test_a_dump_of_ranks_of_an_unknown_number_looks_elsewhere_too(size, words):
    dump = fold_rounds([make_round(make_rank(0), make_rank(1))], DumpOrigin(1, "train.py", size))
    assert f"{words} (seen once" in dump.summary
