"""What the settings of a hook prove for remedies, what is done already, and what they leave open."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import make_frame
from tests.judging import hold, scene_of
from tests.paces import make_hook, with_hooks
from tests.view.test_hook import MIB, make_settings
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import DEEP_PREFETCH, observe, observe_done
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
GROUPS = (
    *("compiled", "allocator", "ddp", "fsdp", "loader", "matmul_tf32", "autocast"),
    *("cudnn_benchmark", "cudnn_deterministic", "deterministic"),
)
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


# what is done already is offered no more, not even behind an "if"

CALM = AllocatorFigures(1, 1, 0, 1, 1, 0, 0, UNTOLD)
LOADER = LoaderSettings(2, False, DEEP_PREFETCH, True, 8)
MANY = DdpSettings(25 * MIB, 12, find_unused=False, static_graph=False)
SUSPECT = Suspicion(Kind.LAUNCH_BOUND, "main-thread", 0.5, 2.0, frozenset(("a",)), "text", ())


def told_by(*ranks: dict[str, Any]) -> Frame:
    hooks = [
        make_hook(4211 + rank, rank=rank, settings=make_settings(**(NOTHING | fields)))
        for rank, fields in enumerate(ranks)
    ]
    return with_hooks(make_frame(), *hooks)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, set()),
        ({"compiled": CompileCounts(0, 0, 0, 0, 0)}, {Need.NOTHING_COMPILED}),
        ({"compiled": CompileCounts(9, 0, 0, 0, 0)}, set()),
        ({"compiled": CompileCounts(9, 9, 1, 2, 0)}, {Need.MODEL_COMPILED, Need.FEW_BREAKS}),
        ({"compiled": CompileCounts(0, 0, 1, 0, 0)}, {Need.MODEL_COMPILED, Need.FEW_BREAKS}),
        ({"compiled": CompileCounts(9, 9, 5, 3, 0)}, {Need.MODEL_COMPILED}),
        ({"cudnn_benchmark": True}, {Need.BENCHMARK_ON}),
        ({"cudnn_benchmark": False}, set()),
        ({"cudnn_deterministic": True}, {Need.DETERMINISTIC_ON}),
        ({"deterministic": True}, {Need.DETERMINISTIC_ON}),
        ({"allocator": CALM}, {Need.NO_RETRIES}),
        ({"allocator": replace(CALM, alloc_retries=1)}, set()),
        ({"ddp": MANY}, set()),
        ({"ddp": replace(MANY, buckets=2)}, {Need.LARGE_BUCKETS}),
        ({"ddp": replace(MANY, bucket_cap_bytes=100 * MIB)}, {Need.LARGE_BUCKETS}),
        ({"loader": LOADER}, {Need.PREFETCH_DEEP}),
        ({"loader": replace(LOADER, prefetch_factor=2)}, set()),
        ({"loader": replace(LOADER, prefetch_factor=UNTOLD)}, set()),
    ],
)
def test_settings_prove_what_is_done(fields, needs):
    scene = scene_of(told_by(fields))
    assert observe_done(scene) == needs
    assert needs <= observe(scene, SUSPECT)


def test_it_holds_only_where_every_rank_says_so_after_its_first_steps():
    on, off = {"cudnn_benchmark": True}, {"cudnn_benchmark": False}
    assert observe_done(scene_of(told_by(on, on))) == {Need.BENCHMARK_ON}
    assert observe_done(scene_of(told_by(on, off))) == set()
    hook = make_hook(settings=make_settings(**(NOTHING | on)))
    young = with_hooks(make_frame(), replace(hook, counts=replace(hook.counts, steps=3)))
    assert observe_done(scene_of(young)) == set()
    assert observe_done(scene_of(make_frame())) == set()


COMPILED = {"compiled": CompileCounts(9, 9, 1, 0, 0)}
EAGER = {"compiled": CompileCounts(0, 0, 0, 0, 0)}
COMPUTE = (Kind.COMPUTE_BOUND, "gpu-compute")
TRANSFER = (Kind.COMMS_BOUND, "transfer")


@pytest.mark.parametrize(
    ("name", "row", "done"),
    [
        ("torch-compile", (Kind.LAUNCH_BOUND, "tiny-kernels"), COMPILED),
        ("torch-compile", COMPUTE, COMPILED),
        ("compile-max-autotune", COMPUTE, EAGER),
        ("compile-fullgraph", COMPUTE, EAGER),
        ("compile-fullgraph", COMPUTE, COMPILED),
        ("recompilation-trap", (Kind.LAUNCH_BOUND, "main-thread"), EAGER),
        ("cudnn-benchmark", COMPUTE, {"cudnn_benchmark": True}),
        ("cudnn-benchmark", COMPUTE, {"deterministic": True}),
        ("expandable-segments", (Kind.MEMORY_PRESSURE, "gpu"), {"allocator": CALM}),
        ("limit-all-gathers", (Kind.MEMORY_PRESSURE, "gpu"), {"allocator": CALM}),
        ("ddp-buckets", TRANSFER, {"ddp": replace(MANY, buckets=2)}),
        ("persistent-workers", (Kind.DATA_BOUND, "respawn"), {"loader": LOADER}),
        ("prefetch-factor", (Kind.DATA_BOUND, "periodic"), {"loader": LOADER}),
        ("pin-memory", (Kind.SYNC_BOUND, "implicit"), {"loader": replace(LOADER, pin_memory=True)}),
        ("find-unused-off", TRANSFER, {"ddp": MANY}),
    ],
)
def test_what_is_done_is_not_offered(name, row, done):
    def list_ids(frame):
        observed = observe(scene_of(frame), SUSPECT) | {Need.GPU_PRESENT, Need.WORKERS_PRESENT}
        return {one.remedy.id for one in choose(*row, observed - {Need.NO_WORKERS}, RunFacts())}

    plain = make_settings(**(NOTHING | {"autocast": False, "matmul_tf32": False}))
    open_still = with_hooks(make_frame(), make_hook(settings=plain))
    told_done = with_hooks(make_frame(), make_hook(settings=replace(plain, **done)))
    assert name in list_ids(open_still)
    assert name not in list_ids(told_done)


def test_a_setting_that_no_hook_reads_stands_behind_an_if():
    """No reading tells gradient_as_bucket_view: where it is on already, the remedy must not be certain."""
    chosen = choose(*TRANSFER, frozenset((Need.DDP_IN_STACK,)), RunFacts())
    view = next(one for one in chosen if one.remedy.id == "gradient-as-bucket-view")
    assert view.text.startswith("if gradient_as_bucket_view is off: ")
