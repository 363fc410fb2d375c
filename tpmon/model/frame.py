"""The Frame of one second (its fields are the keys of docs/json.md), and the Window of the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import Enum

from tpmon.model.dump import DumpRound
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import Driver, GpuSample
from tpmon.model.hook import HookSample, StepPace
from tpmon.model.host import (
    CpuSample,
    FileWrite,
    LimitSample,
    LoaderSample,
    LogPace,
    MemorySample,
    NetworkSample,
    OutputSample,
    SocketSample,
)
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why, is_known
from tpmon.model.process import MainThreadSample, Outcome, ProcessEnd, ProcessSample, RankRow
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.stacks import StackSlice
from tpmon.model.units import format_seconds
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

    ``ended`` says how an ended job ended ("exit 0", "SIGKILL; OOM killer"), ``outcome`` whether that was
    well; while the job lives and its last rank is gone, that of the ranks.
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
    signal: Applicable[str] = NOT_APPLICABLE
    """The signal that ended it, or the process that failed first."""


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
    unlisted_gpus: Applicable[tuple[str, ...]] = NOT_APPLICABLE
    """Device files of cards that the job holds open and NVML does not list; absent where there is none."""
    limits: Applicable[tuple[LimitSample, ...]] = NOT_APPLICABLE
    """How near the job is to limits besides memory: of descriptors those of the fullest processes."""
    pace: Applicable[LogPace] = NOT_APPLICABLE
    """How the job's steps go by its log; not in files of before it was read."""


def awaits_sources(frame: Frame) -> bool:
    """Tell whether something that can be read here has not answered so far: stacks, or the cards."""
    stacks = is_known(frame.stacks) and not is_known(frame.ages_s.stacks)
    return stacks or (isinstance(frame.gpus, Missing) and frame.gpus.why is Why.PENDING)


FRAME_SPAN_S = 60.0
PULSE_SPAN_S = 600.0
NO_STEPS = Missing("no hook in the training process", Why.ABSENT)
NO_PACE = Missing("no pace of a log was read", Why.ABSENT)


def fresh_hz(pace: Applicable[LogPace]) -> Known[float]:
    """Return the rate of a log's pace; missing for one that is old."""
    if not is_known(pace):
        return pace if isinstance(pace, Missing) else NO_PACE
    return Missing(f"the log told it {format_seconds(pace.age_s)} ago") if pace.is_old else pace.rate_hz


@dataclass(frozen=True, slots=True)
class Pulse:
    """Hold the figures of one Frame that a history line draws."""

    taken_ns: int
    used_cores: Known[float]
    runnable: Known[float]
    run_delay_ratio: Known[float]
    memory_bytes: Known[int]
    shm_ratio: Known[float]
    device_read_bytes_s: Known[float]
    ready_batches: Known[float]
    empty_ratio: Known[float]
    """Of the loader queue that was found empty most often."""
    gpu_pct: tuple[Known[float], ...]
    """Per card of the Frame, in its order."""
    step_ms: Known[float] = NO_STEPS
    """The longest step that ended since the Frame before, or the one that goes on."""
    log_hz: Known[float] = NO_PACE
    """How many steps a second the log tells, or what else it counts; missing where that is old."""


def pulse_of(frame: Frame) -> Pulse:
    """Reduce a Frame to its Pulse."""
    shm = frame.memory.shm
    ready = [sample.ready_batches for sample in frame.loader if is_known(sample.ready_batches)]
    empty = [sample.empty_ratio for sample in frame.loader if is_known(sample.empty_ratio)]
    cards: tuple[GpuSample, ...] = frame.gpus if is_known(frame.gpus) else ()
    reads = [p.device_read_bytes_s for p in frame.processes if is_known(p.device_read_bytes_s)]
    used = frame.memory.used_bytes
    return Pulse(
        taken_ns=frame.taken_ns,
        used_cores=frame.cpu.used_cores,
        runnable=frame.cpu.runnable,
        run_delay_ratio=frame.cpu.run_delay_ratio,
        memory_bytes=used if is_known(used) else frame.memory.rss_bytes,
        shm_ratio=shm.used_bytes / shm.total_bytes
        if is_known(shm) and shm.total_bytes
        else Missing("no /dev/shm"),
        device_read_bytes_s=sum(reads) if reads else Missing("no process shows what it reads"),
        ready_batches=min(ready) if ready else Missing("no batch seen in a loader pipe"),
        empty_ratio=max(empty) if empty else Missing("no loader queue seen"),
        gpu_pct=tuple(card.sm_pct for card in cards),
        step_ms=frame.steps.slowest_ms if is_known(frame.steps) else frame.steps,
        log_hz=fresh_hz(frame.pace),
    )


class Window:
    """Hold Frames for a minute, Pulses for ten. Owned by one thread; views are tuples."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._pulses: deque[Pulse] = deque()

    def append(self, frame: Frame) -> None:
        """Add a Frame and drop what is older than the spans, by the clock of the Frames."""
        self._frames.append(frame)
        self._pulses.append(pulse_of(frame))
        while frame.taken_ns - self._frames[0].taken_ns > FRAME_SPAN_S * 1e9:
            self._frames.popleft()
        while frame.taken_ns - self._pulses[0].taken_ns > PULSE_SPAN_S * 1e9:
            self._pulses.popleft()

    def __iter__(self) -> Iterator[Frame]:
        """Yield the full Frames of the last minute, oldest first: those that the judge sees."""
        return iter(self._frames)

    def __len__(self) -> int:
        """Count the full Frames of the last minute."""
        return len(self._frames)

    def last(self) -> Frame:
        """Return the newest Frame; IndexError when no Frame was appended yet."""
        return self._frames[-1]

    def pulses(self) -> tuple[Pulse, ...]:
        """Return the thin history, oldest first."""
        return tuple(self._pulses)

    def values(self, read: Callable[[Pulse], Known[float]]) -> tuple[Known[float], ...]:
        """Return one figure of every Pulse, oldest first."""
        return tuple(read(pulse) for pulse in self._pulses)
