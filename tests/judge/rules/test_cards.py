"""Cards that are hot, capped, badly linked or unwell, on made-up Windows; any reading gets an answer."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frames import make_frame, make_gpu, make_process
from tests.gpu_scenes import HOLLOW, NO_GPM, UNREAD, held, on
from tests.judging import hold, make_phases, said, scene_of
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.card_holds import answer_without_cards
from tpmon.judge.features.card_use import find_unseen_cards
from tpmon.judge.features.snapshot import see
from tpmon.judge.rules import card_faults
from tpmon.judge.rules import gpu as rules_gpu
from tpmon.judge.rules.card_faults import judge_unhealthy, note_held, note_hollow, note_xids
from tpmon.judge.rules.cards import judge_brake, judge_odd_cap, judge_pcie, judge_thermal
from tpmon.judge.rules.gpu import judge_gpu_compute
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.tracker import NO_WATCH, observe
from tpmon.model.figures import Origin
from tpmon.model.gpu import GpuSample, ThrottleShare
from tpmon.model.known import NOT_APPLICABLE, Missing, Why
from tpmon.model.verdict import Kind

IDLE_LINKS = {"pcie_tx_bytes_s": 0.0, "pcie_rx_bytes_s": 0.0, "nvlink_tx_bytes_s": 0.0, "nvlink_rx_bytes_s": 0.0}
HEAT = [
    ("counter", held("SW thermal", 12.0), True),
    ("hardware", held("HW thermal", 6.0), True),
    ("bit for 4 of 10 s", held("SW thermal", 40.0, "bit"), True),
    ("bit for 1 s", held("SW thermal", 10.0, "bit"), False),
    ("counter just moved", held("SW thermal", 1.0), False),
    ("idle card", {**held("SW thermal", 50.0), "sm_pct": 5.0}, False),
    ("power cap is not heat", held("power cap", 100.0), False),
]


@pytest.mark.parametrize(("name", "card", "guilty"), HEAT, ids=[row[0] for row in HEAT])
def test_heat_is_a_cause_when_it_holds_a_loaded_card(name, card, guilty):
    answer = judge_thermal(on(make_gpu(**{"sm_clock_mhz": 1300.0, **card})))
    assert isinstance(answer, Suspicion) is guilty
    if guilty:
        assert said(answer) == (Kind.GPU_THROTTLED, "thermal")
        assert (answer.weight, answer.origins) == (pytest.approx(0.96 * (1 - 1300 / 1980)), {Origin.DRIVER})
        assert answer.card == 0


def test_heat_that_costs_next_to_nothing_is_a_note_and_no_cause():
    warm = on(make_gpu(**held("SW thermal", 6.0), sm_clock_mhz=1965.0))
    assert "costs card 0 0.7 %" in judge_thermal(warm).text
    assert said(judge_gpu_compute(warm)) == (Kind.COMPUTE_BOUND, "gpu-compute")
    assert note_held(warm) == "held: a thermal reason held card 0 for 6.0 % of 10 s; it costs about 0.7 %"
    assert note_held(on(make_gpu(**held("power brake", 8.0)))).startswith("held: the power brake held card 0")
    assert note_held(on(make_gpu(**held("SW thermal", 12.0), sm_clock_mhz=1300.0))) == ""
    assert note_held(on(make_gpu(**held("SW thermal", 12.0), sm_clock_mhz=UNREAD))) == ""
    assert note_held(on(make_gpu())) == ""


def test_heat_answers_for_what_it_took_itself_and_by_the_second():
    both = (ThrottleShare("power cap", 98.0, "counter"), ThrottleShare("SW thermal", 7.0, "counter"))
    small = make_gpu(throttle_shares=both, power_w=690.0, sm_clock_mhz=1010.0)
    assert type(judge_thermal(on(small))) is Cleared
    long = (ThrottleShare("power cap", 98.0, "counter"), ThrottleShare("SW thermal", 60.0, "counter"))
    answer = judge_thermal(on(replace(small, throttle_shares=long)))
    assert answer.weight == pytest.approx(0.96 * (1 - 1010 / 1980) * 0.6)
    assert answer.summary.startswith("card 0 is held: a thermal reason, though the core has 29 C left")
    both = (ThrottleShare("application clocks", 100.0, "bit"), ThrottleShare("SW thermal", 40.0, "bit"))
    answer = judge_thermal(on(make_gpu(throttle_shares=both, sm_clock_mhz=1680.0)))
    assert answer.weight == pytest.approx(0.96 * (1 - 1680 / 1980))
    slow = make_frame(gpus=(make_gpu(**held("HW thermal", 30.0), sm_clock_mhz=990.0),))
    well = make_frame(gpus=(make_gpu(**held("HW thermal", 30.0)),))
    frames = [replace(one, gpus=(slow if i % 3 == 0 else well).gpus) for i, one in enumerate(hold(well))]
    answer = judge_thermal(see(frames))
    assert said(answer) == (Kind.GPU_THROTTLED, "thermal")
    assert 0.1 < answer.weight < 0.25


def test_the_worst_card_is_named_with_its_rank_and_one_that_several_ranks_hold_open_with_none():
    hot = held("SW thermal", 20.0)
    cards = (make_gpu(0, **hot, sm_clock_mhz=1500.0), make_gpu(1, **hot, sm_clock_mhz=900.0, pids=(4212,)))
    ranks = (make_process(4211), make_process(4212, rank=1))
    answer = judge_thermal(scene_of(make_frame(gpus=cards, processes=ranks)))
    assert (answer.card, answer.rank) == (1, 1)
    # Only open device files tell, and CUDA opens every card that it may see.
    hot = {**held("SW thermal", 20.0), "sm_clock_mhz": 900.0, "pids_are_visible_only": True}

    def rank_on_card_1(*pids):
        cards = (make_gpu(0, pids=pids[0], pids_are_visible_only=True), make_gpu(1, **hot, pids=pids[1]))
        answer = judge_thermal(scene_of(make_frame(gpus=cards, processes=ranks)))
        assert answer.card == 1
        return answer.rank

    assert rank_on_card_1((4211, 4212), (4211, 4212)) is NOT_APPLICABLE
    assert rank_on_card_1((4211,), (4211, 4212)) == 1
    assert rank_on_card_1((4211,), (4212,)) == 1
    assert rank_on_card_1((4211,), (4211,)) == 0


def test_the_power_brake_is_its_own_cause():
    assert said(judge_brake(on(make_gpu(**held("power brake", 8.0), sm_clock_mhz=700.0)))) == (
        Kind.GPU_THROTTLED,
        "brake",
    )
    assert type(judge_brake(on(make_gpu(**held("power brake", 10.0, "bit"))))) is Cleared
    assert type(judge_brake(on(make_gpu(throttle_known=UNREAD)))) is Unsure


CAPS = [
    ("capped far below its limit", {**held("power cap", 100.0), "power_w": 300.0, "sm_clock_mhz": 1200.0}, True),
    ("capped below its limit at its clock", {**held("power cap", 100.0), "power_w": 300.0}, False),
    ("capped at its limit: normal", {**held("power cap", 100.0), "power_w": 690.0}, False),
    ("clocks locked low", {**held("application clocks", 100.0), "sm_clock_mhz": 1200.0}, True),
    ("default application clocks", {**held("application clocks", 100.0), "sm_clock_mhz": 1755.0}, False),
    ("bursts at the cap", {**held("power cap", 20.0), "power_w": 300.0}, False),
    ("at its limit for 58 % of each step", {**held("power cap", 58.0), "power_w": 524.0}, False),
    ("the same, far below its limit", {**held("power cap", 58.0), "power_w": 250.0, "sm_clock_mhz": 1200.0}, True),
    ("starved card", {**held("power cap", 100.0), "power_w": 300.0, "sm_pct": 60.0}, False),
    ("power not read", {**held("power cap", 100.0), "power_w": UNREAD}, False),
]


@pytest.mark.parametrize(("name", "card", "guilty"), CAPS, ids=[row[0] for row in CAPS])
def test_only_a_cap_that_the_limit_does_not_explain_is_odd(name, card, guilty):
    answer = judge_odd_cap(on(make_gpu(**card)))
    assert isinstance(answer, Suspicion) is guilty
    if guilty:
        assert said(answer) == (Kind.GPU_THROTTLED, "odd-cap")
        assert answer.margin > 1


def test_running_at_the_power_limit_and_a_full_memory_are_notes_and_no_faults():
    limited = on(make_gpu(**held("power cap", 100.0), power_w=690.0, sm_clock_mhz=1500.0))
    assert card_faults.note_power_limited(limited).startswith("power-limited")
    assert card_faults.note_power_limited(on(make_gpu())) == ""
    full = on(make_gpu(memory_used_bytes=97, memory_total_bytes=100))
    assert card_faults.note_memory_full(full).startswith("memory-full: card 0 has 97 %")
    assert card_faults.note_memory_full(on(make_gpu(memory_total_bytes=UNREAD))) == ""
    for answer in (rule(scene) for rule in rules_gpu.RULES for scene in (limited, full)):
        assert not isinstance(answer, Suspicion) or answer.kind is Kind.COMPUTE_BOUND


def test_hollow_is_a_note_that_names_the_figure():
    assert "SM activity 8.0 %" in note_hollow(on(make_gpu(**HOLLOW)))
    assert "power 19 %" in note_hollow(on(make_gpu(**{**HOLLOW, **NO_GPM})))
    assert note_hollow(on(make_gpu())) == ""
    assert note_hollow(on(make_gpu(**{**HOLLOW, "sm_clock_mhz": 800.0}))) == ""
    assert note_hollow(on(make_gpu(**{**HOLLOW, "power_w": 500.0}))) == ""


LINKS = [
    ("whole", {}, Cleared),
    ("x4, and much goes over it", {"pcie_width": 4, "pcie_rx_bytes_s": 9e9}, Suspicion),
    ("x8, little goes over it", {"pcie_width": 8, "pcie_rx_bytes_s": 1e8}, Cleared),
    ("generation 1 of 5, much goes over it", {"pcie_generation": 1, "pcie_rx_bytes_s": 3e9}, Suspicion),
    ("idle card", {"pcie_generation": 1, "sm_pct": 4.0}, Unsure),
    ("x8, traffic not read", {"pcie_width": 8, **dict.fromkeys(IDLE_LINKS, UNREAD)}, Unsure),
    ("x1, traffic not read", {"pcie_width": 1, **dict.fromkeys(IDLE_LINKS, UNREAD)}, Suspicion),
    ("link not read", {"pcie_width": UNREAD}, Unsure),
]


@pytest.mark.parametrize(("name", "card", "kind"), LINKS, ids=[row[0] for row in LINKS])
def test_a_downtrained_link_is_judged_under_load_by_what_goes_over_it(name, card, kind):
    answer = judge_pcie(on(make_gpu(**card)))
    assert type(answer) is kind
    if kind is Suspicion:
        assert said(answer) == (Kind.GPU_THROTTLED, "pcie")
        assert answer.margin >= 1


GEN_3 = {"pcie_generation": 3, "pcie_generation_max": 4, "pcie_rx_bytes_s": 4e9}


def test_copies_beside_kernels_make_no_slow_link_but_collectives_do_though_their_kernels_count_as_busy():
    full = judge_pcie(on(make_gpu(sm_pct=99.0, **GEN_3)))
    assert full.text.endswith("but copies cost at most 1.0 %)")
    ruined = {"pcie_width": 1, **dict.fromkeys(IDLE_LINKS, UNREAD)}
    assert type(judge_pcie(on(make_gpu(sm_pct=99.0, **ruined)))) is Cleared
    assert judge_pcie(on(make_gpu(sm_pct=90.0, **GEN_3))).weight == pytest.approx(0.1)
    assert judge_pcie(on(make_gpu(sm_pct=70.0, **GEN_3))).weight == pytest.approx(0.127, abs=0.001)
    cards = tuple(make_gpu(i, pids=(4211 + i,), sm_pct=99.0, **GEN_3) for i in range(2))
    ranks = tuple(make_process(4211 + i, rank=i) for i in range(2))

    def judged(comms):
        shares = {Phase.COMMS: comms, Phase.BACKWARD: round(1 - comms, 4)}
        phases = [make_phases(shares, pid=4211 + i, rank=i) for i in range(2)]
        return judge_pcie(scene_of(make_frame(gpus=cards, processes=ranks, loader=()), phases))

    assert said(judged(0.5)) == (Kind.GPU_THROTTLED, "pcie")
    assert type(judged(0.0)) is Cleared


HEALTH = [
    ("remap failed", {"remapped_rows_failed": True}, True),
    ("remap pending", {"remapped_rows_pending": True}, True),
    ("recovery wanted", {"recovery_action": 1}, True),
    ("fell off the bus", {"xids": (79,)}, True),
    ("a program's own fault", {"xids": (13, 31, 43)}, False),
    ("a fault that the card contained", {"xids": (94, 8, 130)}, False),
    ("no fault", {"xids": (92, 137, 44)}, False),
    ("an error that it did not contain", {"xids": (94, 95)}, True),
    ("old errors", {"ecc_uncorrected": 4}, False),
    ("well", {}, False),
]


@pytest.mark.parametrize(("name", "card", "guilty"), HEALTH, ids=[row[0] for row in HEALTH])
def test_a_card_is_unhealthy_by_its_own_report(name, card, guilty):
    answer = judge_unhealthy(on(make_gpu(**card)))
    assert isinstance(answer, Suspicion) is guilty
    assert not guilty or answer.kind is Kind.GPU_UNHEALTHY


def test_a_fault_is_named_unless_a_new_start_ends_it_and_no_figures_are_no_health():
    assert note_xids(on(make_gpu(xids=(94, 137, 94)))) == (
        "xid: card 0 told Xid 94: a fault of the program, or one that it contained"
    )
    assert note_xids(on(make_gpu(xids=(137, 79)))) == ""
    assert judge_unhealthy(on(make_gpu(xids=(94, 95)))).summary == "card 0 reports: Xid 95"
    for action, words in ((1, "reset the GPU"), (2, "reboot the node"), (9, "recovery action 9")):
        assert judge_unhealthy(on(make_gpu(recovery_action=action))).summary == f"card 0 reports: {words} wanted"
    silent = dict.fromkeys(("recovery_action", "remapped_rows_failed", "ecc_uncorrected"), UNREAD)
    assert type(judge_unhealthy(on(make_gpu(**silent)))) is Unsure
    older = judge_unhealthy(on(make_gpu(remapped_rows_failed=UNREAD, ecc_uncorrected=0)))
    assert older.text.startswith("errors of the cards (none reported; remapped rows and retired pages were not")


def test_uncorrected_errors_count_when_they_rise_while_tpmon_looks_and_are_not_forgotten():
    frames = hold(make_frame(gpus=(make_gpu(ecc_uncorrected=4),)))
    frames[-1] = replace(frames[-1], gpus=(make_gpu(ecc_uncorrected=6),))
    answer = judge_unhealthy(see(frames))
    assert "2 new uncorrected" in answer.summary
    watch, frames = NO_WATCH, hold(make_frame(), 200)
    for i, one in enumerate(frames):
        frames[i] = replace(one, gpus=(make_gpu(ecc_uncorrected=4 if i < 20 else 7),))
        watch = observe(watch, frames[i])
    answer = judge_unhealthy(see(frames[-60:], watch=watch))
    assert "3 new uncorrected" in answer.summary
    # A driver that was loaded anew counts from 0.
    fresh = observe(watch, replace(frames[-1], gpus=(make_gpu(ecc_uncorrected=0),)))
    assert type(judge_unhealthy(on(make_gpu(ecc_uncorrected=0)))) is Cleared
    assert fresh.first_errors == ((make_gpu().uuid, 0),)
    cleared = judge_unhealthy(on(make_gpu(ecc_uncorrected=12)))
    assert cleared == Cleared("errors of the cards (none new; uncorrected memory errors from before: card 0: 12)")
    assert judge_unhealthy(on(make_gpu())) == Cleared("errors of the cards (none reported)")


def test_a_card_that_is_idle_and_only_visible_or_rarely_answers_is_not_judged():
    used = make_gpu(0, pids_are_visible_only=True)
    unused = make_gpu(1, pids_are_visible_only=True, sm_pct=0.0)
    assert [card.index for card in on(used, unused).gpus] == [0]
    assert len(on(unused).gpus) == 1
    frames = hold(make_frame(gpus=(make_gpu(sm_pct=UNREAD),)))
    frames[-1] = make_frame(gpus=(make_gpu(),))
    assert type(judge_gpu_compute(see(frames))) is Unsure


@pytest.mark.parametrize(("why", "kind"), [(Why.ABSENT, Cleared), (Why.UNREAD, Unsure), (Why.PENDING, Unsure)])
def test_a_job_without_a_card_is_told_from_a_card_that_was_not_read(why, kind):
    assert type(answer_without_cards(scene_of(make_frame(gpus=Missing("no NVIDIA card", why))))) is kind
    unlisted = make_frame(gpus=(make_gpu(0, pids=(), unheard="-"), make_gpu(1, unheard="NVML does not list it")))
    assert find_unseen_cards(scene_of(unlisted)) == "card 1: NVML does not list it"


NUMBERS = st.one_of(st.floats(0, 1e12), st.floats(0, 120), st.just(UNREAD))
FIELDS = [field.name for field in fields(GpuSample) if str(field.type) == "Known[float]"]
REASONS = ("power cap", "SW thermal", "HW thermal", "power brake", "HW slowdown", "application clocks")


@st.composite
def cards(draw, index=0):
    values = {name: draw(NUMBERS) for name in FIELDS}
    values["throttle_shares"] = tuple(
        ThrottleShare(reason, draw(st.floats(0, 100)), draw(st.sampled_from(("counter", "bit"))))
        for reason in draw(st.lists(st.sampled_from(REASONS), unique=True))
    )
    values["xids"] = tuple(draw(st.lists(st.integers(1, 150), max_size=3)))
    for name in ("pcie_generation", "pcie_width", "recovery_action", "ecc_uncorrected"):
        values[name] = draw(st.one_of(st.integers(0, 20), st.just(UNREAD)))
    for name in ("memory_used_bytes", "memory_total_bytes"):
        values[name] = draw(st.one_of(st.integers(0, 10), st.just(UNREAD)))
    return make_gpu(index, **values)


@st.composite
def ratios(draw):
    weights = {phase: draw(st.integers(0, 10)) for phase in draw(st.sets(st.sampled_from(Phase), min_size=1))}
    total = sum(weights.values()) or 1
    return {phase: weight / total for phase, weight in weights.items()}


@given(cards(), ratios(), st.sampled_from(FIELDS))
def test_a_reading_that_goes_missing_adds_no_source(card, phases, lost):
    for rule in rules_gpu.RULES:
        before = rule(on(card, phases=phases))
        after = rule(on(replace(card, **{lost: UNREAD}), phases=phases))
        if isinstance(before, Suspicion) and isinstance(after, Suspicion):
            assert after.origins <= before.origins
            assert after.margin <= before.margin * 1.001 or after.cause != before.cause


@pytest.mark.parametrize(
    ("margin_c", "reason", "why"),
    [
        (29.0, "SW thermal", "a thermal reason, though the core has 29 C left: memory, hot spot or power stage"),
        (29.0, "HW thermal", "hardware protection against heat, though the core has 29 C left"),
        (2.0, "SW thermal", "it is hot"),
        (2.0, "HW thermal", "hardware protection against heat"),
        (UNREAD, "SW thermal", "it is hot"),
    ],
)
def test_a_cool_card_is_not_called_hot(margin_c, reason, why):
    answer = judge_thermal(on(make_gpu(**held(reason, 40.0), sm_clock_mhz=1200.0, temperature_margin_c=margin_c)))
    assert answer.summary.partition(": ")[2].startswith(why)
