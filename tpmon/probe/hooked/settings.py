"""Parse the blocks of the hook's page with settings and device times. Pure; checks every number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpmon.hook.bus import wire_settings as wire
from tpmon.model.hook import (
    NO_DEVICE,
    NO_SETTINGS,
    TOO_LONG,
    AllocatorFigures,
    CompileCounts,
    DdpSettings,
    DeviceTimes,
    FsdpSettings,
    LoaderSettings,
    PhaseMemory,
    StateSizes,
    TrainSettings,
)
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known

_UNTOLD = Missing("its torch does not tell")
_NO_COMPILE = Missing("nothing is compiled with torch.compile")
_NO_CUDA = Missing("CUDA is not in use in this process")
_NO_OPTIMIZER = Missing("no torch optimizer has stepped, or it has too many tensors to add up")
_NO_TURNS = Missing("no step was watched from turn to turn")
_NO_TURN = Missing("no step that was watched had this turn")
_NO_RISE = Missing("the peak did not rise there while a step was watched")
_UNSEEN_RISE = Missing("no step that was watched was seen to reach the peak")
_NO_ESTIMATE = Missing("no step of one optimizer alone was watched, or its tensors cannot be added up")
_PARTED = Missing("parameters are not on the one device whose allocator is asked")
_GATHERED = Missing("FSDP gathers parameters in the forward, and they look like activations")
_NO_DDP = Missing("no DistributedDataParallel was made since the hook came")
_NO_FSDP = Missing("no FSDP was made since the hook came")
_PREFETCHES = {
    wire.FSDP_NO_PREFETCH: "off",
    wire.FSDP_BACKWARD_PRE: "BACKWARD_PRE",
    wire.FSDP_BACKWARD_POST: "BACKWARD_POST",
}
_PHASES = {
    wire.PHASE_FORWARD: "forward",
    wire.PHASE_BACKWARD: "backward",
    wire.PHASE_OPTIMIZER: "optimizer",
    wire.PHASE_OTHER: "other",
}
_NO_LOADER = Missing("no batch of a DataLoader was seen")

_SWITCHES = (
    *("matmul_tf32", "cudnn_tf32", "cudnn_benchmark", "cudnn_deterministic"),
    *("deterministic", "anomaly", "autocast"),
)
_SDPA = (
    (wire.SDPA_FLASH, "flash"),
    (wire.SDPA_MEM_EFFICIENT, "mem-efficient"),
    (wire.SDPA_MATH, "math"),
    (wire.SDPA_CUDNN, "cudnn"),
)


def parse_settings(page: memoryview, taken_ns: int) -> Known[TrainSettings]:
    """Parse the settings of a page with a trusted header."""
    words = wire.parse_settings(page)
    if not words:
        return NO_SETTINGS
    dtype, sdpa = words[wire.SET_AUTOCAST_DTYPE], words[wire.SET_SDPA]
    switched = map(_switch, words[wire.SET_MATMUL_TF32 : wire.SET_AUTOCAST + 1])
    switches: dict[str, Any] = dict(zip(_SWITCHES, switched, strict=True))
    return TrainSettings(
        **switches,
        age_s=_age_s(words[wire.SET_TIME_NS], taken_ns),
        autocast_dtype=_UNTOLD if dtype < 0 else wire.DTYPES.get(dtype, "another"),
        sdpa=tuple(name for bit, name in _SDPA if sdpa & bit) if sdpa >= 0 else _UNTOLD,
        threads=_number(words[wire.SET_THREADS]),
        interop_threads=_number(words[wire.SET_INTEROP_THREADS]),
        profiler=_switch(words[wire.SET_PROFILER]),
        compiled=_parse_compiled(words),
        allocator=_parse_allocator(words),
        sizes=_parse_sizes(words),
        ddp=_parse_ddp(words),
        fsdp=_parse_fsdp(words),
        loader=_parse_loader(words),
    )


def parse_device(page: memoryview, taken_ns: int) -> Known[DeviceTimes]:
    """Parse the device times of a page with a trusted header."""
    words = wire.parse_device(page)
    if not words or not words[wire.DEV_STEPS]:
        return TOO_LONG if words and words[wire.DEV_TOO_LONG] else NO_DEVICE
    counts = words[wire.DEV_STEPS], words[wire.DEV_EVERY], words[wire.DEV_DROPPED]
    times_ns = words[wire.DEV_STEP_NS : wire.DEV_HOST_NS + 1]
    values: list[Any] = [_age_s(words[wire.DEV_TIME_NS], taken_ns), *counts, *times_ns]
    return DeviceTimes(*values)


def _age_s(at_ns: int, taken_ns: int) -> float:
    return max(taken_ns - at_ns, 0) / 1e9


def _number(word: int, absent: Missing = _UNTOLD) -> Known[int]:
    return word if word >= 0 else absent


def _switch(word: int) -> Known[bool]:
    return bool(word) if word >= 0 else _UNTOLD


def _parse_compiled(words: Sequence[int]) -> Known[CompileCounts]:
    counts = words[wire.SET_DYNAMO_FRAMES : wire.SET_DYNAMO_LIMIT_HITS + 1]
    return CompileCounts(*counts) if min(counts) >= 0 else _NO_COMPILE


def _parse_allocator(words: Sequence[int]) -> Known[AllocatorFigures]:
    figures = words[wire.SET_ALLOCATED : wire.SET_OOMS + 1]
    if words[wire.SET_CUDA] <= 0:
        return _NO_CUDA
    if min(figures) < 0:
        return _UNTOLD
    at_backward = _number(words[wire.SET_ALLOCATED_AT_BACKWARD])
    values: list[Any] = [*figures, at_backward, _parse_phases(words)]
    return AllocatorFigures(*values)


def _parse_phases(words: Sequence[int]) -> Known[PhaseMemory]:
    # 0 means unknown too: an older hook has nothing there.
    turns = words[wire.SET_ALLOCATED_AFTER_BATCH : wire.SET_ALLOCATED_AFTER_UPDATE + 1]
    peaks = words[wire.SET_PEAK_IN_FORWARD : wire.SET_PEAK_IN_OTHER + 1]
    if max(*turns, *peaks) <= 0:
        return _NO_TURNS
    told = (
        *(_number(one or -1, _NO_TURN) for one in turns),
        *(_number(one or -1, _NO_RISE) for one in peaks),
    )
    values: list[Any] = [*told, _PHASES.get(words[wire.SET_PEAK_PHASE], _UNSEEN_RISE)]
    return PhaseMemory(*values)


def _parse_sizes(words: Sequence[int]) -> Known[StateSizes]:
    sizes = words[wire.SET_PARAMETERS : wire.SET_OPTIMIZER_STATE + 1]
    parameters, gradients, state = sizes
    if min(sizes) < 0:
        return _NO_OPTIMIZER
    return StateSizes(parameters, gradients, state, _parse_activations(words))


def _parse_activations(words: Sequence[int]) -> Known[int]:
    if words[wire.SET_CUDA] <= 0:
        return _NO_CUDA
    if words[wire.SET_FSDP_VERSION] > 0:
        return _GATHERED
    word = words[wire.SET_ACTIVATIONS]
    return _PARTED if word == wire.ELSEWHERE else _number(word or wire.UNKNOWN, _NO_ESTIMATE)


def _parse_ddp(words: Sequence[int]) -> Known[DdpSettings]:
    cap, buckets, unused, static = words[wire.SET_DDP_BUCKET_CAP : wire.SET_DDP_STATIC_GRAPH + 1]
    return DdpSettings(cap, buckets, unused > 0, static > 0) if min(cap, buckets) >= 0 else _NO_DDP


def _parse_fsdp(words: Sequence[int]) -> Known[FsdpSettings]:
    version, units, forward, backward, limit = words[wire.SET_FSDP_VERSION : wire.SET_FSDP_LIMIT + 1]
    if version < 1 or min(units, forward, backward) < 0:
        return _NO_FSDP
    if version > 1:
        ahead, back = (f"{one} of {units} units" if one else "torch's order" for one in (forward, backward))
        return FsdpSettings(version, units, ahead, back, limit_all_gathers=NOT_APPLICABLE)
    order = _PREFETCHES.get(backward, "another")
    return FsdpSettings(version, units, "on" if forward else "off", order, limit_all_gathers=limit > 0)


def _parse_loader(words: Sequence[int]) -> Known[LoaderSettings]:
    workers = _number(words[wire.SET_WORKERS], _NO_LOADER)
    if not is_known(workers):
        return workers
    return LoaderSettings(
        workers=workers,
        pin_memory=words[wire.SET_PIN_MEMORY] > 0,
        prefetch_factor=_number(words[wire.SET_PREFETCH_FACTOR], Missing("no workers fetch ahead")),
        persistent_workers=words[wire.SET_PERSISTENT_WORKERS] > 0,
        batch_size=_number(words[wire.SET_BATCH_SIZE], Missing("the DataLoader does not say it")),
    )
