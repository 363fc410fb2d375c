"""Name each program that is spread over three hosts, with what is true of it. No torch here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tests.programs.causes.table import Label
from tests.programs.hangs.table import POLL_S, SOME_RANKS, AliveRow, Must, Row
from tpmon.fleet.launch import Way
from tpmon.model.verdict import Kind

HOSTS = 3
RANK = "rank_hangs"
MISSING, LOCK = Label(Kind.HUNG, "missing-rank"), Label(Kind.HUNG, "lock")
BLOCKED, DEAD = Label(Kind.HUNG, "blocked-io"), Label(Kind.HUNG, "dead-worker")
STOPPED = Label(Kind.HUNG, "stopped")
GONE = Label(Kind.HUNG, "remote-rank")
STRAGGLER = Label(Kind.COMMS_BOUND, "straggler")
LATE_S = 90.0
"""How long after the first reading a slow rank may be named: three windows of 12 s of five, and the start."""
ALIVE_S = 600.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Hold one run: a program with its seed, how its ranks and the agents are started, and ranks on each host.

    ``is_cut`` takes the culprit's host off the network as soon as it is known, and ends all that runs there.
    """

    row: Row | AliveRow
    seed: int
    way: Way
    _: KW_ONLY
    per_host: int = 1
    is_cut: bool = False

    @property
    def name(self) -> str:
        return f"{self.row.name} {self.seed}"


def _row(name: str, way: str, label: Label, *also: Label, must: tuple[Must, ...] = (Must.PROCESS, Must.LINE)) -> Row:
    return Row(name, label, also=also, must=must, ranks=SOME_RANKS, file=RANK, way=way)


ALONE = _row("missing_rank", "alone", MISSING, LOCK, BLOCKED)
LOADING = _row("missing_rank_ddp", "loading", MISSING, BLOCKED)
IN_LOCK = _row("rank_in_lock", "in a lock", MISSING, LOCK)
STOPPED_RANK = _row("stopped_rank", "stopped", STOPPED, must=(Must.PROCESS,))
POLLING = Row("polling_rank", MISSING, ranks=SOME_RANKS, file=RANK, way="polling", fresh_s=POLL_S)
SWALLOWED = _row("swallowed_error", "swallowed", MISSING)
MISMATCH = _row("other_collective", "mismatch", MISSING)
UNEVEN = _row("uneven_batches", "uneven", MISSING)
MOUNTED = _row("dead_mount", "mounted", MISSING, BLOCKED)
FETCHING = _row("silent_store", "fetching", MISSING, BLOCKED)
DEAD_WORKER = _row("dead_worker", "dead worker", MISSING, DEAD)
STUCK_WORKER = _row("stuck_worker", "stuck worker", MISSING, BLOCKED, must=(Must.WAITER, Must.LINE))
INTERPRETER = _row("gil_held", "interpreter held", MISSING, LOCK)
DEAD_RANK = _row("dead_rank", "dead", MISSING, GONE, must=())
DEAD_AT_STORE = _row("dead_rank_store", "dead at the store", MISSING, GONE, must=())
CUT_OFF = _row("host_cut_off", "cut off", MISSING, GONE, must=())

HUNG = (
    Spread(ALONE, 1, Way.SLURM),
    Spread(ALONE, 5, Way.SSH),
    Spread(ALONE, 7, Way.SLURM),
    Spread(LOADING, 4, Way.SSH),
    Spread(LOADING, 15, Way.SLURM),
    Spread(IN_LOCK, 6, Way.SSH),
    Spread(IN_LOCK, 9, Way.SLURM),
    Spread(IN_LOCK, 5, Way.SSH, per_host=2),
    Spread(STOPPED_RANK, 2, Way.SLURM),
    Spread(STOPPED_RANK, 10, Way.SSH),
    Spread(SWALLOWED, 11, Way.SLURM),
    Spread(MISMATCH, 12, Way.SSH),
    Spread(UNEVEN, 13, Way.SLURM),
    Spread(UNEVEN, 14, Way.SSH),
    Spread(MOUNTED, 15, Way.SLURM),
    Spread(FETCHING, 16, Way.SSH),
    Spread(DEAD_WORKER, 17, Way.SLURM),
    Spread(STUCK_WORKER, 18, Way.SSH),
    Spread(INTERPRETER, 19, Way.SLURM),
    Spread(DEAD_RANK, 20, Way.SLURM),
    Spread(DEAD_RANK, 23, Way.SSH),
    Spread(DEAD_AT_STORE, 20, Way.SLURM),
    Spread(DEAD_AT_STORE, 23, Way.SSH),
    Spread(CUT_OFF, 24, Way.SSH, is_cut=True),
    Spread(POLLING, 23, Way.SLURM),
)
"""Of the programs in tests/hangs those that several ranks run, and more kinds of faults; the seed draws which rank it is.
Left out: a loop that spins or computes, which is called hung after five minutes only, and ``rank_hang.py --fork``, whose
ranks are forked from one process and so live on one host."""

SLOW = (
    Spread(Row("straggler", STRAGGLER, must=(), folder="causes", fresh_s=LATE_S), 29, Way.SLURM),
    Spread(Row("straggler", STRAGGLER, must=(), folder="causes", fresh_s=LATE_S), 36, Way.SSH),
)
"""Programs of which one rank is slower than the others: it must be named, and its host."""

ALIVE = (
    Spread(AliveRow("healthy_ranks", folder="causes", watch_s=ALIVE_S), 41, Way.SLURM),
    Spread(AliveRow("slow_validation", watch_s=ALIVE_S), 42, Way.SSH),
    Spread(AliveRow("slow_checkpoint", watch_s=ALIVE_S), 43, Way.SLURM),
    Spread(AliveRow("slow_loading", file=RANK, way="slow loading", watch_s=ALIVE_S), 44, Way.SSH),
)
"""Programs that are healthy, or slow but alive: nobody may be accused for so long."""
