"""Small helpers around torch.profiler for your own code: bounded, sorted, written once per rank.

They begin a profiler only when you say so; captures that tpmon asks for are made elsewhere. Never run
two torch profilers at a time: torch drops one of them, and may crash on it.
"""

from __future__ import annotations

import os

from tpmon.hook.context import read_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_STEPS = 100
"""A step is thousands of events of a kilobyte each: more steps seldom say more."""


def make_profiler(
    steps: int = 5,
    *,
    wait: int = 5,
    warmup: int = 2,
    on_trace: Callable[[Any], None] | None = None,
    **options: Any,
) -> Any:
    """Return a torch.profiler.profile that records so many steps once, and then does nothing more.

    Use it as a context around the loop and call its ``step()`` at the end of each step. The first
    ``wait`` steps are left out (compilation, caches), ``warmup`` more are recorded and dropped. Without
    shapes, stacks and memory, each of which multiplies time and memory; ``options`` ask for them.

    Args:
        steps: 1 to 100.
        wait: steps before the warm-up.
        warmup: steps whose events are dropped.
        on_trace: called with the profile when the steps are recorded, such as ``export_trace``.
        options: passed on: record_shapes, with_stack, profile_memory, with_flops, activities.

    Raises:
        ValueError: for a number of steps outside these bounds.
    """
    from importlib import import_module  # noqa: PLC0415 only who calls this pays for it

    if not 1 <= steps <= _MOST_STEPS or wait < 0 or warmup < 0:
        raise ValueError(f"steps from 1 to {_MOST_STEPS}, wait and warmup from 0")
    profiler: Any = import_module("torch.profiler")
    return profiler.profile(
        schedule=profiler.schedule(wait=wait, warmup=warmup, active=steps, repeat=1),
        on_trace_ready=on_trace,
        **options,
    )


def top_tables(profile: Any, rows: int = 10) -> dict[str, str]:
    """Return tables of the costliest operators: "device" (self time), "cpu" (self time), "shapes".

    Args:
        profile: one that has recorded; call this after its end, or in ``on_trace``.
        rows: how many operators each.

    Returns:
        "device" only where a device worked, "shapes" only with ``record_shapes``; nothing where nothing was
        recorded, as of a loop that ended before the profiler began.
    """
    if not _has_recorded(profile):
        return {}
    averages = profile.key_averages()
    names = ("self_device_time_total", "self_cuda_time_total")  # the second before torch 2.3
    on_device = next((name for name in names if any(getattr(one, name, 0) for one in averages)), "")
    tables = {"cpu": averages.table(sort_by="self_cpu_time_total", row_limit=rows)}
    if on_device:
        tables["device"] = averages.table(sort_by=on_device, row_limit=rows)
    if getattr(profile, "record_shapes", False):
        by_shape = profile.key_averages(group_by_input_shape=True)
        tables["shapes"] = by_shape.table(sort_by=on_device or "self_cpu_time_total", row_limit=rows)
    return tables


def export_trace(profile: Any, folder: str = ".", name: str = "trace") -> str:
    """Write the trace of this rank as ``NAME-rank3.json.gz``, and return its path.

    A file of that name is kept, and a number is added. A profile whose trace a handler has saved
    already gives it out only once: that file is kept, "" is returned, and it is no failure.

    Raises:
        OSError: when it cannot be written: a full disk, no folder, no permission; when nothing was recorded,
            as of a loop that ended before the profiler began.
    """
    if not _has_recorded(profile):
        raise OSError("nothing was recorded: the loop ended before the profiler began")
    rank = max(read_ranks()[0], 0)
    os.makedirs(folder, exist_ok=True)
    path = _new_path(os.path.join(folder, f"{name}-rank{rank}"))
    part = f"{path[: -len('.json.gz')]}.part.json.gz"
    try:
        try:
            profile.export_chrome_trace(part)
        except RuntimeError as error:
            if "already saved" in str(error):
                return ""
            raise
        if not os.path.exists(part):  # torch says nothing when it could not write
            raise OSError(f"torch wrote no trace to {folder}")
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return path


def _has_recorded(profile: Any) -> bool:
    """Tell whether there is what torch itself takes for granted; True where this torch keeps it elsewhere."""
    return getattr(profile, "profiler", True) is not None


def _new_path(stem: str) -> str:
    path, number = f"{stem}.json.gz", 0
    while os.path.exists(path):
        number += 1
        path = f"{stem}-{number}.json.gz"
    return path
