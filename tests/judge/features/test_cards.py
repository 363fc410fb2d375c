"""The job's cards over a span: steps of seconds, cards that others use too, cards that cannot be read."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import make_rank
from tests.frames import GIB, make_frame, make_gpu, make_loader, make_output, make_process, make_target, make_view
from tests.frames import make_rank as make_row
from tests.gpu_scenes import IN_MODEL, NO_GPM, UNREAD, held, on
from tests.hanging import run, sample, stand
from tests.judge.hang.test_devices import ITEM
from tests.judging import hold, make_phases, said, scene_of
from tests.painted import screen_of
from tests.starving import line_up
from tests.waits import wait_of
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.card_use import find_gpu_idle, judge_hollow
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import NO_FRAMES, mean_known
from tpmon.judge.features.snapshot import see
from tpmon.judge.features.standstill import gpus_move
from tpmon.judge.features.starvation import Starved, find_starved, suspect_loader
from tpmon.judge.rules import gpu as rules_gpu
from tpmon.judge.rules.card_faults import note_shared
from tpmon.judge.rules.cards import judge_thermal
from tpmon.judge.rules.gpu import judge_gpu_compute, judge_launch_bound
from tpmon.judge.rules.health import judge_balanced
from tpmon.judge.stacks.phases import Phase
from tpmon.model.frame import Frame
from tpmon.model.gpu import GpuProcess, GpuSample, GpuState, MigInstance
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.text.job_words import state_facts
from tpmon.model.verdict import Confidence, Finding, Kind
from tpmon.probe.gpu.mapping import OWN_NAMESPACE
from tpmon.report.once import pick_exit_code, write_once


def second_by_second(cards_at, seconds=60, phases=None):
    """See one rank on the cards that ``cards_at`` makes of each second."""
    frames = [make_frame(gpus=cards_at(t), processes=(make_process(),), loader=()) for t in range(seconds)]
    return see(line_up(frames), {4211: make_phases(IN_MODEL if phases is None else phases)})


def step(t, length_s, work_s):
    """Make the card of a loop that computes for ``work_s`` of each step and rests for the remainder."""
    works = t % length_s < work_s
    return make_gpu(
        sm_pct=100.0 if works else 0.0,
        sm_active_pct=90.0 if works else 0.0,
        power_w=650.0 if works else 130.0,
        sm_clock_mhz=1980.0 if works else 345.0,
    )


@pytest.mark.parametrize("length_s", [5, 8, 12])
@pytest.mark.parametrize("later_s", range(0, 12, 3))
def test_long_steps_do_not_hide_what_the_card_waits(length_s, later_s):
    work_s = round(0.6 * length_s)
    scene = second_by_second(
        lambda t: (step(t, length_s, work_s),),
        seconds=50 + later_s,
        phases={Phase.DATA_WAIT: 0.4, Phase.SYNC: 0.4, Phase.BACKWARD: 0.2},
    )
    card = scene.gpus[0]
    assert card.busy_pct == pytest.approx(100 * work_s / length_s, abs=12)
    assert (card.sm_active_pct, card.clock_ratio) == (pytest.approx(0.9 * card.busy_pct), 1.0)
    assert type(judge_gpu_compute(scene)) is Cleared
    assert find_starved(scene).share.ratio == pytest.approx(0.4, abs=0.1)


def test_a_card_that_has_stopped_is_not_seen_by_what_it_did_before_nor_by_one_pause():
    for length_s, work_s in ((5, 3), (12, 7)):
        scene = second_by_second(lambda t: (step(t, length_s, work_s if t < 40 else 0),))  # noqa: B023
        assert scene.gpus[0].busy_pct == 0
        again = second_by_second(lambda t: (step(t, length_s, work_s if t < 40 else length_s),))  # noqa: B023
        assert again.gpus[0].busy_pct == 100
    scene = second_by_second(lambda t: (make_gpu(sm_pct=0.0 if 40 <= t < 45 else 100.0),))
    assert scene.gpus[0].busy_pct == 100


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_shares_do_not_change_with_the_unit_of_power_and_clock(scale):
    def card(t, factor):
        one = step(t, 5, 3)
        names = ("power_w", "power_limit_w", "sm_clock_mhz", "sm_clock_max_mhz")
        return (replace(one, **{name: factor * getattr(one, name) for name in names}),)

    plain, scaled = (second_by_second(lambda t, f=f: card(t, f)).gpus[0] for f in (1.0, scale))
    assert scaled.power_ratio == pytest.approx(plain.power_ratio)
    assert scaled.clock_ratio == pytest.approx(plain.clock_ratio)


def test_a_mean_needs_half_of_its_readings_and_idle_is_not_told_of_seconds_that_were_not_read():
    assert mean_known([1.0, UNREAD, 3.0]) == 2.0
    assert mean_known([1.0, UNREAD, UNREAD]) is UNREAD
    assert mean_known([]) is NO_FRAMES
    scene = second_by_second(lambda t: (make_gpu(sm_pct=UNREAD if t % 3 else 40.0),))
    assert find_gpu_idle(scene.ranks[0], scene) is UNREAD


OURS, NEIGHBOUR = 4211, 9999


def listing(ours, theirs, **fields):
    """Make a card of which the driver lists the job's process and a neighbour, with their SM %."""
    listed = (GpuProcess(OURS, 8 * GIB, ours, True), GpuProcess(NEIGHBOUR, 40 * GIB, theirs, False))
    return make_gpu(processes=listed, **fields)


WAITS = {Phase.DATA_WAIT: 0.7, Phase.FORWARD: 0.1, Phase.BACKWARD: 0.2}


def test_the_work_of_a_neighbour_is_not_the_jobs():
    scene = on(listing(12.0, 86.0, sm_pct=98.0), phases=WAITS)
    assert type(judge_gpu_compute(scene)) is Cleared
    assert find_starved(scene).share.ratio == pytest.approx(0.7)
    assert find_gpu_idle(scene.ranks[0], scene) == pytest.approx(0.76), "each kernel may wait for one of theirs"
    assert note_shared(scene) == "shared: card 0 is shared with PID 9999"


def test_the_work_of_a_container_that_is_not_listed_is_not_the_jobs():
    alone = (GpuProcess(OURS, 8 * GIB, 22.0, True),)
    for power in ({}, NO_GPM):
        scene = on(make_gpu(sm_pct=97.0, processes=alone, lists_only=OWN_NAMESPACE, **power), phases=WAITS)
        assert type(judge_gpu_compute(scene)) is Unsure
        assert scene.gpus[0].busy_pct == Missing(
            "card 0 is shared with processes that the driver does not list here, and the job has 22 % of it"
        )
        assert note_shared(scene).endswith("processes that the driver does not list here")
    # A sample or two that a process that works in turns lacks are no others.
    scene = on(make_gpu(sm_pct=60.0, processes=alone, lists_only=OWN_NAMESPACE))
    assert (scene.gpus[0].busy_pct, note_shared(scene)) == (60.0, "")
    most = (GpuProcess(OURS, 8 * GIB, 80.0, True),)
    assert on(make_gpu(sm_pct=97.0, processes=most, lists_only=OWN_NAMESPACE)).gpus[0].busy_pct == 97.0
    # Outside of a container the driver lists everybody, and a share that was sampled low is the job's.
    assert on(make_gpu(sm_pct=97.0, processes=alone)).gpus[0].busy_pct == 97.0
    # A driver that gives nobody a share of a busy card tells of no others.
    alone = (GpuProcess(OURS, 8 * GIB, 0.0, True),)
    scene = on(make_gpu(sm_pct=98.0, processes=alone, lists_only=OWN_NAMESPACE))
    assert (scene.gpus[0].busy_pct, note_shared(scene)) == (98.0, "")
    assert is_known(scene.gpus[0].power_ratio)


@pytest.mark.parametrize(("ours", "theirs"), [(45.0, 50.0), (70.0, 25.0), (UNREAD, UNREAD)])
def test_on_a_card_that_two_fill_nothing_is_decided(ours, theirs):
    scene = on(listing(ours, theirs, sm_pct=97.0), phases=WAITS)
    assert type(judge_gpu_compute(scene)) is Unsure
    assert type(judge_launch_bound(on(listing(ours, theirs, sm_pct=97.0)))) is Unsure
    assert type(find_starved(scene)) is Unsure
    assert "9999" in find_starved(scene).text
    assert note_shared(scene) != ""


@pytest.mark.parametrize(
    ("ours", "theirs", "busy"), [(96.0, 0.0, 96.0), (96.0, UNREAD, 96.0), (93.0, 4.0, 97.0), (92.0, 6.0, 97.0)]
)
def test_a_context_or_a_desktop_beside_the_job_changes_nothing(ours, theirs, busy):
    scene = on(listing(ours, theirs, sm_pct=busy))
    assert scene.gpus[0].busy_pct == busy
    assert said(judge_gpu_compute(scene)) == (Kind.COMPUTE_BOUND, "gpu-compute")
    assert note_shared(scene) == ""


def test_without_a_sample_a_process_did_nothing_where_the_others_explain_the_card():
    assert on(listing(UNREAD, 85.0, sm_pct=86.0)).gpus[0].busy_pct == 0.0
    assert on(listing(UNREAD, UNREAD, sm_pct=0.0)).gpus[0].busy_pct == 0.0
    assert not is_known(on(listing(UNREAD, 50.0, sm_pct=97.0)).gpus[0].busy_pct)
    assert not is_known(on(listing(60.0, UNREAD, sm_pct=97.0)).gpus[0].busy_pct)
    assert not is_known(on(listing(UNREAD, 50.0, sm_pct=UNREAD)).gpus[0].busy_pct)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 100), st.sets(st.integers(0, 2), min_size=1))
def test_a_figure_that_goes_missing_is_no_evidence(ours, theirs, busy, gone):
    """What is told of nobody may be idle time or a card of its own by a fifth of U at most."""
    told = [ours * busy, theirs * (1 - ours) * busy, busy]
    left = [UNREAD if place in gone else one for place, one in enumerate(told)]
    before, after = (on(listing(one[0], one[1], sm_pct=one[2])) for one in (told, left))
    if told[1] > 0.2 * busy and type(judge_gpu_compute(before)) is not Suspicion:
        assert type(judge_gpu_compute(after)) is not Suspicion
    idle = find_gpu_idle(after.ranks[0], after)
    assert not is_known(idle) or idle <= 1 - told[0] / 100 + 0.2


def test_a_neighbour_a_screen_or_a_slice_at_rest_does_not_move_the_job():
    assert gpus_move(on(listing(0.0, 86.0, sm_pct=86.0))) == ""
    assert gpus_move(on(make_gpu(sm_pct=3.0))) == ""
    assert gpus_move(on(make_gpu(sm_pct=8.0))) != ""
    assert not is_known(gpus_move(on(listing(UNREAD, UNREAD, sm_pct=86.0))))
    assert gpus_move(on(slices(0.0))) == ""
    assert gpus_move(on(slices(6.0))) == "the MIG slice of card 0 is active 6 %"
    assert not is_known(gpus_move(on(slices(UNREAD))))


def contexts(busy_pcts, own_pcts, gib):
    """Make cards that all list the rank, with its SM % and the memory that it has on each."""
    return tuple(
        make_gpu(i, sm_pct=busy, processes=(GpuProcess(OURS, int(one * GIB), own, True),))
        for i, (busy, own, one) in enumerate(zip(busy_pcts, own_pcts, gib, strict=True))
    )


@pytest.mark.parametrize(
    ("own_pcts", "gib", "used"),
    [
        ((97.0, 0.0, 0.0), (60, 0.5, 0.5), [0]),
        ((97.0, UNREAD, UNREAD), (60, 0.5, 0.5), [0]),
        ((97.0, 0.0, 20.0), (60, 0.5, 0.5), [0, 2]),
        ((97.0, 0.0, 0.0), (60, 50, 0.5), [0, 1]),
        ((UNREAD, UNREAD, UNREAD), (60, 10, 10), [0, 1, 2]),
        ((UNREAD, UNREAD, UNREAD), (0.5, 0.5, 0.5), [0, 1, 2]),
    ],
)
def test_a_card_with_a_context_only_is_not_used(own_pcts, gib, used):
    scene = on(*contexts((98.0, 2.0, 3.0), own_pcts, gib))
    assert [card.index for card in scene.gpus] == used


def test_a_stray_context_on_the_card_of_another_rank_does_not_hide_that_a_rank_starves():
    ranks = tuple(range(4211, 4215))
    stray = tuple(GpuProcess(pid, GIB // 2, UNREAD, True) for pid in ranks[1:])
    first = (GpuProcess(4211, 4 * GIB, 96.0, True), *stray)
    own = [
        make_gpu(i, sm_pct=35.0, pids=(pid,), processes=(GpuProcess(pid, 4 * GIB, 34.0, True),))
        for i, pid in enumerate(ranks[1:], 1)
    ]
    cards = (make_gpu(0, sm_pct=97.0, pids=ranks, processes=first), *own)
    rows = tuple(make_process(pid, rank=i) for i, pid in enumerate(ranks))
    scene = see(hold(make_frame(gpus=cards, processes=rows, loader=())))
    assert [card.pids for card in scene.gpus] == [(4211,), (4212,), (4213,), (4214,)]
    assert find_gpu_idle(scene.ranks[1], scene) == pytest.approx(0.65)
    lost = replace(contexts((0.0, 0.0), (UNREAD, UNREAD), (60, 0.5))[1], state=GpuState.LOST)
    assert [card.index for card in on(make_gpu(0), lost).gpus] == [0, 1], "no stray context"


def test_of_cards_that_are_only_visible_more_than_ranks_none_is_judged():
    """Only open device files tell, eight cards work and one rank is there: seven are another job's."""
    hot = {**held("HW thermal", 90.0), "sm_clock_mhz": 990.0, "xids": (79,), "ecc_uncorrected": 3}
    cards = [make_gpu(i, pids_are_visible_only=True, **(hot if i == 6 else {})) for i in range(8)]
    scene = on(*cards)
    for rule in rules_gpu.RULES:
        assert type(rule(scene)) is Unsure, rule
    assert "only open device files tell" in judge_thermal(scene).text
    assert said(judge_thermal(on(cards[6]))) == (Kind.GPU_THROTTLED, "thermal")


@pytest.mark.parametrize(
    ("card", "wanted"),
    [
        ({"power_w": 95.0, "power_limit_w": 450.0, "sm_clock_mhz": 2430.0, "sm_clock_max_mhz": 3105.0}, True),
        ({"power_w": 105.0, "power_limit_w": 400.0, "sm_clock_mhz": 1065.0, "sm_clock_max_mhz": 1410.0}, True),
        ({"power_w": 300.0, "sm_clock_mhz": 1000.0}, False),
        ({"power_w": 28.0, "power_limit_w": UNREAD, "sm_clock_mhz": 1000.0}, UNREAD),
        ({"power_w": 28.0, "power_limit_w": UNREAD}, UNREAD),
        ({"power_w": 130.0, "sm_clock_mhz": UNREAD}, UNREAD),
    ],
)
def test_hollow_at_a_lowered_clock_is_measured_by_what_the_clock_leaves(card, wanted):
    scene = on(make_gpu(**NO_GPM, sm_pct=97.0, **card))
    assert judge_hollow(scene.gpus[0]) == wanted
    assert type(judge_balanced(scene)) is {True: Cleared, False: Suspicion, UNREAD: Unsure}[wanted]


@pytest.mark.parametrize(
    ("watts", "limit", "hollow"),
    [(34, 70, None), (27, 70, None), (40, 72, None), (60, 150, None), (20, 70, True), (50, 70, False)],
)
def test_the_power_of_a_small_card_tells_little_between_rest_and_full(watts, limit, hollow):
    scene = on(make_gpu(**NO_GPM, sm_pct=100.0, power_w=float(watts), power_limit_w=float(limit)))
    told = judge_hollow(scene.gpus[0])
    assert (told if is_known(told) else None) is hollow
    wanted = {None: Unsure, True: Cleared, False: Suspicion}[hollow]
    assert type(judge_gpu_compute(scene)) is wanted


@pytest.mark.parametrize(("why", "bytes_s"), [("no NVLink", 2e5), ("not supported by this card", None)])
def test_links_of_which_one_was_not_read_are_not_thought_quiet(why, bytes_s):
    nvlink = dict.fromkeys(("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), Missing(why))
    seen = on(make_gpu(pcie_tx_bytes_s=1e5, pcie_rx_bytes_s=1e5, **nvlink)).gpus[0].link_bytes_s
    assert seen == (Missing(why) if bytes_s is None else bytes_s)


def test_sm_activity_tells_hollow_at_any_clock():
    low = {"sm_pct": 97.0, "power_w": 100.0, "sm_clock_mhz": 900.0}
    assert judge_hollow(on(make_gpu(sm_active_pct=8.0, **low)).gpus[0]) is True
    assert not is_known(judge_hollow(on(make_gpu(sm_active_pct=8.0, **{**low, "power_w": 250.0})).gpus[0]))
    assert judge_hollow(on(make_gpu(sm_active_pct=70.0, **low)).gpus[0]) is False


NOTHING = {"sm_pct": 100.0, "sm_active_pct": 45.0, "tensor_pct": 0.0, "dram_pct": 0.2}
NO_TRAFFIC = {"pcie_tx_bytes_s": 1e4, "pcie_rx_bytes_s": 1e4, "nvlink_tx_bytes_s": 0.0, "nvlink_rx_bytes_s": 0.0}


@pytest.mark.parametrize(
    ("more", "hollow"),
    [
        ({}, True),
        ({"dram_pct": 5.0}, False),
        ({"tensor_pct": 4.0}, False),
        ({"pcie_rx_bytes_s": 60e6}, False),
        ({"power_w": 400.0}, False),
        ({"sm_active_pct": 80.0}, False),
        ({"dram_pct": UNREAD}, False),
    ],
    ids=["nothing moves", "memory", "tensor cores", "links", "power", "most of the SMs", "not read"],
)
def test_two_collectives_that_do_not_end_hold_half_of_the_card_and_do_nothing(more, hollow):
    card = make_gpu(**{**NOTHING, **NO_TRAFFIC, "power_w": 130.0, "power_limit_w": 700.0, **more})
    assert judge_hollow(on(card).gpus[0]) is hollow


def slices(active_pct, **fields):
    """Make a card that is cut in two: one slice of the job, one of a tenant that fills it."""
    mine = MigInstance("MIG-1", 1, 2 * GIB, 10 * GIB, active_pct, (OURS,))
    tenants = MigInstance("MIG-2", 2, 39 * GIB, 40 * GIB, 90.0, (NEIGHBOUR,))
    plain = {"sm_pct": UNREAD, "sm_active_pct": 70.0, "memory_used_bytes": 78 * GIB}
    return make_gpu(mig=True, **{**plain, "mig_instances": (tenants, mine), **fields})


def test_of_a_sliced_card_only_the_jobs_slice_is_seen_and_a_long_wait_beside_it_told_at_low_confidence():
    card = on(slices(6.0)).gpus[0]
    assert (card.sm_active_pct, card.memory_ratio) == (6.0, 0.2)
    assert "MIG slices have no utilisation" in card.busy_pct.reason
    assert not is_known(card.power_ratio)
    for rule in (judge_gpu_compute, judge_launch_bound, judge_balanced):
        assert "MIG slices" in rule(on(slices(6.0))).text
    unlisted = tuple(replace(one, pids=UNREAD) for one in slices(6.0).mig_instances)
    assert not is_known(on(slices(6.0, mig_instances=unlisted)).gpus[0].sm_active_pct)
    assert on(slices(6.0, mig_instances=unlisted[1:])).gpus[0].sm_active_pct == 6.0
    found = find_starved(on(slices(6.0), phases=WAITS))
    assert type(found) is Starved
    said_of_it = suspect_loader(
        found, Proof("no workers", on(slices(6.0), phases=WAITS)), "no-workers", "it has no workers"
    )
    assert (len(said_of_it.origins), said_of_it.margin) == (1, 1.0)
    assert "whether the GPU works meanwhile is not known" in said_of_it.summary


@pytest.mark.parametrize(
    ("active_pct", "wait", "empty"), [(60.0, 0.7, 1.0), (UNREAD, 0.7, 1.0), (6.0, 0.4, 1.0), (6.0, 0.7, 0.1)]
)
def test_a_wait_beside_a_slice_needs_half_of_the_time_an_idle_slice_and_an_empty_queue(active_pct, wait, empty):
    stacks = make_phases({Phase.DATA_WAIT: wait, Phase.BACKWARD: 1 - wait})
    loaders = (make_loader(empty_ratio=empty),)
    frame = make_frame(gpus=(slices(active_pct),), processes=(make_process(),), loader=loaders)
    assert type(find_starved(scene_of(frame, [stacks]))) is Unsure


# cards that cannot be read

RANKS = (make_process(4211), make_process(4212, rank=1, local_rank=1))
FIGURES = ("sm_pct", "sm_active_pct", "tensor_pct", "dram_pct", "power_w", "sm_clock_mhz", "throttle_known")
OPEN = Missing("which /dev/nvidiaN it is is not known")


def silence(index: int, age_s: float, **fields: Any) -> GpuSample:
    """Make a card that has not answered for a while."""
    unread = dict.fromkeys(FIGURES, Missing("the card does not answer"))
    return make_gpu(index, **({"state": GpuState.STALE, "age_s": age_s} | unread | fields))


def watch(seconds: int, silent_s: int, log_every_s: int = 0, ranks: Any = RANKS, **card: Any) -> list[Frame]:
    """Make a job whose second card falls silent; ``silent_s`` may be longer than tpmon watches."""
    frames = []
    named = make_target(script="gpu_lost_hung.py")  # names that users give change nothing
    for number, frame in enumerate(hold(make_frame(processes=ranks, loader=(), target=named), seconds)):
        age_s = silent_s - (seconds - number)
        second = silence(1, age_s, **{"pids": (4212,), **card}) if age_s > 3 else make_gpu(1, pids=(4212,))
        log_s = float(number % log_every_s) if log_every_s else 600.0 + number
        log = make_output(last_write_age_s=log_s)
        frames.append(replace(frame, gpus=(make_gpu(0), second), output=(log,)))
    return frames


def conclude(frames: list[Frame]) -> tuple[Finding, Frame]:
    frame = run(frames)[-1].frame
    assert is_known(frame.verdict)
    return frame.verdict, frame


STANDING = tuple(
    replace(one, state="D", waits_for=wait_of("an ioctl of the driver"), waits_unchanged_s=90.0, runnable=0.0)
    for one in RANKS
)
HELD = {"pids": (4211,), "pids_are_visible_only": True}
ONE = RANKS[:1]
ONE_STANDS = STANDING[:1]
IN_NFS = (replace(STANDING[0], waits_for=wait_of("NFS")),)

CASES = [
    # name, how long it is silent, log every, ranks, fields of the card, kind, cause, exit code
    ("just late", 6, 2, RANKS, {}, Kind.COMPUTE_BOUND, "gpu-compute", 11),
    ("late, and the run goes on", 14, 2, RANKS, {}, Kind.GPU_UNHEALTHY, NOT_APPLICABLE, 10),
    ("silent for long, and the run goes on", 35, 2, RANKS, {}, Kind.GPU_UNHEALTHY, NOT_APPLICABLE, 10),
    ("silent, and the run stands", 24, 0, STANDING, {}, Kind.HUNG, "gpu-lost", 12),
    ("lost, and the run stands", 8, 0, STANDING, {"state": GpuState.LOST}, Kind.HUNG, "gpu-lost", 12),
    ("lost, and the log is fresh", 30, 2, RANKS, {"state": GpuState.LOST}, Kind.GPU_UNHEALTHY, NOT_APPLICABLE, 10),
    ("before the attach, two ranks hold two", 60, 0, STANDING, HELD, Kind.HUNG, "gpu-lost", 12),
    ("before the attach, one rank stands", 60, 0, ONE_STANDS, HELD, Kind.HUNG, "gpu-lost", 12),
    ("before the attach, one rank goes on", 60, 2, ONE, HELD, Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 11),
    ("nobody knows whose", 60, 2, ONE, {"pids": OPEN}, Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 11),
    ("NVML as a whole", 60, 2, RANKS, {"unheard": "it hangs"}, Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE, 11),
    ("held, and the rank waits for files", 60, 0, IN_NFS, HELD, Kind.HUNG, "blocked-io", 12),
    ("another job's", 60, 2, ONE, {"pids": ()}, Kind.COMPUTE_BOUND, "gpu-compute", 0),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_silent_card_is_a_sign(case):
    _, silent_s, log_s, ranks, card, kind, cause, code = case
    finding, frame = conclude(watch(40, silent_s, log_s, ranks, **card))
    assert (finding.kind, finding.cause, pick_exit_code(frame)) == (kind, cause, code)
    if silent_s >= 8 and code and cause != "blocked-io":
        assert f"card 1 {'does' if 'state' in card else 'has'} not answer" in finding.summary


def test_silence_is_told_within_25_s_an_xid_at_once_and_nothing_healthy_beside_them():
    judged = run(watch(60, 25, 2))
    kinds = [one.frame.verdict.kind for one in judged]
    assert kinds[30] is Kind.COMPUTE_BOUND
    assert kinds[-12:] == [Kind.GPU_UNHEALTHY] * 12
    assert judged[-1].frame.verdict.summary == "card 1 has not answered the driver for 25 s, and the run goes on"
    frames = watch(90, 0, 2)
    told = [replace(one, gpus=(one.gpus[0], replace(one.gpus[1], xids=(79,)))) for one in frames[-3:]]
    judged = run([*frames[:-3], *told])
    assert judged[-4].frame.verdict.kind is Kind.COMPUTE_BOUND
    assert judged[-1].frame.verdict.kind is Kind.GPU_UNHEALTHY
    assert judged[-1].frame.verdict.summary == "card 1 reports: Xid 79"


def test_no_silence_is_surely_a_hang_where_the_driver_does_not_call_the_card_lost():
    assert conclude(watch(40, 35, 0, STANDING))[0].confidence is Confidence.MEDIUM
    assert conclude(watch(40, 35, 0, ONE_STANDS, **HELD))[0].confidence is not Confidence.HIGH
    assert conclude(watch(40, 35, 0, STANDING, state=GpuState.LOST))[0].confidence is Confidence.HIGH
    finding, frame = conclude(watch(40, 35, 2, state=GpuState.REFUSED))
    assert "answer" not in finding.summary
    assert pick_exit_code(frame) != 12


@pytest.mark.parametrize(("pids", "code"), [((4211, 4212), 0), ((4211, 4212, 9), 11)])
def test_a_dead_card_that_all_hold_open_who_have_one_of_their_own_is_not_theirs(pids, code):
    """CUDA opens every card of the machine; the dead one is another's, unless somebody without a card holds it."""
    frames = [
        replace(one, gpus=(*one.gpus, silence(2, 60.0 + number, pids=pids, pids_are_visible_only=True)))
        for number, one in enumerate(watch(40, 0, 2))
    ]
    finding, frame = conclude(frames)
    assert (finding.kind is Kind.COMPUTE_BOUND, pick_exit_code(frame)) == (not code, code)
    assert any(note.startswith("silent: card 2") for note in frame.notes)


def test_a_sign_of_life_ends_a_lost_card_s_hang_at_once_and_where_none_can_be_read_there_is_none():
    """A driver that is busy for 20 s beside ranks that spin, without stacks, log and hook."""
    frames = [
        replace(frame, output=(), gpus=tuple(silence(i, age_s, pids=(4211 + i,)) for i in (0, 1)))
        if (age_s := number - 10.0) > 3
        else replace(frame, output=())
        for number, frame in enumerate(watch(40, 0, 2))
    ]
    assert conclude(frames)[0].kind is Kind.GPU_UNHEALTHY
    frames = watch(40, 20, 0, state=GpuState.LOST)
    assert conclude(frames)[0].kind is Kind.HUNG
    fresh = replace(frames[-1], taken_ns=frames[-1].taken_ns + 10**9, output=(make_output(last_write_age_s=0.5),))
    assert conclude([*frames, fresh])[0].kind is Kind.GPU_UNHEALTHY


def test_an_open_silence_is_a_note_and_the_headline_where_nothing_else_is_found():
    finding, frame = conclude(watch(40, 60, 2, ONE, pids=OPEN))
    said = "card 1 has not answered the driver for 1m00s; whether it is the job's is not known"
    assert (finding.summary, finding.card) == (said, 1)
    assert f"silent: {said}" in frame.notes
    assert "dmesg" in finding.try_
    held = conclude(watch(40, 60, 2, ONE, **HELD))[0]
    assert held.summary.endswith("; the job holds it open, but whether it computes there is not known")


@pytest.mark.parametrize(
    ("cards", "fact"),
    [
        ((make_gpu(0), silence(1, 5.0)), "1 of 2 cards answers · GPU 96 % busy"),
        ((make_gpu(0), silence(1, 5.0, pids=OPEN)), "1 of 2 cards answers · GPU 96 % busy"),
        ((make_gpu(0), make_gpu(1), silence(2, 5.0)), "2 of 3 cards answer · 2 GPUs 96 % busy"),
        ((silence(0, 5.0),), "the card does not answer"),
        ((silence(0, 5.0), silence(1, 5.0)), "none of 2 cards answers"),
        ((make_gpu(0), silence(1, 5.0, pids=())), "GPU 96 % busy"),
    ],
)
def test_the_facts_say_how_many_cards_answer(cards, fact):
    facts = state_facts(1, 0, make_frame().cpu, cards)
    assert facts.split(" · no loader")[0] == fact


def test_a_rank_does_not_wait_five_minutes_for_a_silent_card():
    rank = make_rank(0, frames=ITEM, holds_gil=False, state="R", waits_for="running", wchan="0", call="")
    gpus = (silence(0, 60.0, pids=(rank.pid,)),)
    frames = sample(stand(rank, gpus=gpus, seconds=45), rank.pid, ITEM)
    finding = conclude(frames)[0]
    assert (finding.kind, finding.cause) == (Kind.HUNG, "gpu-lost")
    assert "may work" not in finding.summary


def test_a_verdict_about_a_card_keeps_the_cards_on_a_small_screen_and_a_rank_on_several_shows_them():
    finding, frame = conclude(watch(40, 24, 0, STANDING))
    assert finding.cause == "gpu-lost"
    assert "1!STALE" in screen_of(make_view(frame), 40, 24)
    assert "GPU 1 STALE: last" in screen_of(make_view(frame), 80, 24)
    both = Missing("it uses several cards: 0, 1")
    listed = (GpuProcess(4211, 1 << 30, 90.0, True),)
    cards = (make_gpu(0, processes=listed), make_gpu(1, processes=listed))
    frame = make_frame(gpus=cards, ranks=(make_row(gpu=both),))
    assert " 0,1 " in screen_of(make_view(frame), 120, 40)
    assert "0,1" in "\n".join(write_once(frame))
