"""What the hook tells beside steps: settings of torch, loader, DDP and FSDP, memory, times of the device.

The hook reads them every few seconds at the end of a step and changes none. What its torch
does not tell, or what the job does not use, is missing with the reason.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing


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

    The allocator has one peak for all. ``forward_peak_bytes`` and the like are what it was when it rose in
    that part of a watched step, exactly; of a part in which it did not, no more is known than the turns.
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

    ``version`` 1 is FullyShardedDataParallel: ``forward`` and ``backward`` are what it was made with, such as
    "on" or "BACKWARD_PRE". 2 is fully_shard: they say how many units were told what to fetch ahead.
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

    ``step_ns`` is from the first batch of a step to the end of its update, on the stream of the
    training thread; the device may idle in it. ``host_ns`` is the host's time of the same steps.
    ``every``: the last one was that many steps after the one before.
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


NO_SETTINGS = Missing("the hook has not told its settings yet")
NO_DEVICE = Missing("the hook has measured no step on a CUDA device")
TOO_LONG = Missing("steps of more than some 30 parts (accumulation) are not timed on the device")
