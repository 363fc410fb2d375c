"""The results of single commands: ``doctor``, ``diagnose``, ``bundle`` and the actions of the screen."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal, get_args

from tpmon.model.dump import Dump, DumpState, ShownFrame, StackGroup
from tpmon.model.frame import Event, Frame, Pulse
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known
from tpmon.model.results.sample import HotSample, SampleState
from tpmon.model.units import count_of, format_bytes

if TYPE_CHECKING:  # what is watched now does without it
    from tpmon.model.results.replay import Playback

DOCTOR_SCHEMA = "tpmon.doctor/1"
_OfKernel = Literal["py-spy", "yama", "capability", "container", "hidepid", "seccomp", "lsm", "perf"]
_OfMachine = Literal[_OfKernel, "kernel-log", "nvml", "counters", "clipboard"]
_OfProcess = Literal["stat", "io", "smaps_rollup", "environ", "fd", "wchan", "syscall", "memory"]
CheckName = Literal[_OfMachine, _OfProcess, "stacks", "cgroup", "cards", "ras", "place"]
"""The lines of ``tpmon doctor``: first those of the machine, from "stat" on those of a job."""
CHECK_NAMES: tuple[CheckName, ...] = get_args(CheckName)
NOT_PERMITTED = "not permitted"
_POINTER = re.compile(rf" \(doctor: (?:{'|'.join(CHECK_NAMES)})\)")


class Access(str, Enum):
    """Say whether a source may be read."""

    ALLOWED = "allowed"
    DENIED = "denied"
    ABSENT = "absent"
    """It is not there, so nothing forbids it: no driver, no card, a program that is not installed."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """Say of one source whether it may be read, why, and the one command or flag that would change it.

    ``needed`` marks what the verdict or the stacks cannot do without. ``fix`` does not apply where nothing
    can or has to be done.
    """

    name: str
    access: Access
    needed: bool
    why: str
    fix: Applicable[str]


@dataclass(frozen=True, slots=True)
class JobCheckup:
    """Hold what may be read of the processes of a job; ``remark`` says how the asked PID was understood."""

    pid: int
    name: str
    user: str
    pids: tuple[int, ...]
    remark: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Checkup:
    """Hold what ``tpmon doctor`` found: of this machine, and of each job."""

    schema: str
    taken: datetime
    host: str
    user: str
    machine: tuple[Check, ...]
    jobs: tuple[JobCheckup, ...]


def is_obstacle(check: Check) -> bool:
    """Tell whether something that tpmon needs may not be read."""
    return check.needed and check.access in (Access.DENIED, Access.ABSENT)


def list_obstacles(checkup: Checkup) -> tuple[Check, ...]:
    """Return what is needed and may not be read, each once by its name and reason."""
    found: dict[tuple[str, str], Check] = {}
    for check in (*(one for job in checkup.jobs for one in job.checks), *checkup.machine):
        if is_obstacle(check):
            found.setdefault((check.name, check.why), check)
    return tuple(found.values())


def point_to(reason: str, check: CheckName) -> str:
    """End a reason with the line of ``tpmon doctor`` that says why, and what would change it."""
    return f"{reason} (doctor: {check})"


def drop_pointers(reason: str) -> str:
    """Take the pointers to the doctor out of a reason that the doctor itself shows."""
    return _POINTER.sub("", reason)


def say_refusal(error: OSError, check: CheckName) -> str:
    """Say in lower case why something was not read; who was not permitted is sent to a line of the doctor."""
    if isinstance(error, PermissionError):
        return point_to(NOT_PERMITTED, check)
    return (error.strerror or str(error) or "refused").lower()


@dataclass(frozen=True, slots=True)
class Update:
    """Hand one second to a sink: the Frame and the thin history up to it, oldest first.

    Of a recording ``events`` are those up to this Frame, as many as a screen keeps; those of a job that is
    watched are in its Frames, one after the other.
    """

    frame: Frame
    pulses: tuple[Pulse, ...]
    playback: Applicable[Playback] = NOT_APPLICABLE
    events: Applicable[tuple[Event, ...]] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class GroupStack:
    """Hold the stack of a group as shown, outermost first; ``mark`` stays the same while a dump grows."""

    mark: int
    lines: tuple[ShownFrame, ...]


@dataclass(frozen=True, slots=True)
class TreeLine:
    """Hold one line of stacks that are merged where they begin alike.

    ``parent`` is the mark of the line that called it. ``depth`` counts the places above at which stacks part,
    ``threads`` pass this line and those of ``ends`` go no further. ``shown`` does not apply to threads
    without frames.
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

    The fold leaves out a look that is only partly read, unless it is the first. ``stacks`` belong to its
    groups, one each; ``tree`` merges them. ``awaits_records``: what the job recorded of its collectives comes
    later.
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


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Hold processes of one program whose rank has ended; they live on and keep what they hold."""

    pids: tuple[int, ...]
    user: str
    script: str
    """The program of the rank, with its first arguments, secrets blanked."""
    workers: bool
    """Whether all are loader workers; else multiprocessing started them."""
    age_s: float
    """Of the oldest."""
    rss_bytes: int
    """Resident memory; pages that they share count more than once."""
    cards: Known[tuple[int, ...]]
    """Numbers of the device files of cards that they hold open."""

    @property
    def name(self) -> str:
        """Say how many there are of what: "2 loader workers"."""
        nouns = ("loader worker", "loader workers") if self.workers else ("child process", "child processes")
        return count_of(len(self.pids), *nouns)

    @property
    def holds(self) -> str:
        """Say what they keep from others."""
        cards = self.cards if is_known(self.cards) else ()
        names = f"{'cards' if len(cards) > 1 else 'card'} {', '.join(map(str, cards))}"
        return f"{format_bytes(self.rss_bytes)} of memory" + (f" and {names}" if cards else "")

    @property
    def end(self) -> str:
        """Return the command that ends them."""
        pids = " ".join(map(str, self.pids))
        return f"kill {pids}; sleep 5; kill -9 {pids}  # -9 for those that stay"


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
    left_over: tuple[LeftOver, ...] = ()
    """What ended ranks have left behind."""
