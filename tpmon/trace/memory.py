"""What the trace recorded of allocations: peaks and sums of each device."""

from __future__ import annotations

import numpy as np

from tpmon.model.known import Known, Missing
from tpmon.model.trace import MemoryPeak
from tpmon.trace.read import Trace

_KINDS = {0: "cpu", 1: "cuda", 6: "hip", 9: "vulkan", 12: "xpu", 13: "mps", 17: "hpu"}

_NOT_RESERVED = Missing("memory of the host has no cache that reserves it")


def sum_memory(trace: Trace) -> tuple[MemoryPeak, ...]:
    """Return peaks and sums by device; the peaks are missing in traces before torch 1.10."""
    memory = trace.memory
    found = []
    for kind in np.unique(memory.device_type).tolist():
        for device in np.unique(memory.device[memory.device_type == kind]).tolist():
            rows = (memory.device_type == kind) & (memory.device == device)
            changed = memory.changed_bytes[rows]
            found.append(
                MemoryPeak(
                    _KINDS.get(kind, f"device type {kind}"),
                    device,
                    int(rows.sum()),
                    _peak(memory.allocated[rows]),
                    _peak(memory.reserved[rows]) if kind else _NOT_RESERVED,
                    int(changed[changed > 0].sum()),
                    int(-changed[changed < 0].sum()),
                )
            )
    return tuple(found)


def _peak(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Known[int]:
    highest = int(values.max())
    return highest if highest >= 0 else Missing("the trace has no totals")
