"""What a hook tells to be done already is offered no more, not even behind an "if"."""

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import make_frame
from tests.judging import scene_of
from tests.paces import make_hook, with_hooks
from tests.view.test_hook import MIB, make_settings
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.context import DEEP_PREFETCH, observe, observe_done
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Suspicion
from tpmon.model.frame import Frame
from tpmon.model.hook import AllocatorFigures, CompileCounts, DdpSettings, LoaderSettings
from tpmon.model.known import Missing
from tpmon.model.verdict import Kind

UNTOLD = Missing("the job does not use it")
NOTHING = dict.fromkeys(
    ("compiled", "allocator", "ddp", "loader", "cudnn_benchmark", "cudnn_deterministic", "deterministic"), UNTOLD
)
CALM = AllocatorFigures(1, 1, 0, 1, 1, 0, 0, UNTOLD)
LOADER = LoaderSettings(2, False, DEEP_PREFETCH, True, 8)
DDP = DdpSettings(25 * MIB, 12, find_unused=False, static_graph=False)
SUSPECT = Suspicion(Kind.LAUNCH_BOUND, "main-thread", 0.5, 2.0, frozenset(("a",)), "text", ())


def told(*ranks: dict[str, Any]) -> Frame:
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
        ({"ddp": DDP}, set()),
        ({"ddp": replace(DDP, buckets=2)}, {Need.LARGE_BUCKETS}),
        ({"ddp": replace(DDP, bucket_cap_bytes=100 * MIB)}, {Need.LARGE_BUCKETS}),
        ({"loader": LOADER}, {Need.PREFETCH_DEEP}),
        ({"loader": replace(LOADER, prefetch_factor=2)}, set()),
        ({"loader": replace(LOADER, prefetch_factor=UNTOLD)}, set()),
    ],
)
def test_settings_prove_what_is_done(fields, needs):
    scene = scene_of(told(fields))
    assert observe_done(scene) == needs
    assert needs <= observe(scene, SUSPECT)


def test_it_holds_only_where_every_rank_says_so_after_its_first_steps():
    on, off = {"cudnn_benchmark": True}, {"cudnn_benchmark": False}
    assert observe_done(scene_of(told(on, on))) == {Need.BENCHMARK_ON}
    assert observe_done(scene_of(told(on, off))) == set()
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
        ("ddp-buckets", TRANSFER, {"ddp": replace(DDP, buckets=2)}),
        ("persistent-workers", (Kind.DATA_BOUND, "respawn"), {"loader": LOADER}),
        ("prefetch-factor", (Kind.DATA_BOUND, "periodic"), {"loader": LOADER}),
        ("pin-memory", (Kind.SYNC_BOUND, "implicit"), {"loader": replace(LOADER, pin_memory=True)}),
        ("find-unused-off", TRANSFER, {"ddp": DDP}),
    ],
)
def test_what_is_done_is_not_offered(name, row, done):
    def list_ids(frame):
        observed = observe(scene_of(frame), SUSPECT) | {Need.GPU_PRESENT, Need.WORKERS_PRESENT}
        return {one.remedy.id for one in choose(*row, observed - {Need.NO_WORKERS}, RunFacts())}

    plain = make_settings(**(NOTHING | {"autocast": False, "matmul_tf32": False, "fsdp": UNTOLD}))
    open_still = with_hooks(make_frame(), make_hook(settings=plain))
    told_done = with_hooks(make_frame(), make_hook(settings=replace(plain, **done)))
    assert name in list_ids(open_still)
    assert name not in list_ids(told_done)


def test_a_setting_that_no_hook_reads_stands_behind_an_if():
    """No reading tells gradient_as_bucket_view: where it is on already, the remedy must not be certain."""
    chosen = choose(*TRANSFER, frozenset((Need.DDP_IN_STACK,)), RunFacts())
    view = next(one for one in chosen if one.remedy.id == "gradient-as-bucket-view")
    assert view.text.startswith("if gradient_as_bucket_view is off: ")
