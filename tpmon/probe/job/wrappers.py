"""Read what stands in front of a process, whether it has loaded CUDA, and what a profile leaves of that."""

from __future__ import annotations

import re

from tpmon.probe.base.procread import read_table
from tpmon.probe.job.discovery import ancestry

_RUNTIME_11 = re.compile(r"/libcudart(-[0-9a-f]+)?\.so\.11(\.|$)")
"""The runtime of CUDA 11, also as a wheel of torch names the one within it."""


def read_ancestors(pid: int, proc: str = "/proc") -> list[list[str]]:
    """Return the command lines above a process, nearest first."""
    lines = []
    for at in list(ancestry(pid, read_table(proc)))[1:]:
        try:
            with open(f"{proc}/{at}/cmdline", "rb") as file:
                lines.append(file.read().rstrip(b"\0").decode("utf-8", "replace").split("\0"))
        except OSError:
            continue
    return lines


def uses_cuda(pid: int, proc: str = "/proc") -> bool:
    """Tell whether the driver's library is loaded: where it is not, CUDA was not begun with yet."""
    try:
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any("/libcuda.so" in line for line in file)
    except OSError:
        return False  # the hook asks again from within


def runs_cuda_11(pid: int, proc: str = "/proc") -> bool:
    """Tell whether the runtime of CUDA 11 is loaded, by the name of its file."""
    try:
        with open(f"{proc}/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any(_RUNTIME_11.search(line.rstrip()) for line in file)
    except OSError:
        return False  # kineto of a process that cannot be read is asked for nothing


def stays_slower(pid: int, proc: str = "/proc") -> bool:
    """Tell whether a profile may leave launches slower: with CUDA, where kineto was not told to detach."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            detaches = b"TEARDOWN_CUPTI=1" in file.read().split(b"\0")
    except OSError:
        detaches = False
    return uses_cuda(pid, proc) and not detaches
