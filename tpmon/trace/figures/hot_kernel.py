"""The kernel that computes longest, and the command that profiles this one alone."""

from __future__ import annotations

import math
import re
import shlex

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.trace import KernelRow
from tpmon.model.results.trace_tables import HotKernel
from tpmon.trace.reading.classes import flag, is_comm_kernel
from tpmon.trace.reading.columns import distinct
from tpmon.trace.reading.read import Trace, find_device

WARM_STEPS = 3
"""Steps to pass over before the launch that is profiled: the first ones allocate and choose algorithms."""
MOST_LAUNCHES = 50
"""Each launch is played again some dozens of times: more take minutes."""
LEAST_PCT = 5.0
"""A kernel below this share of the kernels' time is not worth profiling alone."""
_OTHER_CALLS = re.compile(r"(?:hip|ur|ze)[A-Z]")
_PLAIN = re.compile(r"^[A-Za-z_]\w*$")
_IDENTIFIER = re.compile(r"([A-Za-z_]\w*)$")


def find_hot_kernel(trace: Trace, kernels: tuple[KernelRow, ...], steps: int) -> Applicable[HotKernel]:
    """Name the kernel with the longest total that is no communication; ``steps`` are the marked ones.

    NOT_APPLICABLE where none takes ``LEAST_PCT`` of the kernels' time.
    """
    total = sum(row.total_us for row in kernels)
    row = next((row for row in kernels if not is_comm_kernel(row.name)), None)
    if row is None or not total or 100 * row.total_us / total < LEAST_PCT:
        return NOT_APPLICABLE
    return HotKernel(row.name, 100 * row.total_us / total, _write_command(trace, row, kernels, steps))


def _write_command(trace: Trace, row: KernelRow, kernels: tuple[KernelRow, ...], steps: int) -> Known[str]:
    """Write the command of Nsight Compute: launches of one step, after the first steps.

    Where none are marked it passes over half of the launches that the trace has: a run has no fewer.
    It tells kernels apart by their bare name: where several have it, all of one step are profiled.
    """
    cards = [find_device(trace, device) for device in distinct(trace.work.device).tolist()]
    other = any(card is not None and card.warp_size != 32 for card in cards)
    if other or trace.header.hip_runtime is not None or _is_other(trace):
        return Missing("Nsight Compute profiles cards of NVIDIA alone")
    base = base_name(row.name)
    if not base:
        return Missing("no name to give to Nsight Compute")
    alike = [one for one in kernels if base in one.name and base_name(one.name) == base]
    launches = sum(one.count for one in alike)
    each = math.ceil(launches / steps) if steps else launches - launches // 2
    skip = WARM_STEPS * each if steps else launches // 2
    count = 1 if len(alike) == 1 else min(each, MOST_LAUNCHES)
    return (
        f"ncu --set full --kernel-name {shlex.quote(base)} --launch-skip {skip} "
        f"--launch-count {count} --target-processes all -o kernel python train.py"
    )


def _is_other(trace: Trace) -> bool:
    """Tell whether calls of HIP, Level Zero or Unified Runtime launched the work."""
    return bool(flag(trace.names, lambda name: _OTHER_CALLS.match(name) is not None)[trace.calls.name].any())


def base_name(kernel: str) -> str:
    """Return the bare name of a function: without result, namespaces, template and parameters.

    It is what ``--kernel-name`` compares to; "" where it cannot be told.
    """
    if _PLAIN.match(kernel):
        return kernel
    text = kernel.replace("(anonymous namespace)", "")
    depth = 0
    kept = []
    for char in text:
        if char == "<":
            depth += 1
        elif char == ">":
            depth = max(depth - 1, 0)
        elif char == "(" and not depth:
            break
        elif not depth:
            kept.append(char)
    found = _IDENTIFIER.search("".join(kept).strip())
    return found[1] if found else ""
