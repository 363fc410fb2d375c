"""Read the conditions of a recording: model, batch, mode, ranks, settings, versions.

They are read once, before a recording begins; nothing is imported or computed.
"""

from __future__ import annotations

import json
import os
import sys

from tpmon.hook.bus import wire, wire_settings
from tpmon.hook.context import count_collectives, is_from_handler
from tpmon.hook.device import find_device
from tpmon.hook.tensors import find_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpmon.hook.counters import Counts

_MOST_PLACES = 64


def describe_run(steps: Counts, first_step: int) -> dict[str, str]:
    """Return the metadata of a trace: names and JSON."""
    told = read_conditions(steps)
    told["first_step"] = first_step
    metadata = {"tpmon": json.dumps(told)}
    if told.get("world_size", 1) != 1:
        ranks = {name: told[name] for name in ("rank", "world_size", "backend")}
        metadata["distributedInfo"] = json.dumps(ranks)
    return metadata


def read_conditions(steps: Counts) -> dict[str, Any]:
    """Return the conditions of the counted loop, ready for JSON."""
    torch: Any = sys.modules["torch"]
    inputs = getattr(steps.watcher, "inputs", None)
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:3])),
        "step_rule": steps.rule,
        "mode": "evaluation" if steps.rule == wire.RULE_BATCH else "training",
        "batch_size": steps.batch_size or {"missing": "the DataLoader does not say it"},
        "inputs": inputs
        or {"missing": "no batch of torch's DataLoader was looked at, or it holds no plain tensor"},
    }
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "places": _read_places,
        "model": lambda: _read_model(torch, steps),
        "settings": lambda: _read_settings(torch),
        "autocast": lambda: _read_autocast(torch, steps),
        "ranks": _read_ranks,
        "device": lambda: _read_device(torch),
    }
    for name, read in parts.items():
        try:
            found.update(read())
        except Exception as error:  # the other parts go on
            if is_from_handler(error):
                raise
            found[name] = {"missing": f"{type(error).__name__}: {error}"}
    return found


def tell_conditions(steps: Counts, most_bytes: int) -> bytes:
    """Return the conditions as JSON of at most so many bytes, empty where they do not fit.

    The paths of sys.path are left out, then the folder, then the tensors of a batch.
    """
    told = read_conditions(steps)
    for name in ("sys_path", "folder", "inputs"):
        told[name] = {"missing": "there was no room for it on the bus"}
        data = json.dumps(told, separators=(",", ":")).encode()
        if len(data) <= most_bytes:
            return data
    return b""


def tell_counts(steps: Counts) -> bytes:
    """Tell how many steps ended, and how many collectives began until then, as JSON."""
    return json.dumps({"steps": steps.steps, "collectives": count_collectives()}).encode()


def _read_places() -> dict[str, Any]:
    """Return where the files of stacks lie: torch cuts their paths at the entries of sys.path."""
    folder = os.getcwd()
    return {"folder": folder, "sys_path": [os.path.join(folder, one) for one in sys.path[:_MOST_PLACES]]}


def _read_model(torch: Any, steps: Counts) -> dict[str, Any]:
    model = find_model(torch, steps)
    if model is None:
        return {"model": {"missing": "no module was found that the optimizer works on"}}
    parameters = list(model.parameters())
    inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
    return {
        "model": type(inner if isinstance(inner, torch.nn.Module) else model).__name__,
        "wrapped_by": type(model).__name__ if isinstance(inner, torch.nn.Module) else "",
        # This rank's part where they are sharded; DeepSpeed keeps the size beside an empty parameter.
        "parameters": sum(getattr(one, "ds_numel", 0) or one.numel() for one in parameters),
        "dtype": str(parameters[0].dtype) if parameters else "",
        "device": str(parameters[0].device) if parameters else "",
        "training": bool(model.training),
    }


def _read_settings(torch: Any) -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "matmul_precision": _read_precision(torch),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
        "anomaly_mode": bool(torch.is_anomaly_enabled()),
    }


def _read_precision(torch: Any) -> Any:
    read = getattr(getattr(torch, "_C", None), "_get_fp32_precision_getter", None)
    if read is None:
        return torch.get_float32_matmul_precision()
    # The older function warns then, and raises where the two kinds of settings were mixed.
    return {"missing": "TF32 is on: high or medium"} if read("cuda", "matmul") == "tf32" else "highest"


def _read_autocast(torch: Any, steps: Counts) -> dict[str, Any]:
    """Return autocast where the last watched backward began: at the end of a step it is over."""
    words = wire_settings.parse_settings(steps.page) if len(steps.page) else ()
    on = words[wire_settings.SET_AUTOCAST] if words else wire_settings.UNKNOWN
    if on == wire_settings.UNKNOWN:
        on = int(torch.is_autocast_enabled())
    if not on:
        why = {"missing": "it was off where the backward began"}
        return {"autocast": why, "autocast_dtype": why}
    dtype = wire_settings.DTYPES.get(words[wire_settings.SET_AUTOCAST_DTYPE], "another type") if words else ""
    return {"autocast": True, "autocast_dtype": dtype}


def _read_ranks() -> dict[str, Any]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {"rank": 0, "world_size": 1, "backend": ""}
    return {
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "backend": str(distributed.get_backend()),
    }


def _read_device(torch: Any) -> dict[str, Any]:
    if not torch.cuda.is_initialized():
        return {"gpu": ""}
    # get_device_properties() counts the devices first, which may ask NVML.
    told = torch.cuda._get_device_properties(max(0, find_device(torch)))  # noqa: SLF001 there once CUDA is
    return {
        "gpu": told.name,
        "gpu_uuid": str(getattr(told, "uuid", "")),
        "gpu_memory_bytes": told.total_memory,
        "cuda": str(torch.version.cuda),
    }
