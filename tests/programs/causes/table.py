"""Name each program with its true label. No torch here: the harness and pytest read this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpmon.model.verdict import Kind

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
        return f"{self.file or self.name}.py"

    @property
    def is_healthy(self) -> bool:
        """Tell whether nothing is wrong with it, so that it must not be accused at any second."""
        return self.label in HEALTHY

    def accepts(self, kind: str, cause: str) -> bool:
        beside = (TENANTS,) if self.is_healthy else ()
        return any(label.fits(kind, cause) for label in (self.label, *self.also, *beside))


COMPUTE = Label(Kind.COMPUTE_BOUND, "cpu")
BALANCED = Label(Kind.BALANCED)
HEALTHY = (COMPUTE, BALANCED)
TENANTS = Label(Kind.OVERSUBSCRIBED, "other-tenants")
"""Right to say of a healthy program on a machine that others use, and no fault of its own."""


def _row(name: str, kind: Kind, cause: str = "", **more: Any) -> Row:
    """Build the row of a program of one cause, which most of them are named by."""
    return Row(name, Label(kind, cause or name.replace("_", "-")), **more)


ROWS = (
    _row("no_workers", Kind.DATA_BOUND, remedy="num_workers=2", advice="start-workers"),
    _row("cpu_transform", Kind.DATA_BOUND, remedy="transformed beforehand", advice="transform-once"),
    _row("too_few_workers", Kind.DATA_BOUND, remedy="one worker more", advice="more-workers"),
    _row("storage_bandwidth", Kind.DATA_BOUND, remedy="kept in memory", advice="cache-in-ram"),
    _row("storage_latency", Kind.DATA_BOUND, remedy="four times the readers", advice="more-readers"),
    _row("network_store", Kind.DATA_BOUND, remedy="four times the readers", advice="more-readers"),
    _row("page_cache_thrash", Kind.DATA_BOUND, remedy="a higher memory limit", advice="more-memory"),
    _row("one_slow_worker", Kind.DATA_BOUND, remedy="equal work", advice="balance-samples"),
    _row("uneven_workers", Kind.DATA_BOUND, remedy="as many shards as workers", advice="more-shards"),
    *(
        Row(
            name,
            Label(Kind.DATA_BOUND, "uneven-workers"),
            watch_s=GENERATIONS_S,
            remedy="as many shards as workers",
            advice="more-shards",
            file="uneven_workers",
            options=("--shards", "1", "--kept", kept),
        )
        for name, kept in (("one_shard_kept", "1"), ("one_shard", "0"))
    ),
    _row("worker_lock", Kind.DATA_BOUND, remedy="no lock", advice="free-the-lock"),
    _row("own_loader", Kind.DATA_BOUND, remedy="four that fill the queue", advice="feed-own-queue"),
    _row("worker_affinity", Kind.DATA_BOUND, remedy="all CPUs", advice="unbind-workers"),
    _row(
        "respawn", Kind.DATA_BOUND, watch_s=GENERATIONS_S, remedy="persistent_workers=True", advice="persistent-workers"
    ),
    _row(
        "killed_workers", Kind.DATA_BOUND, watch_s=GENERATIONS_S, remedy="no deadly sample", advice="find-dead-worker"
    ),
    _row("periodic", Kind.DATA_BOUND, watch_s=GENERATIONS_S, remedy="a longer queue", advice="prefetch-factor"),
    Row("skip_batches", Label(Kind.DATA_BOUND, "skipping"), watch_s=GENERATIONS_S),
    _row("sampler", Kind.DATA_BOUND, remedy="an order made at once", advice="choose-at-once"),
    _row("collate", Kind.DATA_BOUND, remedy="tensors instead of lists", advice="collate-arrays"),
    _row("drain", Kind.DATA_BOUND, remedy="one tensor a batch", advice="fewer-tensors"),
    _row("gil", Kind.PYTHON_BOUND, remedy="processes instead of threads", advice="processes-not-threads"),
    _row("single_thread", Kind.PYTHON_BOUND, remedy="a tensor operation", advice="profile-python"),
    _row("small_operators", Kind.PYTHON_BOUND, watch_s=GENERATIONS_S, remedy="one thread", advice="one-thread"),
    _row("blocking_call", Kind.PYTHON_BOUND, remedy="in each fiftieth step", advice="call-aside"),
    _row("straggler", Kind.COMMS_BOUND, ranks=2, remedy="equal work", advice="even-work"),
    _row("transfer", Kind.COMMS_BOUND, ranks=2, remedy="an exchange every eighth step", advice="exchange-less-often"),
    _row("small_messages", Kind.COMMS_BOUND, ranks=2, remedy="one large bucket", advice="fewer-messages"),
    _row("object_collectives", Kind.COMMS_BOUND, "objects", ranks=2, remedy="one tensor", advice="tensors-not-objects"),
    _row("late_in_turn", Kind.COMMS_BOUND, "unknown", ranks=4),
    _row("rank_pool", Kind.OVERSUBSCRIBED, remedy="two threads", advice="cap-rank-threads"),
    _row("worker_pool", Kind.OVERSUBSCRIBED, remedy="one thread a worker", advice="cap-worker-threads"),
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
    _row("too_many_ranks", Kind.OVERSUBSCRIBED, ranks=4, remedy="one thread a rank", advice="cap-rank-threads"),
    _row("other_tenants", Kind.OVERSUBSCRIBED, remedy="no others", advice="others-give-way"),
    _row("cpu_quota", Kind.CPU_THROTTLED, "quota", remedy="no quota", advice="raise-quota"),
    _row("leak", Kind.MEMORY_PRESSURE, watch_s=GROWTH_S),
    _row("copy_on_write", Kind.MEMORY_PRESSURE, watch_s=GROWTH_S),
    _row("swap", Kind.MEMORY_PRESSURE, remedy="no limit", advice="more-memory"),
    _row("shm", Kind.MEMORY_PRESSURE),
    *(
        Row(
            f"{of}_run_out",
            Label(Kind.LIMITS, of),
            watch_s=GENERATIONS_S if of == "descriptors" else GROWTH_S,
            remedy="given back at once",
            advice=advice,
            file="fill_up",
            options=("--of", of),
        )
        for of, advice in (
            ("descriptors", "close-what-is-opened"),
            ("disk", "free-the-disk"),
            ("inodes", "fewer-files"),
        )
    ),
    _row("starting_import", Kind.STARTING, "import"),
    _row("starting_load", Kind.STARTING, "load"),
    _row("starting_compile", Kind.STARTING, "compile"),
    _row("first_steps", Kind.STARTING, watch_s=YOUNG_S, flags=("--no-stacks",)),
    _row("checkpoint", Kind.PAUSED),
    _row("validation", Kind.PAUSED),
    _row("waiting_input", Kind.IDLE, "waiting-for-input"),
    _row("finished", Kind.IDLE),
    _row("failed", Kind.IDLE),
    _row("lock_hang", Kind.HUNG, "lock", also=(Label(Kind.HUNG, "no-progress"),), watch_s=HUNG_S),
    _row("stopped", Kind.HUNG, watch_s=HUNG_S),
    Row("compute", COMPUTE),
    Row("pace", BALANCED),
    Row("light_workers", COMPUTE, also=(BALANCED,)),
    Row("idle_workers", COMPUTE, also=(BALANCED,)),
    Row("hf_like", COMPUTE, also=(BALANCED,)),
    Row("hidden_wait", COMPUTE, also=(BALANCED,)),
    Row("healthy_ranks", COMPUTE, also=(BALANCED,), ranks=2),
)


def find_row(name: str) -> Row:
    return {row.name: row for row in ROWS}[name]
