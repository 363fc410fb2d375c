"""Results of single commands that rooms hand to each other."""

from __future__ import annotations

from enum import Enum

from tpmon.model.dump import Dump, DumpState, ShownFrame, StackGroup
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known
from tpmon.model.sample import HotSample, SampleState
from tpmon.model.window import Pulse


@dataclass(frozen=True, slots=True)
class Update:
    """Hand one second to a sink: the Frame and the thin history up to it, oldest first."""

    frame: Frame
    pulses: tuple[Pulse, ...]


@dataclass(frozen=True, slots=True)
class GroupStack:
    """Hold the stack of one group of a dump as it is shown, outermost first.

    ``mark`` names the group: it stays the same while a dump grows and groups change their places.
    """

    mark: int
    lines: tuple[ShownFrame, ...]


@dataclass(frozen=True, slots=True)
class TreeLine:
    """Hold one line of stacks that are merged where they begin alike.

    ``parent`` is the mark of the line that called it, ``depth`` counts the places above at which
    stacks part, ``threads`` pass this line and those of ``ends`` go no further. ``shown`` does not
    apply to threads without frames.
    """

    mark: int
    parent: int
    depth: int
    shown: Applicable[ShownFrame]
    threads: int
    ends: tuple[StackGroup, ...]


@dataclass(frozen=True, slots=True)
class DumpUpdate:
    """Hand a dump to a sink as it grows: how far it is, and the fold of what has come so far.

    ``stacks`` belong to the groups of ``dump``, one each; ``tree`` merges them. The
    fold leaves out a look that is only partly read, unless it is the first. ``awaits_records``: what
    the job recorded of its collectives is being read, and comes with another update.
    """

    state: DumpState
    dump: Known[Dump]
    stacks: tuple[GroupStack, ...] = ()
    tree: tuple[TreeLine, ...] = ()
    awaits_records: bool = False


@dataclass(frozen=True, slots=True)
class SampleUpdate:
    """Hand samples to a sink as they come: how far it is, and the hot functions so far."""

    state: SampleState
    hot: Known[HotSample]


class JobState(str, Enum):
    """Say what can be seen of a job at one glance: no rate, so no word of whether it makes steps."""

    RUNNING = "running"
    STOPPED = "stopped"
    """Every rank is stopped: a signal, a debugger, or the freezer of its control group."""
    STARTING = "starting"
    """There is no rank yet."""
    LAUNCHER_GONE = "launcher gone"


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Hold one line of ``tpmon ps``."""

    pid: int
    user: str
    state: Known[JobState]
    script: str
    arguments: Known[str]
    """What stands behind the script in the command line of the first rank, secrets blanked, cut."""
    ranks: Known[int]
    workers: Known[int]
    gpus: Known[int]
    """Cards whose device files the job holds open."""
    uptime_s: float


JOBS_SCHEMA = "tpmon.jobs/1"


@dataclass(frozen=True, slots=True)
class JobList:
    """Hold what ``tpmon ps --json`` prints."""

    schema: str
    jobs: tuple[JobSummary, ...]
    unread: int
    """Python processes in none of these jobs that may not be read, so that they may be jobs too."""
    unanswered: int = 0
    """Further ones that did not answer in time or are too odd to be understood."""
    unanswered_why: tuple[str, ...] = ()
    """The reasons, each once, the first three."""
