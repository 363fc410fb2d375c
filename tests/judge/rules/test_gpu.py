"""GPU causes on made-up Windows: cards that are full, starved, launched too slowly or synchronised with."""

import pytest

from tests.frames import NO_DRIVER, make_frame, make_gpu, make_process
from tests.gpu_scenes import HOLLOW, IN_MODEL, NO_GPM, UNREAD, held, on
from tests.judging import make_phases, said, scene_of
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.finding import rate_confidence
from tpmon.judge.rules import gpu as rules_gpu
from tpmon.judge.rules.gpu import (
    judge_allocator_sync,
    judge_explicit_sync,
    judge_gpu_compute,
    judge_implicit_sync,
    judge_launch_bound,
)
from tpmon.judge.stacks.profile import DataPart, Phase
from tpmon.model.gpu import MigInstance
from tpmon.model.known import Missing
from tpmon.model.process import ThreadGroup, ThreadKind
from tpmon.model.verdict import Confidence, Kind, Origin

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


def test_one_starved_card_of_eight_is_enough_not_to_be_full():
    cards = [make_gpu(i) for i in range(7)]
    assert said(judge_gpu_compute(on(*cards))) == (Kind.COMPUTE_BOUND, "gpu-compute")
    assert type(judge_gpu_compute(on(*cards, make_gpu(7, sm_pct=30.0)))) is Cleared


def test_without_cards_nothing_about_them_is_suspected():
    for rule in rules_gpu.RULES:
        assert type(rule(scene_of(make_frame(gpus=NO_DRIVER)))) is Cleared
        assert type(rule(scene_of(make_frame(gpus=())))) is Cleared
        hidden = Missing("GPUs not visible from this shell (container or Slurm step)")
        assert type(rule(scene_of(make_frame(gpus=hidden)))) is Unsure


def test_async_gpu_work_hides_a_loader_that_is_waited_for():
    """20 ms of queued kernels and 12 ms of loader: the GPU is full, and the wait is named as hidden."""
    phases = {Phase.DATA_WAIT: 0.6, Phase.FORWARD: 0.2, Phase.BACKWARD: 0.2}
    scene = on(make_gpu(sm_pct=98.0), phases=phases)
    answer = judge_gpu_compute(scene)
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu-compute")
    assert any(one.name == "hidden data wait" for one in answer.evidence)


LAUNCHES = [
    ("hollow by GPM, in the model", HOLLOW, IN_MODEL, (Kind.LAUNCH_BOUND, "tiny-kernels")),
    ("hollow by power", {**NO_GPM, "sm_pct": 99.0, "power_w": 150.0}, IN_MODEL, (Kind.LAUNCH_BOUND, "tiny-kernels")),
    ("idle GPU, host in the model", {"sm_pct": 45.0}, IN_MODEL, (Kind.LAUNCH_BOUND, "tiny-kernels")),
    (
        "Python between launches",
        {"sm_pct": 30.0},
        {Phase.OTHER: 0.7, Phase.FORWARD: 0.3},
        (Kind.LAUNCH_BOUND, "main-thread"),
    ),
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


def test_a_main_thread_that_does_not_move_is_not_launching():
    frame = make_frame(gpus=(make_gpu(**HOLLOW),), processes=(make_process(),))
    still = make_phases({Phase.FORWARD: 1.0}, distinct=1, unchanged_s=25.0)
    assert "does not move" in judge_launch_bound(scene_of(frame, [still])).text
    fresh = make_phases({Phase.FORWARD: 1.0}, distinct=1, unchanged_s=3.0)
    assert "deciding" in judge_launch_bound(scene_of(frame, [fresh])).text


def test_autograd_launches_in_the_main_threads_place():
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
        assert said(answer) == (Kind.LAUNCH_BOUND, "tiny-kernels")
        assert "launches 75 % of the time" in answer.summary
        assert answer.against
    half = judge_launch_bound(on(make_gpu(sm_pct=60.0), phases=ratios))
    assert half == Cleared("launching of kernels (rank 0 is 25 % in waits for GPU or ranks)")


POOL = (ThreadGroup(ThreadKind.MAIN, 1, 0.95), ThreadGroup(ThreadKind.OTHER, 40, 8.5))
CPU_ADAM = {Phase.OPTIMIZER: 0.6, Phase.FORWARD: 0.15, Phase.BACKWARD: 0.25}


def test_an_optimizer_that_computes_on_the_cpu_is_no_launching():
    offloaded = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=CPU_ADAM, thread_groups=POOL))
    assert type(offloaded) is Unsure
    assert "60 % in the optimizer" in offloaded.text
    on_card = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=CPU_ADAM))
    assert said(on_card) == (Kind.LAUNCH_BOUND, "tiny-kernels")
    decoding = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=IN_MODEL, thread_groups=POOL))
    assert said(decoding) == (Kind.LAUNCH_BOUND, "tiny-kernels")


def test_launching_beside_an_optimizer_on_the_cpu_is_charged_with_the_rest_only():
    rest = judge_launch_bound(on(make_gpu(sm_pct=5.0), phases=CPU_ADAM, thread_groups=POOL))
    assert rest.share == pytest.approx((0.95 - 0.6) * 0.4)
    assert "launches 40 % of the time" in rest.summary


def test_cards_that_work_one_after_another_are_not_laid_to_their_host():
    sums = "96 % busy in sum"
    four = [make_gpu(i, sm_pct=24.0, sm_active_pct=22.0, power_w=240.0) for i in range(4)]
    answer = judge_launch_bound(on(*four))
    assert type(answer) is Unsure
    assert sums in answer.text
    frame = make_frame(gpus=tuple(four), processes=(make_process(),), loader=())
    phases = make_phases({Phase.SYNC: 0.4, Phase.FORWARD: 0.6}, sights=frozenset((Need.SYNC_IN_STACK,)))
    waits = judge_explicit_sync(scene_of(frame, [phases]))
    assert type(waits) is Unsure
    assert sums in waits.text
    few = [make_gpu(i, sm_pct=15.0) for i in range(4)]
    assert said(judge_launch_bound(on(*few))) == (Kind.LAUNCH_BOUND, "tiny-kernels")
    shared = [make_gpu(0, sm_pct=60.0, pids=(4211, 4212)), make_gpu(1, sm_pct=35.0)]
    assert said(judge_launch_bound(on(*shared))) == (Kind.LAUNCH_BOUND, "tiny-kernels")


def sync_scene(card, ratios, sights, parts=None, proven=None):
    frame = make_frame(gpus=(make_gpu(**card),), processes=(make_process(),), loader=())
    phases = make_phases(ratios, sights=frozenset(sights), parts=parts or {}, proven=proven or {})
    return scene_of(frame, [phases])


def test_a_synchronise_costs_only_where_the_gpu_runs_empty():
    ratios = {Phase.SYNC: 0.5, Phase.FORWARD: 0.5}
    empty = judge_explicit_sync(sync_scene({"sm_pct": 55.0}, ratios, [Need.SYNC_IN_STACK]))
    assert said(empty) == (Kind.SYNC_BOUND, "explicit")
    assert empty.weight == pytest.approx(0.45)
    assert {Origin.STACKS, Origin.DRIVER} == empty.origins
    full = judge_explicit_sync(sync_scene({"sm_pct": 97.0}, ratios, [Need.SYNC_IN_STACK]))
    assert "costs 0" in full.text


def test_a_synchronise_gains_no_more_than_its_own_time():
    """A host that launches for 75 % of a step needs them without the .item() too: 1.3x at most."""
    ratios = {Phase.SYNC: 0.25, Phase.FORWARD: 0.4, Phase.BACKWARD: 0.35}
    answer = judge_explicit_sync(sync_scene({"sm_pct": 25.0}, ratios, [Need.SYNC_IN_STACK]))
    assert said(answer) == (Kind.SYNC_BOUND, "explicit")
    assert (answer.share, answer.weight) == (0.25, 0.25)


def test_each_kind_of_synchronise_is_given_its_own_samples():
    ratios = {Phase.SYNC: 0.4, Phase.FORWARD: 0.6}
    both = {Need.SYNC_IN_STACK: 0.34, Need.ALLOCATOR_IN_STACK: 0.06}
    scene = sync_scene({"sm_pct": 40.0}, ratios, both, proven=both)
    assert judge_explicit_sync(scene).share == 0.34
    assert judge_allocator_sync(scene) == Cleared("allocator synchronising (6.0 % of samples)")


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
        assert choose(answer.kind, answer.cause, observe(scene, answer), RunFacts())[0].remedy.id == first


def test_what_is_unpacked_is_not_laid_to_copies_to_the_gpu():
    ratios = {Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.6}
    parts, proven = {DataPart.COPY: 0.4}, {Need.COPY_IN_STACK: 0.06}
    scene = sync_scene({"sm_pct": 50.0}, ratios, [Need.COPY_IN_STACK], parts, proven)
    assert judge_implicit_sync(scene) == Cleared("implicit synchronising (6.0 % of samples)")


def test_gpu_idle_that_unpacking_explains_is_not_laid_to_a_synchronise():
    ratios = {Phase.SYNC: 0.3, Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.3}
    proven = {Need.SYNC_IN_STACK: 0.3}
    scene = sync_scene({"sm_pct": 45.0}, ratios, [Need.SYNC_IN_STACK], {DataPart.COPY: 0.4}, proven)
    assert judge_explicit_sync(scene).share == pytest.approx(0.15)


def test_launches_are_told_with_what_was_read_of_them():
    answer = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases=IN_MODEL))
    assert answer.summary.endswith("% of the time and its GPU is not full: its launches do not keep the GPU busy")
    assert "main thread runs or waits for a CPU" in {row.name for row in answer.evidence}
    assert Need.ONE_THREAD_BUSY not in answer.observed
    python = judge_launch_bound(on(make_gpu(sm_pct=38.0), phases={Phase.OTHER: 0.6, Phase.FORWARD: 0.4}))
    assert said(python) == (Kind.LAUNCH_BOUND, "main-thread")
    assert Need.ONE_THREAD_BUSY in python.observed


def test_what_a_synchronise_costs_on_a_hollow_card_is_not_told():
    ratios = {Phase.SYNC: 0.25, Phase.FORWARD: 0.75}
    answer = judge_explicit_sync(sync_scene(HOLLOW, ratios, [Need.SYNC_IN_STACK]))
    assert type(answer) is Unsure
    assert "hollow" in answer.text


def test_gpu_idle_that_the_loader_explains_is_not_laid_to_the_synchronise():
    ratios = {Phase.SYNC: 0.3, Phase.DATA_WAIT: 0.5, Phase.FORWARD: 0.2}
    answer = judge_explicit_sync(sync_scene({"sm_pct": 45.0}, ratios, [Need.SYNC_IN_STACK]))
    assert type(answer) is Cleared
    assert "the host is elsewhere" in answer.text


def test_copies_and_the_allocator_are_told_from_explicit_synchronising():
    copies = sync_scene(
        {"sm_pct": 50.0}, {Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.6}, [Need.COPY_IN_STACK], {DataPart.COPY: 0.4}
    )
    assert said(judge_implicit_sync(copies)) == (Kind.SYNC_BOUND, "implicit")
    assert type(judge_explicit_sync(copies)) is Cleared
    frees = sync_scene({"sm_pct": 50.0}, {Phase.SYNC: 0.4, Phase.FORWARD: 0.6}, [Need.ALLOCATOR_IN_STACK])
    assert said(judge_allocator_sync(frees)) == (Kind.SYNC_BOUND, "allocator")
    assert type(judge_explicit_sync(frees)) is Cleared
    assert type(judge_allocator_sync(copies)) is Cleared


def test_a_card_that_is_busy_and_tells_nothing_more_is_the_limit_at_low_confidence():
    for unread in ({"power_w": UNREAD}, {"power_limit_w": UNREAD}, {"power_w": 300.0, "sm_clock_mhz": UNREAD}):
        answer = judge_gpu_compute(on(make_gpu(**{**NO_GPM, **unread})))
        assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
        assert "never empty; how full they are is not measured: 96 % busy" in answer.summary
        assert ": not supported)" in answer.unread[0]
        assert rate_confidence(answer, 60.0) is Confidence.LOW


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


def test_kernels_run_on_a_slice_that_its_host_waits_for():
    scene = on(make_gpu(**NO_GPM, mig=True, mig_instances=(MIG,)), phases={Phase.SYNC: 0.7, Phase.BACKWARD: 0.3})
    answer = judge_gpu_compute(scene)
    assert said(answer) == (Kind.COMPUTE_BOUND, "gpu")
    assert "their hosts wait for them" in answer.summary


def test_a_busy_card_of_a_run_that_gives_no_sign_of_life_is_not_called_full():
    frame = make_frame(gpus=(make_gpu(**NO_GPM, power_w=UNREAD),), processes=(make_process(),), loader=(), output=())
    assert type(judge_gpu_compute(scene_of(frame))) is Unsure
