"""The analysis of traces: the types behind ``tpmon trace``, its JSON, its text and its screen.

Durations are microseconds, those with ``ms`` milliseconds. Shares are percent of the window named beside.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.results.trace_tables import (
    AllocationRow,
    CauseShare,
    FrameRow,
    HotKernel,
    IdleLine,
    MemoryCurve,
    ModuleRow,
    OperatorGroupRow,
    PatternRow,
    ProductRow,
    RangeRow,
    StepWork,
)
from tpmon.model.verdict import Kind


@dataclass(frozen=True, slots=True)
class LargeGap:
    """Hold one long gap of a device: what held it for most of its time, and what ran on the host then."""

    start_ms: float
    us: float
    cause: Known[str]
    operator: Applicable[str]
    call: Applicable[str]
    source: Applicable[str]


GAP_CAUSES = (
    *("queued", "data", "sync_explicit", "sync_implicit", "alloc"),
    *("launch", "cpu_op", "comms", "other"),
)
"""What may hold a device, in the order in which the first one counts."""


@dataclass(frozen=True, slots=True)
class DeviceGaps:
    """Hold the idle time of one device in us; nine causes sum to ``idle``, untold ones are missing.

    ``in_graphs`` is a part of ``queued``, ``computing`` of ``cpu_op``: of operators that launch no kernel.
    """

    device: int
    window: float
    busy: float
    idle: float
    queued: Known[float]
    data: Known[float]
    sync_explicit: Known[float]
    sync_implicit: Known[float]
    alloc: Known[float]
    launch: Known[float]
    cpu_op: Known[float]
    comms: Known[float]
    other: Known[float]
    in_graphs: Known[float]
    computing: Known[float]
    largest: tuple[LargeGap, ...]

    def causes(self) -> tuple[tuple[str, Known[float]], ...]:
        """Return the nine causes with their microseconds, in the order of ``GAP_CAUSES``."""
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


TRACE_SCHEMA = "tpmon.trace/1"
STEP_BEFORE, STEP_DURING, STEP_AFTER = "step_before_ms", "step_during_ms", "step_after_ms"
"""What a capture of tpmon writes into a trace: the median step around its window, or why it is not known."""
STEPS_BEFORE, STEPS_DURING, STEPS_AFTER = "steps_before", "steps_during", "steps_after"
"""Of how many steps each is the median."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Say what of a file could not be read: whole events, events without some values, bytes.

    ``apart`` of the events begin and end apart, which torch.profiler does not write.
    """

    events: int
    values: int
    bytes: int
    broken_off: bool
    reason: str
    apart: int = 0


@dataclass(frozen=True, slots=True)
class StepRow:
    """Hold one step: ``host_ms`` as the host saw it, ``ms`` with the device work it launched.

    ``left_ms`` of them are in no mean: start-up and captures, or all of a step that is not judged.
    """

    name: str
    start_ms: float
    host_ms: float
    ms: float
    left_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Hold microseconds of a mean step by what was running, over all devices and threads together.

    Device and host are missing where a trace holds no event of theirs, all of it where it holds neither.
    """

    kernel: Known[float]
    memcpy: Known[float]
    memset: Known[float]
    communication: Known[float]
    runtime: Known[float]
    data_loader: Known[float]
    cpu: Known[float]
    other: Known[float]


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

    ``steps`` is 0 where none are marked; ``repeats`` then stand in for them, and where there are none
    the whole trace counts as one. ``left_out_us`` are start-up, warm-up, captures and a few much longer
    steps: in no mean or share, which are of ``judged_steps``. ``split_us`` is the exclusive breakdown
    of the mean step.
    """

    path: str
    rank: Known[int]
    world_size: Known[int]
    events: int
    steps: int
    repeats: int
    judged_steps: int
    left_out_us: float
    step_ms: Known[float]
    step_p50_ms: Known[float]
    step_p95_ms: Known[float]
    split_us: Breakdown
    kernels: int
    operators: tuple[OperatorRow, ...]
    lost: Lost


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """Hold what a child says that read one trace: its summary, or why there is none."""

    summary: Known[TraceSummary]


@dataclass(frozen=True, slots=True)
class CardUse:
    """Hold how busy one device was in the window of the steps.

    Utilisation counts kernels alone; ``busy_pct`` counts copies too. Occupancy is the mean by time of its
    kernels: as reported, and recomputed, since what is reported is 0 above 48 KiB of shared memory. The queue
    is empty when nothing launched waits to run; the delay is from the return of a launch, its median.
    """

    device: int
    name: Known[str]
    kernels: int
    kernel_us: float
    kernel_busy_us: float
    busy_us: float
    utilization_pct: float
    busy_pct: float
    sm_efficiency_pct: Known[float]
    occupancy_reported_pct: Known[float]
    occupancy_pct: Known[float]
    tensor_core_pct: Known[float]
    tensor_core_unknown_pct: Known[float]
    launch_delay_us: Known[float]
    queue_empty_pct: Known[float]


@dataclass(frozen=True, slots=True)
class Overview:
    """Hold the steps of a trace and what the mean step is made of.

    Where none are marked, ``repeats`` stand in for them. ``left_out_us`` are start-up, warm-up, captures and
    a few much longer steps: in no mean or share, which are of ``judged_steps``, nor in an unmarked step.
    ``step_ms`` has the device work of a step in it, ``host_step_ms`` is the mark of the host alone.
    ``breakdown_us`` is exclusive and sums to the step; ``overlapping_us`` counts each kind in full.
    """

    steps: int
    repeats: int
    judged_steps: int
    left_out_us: float
    step_ms: float
    step_p50_ms: float
    step_p95_ms: float
    host_step_ms: float
    window_us: float
    step_table: tuple[StepRow, ...]
    breakdown_us: Breakdown
    overlapping_us: Breakdown
    gpus: tuple[CardUse, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Hold one kernel; ``operator`` launched most of its time, ``bound_by`` names the rate near its peak."""

    name: str
    count: int
    total_us: float
    mean_us: float
    min_us: float
    max_us: float
    blocks_per_sm: Known[float]
    occupancy_reported_pct: Known[float]
    occupancy_pct: Known[float]
    limited_by: Known[str]
    tensor_cores: str
    operator: Known[str]
    gb_s: Known[float]
    gb_s_peak_pct: Known[float]
    tflop_s: Known[float]
    tflop_s_peak_pct: Known[float]
    bound_by: Known[str]


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Hold copies and sets of memory by name."""

    name: str
    count: int
    total_us: float
    bytes: int
    gb_s: Known[float]
    pageable: bool


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """Hold the allocations of one device; ``kind`` is cpu, cuda, hip or a number.

    ``growth_bytes`` is what more is allocated at the end of the last step than at the end of the first,
    ``unused_pct`` what of the reserved memory nothing used when most was allocated.
    """

    kind: str
    device: int
    events: int
    allocated_bytes: Known[int]
    reserved_bytes: Known[int]
    allocations_bytes: int
    frees_bytes: int
    growth_bytes: Known[int]
    unused_pct: Known[float]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Hold what was recorded of allocations; no peaks where nothing was."""

    peaks: tuple[MemoryPeak, ...]
    by_operator: tuple[AllocationRow, ...]
    curves: tuple[MemoryCurve, ...]


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """Hold the communication of one name; sizes where the trace tells them."""

    name: str
    count: int
    total_us: float
    bytes: Known[int]
    bus_gb_s: Known[float]


@dataclass(frozen=True, slots=True)
class Communication:
    """Hold communication in microseconds over the whole trace: running, hidden by compute, and exposed."""

    events: int
    comm_us: float
    compute_us: float
    overlap_us: float
    exposed_us: float
    collectives: tuple[CollectiveRow, ...]


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """Say what holds the run, from this trace alone; kinds and causes are those of the live verdict.

    ``advice_pct`` is what each advice is about, in percent of the window: a pattern, else all of the verdict.
    ``ceiling`` is what the run gains at most, ``lines`` are those of the program in that time, ``weight`` is
    what the profiler itself adds to the times of the host.
    """

    kind: Kind
    cause: Applicable[str]
    confidence: str
    share_pct: float
    second: Applicable[str]
    summary: str
    try_: Applicable[str] = NOT_APPLICABLE
    advice: tuple[str, ...] = ()
    shares: tuple[CauseShare, ...] = ()
    ceiling: Applicable[str] = NOT_APPLICABLE
    lines: tuple[IdleLine, ...] = ()
    weight: Applicable[str] = NOT_APPLICABLE
    advice_pct: tuple[Applicable[float], ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """Hold one thing under which a trace was made, as words."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TraceConditions:
    """Hold what must be equal for two traces to be compared.

    ``inputs`` are shapes and types of the products, each once, in order. ``told`` is what tpmon's own capture
    wrote down of batch, model and types. ``compiled``: code of torch.compile ran.
    """

    world_size: Known[int]
    devices: Known[tuple[str, ...]]
    mode: Known[str]
    inputs: Known[tuple[str, ...]]
    told: tuple[Condition, ...]
    compiled: Known[bool]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Hold the analysis of one trace."""

    path: str
    rank: Known[int]
    world_size: Known[int]
    backend: Known[str]
    host: Known[str]
    versions: str
    events: int
    file_bytes: int
    json_bytes: int
    overview: Overview
    gaps: tuple[DeviceGaps, ...]
    host_us: Applicable[HostTime]
    operators: tuple[OperatorRow, ...]
    kernels: tuple[KernelRow, ...]
    copies: tuple[CopyRow, ...]
    memory: MemoryUse
    communication: Applicable[Communication]
    launched_before: int
    conditions: TraceConditions
    verdict: TraceVerdict
    lost: Lost
    products: tuple[ProductRow, ...]
    hot_kernel: Applicable[HotKernel]
    patterns: tuple[PatternRow, ...]
    modules: Applicable[tuple[ModuleRow, ...]]
    frames: Applicable[tuple[FrameRow, ...]]
    shapes: Applicable[tuple[OperatorGroupRow, ...]]
    lines: Applicable[tuple[OperatorGroupRow, ...]]
    ranges: tuple[RangeRow, ...]
    step_work: StepWork


@dataclass(frozen=True, slots=True)
class TraceRankRow:
    """Hold one rank beside the others, in milliseconds of the mean step of those that are judged.

    ``wait_ms`` and ``transfer_ms`` are of all matched collectives of the trace: waiting for the last rank of
    the group, and moving data. ``kind`` and ``cause`` are those of its verdict. The shares are of the step,
    ``comms_pct`` is what no computation hides. ``waits_for`` is the rank for which it waits most.
    """

    rank: Known[int]
    path: str
    step_ms: float
    compute_ms: float
    comm_ms: float
    overlap_ms: float
    other_ms: float
    wait_ms: Known[float]
    transfer_ms: Known[float]
    kind: Kind
    cause: Applicable[str]
    waits_for: Applicable[int] = NOT_APPLICABLE

    @property
    def compute_pct(self) -> float:
        """Return computation in percent of the step."""
        return self._share(self.compute_ms)

    @property
    def comms_pct(self) -> float:
        """Return communication that no computation hides in percent of the step."""
        return self._share(self.comm_ms - self.overlap_ms)

    @property
    def idle_pct(self) -> float:
        """Return what is neither in percent of the step."""
        return self._share(self.other_ms)

    def _share(self, ms: float) -> float:
        return 100 * ms / self.step_ms if self.step_ms > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RankTable:
    """Hold all ranks, the one that waits least first named as the straggler where waits differ."""

    ranks: tuple[TraceRankRow, ...]
    world_size: Known[int]
    missing: tuple[int, ...]
    straggler: Applicable[int]
    waits_ms: Applicable[float]
    matched: int
    collectives: int
    summary: str


@dataclass(frozen=True, slots=True)
class GroupWait:
    """Say that ``ranks`` of a group of ``members`` wait for ``late``, in ms of the mean step.

    ``most_ms`` is the longest wait, ``mean_ms`` the mean of ``ranks``. ``group`` is its name, "" for untold.
    """

    group: str
    members: tuple[int, ...]
    late: int
    ranks: tuple[int, ...]
    most_ms: float
    mean_ms: float


@dataclass(frozen=True, slots=True)
class BusRate:
    """Hold the matched collectives of one name: what they move and how fast, as nccl-tests count it.

    Times are those of the rank where each is shortest, which waits least: ``step_ms`` of a step. Of a call
    ``call_us``, ``bytes`` and ``gb_s`` are the median, ``low_gb_s`` and ``high_gb_s`` the 10th and 90th
    percentile.
    """

    name: str
    calls: int
    step_ms: float
    call_us: float
    bytes: Known[int]
    gb_s: Known[float]
    low_gb_s: Known[float]
    high_gb_s: Known[float]


@dataclass(frozen=True, slots=True)
class LongerPart:
    """Hold by how much a rank spends more of a step on one cause than the median of the others."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True)
class LateCause:
    """Say what holds the rank that the others wait for; ``place`` is the line, operator or kernel.

    ``longer`` are the causes that take longer there than on the median of the other ranks, ``ms`` of a step.
    """

    kind: Kind
    cause: Applicable[str]
    longer: tuple[LongerPart, ...]
    place: Applicable[str]


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """Say what holds the job, from the traces of its ranks beside each other.

    ``share_pct`` is of the mean step: waiting, moving data, or what the ranks are bound by alike. ``late`` is
    the rank that the others wait for in the end, ``held`` what holds it. ``waits`` are by group, the longest
    first. ``rates`` are missing where no collective was matched. ``notes`` say what is not known, and why.
    """

    kind: Kind
    cause: Applicable[str]
    confidence: str
    share_pct: float
    summary: str
    late: Applicable[int]
    held: Applicable[LateCause]
    waits: tuple[GroupWait, ...]
    rates: Known[tuple[BusRate, ...]]
    try_: Applicable[str]
    ceiling: Applicable[str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraceReport:
    """Hold what ``tpmon trace --json`` prints; ``job`` does not apply to files that are not of one job."""

    schema: str
    files: tuple[TraceFile, ...]
    ranks: Applicable[RankTable]
    job: Applicable[JobVerdict] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class Change:
    """Hold one line of a comparison in microseconds of the mean step: ``before`` and ``after``."""

    part: str
    name: str
    before_us: float
    after_us: float


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """Hold what got faster or slower from the trace ``before`` to the trace ``after``.

    ``differences`` are conditions that are not equal, ``unchecked`` those that a trace does not tell.
    ``ratio`` is the old over the new mean step, with its 95 % interval. ``helped``: the target was met;
    missing where conditions differ or steps are too few.
    """

    schema: str
    before: str
    after: str
    before_ms: float
    after_ms: float
    ratio: float
    ratio_low: Known[float]
    ratio_high: Known[float]
    target: float
    helped: Known[bool]
    summary: str
    differences: tuple[str, ...]
    unchecked: tuple[str, ...]
    changes: tuple[Change, ...]
