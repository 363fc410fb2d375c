"""Samples of stacks over some seconds: what was asked, what was read, and the hot functions in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from enum import Enum

from tpmon.model.dump import DumpError
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.process import Role
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.units import count_of

SAMPLE_SCHEMA = "tpmon.sample/1"
SECONDS = 10.0
RATE_HZ = 20
MOST_AT_ONCE = 4
"""py-spy processes that run at the same time; with more processes each is sampled in its turn."""
START_MS = 15.0
SAMPLE_MS = 0.6
"""What a slice costs: so much to find the interpreter, and so much for each look (docs/overhead.md).
What tpmon itself uses meanwhile is too little to measure beside that."""


class CountedFunction(str, Enum):
    """Name the samples that count."""

    ALL = "all"
    RUNNING = "running"
    """Those in which py-spy found the thread runnable (state R), on a CPU or waiting for one."""
    GIL = "gil"
    """Those in which the thread held Python's interpreter lock."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Ask for samples of ``pids``, of ranks with their workers; without any, of the lowest rank here."""

    pids: tuple[int, ...] = ()
    everyone: bool = False
    seconds: float = SECONDS
    rate_hz: int = RATE_HZ
    counted: CountedFunction = CountedFunction.ALL


@dataclass(frozen=True, slots=True)
class SampledProcess:
    """Hold what was sampled of one process so far.

    ``looks`` counts how often py-spy looked at it, ``lost`` those without a stack, ``behind_s`` by how much
    it was late at worst. ``cpu_s`` and ``delay_s`` are of the main thread, on a CPU and runnable without one,
    over ``watched_s``.
    """

    pid: int
    start_ticks: int
    role: Role
    rank: Applicable[int]
    worker: Applicable[int]
    rank_pid: Applicable[int]
    label: str
    seconds: float
    looks: int
    lost: int
    behind_s: float
    watched_s: float
    cpu_s: Known[float]
    delay_s: Known[float]
    stacks: tuple[StackCount, ...]
    loop_tid: Applicable[int] = NOT_APPLICABLE
    """The thread among them that runs the training loop, where that is not the main one."""


@dataclass(frozen=True, slots=True)
class SampleReading:
    """Hold all that was sampled so far, of ``asked`` processes that were chosen; ``ended`` are gone."""

    request: SampleRequest
    host: str
    taken: datetime
    elapsed_s: float
    asked: int
    ended: int
    processes: tuple[SampledProcess, ...]
    errors: tuple[DumpError, ...]
    spy_cpu_ms: float


@dataclass(frozen=True, slots=True)
class SampleState:
    """Say how far the sampling is. ``refused`` says why a request was not taken or failed, "" where not."""

    request: SampleRequest
    reading: Known[SampleReading]
    running: bool
    refused: str


@dataclass(frozen=True, slots=True)
class HotFunction:
    """Hold one function of a group of threads; percentages are of the group's looks.

    ``line`` is the line of it that was seen most often, ``package`` "" for the user's own code.
    ``self_samples`` had it innermost, ``total_samples`` anywhere, ``waiting_samples`` with innermost frames
    that are known to wait.
    """

    function: str
    file: str
    line: int
    package: str
    self_samples: int
    total_samples: int
    waiting_samples: int
    self_pct: float
    total_pct: float
    waiting_pct: float


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """Say in how many of the samples of main threads the ranks were in one phase of the step."""

    phase: str
    samples: int
    pct: float


@dataclass(frozen=True, slots=True)
class HotGroup:
    """Hold the threads of one part of the job: main threads, or the other Python threads, of one role.

    ``looks`` is how often one of its threads was seen, ``samples`` in how many of these it counted.
    ``waiting_pct`` of the looks found it in frames that wait. ``cpu_pct`` and ``delay_pct`` are of one core,
    the mean of its main threads: on a CPU, and runnable without one. ``phases`` are said of ranks.
    """

    role: Role
    main: bool
    ranks: tuple[int, ...]
    processes: int
    looks: int
    samples: int
    waiting_pct: float
    cpu_pct: Applicable[float]
    delay_pct: Applicable[float]
    phases: tuple[PhaseShare, ...]
    functions: tuple[HotFunction, ...]
    more_functions: int


@dataclass(frozen=True, slots=True)
class HotSample:
    """Hold the hot functions of a job over some seconds: what ``tpmon sample --json`` prints."""

    schema: str
    host: str
    taken: datetime
    pid: int
    script: str
    seconds: float
    asked_seconds: float
    rate_hz: int
    counted: CountedFunction
    asked_processes: int
    sampled_processes: int
    ended_processes: int
    groups: tuple[HotGroup, ...]
    lost_samples: int
    behind_s: float
    errors: tuple[DumpError, ...]
    paused_ms: float
    spy_cpu_ms: float


@dataclass(frozen=True, slots=True)
class FoldedStack:
    """Say how often threads of one part of the job were seen in one and the same stack, outermost first."""

    role: Role
    main: bool
    frames: tuple[StackFrame, ...]
    samples: int


def slice_seconds(processes: int) -> int:
    """Return the length of one slice in whole seconds: short ones where processes take turns."""
    return 2 if processes <= MOST_AT_ONCE else 1


def say_sampling_price(processes: int, seconds: float, rate_hz: int) -> str:
    """Say what sampling costs while it lasts, in % of one core, from what slices were measured to cost."""
    at_once = min(processes, MOST_AT_ONCE)
    slice_s = slice_seconds(processes)
    slice_ms = START_MS + SAMPLE_MS * rate_hz * slice_s
    cpu_pct = at_once * math.ceil(seconds / slice_s) * slice_ms / (seconds * 10)
    turns = f", {at_once} at a time" if at_once < processes else ""
    what = f"samples {count_of(processes, 'process', 'processes')}{turns} at {rate_hz} Hz for {seconds:g} s"
    return f"{what}: about {max(cpu_pct, 1):.0f} % of a core, the job is never stopped"


def pick_functions(functions: Sequence[HotFunction], most: int) -> tuple[HotFunction, ...]:
    """Pick at most ``most`` to show of ``functions``, which are ordered by self, and keep their order.

    Two thirds are the first ones but for library functions that only call others, the rest the user's own
    with the largest totals, which would never be among the first.
    """
    order = [at for at, one in enumerate(functions) if one.self_samples or not one.package]
    users = [at for at in order if not functions[at].package]
    users.sort(key=lambda at: -functions[at].total_samples)
    chosen = set(list(dict.fromkeys((*order[: most - most // 3], *users, *order)))[:most])
    return tuple(functions[at] for at in order if at in chosen)
