"""Ranks that wait for each other, on made-up Windows: who is late, what moves, what is not told."""

from dataclasses import replace

import pytest

from tests.frames import make_cpu, make_frame, make_gpu, make_process, make_target
from tests.judging import clears, hold, make_looks, make_phases, said, scene_of
from tests.starving import line_up
from tests.waits import wait_of
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.comms import find_waits, is_traffic_read
from tpmon.judge.features.snapshot import see
from tpmon.judge.finding import rate_confidence
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules import comms as rules_comms
from tpmon.judge.rules.comms import (
    judge_comms_unknown,
    judge_object_collectives,
    judge_small_messages,
    judge_straggler,
    judge_transfer,
)
from tpmon.judge.rules.health import judge_cpu_compute
from tpmon.judge.stacks.classify import read_stack
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.stacks.profile import Spot
from tpmon.model.figures import Origin
from tpmon.model.gpu import ThrottleShare
from tpmon.model.host import NetworkSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Confidence, Kind

UNREAD = Missing("not permitted")
HOLLOW = {"sm_pct": 100.0, "sm_active_pct": 6.0, "tensor_pct": 0.0, "dram_pct": 0.5, "power_w": 130.0}
QUIET = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, "nvlink_tx_bytes_s": 0.0, "nvlink_rx_bytes_s": 0.0}
SCARCE = make_cpu(run_delay_ratio=0.6)
IN_SYNC = {Phase.SYNC: 0.9, Phase.BACKWARD: 0.1}
EQUAL = {Phase.FORWARD: 0.5, Phase.BACKWARD: 0.5}
HOT = (ThrottleShare("SW thermal", 60.0, "counter"),)


def waiting(share, rest=Phase.BACKWARD):
    return {Phase.COMMS: share, rest: round(1 - share, 4)}


def make_ranks(count, comm_demand=0.02, waits=0.0):
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 0.9), ThreadGroup(ThreadKind.COMM, 3, comm_demand))
    return tuple(make_process(4211 + i, rank=i, thread_groups=groups, waiting=waits) for i in range(count))


def by_stacks(*ratios, comm_demand=0.02, samples=100, waits=0.0, **frame):
    """See ranks whose stacks show these phases."""
    phases = [make_phases(one, pid=4211 + i, rank=i, samples=samples) for i, one in enumerate(ratios)]
    ranks = make_ranks(len(ratios), comm_demand, waits)
    return scene_of(make_frame(**{"processes": ranks, "loader": (), **frame}), phases)


def by_looks(*locks, **frame):
    """See ranks whose main threads were found in a lock in so many of 10 looks."""
    looks = tuple(make_looks(4211 + i, lock=lock) for i, lock in enumerate(locks))
    processes = make_ranks(len(locks))
    return scene_of(make_frame(**{"processes": processes, "loader": (), "main_threads": looks, **frame}))


def test_the_rank_that_waits_least_is_the_late_one_and_what_it_does_is_said():
    scene = by_stacks(waiting(0.5), waiting(0.55), waiting(0.03, Phase.DATA_WAIT), waiting(0.6))
    answer = judge_straggler(scene)
    assert said(answer) == (Kind.COMMS_BOUND, "straggler")
    assert (answer.rank, answer.pid) == (2, 4213)
    assert answer.summary == "rank 2 waits for its data while 3 other ranks wait for it in a collective"
    assert (answer.weight, answer.origins) == (pytest.approx(0.52), {Origin.STACKS})
    assert type(judge_transfer(scene)) is Cleared
    assert type(judge_comms_unknown(scene)) is Cleared


SPREADS = [
    ("equal", (0.5, 0.5, 0.5), Cleared),
    ("a little unequal", (0.5, 0.4, 0.5), Cleared),
    ("hardly any waiting", (0.15, 0.0, 0.2), Cleared),
    ("one late", (0.5, 0.1, 0.5), Suspicion),
    ("one of two late", (0.45, 0.02), Suspicion),
]


@pytest.mark.parametrize(("name", "shares", "kind"), SPREADS, ids=[row[0] for row in SPREADS])
def test_late_is_told_from_alike(name, shares, kind):
    assert type(judge_straggler(by_stacks(*map(waiting, shares)))) is kind


def test_too_few_samples_a_checkpoint_and_a_single_process_accuse_nobody():
    scene = by_stacks(waiting(0.5), waiting(0.0), samples=6)
    assert type(judge_straggler(scene)) is Unsure
    assert type(judge_transfer(scene)) is Unsure
    scene = by_stacks(waiting(0.6), {Phase.CHECKPOINT: 0.9, Phase.BACKWARD: 0.1})
    assert "pauses on purpose" in judge_straggler(scene).text
    scene = by_stacks(waiting(0.9))
    assert {type(rule(scene)) for rule in rules_comms.RULES} == {Cleared}


def test_locks_alone_name_the_late_rank_also_where_ddp_waits_in_c_or_it_rests():
    answer = judge_straggler(by_looks(6, 5, 0))
    assert (answer.rank, answer.origins) == (2, {Origin.PROC})
    assert type(judge_straggler(by_looks(6, 5, 6))) is Cleared
    in_backward = [make_phases({Phase.BACKWARD: 1.0}, pid=4211 + i, rank=i) for i in range(2)]
    looks = (make_looks(4211, lock=6), make_looks(4212))
    frame = make_frame(processes=make_ranks(2), loader=(), main_threads=looks)
    answer = judge_straggler(scene_of(frame, in_backward))
    assert said(answer) == (Kind.COMMS_BOUND, "straggler")
    assert (answer.rank, answer.origins) == (1, {Origin.PROC})
    ranks = make_ranks(2)
    looks = (make_looks(4211, lock=10), make_looks(4212, other=10))
    processes = (ranks[0], replace(ranks[1], waits_for=wait_of("sleep"), state="S"))
    frame = make_frame(processes=processes, loader=(), main_threads=looks)
    answer = judge_straggler(scene_of(frame))
    assert answer.summary.startswith("rank 1 is in a wait (sleep) while the other rank waits for it")


def test_a_lock_with_other_reasons_is_no_wait_for_ranks():
    pinned = (replace(make_frame().loader[0], pin_thread=True), replace(make_frame().loader[0], pid=4212))
    assert type(judge_straggler(by_looks(6, 0, loader=pinned))) is Unsure
    gpus = (make_gpu(0), make_gpu(1, pids=(4212,)))
    assert type(judge_straggler(by_looks(6, 0, gpus=gpus))) is Unsure
    alone = tuple(make_process(4211 + i, rank=i) for i in range(2))
    assert type(judge_straggler(by_looks(6, 0, processes=alone))) is Unsure


def test_all_waiting_with_busy_threads_or_a_busy_network_is_transfer():
    scene = by_stacks(waiting(0.5), waiting(0.55), comm_demand=0.6)
    answer = judge_transfer(scene)
    assert said(answer) == (Kind.COMMS_BOUND, "transfer")
    assert answer.origins == {Origin.STACKS, Origin.PROC}
    assert type(judge_comms_unknown(scene)) is Cleared
    nic = NetworkSample("eth0", "nic", True, 60e6, 58e6, 0.0, 0.0)
    assert said(judge_transfer(by_stacks(waiting(0.5), waiting(0.5), network=(nic,)))) == (Kind.COMMS_BOUND, "transfer")
    foreign = replace(nic, used_by_job=False)
    assert type(judge_transfer(by_stacks(waiting(0.5), waiting(0.5), network=(foreign,)))) is Cleared


def test_on_crowded_cpus_waits_of_ranks_are_no_transfer_unless_bytes_moved_or_they_want_little():
    busy = {"comm_demand": 0.6, "cpu": SCARCE, "waits": 0.5}
    scene = by_stacks(waiting(0.5), waiting(0.55), **busy)
    assert type(judge_transfer(scene)) is Unsure
    assert type(judge_comms_unknown(scene)) is Unsure
    lo = NetworkSample("lo", "loopback", True, 300e6, 300e6, 0.0, 0.0)
    scene = by_stacks(waiting(0.5), waiting(0.55), **busy, network=(lo,))
    answer = judge_transfer(scene)
    assert said(answer) == (Kind.COMMS_BOUND, "transfer")
    assert answer.origins == {Origin.STACKS, Origin.PROC, Origin.NETWORK}
    assert type(judge_comms_unknown(scene)) is Unsure
    # Measured: four ranks that are late in turn wake up at once on two CPUs, and wait 60 % of the little they want.
    scene = by_stacks(*[waiting(0.65)] * 4, cpu=SCARCE, waits=0.1)
    assert said(judge_comms_unknown(scene)) == (Kind.COMMS_BOUND, "unknown")
    unread = by_stacks(*[waiting(0.65)] * 4, cpu=SCARCE, waits=Missing("threads"))
    assert type(judge_comms_unknown(unread)) is Unsure


def test_ranks_that_wait_for_each_other_are_not_held_by_computing():
    loads = [replace(one, runnable=1.0) for one in make_ranks(2)]
    busy = {"processes": loads, "cpu": make_cpu(budget_cores=2.0, oversubscription=0.5)}
    assert type(judge_cpu_compute(by_looks(1, 1, **busy))) is Suspicion
    assert clears(judge_cpu_compute(by_looks(5, 5, **busy)), "every rank waits for the others 50 %")


def test_on_crowded_cpus_a_rank_must_be_far_behind_to_be_late():
    assert type(judge_straggler(by_stacks(waiting(0.5), waiting(0.2), cpu=SCARCE))) is Cleared
    assert type(judge_straggler(by_stacks(waiting(0.5), waiting(0.2)))) is Suspicion
    assert type(judge_straggler(by_stacks(waiting(0.6), waiting(0.05), cpu=SCARCE))) is Suspicion


def test_all_waiting_for_nothing_that_moves_is_unknown_and_says_who_is_elsewhere():
    scene = by_stacks(waiting(0.7), waiting(0.6), target=make_target(world_size=8))
    answer = judge_comms_unknown(scene)
    assert said(answer) == (Kind.COMMS_BOUND, "unknown")
    assert "6 ranks of this job run elsewhere" in answer.summary
    lone = by_stacks(waiting(0.7), target=make_target(world_size=8))
    assert said(judge_comms_unknown(lone)) == (Kind.COMMS_BOUND, "unknown")


def spinning(*cards, phases):
    gpus = tuple(make_gpu(i, pids=(4211 + i,), **card) for i, card in enumerate(cards))
    return by_stacks(*phases, gpus=gpus)


def test_hollow_cards_whose_hosts_synchronise_wait_for_the_one_that_works_or_for_nccl():
    working = {Phase.DATA_WAIT: 0.8, Phase.FORWARD: 0.2}
    scene = spinning(HOLLOW, HOLLOW, {"sm_pct": 40.0}, phases=[IN_SYNC, IN_SYNC, working])
    answer = judge_straggler(scene)
    assert (answer.rank, answer.cause) == (2, "straggler")
    assert {Origin.DRIVER, Origin.DRIVER, Origin.STACKS} <= answer.origins
    scene = spinning({**HOLLOW, **QUIET}, {**HOLLOW, **QUIET}, phases=[IN_SYNC, IN_SYNC])
    assert said(judge_comms_unknown(scene)) == (Kind.COMMS_BOUND, "unknown")
    moving = spinning(HOLLOW, HOLLOW, phases=[IN_SYNC, IN_SYNC])
    assert said(judge_transfer(moving)) == (Kind.COMMS_BOUND, "transfer")


def over_pcie(**rates):
    """See four ranks in collectives on cards without NVLink."""
    none = dict.fromkeys(("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), Missing("no NVLink"))
    half = {"sm_active_pct": 45.0, "power_w": 420.0}
    cards = tuple(make_gpu(i, pids=(4211 + i,), **none, **half, **rates) for i in range(4))
    return by_stacks(*[waiting(0.42)] * 4, gpus=cards)


def test_batches_that_are_copied_to_the_cards_are_no_exchange_between_ranks():
    copies = over_pcie(pcie_rx_bytes_s=1.2e9, pcie_tx_bytes_s=1e7)
    assert said(judge_comms_unknown(copies)) == (Kind.COMMS_BOUND, "unknown")
    assert type(judge_transfer(copies)) is Cleared
    exchange = judge_transfer(over_pcie(pcie_rx_bytes_s=1.2e9, pcie_tx_bytes_s=0.9e9))
    assert said(exchange) == (Kind.COMMS_BOUND, "transfer")
    assert exchange.origins == {Origin.STACKS, Origin.DRIVER}
    assert {one.name: one.value for one in exchange.evidence}["PCIe, both ways"] == pytest.approx(1.8e9)


SOME = {"nvlink_tx_bytes_s": 2e9, "nvlink_rx_bytes_s": 2e9}
"""Gradients of a small model, which take a hundredth of a step."""


def test_a_hollow_card_is_a_wait_only_as_long_as_its_host_waits():
    """Tiny kernels and .item() make a card as hollow as a collective that spins does."""
    spins = [{Phase.SYNC: 0.7, Phase.BACKWARD: 0.3}] * 2
    assert [one.ratio for one in find_waits(spinning(HOLLOW, HOLLOW, phases=spins))] == [0.7, 0.7]
    for held in (0.25, 0.5):
        items = [{Phase.SYNC: held, Phase.FORWARD: 1 - held}] * 2
        scene = spinning({**HOLLOW, **SOME}, {**HOLLOW, **SOME}, phases=items)
        assert [one.ratio for one in find_waits(scene)] == [0.0, 0.0]
        assert {type(rule(scene)) for rule in rules_comms.RULES} == {Cleared}
    in_model = {Phase.FORWARD: 0.7, Phase.BACKWARD: 0.3}
    scene = spinning({**HOLLOW, **SOME}, {**HOLLOW, **SOME}, phases=[in_model, in_model])
    assert {type(rule(scene)) for rule in rules_comms.RULES} == {Cleared}


def test_a_synchronise_on_a_hollow_card_is_a_collective_only_where_something_shows_one():
    alone = (ThreadGroup(ThreadKind.MAIN, 1, 0.9),)
    ranks = tuple(make_process(4211 + i, rank=i, thread_groups=alone) for i in range(2))

    def waits(*phases, **card):
        cards = tuple(make_gpu(i, pids=(4211 + i,), **{**HOLLOW, **card}) for i in range(2))
        return [one.ratio for one in find_waits(by_stacks(*phases, gpus=cards, processes=ranks))]

    assert waits(IN_SYNC, IN_SYNC) == [0.0, 0.0]
    assert waits(IN_SYNC, IN_SYNC, **QUIET) == [0.9, 0.9]
    seen = {Phase.SYNC: 0.8, Phase.COMMS: 0.1, Phase.BACKWARD: 0.1}
    assert waits(seen, seen) == pytest.approx([0.9, 0.9])


def eight(**slow):
    cards = tuple(make_gpu(i, pids=(4211 + i,), **(slow if i == 5 else {})) for i in range(8))
    return by_stacks(*[EQUAL] * 8, gpus=cards)


def test_a_card_with_a_low_clock_holds_the_others_back_if_it_stays_low_and_heat_does_not_explain_it():
    answer = judge_straggler(eight(sm_clock_mhz=1500.0, power_w=430.0))
    assert (answer.card, answer.rank, answer.cause) == (5, 5, "straggler")
    assert (answer.origins, answer.weight) == ({Origin.DRIVER, Origin.DRIVER}, pytest.approx(1 - 1500 / 1980))
    # Low power alone is a card that waits.
    assert type(judge_straggler(eight(power_w=400.0))) is Cleared
    assert type(judge_straggler(eight(power_w=400.0, sm_clock_mhz=UNREAD))) is Unsure
    assert "held below its clocks" in judge_straggler(eight(sm_clock_mhz=1200.0, throttle_shares=HOT)).text
    slow, well = eight(sm_clock_mhz=1500.0).frame, eight().frame
    frames = [replace(one, gpus=well.gpus) for one in hold(well, 25)]
    assert type(judge_straggler(see(frames))) is not Suspicion
    frames = [replace(one, gpus=slow.gpus if i > 18 else well.gpus) for i, one in enumerate(frames)]
    assert type(judge_straggler(see(frames))) is not Suspicion
    # Where every rank holds the card open, none is named.
    pids = tuple(range(4211, 4219))
    slow = {"sm_clock_mhz": 1200.0}
    cards = tuple(make_gpu(i, pids=pids, pids_are_visible_only=True, **(slow if i == 5 else {})) for i in range(8))
    answer = judge_straggler(by_stacks(*[waiting(0.3)] * 8, gpus=cards))
    assert (answer.card, answer.rank, answer.pid) == (5, NOT_APPLICABLE, NOT_APPLICABLE)


def uneven(gap, **slow):
    """See eight ranks of which rank 5 waits less than the others, by this share, on such a card."""
    spin = {"sm_pct": 99.0, "sm_active_pct": 35.0, "power_w": 390.0}
    cards = tuple(make_gpu(i, pids=(4211 + i,), **({**spin, **slow} if i == 5 else spin)) for i in range(8))
    return by_stacks(*[waiting(0.02 if i == 5 else 0.02 + gap) for i in range(8)], gpus=cards)


def test_a_rank_with_more_to_do_is_late_though_its_card_is_held_or_clocks_lower():
    capped = (ThrottleShare("power cap", 95.0, "counter"),)
    answer = judge_straggler(uneven(0.53, power_w=690.0, sm_clock_mhz=1640.0, throttle_shares=capped))
    assert answer.summary.startswith("rank 5 computes")
    assert answer.weight == pytest.approx(0.53)
    # Where all cards are at their limit, the one with by far the lowest clock is the slower one.
    cards = [{"power_w": 690.0, "throttle_shares": capped, "pids": (4211 + i,)} for i in range(8)]
    cards[5]["sm_clock_mhz"] = 1500.0
    same = by_stacks(*[EQUAL] * 8, gpus=tuple(make_gpu(i, **one) for i, one in enumerate(cards)))
    assert judge_straggler(same).summary.startswith("card 5 is slower")
    assert judge_straggler(uneven(0.53, sm_clock_mhz=1640.0)).summary.startswith("rank 5 computes")
    assert judge_straggler(uneven(0.3, sm_clock_mhz=1500.0)).summary.startswith("card 5 is slower")
    answer = judge_straggler(uneven(0.53, sm_clock_mhz=1640.0, throttle_shares=HOT))
    assert said(answer) == (Kind.COMMS_BOUND, "straggler")
    assert answer.rank == 5


def locked(*phases, stays=0.0):
    """See two ranks always in a lock by the kernel's word, whose stacks show these phases."""
    looks = tuple(make_looks(4211 + i, lock=10) for i in range(len(phases)))
    known = [
        make_phases(one, pid=4211 + i, rank=i, same_place_s=stays, distinct=1 if stays else 9)
        for i, one in enumerate(phases)
    ]
    frame = make_frame(processes=make_ranks(len(phases)), loader=(), main_threads=looks)
    return scene_of(frame, known)


def test_a_lock_counts_for_a_collective_only_within_one_or_within_backward_that_goes_on():
    backward, own = {Phase.BACKWARD: 1.0}, {Phase.OTHER: 1.0}
    assert [wait.ratio for wait in find_waits(locked(backward, backward))] == [1.0, 1.0]
    waits = find_waits(locked(own, backward))
    assert [(wait.rank.process.rank, wait.ratio) for wait in waits] == [(0, 0.0), (1, 1.0)]
    assert said(judge_straggler(locked(own, backward))) == (Kind.COMMS_BOUND, "straggler")
    assert type(judge_comms_unknown(locked(own, backward))) is Cleared
    before = {Phase.BACKWARD: 0.4, Phase.OTHER: 0.6}
    assert find_waits(locked(before, {Phase.BACKWARD: 1.0}, stays=20.0))[0].ratio == 0.0
    assert find_waits(locked(before, {Phase.BACKWARD: 1.0}))[0].ratio == pytest.approx(0.4)


def crowded(*got, lock=4):
    """See ranks beside others that take the CPUs: CPUs got by each, the first never in a lock."""
    looks = tuple(make_looks(4211 + i, lock=lock if i else 1) for i in range(len(got)))
    ranks = tuple(
        replace(one, runnable=cpus + 0.5, waiting=0.5) for one, cpus in zip(make_ranks(len(got)), got, strict=True)
    )
    cpu = make_cpu(budget_cores=2.0, run_delay_ratio=0.4)
    return scene_of(make_frame(processes=ranks, loader=(), main_threads=looks, cpu=cpu))


def test_on_a_crowded_machine_more_cpu_time_on_average_tells_the_rank_that_has_more_to_do():
    assert type(judge_straggler(crowded(0.5, 0.45))) is Cleared
    assert type(judge_straggler(crowded(0.5, 0.37))) is Cleared
    late = judge_straggler(crowded(0.8, 0.35))
    assert said(late) == (Kind.COMMS_BOUND, "straggler")
    assert (late.rank, late.origins) == (0, {Origin.PROC, Origin.PROC})
    assert late.evidence[-1].value == pytest.approx(0.8 / 0.35)
    assert said(judge_straggler(crowded(0.5, 0.45, lock=8))) == (Kind.COMMS_BOUND, "straggler")
    assert type(judge_straggler(crowded(0.9, 0.2, lock=1))) is Cleared
    assert type(judge_straggler(crowded(0.9, 0.2, lock=2))) is Cleared
    unread = replace(make_ranks(2)[0], waiting=UNREAD)
    cpu = make_cpu(budget_cores=2.0, run_delay_ratio=0.4)
    assert type(judge_straggler(by_looks(1, 4, processes=(unread, make_ranks(2)[1]), cpu=cpu))) is Cleared
    # A rank that evaluates alone for 6 s of 10 has 2.4 times the CPU time, not the 50 times of most seconds.
    both, alone = crowded(0.8, 0.8, lock=1), crowded(0.8, 0.02, lock=9)
    frames = line_up([both.frame] * 4 + [alone.frame] * 7)
    late = judge_straggler(see(frames))
    assert late.evidence[-1].value == pytest.approx(0.8 * 11 / (0.8 * 4 + 0.02 * 7))


def test_who_has_less_to_do_waits_less_where_it_waits_for_a_cpu_too_and_for_nobody_where_cpus_are_free():
    """Read beside one busy process: a rank with half of the other's work slept 0.25 to 0.44 of the time."""
    late = judge_straggler(crowded(0.71, 0.4, lock=3))
    assert said(late) == (Kind.COMMS_BOUND, "straggler")
    assert rate_confidence(late, 60.0) is Confidence.LOW
    assert type(judge_straggler(crowded(0.55, 0.51, lock=3))) is Cleared
    assert type(judge_straggler(crowded(0.71, 0.4, lock=2))) is Cleared
    unseen = replace(crowded(0.71, 0.4, lock=3).frame, gpus=Missing("nvidia-smi hangs"))
    assert type(judge_straggler(scene_of(unseen))) is Cleared
    # A rank that waits runs less: there the CPU time says nothing that the wait has not said.
    frame = crowded(0.9, 0.5, lock=3).frame
    free = replace(frame, cpu=make_cpu(budget_cores=16.0, run_delay_ratio=0.02))
    assert type(judge_straggler(scene_of(free))) is Cleared
    late = judge_straggler(scene_of(replace(free, main_threads=crowded(0.9, 0.5, lock=5).frame.main_threads)))
    assert said(late) == (Kind.COMMS_BOUND, "straggler")
    assert late.origins == {Origin.PROC}


def test_where_a_card_computes_the_step_the_hosts_cpu_time_says_nothing_of_it():
    ranks = tuple(replace(one, runnable=cpus) for one, cpus in zip(make_ranks(2), (0.9, 0.3), strict=True))
    cards = (make_gpu(0, pids=(4211,)), make_gpu(1, pids=(4212,)))
    for gpus, answer in (((), (Kind.COMMS_BOUND, "straggler")), (cards, Cleared)):
        cpu = make_cpu(budget_cores=2.0, run_delay_ratio=0.4)
        shares = (waiting(share, Phase.FORWARD) for share in (0.02, 0.25))
        assert said(judge_straggler(by_stacks(*shares, processes=ranks, gpus=gpus, cpu=cpu))) == answer


def test_little_moves_only_where_what_moves_was_read():
    nic = NetworkSample("eth0", "nic", True, 1e3, 1e3, 0.0, 0.0)
    read = by_stacks(waiting(0.5), waiting(0.5), network=(nic,))
    assert judge_transfer(read) == Cleared("transfer between ranks (little moves)")
    assert "little moves" in judge_comms_unknown(read).summary
    unread = by_stacks(waiting(0.5), waiting(0.5), network=Missing("no sysfs"))
    assert judge_transfer(unread) == Unsure("transfer between ranks (how much moves was not read)")
    assert "how much moves was not read" in judge_comms_unknown(unread).summary
    # Between the cards of one machine nothing goes over an interface.
    links = ("pcie_tx_bytes_s", "pcie_rx_bytes_s", "nvlink_tx_bytes_s", "nvlink_rx_bytes_s")
    dark = dict.fromkeys(links, Missing("not supported"))
    cards = (make_gpu(0, pids=(4211,), **dark), make_gpu(1, pids=(4212,), **dark))
    for world, little in ((2, False), (16, True)):
        target = make_target(world_size=world)
        scene = by_stacks(waiting(0.5), waiting(0.5), network=(nic,), gpus=cards, target=target)
        assert is_traffic_read(scene) is little


def exchange(*, wakings=8000.0, bytes_s=4e6, ratios=(0.8, 0.85), cards=(), **frame):
    """See ranks that are off the CPU within backward and wake up this often while so many bytes go each way."""
    phases = [make_phases({Phase.BACKWARD: 0.95, Phase.FORWARD: 0.05}, pid=4211 + i, rank=i) for i in range(2)]
    looks = tuple(make_looks(4211 + i, lock=round(10 * ratio)) for i, ratio in enumerate(ratios))
    processes = tuple(replace(one, switches_s=wakings) for one in make_ranks(2, 0.9))
    network = (NetworkSample("lo", "nic", True, bytes_s, bytes_s, 0.0, 0.0),)
    fields = {"processes": processes, "loader": (), "main_threads": looks, "network": network, "gpus": cards, **frame}
    return scene_of(make_frame(**fields), phases)


def test_ranks_that_wake_up_all_the_time_and_move_little_exchange_small_messages():
    answer = judge_small_messages(exchange())
    assert said(answer) == (Kind.COMMS_BOUND, "small-messages")
    assert answer.share == pytest.approx(0.8), "the wait of the rank that waits least is what can be gained"
    assert answer.summary.endswith("each wakes up 8000 times a second and moves 500B each time")
    assert {Origin.PROC, Origin.NETWORK} <= answer.origins
    assert rate_confidence(answer, 60.0) is Confidence.HIGH
    # On crowded CPUs each message waits for a CPU: still the messages, but what they cost alone is not known.
    crowded = judge_small_messages(
        exchange(cpu=SCARCE, processes=tuple(replace(one, switches_s=8000.0) for one in make_ranks(2, 0.9, 0.8)))
    )
    assert crowded.margin == 1.0
    explained = find_explained([(Kind.COMMS_BOUND, one) for one in ("small-messages", "transfer", "unknown")])
    assert explained == {(Kind.COMMS_BOUND, "transfer"), (Kind.COMMS_BOUND, "unknown")}


NOT_SMALL = {
    "large messages": (exchange(wakings=600.0, bytes_s=250e6), Cleared),
    "many, and large": (exchange(bytes_s=250e6), Cleared),
    "few": (exchange(wakings=300.0), Cleared),
    "hardly any wait": (exchange(ratios=(0.2, 0.2)), Cleared),
    "one is late": (exchange(ratios=(0.8, 0.0)), Cleared),
    "bytes were not read": (exchange(network=UNREAD), Unsure),
    "wakings were not read": (exchange(wakings=UNREAD), Unsure),
    "one rank": (by_stacks(waiting(0.9)), Cleared),
}


@pytest.mark.parametrize("name", NOT_SMALL)
def test_what_is_no_exchange_of_small_messages(name):
    scene, expected = NOT_SMALL[name]
    assert type(judge_small_messages(scene)) is expected


def share_objects(*ratios, samples=100):
    """See ranks that are in collectives of objects for these shares of their time."""
    phases = [
        make_phases(
            {Phase.COMMS: ratio, Phase.FORWARD: round(1 - ratio, 4)},
            pid=4211 + i,
            rank=i,
            samples=samples,
            proven={Need.OBJECTS_IN_STACK: ratio},
            spots={Phase.COMMS: Spot("all_gather_object metric.py:40", ratio, Phase.COMMS)},
        )
        for i, ratio in enumerate(ratios)
    ]
    return scene_of(make_frame(processes=make_ranks(len(ratios)), loader=()), phases)


def test_ranks_that_send_python_objects_in_the_loop_are_held_by_that():
    answer = judge_object_collectives(share_objects(0.6, 0.5))
    assert said(answer) == (Kind.COMMS_BOUND, "objects")
    assert answer.share == pytest.approx(0.5)
    assert answer.summary.endswith("(all_gather_object metric.py:40)")
    assert {Need.OBJECTS_IN_STACK} == answer.observed
    others = [(Kind.COMMS_BOUND, one) for one in ("small-messages", "transfer", "unknown")]
    assert find_explained([(Kind.COMMS_BOUND, "objects"), *others]) == set(others)


@pytest.mark.parametrize(
    ("scene", "kind"),
    [
        (share_objects(0.6, 0.1), Cleared),  # one rank hardly is
        (share_objects(0.1, 0.1), Cleared),
        (share_objects(0.6, 0.6, samples=6), Unsure),
        (by_stacks(waiting(0.6), waiting(0.6)), Cleared),  # collectives of tensors
        (by_stacks(waiting(0.9)), Cleared),
    ],
)
def test_other_waits_between_ranks_send_no_objects(scene, kind):
    assert type(judge_object_collectives(scene)) is kind


def test_stacks_tell_collectives_of_objects_whoever_calls_them():
    c10d = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    for mine in (("share_metrics", "/home/u/train.py"), ("f", "/srv/a/all_reduce.py")):
        frames = [StackFrame(*mine, 7), StackFrame("all_gather_object", c10d, 3100)]
        assert Need.OBJECTS_IN_STACK in read_stack((*frames, StackFrame("_object_to_tensor", c10d, 2900))).needs
        plain = read_stack((frames[0], StackFrame("all_gather", c10d, 3700)))
        assert plain.phase is Phase.COMMS
        assert Need.OBJECTS_IN_STACK not in plain.needs
