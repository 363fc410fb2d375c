"""The further tables of a trace: products by type, modules, Python, allocations, patterns, the hot kernel.

Durations are microseconds, sizes bytes. Tables that nobody asked for are ``Missing``.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known


@dataclass(frozen=True, slots=True)
class ProductRow:
    """Hold matrix products, convolutions or attention of one number type.

    Times are of the device, or of the host in a trace without one. ``misaligned_pct`` is the part of the
    time in products whose sizes tensor cores do not take in full.
    """

    kind: str
    dtype: Known[str]
    calls: int
    total_us: float
    share_pct: float
    tflop_s: Known[float]
    peak_pct: Known[float]
    misaligned_pct: Known[float]


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Hold one nn.Module: its forward on the host, and the device work of forward and backward.

    ``inside`` is the module around its first call.
    """

    name: str
    inside: Applicable[str]
    calls: int
    host_total_us: float
    host_self_us: float
    forward_total_us: Applicable[float]
    forward_self_us: Applicable[float]
    backward_total_us: Applicable[float]
    backward_self_us: Applicable[float]


@dataclass(frozen=True, slots=True)
class FrameRow:
    """Hold one Python function; ``self`` is without the functions it called, C functions among them.

    ``called_by`` is the line outside of torch and of Python's library around most of its own time.
    """

    name: str
    calls: int
    total_us: float
    self_us: float
    called_by: Applicable[str]


@dataclass(frozen=True, slots=True)
class OperatorGroupRow:
    """Hold the calls of one operator that share input shapes, or the Python line that made them."""

    name: str
    group: Known[str]
    calls: int
    host_total_us: float
    host_self_us: float
    device_total_us: Applicable[float]
    device_self_us: Applicable[float]


@dataclass(frozen=True, slots=True)
class RangeRow:
    """Hold one range that the program marked with record_function: host times, and device work in it.

    Host times do not apply to a range that only a device has; ``device_total_us`` is its length there.
    """

    name: str
    count: int
    host_total_us: Applicable[float]
    host_self_us: Applicable[float]
    host_mean_us: Applicable[float]
    device_total_us: Applicable[float]


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """Hold what one operator allocated on one device.

    ``kept_bytes`` was not freed before the trace ended, ``at_peak_bytes`` lived when most was allocated.
    """

    kind: str
    device: int
    operator: str
    allocations: int
    allocated_bytes: int
    kept_bytes: Known[int]
    at_peak_bytes: Known[int]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Hold the memory of a device at its highest within one part of the trace."""

    ms: float
    allocated_bytes: int
    reserved_bytes: Applicable[int]


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Hold the memory of one device over time, at most ``MOST_POINTS`` points."""

    kind: str
    device: int
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class PatternRow:
    """Hold one habit of the program that costs time: what was seen, how much it holds, what to do.

    ``share_pct`` is of the window of the steps.
    """

    name: str
    seen: str
    share_pct: Known[float]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HotKernel:
    """Hold the kernel that computes longest, its part of all kernels, and what profiles it alone."""

    name: str
    share_pct: float
    command: Known[str]
