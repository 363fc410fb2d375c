"""Ranks on cards that stand still: who waits for its own card, who for another rank, and who is at work."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import BACKWARD, DECODE, LIB, MAIN, NFS, SITE, make_native, make_rank, make_thread
from tests.frames import NOW_NS, make_gpu
from tests.hanging import conclude, expect, said, sample, stand
from tests.judging import SECOND
from tpmon.judge.watch.tracker import RankMemory
from tpmon.model.dump import DumpRound, ProcessToll
from tpmon.model.host import NetworkSample
from tpmon.model.known import Missing, is_known
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

ITEM = (MAIN, StackFrame("train", "/run/train.py", 77))
SYNCHRONIZE = (*ITEM, StackFrame("synchronize", f"{SITE}/torch/cuda/__init__.py", 950))
RUNS = {"state": "R", "waits_for": "running", "wchan": "0", "call": ""}
READS = {"state": "D", "waits_for": "NFS", "waits_on": NFS, "call": "read"}
QUIET = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, "nvlink_tx_bytes_s": 0.0, "nvlink_rx_bytes_s": 0.0}
SPINS = {"sm_pct": 100.0, "sm_active_pct": 2.0, "power_w": 110.0, **QUIET}
UNREAD = Missing("not supported")
NO_LINKS = {"pcie_tx_bytes_s": UNREAD, "pcie_rx_bytes_s": UNREAD}
LOOP = (MAIN, StackFrame("wait_for_flag", "/run/train.py", 50))
RESULT = (MAIN, StackFrame("wait", f"{LIB}/concurrent/futures/_base.py", 451))
POOL_THREAD = (
    StackFrame("run", f"{LIB}/threading.py", 980),
    StackFrame("_worker", f"{LIB}/concurrent/futures/thread.py", 83),
    StackFrame("run", f"{LIB}/concurrent/futures/thread.py", 58),
)
WRITES = (*POOL_THREAD, StackFrame("_write_item", f"{SITE}/torch/distributed/checkpoint/filesystem.py", 300))


def spins(rank: int) -> Any:
    """Make a rank whose host spins over its card, as in ``.item()``, which leaves no frame."""
    return make_rank(rank, frames=ITEM, holds_gil=False, **RUNS)


def sampled(frames: Any, *pids: int) -> Any:
    """Put slices of all of these processes into the same Frames."""
    return sampled_at(frames, dict.fromkeys(pids, ITEM))


def sampled_at(frames: Any, stacks: dict[int, tuple[StackFrame, ...]]) -> Any:
    """Do the same with a stack for each."""
    each = [sample(frames, pid, stack) for pid, stack in stacks.items()]
    return [
        replace(row[0], stacks=tuple(one for frame in row for one in frame.stacks)) for row in zip(*each, strict=True)
    ]


def test_ranks_that_spin_in_a_collective_wait_for_the_one_that_is_not_in_it():
    ranks = [spins(0), spins(1), spins(2)]
    late = make_rank(3, frames=DECODE, **READS)
    pids = [one.pid for one in ranks]
    gpus = tuple(make_gpu(i, pids=(pid,), **SPINS) for i, pid in enumerate(pids))
    finding = expect("missing-rank", sampled(stand(*ranks, late, world_size=4, gpus=gpus), *pids))
    assert finding.summary.startswith("3 of 4 ranks wait in ")
    assert "rank 3 is in decode data.py:88" in finding.summary


def test_ranks_that_spin_at_different_lines_are_in_one_collective_or_in_several():
    ranks = [spins(0), spins(1), make_rank(2, frames=SYNCHRONIZE, holds_gil=False, **RUNS)]
    pids = [one.pid for one in ranks]
    gpus = tuple(make_gpu(i, pids=(pid,), **SPINS) for i, pid in enumerate(pids))
    frames = stand(*ranks, world_size=3, gpus=gpus, seconds=60, log_age_s=None)
    finding = expect(
        "gpu-wait",
        sampled_at(frames, dict(zip(pids, (ITEM, ITEM, SYNCHRONIZE), strict=True))),
        "one collective, or in different ones: ranks 0-1 in train train.py:77",
    )
    assert not is_known(finding.rank)


def test_of_ranks_that_wait_for_cards_of_which_one_works_that_one_is_named_after_half_an_hour():
    ranks = [spins(0), spins(1)]
    pids = [one.pid for one in ranks]
    gpus = (make_gpu(0, pids=pids[:1], **SPINS), make_gpu(1, pids=pids[1:], sm_pct=100.0))
    for seconds, hung in ((400, False), (1830, True)):
        finding = conclude(sampled(stand(*ranks, world_size=2, gpus=gpus, seconds=seconds, log_age_s=None), *pids))
        assert (finding.kind is Kind.HUNG) is hung
    assert "all 2 ranks wait for their cards; rank 1 waits for its card" in finding.summary
    assert "card 1 works" in finding.summary


def test_ranks_that_all_spin_accuse_nobody_here_where_others_run_elsewhere():
    ranks = [spins(0), spins(1)]
    pids = [one.pid for one in ranks]
    gpus = tuple(make_gpu(i, pids=(pid,), **SPINS) for i, pid in enumerate(pids))
    apart = stand(*ranks, world_size=4, gpus=gpus, seconds=310, log_age_s=None)
    assert said(sampled(apart, *pids)) == (Kind.HUNG, "remote-rank")


def test_ranks_that_all_spin_wait_in_one_collective_and_none_of_them_is_the_culprit():
    ranks = [spins(rank) for rank in range(4)]
    pids = [one.pid for one in ranks]
    gpus = tuple(make_gpu(i, pids=(pid,), **SPINS) for i, pid in enumerate(pids))
    finding = expect("gpu-wait", sampled(stand(*ranks, world_size=4, gpus=gpus), *pids))
    assert finding.summary.startswith("all 4 ranks wait for their cards, none of which does anything")
    assert not is_known(finding.rank)
    assert [row.name for row in finding.evidence][:4] == [f"rank {n} ({4000 + 10 * n})" for n in range(4)]


@pytest.mark.parametrize(
    ("card", "network", "hung"),
    [
        ({}, (), True),
        ({"pcie_tx_bytes_s": 60e6, "pcie_rx_bytes_s": 60e6}, (), False),
        (NO_LINKS, (), False),
        ({}, (NetworkSample("eth0", "nic", True, 60e6, 60e6, 0.0, 0.0),), False),
    ],
    ids=["links at rest", "links that move", "links unread", "a network that moves"],
)
def test_a_slow_collective_that_moves_bytes_is_no_hang(card, network, hung):
    rank = spins(0)
    gpus = (make_gpu(0, pids=(rank.pid,), **{**SPINS, **card}),)
    frames = stand(rank, world_size=2, gpus=gpus, network=network, seconds=100, log_age_s=100.0)
    steps = RankMemory(rank.pid, 100, moved_ns=NOW_NS - 150 * SECOND, begun_ns=NOW_NS - 200 * SECOND)
    watch = {"ranks": (steps,), "begun_ns": NOW_NS - 200 * SECOND, "asked_s": 30.0}
    finding = conclude(sampled(frames, rank.pid), **watch)
    assert (finding.kind is Kind.HUNG) is hung


def test_ranks_that_wait_for_gradients_while_their_cards_compute_have_minutes():
    def job(**card):
        gloo = make_native(9001, "pt_nccl_watchdg")
        ranks = [make_rank(rank, replace(gloo, tid=9000 + rank), frames=BACKWARD) for rank in (0, 1)]
        gpus = tuple(make_gpu(i, pids=(one.pid,), **card) for i, one in enumerate(ranks))
        return stand(*ranks, world_size=2, seconds=100, log_age_s=None, gpus=gpus)

    assert said(job(**SPINS)) == (Kind.HUNG, "no-progress")
    assert said(job(sm_pct=99.0))[0] is not Kind.HUNG


@pytest.mark.parametrize(
    ("card", "seconds", "expected"),
    [
        ({"sm_pct": UNREAD}, 100, False),
        ({"sm_pct": UNREAD}, 330, True),
        ({"mig": True, "sm_pct": UNREAD, "sm_active_pct": UNREAD}, 330, True),
    ],
)
def test_a_card_of_which_nothing_is_told_gives_minutes_and_not_for_ever(card, seconds, expected):
    rank = spins(0)
    frames = stand(rank, seconds=seconds, log_age_s=None, gpus=(make_gpu(0, pids=(rank.pid,), **card),))
    assert (said(sampled(frames, rank.pid))[0] is Kind.HUNG) is expected


@pytest.mark.parametrize(
    ("watts", "limit", "seconds", "hung"),
    [
        (34.0, 70.0, 100, False),
        (34.0, 70.0, 330, True),
        (180.0, 400.0, 100, False),
        (180.0, 400.0, 330, True),
        (50.0, 70.0, 1000, False),
        (300.0, 400.0, 1000, False),
    ],
)
def test_a_card_at_medium_power_gives_minutes_and_not_for_ever(watts, limit, seconds, hung):
    rank = spins(0)
    power = {"power_w": watts, "power_limit_w": limit, "sm_active_pct": UNREAD}
    gpus = (make_gpu(0, pids=(rank.pid,), **{**SPINS, **power}),)
    frames = stand(rank, seconds=seconds, log_age_s=None, gpus=gpus)
    assert (said(sampled(frames, rank.pid))[0] is Kind.HUNG) is hung


def test_a_rank_whose_stack_nobody_could_read_is_named_with_what_the_kernel_says():
    others = [make_rank(rank) for rank in (0, 1)]
    traced = make_rank(2, frames=Missing("another tracer holds it"), **READS)
    expect(
        "missing-rank",
        stand(*others, traced, world_size=3, seconds=330, log_age_s=None),
        "the stack of rank 2 was not read (another tracer holds it), by the kernel in: NFS",
    )


def test_the_readings_tell_of_a_read_that_no_stack_shows():
    others = [make_rank(rank) for rank in (0, 1)]
    traced = make_rank(2, frames=Missing("another tracer holds it"), **READS)
    for seconds, hung in ((100, False), (330, True)):
        job = stand(*others, traced, make_rank(3, frames=LOOP), world_size=4, seconds=seconds, log_age_s=None)
        assert (said(job) == (Kind.HUNG, "blocked-io")) is hung


def test_a_rank_that_nobody_could_read_hides_no_hang_on_cards():
    ranks = [spins(0), spins(1)]
    pids = [one.pid for one in ranks]
    gpus = tuple(make_gpu(i, pids=(pid,), **SPINS) for i, pid in enumerate(pids))
    traced = make_rank(2, frames=Missing("another tracer holds it"), **READS)
    frames = stand(*ranks, traced, world_size=3, seconds=330, log_age_s=None, gpus=gpus)
    assert said(sampled(frames, *pids)) == (Kind.HUNG, "missing-rank")


def test_a_card_of_which_nothing_is_told_accuses_no_rank_of_those_that_spin():
    ranks = [spins(0), spins(1)]
    pids = [one.pid for one in ranks]
    gpus = (make_gpu(0, pids=(pids[0],), **SPINS), make_gpu(1, pids=(pids[1],), **{**SPINS, "sm_pct": UNREAD}))
    frames = stand(*ranks, world_size=2, seconds=330, log_age_s=None, gpus=gpus)
    assert said(sampled(frames, *pids)) == (Kind.HUNG, "gpu-wait")


def test_a_checkpoint_that_a_thread_writes_has_the_time_of_one():
    writer = make_thread(7, name="writer", kind=ThreadKind.OTHER, frames=WRITES, **READS)
    rank = make_rank(0, writer, frames=RESULT, waits_for="lock or queue (futex)")
    assert said(stand(rank, seconds=100, log_age_s=None))[0] is not Kind.HUNG


def test_threads_of_a_logger_do_not_hide_the_one_that_writes_a_checkpoint():
    logs = (
        StackFrame("run", f"{LIB}/threading.py", 980),
        StackFrame("check", f"{SITE}/wandb/sdk/wandb_run.py", 300),
        StackFrame("wait", f"{LIB}/threading.py", 331),
    )
    loggers = [make_thread(5 + n, name="log", kind=ThreadKind.OTHER, frames=logs) for n in range(3)]
    writer = make_thread(9, name="writer", kind=ThreadKind.OTHER, frames=WRITES, **READS)
    rank = make_rank(0, *loggers, writer, frames=RESULT, waits_for="lock or queue (futex)")
    assert said(stand(rank, seconds=100, log_age_s=None))[0] is not Kind.HUNG
    expect("lock", stand(rank, seconds=310, log_age_s=None), "thread writer (9)")


NCCL = make_native(9001, "pt_nccl_watchdg")


def blind(*numbers: int) -> list[Any]:
    """Make ranks that spin over cards which nobody can read: of AMD, or of another container."""
    return [make_rank(rank, replace(NCCL, tid=9000 + rank), frames=ITEM, holds_gil=False, **RUNS) for rank in numbers]


def test_ranks_that_spin_over_cards_that_cannot_be_read_are_not_told_to_compute():
    ranks = blind(0, 1)
    pids = [one.pid for one in ranks]
    for size, cause in ((2, "gpu-wait"), (16, "remote-rank")):
        early = stand(*ranks, world_size=size, seconds=100, log_age_s=None)
        assert said(sampled(early, *pids))[0] is not Kind.HUNG
        late = stand(*ranks, world_size=size, seconds=310, log_age_s=None)
        finding = expect(cause, sampled(late, *pids))
        assert not is_known(finding.rank)
    alone = stand(*blind(0), world_size=16, seconds=310, log_age_s=None)
    assert said(sampled(alone, 4000)) == (Kind.HUNG, "remote-rank")


def test_who_is_not_with_those_that_spin_over_unread_cards_is_named_as_soon_as_any():
    ranks, late = blind(0, 1, 2), make_rank(3, NCCL, frames=DECODE, **READS)
    frames = stand(*ranks, late, world_size=4)
    finding = conclude(sampled(frames, *(one.pid for one in ranks)))
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 3)
    assert finding.summary.startswith("3 of 4 ranks wait in ")


IN_NUMPY = (*ITEM, StackFrame("svd", f"{SITE}/numpy/linalg/_linalg.py", 1800))
IN_TORCH = (*ITEM, StackFrame("_wrapped_call_impl", f"{SITE}/torch/nn/modules/module.py", 1780))
IN_FRAMEWORK = (*ITEM, StackFrame("has_overflow", f"{SITE}/deepspeed/runtime/utils.py", 190))


@pytest.mark.parametrize(
    ("stack", "holds_gil", "computes"),
    [
        (IN_NUMPY, True, True),
        (IN_NUMPY, False, True),
        (IN_TORCH, True, True),
        (IN_TORCH, False, False),
        (IN_FRAMEWORK, False, False),
    ],
    ids=["numpy with the lock", "numpy", "torch with the lock", "torch", "a framework"],
)
def test_who_computes_himself_over_unread_cards_is_who_the_others_wait_for(stack, holds_gil, computes):
    waits = [make_rank(rank, replace(NCCL, tid=9000 + rank)) for rank in range(3)]
    odd = make_rank(3, replace(NCCL, tid=9003), frames=stack, holds_gil=holds_gil, **RUNS)
    frames = stand(*waits, odd, world_size=4, seconds=310, log_age_s=None)
    finding = conclude(sample(frames, odd.pid, stack))
    assert finding.kind is Kind.HUNG
    assert finding.summary.startswith("3 of 4 ranks wait in " if computes else "all 4 ranks wait ")
    assert (finding.rank == 3) is computes


def test_ranks_without_threads_of_nccl_compute_themselves():
    ranks = [replace(one, threads=one.threads[:1]) for one in blind(0, 1)]
    frames = stand(*ranks, world_size=2, seconds=310, log_age_s=None)
    assert said(sampled(frames, *(one.pid for one in ranks))) == (Kind.HUNG, "spin")
    alone = stand(*blind(0), world_size=1, seconds=310, log_age_s=None)
    assert said(sampled(alone, 4000)) == (Kind.HUNG, "spin")


@pytest.mark.parametrize(("bytes_s", "hung"), [(50e6, False), (1e4, True)])
def test_a_download_that_takes_no_cpu_is_at_work_while_it_flows(bytes_s, hung):
    target = (MAIN, StackFrame("fetch", "/run/data.py", 12), StackFrame("wait", f"{LIB}/threading.py", 359))
    rank = make_rank(0, frames=target, waits_for="lock or queue (futex)")
    frames = stand(rank, seconds=400, log_age_s=None)
    flowing = [
        replace(one, processes=tuple(replace(p, asked_read_bytes_s=bytes_s) for p in one.processes)) for one in frames
    ]
    assert (said(flowing)[0] is Kind.HUNG) is hung
    # What flowed while it was looked at, and no more, gives minutes.
    for seconds, late in ((100, hung), (330, True)):
        looked = [
            replace(frame, rounds=tuple(take(one, bytes_s) for one in frame.rounds))
            if is_known(frame.rounds)
            else frame
            for frame in stand(rank, seconds=seconds, log_age_s=None)
        ]
        assert (said(looked)[0] is Kind.HUNG) is late


def take(one: DumpRound, bytes_s: float) -> DumpRound:
    """Let every process of a look have moved so much since the machine was started."""
    toll = ProcessToll(0, 0, round(bytes_s * one.taken_ns / 1e9))
    return replace(one, processes=tuple(replace(process, toll=toll) for process in one.processes))


def test_ranks_that_all_wait_for_idle_cards_wait_in_one_collective_too():
    ranks = [make_rank(rank, frames=SYNCHRONIZE) for rank in range(2)]
    idle = {**SPINS, "sm_pct": 0.0, "sm_active_pct": 0.0, "power_w": 70.0}
    gpus = tuple(make_gpu(i, pids=(one.pid,), **idle) for i, one in enumerate(ranks))
    finding = expect("gpu-wait", stand(*ranks, world_size=2, gpus=gpus, log_age_s=None, seconds=320))
    assert finding.summary.startswith("all 2 ranks wait for their cards")
    assert not is_known(finding.rank)
