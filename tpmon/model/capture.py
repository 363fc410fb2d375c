"""What is asked of a capture, what it costs, and what came of it: the types behind ``tpmon capture``.

Times in ms, sizes in bytes; steps are counted from 0 at the hook's first event.
"""

from __future__ import annotations

from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing

CAPTURE_SCHEMA = "tpmon.capture/1"


class CaptureState(str, Enum):
    """Name the states of a capture, in the order they are passed through, then how it can end."""

    REGISTERED = "registered"
    ARMED = "armed"
    WARMING = "warming"
    RECORDING = "recording"
    WRITING = "writing"
    VERIFIED = "verified"
    DONE = "done"
    PARTIAL = "partial"
    REFUSED = "refused"
    BUSY = "busy"
    MISSED = "missed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    YIELDED = "yielded"
    GONE = "gone"


class CaptureKind(str, Enum):
    """Name what is captured."""

    TRACE = "trace"
    SNAPSHOT = "allocator snapshot"
    NSYS_RANGE = "nsys range"


@dataclass(frozen=True, slots=True)
class CaptureAsked:
    """Hold what is asked for; ``at`` is the step to begin with, ``seconds`` bounds the window in time."""

    kind: CaptureKind
    steps: int
    seconds: float
    stacks: bool
    shapes: bool
    memory: bool
    at: Applicable[int]
    folder: str
    timed: bool = False


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Ask for a few steps of one rank, with the bounded defaults; without a PID the lowest rank here."""

    pid: Applicable[int]


class CaptureStage(str, Enum):
    """Name how far a capture is that a screen asked for; two of them wait for an answer."""

    ASKED = "asked"
    """What can be told without touching the run is being read."""
    PLANNED = "planned"
    """Waits for a yes: nothing was asked of the run yet."""
    SIZING = "sizing"
    PRICED = "priced"
    """Waits for a yes again: one step was profiled, and its price is known."""
    RECORDING = "recording"
    ENDED = "ended"


CAPTURE_WAITS = (CaptureStage.PLANNED, CaptureStage.PRICED)
CAPTURE_ACTS = (CaptureStage.SIZING, CaptureStage.RECORDING)
"""While the run does something for it, which a cancel takes back."""


UNKNOWN = "not known yet: "
"""So begins what a plan cannot tell before one step was profiled."""


@dataclass(frozen=True, slots=True)
class CaptureAnswer:
    """Answer a question of a capture, named by its stage: go on, or no more of it."""

    stage: CaptureStage
    goes: bool


@dataclass(frozen=True, slots=True)
class CaptureUpdate:
    """Hand to a screen how far a capture is: what happens now, what is asked, what came of it.

    ``report`` is what ``tpmon capture`` prints at its end, ``trace`` the file it wrote, "" for none.
    """

    stage: CaptureStage
    line: str
    plan: tuple[str, ...] = ()
    price: tuple[str, ...] = ()
    report: tuple[str, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True)
class CapturePrice:
    """Hold what a window costs each rank, told from one step that was profiled."""

    steps: int
    events: int
    pause_ms: float
    bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class RankCapture:
    """Hold what became of a capture on one rank; ``step_*_ms`` are mean steps around the window."""

    pid: int
    rank: Applicable[int]
    state: CaptureState
    reason: str
    first_step: Known[int]
    steps: int
    paused_ms: Known[float]
    step_before_ms: Known[float]
    step_during_ms: Known[float]
    step_after_ms: Known[float]


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """Hold one file that was written; ``host_path`` differs where the training has mounts of its own."""

    path: str
    host_path: str
    rank: Applicable[int]
    first_step: Known[int]
    steps: Known[int]
    events: Known[int]
    kernels: Known[int]
    bytes: int
    kind: CaptureKind


@dataclass(frozen=True, slots=True)
class GpuClocks:
    """Hold the clocks of a card as NVML told them at the end of the window, in MHz."""

    index: int
    name: str
    sm_mhz: Known[float]
    sm_max_mhz: Known[float]
    memory_mhz: Known[float]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Hold under which conditions a window was recorded, as they were written into the file.

    ``inputs`` are type and shape of each tensor of a batch shortly before, as "float32[8, 512]"; ``mode``
    is "training" or "evaluation" by what the steps did. ``clocks`` alone are tpmon's own reading.
    """

    model: Known[str]
    parameters: Known[int]
    dtype: Known[str]
    device: Known[str]
    training: Known[bool]
    mode: Known[str]
    inputs: Known[tuple[str, ...]]
    batch_size: Known[int]
    world_size: Known[int]
    gpu: Known[str]
    clocks: Known[tuple[GpuClocks, ...]]
    torch: Known[str]
    python: Known[str]
    threads: Known[int]
    autocast: Known[bool]
    autocast_dtype: Known[str]
    matmul_precision: Known[str]


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Hold what ``tpmon capture --json`` prints."""

    schema: str
    state: CaptureState
    backend: str
    folder: str
    files: tuple[CapturedFile, ...]
    ranks: tuple[RankCapture, ...]
    conditions: Known[Conditions]
    price: Known[CapturePrice]
    paused_ms: Known[float]
    notes: tuple[str, ...]


NOT_SIZED = Missing("no step was profiled to size it")
