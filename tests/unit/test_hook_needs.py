"""What the settings of a hook prove for remedies, and what they leave open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.frames import make_frame
from tests.judging import hold, scene_of
from tests.paces import make_hook, with_hooks
from tests.unit.test_hook_words import MIB, make_settings
from tpmon.judge.advice_needs import Need, Sight, name_sight
from tpmon.judge.hook_needs import observe_settings
from tpmon.judge.observe import observe
from tpmon.judge.scene import Scene, see
from tpmon.judge.suspicion import Suspicion
from tpmon.model.frame import Frame
from tpmon.model.hook_settings import AllocatorFigures, CompileCounts, DdpSettings, LoaderSettings
from tpmon.model.known import Missing
from tpmon.model.verdict import Kind

UNTOLD = Missing("the job does not use it")
NOTHING = {"compiled": UNTOLD, "allocator": UNTOLD, "ddp": UNTOLD, "loader": UNTOLD}


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
        ({"ddp": DdpSettings(25 * MIB, 2, find_unused=True, static_graph=False)}, {Need.DDP_IN_STACK}),
        (
            {"ddp": DdpSettings(25 * MIB, 12, find_unused=False, static_graph=False)},
            {Need.DDP_IN_STACK, Need.SMALL_BUCKETS},
        ),
        ({"allocator": AllocatorFigures(1, 1, 0, 1, 1, 7, 0, UNTOLD)}, set()),
    ],
)
def test_settings_prove_what_they_say(fields: dict[str, Any], needs: set[Need]) -> None:
    assert observe_settings(scene_of(told(**fields))) == needs


def test_counters_that_rise_while_it_trains_are_seen() -> None:
    figures = AllocatorFigures(1, 1, 0, 1, 1, 7, 0, UNTOLD)
    before, after = told(allocator=figures), told(allocator=replace(figures, alloc_retries=9))
    assert observe_settings(changed(before, after)) == {Need.ALLOCATOR_RETRIES}
    counts = CompileCounts(4, 4, 1, 0, 0)
    again = told(compiled=replace(counts, frames=6, frames_ok=6))
    assert observe_settings(changed(told(compiled=counts), again)) == {Need.RECOMPILES_SEEN}
    whole, again = (told(compiled=CompileCounts(0, 0, graphs, 0, 0)) for graphs in (1, 3))
    assert observe_settings(changed(whole, again)) == {Need.RECOMPILES_SEEN}


def test_the_first_steps_and_a_job_without_a_hook_prove_nothing() -> None:
    hook = make_hook(settings=make_settings(compiled=CompileCounts(9, 9, 5, 4, 1)))
    young = with_hooks(make_frame(), replace(hook, counts=replace(hook.counts, steps=3)))
    assert observe_settings(scene_of(young)) == set()
    assert observe_settings(scene_of(make_frame())) == set()


def test_they_reach_the_choice_of_remedies_and_their_sight_is_named() -> None:
    suspicion = Suspicion(Kind.BALANCED, "none", 0.0, 1.0, frozenset(), "", ())
    scene = scene_of(told(compiled=CompileCounts(9, 9, 5, 4, 0)))
    assert Need.GRAPH_BREAKS in observe(scene, suspicion)
    assert name_sight(Need.GRAPH_BREAKS) is Sight.HOOK
    assert name_sight(Need.UNFUSED_OPTIMIZER) is Sight.NOT_YET
