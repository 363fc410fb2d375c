"""What the analysis of a trace found of time in which nothing computes: idle devices, the host alone."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known


@dataclass(frozen=True, slots=True)
class LargeGap:
    """Hold one long gap of a device: what held it for most of its time, and what ran on the host then."""

    start_ms: float
    us: float
    cause: Known[str]
    operator: Applicable[str]
    call: Applicable[str]
    source: Applicable[str]


GAP_CAUSES = ("data", "sync_explicit", "sync_implicit", "alloc", "launch", "cpu_op", "comms", "other")
"""What may hold a device, in the order in which the first one counts."""


@dataclass(frozen=True, slots=True)
class DeviceGaps:
    """Hold the idle time of one device in microseconds.

    The eight causes sum to ``idle``; those that the trace does not tell are missing.
    """

    device: int
    window: float
    busy: float
    idle: float
    data: Known[float]
    sync_explicit: Known[float]
    sync_implicit: Known[float]
    alloc: Known[float]
    launch: Known[float]
    cpu_op: Known[float]
    comms: Known[float]
    other: Known[float]
    largest: tuple[LargeGap, ...]

    def causes(self) -> tuple[tuple[str, Known[float]], ...]:
        """Return the eight causes with their microseconds, in the order of ``GAP_CAUSES``."""
        return tuple((name, getattr(self, name)) for name in GAP_CAUSES)


@dataclass(frozen=True, slots=True)
class HostTime:
    """Hold the window of a trace without device work, in microseconds, by what the host did."""

    data: float
    comms: float
    sync: float
    alloc: float
    compute: float
    other: float
