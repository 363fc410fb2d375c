"""Hold what a wait may end at: each kind of sink with its cause, how long it may last, and what it proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, IntEnum, auto
from types import MappingProxyType

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.outlier import ThreadSeen
from tpmon.model.dump import DeadChild
from tpmon.model.figures import Origin
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable


class Grace(IntEnum):
    """Say how long a wait may last before it is a hang, by its kind, shortest first."""

    ENDLESS = 0
    """It does not end by itself."""
    CLOSED = 1
    """Nothing outside of the job can end it, only a time-out of its own."""
    TIMED = 2
    """It may end by itself."""
    LOOP = 3
    """It runs in one place."""
    REMOTE = 4
    """What it waits for cannot be seen and may take minutes: a rank elsewhere, or who has a file."""
    SLOW = 5
    """It takes long in healthy runs, too."""
    COMPUTE = 6
    """It computes, or something that it may wait for does."""
    TRANSFER = 7
    """It reads or writes, or a pool of its threads computes."""


UNSURE = (Grace.CLOSED, Grace.TIMED)
"""What a time-out may still end: no sure hang."""


@dataclass(frozen=True, slots=True)
class SinkRow:
    """Hold what is said of one kind of sink: cause, grace, needs that it proves, origins beside stacks."""

    cause: str
    grace: Grace
    needs: tuple[Need, ...] = ()
    origins: tuple[Origin, ...] = ()


def _row(cause: str, grace: Grace, *needs: Need, origin: Origin | None = None) -> SinkRow:
    return SinkRow(cause, grace, needs, (origin,) if origin is not None else ())


class Sink(Enum):
    """Name what a wait ends at."""

    LOCK = auto()
    """A lock, a queue or a thread that no seen thread serves."""
    GIL = auto()
    """C code that keeps the interpreter's lock, and rests."""
    GIL_RUNS = auto()
    FILE_LOCK = auto()
    """A lock of the kernel on a file."""
    LOCK_FILE = auto()
    """A file that stands for a lock, and is asked for again and again."""
    FORK = auto()
    """A forked process that has none of the threads of its parent."""
    FULL_PIPE = auto()
    """A process writes to the one that waits for its end, and that reads nothing."""
    CIRCLE = auto()
    """Threads that wait for each other."""
    EVENT_LOOP = auto()
    """An event loop that nothing outside of its process can wake."""
    THREAD_LEFT = auto()
    THREADS_UNSEEN = auto()
    READ = auto()
    SPIN = auto()
    COMPUTES = auto()
    SLEEP = auto()
    REST = auto()
    EVENT = auto()
    """What only another thread of its process can set."""
    CHILD = auto()
    PERSON = auto()
    """A prompt, at a rank for which others wait."""
    PEER = auto()
    """A rank outside of the collective, which waits for one that is in it."""
    DEAD = auto()
    NO_WORKERS = auto()
    LOST_BATCH = auto()
    LOST_RESULT = auto()
    FOREIGN_LOADER = auto()
    WORKER_MOVES = auto()
    CARD = auto()
    UNSEEN_CARD = auto()
    UNREAD = auto()
    """A rank whose stack could not be read, for which others wait."""
    ENDED = auto()
    ELSEWHERE = auto()
    JOINING = auto()
    """Ranks that have not joined a group."""
    EACH_OTHER = auto()
    """A collective that all ranks are in, and that does not end."""
    APART = auto()
    """Ranks in different collectives."""


SINKS: Mapping[Sink, SinkRow] = MappingProxyType(
    {
        Sink.LOCK: _row("lock", Grace.ENDLESS),
        Sink.GIL: _row("lock", Grace.ENDLESS, Need.LOCK_WAIT),
        Sink.GIL_RUNS: _row("lock", Grace.SLOW, Need.LOCK_WAIT),
        Sink.FILE_LOCK: _row("lock", Grace.ENDLESS, Need.FILE_LOCK_WAIT),
        Sink.LOCK_FILE: _row("lock", Grace.REMOTE, Need.FILE_LOCK_WAIT),
        Sink.FORK: _row("lock", Grace.ENDLESS, Need.FORKED_WITHOUT_THREADS),
        Sink.FULL_PIPE: _row("lock", Grace.ENDLESS, Need.QUEUE_FULL),
        Sink.CIRCLE: _row("lock", Grace.CLOSED, Need.LOCK_WAIT),
        Sink.EVENT_LOOP: _row("lock", Grace.CLOSED, Need.QUEUE_WAIT),
        Sink.THREAD_LEFT: _row("lock", Grace.ENDLESS, Need.THREAD_LEFT),
        Sink.THREADS_UNSEEN: _row("lock", Grace.CLOSED),
        Sink.READ: _row("blocked-io", Grace.ENDLESS),
        Sink.SPIN: _row("spin", Grace.LOOP, Need.SPINNING),
        Sink.COMPUTES: _row("spin", Grace.COMPUTE, Need.SPINNING),
        Sink.SLEEP: _row("no-progress", Grace.TIMED),
        Sink.REST: _row("no-progress", Grace.TIMED),
        Sink.EVENT: _row("no-progress", Grace.CLOSED),
        Sink.CHILD: _row("no-progress", Grace.TIMED, Need.PROCESS_WAIT),
        Sink.PERSON: _row("no-progress", Grace.CLOSED, Need.INPUT_WAIT),
        Sink.PEER: _row("no-progress", Grace.ENDLESS),
        Sink.DEAD: _row(
            "dead-worker", Grace.ENDLESS, Need.WORKER_DIED, Need.WORKERS_PRESENT, origin=Origin.PROC
        ),
        Sink.NO_WORKERS: _row("dead-worker", Grace.CLOSED),
        Sink.LOST_BATCH: _row("lost-batch", Grace.ENDLESS, Need.WORKERS_PRESENT, origin=Origin.PIPES),
        Sink.LOST_RESULT: _row("lost-batch", Grace.ENDLESS),
        Sink.FOREIGN_LOADER: _row("no-progress", Grace.CLOSED),
        Sink.WORKER_MOVES: _row("no-progress", Grace.TRANSFER),
        Sink.CARD: _row("gpu-wait", Grace.ENDLESS, Need.GPU_WAIT, origin=Origin.DRIVER),
        Sink.UNSEEN_CARD: _row("gpu-wait", Grace.COMPUTE, Need.GPU_WAIT),
        Sink.UNREAD: _row("missing-rank", Grace.SLOW),
        Sink.ENDED: _row("missing-rank", Grace.ENDLESS, Need.RANK_GONE),
        Sink.ELSEWHERE: _row("remote-rank", Grace.REMOTE, Need.LOCAL_RANKS_WAIT),
        Sink.JOINING: _row("remote-rank", Grace.SLOW, Need.LOCAL_RANKS_WAIT),
        Sink.EACH_OTHER: _row("no-progress", Grace.ENDLESS),
        Sink.APART: _row("missing-rank", Grace.ENDLESS),
    }
)
"""What is said of each."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Hold a sink with its culprit, one sentence about it, and what was seen for it.

    ``also`` are further threads to show (a lock's holder, workers that a rank waits for); ``dead`` are ended
    processes to show.
    """

    sink: Sink
    cause: str
    seen: ThreadSeen
    text: str
    grace: Grace
    needs: tuple[Need, ...] = ()
    also: tuple[ThreadSeen, ...] = ()
    origins: tuple[Origin, ...] = ()
    dead: tuple[DeadChild, ...] = ()
    is_of_all: bool = False
    """No single rank is to blame: ``seen`` is only the first of them."""
    gone: Applicable[int] = NOT_APPLICABLE
    """The number of the one rank to blame, where it has ended and ``seen`` waits for it."""


def blame(
    sink: Sink,
    seen: ThreadSeen,
    text: str,
    grace: Grace | None = None,
    *,
    needs: tuple[Need, ...] = (),
    also: Sequence[ThreadSeen] = (),
    dead: Sequence[DeadChild] = (),
    is_of_all: bool = False,
    gone: Applicable[int] = NOT_APPLICABLE,
) -> Blame:
    """Blame a thread by the row of its sink; ``needs`` are more than those of the row."""
    row = SINKS[sink]
    given = row.grace if grace is None else grace
    own = (*row.needs, *needs)
    return Blame(
        sink, row.cause, seen, text, given, own, tuple(also), row.origins, tuple(dead), is_of_all, gone
    )


@dataclass(frozen=True, slots=True)
class Goes:
    """Say that somebody gets on, or waits on purpose: no hang."""

    text: str


End = Blame | Goes


def pick_blame(blames: Sequence[Blame]) -> Blame:
    """Return the surest blame; of equal ones, one that says more than "no-progress"."""
    return min(blames, key=lambda one: (one.grace, one.cause == "no-progress"))


def give_grace(found: Blame, grace: Grace) -> Blame:
    """Give a blame at least this grace."""
    return replace(found, grace=max(found.grace, grace))
