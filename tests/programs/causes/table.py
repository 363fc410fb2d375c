"""Name each program with its true label. No torch here: the harness and pytest read this."""

from __future__ import annotations

from dataclasses import dataclass

from tpmon.model.verdict import EXIT_CODES, Kind

FAULT = 10
"""Exit code of the kinds that accuse: none of them may be named on a healthy program."""
ATTACH_S = 15.0
GROWTH_S = 90.0
"""Memory growth needs a slope."""
GENERATIONS_S = 30.0
"""Two generations of workers, or three periods of a stall."""
YOUNG_S = 5.0
"""Without stacks a rank is known to start by its age alone, for 15 s after its process began."""
HUNG_S = 32.0
"""Nothing moved for 30 s, which the reading after that says."""


@dataclass(frozen=True, slots=True)
class Label:
    """Name a kind and its cause; "" where the kind has none or any cause is right."""

    kind: Kind
    cause: str = ""

    def fits(self, kind: str, cause: str) -> bool:
        return kind == self.kind.value and self.cause in ("", cause)

    def __str__(self) -> str:
        return f"{self.kind.value} {self.cause}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """Hold a program: its true label, what else is right to say, and how long a verdict may take.

    ``remedy`` says in a few words what ``--fix`` does, "" when it does nothing; ``advice`` is its id in
    the catalogue. ``ranks`` above one are started by torchrun. ``file`` and ``options`` are set where
    several rows share a program. ``flags`` go to tpmon. ``says`` must be in the summary.
    """

    name: str
    label: Label
    also: tuple[Label, ...] = ()
    watch_s: float = ATTACH_S
    ranks: int = 1
    remedy: str = ""
    advice: str = ""
    file: str = ""
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    says: str = ""

    @property
    def script(self) -> str:
        """Return the name of the program's file."""
        return f"{self.file or self.name}.py"

    @property
    def is_healthy(self) -> bool:
        """Tell whether nothing is wrong with it, so that it must not be accused at any second."""
        return self.label in HEALTHY

    def accepts(self, kind: str, cause: str) -> bool:
        """Tell whether a verdict is right."""
        return any(label.fits(kind, cause) for label in (self.label, *self.also))

    def accuses(self, kind: str) -> bool:
        """Tell whether a verdict's kind is one that accuses."""
        return EXIT_CODES[Kind(kind)] == FAULT


COMPUTE = Label(Kind.COMPUTE_BOUND, "cpu")
BALANCED = Label(Kind.BALANCED)
HEALTHY = (COMPUTE, BALANCED)

ROWS = (
    Row("no_workers", Label(Kind.DATA_BOUND, "no-workers"), remedy="num_workers=2", advice="start-workers"),
    Row(
        "cpu_transform",
        Label(Kind.DATA_BOUND, "cpu-transform"),
        remedy="transformed beforehand",
        advice="transform-once",
    ),
    Row("too_few_workers", Label(Kind.DATA_BOUND, "too-few-workers"), remedy="one worker more", advice="more-workers"),
    Row(
        "storage_bandwidth", Label(Kind.DATA_BOUND, "storage-bandwidth"), remedy="kept in memory", advice="cache-in-ram"
    ),
    Row(
        "storage_latency",
        Label(Kind.DATA_BOUND, "storage-latency"),
        remedy="four times the readers",
        advice="more-readers",
    ),
    Row(
        "network_store", Label(Kind.DATA_BOUND, "network-store"), remedy="four times the readers", advice="more-readers"
    ),
    Row(
        "page_cache_thrash",
        Label(Kind.DATA_BOUND, "page-cache-thrash"),
        remedy="a higher memory limit",
        advice="more-memory",
    ),
    Row("one_slow_worker", Label(Kind.DATA_BOUND, "one-slow-worker"), remedy="equal work", advice="balance-samples"),
    Row(
        "uneven_workers",
        Label(Kind.DATA_BOUND, "uneven-workers"),
        remedy="as many shards as workers",
        advice="more-shards",
    ),
    Row("worker_lock", Label(Kind.DATA_BOUND, "worker-lock"), remedy="no lock", advice="free-the-lock"),
    Row("own_loader", Label(Kind.DATA_BOUND, "own-loader"), remedy="four that fill the queue", advice="feed-own-queue"),
    Row("worker_affinity", Label(Kind.DATA_BOUND, "worker-affinity"), remedy="all CPUs", advice="unbind-workers"),
    Row(
        "respawn",
        Label(Kind.DATA_BOUND, "respawn"),
        watch_s=GENERATIONS_S,
        remedy="persistent_workers=True",
        advice="persistent-workers",
    ),
    Row(
        "killed_workers",
        Label(Kind.DATA_BOUND, "killed-workers"),
        watch_s=GENERATIONS_S,
        remedy="no deadly sample",
        advice="find-dead-worker",
    ),
    Row(
        "periodic",
        Label(Kind.DATA_BOUND, "periodic"),
        watch_s=GENERATIONS_S,
        remedy="a longer queue",
        advice="prefetch-factor",
    ),
    Row("collate", Label(Kind.DATA_BOUND, "collate"), remedy="tensors instead of lists", advice="collate-arrays"),
    Row("drain", Label(Kind.DATA_BOUND, "drain"), remedy="one tensor a batch", advice="fewer-tensors"),
    Row("gil", Label(Kind.PYTHON_BOUND, "gil"), remedy="processes instead of threads", advice="processes-not-threads"),
    Row(
        "single_thread", Label(Kind.PYTHON_BOUND, "single-thread"), remedy="a tensor operation", advice="profile-python"
    ),
    Row(
        "blocking_call", Label(Kind.PYTHON_BOUND, "blocking-call"), remedy="in each fiftieth step", advice="call-aside"
    ),
    Row("straggler", Label(Kind.COMMS_BOUND, "straggler"), ranks=2, remedy="equal work", advice="even-work"),
    Row(
        "transfer",
        Label(Kind.COMMS_BOUND, "transfer"),
        ranks=2,
        remedy="an exchange every eighth step",
        advice="exchange-less-often",
    ),
    Row("late_in_turn", Label(Kind.COMMS_BOUND, "unknown"), ranks=4),
    Row("rank_pool", Label(Kind.OVERSUBSCRIBED, "rank-pool"), remedy="two threads", advice="cap-rank-threads"),
    Row(
        "worker_pool",
        Label(Kind.OVERSUBSCRIBED, "worker-pool"),
        remedy="one thread a worker",
        advice="cap-worker-threads",
    ),
    *(
        Row(
            f"{library}_{where}_pool",
            Label(Kind.OVERSUBSCRIBED, f"{where}-pool"),
            file="library_pool",
            options=("--library", library, "--in-rank", str(int(where == "rank"))),
            says=f"{says} pools in",
        )
        for library, where, says in (
            ("numpy", "worker", "OpenBLAS"),  # which takes no more threads than there are CPUs: not in one rank
            ("cv2", "worker", "OpenCV"),
            ("cv2", "rank", "OpenCV"),
            ("numexpr", "worker", "numexpr"),
            ("numexpr", "rank", "numexpr"),
        )
    ),
    Row(
        "too_many_ranks",
        Label(Kind.OVERSUBSCRIBED, "too-many-ranks"),
        ranks=4,
        remedy="one thread a rank",
        advice="cap-rank-threads",
    ),
    Row("cpu_quota", Label(Kind.CPU_THROTTLED, "quota"), remedy="no quota", advice="raise-quota"),
    Row("leak", Label(Kind.MEMORY_PRESSURE, "leak"), watch_s=GROWTH_S),
    Row("copy_on_write", Label(Kind.MEMORY_PRESSURE, "copy-on-write"), watch_s=GROWTH_S),
    Row("swap", Label(Kind.MEMORY_PRESSURE, "swap"), remedy="no limit", advice="more-memory"),
    Row("shm", Label(Kind.MEMORY_PRESSURE, "shm")),
    Row("starting_import", Label(Kind.STARTING, "import")),
    Row("starting_load", Label(Kind.STARTING, "load")),
    Row("starting_compile", Label(Kind.STARTING, "compile")),
    Row("first_steps", Label(Kind.STARTING, "first-steps"), watch_s=YOUNG_S, flags=("--no-stacks",)),
    Row("checkpoint", Label(Kind.PAUSED, "checkpoint")),
    Row("validation", Label(Kind.PAUSED, "validation")),
    Row("waiting_input", Label(Kind.IDLE, "waiting-for-input")),
    Row("finished", Label(Kind.IDLE, "finished")),
    Row("failed", Label(Kind.IDLE, "failed")),
    Row("lock_hang", Label(Kind.HUNG, "lock"), also=(Label(Kind.HUNG, "no-progress"),), watch_s=HUNG_S),
    Row("stopped", Label(Kind.HUNG, "stopped"), watch_s=HUNG_S),
    Row("compute", COMPUTE),
    Row("light_workers", COMPUTE, also=(BALANCED,)),
    Row("idle_workers", COMPUTE, also=(BALANCED,)),
    Row("hf_like", COMPUTE, also=(BALANCED,)),
    Row("hidden_wait", COMPUTE, also=(BALANCED,)),
    Row("healthy_ranks", COMPUTE, also=(BALANCED,), ranks=2),
)


def find_row(name: str) -> Row:
    """Return the row of a program.

    Raises:
        KeyError: when there is none.
    """
    return {row.name: row for row in ROWS}[name]
