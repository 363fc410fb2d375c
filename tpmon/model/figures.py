"""List the figures: a row holds its name, its unit, what dates it, where it comes from, and its history.

Rules, screen, text, JSON and docs take them from here. How a figure is read off what a rule judges stands in
``judge.answers.engine`` and the rules: the model does not know of a judge.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, map_known

if TYPE_CHECKING:
    from tpmon.model.frame import Pulse


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


class Bad(Enum):
    """Name the side of a figure that costs the run something."""

    HIGH = "high"
    LOW = "low"


class History(NamedTuple):
    """Hold what draws the history of a figure; ``top`` 0 is the highest value, or all of a share."""

    series: Callable[[Pulse], Known[float]]
    top: float = 0.0


_ORIGINS = MappingProxyType(
    {
        "": (),
        "cpu": (Origin.PROC,),
        "threads": (Origin.PROC,),
        "io": (Origin.PROC,),
        "memory": (Origin.CGROUP,),
        "gpu": (Origin.DRIVER,),
        "stacks": (Origin.STACKS,),
        "hook": (Origin.HOOK,),
    }
)
"""Of the groups of readings, where a row names none."""


_BY_LOOKS = (Origin.STACKS, Origin.PROC)
_LOOKS = "py-spy and /proc, all looks"


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Hold a row of the table; ``of`` are its origins where they are not those of its group."""

    label: str
    unit: str = ""
    group: str = ""
    source: str = ""
    of: tuple[Origin, ...] = ()
    series: Callable[[Pulse], Known[float]] | None = None
    top: float = 0.0
    bad: Bad | None = None
    """None where neither side is bad for every run."""


def _gpu_busy(pulse: Pulse) -> Known[float]:
    busy = [one for one in pulse.gpu_pct if is_known(one)]
    return sum(busy) / len(busy) if busy else Missing("no card answered")


def _gpu_idle(pulse: Pulse) -> Known[float]:
    return map_known(lambda busy: 100.0 - busy, _gpu_busy(pulse))


class Figure(Enum):
    """Name a reading: its name, its unit, the group of readings that dates it, its source, its origins.

    Braces take what differs: a rank, a card, a count. The group is a field of ``Ages``. A row without a
    source has that of its group, or the one that it is read with; one without a group is dated there, too.
    A reading that is from elsewhere, or that several agree on, says so.
    """

    def __init__(self, row: FigureRow) -> None:
        """Take the parts of a row."""
        self.label, self.unit, self.group, self.source = row.label, row.unit, row.group, row.source
        self.origins = frozenset(row.of or _ORIGINS[row.group])
        self.bad = row.bad
        self.history = History(row.series, row.top) if row.series is not None else None

    # CPUs and threads
    CPUS_USED = FigureRow("CPUs used", "CPUs", "cpu", series=attrgetter("used_cores"), bad=Bad.HIGH)
    CPUS_FREE = FigureRow("CPUs free", "CPUs", "threads", "schedstat", bad=Bad.LOW)
    CPU_BUDGET = FigureRow("budget", "CPUs", "cpu")
    CPU_DELAY = FigureRow(
        "waiting for a CPU",
        "%",
        "threads",
        "schedstat",
        series=attrgetter("run_delay_ratio"),
        top=1.0,
        bad=Bad.HIGH,
    )
    CPU_PRESSURE = FigureRow("stalled for a CPU", "%", "cpu", "PSI", of=(Origin.CGROUP,), bad=Bad.HIGH)
    THROTTLED_PERIODS = FigureRow(
        "throttled periods", "%", "cpu", "cpu.stat", of=(Origin.CGROUP,), bad=Bad.HIGH
    )
    RUNNABLE = FigureRow("runnable", "threads", "threads", series=attrgetter("runnable"), bad=Bad.HIGH)
    POOL_DEMAND = FigureRow("pool demand / budget", "x", "threads", "schedstat")
    POOL_LIBRARY = FigureRow("library", source="threads, maps", of=(Origin.PROC,))
    THREAD_SETTING = FigureRow("{}", "threads", source="start environment", of=(Origin.PROC,))
    RANKS_DEMAND = FigureRow("demand of the ranks", "threads", "threads", "schedstat")
    CHILDREN_DEMAND = FigureRow("demand of what they started", "threads", "threads", "schedstat")
    RANK_CPU_TIME = FigureRow("CPU time of {} over theirs", "x", "threads", "schedstat")
    WORKERS_WANT = FigureRow("the workers want", "CPUs", "threads", "schedstat")
    RANKS_ALLOWED = FigureRow("the ranks may run on", "CPUs", "threads", "Cpus_allowed_list")
    LAUNCHER_ALLOWED = FigureRow("their launcher may run on", "CPUs", "threads", "Cpus_allowed_list")
    WORKERS_ALLOWED = FigureRow("they may run on", "CPUs", "threads", "Cpus_allowed_list")
    WORKER_WANTS = FigureRow("a worker wants", "CPUs", "threads", "schedstat")
    PIN_THREAD_WANTS = FigureRow("pin thread wants", "CPUs", "threads", "schedstat")
    OTHERS_WANT = FigureRow("other threads want", "CPUs", "threads", "schedstat")
    OTHERS_OF_RANK_WANT = FigureRow("other threads of the rank want", "CPUs", "threads", "schedstat")
    COMPILE_WORKERS = FigureRow("compile workers", "threads", "threads", "schedstat")
    RANK_SWITCHES = FigureRow("a rank wakes up", "times a second", "threads", "schedstat")
    BYTES_A_WAKING = FigureRow("moved each time", "bytes", "io", "interface counters", of=(Origin.NETWORK,))
    COMM_THREADS = FigureRow("communication threads", "threads", "threads", "schedstat")
    OTHERS_USE = FigureRow("other processes use", "CPUs", "cpu", "/proc/stat")
    TENANT = FigureRow("{}", "CPUs", "cpu", "/proc/PID/stat")
    THREADS_RUNNING = FigureRow("threads running", "together", "threads", "schedstat")
    THREADS_RUNNABLE = FigureRow("threads runnable", "threads", "threads", "schedstat")
    MAIN_DEMAND = FigureRow("main thread runs or waits for a CPU", "%", "threads", "schedstat")
    MAIN_RUNS = FigureRow("main thread runs", "%", "cpu", "thread state")
    MAIN_RUNS_OR_WAITS = FigureRow("main thread runs or waits for a CPU", "%", "cpu", "thread state")
    MAIN_ASLEEP = FigureRow("main thread asleep", "%", "threads", "thread state")
    MAIN_IN_IO = FigureRow("of it for a disk or a socket", "%", "threads", "thread state", bad=Bad.HIGH)
    MAIN_IN_TIMED_LOCK = FigureRow("main thread in a timed lock", "%", "threads", "system call", bad=Bad.HIGH)

    # The loader and its workers
    DATA_WAIT = FigureRow("data wait", "%", of=(Origin.PROC,), bad=Bad.HIGH)
    QUEUE_EMPTY = FigureRow(
        "queue empty",
        "%",
        "io",
        "pipes",
        of=(Origin.PIPES,),
        series=attrgetter("empty_ratio"),
        top=1.0,
        bad=Bad.HIGH,
    )
    BATCHES_READY = FigureRow("batches ready", "", "io", "pipes", of=(Origin.PIPES,), bad=Bad.LOW)
    WORKERS = FigureRow("loader workers", group="cpu", source="processes")
    WORKERS_BORN = FigureRow("workers born in 60 s", group="cpu", source="processes")
    WORKERS_KILLED = FigureRow("workers killed in 60 s", group="cpu", source="exit status")
    LAST_KILLED = FigureRow("the last of them", group="cpu", source="exit status")
    WORKERS_IDLE = FigureRow("workers without work", "%", "threads", "wchan")
    WORKER_IDLE = FigureRow("{} without work", "%", "threads", "wchan")
    WORKER_BACKLOG = FigureRow(
        "requests that wait for {}", "%", "io", "pipes", of=(Origin.PIPES,), bad=Bad.HIGH
    )
    OTHERS_IDLE = FigureRow("the others without work", "% at least", "threads", "wchan")
    EVERY_WORKER_IDLE = FigureRow("every worker without work", "% at least", "threads", "wchan")
    WORKERS_FED = FigureRow("workers with work", "of {}", "threads", "wchan")
    WORKERS_BLOCKED = FigureRow("workers blocked", "%", "threads", bad=Bad.HIGH)
    WORKERS_BEFORE_RETRY = FigureRow("workers asleep before a retry", "%", "stacks", bad=Bad.HIGH)
    WORKERS_PAUSE = FigureRow(
        "workers asleep in lines of the program", "%", "stacks", of=_BY_LOOKS, bad=Bad.HIGH
    )
    LOADING_AT_SERVER = FigureRow("loading at a server", "%", "stacks", bad=Bad.HIGH)
    WORKERS_IN_LOCK = FigureRow("workers in a lock", "%", "threads", "wchan", bad=Bad.HIGH)
    STACKS_AT_LOCK = FigureRow("their stacks at a lock", "%", "stacks", bad=Bad.HIGH)
    WORKERS_READ = FigureRow("workers read", "bytes/s", "io", "/proc/PID/io")
    READ_SIZE = FigureRow("mean size of a read", "KiB", "io")
    IN_OPENS = FigureRow("loading in open and stat", "%", "stacks", bad=Bad.HIGH)
    WORKERS_IN_COLLATE = FigureRow("workers in collate", "%", "stacks", bad=Bad.HIGH)
    MAIN_IN_COLLATE = FigureRow("in collate", "%", "stacks", bad=Bad.HIGH)
    MAIN_IN_COPIES = FigureRow("in copies", "%", "stacks", bad=Bad.HIGH)
    MAIN_IN_SAMPLER = FigureRow("in the sampler", "%", "stacks", bad=Bad.HIGH)
    MAIN_STARTS_WORKERS = FigureRow("starting workers", "%", "stacks", bad=Bad.HIGH)
    AT_OWN_QUEUE = FigureRow("at a queue, a pipe or a future", "%", "stacks", bad=Bad.HIGH)
    BETWEEN_BURSTS = FigureRow("between bursts", "s", "threads", "state of the main thread")
    STEPS_BETWEEN_BURSTS = FigureRow("between bursts", "steps", "hook", "hook")

    # Stacks
    MOST_OF_IT = FigureRow("most of it", "%", "stacks")
    MAIN_PLACE = FigureRow("{}", "samples", "stacks")
    WHERE_IT_IS = FigureRow("where it is", "%", "stacks", "stack samples")
    IN_PHASE = FigureRow("in {}", "%", "stacks", "stack samples")
    IN_WAITS = FigureRow("in waits for GPU or ranks", "%", "stacks", "stack samples", bad=Bad.HIGH)
    IN_SYNCS = FigureRow("in synchronising calls", "%", "stacks", "stack samples", bad=Bad.HIGH)
    HIDDEN_DATA_WAIT = FigureRow("hidden data wait", "%", "stacks", "stack samples")
    PAUSED_SHARE = FigureRow("{} of the time", "%", "stacks", "stack samples", bad=Bad.HIGH)
    PAUSED_TURNS = FigureRow("times in {}", "", "stacks", "stack samples")
    OUTSIDE_STEP = FigureRow("outside of the step", "%", "stacks", "stack samples", bad=Bad.HIGH)
    PYTHON_OUTSIDE = FigureRow("Python outside of the step", "%", "stacks", bad=Bad.HIGH)
    CALLING_OPERATORS = FigureRow(
        "of the step in calls of operators", "%", "stacks", "stack samples", bad=Bad.HIGH
    )
    POOL_WANTS = FigureRow("its thread pool wants", "CPUs", "threads", "schedstat")
    RANK_IN_COLLECTIVES = FigureRow("{} in collectives", "%", "stacks")
    OTHERS_IN_COLLECTIVES = FigureRow("the others in collectives", "%", "stacks", bad=Bad.HIGH)
    ALL_IN_COLLECTIVES = FigureRow("every rank in collectives, at least", "%", "stacks", bad=Bad.HIGH)

    ALL_IN_OBJECTS = FigureRow(
        "every rank in collectives of objects, at least", "%", "stacks", "stack samples", bad=Bad.HIGH
    )

    # Cards and links
    GPU_BUSY = FigureRow("GPU busy", "%", "gpu", series=_gpu_busy, top=100.0, bad=Bad.LOW)
    GPU_IDLE = FigureRow("GPU idle", "%", "gpu", "NVML", series=_gpu_idle, top=100.0, bad=Bad.HIGH)
    GPU_IDLE_BESIDE = FigureRow("GPU idle beside them", "%", "gpu", "NVML utilisation", bad=Bad.HIGH)
    DECODE_ENGINE = FigureRow("{} busy", "%", "gpu", "NVML")
    SM_ACTIVITY = FigureRow("SM activity", "%", "gpu", "GPM", bad=Bad.LOW)
    TENSOR_ACTIVITY = FigureRow("tensor activity", "%", "gpu", "GPM", bad=Bad.LOW)
    DRAM_ACTIVITY = FigureRow("DRAM activity", "%", "gpu", "GPM")
    GPU_POWER = FigureRow("power of its limit", "%", "gpu", "NVML power")
    GPU_CLOCK = FigureRow("SM clock of its maximum", "%", "gpu", "NVML clock", bad=Bad.LOW)
    CLOCK_OF_MEDIAN = FigureRow("clock over the others' median", "%", "gpu", "NVML clock", bad=Bad.LOW)
    CLOCK_REASON = FigureRow("{}", "% of 10 s", "gpu", bad=Bad.HIGH)
    GPU_TEMPERATURE = FigureRow("temperature", "C", "gpu", "NVML")
    LINK_SPEED = FigureRow("link speed of its best", "%", "gpu", "NVML PCIe link", bad=Bad.LOW)
    LINK_USE = FigureRow("link in use", "%", "gpu", "NVML PCIe counters")
    NVLINK = FigureRow("NVLink", "bytes/s", "gpu", "NVLink counters")
    PCIE = FigureRow("PCIe, both ways", "bytes/s", "gpu", "NVML PCIe counters")
    NETWORK = FigureRow("network", "bytes/s", "io", "interface counters", of=(Origin.NETWORK,))
    GPU_FAULT = FigureRow("card {}", group="gpu")
    GPU_SILENT = FigureRow("card {} silent", "s", "gpu", "NVML")
    GPU_MEMORY = FigureRow("memory of the card", "%", "gpu", "NVML", bad=Bad.HIGH)
    GPU_MEMORY_MOST = FigureRow("memory of the card, at most", "%", "gpu", "NVML", bad=Bad.HIGH)
    GPU_MEMORY_OTHERS = FigureRow("memory of others on it", "MiB", "gpu", "NVML")
    GPU_MEMORY_GROWTH = FigureRow("growth of the job's memory", "bytes/s", "gpu", "NVML")
    GPU_MEMORY_GROWN = FigureRow("grown", "MiB in 45 s", "gpu", "NVML")
    TENSORS_GROWTH = FigureRow("growth of what is held for tensors", "bytes/s", "hook", "hook")
    ALLOCATOR_RETRIES = FigureRow("allocator retries", "in {} s", "hook", "hook")
    ALLOCATOR_OOMS = FigureRow("out of memory", "in {} s", "hook", "hook")
    ALLOCATOR_SPLIT = FigureRow("free in pieces of the cache", "MiB", "hook", "hook")

    # Memory
    MEMORY_GROWTH = FigureRow("memory growth", "bytes/s", "memory")
    RSS_GROWTH = FigureRow(
        "growth of its processes", "bytes/s", "memory", "/proc/PID/stat", of=(Origin.PROC,)
    )
    MINOR_FAULTS = FigureRow(
        "the workers touch anew", "pages/s", "memory", "/proc/PID/stat", of=(Origin.PROC,)
    )
    GROWN = FigureRow("grown", "MiB in 45 s", "memory")
    MEMORY_USED = FigureRow(
        "used of the limit", "%", "memory", series=attrgetter("memory_bytes"), bad=Bad.HIGH
    )
    IN_SWAP = FigureRow("in swap", "MiB", "memory")
    REFAULTED = FigureRow("refaulted", "bytes/s", "memory", "memory.stat")
    MAJOR_FAULTS = FigureRow("major faults", "1/s", "memory", "memory.stat")
    MEMORY_STALLS = FigureRow("stalled for memory", "%", "memory", "PSI", bad=Bad.HIGH)
    SHM_USED = FigureRow(
        "used of it",
        "%",
        "memory",
        "statvfs",
        of=(Origin.FILES,),
        series=attrgetter("shm_ratio"),
        top=1.0,
        bad=Bad.HIGH,
    )
    SHM_GROWTH = FigureRow("largest growth in a second", "MiB", "memory", "statvfs", of=(Origin.FILES,))

    # Other limits
    LIMIT_USED = FigureRow(
        "{}", "% of the limit", "cpu", source="/proc, statvfs", of=(Origin.PROC,), bad=Bad.HIGH
    )
    LIMIT_GROWTH = FigureRow("growth of {}", "1/s", "cpu", source="/proc, statvfs", of=(Origin.PROC,))
    DESCRIPTOR_KINDS = FigureRow("most of them", "", "cpu", source="/proc/PID/fd", of=(Origin.PROC,))

    # The hook
    HOST_DATA_WAIT = FigureRow("data wait of the host", "%", "hook", "hook", bad=Bad.HIGH)
    HOST_IN_MODEL = FigureRow("host in the model", "%", "hook", "hook")
    HOST_IN_EVALUATION = FigureRow("in evaluation", "%", "hook", "hook")
    LAST_STEP = FigureRow("last step", "s ago", "hook", "hook")
    STEPS = FigureRow("steps", group="hook", source="hook")
    STEPS_GO_ON = FigureRow("steps go on", "steps/s", "hook", "hook")
    LATE_RANK = FigureRow("late rank", "ms", "hook", "hook")
    LATE_RANK_HOST = FigureRow("{}, data and forward", "ms", "hook", "hook")
    OTHERS_HOST = FigureRow("the others", "ms", "hook", "hook")

    # Life of the job
    RANK_AGE = FigureRow("age of the rank", "s", "cpu", "process start")
    YOUNGEST_RANK_AGE = FigureRow("age of the ranks", "s", "cpu", "process start")
    LAUNCHER_AGE = FigureRow("age of the launcher", "s", "cpu", "process start")
    RESTARTS = FigureRow("restarts", group="cpu", source="start environment")
    RANK_FAILED = FigureRow("{}", "s ago", "cpu", "exit status")
    RANKS_ALIVE = FigureRow("ranks alive", group="cpu", source="/proc")
    LAST_WORDS = FigureRow("the log ends with", of=(Origin.LOG,))
    RANK_WRITES = FigureRow("writes", "bytes/s", "io", "/proc io")
    WAIT_UNCHANGED = FigureRow("wait unchanged", "s", "cpu", "kernel wait")
    BEFORE_THE_END = FigureRow("verdict before the end", group="cpu", source="tpmon")

    # Hangs
    THREAD_STANDS = FigureRow("{}", source="py-spy and /proc", of=_BY_LOOKS)
    PROCESS_STANDS = FigureRow("{}", "s", "cpu", "kernel wait")
    DEAD_PROCESS = FigureRow("dead process {}", source="/proc stat", of=(Origin.PROC,))
    NOTHING_MOVED = FigureRow("nothing moved", "s", "cpu", "schedstat and stacks", of=_BY_LOOKS)
    LOOKS_AT_THREADS = FigureRow("looks at all threads", source="py-spy, without a stop", of=(Origin.STACKS,))
    LOG_WRITE = FigureRow("last log write", "s ago", source="log file", of=(Origin.LOG,))
    CONNECTION_DATA = FigureRow("last data on connections", "s ago", source="TCP_INFO", of=(Origin.NETWORK,))
    FILE_WRITE = FigureRow("last write of an open file", "s ago", source="open files", of=(Origin.FILES,))
    WORKER_START = FigureRow("youngest worker started", "s ago", source="/proc stat", of=(Origin.PROC,))
    COLLECTIVE = FigureRow("{}", of=(Origin.RECORD,))
    COLLECTIVE_LIMIT = FigureRow("time limit of its collectives", of=(Origin.RECORD,))
    NCCL_RAS = FigureRow("NCCL RAS", source="NCCL", of=(Origin.RECORD,))
    DUMP_WAITS = FigureRow("waits", source=_LOOKS, of=_BY_LOOKS)
    DUMP_LOOKS = FigureRow("looks at each process", source=_LOOKS, of=_BY_LOOKS)
    DUMP_MAY_END = FigureRow("it may end by itself", source=_LOOKS, of=_BY_LOOKS)


HISTORIES = MappingProxyType({one.label: one.history for one in Figure if one.history is not None})
"""By the name of the evidence that they are drawn beside."""
BAD_SIDES = MappingProxyType({one.label: one.bad for one in Figure})
"""By the name of the evidence, for the colour of its bar."""
