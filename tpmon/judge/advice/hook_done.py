"""What the settings of hooks prove to be done already, so that no remedy offers it as an "if". Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tpmon.judge.answers.needs import Need
from tpmon.judge.features.hook_needs import MANY_BREAKS, MANY_BUCKETS, SMALL_BUCKET_BYTES, STEADY_STEPS
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.watch.hook_progress import list_hooks
from tpmon.model.hook_settings import TrainSettings
from tpmon.model.known import is_known

DEEP_PREFETCH = 4
"""Batches per worker from which the queue is as long as the remedy would make it."""


def _of_compiler(settings: TrainSettings) -> Iterator[Need]:
    if not is_known(compiled := settings.compiled):
        return
    if not compiled.frames and not compiled.graphs:
        yield Need.NOTHING_COMPILED
    if compiled.frames_ok or compiled.graphs:
        yield Need.MODEL_COMPILED
        if compiled.graph_breaks < MANY_BREAKS:
            yield Need.FEW_BREAKS


def _of_switches(settings: TrainSettings) -> Iterator[Need]:
    switches = (
        (settings.cudnn_benchmark, Need.BENCHMARK_ON),
        (settings.cudnn_deterministic, Need.DETERMINISTIC_ON),
        (settings.deterministic, Need.DETERMINISTIC_ON),
    )
    for is_on, need in switches:
        if is_known(is_on) and is_on:
            yield need


def _of_memory(settings: TrainSettings) -> Iterator[Need]:
    if is_known(allocator := settings.allocator) and not allocator.alloc_retries:
        yield Need.NO_RETRIES


def _of_ranks(settings: TrainSettings) -> Iterator[Need]:
    if is_known(ddp := settings.ddp) and (
        ddp.buckets < MANY_BUCKETS or ddp.bucket_cap_bytes > SMALL_BUCKET_BYTES
    ):
        yield Need.LARGE_BUCKETS


def _of_loader(settings: TrainSettings) -> Iterator[Need]:
    if not is_known(loader := settings.loader):
        return
    if is_known(loader.prefetch_factor) and loader.prefetch_factor >= DEEP_PREFETCH:
        yield Need.PREFETCH_DEEP


_READ = (_of_compiler, _of_switches, _of_memory, _of_ranks, _of_loader)


def observe_done(scene: Scene) -> frozenset[Need]:
    """Return what is done already in every rank whose hook tells its settings; nothing without a hook.

    One rank that differs may be the one that needs it.
    """
    told = [
        {need for read in _READ for need in read(one.settings)}
        for one in list_hooks(scene.frame)
        if is_known(one.settings) and one.counts.steps >= STEADY_STEPS
    ]
    return frozenset(set.intersection(*told)) if told else frozenset()
