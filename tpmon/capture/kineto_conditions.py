"""Say under which conditions kineto recorded, by what the hook told when asked, its bus, and NVML. Pure.

The names are those that the hook writes into a trace of its own (``tpmon.hook.capture.conditions``). What
only the process itself can tell is missing, with the reason, where the hook did not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpmon.hook.bus import wire, wire_settings
from tpmon.model.codec import to_plain
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.results.capture import GpuClocks

_NO_STEP = Missing("no step ended yet")
_NOT_YET = Missing("the hook has not told its settings yet")
_NO_GROUP = Missing("there was no process group when the hook began")
_UNTOLD = Missing("its torch does not tell")
_OFF = Missing("it was off where the backward began")
_NOT_NAMED = Missing("NVML does not name the GPU")
_FROM_WITHIN = (
    "inputs",
    "model",
    "wrapped_by",
    "parameters",
    "dtype",
    "device",
    "training",
    "backend",
    "gpu_uuid",
    "gpu_memory_bytes",
    "cuda",
    "folder",
    "sys_path",
)
_OURS = ("rank", "clocks")
"""What is known better outside: of launchers that make no process group too."""

_DTYPES = {
    wire_settings.DTYPE_FLOAT32: "float32",
    wire_settings.DTYPE_FLOAT16: "float16",
    wire_settings.DTYPE_BFLOAT16: "bfloat16",
}
_NUMBERS = {
    "threads": wire_settings.SET_THREADS,
    "interop_threads": wire_settings.SET_INTEROP_THREADS,
}
_SWITCHES = {
    "cudnn_benchmark": wire_settings.SET_CUDNN_BENCHMARK,
    "cudnn_deterministic": wire_settings.SET_CUDNN_DETERMINISTIC,
    "deterministic": wire_settings.SET_DETERMINISTIC,
    "anomaly_mode": wire_settings.SET_ANOMALY,
}


def describe_from_bus(
    header: wire.Header,
    words: Sequence[int],
    record: Sequence[int],
    rank: Applicable[int],
    clocks: Known[tuple[GpuClocks, ...]],
    *,
    within: Known[dict[str, Any]],
) -> dict[str, Any]:
    """Return what goes into a trace of kineto's: ``words`` are SET_*, ``record`` the newest.

    What the hook told from ``within`` the process goes before what is on its bus.
    """
    known_rank = rank if is_known(rank) else header.rank
    found: dict[str, object] = {
        "torch": header.torch_version or _UNTOLD,
        "python": header.python_version or _UNTOLD,
        "rank": known_rank if known_rank >= 0 else _NO_GROUP,
        "world_size": header.world_size if header.world_size > 0 else _NO_GROUP,
        "gpu": _find_gpu(words, clocks),
        "clocks": clocks,
        **dict.fromkeys(_FROM_WITHIN, within if isinstance(within, Missing) else _UNTOLD),
        **_read_steps(record),
        **_read_settings(words),
    }
    plain = {name: to_plain(value) for name, value in found.items()}
    if is_known(within):
        told = {name: value for name, value in within.items() if name in plain and name not in _OURS}
        plain.update(told)
    return plain


def _read_steps(record: Sequence[int]) -> dict[str, object]:
    if not record:
        return dict.fromkeys(("step_rule", "mode", "batch_size"), _NO_STEP)
    return {
        "step_rule": record[wire.REC_RULE],
        "mode": "evaluation" if record[wire.REC_RULE] == wire.RULE_BATCH else "training",
        "batch_size": record[wire.REC_BATCH_SIZE] or Missing("the DataLoader does not say it"),
    }


def _read_settings(words: Sequence[int]) -> dict[str, object]:
    if not words:
        names = (*_NUMBERS, *_SWITCHES, "matmul_precision", "autocast", "autocast_dtype")
        return dict.fromkeys(names, _NOT_YET)
    found: dict[str, object] = {
        **{name: words[at] if words[at] >= 0 else _UNTOLD for name, at in _NUMBERS.items()},
        **{name: bool(words[at]) if words[at] >= 0 else _UNTOLD for name, at in _SWITCHES.items()},
        "matmul_precision": _UNTOLD,
    }
    if words[wire_settings.SET_MATMUL_TF32] >= 0:
        is_on = words[wire_settings.SET_MATMUL_TF32]
        found["matmul_precision"] = Missing("TF32 is on: high or medium") if is_on else "highest"
    if words[wire_settings.SET_AUTOCAST] > 0:
        dtype = _DTYPES.get(words[wire_settings.SET_AUTOCAST_DTYPE], "another type")
        return {**found, "autocast": True, "autocast_dtype": dtype}
    # Most programs leave it before the backward.
    why = _UNTOLD if words[wire_settings.SET_AUTOCAST] < 0 else _OFF
    return {**found, "autocast": why, "autocast_dtype": why}


def _find_gpu(words: Sequence[int], clocks: Known[tuple[GpuClocks, ...]]) -> Known[str]:
    """Name the GPU by NVML where CUDA is in use, "" where it is not."""
    if is_known(clocks) and clocks:
        return clocks[0].name
    if not words:
        return _NOT_YET
    if words[wire_settings.SET_CUDA] < 0:
        return _UNTOLD
    return _NOT_NAMED if words[wire_settings.SET_CUDA] else ""
