"""Jobs of several ranks on cards: a busy card may compute, launch too slowly, or sit in a collective."""

import pytest

from tests.frames import make_frame, make_gpu, make_process, make_target
from tests.gpu_scenes import HOLLOW, IN_MODEL, NO_GPM, UNREAD, held, on
from tests.judging import make_phases, said, scene_of
from tpmon.judge.advice.context import observe
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.comms import find_waits
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules.cards import judge_odd_cap, judge_pcie, judge_thermal
from tpmon.judge.rules.comms import judge_straggler, judge_transfer
from tpmon.judge.rules.gpu import judge_gpu_compute, judge_launch_bound
from tpmon.judge.stacks.profile import Phase
from tpmon.model.gpu import MigInstance
from tpmon.model.host import NetworkSample
from tpmon.model.known import Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind, Origin

NO_NVLINK = dict.fromkeys(("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), Missing("no NVLink"))
QUIET = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, **NO_NVLINK}
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


def test_hollow_cards_of_ranks_that_exchange_are_in_their_collectives():
    card = {**HOLLOW, **QUIET}
    scene = ranks_on(card, card, world=16, network=BUSY_NIC)
    assert "collective" in judge_launch_bound(scene).text
    answer = judge_transfer(scene)
    assert said(answer) == (Kind.COMMS_BOUND, "transfer")
    assert rate_confidence(answer, 60.0) is Confidence.LOW
    # Without traffic nobody knows what they wait for; nothing is said of a transfer.
    assert type(judge_transfer(ranks_on(card, card, world=16))) is Cleared
    assert type(judge_launch_bound(ranks_on(card, card, world=16))) is Unsure


def test_hollow_cards_of_one_machine_that_exchange_nothing_launch_too_slowly():
    card = {**HOLLOW, **QUIET}
    assert said(judge_launch_bound(ranks_on(card, card))) == (Kind.LAUNCH_BOUND, "tiny-kernels")
    # One that works may be the one that the others wait for.
    assert type(judge_launch_bound(ranks_on(card, card, {}))) is Unsure
    unread = {**HOLLOW, **NO_NVLINK, "pcie_tx_bytes_s": UNREAD, "pcie_rx_bytes_s": UNREAD}
    assert type(judge_launch_bound(ranks_on(unread, unread))) is Unsure
    # One of them rests a little more than the others.
    less = {**card, "sm_pct": 88.0}
    assert said(judge_launch_bound(ranks_on(card, less))) == (Kind.LAUNCH_BOUND, "tiny-kernels")
    assert type(judge_launch_bound(ranks_on(card, card, network=BUSY_NIC))) is Suspicion
    idle = {"sm_pct": 40.0}
    assert said(judge_launch_bound(ranks_on(idle, idle, world=16))) == (Kind.LAUNCH_BOUND, "tiny-kernels")


def test_a_host_in_its_own_code_over_a_card_that_never_runs_empty_may_wait_for_it():
    between = {Phase.OTHER: 0.8, Phase.FORWARD: 0.2}
    assert ".item()" in judge_launch_bound(on(make_gpu(**HOLLOW), phases=between)).text
    empty = judge_launch_bound(on(make_gpu(sm_pct=50.0), phases=between))
    assert said(empty) == (Kind.LAUNCH_BOUND, "main-thread")
    assert ".item()" in empty.summary


def test_a_collective_that_synchronises_over_a_full_card_is_no_wait_for_ranks():
    calls = {Phase.COMMS: 0.7, Phase.FORWARD: 0.3}
    full = {"sm_active_pct": 90.0, "power_w": 630.0}
    assert [one.ratio for one in find_waits(ranks_on(full, full, phases=calls))] == pytest.approx([0.1, 0.1])
    assert type(judge_transfer(ranks_on(full, full, phases=calls))) is Cleared
    by_power = {**NO_GPM, "power_w": 455.0}
    waits = find_waits(ranks_on(by_power, by_power, phases=calls))
    assert [one.ratio for one in waits] == pytest.approx([0.35 / 0.65] * 2)


def test_a_card_that_never_runs_empty_and_is_neither_full_nor_hollow_is_bound_by_its_kernels():
    answer = judge_gpu_compute(on(make_gpu(**NO_GPM, sm_pct=97.0, power_w=300.0)))
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert "never empty" in answer.summary
    assert rate_confidence(answer, 60.0) is Confidence.LOW
    # Among ranks that exchange, the rest may be collectives.
    part = {**NO_GPM, "sm_pct": 97.0, "power_w": 300.0}
    assert type(judge_gpu_compute(ranks_on(part, part))) is Unsure
    quiet = {**part, **QUIET}
    assert said(judge_gpu_compute(ranks_on(quiet, quiet))) == (Kind.COMPUTE_BOUND, "gpu")


def test_medium_power_of_ranks_that_exchange_is_said_against_computing():
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


def test_an_active_slice_of_a_card_computes_though_it_has_no_utilisation():
    def slice_of(active_pct):
        one = MigInstance("MIG-1", 1, 8 << 30, 20 << 30, active_pct)
        return make_gpu(mig=True, mig_instances=(one,), sm_pct=UNREAD, sm_active_pct=UNREAD)

    answer = judge_gpu_compute(on(slice_of(94.0)))
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert answer.origins == {Origin.DRIVER}
    assert "94 % of their SMs active" in answer.summary
    assert type(judge_gpu_compute(on(slice_of(30.0)))) is Unsure
    assert type(judge_gpu_compute(on(make_gpu(sm_pct=UNREAD)))) is Unsure


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
    assert (isinstance(answer, Suspicion) and need in answer.observed) is (need is not None)


def test_clocks_that_someone_set_hold_nothing_that_the_power_limit_takes_anyway():
    shares = (*held("power cap", 99.0)["throttle_shares"], *held("application clocks", 99.0)["throttle_shares"])
    card = make_gpu(power_w=690.0, sm_clock_mhz=1400.0, throttle_shares=shares)
    assert type(judge_odd_cap(on(card))) is Cleared


def test_a_slow_link_that_ranks_exchange_over_is_felt_though_no_stack_waits():
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


def test_a_card_in_a_slot_of_four_lanes_is_no_fault_where_no_counter_tells_what_it_costs():
    unread = {"pcie_tx_bytes_s": UNREAD, "pcie_rx_bytes_s": UNREAD, "sm_pct": 94.0}
    assert type(judge_pcie(on(make_gpu(pcie_width=4, **unread)))) is Unsure
    assert type(judge_pcie(on(make_gpu(pcie_width=2, **unread)))) is Suspicion


def test_a_run_that_only_answers_is_not_told_how_to_train():
    hollow = make_gpu(**HOLLOW)
    answers, trains = on(hollow, phases={Phase.FORWARD: 1.0}), on(hollow)
    suspicions = [judge_launch_bound(scene) for scene in (answers, trains)]
    seen = [observe(scene, one) for scene, one in zip((answers, trains), suspicions, strict=True)]
    assert [Need.ONLY_FORWARD in one for one in seen] == [True, False]
