"""The closed table of verdicts, and the Finding that carries one. Generates docs/verdicts.md.

A kind says what holds the run; a cause says why. Exit codes are those of ``--check`` and ``diagnose``.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from types import MappingProxyType

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.process import Outcome


class Kind(str, Enum):
    """Name what holds a run, or that nothing does."""

    BALANCED = "balanced"
    COMPUTE_BOUND = "compute-bound"
    STARTING = "starting"
    PAUSED = "paused"
    IDLE = "idle"
    DATA_BOUND = "data-bound"
    PYTHON_BOUND = "python-bound"
    LAUNCH_BOUND = "launch-bound"
    SYNC_BOUND = "sync-bound"
    COMMS_BOUND = "comms-bound"
    OVERSUBSCRIBED = "oversubscribed"
    CPU_THROTTLED = "cpu-throttled"
    GPU_THROTTLED = "gpu-throttled"
    GPU_UNHEALTHY = "gpu-unhealthy"
    MEMORY_PRESSURE = "memory-pressure"
    LIMITS = "limits"
    FAILED = "failed"
    NOT_ENOUGH_EVIDENCE = "not-enough-evidence"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class KindRow:
    """Hold one row of the table: exit code, causes, and one line of meaning."""

    kind: Kind
    exit_code: int
    causes: tuple[str, ...]
    meaning: str


def _row(kind: Kind, exit_code: int, meaning: str, *causes: str) -> KindRow:
    return KindRow(kind, exit_code, tuple(" ".join(causes).split()), meaning)


TABLE = (
    _row(Kind.BALANCED, 0, "no single cause holds the run back"),
    _row(
        Kind.COMPUTE_BOUND,
        0,
        "the hardware that should be busy is busy: the healthy end",
        "gpu-compute gpu-memory-bandwidth gpu cpu",
    ),
    _row(Kind.STARTING, 0, "no steady steps yet", "import load compile autotune first-steps"),
    _row(
        Kind.PAUSED,
        0,
        "training waits for something it does on purpose",
        "checkpoint validation checkpoint-share validation-share",
    ),
    _row(
        Kind.IDLE,
        0,
        "nothing is left to do, or a person, a request or a time is waited for",
        "finished failed ended waiting-for-input polls",
    ),
    _row(
        Kind.DATA_BOUND,
        10,
        "the accelerator, or on CPU the compute, idles while the loop waits for a batch",
        "no-workers cpu-transform storage-bandwidth storage-latency network-store",
        "page-cache-thrash too-few-workers one-slow-worker uneven-workers worker-lock respawn",
        "killed-workers worker-affinity periodic sampler collate pin drain own-loader decode-engine",
    ),
    _row(
        Kind.PYTHON_BOUND,
        10,
        "one Python thread sets the pace",
        "gil single-thread small-operators blocking-call",
    ),
    _row(Kind.LAUNCH_BOUND, 10, "launches do not keep the GPU busy", "tiny-kernels main-thread"),
    _row(Kind.SYNC_BOUND, 10, "the host waits for the GPU step by step", "explicit implicit allocator"),
    _row(
        Kind.COMMS_BOUND, 10, "ranks wait for each other", "straggler objects small-messages transfer unknown"
    ),
    _row(
        Kind.OVERSUBSCRIBED,
        10,
        "more threads want the CPUs than there are for them: pools of the job, a binding, others",
        "rank-pool worker-pool too-many-ranks affinity other-tenants",
    ),
    _row(Kind.CPU_THROTTLED, 10, "the CPU quota of the control group stops the job", "quota"),
    _row(Kind.GPU_THROTTLED, 10, "a card is held below its clocks", "thermal brake odd-cap pcie"),
    _row(Kind.GPU_UNHEALTHY, 10, "a card reports errors that want a reset or a replacement"),
    _row(Kind.MEMORY_PRESSURE, 10, "memory runs out, or is about to", "leak copy-on-write swap shm gpu"),
    _row(
        Kind.LIMITS,
        10,
        "something other than memory runs out, or will soon",
        "descriptors threads disk inodes",
    ),
    _row(Kind.FAILED, 10, "ranks end with an error, and the job goes on without its work", "restarts"),
    _row(Kind.NOT_ENOUGH_EVIDENCE, 11, "what could be read does not decide"),
    _row(
        Kind.HUNG,
        12,
        "no step, no line, no queue movement",
        "missing-rank remote-rank lock dead-worker lost-batch blocked-io gpu-wait spin stopped",
        "gpu-lost no-progress",
    ),
)


class Confidence(str, Enum):
    """Say how much to trust a Finding: by physical origins, duration and distance from the threshold."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Origin(str, Enum):
    """Name where readings physically come from: two of one origin are no two sources."""

    DRIVER = "driver"
    PROC = "/proc"
    CGROUP = "control group"
    STACKS = "stacks"
    PIPES = "pipes"
    LOG = "log"
    FILES = "files"
    """What a file system says of files: times of writing, room that is left."""
    NETWORK = "network"
    """Counters of interfaces and connections."""
    HOOK = "hook"
    RECORD = "record"
    """What the job itself recorded of its collectives."""


class SinceIs(str, Enum):
    """Say whether ``since`` is when it began, or the earliest time that is known."""

    ONSET = "onset"
    LOWER_BOUND = "lower-bound"


class Figure(Enum):
    """Name a reading: its name, its unit, the group of readings that dates it, its source.

    Braces take what differs: a rank, a card, a count. The group is a field of ``Ages``. A row without a
    source has that of its group, or the one that it is read with; one without a group is dated there, too.
    """

    def __init__(self, label: str, unit: str = "", group: str = "", source: str = "") -> None:
        """Take the parts of a row."""
        self.label, self.unit, self.group, self.source = label, unit, group, source

    # CPUs and threads
    CPUS_USED = "CPUs used", "CPUs", "cpu"
    CPUS_FREE = "CPUs free", "CPUs", "threads", "schedstat"
    CPU_BUDGET = "budget", "CPUs", "cpu"
    CPU_DELAY = "waiting for a CPU", "%", "threads", "schedstat"
    THROTTLED_PERIODS = "throttled periods", "%", "cpu", "cpu.stat"
    RUNNABLE = "runnable", "threads", "threads"
    POOL_DEMAND = "pool demand / budget", "x", "threads", "schedstat"
    POOL_LIBRARY = "library", "", "", "threads, maps"
    THREAD_SETTING = "{}", "threads", "", "start environment"
    RANKS_DEMAND = "demand of the ranks", "threads", "threads", "schedstat"
    RANK_CPU_TIME = "CPU time of {} over theirs", "x", "threads", "schedstat"
    WORKERS_WANT = "the workers want", "CPUs", "threads", "schedstat"
    RANKS_ALLOWED = "the ranks may run on", "CPUs", "threads", "Cpus_allowed_list"
    LAUNCHER_ALLOWED = "their launcher may run on", "CPUs", "threads", "Cpus_allowed_list"
    WORKERS_ALLOWED = "they may run on", "CPUs", "threads", "Cpus_allowed_list"
    WORKER_WANTS = "a worker wants", "CPUs", "threads", "schedstat"
    PIN_THREAD_WANTS = "pin thread wants", "CPUs", "threads", "schedstat"
    OTHERS_WANT = "other threads want", "CPUs", "threads", "schedstat"
    OTHERS_OF_RANK_WANT = "other threads of the rank want", "CPUs", "threads", "schedstat"
    COMPILE_WORKERS = "compile workers", "threads", "threads", "schedstat"
    RANK_SWITCHES = "a rank wakes up", "times a second", "threads", "schedstat"
    BYTES_A_WAKING = "moved each time", "bytes", "io", "interface counters"
    COMM_THREADS = "communication threads", "threads", "threads", "schedstat"
    OTHERS_USE = "other processes use", "CPUs", "cpu", "/proc/stat"
    TENANT = "{}", "CPUs", "cpu", "/proc/PID/stat"
    THREADS_RUNNING = "threads running", "together", "threads", "schedstat"
    THREADS_RUNNABLE = "threads runnable", "threads", "threads", "schedstat"
    MAIN_DEMAND = "main thread runs or waits for a CPU", "%", "threads", "schedstat"
    MAIN_RUNS = "main thread runs", "%", "cpu", "thread state"
    MAIN_RUNS_OR_WAITS = "main thread runs or waits for a CPU", "%", "cpu", "thread state"
    MAIN_ASLEEP = "main thread asleep", "%", "threads", "thread state"
    MAIN_IN_IO = "of it for a disk or a socket", "%", "threads", "thread state"
    MAIN_IN_TIMED_LOCK = "main thread in a timed lock", "%", "threads", "system call"

    # The loader and its workers
    DATA_WAIT = "data wait", "%"
    QUEUE_EMPTY = "queue empty", "%", "io", "pipes"
    WORKERS = "loader workers", "", "cpu", "processes"
    WORKERS_BORN = "workers born in 60 s", "", "cpu", "processes"
    WORKERS_KILLED = "workers killed in 60 s", "", "cpu", "exit status"
    LAST_KILLED = "the last of them", "", "cpu", "exit status"
    WORKERS_IDLE = "workers without work", "%", "threads", "wchan"
    WORKER_IDLE = "{} without work", "%", "threads", "wchan"
    OTHERS_IDLE = "the others without work", "% at least", "threads", "wchan"
    EVERY_WORKER_IDLE = "every worker without work", "% at least", "threads", "wchan"
    WORKERS_FED = "workers with work", "of {}", "threads", "wchan"
    WORKERS_BLOCKED = "workers blocked", "%", "threads"
    WORKERS_BEFORE_RETRY = "workers asleep before a retry", "%", "stacks"
    WORKERS_IN_LOCK = "workers in a lock", "%", "threads", "wchan"
    STACKS_AT_LOCK = "their stacks at a lock", "%", "stacks"
    WORKERS_READ = "workers read", "bytes/s", "io", "/proc/PID/io"
    READ_SIZE = "mean size of a read", "KiB", "io"
    IN_OPENS = "loading in open and stat", "%", "stacks"
    WORKERS_IN_COLLATE = "workers in collate", "%", "stacks"
    MAIN_IN_COLLATE = "in collate", "%", "stacks"
    MAIN_IN_COPIES = "in copies", "%", "stacks"
    MAIN_IN_SAMPLER = "in the sampler", "%", "stacks"
    AT_OWN_QUEUE = "at a queue, a pipe or a future", "%", "stacks"
    BETWEEN_BURSTS = "between bursts", "s", "threads", "state of the main thread"
    STEPS_BETWEEN_BURSTS = "between bursts", "steps", "hook", "hook"

    # Stacks
    MOST_OF_IT = "most of it", "%", "stacks"
    MAIN_PLACE = "{}", "samples", "stacks"
    WHERE_IT_IS = "where it is", "%", "stacks", "stack samples"
    IN_PHASE = "in {}", "%", "stacks", "stack samples"
    IN_WAITS = "in waits for GPU or ranks", "%", "stacks", "stack samples"
    IN_SYNCS = "in synchronising calls", "%", "stacks", "stack samples"
    HIDDEN_DATA_WAIT = "hidden data wait", "%", "stacks", "stack samples"
    PAUSED_SHARE = "{} of the time", "%", "stacks", "stack samples"
    PAUSED_TURNS = "times in {}", "", "stacks", "stack samples"
    OUTSIDE_STEP = "outside of the step", "%", "stacks", "stack samples"
    PYTHON_OUTSIDE = "Python outside of the step", "%", "stacks"
    CALLING_OPERATORS = "of the step in calls of operators", "%", "stacks", "stack samples"
    POOL_WANTS = "its thread pool wants", "CPUs", "threads", "schedstat"
    RANK_IN_COLLECTIVES = "{} in collectives", "%", "stacks"
    OTHERS_IN_COLLECTIVES = "the others in collectives", "%", "stacks"
    ALL_IN_OBJECTS = "every rank in collectives of objects, at least", "%", "stacks", "stack samples"
    ALL_IN_COLLECTIVES = "every rank in collectives, at least", "%", "stacks"

    # Cards and links
    GPU_BUSY = "GPU busy", "%", "gpu"
    GPU_IDLE = "GPU idle", "%", "gpu", "NVML"
    GPU_IDLE_BESIDE = "GPU idle beside them", "%", "gpu", "NVML utilisation"
    DECODE_ENGINE = "{} busy", "%", "gpu", "NVML"
    SM_ACTIVITY = "SM activity", "%", "gpu", "GPM"
    TENSOR_ACTIVITY = "tensor activity", "%", "gpu", "GPM"
    DRAM_ACTIVITY = "DRAM activity", "%", "gpu", "GPM"
    GPU_POWER = "power of its limit", "%", "gpu", "NVML power"
    GPU_CLOCK = "SM clock of its maximum", "%", "gpu", "NVML clock"
    CLOCK_OF_MEDIAN = "clock over the others' median", "%", "gpu", "NVML clock"
    CLOCK_REASON = "{}", "% of 10 s", "gpu"
    GPU_TEMPERATURE = "temperature", "C", "gpu", "NVML"
    LINK_SPEED = "link speed of its best", "%", "gpu", "NVML PCIe link"
    LINK_USE = "link in use", "%", "gpu", "NVML PCIe counters"
    NVLINK = "NVLink", "bytes/s", "gpu", "NVLink counters"
    PCIE = "PCIe, both ways", "bytes/s", "gpu", "NVML PCIe counters"
    NETWORK = "network", "bytes/s", "io", "interface counters"
    GPU_FAULT = "card {}", "", "gpu"
    GPU_SILENT = "card {} silent", "s", "gpu", "NVML"
    GPU_MEMORY = "memory of the card", "%", "gpu", "NVML"
    GPU_MEMORY_MOST = "memory of the card, at most", "%", "gpu", "NVML"
    GPU_MEMORY_OTHERS = "memory of others on it", "MiB", "gpu", "NVML"
    GPU_MEMORY_GROWTH = "growth of the job's memory", "bytes/s", "gpu", "NVML"
    GPU_MEMORY_GROWN = "grown", "MiB in 45 s", "gpu", "NVML"
    TENSORS_GROWTH = "growth of what is held for tensors", "bytes/s", "hook", "hook"
    ALLOCATOR_RETRIES = "allocator retries", "in {} s", "hook", "hook"
    ALLOCATOR_OOMS = "out of memory", "in {} s", "hook", "hook"
    ALLOCATOR_SPLIT = "free in pieces of the cache", "MiB", "hook", "hook"

    # Memory
    MEMORY_GROWTH = "memory growth", "bytes/s", "memory"
    GROWN = "grown", "MiB in 45 s", "memory"
    MEMORY_USED = "used of the limit", "%", "memory"
    IN_SWAP = "in swap", "MiB", "memory"
    REFAULTED = "refaulted", "bytes/s", "memory", "memory.stat"
    MAJOR_FAULTS = "major faults", "1/s", "memory", "memory.stat"
    MEMORY_STALLS = "stalled for memory", "%", "memory", "PSI"
    SHM_USED = "used of it", "%", "memory", "statvfs"
    SHM_GROWTH = "largest growth in a second", "MiB", "memory", "statvfs"

    # Other limits
    LIMIT_USED = "{}", "% of the limit", "", "/proc, statvfs"
    LIMIT_GROWTH = "growth of {}", "1/s", "", "/proc, statvfs"
    DESCRIPTOR_KINDS = "most of them", "", "", "/proc/PID/fd"

    # The hook
    HOST_DATA_WAIT = "data wait of the host", "%", "hook", "hook"
    HOST_IN_MODEL = "host in the model", "%", "hook", "hook"
    HOST_IN_EVALUATION = "in evaluation", "%", "hook", "hook"
    LAST_STEP = "last step", "s ago", "hook", "hook"
    STEPS = "steps", "", "hook", "hook"
    STEPS_GO_ON = "steps go on", "steps/s", "hook", "hook"
    LATE_RANK = "late rank", "ms", "hook", "hook"
    LATE_RANK_HOST = "{}, data and forward", "ms", "hook", "hook"
    OTHERS_HOST = "the others", "ms", "hook", "hook"

    # Life of the job
    RANK_AGE = "age of the rank", "s", "cpu", "process start"
    YOUNGEST_RANK_AGE = "age of the ranks", "s", "cpu", "process start"
    LAUNCHER_AGE = "age of the launcher", "s", "cpu", "process start"
    RESTARTS = "restarts", "", "cpu", "start environment"
    RANK_FAILED = "{}", "s ago", "cpu", "exit status"
    RANKS_ALIVE = "ranks alive", "", "cpu", "/proc"
    LAST_WORDS = "the log ends with"
    RANK_WRITES = "writes", "bytes/s", "io", "/proc io"
    WAIT_UNCHANGED = "wait unchanged", "s", "cpu", "kernel wait"
    BEFORE_THE_END = "verdict before the end", "", "cpu", "tpmon"

    # Hangs
    THREAD_STANDS = "{}", "", "", "py-spy and /proc"
    PROCESS_STANDS = "{}", "s", "cpu", "kernel wait"
    WAITS_FOR_BATCH = "waits for a batch", "s", "cpu", "kernel wait"
    WORKERS_GONE = "workers gone", "", "cpu", "/proc"
    DEAD_PROCESS = "dead process {}", "", "", "/proc stat"
    MAINS_STAND = "main threads", "s", "threads", "schedstat"
    NOTHING_MOVED = "nothing moved", "s", "cpu", "schedstat and stacks"
    LOOKS_AT_THREADS = "looks at all threads", "", "", "py-spy, without a stop"
    LOG_WRITE = "last log write", "s ago", "", "log file"
    CONNECTION_DATA = "last data on connections", "s ago", "", "TCP_INFO"
    FILE_WRITE = "last write of an open file", "s ago", "", "open files"
    WORKER_START = "youngest worker started", "s ago", "", "/proc stat"
    COLLECTIVE = "{}"
    COLLECTIVE_LIMIT = "time limit of its collectives"
    NCCL_RAS = "NCCL RAS", "", "", "NCCL"
    DUMP_WAITS = "waits", "", "", "py-spy and /proc, all looks"
    DUMP_LOOKS = "looks at each process", "", "", "py-spy and /proc, all looks"
    DUMP_MAY_END = "it may end by itself", "", "", "py-spy and /proc, all looks"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hold one reading for or against a Finding; ``text`` replaces value and unit: "14 of 25 samples"."""

    name: str
    value: Known[float]
    unit: str
    text: str
    source: str
    age_s: Known[float]


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold one verdict.

    ``share_pct`` is the share of the step time (or of the figure that the kind is about) that it
    costs, with its 95 % interval. ``ceiling`` says what the run gains at most when it goes away.
    """

    kind: Kind
    cause: Applicable[str]
    confidence: Confidence
    share_pct: Applicable[float]
    share_low_pct: Applicable[float]
    share_high_pct: Applicable[float]
    since: datetime
    since_is: SinceIs
    since_source: str
    summary: str
    try_: Applicable[str]
    also_try: Applicable[tuple[str, ...]]
    """What else may help, best first; not applicable where nothing else does."""
    ceiling: Applicable[str]
    evidence: tuple[Evidence, ...]
    against: tuple[Evidence, ...]
    ruled_out: tuple[str, ...]
    unknown: tuple[str, ...]
    pid: Applicable[int]
    rank: Applicable[int]
    card: Applicable[int]
    """What it points at, where it points at one process, one rank, one card (NVML index)."""
    where: Applicable[str]
    """Where the main thread of that process is, by its newest stacks: "backward train.py:88"."""


IN_WORDS = Missing("in words")
"""The value of a reading that is no number: its text says it."""
BEFORE_THE_END = Figure.BEFORE_THE_END.label
"""Name of the reading that keeps what was said last of a job that has ended."""
EXIT_CODES = {row.kind: row.exit_code for row in TABLE}
"""Of the kinds; ``pick_code`` knows the causes that have another one."""
END_CAUSES = MappingProxyType({Outcome.WELL: "finished", Outcome.FAILED: "failed", Outcome.UNKNOWN: "ended"})
"""The causes of ``idle`` that say that the job is over, by how it ended."""
CAUSE_CODES = MappingProxyType(
    {
        (Kind.IDLE, "failed"): 10,
        (Kind.IDLE, "ended"): 11,
        (Kind.PAUSED, "checkpoint-share"): 10,
        (Kind.PAUSED, "validation-share"): 10,
    }
)
"""A job that crashed has not ended well, and one whose exit status nobody saw may not have (ADR 0008).

One pause is healthy, pauses that take a fifth of the time are not."""


def pick_code(kind: Kind, cause: Applicable[str]) -> int:
    """Return the exit code of a verdict: that of its cause where it has one, else of its kind."""
    return CAUSE_CODES.get((kind, cause), EXIT_CODES[kind]) if is_known(cause) else EXIT_CODES[kind]
