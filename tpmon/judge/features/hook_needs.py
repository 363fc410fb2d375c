"""Derive the needs that the settings reported by hooks prove. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpmon.judge.answers.needs import Need
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.watch.tracker import list_hooks
from tpmon.model.hook import TrainSettings
from tpmon.model.known import Known, is_known, known_or, map_known

MANY_BREAKS = 3  # graph breaks above which a compiled model is in many graphs
MANY_BUCKETS = 8
SMALL_BUCKET_BYTES = 25 << 20  # DDP's default cap
DEEP_PREFETCH = 4
STEADY_STEPS = 10  # steps after which compiling again is not part of the start


def _settings(scene: Scene) -> list[tuple[int, TrainSettings]]:
    hooks = (one for one in list_hooks(scene.frame) if one.counts.steps >= STEADY_STEPS)
    return [(one.pid, one.settings) for one in hooks if is_known(one.settings)]


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


def count_retries(scene: Scene, pid: int) -> tuple[int, int]:
    """Return how often a rank's allocator freed its cache to find room, and how often it still found none."""
    retries = count_risen(scene, pid, lambda told: map_known(lambda one: one.alloc_retries, told.allocator))
    return retries, count_risen(scene, pid, lambda told: map_known(lambda one: one.ooms, told.allocator))


def _frames(settings: TrainSettings) -> Known[int]:
    return map_known(lambda one: (one.frames_ok or one.graphs) + one.limit_hits, settings.compiled)


def _list_needs(settings: TrainSettings) -> Iterator[tuple[Need, bool]]:
    """List what settings prove where it holds; a wrapper that was made before the hook came is unknown."""
    if is_known(ddp := settings.ddp):
        yield Need.DDP_IN_STACK, True
        yield Need.FIND_UNUSED_ON, ddp.find_unused
        yield Need.FIND_UNUSED_OFF, not ddp.find_unused
        are_small = ddp.buckets >= MANY_BUCKETS and ddp.bucket_cap_bytes <= SMALL_BUCKET_BYTES
        yield Need.SMALL_BUCKETS, are_small
        yield Need.LARGE_BUCKETS, not are_small
    if is_known(fsdp := settings.fsdp):
        yield Need.FSDP_IN_STACK, True
        yield Need.FSDP1_IN_USE, fsdp.version == 1
        yield Need.FSDP2_IN_USE, fsdp.version != 1
        yield Need.GATHERS_LIMITED, known_or(fsdp.limit_all_gathers, False)
        yield Need.GATHERS_UNLIMITED, not known_or(fsdp.limit_all_gathers, True)
    # Autocast being off says nothing about the forward.
    yield Need.DEBUG_TAX_SET, known_or(settings.anomaly, False)
    yield Need.TF32_ALLOWED, known_or(settings.matmul_tf32, False)
    yield Need.AUTOCAST_ON, known_or(settings.autocast, False)
    if is_known(loader := settings.loader):
        yield Need.TORCH_LOADER, True
        # Without workers the main thread pins: there is no thread to be seen from outside.
        yield Need.BATCHES_PINNED, loader.pin_memory
        yield Need.WORKERS_KEPT, loader.persistent_workers
        yield Need.PREFETCH_DEEP, known_or(loader.prefetch_factor, 0) >= DEEP_PREFETCH
    if is_known(compiled := settings.compiled):
        is_compiled, breaks = bool(compiled.frames_ok or compiled.graphs), compiled.graph_breaks
        for eager in (Need.EAGER_MODEL, Need.NOTHING_COMPILED):
            yield eager, not compiled.frames and not compiled.graphs
        yield Need.MODEL_COMPILED, is_compiled
        yield Need.FEW_BREAKS, is_compiled and breaks < MANY_BREAKS
        yield Need.GRAPH_BREAKS, breaks >= MANY_BREAKS
        yield Need.RECOMPILES_SEEN, bool(compiled.limit_hits)
    if is_known(allocator := settings.allocator):
        yield Need.NO_RETRIES, not allocator.alloc_retries
    yield Need.BENCHMARK_ON, known_or(settings.cudnn_benchmark, False)
    yield Need.DETERMINISTIC_ON, known_or(settings.cudnn_deterministic, False)
    yield Need.DETERMINISTIC_ON, known_or(settings.deterministic, False)


_AGAINST = frozenset(
    (
        *(Need.TF32_ALLOWED, Need.AUTOCAST_ON, Need.FIND_UNUSED_OFF, Need.FSDP2_IN_USE, Need.GATHERS_LIMITED),
        *(Need.GATHERS_UNLIMITED, Need.WORKERS_KEPT, Need.PREFETCH_DEEP, Need.LARGE_BUCKETS, Need.NO_RETRIES),
        *(Need.NOTHING_COMPILED, Need.MODEL_COMPILED, Need.FEW_BREAKS, Need.BENCHMARK_ON),
        Need.DETERMINISTIC_ON,
    )
)
"""These speak against a remedy only if every rank agrees: one that differs may need it."""


def observe_settings(scene: Scene) -> frozenset[Need]:
    """Return the needs that the settings of the ranks prove; none without a hook."""
    told = {
        pid: {need for need, holds in _list_needs(settings) if holds} for pid, settings in _settings(scene)
    }
    seen = set[Need]().union(*told.values())
    seen -= {need for need in seen & _AGAINST if not all(need in needs for needs in told.values())}
    for pid in told:
        if count_risen(scene, pid, _frames):
            seen.add(Need.RECOMPILES_SEEN)
        if count_retries(scene, pid)[0]:
            seen.add(Need.ALLOCATOR_RETRIES)
    return frozenset(seen)
