"""What there is of a trace beside its first tables: further ones, its timeline, lines of code, steps.

Durations are microseconds, those with ``ms`` milliseconds, sizes bytes. Tables that nobody asked for are
``Missing``. Of a timeline times count from the first step's mark, and shares are percent of a column, which
says how busy it was and what held the rest.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known


@dataclass(frozen=True, slots=True)
class ProductRow:
    """Hold products of matrices, convolutions or attention of one number type, of the host without a device.

    ``misaligned_pct`` is the part of the time in products whose sizes tensor cores do not take in full.
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
    """Hold an nn.Module: host time of forward, device work of both passes, what is around its first call."""

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
    """Hold what an operator allocated; ``kept_bytes`` were not freed, ``at_peak_bytes`` lived at the peak."""

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
    """Hold one habit of the program that costs time: what was seen, its share of the window, what to do."""

    name: str
    seen: str
    share_pct: Known[float]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdleLine:
    """Hold one line of the program that stands in the time that the verdict is about, and its part of it."""

    name: str
    us: float
    share_pct: float


@dataclass(frozen=True, slots=True)
class HotKernel:
    """Hold the kernel that computes longest, its part of all kernels, and what profiles it alone."""

    name: str
    share_pct: float
    command: Known[str]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Say what of a trace to look at: ``count`` steps from ``first`` on, or ``part`` of ``parts`` of one."""

    first: int
    count: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class TimeCell:
    """Hold one column: ``busy_pct`` is device work, without devices operators of the host.

    ``exposed_pct`` is the part of it that is communication which no computation hides, ``cause`` what held
    most of the rest, "" where there is none, ``sm_pct`` est. SM efficiency.
    """

    busy_pct: float
    exposed_pct: float
    cause: str
    sm_pct: Known[float]


@dataclass(frozen=True, slots=True)
class StepStart:
    """Say in which column a step begins; ``name`` is short: the number after "ProfilerStep#"."""

    name: str
    cell: int


@dataclass(frozen=True, slots=True)
class CauseShare:
    """Say how much of the window a cause holds; of a timeline how much is "busy", or idle by one cause."""

    name: str
    pct: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Hold a stretch in columns of equal length; ``device`` does not apply to a trace without any.

    ``said`` names the stretch: "5 steps", "step 7", "part 2 of 4 of step 7".
    """

    device: Applicable[int]
    devices: tuple[int, ...]
    said: str
    steps_in_all: int
    start_ms: float
    end_ms: float
    cells: tuple[TimeCell, ...]
    steps: tuple[StepStart, ...]
    shares: tuple[CauseShare, ...]
    exposed_pct: float


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Name a line of Python as a trace names it: ``file`` is cut at an entry of the run's sys.path.

    ``folders`` are the working directory and sys.path of the run, where the trace has them.
    """

    function: str
    file: str
    line: int
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """Hold when steps of the loop had ended (ns since the epoch, oldest first), and how many there were then.

    ``at_update``: a step ends with its update; otherwise when the next batch is asked for, or is told to.
    """

    ends_ns: tuple[int, ...]
    steps: tuple[int, ...]
    at_update: bool


@dataclass(frozen=True, slots=True)
class MarkedSteps:
    """Hold how many steps were marked in a trace, which of the loop the first is, and why there is none."""

    marks: int
    first: Known[int]
    why: str


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Hold the device work of one category in a mean step of one device.

    ``us`` is exclusive, as of what runs at once the first category counts, and sums to the busy time;
    ``overlapping_us`` counts all of it. ``count`` is of all steps and devices. ``largest`` is the kernel with
    most of the time, ``largest_pct`` of this row.
    """

    category: str
    us: float
    share_pct: float
    overlapping_us: float
    count: int
    largest: str
    largest_pct: float


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Hold one phase of a mean step: its part of the host's step, and the device work launched in it."""

    phase: str
    host_us: Applicable[float]
    device_us: Applicable[float]
    device_pct: Applicable[float]


@dataclass(frozen=True, slots=True)
class GraphReplays:
    """Hold the replays of CUDA graphs: how many, the device time of each, their part of the busy time."""

    count: int
    mean_us: float
    share_pct: float


@dataclass(frozen=True, slots=True)
class StepRates:
    """Hold what is computed in a second, over all of the step's time, on the mean device.

    ``samples`` and ``tokens`` are those of a step. ``counted_pct`` is the part of the products' time of which
    shapes tell the operations; ``mfu_pct`` is of ``peak_tflop_s``, that of the card in ``dtype``.
    """

    samples: Known[float]
    samples_per_s: Known[float]
    tokens: Known[float]
    tokens_per_s: Known[float]
    tflop_s: Known[float]
    counted_pct: Known[float]
    mfu_pct: Known[float]
    dtype: Known[str]
    peak_tflop_s: Known[float]


@dataclass(frozen=True, slots=True)
class StepWork:
    """Hold what the judged steps are made of, in microseconds of a mean step of one device.

    ``unit`` is step, repeat, or "" where the whole trace counts as one. ``at_once_us`` is of the whole trace:
    what sums of durations, those of kernels and operators, count more than once.
    """

    unit: str
    steps: int
    step_us: float
    busy_us: float
    at_once_us: float
    categories: tuple[WorkRow, ...]
    phases: Known[tuple[PhaseRow, ...]]
    replays: Applicable[GraphReplays]
    rates: StepRates
