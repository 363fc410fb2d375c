"""Readings of one process of the job: who it is, what it runs, what it waits for, what stops it."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.waits import Wait


@dataclass(frozen=True, slots=True)
class Freezer:
    """Name the control group that a person froze: the process's own, or one above it.

    ``directory`` holds ``freezer.state`` (``version`` 1) or ``cgroup.freeze`` (2); missing where a group
    froze them that is above what this container sees, and ``group`` is then the uppermost in view.
    """

    version: int
    group: str
    directory: Known[str]


@dataclass(frozen=True, slots=True)
class Tracer:
    """Name the process that holds another by ptrace; ``command`` is its command line, secrets hidden."""

    pid: int
    name: str
    command: Known[str]


WORKER_NAME = "pt_data_worker"
"""Name that a loader worker gives itself since torch 2.5 (torch/utils/data/_utils/worker.py)."""


class Role(str, Enum):
    """Name the part that a process plays in a training job."""

    LAUNCHER = "launcher"
    RANK = "rank"
    WORKER = "worker"
    COMPILE = "compile"
    HELPER = "helper"


class ThreadKind(str, Enum):
    """Name what a thread is for, told from its name (``notes`` in docs/metrics.md)."""

    MAIN = "main"
    """The one that runs the training loop: the first thread of the process, or ``LoopThread``."""
    PIN = "pin"
    AUTOGRAD = "autograd"
    COMM = "comm"
    POOL = "pool"
    OTHER = "other"
    UNREAD = "unread"
    """Not named yet: at most 1,000 names are read in one second."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Name one process for good: a PID alone is reused, a PID with its start time is not.

    ``start_ticks`` is field 22 of /proc/PID/stat, clock ticks since boot.
    """

    pid: int
    start_ticks: int

    def __hash__(self) -> int:
        """Return the PID: a thousand are hashed each second, and two of one PID hardly ever meet."""
        return self.pid


@dataclass(frozen=True, slots=True)
class EnvironmentSetting:
    """Carry one environment variable that the process was started with."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """Count the threads of one kind in one process, and their demand in runnable threads."""

    kind: ThreadKind
    count: int
    runnable: Known[float]


@dataclass(frozen=True, slots=True)
class LoopThread:
    """Name the thread in which a rank's training loop runs, where that is not its main thread."""

    tid: int
    name: str


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Hold one second of one process; rates are per second over the interval that ended at the sample.

    ``runnable`` is demand: the time-average number of threads that ran or waited for a CPU, (d exec + d
    run_delay)/dt summed over threads (/proc/PID/task/TID/schedstat), ``waiting`` its run_delay part.
    ``busy_threads`` counts threads whose own demand was at least 0.25.
    """

    pid: int
    start_ticks: int
    started: datetime
    parent: int
    role: Role
    rank: Applicable[int]
    local_rank: Applicable[int]
    worker: Applicable[int]
    rank_pid: Applicable[int]
    """PID of the rank that a worker or helper belongs to."""
    name: str
    label: str
    """What a person calls it: the script of a rank, the program of a helper."""
    state: str
    """Kernel state letter: R S D T t Z I. Where the first thread alone has ended, of one that lives."""
    cpu_pct: Known[float]
    threads: int
    runnable: Known[float]
    waiting: Known[float]
    busy_threads: Known[int]
    thread_groups: tuple[ThreadGroup, ...]
    switches_s: Known[float]
    """Times per second that any of its threads was put on a CPU (schedstat field 3)."""
    rss_bytes: int
    pss_bytes: Known[int]
    pss_age_s: Known[float]
    asked_read_bytes_s: Known[float]
    """rchar: what read(2) returned, page cache included; not recv(2), not mapped files."""
    asked_write_bytes_s: Known[float]
    read_calls_s: Known[float]
    """read(2) and its kin per second; with ``asked_read_bytes_s`` the mean size of a read."""
    device_read_bytes_s: Known[float]
    device_write_bytes_s: Known[float]
    minor_faults_s: Known[float]
    major_faults_s: Known[float]
    wchan: Known[str]
    syscall: Known[str]
    waits_for: Known[Wait]
    """What the main thread waits for, told from state, wchan and syscall."""
    waits_unchanged_s: Known[float]
    environment: Known[tuple[EnvironmentSetting, ...]]
    """Start-up values of the variables that change training speed; never the whole environment."""
    allowed_cpus: Known[str] = Missing("not read")
    """The CPUs on which its main thread may run, as the kernel writes them: "0-3,8"."""
    loop: Applicable[LoopThread] = NOT_APPLICABLE
    """Where the loop runs in another thread; then ``state``, the waits and the group MAIN are that one's."""
    frozen: Applicable[Freezer] = NOT_APPLICABLE
    """The control group whose freezer holds it; absent while none does."""
    tracer: Applicable[Tracer] = NOT_APPLICABLE
    """Who holds it in state t, a debugger; absent in any other state."""


class Outcome(str, Enum):
    """Say whether a process, or the whole job, ended as it should."""

    WELL = "well"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Nobody told its exit status."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """Hold how one member of the job ended: ``how`` in words, "exit 1", "SIGKILL; OOM killer (kernel log)".

    ``outcome`` is about it alone: a worker that its rank ends with SIGTERM has failed, too.
    """

    pid: int
    role: Role
    rank: Applicable[int]
    worker: Applicable[int]
    outcome: Outcome
    signal: Applicable[str]
    """The name of the signal that ended it, where one did."""
    how: str


@dataclass(frozen=True, slots=True)
class MainThreadSample:
    """Hold how often a rank's main thread was found in each state during one interval, of so many ``looks``.

    ``batch_wait`` is the poll of a loader queue; behind a pin thread the rank waits in ``lock`` instead.
    """

    pid: int
    rank: Applicable[int]
    looks: int
    running: int
    batch_wait: int
    io: int
    """In uninterruptible sleep, or in a wait for a disk, a network file system or a socket."""
    timed_lock: int
    """In a futex with a time-out: Python's interpreter lock waits like that."""
    lock: int
    """In a futex without one."""
    other: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """Hold the row of one rank in the rank table."""

    rank: Applicable[int]
    local_rank: Applicable[int]
    pid: int
    gpu: Applicable[int]
    """NVML index of the card that it works on."""
    where: Known[str]
    where_unchanged_s: Known[float]
    step: Known[int]
    step_age_s: Known[float]
    step_ms: Applicable[float] = NOT_APPLICABLE
    """Median time of its steps, by its hook."""
    step_own_ms: Applicable[float] = NOT_APPLICABLE
    """Data and forward of a step: what it does before it may wait for other ranks in its backward."""
