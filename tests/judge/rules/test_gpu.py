"""GPU causes on made-up Windows: cards that are full, starved, launched too slowly, synchronised with, in collectives."""

import pytest

from tests.frames import NO_DRIVER, make_frame, make_gpu, make_process, make_target
from tests.gpu_scenes import HOLLOW, IN_MODEL, NO_GPM, UNREAD, held, on
from tests.judging import advise, clears, doubts, make_phases, said, scene_of
from tpmon.judge.advice.context import observe
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.comms import find_waits
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules import gpu as rules_gpu
from tpmon.judge.rules.cards import judge_odd_cap, judge_pcie, judge_thermal
from tpmon.judge.rules.comms import judge_straggler, judge_transfer
from tpmon.judge.rules.gpu import judge_explicit_sync, judge_gpu_compute, judge_launch_bound
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.model.figures import Origin
from tpmon.model.gpu import MigInstance, ThrottleShare
from tpmon.model.host import NetworkSample
from tpmon.model.known import Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind

TINY, MAIN_THREAD = (Kind.LAUNCH_BOUND, "tiny-kernels"), (Kind.LAUNCH_BOUND, "main-thread")
MIG = MigInstance("MIG-1", 1, 1 << 30, 10 << 30, UNREAD, (4211,))

FULL = [
    ("the H100 of the note", {"sm_active_pct": 92.0, "tensor_pct": 28.0, "dram_pct": 20.0}, "gpu-compute"),
    ("moves memory", {"sm_active_pct": 95.0, "tensor_pct": 3.0, "dram_pct": 74.0}, "gpu-memory-bandwidth"),
    ("no GPM, high power", {**NO_GPM, "power_w": 420.0}, "gpu"),
    ("middling SM, high power", {"sm_active_pct": 40.0, "power_w": 420.0}, "gpu"),
    ("no tensor figure", {"sm_active_pct": 90.0, "tensor_pct": UNREAD, "dram_pct": 80.0}, "gpu"),
]


@pytest.mark.parametrize(("name", "card", "cause"), FULL, ids=[row[0] for row in FULL])
def test_a_full_card_is_healthy_and_says_with_what(name, card, cause):
    answer = judge_gpu_compute(on(make_gpu(**card)))
    assert said(answer) == (Kind.COMPUTE_BOUND, cause)
    assert answer.margin > 1
    assert Origin.DRIVER in answer.origins
    assert judge_launch_bound(on(make_gpu(**card))).__class__ is Cleared


NOT_FULL = [
    ("starved", {"sm_pct": 41.0}, Cleared),
    ("hollow", HOLLOW, Cleared),
    ("hot", held("HW thermal", 40.0), Cleared),
    ("utilisation not read", {"sm_pct": UNREAD}, Unsure),
]


@pytest.mark.parametrize(("name", "card", "kind"), NOT_FULL, ids=[row[0] for row in NOT_FULL])
def test_a_card_that_is_not_full_is_not_called_so(name, card, kind):
    assert type(judge_gpu_compute(on(make_gpu(**card)))) is kind


def test_one_starved_card_of_eight_is_not_full_and_a_full_one_hides_a_loader_that_is_waited_for():
    cards = [make_gpu(i) for i in range(7)]
    assert said(judge_gpu_compute(on(*cards))) == (Kind.COMPUTE_BOUND, "gpu-compute")
    assert type(judge_gpu_compute(on(*cards, make_gpu(7, sm_pct=30.0)))) is Cleared
    # 20 ms of queued kernels and 12 ms of loader: the GPU is full, and the wait is named as hidden.
    phases = {Phase.DATA_WAIT: 0.6, Phase.FORWARD: 0.2, Phase.BACKWARD: 0.2}
    scene = on(make_gpu(sm_pct=98.0), phases=phases)
    answer = judge_gpu_compute(scene)
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu-compute")
    assert any(one.name == "hidden data wait" for one in answer.shows)


def test_without_cards_nothing_about_them_is_suspected():
    for rule in rules_gpu.RULES:
        assert type(rule(scene_of(make_frame(gpus=NO_DRIVER)))) is Cleared
        assert type(rule(scene_of(make_frame(gpus=())))) is Cleared
        hidden = Missing("GPUs not visible from this shell (container or Slurm step)")
        assert type(rule(scene_of(make_frame(gpus=hidden)))) is Unsure


LAUNCHES = [
    ("hollow by GPM, in the model", HOLLOW, IN_MODEL, TINY),
    ("hollow by power", {**NO_GPM, "sm_pct": 99.0, "power_w": 150.0}, IN_MODEL, TINY),
    ("idle GPU, host in the model", {"sm_pct": 45.0}, IN_MODEL, TINY),
    ("Python between launches", {"sm_pct": 30.0}, {Phase.OTHER: 0.7, Phase.FORWARD: 0.3}, MAIN_THREAD),
    ("in a synchronise", HOLLOW, {Phase.SYNC: 0.9, Phase.FORWARD: 0.1}, Cleared),
    ("in a collective", HOLLOW, {Phase.COMMS: 0.5, Phase.BACKWARD: 0.5}, Cleared),
    ("loads its data itself", {"sm_pct": 30.0}, {Phase.DATA_WAIT: 0.7, Phase.FORWARD: 0.3}, Cleared),
    ("no stacks", HOLLOW, {}, Unsure),
    ("full", {}, IN_MODEL, Cleared),
    ("low clock explains low power", {**NO_GPM, "power_w": 150.0, "sm_clock_mhz": 900.0}, IN_MODEL, Cleared),
    ("utilisation not read", {"sm_pct": UNREAD}, IN_MODEL, Unsure),
]


@pytest.mark.parametrize(("name", "card", "phases", "wanted"), LAUNCHES, ids=[row[0] for row in LAUNCHES])
def test_launch_bound_needs_slack_and_a_host_that_works(name, card, phases, wanted):
    assert said(judge_launch_bound(on(make_gpu(**card), phases=phases))) == wanted


def test_a_main_thread_that_does_not_move_is_not_launching_and_autograd_may_in_its_place():
    frame = make_frame(gpus=(make_gpu(**HOLLOW),), processes=(make_process(),))
    still = make_phases({Phase.FORWARD: 1.0}, distinct=1, unchanged_s=25.0)
    assert "does not move" in judge_launch_bound(scene_of(frame, [still])).text
    fresh = make_phases({Phase.FORWARD: 1.0}, distinct=1, unchanged_s=3.0)
    assert "why is not known yet" in judge_launch_bound(scene_of(frame, [fresh])).text
    both = (ThreadGroup(ThreadKind.MAIN, 1, 0.45), ThreadGroup(ThreadKind.AUTOGRAD, 1, 0.5))
    alone = (ThreadGroup(ThreadKind.MAIN, 1, 0.45), ThreadGroup(ThreadKind.POOL, 8, 4.0))
    assert isinstance(judge_launch_bound(on(make_gpu(**HOLLOW), thread_groups=both)), Suspicion)
    assert type(judge_launch_bound(on(make_gpu(**HOLLOW), thread_groups=alone))) is Cleared
    unread = (ThreadGroup(ThreadKind.MAIN, 1, UNREAD),)
    assert type(judge_launch_bound(on(make_gpu(**HOLLOW), thread_groups=unread))) is Unsure


def test_slack_that_a_synchronise_leaves_open_is_laid_to_launching_less_surely():
    ratios = {Phase.SYNC: 0.25, Phase.FORWARD: 0.4, Phase.BACKWARD: 0.35}
    for card in (HOLLOW, {"sm_pct": 25.0}):
        answer = judge_launch_bound(on(make_gpu(**card), phases=ratios))
        assert said(answer) == TINY
        assert "launches 75 % of the time" in answer.summary
        assert answer.against
    half = judge_launch_bound(on(make_gpu(sm_pct=60.0), phases=ratios))
    assert half == Cleared("launching of kernels (rank 0 is 25 % in waits for GPU or ranks)")


POOL = (ThreadGroup(ThreadKind.MAIN, 1, 0.95), ThreadGroup(ThreadKind.OTHER, 40, 8.5))
CPU_ADAM = {Phase.OPTIMIZER: 0.6, Phase.FORWARD: 0.15, Phase.BACKWARD: 0.25}


def test_an_optimizer_that_computes_on_the_cpu_is_no_launching_which_is_charged_with_the_rest_only():
    offloaded = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=CPU_ADAM, thread_groups=POOL))
    assert doubts(offloaded, "60 % in the optimizer")
    on_card = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=CPU_ADAM))
    assert said(on_card) == TINY
    decoding = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=IN_MODEL, thread_groups=POOL))
    assert said(decoding) == TINY
    rest = judge_launch_bound(on(make_gpu(sm_pct=5.0), phases=CPU_ADAM, thread_groups=POOL))
    assert rest.share == pytest.approx((0.95 - 0.6) * 0.4)
    assert "launches 40 % of the time" in rest.summary


def test_cards_that_work_one_after_another_are_not_laid_to_their_host():
    sums = "96 % busy in sum"
    four = [make_gpu(i, sm_pct=24.0, sm_active_pct=22.0, power_w=240.0) for i in range(4)]
    assert doubts(judge_launch_bound(on(*four)), sums)
    frame = make_frame(gpus=tuple(four), processes=(make_process(),), loader=())
    phases = make_phases({Phase.SYNC: 0.4, Phase.FORWARD: 0.6}, needs=frozenset((Need.SYNC_IN_STACK,)))
    assert doubts(judge_explicit_sync(scene_of(frame, [phases])), sums)
    few = [make_gpu(i, sm_pct=15.0) for i in range(4)]
    assert said(judge_launch_bound(on(*few))) == TINY
    shared = [make_gpu(0, sm_pct=60.0, pids=(4211, 4212)), make_gpu(1, sm_pct=35.0)]
    assert said(judge_launch_bound(on(*shared))) == TINY


def sync_scene(card, ratios, needs, parts=None, proven=None):
    frame = make_frame(gpus=(make_gpu(**card),), processes=(make_process(),), loader=())
    phases = make_phases(ratios, needs=frozenset(needs), parts=parts or {}, proven=proven or {})
    return scene_of(frame, [phases])


def test_a_synchronise_costs_its_own_time_at_most_and_only_where_the_gpu_runs_empty():
    ratios = {Phase.SYNC: 0.5, Phase.FORWARD: 0.5}
    empty = judge_explicit_sync(sync_scene({"sm_pct": 55.0}, ratios, [Need.SYNC_IN_STACK]))
    assert said(empty) == (Kind.SYNC_BOUND, "explicit")
    assert empty.weight == pytest.approx(0.45)
    assert {Origin.STACKS, Origin.DRIVER} == empty.origins
    full = judge_explicit_sync(sync_scene({"sm_pct": 97.0}, ratios, [Need.SYNC_IN_STACK]))
    assert "costs 0" in full.text
    # A host that launches for 75 % of a step needs them without the .item() too: 1.3x at most.
    ratios = {Phase.SYNC: 0.25, Phase.FORWARD: 0.4, Phase.BACKWARD: 0.35}
    answer = judge_explicit_sync(sync_scene({"sm_pct": 25.0}, ratios, [Need.SYNC_IN_STACK]))
    assert said(answer) == (Kind.SYNC_BOUND, "explicit")
    assert (answer.share, answer.weight) == (0.25, 0.25)
    ratios = {Phase.SYNC: 0.25, Phase.FORWARD: 0.75}
    assert doubts(judge_explicit_sync(sync_scene(HOLLOW, ratios, [Need.SYNC_IN_STACK])), "hollow")


def test_waits_of_the_scaler_and_of_the_trainer_are_explicit_ones_with_a_remedy_of_their_own():
    ratios = {Phase.SYNC: 0.4, Phase.FORWARD: 0.6}
    for need, first in (
        (Need.SCALER_IN_STACK, "scaler-without-wait"),
        (Need.NAN_CHECK_IN_STACK, "nan-filter-off"),
        (Need.SYNC_IN_STACK, "sync-rarely"),
    ):
        scene = sync_scene({"sm_pct": 40.0}, ratios, [need], proven={need: 0.4})
        answer = judge_explicit_sync(scene)
        assert said(answer) == (Kind.SYNC_BOUND, "explicit")
        assert answer.observed == {need}
        assert advise(scene, answer)[0].remedy.id == first


def test_gpu_idle_that_unpacking_or_the_loader_explains_is_not_laid_to_a_synchronise():
    ratios = {Phase.SYNC: 0.3, Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.3}
    proven = {Need.SYNC_IN_STACK: 0.3}
    scene = sync_scene({"sm_pct": 45.0}, ratios, [Need.SYNC_IN_STACK], {DataPart.COPY: 0.4}, proven)
    assert judge_explicit_sync(scene).share == pytest.approx(0.15)
    ratios = {Phase.SYNC: 0.3, Phase.DATA_WAIT: 0.5, Phase.FORWARD: 0.2}
    scene = sync_scene({"sm_pct": 45.0}, ratios, [Need.SYNC_IN_STACK])
    assert clears(judge_explicit_sync(scene), "the host is elsewhere")


def test_launches_are_told_with_what_was_read_of_them():
    answer = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=IN_MODEL))
    assert answer.summary.endswith("% of the time and its GPU is not full: its launches do not keep the GPU busy")
    assert "main thread runs or waits for a CPU" in {row.name for row in answer.evidence}
    assert Need.ONE_THREAD_BUSY not in answer.observed
    python = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases={Phase.OTHER: 0.6, Phase.FORWARD: 0.4}))
    assert said(python) == MAIN_THREAD
    assert Need.ONE_THREAD_BUSY in python.observed


def test_copies_and_the_allocator_are_told_from_explicit_synchronising_each_by_its_own_samples():
    copies = sync_scene(
        {"sm_pct": 50.0}, {Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.6}, [Need.COPY_IN_STACK], {DataPart.COPY: 0.4}
    )
    assert said(rules_gpu.judge_implicit_sync(copies)) == (Kind.SYNC_BOUND, "implicit")
    assert type(judge_explicit_sync(copies)) is Cleared
    frees = sync_scene({"sm_pct": 50.0}, {Phase.SYNC: 0.4, Phase.FORWARD: 0.6}, [Need.ALLOCATOR_IN_STACK])
    assert said(rules_gpu.judge_allocator_sync(frees)) == (Kind.SYNC_BOUND, "allocator")
    assert type(judge_explicit_sync(frees)) is Cleared
    assert type(rules_gpu.judge_allocator_sync(copies)) is Cleared
    ratios = {Phase.SYNC: 0.4, Phase.FORWARD: 0.6}
    both = {Need.SYNC_IN_STACK: 0.34, Need.ALLOCATOR_IN_STACK: 0.06}
    scene = sync_scene({"sm_pct": 40.0}, ratios, both, proven=both)
    assert judge_explicit_sync(scene).share == 0.34
    assert rules_gpu.judge_allocator_sync(scene) == Cleared("allocator synchronising (6.0 % of samples)")
    ratios = {Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.6}
    parts, proven = {DataPart.COPY: 0.4}, {Need.COPY_IN_STACK: 0.06}
    scene = sync_scene({"sm_pct": 50.0}, ratios, [Need.COPY_IN_STACK], parts, proven)
    assert rules_gpu.judge_implicit_sync(scene) == Cleared("implicit synchronising (6.0 % of samples)")


def test_a_card_that_is_busy_and_tells_nothing_more_is_the_limit_at_low_confidence():
    for unread in ({"power_w": UNREAD}, {"power_limit_w": UNREAD}, {"power_w": 300.0, "sm_clock_mhz": UNREAD}):
        answer = judge_gpu_compute(on(make_gpu(**{**NO_GPM, **unread})))
        assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
        assert "never empty; how full they are is not measured: 96 % busy" in answer.summary
        assert ": not supported)" in answer.unread[0]
        assert rate_confidence(answer, 60.0) is Confidence.LOW
    frame = make_frame(gpus=(make_gpu(**NO_GPM, power_w=UNREAD),), processes=(make_process(),), loader=(), output=())
    assert type(judge_gpu_compute(scene_of(frame))) is Unsure


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({**NO_GPM, "power_w": 100.0, "sm_clock_mhz": UNREAD}, "GPU compute (card 0: SM clock: not supported)"),
        (
            {**NO_GPM, "mig": True, "mig_instances": (MIG,)},
            "GPU compute (card 0: MIG slices have no utilisation; SM activity: not supported)",
        ),
        ({**NO_GPM, "sm_pct": UNREAD}, "GPU compute (card 0: not supported; SM activity: not supported)"),
    ],
    ids=["little power at an unknown clock", "a slice of an A100", "a vGPU"],
)
def test_what_is_missing_is_named(card, words):
    assert judge_gpu_compute(on(make_gpu(**card))) == Unsure(words)


def test_a_slice_computes_that_its_host_waits_for_or_that_is_active_though_it_has_no_utilisation():
    scene = on(make_gpu(**NO_GPM, mig=True, mig_instances=(MIG,)), phases={Phase.SYNC: 0.7, Phase.BACKWARD: 0.3})
    answer = judge_gpu_compute(scene)
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert "their hosts wait for them" in answer.summary

    def slice_of(active_pct):
        one = MigInstance("MIG-1", 1, 8 << 30, 20 << 30, active_pct)
        return make_gpu(mig=True, mig_instances=(one,), sm_pct=UNREAD, sm_active_pct=UNREAD)

    answer = judge_gpu_compute(on(slice_of(94.0)))
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert answer.origins == {Origin.DRIVER}
    assert "94 % of their SMs active" in answer.summary
    assert type(judge_gpu_compute(on(slice_of(30.0)))) is Unsure
    assert type(judge_gpu_compute(on(make_gpu(sm_pct=UNREAD)))) is Unsure


NO_NVLINK = dict.fromkeys(("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), Missing("no NVLink"))
QUIET = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, **NO_NVLINK}
CAPPED_AND_SET = tuple(ThrottleShare(one, 99.0, "counter") for one in ("power cap", "application clocks"))
BUSY_NIC = (NetworkSample("eth0", "nic", True, 60e6, 58e6, 0.0, 0.0),)


def ranks_on(*cards, phases=None, world=None, **frame):
    """See a rank on each of these cards, by default with its main thread in the model."""
    groups = (ThreadGroup(ThreadKind.MAIN, 1, 1.0), ThreadGroup(ThreadKind.COMM, 3, 0.02))
    pids = range(4211, 4211 + len(cards))
    processes = tuple(make_process(pid, rank=i, thread_groups=groups) for i, pid in enumerate(pids))
    gpus = tuple(make_gpu(i, **{"pids": (4211 + i,), **card}) for i, card in enumerate(cards))
    stacks = [make_phases(phases or IN_MODEL, pid=pid, rank=i) for i, pid in enumerate(pids)]
    target = make_target(world_size=world or len(cards), local_ranks=len(cards))
    seen = {"gpus": gpus, "processes": processes, "loader": (), "target": target, **frame}
    return scene_of(make_frame(**seen), stacks)


def test_hollow_cards_of_ranks_that_exchange_are_in_their_collectives_and_others_launch_too_slowly():
    card = {**HOLLOW, **QUIET}
    scene = ranks_on(card, card, world=16, network=BUSY_NIC)
    assert "collective" in judge_launch_bound(scene).text
    answer = judge_transfer(scene)
    assert said(answer) == (Kind.COMMS_BOUND, "transfer")
    assert rate_confidence(answer, 60.0) is Confidence.LOW
    # Without traffic nobody knows what they wait for; nothing is said of a transfer.
    assert type(judge_transfer(ranks_on(card, card, world=16))) is Cleared
    assert type(judge_launch_bound(ranks_on(card, card, world=16))) is Unsure
    card = {**HOLLOW, **QUIET}
    assert said(judge_launch_bound(ranks_on(card, card))) == TINY
    # One that works may be the one that the others wait for.
    assert type(judge_launch_bound(ranks_on(card, card, {}))) is Unsure
    unread = {**HOLLOW, **NO_NVLINK, "pcie_tx_bytes_s": UNREAD, "pcie_rx_bytes_s": UNREAD}
    assert type(judge_launch_bound(ranks_on(unread, unread))) is Unsure
    # One of them rests a little more than the others.
    less = {**card, "sm_pct": 88.0}
    assert said(judge_launch_bound(ranks_on(card, less))) == TINY
    assert type(judge_launch_bound(ranks_on(card, card, network=BUSY_NIC))) is Suspicion
    idle = {"sm_pct": 40.0}
    assert said(judge_launch_bound(ranks_on(idle, idle, world=16))) == TINY


def test_a_host_in_its_own_code_over_a_card_that_never_runs_empty_may_wait_for_it():
    between = {Phase.OTHER: 0.8, Phase.FORWARD: 0.2}
    assert ".item()" in judge_launch_bound(on(make_gpu(**HOLLOW), phases=between)).text
    empty = judge_launch_bound(on(make_gpu(sm_pct=50.0), phases=between))
    assert said(empty) == MAIN_THREAD
    assert ".item()" in empty.summary


def test_a_collective_that_synchronises_over_a_full_card_is_no_wait_for_ranks():
    calls = {Phase.COMMS: 0.7, Phase.FORWARD: 0.3}
    full = {"sm_active_pct": 90.0, "power_w": 630.0}
    assert [one.ratio for one in find_waits(ranks_on(full, full, phases=calls))] == pytest.approx([0.1, 0.1])
    assert type(judge_transfer(ranks_on(full, full, phases=calls))) is Cleared
    by_power = {**NO_GPM, "power_w": 455.0}
    waits = find_waits(ranks_on(by_power, by_power, phases=calls))
    assert [one.ratio for one in waits] == pytest.approx([0.35 / 0.65] * 2)


def test_a_card_neither_full_nor_hollow_nor_empty_is_bound_by_its_kernels_unless_ranks_exchange():
    answer = judge_gpu_compute(on(make_gpu(**NO_GPM, sm_pct=97.0, power_w=300.0)))
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert "never empty" in answer.summary
    assert rate_confidence(answer, 60.0) is Confidence.LOW
    # Among ranks that exchange, the rest may be collectives.
    part = {**NO_GPM, "sm_pct": 97.0, "power_w": 300.0}
    assert type(judge_gpu_compute(ranks_on(part, part))) is Unsure
    quiet = {**part, **QUIET}
    assert said(judge_gpu_compute(ranks_on(quiet, quiet))) == (Kind.COMPUTE_BOUND, "gpu")
    half = {**NO_GPM, "power_w": 420.0}
    assert judge_gpu_compute(on(make_gpu(**half))).against == ()
    answer = judge_gpu_compute(ranks_on(half, half))
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert [row.name for row in answer.against] == ["NVLink"]
    assert judge_gpu_compute(ranks_on({}, {})).against == ()


def test_a_card_whose_clock_is_locked_is_full_at_the_power_of_its_clock():
    locked = {**NO_GPM, "sm_clock_mhz": 990.0, "power_w": 280.0}
    answer = judge_gpu_compute(on(make_gpu(**locked)))
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert answer.origins == {Origin.DRIVER, Origin.DRIVER}
    doubtful = {**locked, "sm_active_pct": 5.0, "sm_clock_mhz": 594.0, "power_w": 126.0}
    assert type(judge_gpu_compute(on(make_gpu(**doubtful)))) is Unsure


def test_cards_at_their_power_limits_clock_as_their_chips_allow():
    capped = {"power_w": 690.0, "sm_clock_mhz": 1560.0, **held("power cap", 99.0)}
    spread = [capped] * 7 + [{**capped, "sm_clock_mhz": 1390.0}]
    assert type(judge_straggler(ranks_on(*spread))) is Cleared
    ruined = [capped] * 7 + [{**capped, "sm_clock_mhz": 1190.0}]
    assert said(judge_straggler(ranks_on(*ruined))) == (Kind.COMMS_BOUND, "straggler")


def test_heat_costs_what_the_other_cards_have_more_than_the_hot_one():
    capped = {"power_w": 690.0, "sm_clock_mhz": 1465.0, **held("power cap", 99.0)}
    hot = {"sm_clock_mhz": 1228.0, **held("SW thermal", 90.0)}
    alone = judge_thermal(ranks_on(hot))
    among = judge_thermal(ranks_on(capped, capped, hot))
    assert alone.share == pytest.approx(0.96 * (1 - 1228 / 1980))
    assert among.share == pytest.approx(0.96 * (1 - 1228 / 1465))
    assert (among.card, among.cause) == (2, "thermal")
    alike = {**hot, "sm_clock_mhz": 1440.0, "power_w": 690.0}
    scene = ranks_on(capped, capped, alike)
    assert type(judge_thermal(scene)) is Cleared
    assert said(judge_gpu_compute(scene)) == (Kind.COMPUTE_BOUND, "gpu-compute")


@pytest.mark.parametrize(
    ("card", "need"),
    [
        # The limit of a module or of a rail, hardly below the own one.
        ({"power_w": 518.0, "sm_clock_mhz": 1700.0, **held("power cap", 99.0)}, None),
        # Clocks that someone set hold nothing that the power limit takes anyway.
        ({"power_w": 690.0, "sm_clock_mhz": 1400.0, "throttle_shares": CAPPED_AND_SET}, None),
        ({"power_w": 350.0, "sm_clock_mhz": 1200.0, **held("power cap", 99.0)}, Need.CARD_CAPPED_ABOVE),
        ({"sm_clock_mhz": 1200.0, **held("application clocks", 99.0)}, Need.CARD_CAPPED),
        ({"sm_clock_mhz": 1200.0, **held("display clocks", 99.0)}, Need.CARD_CAPPED),
        ({"sm_clock_mhz": 1200.0, **held("board limit", 99.0)}, Need.CARD_SICK),
        ({"sm_clock_mhz": 1200.0, **held("reliability", 99.0)}, Need.CARD_SICK),
        ({"sm_clock_mhz": 1200.0, **held("HW slowdown", 99.0)}, Need.CARD_SICK),
    ],
)
def test_who_lowers_a_clock_is_told_from_what_the_card_shares(card, need):
    answer = judge_odd_cap(on(make_gpu(**card)))
    if need is None:
        assert type(answer) is Cleared
    else:
        assert need in answer.observed


def test_a_slow_link_that_ranks_exchange_over_is_felt_and_four_lanes_alone_are_no_fault():
    part = {"sm_pct": 100.0, "sm_active_pct": 60.0, "power_w": 420.0}
    slow = {"pcie_generation": 3, "pcie_width": 4, **NO_NVLINK, **part}
    exchange = {**slow, "pcie_tx_bytes_s": 3.0e9, "pcie_rx_bytes_s": 3.0e9}
    answer = judge_pcie(ranks_on(exchange, {**exchange, "pcie_width": 16}))
    assert (said(answer), answer.card) == ((Kind.GPU_THROTTLED, "pcie"), 0)
    works = {"sm_active_pct": 90.0, "power_w": 630.0}
    assert type(judge_pcie(ranks_on({**exchange, **works}, {**exchange, **works}))) is Cleared
    copies = {**slow, "pcie_tx_bytes_s": 0.0, "pcie_rx_bytes_s": 3.0e9}
    assert type(judge_pcie(ranks_on(copies, copies))) is Cleared
    assert type(judge_pcie(on(make_gpu(**exchange)))) is Cleared
    unread = {"pcie_tx_bytes_s": UNREAD, "pcie_rx_bytes_s": UNREAD, "sm_pct": 94.0}
    assert type(judge_pcie(on(make_gpu(pcie_width=4, **unread)))) is Unsure
    assert type(judge_pcie(on(make_gpu(pcie_width=2, **unread)))) is Suspicion


def test_a_run_that_only_answers_is_not_told_how_to_train():
    hollow = make_gpu(**HOLLOW)
    scenes = (on(hollow, phases={Phase.FORWARD: 1.0}), on(hollow))
    assert [Need.ONLY_FORWARD in observe(one, judge_launch_bound(one)) for one in scenes] == [True, False]
