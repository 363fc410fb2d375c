"""What the settings of a hook prove for remedies, and what they leave open."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import make_frame
from tests.judging import hold, scene_of
from tests.paces import make_hook, with_hooks
from tests.view.test_hook import MIB, make_settings
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import observe
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.judge.features.hook_needs import observe_settings
from tpmon.judge.features.snapshot import Scene, see
from tpmon.model.frame import Frame
from tpmon.model.hook import AllocatorFigures, CompileCounts, DdpSettings, FsdpSettings, LoaderSettings
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.verdict import Kind

UNTOLD = Missing("the job does not use it")
GROUPS = ("compiled", "allocator", "ddp", "fsdp", "loader", "matmul_tf32", "autocast")
NOTHING = dict.fromkeys(GROUPS, UNTOLD)
DDP = DdpSettings(25 * MIB, 2, find_unused=False, static_graph=False)
FSDP1 = FsdpSettings(1, 13, "off", "BACKWARD_PRE", limit_all_gathers=True)
FSDP2 = FsdpSettings(2, 13, "12 of 13 units", "torch's order", NOT_APPLICABLE)


def told(**fields: Any) -> Frame:
    return with_hooks(make_frame(), make_hook(settings=make_settings(**(NOTHING | fields))))


def changed(before: Frame, after: Frame) -> Scene:
    frames = hold(before, 12)
    return see([*frames[:-1], after])


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, set()),
        ({"loader": LoaderSettings(0, False, UNTOLD, False, 8)}, {Need.TORCH_LOADER}),
        ({"compiled": CompileCounts(0, 0, 0, 0, 0)}, {Need.EAGER_MODEL}),
        ({"anomaly": True}, {Need.DEBUG_TAX_SET}),
        ({"compiled": CompileCounts(2, 2, 1, 0, 0)}, set()),
        ({"compiled": CompileCounts(0, 0, 1, 0, 0)}, set()),
        ({"compiled": CompileCounts(9, 9, 5, 4, 0)}, {Need.GRAPH_BREAKS}),
        ({"compiled": CompileCounts(9, 9, 1, 0, 1)}, {Need.RECOMPILES_SEEN}),
        ({"loader": LoaderSettings(0, True, UNTOLD, False, 8)}, {Need.TORCH_LOADER, Need.BATCHES_PINNED}),
        ({"loader": LoaderSettings(2, False, 2, True, 8)}, {Need.TORCH_LOADER, Need.WORKERS_KEPT}),
        ({"matmul_tf32": True}, {Need.TF32_ALLOWED}),
        ({"matmul_tf32": False}, set()),
        ({"autocast": True}, {Need.AUTOCAST_ON}),
        ({"autocast": False}, set()),
        ({"ddp": DDP}, {Need.DDP_IN_STACK, Need.FIND_UNUSED_OFF}),
        ({"ddp": replace(DDP, find_unused=True)}, {Need.DDP_IN_STACK, Need.FIND_UNUSED_ON}),
        ({"ddp": replace(DDP, buckets=12)}, {Need.DDP_IN_STACK, Need.FIND_UNUSED_OFF, Need.SMALL_BUCKETS}),
        ({"fsdp": FSDP1}, {Need.FSDP_IN_STACK, Need.FSDP1_IN_USE, Need.GATHERS_LIMITED}),
        (
            {"fsdp": replace(FSDP1, limit_all_gathers=False)},
            {Need.FSDP_IN_STACK, Need.FSDP1_IN_USE, Need.GATHERS_UNLIMITED},
        ),
        ({"fsdp": FSDP2}, {Need.FSDP_IN_STACK, Need.FSDP2_IN_USE}),
        ({"allocator": AllocatorFigures(1, 1, 0, 1, 1, 7, 0, UNTOLD)}, set()),
    ],
)
def test_settings_prove_what_they_say(fields, needs):
    assert observe_settings(scene_of(told(**fields))) == needs


def test_what_speaks_against_a_remedy_holds_only_where_every_rank_says_so():
    both = [
        make_hook(4211 + rank, rank=rank, settings=make_settings(**(NOTHING | {"matmul_tf32": rank == 0})))
        for rank in (0, 1)
    ]
    assert observe_settings(scene_of(with_hooks(make_frame(), *both))) == set()
    assert observe_settings(scene_of(with_hooks(make_frame(), both[0]))) == {Need.TF32_ALLOWED}


def texts_of(kind: Kind, cause: str, seen: set[Need], **fields: Any) -> dict[str, str]:
    """Return what is advised for one run whose hook tells ``fields``: the remedies with their texts."""
    needs = observe_settings(scene_of(told(**fields))) | seen
    return {one.remedy.id: one.text for one in choose(kind, cause, needs, RunFacts())}


def test_a_setting_that_is_right_already_is_not_advised():
    row, unused = (Kind.COMMS_BOUND, "transfer"), "find-unused-off"
    assert unused not in texts_of(*row, set(), ddp=DDP)
    on = texts_of(*row, set(), ddp=replace(DDP, find_unused=True))[unused]
    assert on == "if every parameter gets a gradient in every step: switch off find_unused_parameters"
    assert texts_of(*row, set())[unused].startswith("if the model is wrapped in DistributedDataParallel and ")
    compute = {Need.GPU_PRESENT, Need.FP32_MATMUL_SEEN, Need.TENSOR_CORES_IDLE}
    assert "tf32" in texts_of(Kind.COMPUTE_BOUND, "gpu", compute, matmul_tf32=False)
    assert "tf32" not in texts_of(Kind.COMPUTE_BOUND, "gpu", compute, matmul_tf32=True)
    assert not {"tf32", "bf16"} & texts_of(Kind.COMPUTE_BOUND, "gpu", compute, autocast=True).keys()
    copies, pinned = {Need.GPU_PRESENT, Need.COPY_IN_STACK}, LoaderSettings(0, True, UNTOLD, False, 8)
    found = texts_of(Kind.SYNC_BOUND, "implicit", copies, loader=pinned)
    assert "non-blocking-copy" in found
    assert "pin-memory" not in found
    kept = texts_of(Kind.DATA_BOUND, "respawn", {Need.RESPAWN_SEEN}, loader=LoaderSettings(2, False, 2, True, 8))
    assert next(iter(kept)) == "one-loader"


def test_the_limit_of_gathers_is_advised_only_to_who_has_it_otherwise():
    row, seen = (Kind.SYNC_BOUND, "allocator"), {Need.ALLOCATOR_RETRIES}
    off = replace(FSDP1, limit_all_gathers=False)
    assert texts_of(*row, seen, fsdp=off)["limit-all-gathers"] == "keep limit_all_gathers=True"
    assert "limit-all-gathers" not in texts_of(*row, seen, fsdp=FSDP1)
    assert "limit-all-gathers" not in texts_of(*row, seen, fsdp=FSDP2)
    row, seen = (Kind.COMMS_BOUND, "transfer"), {Need.GPU_MEMORY_FREE, Need.SYNC_IN_STACK}
    assert texts_of(*row, seen, fsdp=FSDP1)["unlimit-all-gathers"].startswith("let FSDP's host run ahead")
    assert "unlimit-all-gathers" not in texts_of(*row, seen, fsdp=off)
    assert "unlimit-all-gathers" not in texts_of(*row, seen, fsdp=FSDP2)
    assert texts_of(*row, seen, fsdp=FSDP2)["fsdp-keep-parameters"].startswith("keep parameters")


def test_counters_that_rise_while_it_trains_are_seen():
    figures = AllocatorFigures(1, 1, 0, 1, 1, 7, 0, UNTOLD)
    before, after = told(allocator=figures), told(allocator=replace(figures, alloc_retries=9))
    assert observe_settings(changed(before, after)) == {Need.ALLOCATOR_RETRIES}
    counts = CompileCounts(4, 4, 1, 0, 0)
    again = told(compiled=replace(counts, frames=6, frames_ok=6))
    assert observe_settings(changed(told(compiled=counts), again)) == {Need.RECOMPILES_SEEN}
    whole, again = (told(compiled=CompileCounts(0, 0, graphs, 0, 0)) for graphs in (1, 3))
    assert observe_settings(changed(whole, again)) == {Need.RECOMPILES_SEEN}


def test_the_first_steps_and_a_job_without_a_hook_prove_nothing():
    hook = make_hook(settings=make_settings(compiled=CompileCounts(9, 9, 5, 4, 1)))
    young = with_hooks(make_frame(), replace(hook, counts=replace(hook.counts, steps=3)))
    assert observe_settings(scene_of(young)) == set()
    assert observe_settings(scene_of(make_frame())) == set()


def test_they_reach_the_choice_of_remedies():
    suspicion = Suspicion(Kind.BALANCED, "none", 0.0, 1.0, frozenset(), "", ())
    scene = scene_of(told(compiled=CompileCounts(9, 9, 5, 4, 0)))
    assert Need.GRAPH_BREAKS in observe(scene, suspicion)
