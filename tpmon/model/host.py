"""Readings of the job as a whole: CPU budget and demand, memory, loader queues, output, network, limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why, is_known, known_or
from tpmon.model.process import Role

LOOPBACK = "lo"
"""The interface between two addresses of one machine, whichever they are."""


class PoolLibrary(str, Enum):
    """Name a library that runs a thread pool, each with its family and its words."""

    family: str
    words: str

    def __new__(cls, value: str, family: str, of: str = "") -> PoolLibrary:  # noqa: PYI034  # Self is of 3.11
        """Make a library, which its value alone names in JSON."""
        one = str.__new__(cls, value)
        one._value_, one.family, one.words = value, family, f"{family} ({of})" if of else family
        return one

    GOMP = "libgomp", "OpenMP", "libgomp: torch"
    IOMP = "libiomp5", "OpenMP", "libiomp5: torch, MKL"
    MKL = "mkl", "MKL"
    OPENBLAS = "openblas", "OpenBLAS", "numpy"
    OPENCV = "opencv", "OpenCV", "cv2"
    NUMEXPR = "numexpr", "numexpr"
    TBB = "tbb", "TBB"
    TORCH = "torch", "torch"

    @staticmethod
    def name_all(libraries: Sequence[PoolLibrary]) -> str:
        """Say which library owns a pool, all candidates where several remain."""
        return " or ".join(one.words for one in libraries)


@dataclass(frozen=True, slots=True)
class Pool:
    """Name the thread pool with the largest demand of the job."""

    pid: int
    role: Role
    library: Known[str]
    threads: int
    runnable: float
    libraries: Applicable[tuple[PoolLibrary, ...]] = NOT_APPLICABLE
    """What ``library`` tells of."""


class BudgetBy(str, Enum):
    """Name what sets the CPU budget of a job."""

    AFFINITY = "affinity"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Name who else computes on this machine: processes of one user and one command together."""

    pid: int
    """The largest of them."""
    user: str
    command: str
    processes: int
    cores: float


@dataclass(frozen=True, slots=True)
class CpuSample:
    """Hold the job's CPU budget, use and demand.

    ``demand_ratio`` = runnable / budget. ``oversubscription`` = demand of multi-threaded pools (processes
    with at least two threads of demand >= 0.25) / budget; single-threaded loader workers beyond it cost
    nothing. ``run_delay_ratio`` = waiting / (running + waiting).
    """

    budget_cores: Known[float]
    budget_reason: str
    used_cores: Known[float]
    runnable: Known[float]
    waiting: Known[float]
    demand_ratio: Known[float]
    pool_runnable: Known[float]
    oversubscription: Known[float]
    run_delay_ratio: Known[float]
    throttled_ratio: Known[float]
    """Share of the quota periods of the interval in which the job was throttled."""
    throttled_s: Known[float]
    """Seconds throttled per second, over all CPUs."""
    pool: Applicable[Pool]
    psi_some_pct: Known[float]
    host_cores: int
    host_used_cores: Known[float]
    host_steal_pct: Known[float]
    host_load: Known[float]
    psi_of_host: Applicable[bool] = NOT_APPLICABLE
    """True where ``psi_some_pct`` is the host's, of /proc; absent where it is the control group's."""
    budget_by: Applicable[BudgetBy] = NOT_APPLICABLE
    """Which of the two ``budget_reason`` tells of; absent where neither was read."""
    tenants: Applicable[tuple[Tenant, ...]] = NOT_APPLICABLE
    """Who else uses CPUs, the largest first; absent while the job does not wait for them."""


@dataclass(frozen=True, slots=True)
class ShmSample:
    """Hold the fill of the target's own /dev/shm mount (statvfs: torch unlinks its files)."""

    path: str
    used_bytes: int
    total_bytes: int


SUMMED_ANON = "sum of anonymous RSS; pages that forked workers share count more than once"
"""The ``anon_source`` of a job without a control group of its own: pages of files are not in it."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Hold the job's memory: its control group where there is one, else the host.

    ``rss_bytes`` adds processes and counts shared pages more than once. ``anon_growth_bytes_s`` is the
    Theil-Sen slope of ``anon_bytes`` over the last minute.
    """

    rss_bytes: Known[int]
    anon_bytes: Known[int]
    anon_source: str
    anon_growth_bytes_s: Known[float]
    used_bytes: Known[int]
    """Of the control group, less the page cache: usage - active_file - inactive_file."""
    limit_bytes: Applicable[int]
    limit_source: str
    oom_kills: Known[int]
    refault_bytes_s: Known[float]
    major_faults_s: Known[float]
    psi_some_pct: Known[float]
    swap_bytes: Known[int]
    host_available_bytes: Known[int]
    host_total_bytes: Known[int]
    shm: Known[ShmSample]
    psi_of_host: Applicable[bool] = NOT_APPLICABLE
    """True where ``psi_some_pct`` is the host's, of /proc; absent where it is the control group's."""


@dataclass(frozen=True, slots=True)
class WorkerQueue:
    """Hold the bytes that wait in the index pipe of one worker: 0 means it has nothing to do."""

    worker: int
    pid: int
    pending_bytes: Known[int]


@dataclass(frozen=True, slots=True)
class LoaderSample:
    """Hold the queues of one loader of a rank, read from outside by FIONREAD.

    ``ready_batches`` = bytes in the data pipe / bytes of its first message. ``empty_ratio`` is the share of
    the looks of the last 10 s that found it empty.
    """

    rank: Applicable[int]
    pid: int
    loader: int
    """0 for the oldest loader of the rank that has workers, 1 for the next."""
    workers: int
    ready_batches: Known[float]
    ready_bytes: Known[int]
    empty_ratio: Known[float]
    looks: int
    queues: tuple[WorkerQueue, ...]
    births: int
    """Workers of this rank born in the last 60 s."""
    pin_thread: bool
    made: Applicable[int] = NOT_APPLICABLE
    """Workers that it was made with, by the queues that the rank holds; those that have ended count. Older
    recordings lack it."""


class PaceSource(str, Enum):
    """Name how a log tells a pace."""

    COUNTED = "counted"
    """Steps between two lines, over the time between they were written."""
    STATED = "stated"
    """The line itself states it."""


@dataclass(frozen=True, slots=True)
class LogPace:
    """Hold how the steps go by the lines of a log that count them; a hook knows that exactly."""

    pid: int
    fd: int
    """The process that writes the log, and its descriptor."""
    rank: Applicable[int]
    """Of the process; absent for that of a launcher, which is of all ranks."""
    rate_hz: float
    """``unit`` a second."""
    unit: str
    """What the line counts, in its own word: step, it, batch, sample ..."""
    source: PaceSource
    step: int
    total: Applicable[int]
    loss: Applicable[float]
    shape: str
    """The line, with "#" for its numbers."""
    age_s: float
    """How long ago the line was written with which the step last changed."""
    every_s: Known[float]
    """How far apart its last two lines were."""

    @property
    def is_old(self) -> bool:
        """Return whether no line has come for far longer than usual: then this is how it went."""
        return self.age_s > max(OLD_PACE_S, OLD_PACE_LINES * known_or(self.every_s, 0.0))


OLD_PACE_S = 30.0
OLD_PACE_LINES = 3.0
"""A pace is old after so many times the usual distance of its lines, and so long at least."""


def join_log_paces(output: Sequence[OutputSample]) -> Known[LogPace]:
    """Return the pace of the job: its first rank's that is not old, else that of what wrote last."""
    paces = [one.pace for one in output if is_known(one.pace)]
    if paces:
        return min(
            paces,
            key=lambda one: (one.is_old, one.age_s if one.is_old else 0, known_or(one.rank, -1), one.pid),
        )
    reasons = [one.pace for one in output if isinstance(one.pace, Missing)]
    return reasons[0] if reasons else NO_LOG


NO_LOG = Missing("the job writes its output to no regular file", Why.ABSENT)


@dataclass(frozen=True, slots=True)
class OutputSample:
    """Hold the tail of a regular file that a launcher or rank writes its output to."""

    pid: int
    fd: int
    path: str
    size_bytes: Known[int]
    last_write: Known[datetime]
    last_write_age_s: Known[float]
    lines: tuple[str, ...]
    """The last lines, escaped, secrets redacted; at most 3 from the last 4 KiB."""
    pace: Applicable[LogPace] = NOT_APPLICABLE
    """Not in files of before it was read."""


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Hold which file of those that the ranks have open for writing was written last, besides logs."""

    pid: int
    path: str
    last_write: datetime
    journal: bool = False
    """Whether any of them is written piece by piece: one opened for appending, or events of TensorBoard."""


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """Hold the rates of one network interface or InfiniBand port of this host."""

    interface: str
    kind: str
    """"nic" or "ib"."""
    used_by_job: Known[bool]
    receive_bytes_s: Known[float]
    send_bytes_s: Known[float]
    errors_s: Known[float]
    drops_s: Known[float]


@dataclass(frozen=True, slots=True)
class SocketSample:
    """Hold what TCP_INFO says of the job's established TCP connections."""

    connections: int
    last_send_s: Known[float]
    """Seconds since any of them last sent data."""
    last_receive_s: Known[float]
    retransmits: Known[int]
    unsent_bytes: Known[int]


class Resource(str, Enum):
    """Name what is used up."""

    DESCRIPTORS = "descriptors"
    THREADS = "threads"
    DISK = "disk"
    INODES = "inodes"


@dataclass(frozen=True, slots=True)
class DescriptorGroup:
    """Count the descriptors of one process that lead to the same kind of thing."""

    target: str
    """"socket", "pipe", the name of an anonymous inode, or the folder of files."""
    count: int


@dataclass(frozen=True, slots=True)
class LimitSample:
    """Hold how much of one limit is used; the unit is bytes of a disk, else a count."""

    resource: Resource
    used: int
    limit: int
    of: str
    """Whose limit it is: a user's, a control group, the mount point of a file system."""
    pid: Applicable[int] = NOT_APPLICABLE
    """The process with the descriptors."""
    groups: tuple[DescriptorGroup, ...] = ()
    """What most of the descriptors are, the most first; empty while few are open."""
