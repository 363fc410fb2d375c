"""What the analysis of a trace found: the types behind ``tpmon trace``, its JSON, and a capture's summary.

Durations are microseconds, those with ``ms`` milliseconds. Shares are percent of the window named beside.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpmon.model.known import Applicable, Known

TRACE_SCHEMA = "tpmon.trace/1"


@dataclass(frozen=True, slots=True)
class Lost:
    """Say what of a file could not be read: whole events, events without some values, bytes."""

    events: int
    values: int
    bytes: int
    broken_off: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """Hold one step: ``host_ms`` as the host saw it, ``ms`` with the device work it launched."""

    name: str
    start_ms: float
    host_ms: float
    ms: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Hold microseconds of a mean step by what was running, over all devices and threads together."""

    kernel: float
    memcpy: float
    memset: float
    communication: float
    runtime: float
    data_loader: float
    cpu: float
    other: float


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """Hold one operator: ``self`` is without the operators inside of it, device time is by launches."""

    name: str
    calls: int
    host_total_us: float
    host_self_us: float
    device_total_us: Applicable[float]
    device_self_us: Applicable[float]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Hold what is said of a trace in one look: steps, split, top operators, and what was lost.

    ``steps`` are those that the trace marks; 0 where it marks none, and the whole trace then counts as
    one. ``split_us`` is the exclusive breakdown of the mean step.
    """

    path: str
    rank: Known[int]
    world_size: Known[int]
    events: int
    steps: int
    step_names: tuple[str, ...]
    step_ms: Known[float]
    step_p50_ms: Known[float]
    step_p95_ms: Known[float]
    split_us: Breakdown
    kernels: int
    optimizer_steps: int
    operators: tuple[OperatorRow, ...]
    lost: Lost
