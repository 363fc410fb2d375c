"""What the settings that hooks tell prove for the catalogue of remedies. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.judge.advice_needs import Need
from tpmon.judge.hook_signs import list_hooks
from tpmon.judge.scene import Scene
from tpmon.model.hook_settings import TrainSettings
from tpmon.model.known import Known, Missing, is_known, map_known

MANY_BREAKS = 3
"""Graph breaks from which a compiled model is in many graphs."""
MANY_BUCKETS = 8
SMALL_BUCKET_BYTES = 25 << 20
"""DDP's default cap; so many buckets of no more are many small reductions."""
STEADY_STEPS = 10
"""Steps after which compiling again is no part of the start."""


def _settings(scene: Scene) -> list[tuple[int, TrainSettings]]:
    hooks = list_hooks(scene.frame)
    return [
        (one.pid, one.settings)
        for one in hooks
        if is_known(one.settings) and one.counts.steps >= STEADY_STEPS
    ]


def _rose(scene: Scene, pid: int, read: Callable[[TrainSettings], Known[int]]) -> bool:
    """Tell whether a counter of one rank rose since the oldest Frame that has it, after its first steps."""
    values = [
        value
        for frame in (scene.history[0], scene.frame)
        for one in list_hooks(frame)
        if one.pid == pid and one.counts.steps >= STEADY_STEPS and is_known(one.settings)
        if is_known(value := read(one.settings))
    ]
    return len(values) == 2 and values[1] > values[0]


def _retries(settings: TrainSettings) -> Known[int]:
    return map_known(lambda one: one.alloc_retries, settings.allocator)


def _frames(settings: TrainSettings) -> Known[int]:
    if isinstance(settings.compiled, Missing):
        return settings.compiled
    one = settings.compiled
    return (one.frames_ok or one.graphs) + one.limit_hits


def observe_settings(scene: Scene) -> frozenset[Need]:
    """Return the needs that the settings of any rank prove; none without a hook."""
    seen = set()
    for pid, settings in _settings(scene):
        if is_known(settings.anomaly) and settings.anomaly:
            seen.add(Need.DEBUG_TAX_SET)
        compiled, ddp = settings.compiled, settings.ddp
        if is_known(compiled):
            if not compiled.frames and not compiled.graphs:
                seen.add(Need.EAGER_MODEL)
            if compiled.graph_breaks >= MANY_BREAKS:
                seen.add(Need.GRAPH_BREAKS)
            if compiled.limit_hits or _rose(scene, pid, _frames):
                seen.add(Need.RECOMPILES_SEEN)
        if is_known(settings.loader):
            seen.add(Need.TORCH_LOADER)
        if is_known(ddp):
            seen.add(Need.DDP_IN_STACK)
            if ddp.buckets >= MANY_BUCKETS and ddp.bucket_cap_bytes <= SMALL_BUCKET_BYTES:
                seen.add(Need.SMALL_BUCKETS)
        if _rose(scene, pid, _retries):
            seen.add(Need.ALLOCATOR_RETRIES)
    return frozenset(seen)
