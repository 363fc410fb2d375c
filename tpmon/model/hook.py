"""What the hook of each rank reports: steps, phases, rates, settings, memory and device times (docs/hook.md).

Exact, and of the host only: on a GPU a phase can hold waits for the device. Totals count from the hook's
first event on. ``ns`` are of CLOCK_MONOTONIC. What its torch does not tell, or what the job does not use, is
missing with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or
from tpmon.model.process import Identity


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """Hold what torch.compile did so far in this process."""

    frames: int
    """0 with ``fullgraph=True``: torch counts none of its frames."""
    frames_ok: int
    graphs: int
    graph_breaks: int
    limit_hits: int
    """At least so often code was left uncompiled because it was compiled too often (``recompile_limit``)."""


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Hold what was allocated at turns of the step that was watched last, and which part reached the peak.

    The allocator has one peak for all: ``forward_peak_bytes`` and the like are known of a part in which it
    rose.
    """

    after_batch_bytes: Known[int]
    after_backward_bytes: Known[int]
    after_update_bytes: Known[int]
    forward_peak_bytes: Known[int]
    backward_peak_bytes: Known[int]
    optimizer_peak_bytes: Known[int]
    other_peak_bytes: Known[int]
    """From an update to the next batch, evaluations too."""
    peak_phase: Known[str]
    """forward, backward, optimizer or other: where the peak of now was reached."""


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """Hold what the caching allocator of the current CUDA device says, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    peak_allocated_bytes: int
    """Since the program last reset it, or since its start."""
    peak_reserved_bytes: int
    alloc_retries: int
    """How often it had to give back its cache to find room: each stalls the device."""
    ooms: int
    allocated_at_backward_bytes: Known[int]
    """When the backward of one step began: parameters, optimizer state and activations."""
    phases: Applicable[PhaseMemory] = NOT_APPLICABLE
    """Not in files of before it was told."""


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Hold sizes of what the optimizer that stepped last works on, on this rank; in bytes."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: Applicable[int] = NOT_APPLICABLE
    """An estimate of what a forward keeps for its backward; not in files of before it was told."""


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """Hold how DistributedDataParallel was set up."""

    bucket_cap_bytes: int
    buckets: int
    find_unused: bool
    static_graph: bool


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """Hold how FSDP fetches parameters ahead.

    ``version`` 1 is FullyShardedDataParallel, made with ``forward`` and ``backward`` ("on", "BACKWARD_PRE");
    2 is fully_shard, of which they say how many units were told what to fetch ahead.
    """

    version: int
    units: int
    forward: str
    backward: str
    limit_all_gathers: Applicable[bool]


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Hold the arguments of the DataLoader that the last batch came from."""

    workers: int
    pin_memory: bool
    prefetch_factor: Known[int]
    persistent_workers: bool
    batch_size: Known[int]


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Hold the settings of a rank, ``age_s`` old."""

    age_s: float
    matmul_tf32: Known[bool]
    cudnn_tf32: Known[bool]
    cudnn_benchmark: Known[bool]
    cudnn_deterministic: Known[bool]
    deterministic: Known[bool]
    """torch.use_deterministic_algorithms."""
    anomaly: Known[bool]
    autocast: Known[bool]
    """Whether it was on where a backward began or a step ended; False leaves open what the forward does."""
    autocast_dtype: Known[str]
    sdpa: Known[tuple[str, ...]]
    """Attention back ends that are allowed: flash, mem-efficient, math, cudnn."""
    threads: Known[int]
    interop_threads: Known[int]
    profiler: Known[bool]
    """A torch profiler of the program records, or was seen to be prepared; tpmon's own does not count."""
    compiled: Known[CompileCounts]
    allocator: Known[AllocatorFigures]
    sizes: Known[StateSizes]
    ddp: Known[DdpSettings]
    fsdp: Known[FsdpSettings]
    loader: Known[LoaderSettings]


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Hold times of the CUDA device between events of steps that were measured; totals in ns.

    ``step_ns`` is from the first batch to the end of the update, on the stream of the training thread, idle
    time included; ``host_ns`` the host's time of the same steps. ``every``: so many steps after the one
    before.
    """

    age_s: float
    steps: int
    every: int
    dropped: int
    """Steps that were begun and not measured: a graph was captured, or the events came too late."""
    step_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    host_ns: int


NO_SETTINGS = Missing("the hook has not written its settings yet")
NO_DEVICE = Missing("the hook has measured no step on a CUDA device")
TOO_LONG = Missing("steps of more than some 30 parts (accumulation) are not timed on the device")


class StepRule(str, Enum):
    """Name what ends a step."""

    NONE = "none"
    """Nothing was counted yet."""
    BATCH_AFTER_UPDATE = "batch-after-update"
    """The next batch is asked for after an optimizer's step."""
    UPDATE = "update"
    """An optimizer's step: the loop trains without a DataLoader."""
    BATCH_AFTER_BACKWARD = "batch-after-backward"
    """The next batch after a backward: no torch optimizer is at work."""
    BATCH = "batch"
    """Nothing: batches without backward, counted as evaluation steps."""
    CALL = "call"
    """The program says it."""


class HookState(str, Enum):
    """Say whether the hook counts."""

    RUNNING = "running"
    DISABLED = "disabled"
    """It turned itself off after an error of its own."""
    UNINSTALLED = "uninstalled"


class HookPatch(str, Enum):
    """Name a place of torch that the hook watches."""

    DATA = "data"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SCALER = "scaler"


class LoopPhase(str, Enum):
    """Name a phase of a training step, on the host."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Hold how long the host was in each phase, in ns."""

    data_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int

    @property
    def total_ns(self) -> int:
        """Return the time of all phases."""
        return self.data_ns + self.forward_ns + self.backward_ns + self.optimizer_ns + self.other_ns


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Hold raw counters, from which another rule can be derived.

    ``updates`` are first optimizer calls after a backward, ``skipped_updates`` those that a GradScaler left
    out (missing where none is watched), ``elsewhere`` events of other threads, which count nowhere else.
    ``samples`` are batches times the DataLoader's batch size.
    """

    steps: int
    eval_steps: int
    batches: int
    backwards: int
    optimizer_calls: int
    updates: int
    skipped_updates: Known[int]
    samples: int
    eval_samples: int
    elsewhere: int


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Hold steps that ended between two records of the hook: one, or those of two milliseconds.

    ``train`` and ``evaluation`` add up to the time between the ends of the steps.
    """

    ended_ns: int
    steps: int
    eval_steps: int
    samples: int
    train: PhaseTimes
    evaluation: PhaseTimes


@dataclass(frozen=True, slots=True)
class NamedTime:
    """Hold what the program measured under a name of its own."""

    name: str
    calls: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class LoopNow:
    """Say what the loop is in by its last event, and since when in seconds."""

    phase: LoopPhase
    since_s: float


@dataclass(frozen=True, slots=True)
class PutIn:
    """Hold when a hook was put into its running process by hand, and the version of the tpmon that did."""

    at: datetime
    by: str


@dataclass(frozen=True, slots=True)
class StepReading:
    """Hold one reading of one process's hook, with the ``spans`` since the reading before.

    ``lost_records``: so many were overwritten since then; totals hold them. ``ended`` holds all steps until
    the end of the last one.
    """

    process: Identity
    rank: Applicable[int]
    world_size: Applicable[int]
    local_rank: Applicable[int]
    hook_version: str
    torch_version: str
    python_version: str
    state: HookState
    error: str
    patches: tuple[HookPatch, ...]
    rule: StepRule
    counts: StepCounts
    ended: Known[StepSpan]
    batch_size: Known[int]
    spans: tuple[StepSpan, ...]
    lost_records: int
    now: Known[LoopNow]
    marks: tuple[NamedTime, ...]
    taken_ns: int
    settings: Known[TrainSettings] = NO_SETTINGS
    device: Known[DeviceTimes] = NO_DEVICE
    put_in: Applicable[PutIn] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class StepPace:
    """Hold how the training steps of one rank go; that of a job is its first hooked rank's.

    Rates and shares are of the last ``span_s`` seconds: about ten, or three steps where they take longer.
    """

    pid: int
    rank: Applicable[int]
    ranks: int
    """How many ranks ``samples_hz`` adds up: one for a rank, those with a hook for a job."""
    rule: StepRule
    count: int
    """Training steps since the hook's first event."""
    eval_count: int
    span_s: float
    rate_hz: float
    """Training steps a second; it falls while none ends."""
    eval_hz: float
    samples_hz: Known[float]
    timed: int
    """How many steps the next figures are of: the last minute's, 512 at most; of steps below 2 ms, groups."""
    p50_ms: Known[float]
    p95_ms: Known[float]
    p99_ms: Known[float]
    longest_ms: Known[float]
    slowest_ms: Known[float]
    """The longest step that ended since the last Frame; where none did, the last one, or the one that goes on
    when that takes longer already."""
    step_age_s: float
    """How long ago the last step, of training or evaluation, ended."""
    data_pct: Known[float]
    forward_pct: Known[float]
    backward_pct: Known[float]
    optimizer_pct: Known[float]
    other_pct: Known[float]
    """Shares of the host's time of training steps; they add up to 100."""
    own_ms: Known[float]
    """Data and forward of a step: what a rank does before it may wait for the others in its backward."""
    eval_pct: float
    """Share of the span that evaluation took."""


@dataclass(frozen=True, slots=True)
class HookSample:
    """Hold what one rank's hook says of itself and of its loop right now."""

    pid: int
    rank: Applicable[int]
    state: HookState
    error: str
    """Why it turned itself off, "" while it runs."""
    hook_version: str
    rule: StepRule
    patches: tuple[HookPatch, ...]
    counts: StepCounts
    batch_size: Known[int]
    phase: Known[LoopPhase]
    phase_s: Known[float]
    """What the loop is in by its last event, and how long ago that event was."""
    marks: tuple[NamedTime, ...]
    lost_records: int
    """Records since the last Frame whose detail was not read; totals hold them."""
    pace: Known[StepPace]
    settings: Known[TrainSettings] = NO_SETTINGS
    device: Known[DeviceTimes] = NO_DEVICE
    """The CUDA device's time of steps that were measured."""
    put_in: Applicable[PutIn] = NOT_APPLICABLE
    """It came into the running process by hand."""


def list_shares(pace: StepPace) -> tuple[tuple[LoopPhase, Known[float]], ...]:
    """Return the phases of a step with their shares in percent, in the order of a step."""
    return tuple((phase, getattr(pace, f"{phase.value}_pct")) for phase in LoopPhase)


def join_paces(hooks: Known[Sequence[HookSample]]) -> Known[StepPace]:
    """Return the pace of the job: its first rank's, with the samples of all ranks that have a hook."""
    if not is_known(hooks):
        return hooks
    paces = [one.pace for one in hooks if is_known(one.pace)]
    if not paces:
        reasons = [one.pace.reason for one in hooks if isinstance(one.pace, Missing)]
        return Missing(reasons[0] if reasons else "no rank has a hook")
    first = min(paces, key=lambda one: (known_or(one.rank, 1 << 30), one.pid))
    rates = [one.samples_hz for one in paces if is_known(one.samples_hz)]
    total: Known[float] = sum(rates)
    if len(rates) < len(paces):
        told = first.samples_hz
        total = Missing("not every rank counts its samples") if is_known(told) else told
    return replace(first, samples_hz=total, ranks=len(paces))
