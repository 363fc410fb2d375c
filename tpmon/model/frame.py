"""The Frame: everything that was read of a job in one second, and nothing that was concluded.

Field names are the JSON keys of docs/json.md (a trailing underscore is dropped). Frames are
immutable, so the screen, the text reports, replay and every test read the same thing.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from tpmon.model.dump import DumpRound
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import NOT_YET, Driver, GpuSample
from tpmon.model.host import (
    CpuSample,
    FileWrite,
    LoaderSample,
    MemorySample,
    NetworkSample,
    OutputSample,
    SocketSample,
)
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.pace import HookSample, StepPace
from tpmon.model.process import MainThreadSample, Outcome, ProcessEnd, ProcessSample, RankRow
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.stacks import StackSlice
from tpmon.model.verdict import Finding

FRAME_SCHEMA = "tpmon.frame/1"


class TargetState(str, Enum):
    """Say whether the job still runs."""

    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Target:
    """Name the job: its root process, the PID that was asked for, and what is known of its size.

    ``ended`` says how an ended job ended ("exit 0", "SIGKILL; OOM killer", ...), ``outcome`` whether
    that was well; while the job lives and its last rank is gone, ``outcome`` is that of the ranks.
    """

    pid: int
    asked_pid: int
    start: datetime
    script: str
    user: str
    host: str
    state: TargetState
    world_size: Applicable[int]
    local_ranks: int
    local_workers: int
    unread: int
    """Living processes of the job that this Frame has no row for; sums over rows are then too small."""
    torch_version: Known[str]
    python_version: Known[str]
    ended: Applicable[str]
    outcome: Applicable[Outcome]
    rank_source: str
    """How ranks were told: "environment", "parentage and threads", ..."""
    local_stacks: Applicable[int] = NOT_APPLICABLE
    """Processes whose stacks tell of the job: its ranks, loader workers and helpers in Python."""


@dataclass(frozen=True, slots=True)
class GroupTexts:
    """Say for each group of readings where it came from, in a few words."""

    cpu: str
    threads: str
    io: str
    memory: str
    gpu: str
    stacks: str
    hook: str


@dataclass(frozen=True, slots=True)
class Ages:
    """Say for each group of readings how old it was when the Frame was closed."""

    cpu: Known[float]
    threads: Known[float]
    io: Known[float]
    memory: Known[float]
    gpu: Known[float]
    stacks: Known[float]
    hook: Known[float]


class EventKind(str, Enum):
    """Name what an event is about."""

    ATTACH = "attach"
    PROCESS = "process"
    GPU = "gpu"
    MEMORY = "memory"
    OUTPUT = "output"
    COMPILE = "compile"
    PROBE = "probe"
    VERDICT = "verdict"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Event:
    """Hold one thing that happened, with its wall-clock time."""

    time: datetime
    kind: EventKind
    text: str


@dataclass(frozen=True, slots=True)
class OwnCost:
    """Hold what tpmon itself costs: its processes' CPU and memory, and the pauses it caused."""

    cpu_pct: Known[float]
    rss_bytes: Known[int]
    children_rss_bytes: int
    target_paused_ms: float
    descriptors: Known[int]
    tick_ms: float
    """CPU milliseconds that collecting this Frame took."""
    shedding: bool
    """True while thread rates are halved because tpmon is over its budget."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Hold all readings of one second. See docs/json.md for each key."""

    schema: str
    taken: datetime
    taken_ns: int
    """CLOCK_MONOTONIC at the close of the Frame, nanoseconds."""
    interval_s: float
    target: Target
    facts: str
    """One line of facts: what the screen says first while there is no verdict."""
    ages_s: Ages
    sources: GroupTexts
    processes: tuple[ProcessSample, ...]
    ranks: tuple[RankRow, ...]
    ends: Applicable[tuple[ProcessEnd, ...]]
    """Launchers, ranks, workers and compile workers that ended since the last Frame."""
    cpu: CpuSample
    memory: MemorySample
    loader: tuple[LoaderSample, ...]
    output: tuple[OutputSample, ...]
    network: Known[tuple[NetworkSample, ...]]
    sockets: Known[SocketSample]
    driver: Known[Driver]
    gpus: Known[tuple[GpuSample, ...]]
    stacks: Known[tuple[StackSlice, ...]]
    """Slices of stack samples that ended since the last Frame."""
    rounds: Applicable[tuple[DumpRound, ...]]
    """Looks of a dump that ended since the last Frame."""
    collectives: Applicable[CollectivesReading]
    """What the job recorded of its collectives, where it was read since the last Frame."""
    main_threads: Known[tuple[MainThreadSample, ...]]
    """How the ranks' main threads spent the interval, by frequent looks at state and system call."""
    verdict: Known[Finding]
    """What holds the run, judged from the Frames up to this one."""
    notes: tuple[str, ...]
    """Debug taxes and other remarks that are true of the run."""
    hook: Known[tuple[HookSample, ...]]
    """The hooks of the ranks that have one."""
    steps: Known[StepPace]
    """How the job's steps go, by those hooks; without one they are not known."""
    events: tuple[Event, ...]
    """Events since the last Frame; in the first Frame, the attach event."""
    self_: OwnCost
    written: Applicable[FileWrite] = NOT_APPLICABLE
    """Which open file of the ranks was written last, on local file systems."""


def awaits_sources(frame: Frame) -> bool:
    """Tell whether something that can be read here has not answered so far: stacks, or the cards."""
    stacks = is_known(frame.stacks) and not is_known(frame.ages_s.stacks)
    return stacks or (isinstance(frame.gpus, Missing) and frame.gpus.reason == NOT_YET)
