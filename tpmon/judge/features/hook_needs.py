"""Derive the needs that the settings reported by hooks prove. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpmon.judge.answers.needs import Need
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.hook import TrainSettings
from tpmon.model.known import Known, Missing, is_known, map_known

MANY_BREAKS = 3
"""Graph breaks above which a compiled model is in many graphs."""
MANY_BUCKETS = 8
SMALL_BUCKET_BYTES = 25 << 20
"""DDP's default cap; that many buckets of at most this size are many small reductions."""
STEADY_STEPS = 10
"""Steps after which compiling again is not part of the start."""


def _settings(scene: Scene) -> list[tuple[int, TrainSettings]]:
    hooks = list_hooks(scene.frame)
    return [
        (one.pid, one.settings)
        for one in hooks
        if is_known(one.settings) and one.counts.steps >= STEADY_STEPS
    ]


def count_risen(scene: Scene, pid: int, read: Callable[[TrainSettings], Known[int]]) -> int:
    """Return how much a counter of one rank rose within the Window, after its first steps; 0 if unknown."""
    values = [
        value
        for frame in (scene.history[0], scene.frame)
        for one in list_hooks(frame)
        if one.pid == pid and one.counts.steps >= STEADY_STEPS and is_known(one.settings)
        if is_known(value := read(one.settings))
    ]
    return max(0, values[1] - values[0]) if len(values) == 2 else 0


def get_retries(settings: TrainSettings) -> Known[int]:
    """Return how often the allocator freed its cache to find room."""
    return map_known(lambda one: one.alloc_retries, settings.allocator)


def get_ooms(settings: TrainSettings) -> Known[int]:
    """Return how often it still found none."""
    return map_known(lambda one: one.ooms, settings.allocator)


def _frames(settings: TrainSettings) -> Known[int]:
    if isinstance(settings.compiled, Missing):
        return settings.compiled
    one = settings.compiled
    return (one.frames_ok or one.graphs) + one.limit_hits


def _of_wrapper(settings: TrainSettings) -> Iterator[Need]:
    """Return what a wrapper around the model proves; one made before the hook came is unknown."""
    if is_known(ddp := settings.ddp):
        yield Need.DDP_IN_STACK
        yield Need.FIND_UNUSED_ON if ddp.find_unused else Need.FIND_UNUSED_OFF
        if ddp.buckets >= MANY_BUCKETS and ddp.bucket_cap_bytes <= SMALL_BUCKET_BYTES:
            yield Need.SMALL_BUCKETS
    if is_known(fsdp := settings.fsdp):
        yield Need.FSDP_IN_STACK
        yield Need.FSDP1_IN_USE if fsdp.version == 1 else Need.FSDP2_IN_USE
        if is_known(fsdp.limit_all_gathers):
            yield Need.GATHERS_LIMITED if fsdp.limit_all_gathers else Need.GATHERS_UNLIMITED


def _of_switches(settings: TrainSettings) -> Iterator[Need]:
    """Return what a switch that is on proves; autocast being off says nothing about the forward."""
    switches = (
        (settings.anomaly, Need.DEBUG_TAX_SET),
        (settings.matmul_tf32, Need.TF32_ALLOWED),
        (settings.autocast, Need.AUTOCAST_ON),
    )
    for is_on, need in switches:
        if is_known(is_on) and is_on:
            yield need


def _of_loader(settings: TrainSettings) -> Iterator[Need]:
    if not is_known(loader := settings.loader):
        return
    yield Need.TORCH_LOADER
    if loader.pin_memory:  # without workers the main thread pins: there is no thread to be seen from outside
        yield Need.BATCHES_PINNED
    if loader.persistent_workers:
        yield Need.WORKERS_KEPT


def _of_compiler(settings: TrainSettings) -> Iterator[Need]:
    if not is_known(compiled := settings.compiled):
        return
    if not compiled.frames and not compiled.graphs:
        yield Need.EAGER_MODEL
    if compiled.graph_breaks >= MANY_BREAKS:
        yield Need.GRAPH_BREAKS
    if compiled.limit_hits:
        yield Need.RECOMPILES_SEEN


_READ = (_of_wrapper, _of_switches, _of_loader, _of_compiler)
_AGAINST = frozenset(
    (
        Need.TF32_ALLOWED,
        Need.AUTOCAST_ON,
        Need.FIND_UNUSED_OFF,
        Need.FSDP2_IN_USE,
        Need.GATHERS_LIMITED,
        Need.GATHERS_UNLIMITED,
        Need.WORKERS_KEPT,
    )
)
"""These speak against a remedy only if every rank agrees: one that differs may need it."""


def observe_settings(scene: Scene) -> frozenset[Need]:
    """Return the needs that the settings of the ranks prove; none without a hook."""
    told = [(pid, {need for read in _READ for need in read(settings)}) for pid, settings in _settings(scene)]
    seen = {need for _, needs in told for need in needs}
    seen -= {need for need in seen & _AGAINST if not all(need in needs for _, needs in told)}
    for pid, _ in told:
        if count_risen(scene, pid, _frames):
            seen.add(Need.RECOMPILES_SEEN)
        if count_risen(scene, pid, get_retries):
            seen.add(Need.ALLOCATOR_RETRIES)
    return frozenset(seen)
