"""Hold who waits for whom as a graph of threads, what it is drawn from, and at what its waits end. Pure.

A node either ends at a sink, goes on, or leads to others. Nodes that lead back to themselves are a circle:
nobody outside of it is waited for, so it is a sink as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, IntEnum

from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.camps import ThreadSeen
from tpmon.judge.dumps.merge import ThreadKey, key_thread
from tpmon.judge.features.cards import CardScene
from tpmon.judge.features.standstill import Silence
from tpmon.judge.watch.picture import Picture, find_wait
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime
from tpmon.model.dump import DeadChild
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.host import LoaderSample
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.process import WORKER_NAME, ProcessSample, Role
from tpmon.model.waits import WaitReason


class Grace(IntEnum):
    """Say how long a wait may last before it is a hang, by its kind, shortest first."""

    AT_ONCE = -1
    """No run pauses so by itself."""
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


class Sink(Enum):
    """Name what a wait ends at, with its cause, its grace, needs that it proves, an origin beside stacks."""

    cause: str
    grace: Grace
    needs: tuple[Need, ...]
    origins: tuple[Origin, ...]

    def __new__(  # noqa: PYI034  # Self is of 3.11
        cls, cause: str, grace: Grace, needs: tuple[Need, ...] = (), *origins: Origin
    ) -> Sink:
        """Make a sink; two with the same row are two."""
        one = object.__new__(cls)
        one._value_ = len(cls.__members__)
        one.cause, one.grace, one.needs, one.origins = cause, grace, needs, origins
        return one

    LOCK = "lock", Grace.ENDLESS
    """A lock, a queue or a thread that no seen thread serves."""
    GIL = "lock", Grace.ENDLESS, (Need.LOCK_WAIT,)
    """C code that keeps the interpreter's lock, and rests."""
    GIL_RUNS = "lock", Grace.SLOW, (Need.LOCK_WAIT,)
    FILE_LOCK = "lock", Grace.ENDLESS, (Need.FILE_LOCK_WAIT,)
    """A lock of the kernel on a file."""
    LOCK_FILE = "lock", Grace.REMOTE, (Need.FILE_LOCK_WAIT,)
    """A file that stands for a lock, and is asked for again and again."""
    FORK = "lock", Grace.ENDLESS, (Need.FORKED_WITHOUT_THREADS,)
    """A forked process that has none of the threads of its parent."""
    FULL_PIPE = "lock", Grace.ENDLESS, (Need.QUEUE_FULL,)
    """A process writes to the one that waits for its end, and that reads nothing."""
    CIRCLE = "lock", Grace.CLOSED, (Need.LOCK_WAIT,)
    """Threads that wait for each other."""
    EVENT_LOOP = "lock", Grace.CLOSED, (Need.QUEUE_WAIT,)
    """An event loop that nothing outside of its process can wake."""
    THREAD_LEFT = "lock", Grace.ENDLESS, (Need.THREAD_LEFT,)
    THREADS_UNSEEN = "lock", Grace.CLOSED
    READ = "blocked-io", Grace.ENDLESS
    SPIN = "spin", Grace.LOOP, (Need.SPINNING,)
    COMPUTES = "spin", Grace.COMPUTE, (Need.SPINNING,)
    SLEEP = "no-progress", Grace.TIMED
    REST = "no-progress", Grace.TIMED
    EVENT = "no-progress", Grace.CLOSED
    """What only another thread of its process can set."""
    CHILD = "no-progress", Grace.TIMED, (Need.PROCESS_WAIT,)
    PERSON = "no-progress", Grace.CLOSED, (Need.INPUT_WAIT,)
    """A prompt, at a rank for which others wait."""
    PEER = "no-progress", Grace.ENDLESS
    """A rank outside of the collective, which waits for one that is in it."""
    DEAD = "dead-worker", Grace.ENDLESS, (Need.WORKER_DIED,), Origin.PROC
    NO_WORKERS = "dead-worker", Grace.CLOSED
    LOST_BATCH = "lost-batch", Grace.ENDLESS, (Need.WORKERS_PRESENT,), Origin.PIPES
    LOST_RESULT = "lost-batch", Grace.ENDLESS, (Need.POOL_FROZEN,)
    FOREIGN_LOADER = "no-progress", Grace.CLOSED
    WORKER_MOVES = "no-progress", Grace.TRANSFER
    CARD = "gpu-wait", Grace.ENDLESS, (Need.GPU_WAIT,), Origin.DRIVER
    UNSEEN_CARD = "gpu-wait", Grace.COMPUTE, (Need.GPU_WAIT,)
    STOPPED = "stopped", Grace.AT_ONCE
    UNSEEN = "no-progress", Grace.TIMED
    """A rest at a kernel wait, of which no stack tells more."""
    UNREAD = "missing-rank", Grace.SLOW
    """A rank whose stack could not be read, for which others wait."""
    ENDED = "missing-rank", Grace.ENDLESS, (Need.RANK_GONE,)
    ELSEWHERE = "remote-rank", Grace.REMOTE, (Need.LOCAL_RANKS_WAIT,)
    JOINING = "remote-rank", Grace.SLOW, (Need.LOCAL_RANKS_WAIT,)
    """Ranks that have not joined a group."""
    EACH_OTHER = "no-progress", Grace.ENDLESS
    """A collective that all ranks are in, and that does not end."""
    APART = "missing-rank", Grace.ENDLESS
    """Ranks in different collectives."""


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
    is_of_all: bool = False,
) -> Blame:
    """Blame a thread by its sink; ``needs`` are more than those of the sink."""
    given, proved = sink.grace if grace is None else grace, (*sink.needs, *needs)
    return Blame(sink, sink.cause, seen, text, given, proved, tuple(also), sink.origins, is_of_all=is_of_all)


@dataclass(frozen=True, slots=True)
class Goes:
    """Say that somebody gets on, or waits on purpose: no hang."""

    text: str


End = Blame | Goes


def pick_blame(blames: Sequence[Blame]) -> Blame:
    """Return the surest blame; of equal ones, one that says more than "no-progress"."""
    return min(blames, key=lambda one: (one.grace, one.cause == "no-progress"))


def pick_end(ends: Sequence[End]) -> End:
    """Return what goes on, else the surest blame."""
    goes = next((one for one in ends if isinstance(one, Goes)), None)
    return goes or pick_blame([one for one in ends if isinstance(one, Blame)])


def give_grace(found: Blame, grace: Grace) -> Blame:
    """Give a blame at least this grace."""
    return replace(found, grace=max(found.grace, grace))


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """Hold one picture of all threads, and what else tells who waits for whom: a dump has stacks alone.

    ``history`` are the Frames of the Window, oldest first; ``unseen`` is what a rank without any stack ends
    at, by PID; ``hosts`` are the same facts of each machine of a dump, where it is of several.
    """

    picture: Picture
    may_be_elsewhere: bool
    """How many ranks there are is not known, so some may run on other machines."""
    history: tuple[Frame, ...] = ()
    cards: tuple[CardScene, ...] = ()
    silences: tuple[Silence, ...] = ()
    nic_bytes_s: Known[float] = Missing("a dump reads no network")
    watch: WatchedTime = NO_WATCH
    unseen: Mapping[int, Blame] = field(default_factory=dict)
    hosts: Mapping[str, WaitFacts] = field(default_factory=dict)

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """Return the newest reading of every process."""
        return self.history[-1].processes if self.history else ()

    @property
    def loaders(self) -> tuple[LoaderSample, ...]:
        """Return the newest reading of every loader."""
        return self.history[-1].loader if self.history else ()

    def at(self, seen: ThreadSeen) -> WaitFacts:
        """Return the facts of the machine that a thread is on: two machines may give out the same PID."""
        return self.hosts.get(seen.thread.host, self)

    def wait_of(self, seen: ThreadSeen) -> Known[WaitReason]:
        """Say what a thread waits for."""
        return find_wait(seen, self.picture)

    def process_of(self, seen: ThreadSeen) -> ProcessSample | None:
        """Return the newest sample of a thread's process; None where it has ended, or was not read."""
        return next((one for one in self.processes if one.pid == seen.thread.pid), None)

    def started_by(self, pid: int) -> set[int]:
        """Return the processes that a rank started itself; a dump knows only which are below it."""
        if not self.history:
            mains = (one.thread for one in self.picture.threads if one.thread.role is Role.HELPER)
            return {one.pid for one in mains if one.rank_pid == pid}
        started = (one for one in self.processes if one.parent == pid)
        return {one.pid for one in started if not one.name.startswith(WORKER_NAME)}


GROUP = ThreadKey("", 0, 0, "the collective")
"""The collective that ranks wait in: it leads to the ranks that are not in it."""


@dataclass(frozen=True, slots=True)
class Leads:
    """Say for whom a node waits; ``join`` makes one end of theirs."""

    to: tuple[ThreadKey, ...]
    join: Callable[[Sequence[End]], End]


Step = Blame | Goes | Leads


def key_of(seen: ThreadSeen) -> ThreadKey:
    """Return the node of a thread."""
    return key_thread(seen.thread)


@dataclass(frozen=True, slots=True)
class Graph:
    """Hold each node with its step, and the circle that it is part of; ``close`` makes an end of a circle."""

    steps: Mapping[ThreadKey, Step]
    circles: Mapping[ThreadKey, frozenset[ThreadKey]]
    close: Callable[[ThreadKey, frozenset[ThreadKey]], End]

    def follow(self, node: ThreadKey) -> End:
        """Return where the wait of a node ends."""
        step = self.steps[node]
        if not isinstance(step, Leads):
            return step
        circle = self.circles.get(node)
        return self.close(node, circle) if circle else step.join([self.follow(one) for one in step.to])


def build(
    starts: Iterable[ThreadKey],
    expand: Callable[[ThreadKey], Step],
    close: Callable[[ThreadKey, frozenset[ThreadKey]], End],
) -> Graph:
    """Expand every node that is reached from ``starts``."""
    steps: dict[ThreadKey, Step] = {}
    left = list(starts)
    while left:
        node = left.pop()
        if node in steps:
            continue
        step = steps[node] = expand(node)
        if isinstance(step, Leads):
            left.extend(step.to)
    return Graph(steps, _find_circles(steps), close)


def _find_circles(steps: Mapping[ThreadKey, Step]) -> dict[ThreadKey, frozenset[ThreadKey]]:
    """Return for each node that leads back to itself all that do so with it."""
    targets = {node: step.to if isinstance(step, Leads) else () for node, step in steps.items()}
    reached: dict[ThreadKey, set[ThreadKey]] = {}
    for node in steps:
        found, left = set[ThreadKey](), list(targets[node])
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left.extend(targets[one])
        reached[node] = found
    return {
        node: frozenset(one for one in those if node in reached[one])
        for node, those in reached.items()
        if node in those
    }
