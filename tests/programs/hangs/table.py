"""Name each program that hangs, or that is only slow, with what is true of it. No torch here."""

from __future__ import annotations

import random
from dataclasses import KW_ONLY, dataclass
from enum import Enum

from tests.programs.causes.table import Label
from tpmon.model.verdict import Kind

FRESH_S = 45.0
"""How long after its hang, which tpmon sees begin, a program must be called hung."""
POLL_S = 160.0
"""The same of a rank that sleeps while others wait for it: that may end."""
CALL_S = 330.0
"""The same of a call that computes, and of ranks elsewhere: five minutes, as for a checkpoint."""
ALIVE_S = 150.0
"""How long a slow program is watched: a loop that goes round in one place is called hung after 120 s."""
SPIN_S = 370.0
"""The same of a loop that spins: that it stays in one place takes some slices of stacks more."""


class Must(Enum):
    """Name what tpmon must say of a hang besides kind and cause."""

    PROCESS = "process"
    WAITER = "the process that waits for a worker"
    LINE = "line"
    THREAD = "the thread that keeps the lock, or the process"


@dataclass(frozen=True, slots=True)
class Started:
    """Say how a program is started: its file, by its name where no other is given, and the way in which it hangs.

    ``ranks`` are the fewest and the most that torchrun starts; one rank is started without it. A program that
    ``burns`` a CPU has one to itself.
    """

    name: str
    _: KW_ONLY
    ranks: tuple[int, int] = (1, 1)
    burns: bool = False
    folder: str = "hangs"
    file: str = ""
    way: str = ""

    @property
    def script(self) -> str:
        return f"{self.folder}/{self.file or self.name}.py"

    @property
    def options(self) -> tuple[str, ...]:
        return ("--way", self.way) if self.way else ()

    def draw_ranks(self, seed: int) -> int:
        return random.Random(f"{self.name} {seed}").randint(*self.ranks)


@dataclass(frozen=True, slots=True)
class Row(Started):
    """Hold a program that hangs: its true label, what else is right to say, and what must be named.

    ``trees`` above one are started as so many hosts of ``ranks`` each, the culprit in the one that
    is not looked at: the fold of them must name its process and line, and the verdict nobody. One that burns looks
    like one that computes, so that what is said within ``fresh_s`` of its hang may only be that it is slow.
    """

    label: Label
    also: tuple[Label, ...] = ()
    must: tuple[Must, ...] = (Must.PROCESS, Must.LINE)
    trees: int = 1
    fresh_s: float = FRESH_S

    def accepts(self, kind: str, cause: str) -> bool:
        return any(label.fits(kind, cause) for label in (self.label, *self.also))


def _hung(cause: str) -> Label:
    return Label(Kind.HUNG, cause)


WITH_THREAD = (Must.PROCESS, Must.LINE, Must.THREAD)
ONLY_PROCESS = (Must.PROCESS,)
ONLY_WAITER = (Must.WAITER,)
"""Of a batch that is lost nothing tells which worker lost it."""
SOME_RANKS = (2, 4)

THREAD, RANK, WORKER, LOOP = "thread_hangs", "rank_hangs", "worker_hangs", "loop_hangs"
DEAD = "dead_workers"
MISSING, STOPPED = _hung("missing-rank"), _hung("stopped")

ROWS = (
    Row("lock_order", _hung("lock"), must=WITH_THREAD, file=THREAD, way="lock order"),
    Row("lock_held", _hung("lock"), must=WITH_THREAD, file=THREAD, way="lock held"),
    Row("missing_rank", MISSING, ranks=SOME_RANKS, file=RANK, way="alone"),
    Row("missing_rank_ddp", MISSING, ranks=SOME_RANKS, file=RANK, way="loading"),
    Row("polling_rank", MISSING, ranks=SOME_RANKS, fresh_s=POLL_S, file=RANK, way="polling"),
    Row(
        "remote_rank", _hung("remote-rank"), must=(), ranks=(2, 2), trees=2, fresh_s=CALL_S, file=RANK, way="in a lock"
    ),
    Row("dead_worker", _hung("dead-worker"), must=ONLY_PROCESS, file=DEAD, way="queue"),
    Row("dead_pool_worker", _hung("dead-worker"), also=(_hung("lost-batch"),), must=ONLY_WAITER, file=DEAD, way="pool"),
    Row("blocked_fifo", _hung("blocked-io"), file=WORKER, way="fifo"),
    Row("blocked_socket", _hung("blocked-io"), file=WORKER, way="socket"),
    Row("blocked_fuse", _hung("blocked-io"), file=WORKER, way="fuse"),
    Row("lost_batch", _hung("lost-batch"), must=ONLY_WAITER),
    Row("spin", _hung("spin"), burns=True, fresh_s=SPIN_S, file=LOOP, way="spin"),
    Row("regex", _hung("spin"), burns=True, fresh_s=CALL_S),
    Row("stopped_rank", STOPPED, must=ONLY_PROCESS, ranks=SOME_RANKS, file=RANK, way="stopped"),
    Row("stopped_worker", STOPPED, must=ONLY_PROCESS, file=WORKER, way="stopped"),
    Row("gil_held", _hung("lock"), must=WITH_THREAD, file=THREAD, way="interpreter held"),
    Row("thread_left", _hung("lock"), must=WITH_THREAD, file=THREAD, way="left"),
    Row("stdin", Label(Kind.IDLE, "waiting-for-input")),
)
"""Programs that hang. ``dead_pool_worker`` keeps no trace of the process that died: its pool replaced it."""


@dataclass(frozen=True, slots=True)
class AliveRow(Started):
    """Hold a program that is slow but alive; tpmon must not call it hung at any second of ``watch_s``.

    One that burns computes all the time.
    """

    _: KW_ONLY
    burns: bool = True
    watch_s: float = ALIVE_S


ALIVE_ROWS = (
    AliveRow("slow_step", file=LOOP, way="library"),
    AliveRow("slow_python", file=LOOP, way="python"),
    AliveRow("slow_worker", file=WORKER, way="slow"),
    AliveRow("slow_checkpoint", burns=False),
    AliveRow("slow_compile", folder="causes", file="starting_compile"),
    AliveRow("slow_validation", ranks=SOME_RANKS),
    *(AliveRow(name, folder="causes") for name in ("validation", "checkpoint", "starting_import", "starting_load")),
)
