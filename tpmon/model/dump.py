"""A dump: where every thread of a job is right now, as it was read, and folded for a person.

``DumpRound`` is what one look read; ``Dump`` is the fold of rounds of one or several hosts, and the JSON of
``tpmon dump --json``.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.process import Freezer, Role, ThreadKind
from tpmon.model.results.collectives import Collectives
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding
from tpmon.model.waits import Wait, WaitReason

DUMP_SCHEMA = "tpmon.dump/1"


class WaitKind(str, Enum):
    """Name what kind of thing a descriptor leads to."""

    FILE = "file"
    PIPE = "pipe"
    SOCKET = "socket"
    UNIX = "unix socket"
    LOCK = "lock"
    THREAD = "thread"
    """The end of another thread."""
    SEVERAL = "several"
    """More than one descriptor, of different kinds."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class OtherEnd:
    """Name who can end a wait: who has the other end open ("rank 0", else the kernel's name) or the lock."""

    pid: int
    tid: Applicable[int]
    name: str


@dataclass(frozen=True, slots=True)
class WaitTarget:
    """Name what a blocked call waits on: ``name`` is a path or the kernel's name of the thing.

    ``fd`` does not apply to a call that takes a path or waits on several (``fds``). ``mount`` and
    ``file_system`` are said of files, ``peer`` of sockets, ``others`` of pipes, sockets and locks: empty
    where nobody has the other end.
    """

    call: str
    fd: Applicable[int]
    kind: WaitKind
    name: str
    mount: Applicable[str]
    file_system: Applicable[str]
    peer: Applicable[str]
    fds: Applicable[tuple[int, ...]] = NOT_APPLICABLE
    others: Applicable[tuple[OtherEnd, ...]] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class Local:
    """Hold one variable of a frame; ``value`` is cut, and hidden where it may be a secret."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FrameLocals:
    """Hold the variables of one frame; ``frame`` is its place in the stack, 0 the outermost."""

    frame: int
    variables: tuple[Local, ...]


@dataclass(frozen=True, slots=True)
class ThreadLook:
    """Hold one thread in one look. ``frames`` are outermost first; a native thread has none.

    Since it began ``run_ns`` were on a CPU, ``delay_ns`` runnable without one (/proc/PID/task/TID/schedstat),
    and ``kernel_ns`` in the kernel, in clock ticks (stat beside it); it was put on a CPU ``slices`` times.
    ``holds_gil``: the interpreter's lock.
    """

    tid: Known[int]
    name: str
    kind: ThreadKind
    state: str
    wchan: Known[str]
    call: Known[str]
    waits_for: Known[Wait]
    waits_on: Applicable[WaitTarget]
    run_ns: Known[int]
    delay_ns: Known[int]
    frames: Applicable[tuple[StackFrame, ...]]
    locals: Applicable[tuple[FrameLocals, ...]] = NOT_APPLICABLE
    holds_gil: Applicable[bool] = NOT_APPLICABLE
    kernel_ns: Applicable[int] = NOT_APPLICABLE
    slices: Applicable[int] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class ProcessToll:
    """Count what a process used since it began: CPU of all its threads, page faults, bytes it read and wrote.

    From /proc/PID/stat (clock ticks) and /proc/PID/io (rchar, wchar).
    """

    cpu_ns: int
    faults: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """Hold one process in one look. ``idle`` counts native threads that are not listed."""

    pid: int
    start_ticks: int
    role: Role
    rank: Applicable[int]
    worker: Applicable[int]
    rank_pid: Applicable[int]
    label: str
    idle: int
    threads: tuple[ThreadLook, ...]
    toll: Applicable[ProcessToll] = NOT_APPLICABLE
    frozen: Applicable[Freezer] = NOT_APPLICABLE
    """The control group whose freezer holds it; absent while none does."""


class ErrorKind(str, Enum):
    """Name why the stacks of a process are not in a dump."""

    DENIED = "denied"
    GONE = "gone"
    TRACED = "traced"
    BUSY = "busy"
    LATE = "late"
    NO_SPY = "no-py-spy"
    UNKNOWN_PYTHON = "unknown-python"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DumpError:
    """Say of one process why its stacks could not be read."""

    host: str
    pid: int
    role: Role
    rank: Applicable[int]
    worker: Applicable[int]
    kind: ErrorKind
    reason: str


@dataclass(frozen=True, slots=True)
class DeadChild:
    """Name a process that a process of the job started, that died, and whose end nobody asked about."""

    pid: int
    parent: int
    name: str
    how: str
    """"SIGKILL", "exit 1"."""
    python: Applicable[bool] = NOT_APPLICABLE
    """Whether it ran Python."""


@dataclass(frozen=True, slots=True)
class DumpRound:
    """Hold one look at all processes of a job. ``paused_ms`` is how long we stopped any of them."""

    host: str
    taken: datetime
    taken_ns: int
    processes: tuple[ProcessLook, ...]
    errors: tuple[DumpError, ...]
    paused_ms: float
    spy_cpu_ms: float
    dead: tuple[DeadChild, ...] = ()
    """Of those that ended well nothing is said: many programs ask late."""


class Asker(str, Enum):
    """Name who asked for a dump."""

    KEY = "key"
    WATCH = "watch"
    """tpmon itself, because the job may hang: without a stop, always."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """Ask for looks at a job; ``pids`` empty means every process of it.

    With ``block`` a process that cannot be read otherwise is stopped for some milliseconds, of those in
    ``block_pids`` where it names some. ``native`` adds the frames of C and stops every process; ``variables``
    stops none.
    """

    asker: Asker
    rounds: int = 1
    every_s: float = 5.0
    pids: tuple[int, ...] = ()
    block: bool = False
    native: bool = False
    variables: bool = False
    block_pids: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Tell whether its looks can be joined with others into a picture of the job.

        In one of some processes other ranks would seem to be elsewhere; frames of C would seem a move.
        """
        return not self.pids and not self.native


@dataclass(frozen=True, slots=True)
class DumpState:
    """Say how far a dump is: ``answered`` of ``asked`` processes are done in the round that is read.

    While it is ``running`` the last round may be a part of one. ``refused`` says why a request was not taken.
    ``earlier`` is the last look of a dump before, for one look to be compared with.
    """

    request: DumpRequest
    rounds: tuple[DumpRound, ...]
    answered: int
    asked: int
    running: bool
    refused: str
    earlier: Applicable[DumpRound] = NOT_APPLICABLE


class Motion(str, Enum):
    """Say what a thread did between the looks."""

    ONCE = "seen once"
    MOVING = "moving"
    SLOW = "slow"
    """The user's own line stayed the same, but what it calls moved, or the thread woke up and slept."""
    FROZEN = "frozen"
    """The whole stack stayed the same, and the thread either rested or never slept."""


@dataclass(frozen=True, slots=True)
class DumpThread:
    """Name one thread of a dump, what it waits for, and what it did between the looks.

    ``cpu_s`` and ``delay_s`` count since it began: on a CPU, and runnable without one. ``cpu_pct`` and
    ``delay_pct`` are of one core, since the look before.
    """

    host: str
    pid: int
    tid: Known[int]
    role: Role
    rank: Applicable[int]
    worker: Applicable[int]
    rank_pid: Applicable[int]
    name: str
    kind: ThreadKind
    state: str
    wchan: Known[str]
    call: Known[str]
    waits_for: Known[Wait]
    waits_on: Applicable[WaitTarget]
    cpu_s: Known[float]
    delay_s: Known[float]
    cpu_pct: Known[float]
    delay_pct: Known[float]
    locals: Applicable[tuple[FrameLocals, ...]] = NOT_APPLICABLE
    holds_gil: Applicable[bool] = NOT_APPLICABLE
    """Whether it held the interpreter's lock (GIL) in every look; not said of native threads."""
    frozen: Applicable[Freezer] = NOT_APPLICABLE
    """The control group whose freezer holds its process; absent while none does."""
    slices: Applicable[int] = NOT_APPLICABLE
    """How often it was put on a CPU since it began."""


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Hold the threads that stand in one and the same stack, outermost frame first; native threads have none.

    ``state`` has the kernel's letter of each state that occurs. ``since_s`` is a lower bound. ``stack_wait``
    is what the stack waits for.
    """

    doing: str
    threads: tuple[DumpThread, ...]
    frames: Applicable[tuple[StackFrame, ...]]
    state: str
    motion: Motion
    since_s: Known[float]
    stack_wait: Applicable[WaitReason] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class ShownFrame:
    """Hold one line of a stack as it is shown; ``frame`` is the user's, or where a library was entered."""

    text: str
    is_users: bool
    frame: StackFrame


@dataclass(frozen=True, slots=True)
class OddOne:
    """Name the rank (or worker) that is not where most are; ``others``: PIDs of further ranks elsewhere."""

    host: str
    pid: int
    rank: Applicable[int]
    worker: Applicable[int]
    doing: str
    waits: str
    motion: Motion
    since_s: Known[float]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """Hold the folded stacks of a job: what ``tpmon dump --json`` prints, and ``tpmon fold`` reads.

    ``host`` names every host in it. ``not_asked`` counts ranks here that nobody asked for. ``last_write`` is
    that into the job's log. ``left_out`` says which lines of files a fold could not read. ``dead`` are
    children of its processes that ended badly and that nobody asked about.
    """

    schema: str
    host: str
    taken: datetime
    pid: int
    script: str
    world_size: Applicable[int]
    rounds: int
    seconds: float
    summary: str
    odd_one_out: Applicable[OddOne]
    groups: tuple[StackGroup, ...]
    idle_threads: int
    verdict: Known[Finding]
    errors: tuple[DumpError, ...]
    paused_ms: float
    spy_cpu_ms: float
    not_asked: Applicable[int] = NOT_APPLICABLE
    collectives: Applicable[Collectives] = NOT_APPLICABLE
    last_write: Applicable[datetime] = NOT_APPLICABLE
    left_out: tuple[str, ...] = ()
    dead: tuple[DeadChild, ...] = ()
