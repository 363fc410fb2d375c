"""What is true of programs that were made after public bug reports, and are kept in the project.

Each names its report in its docstring, and ends by itself after ten minutes. They are recorded and measured as those
of reports.py.
"""

from __future__ import annotations

from typing import Any

from tests.corpus.programs import Recorded
from tests.corpus.reports import LOST_BATCH, MORE_WORKERS, REPORTS, UNDECIDED, Reported, data, hang, hung, list_reports
from tests.programs.causes.running import ROOT
from tests.programs.causes.table import Label
from tpmon.model.verdict import Kind

GROUP = "own"
FOLDER = ROOT / "tests/programs/reports"
TWO_RANKS = "torchrun --nproc-per-node 2"
EARLY_RESTART = "restart-from-checkpoint"
OF_THREADS = ("no-fork-after-threads", "one-order-of-locks", "end-left-thread")


def _hang(name: str, kind: int, cause: str, culprit: str, place: str, **more: Any) -> Reported:
    return hang(name, kind, cause, culprit, place, group=GROUP, **more)


def _slow(name: str, kind: int, label: Label, culprit: str, place: str, **more: Any) -> Reported:
    return Reported(name=name, kind=kind, label=label, culprit=culprit, place=place, group=GROUP, **more)


def _of_ranks(name: str, culprit: str, place: str, **more: Any) -> Reported:
    run = f"{TWO_RANKS} {name}.py"
    return _hang(name, 7, "missing-rank", culprit, place, run=run, **more)


HANGS = (
    _hang(
        "killed_pool_worker",
        2,
        "dead-worker",
        "the main process in Pool.map(), for rows of a process of the pool that was killed",
        r"killed_pool_worker\.py:25|Pool\.map\b",
        also=(hung("lost-batch"),),  # its pool has replaced it: who died leaves no trace
        right=("find-dead-worker", "look-at-pool"),
        harmful=(*LOST_BATCH, *OF_THREADS),
        ready="part 1 ",
    ),
    _hang(
        "forked_prefetch",
        1,
        "lock",
        "both workers in queue.get() of __iter__, for a thread that the fork left behind in the parent",
        r"forked_prefetch\.py:26",
        right=("no-fork-after-threads",),
        harmful=("one-order-of-locks", *LOST_BATCH),
        ready="step 30",
    ),
    _of_ranks(
        "ddp_eval_rank0",
        "rank 0 alone in the broadcast of buffers of DDP's forward, in measure(); rank 1 in the barrier after it",
        r"measure|ddp_eval_rank0\.py:(16|34)\b",
        right=("call-on-all-ranks",),
        harmful=(EARLY_RESTART, "even-batches", "check-mount"),
        ready="epoch 0 step 300",
    ),
    _of_ranks(
        "reduce_on_one_rank",
        "rank 1 alone in the reduce of validate(); rank 0 in the all-reduce of backward",
        r"validate|reduce_on_one_rank\.py:(19|40)\b",
        right=("call-on-all-ranks", "look-at-missing-rank"),
        harmful=(EARLY_RESTART, "even-batches", "check-mount"),
        ready="step 300",
    ),
    _of_ranks(
        "early_stop_one_rank",
        "rank 1 has left the loop and waits in the barrier; rank 0 in the all-reduce of backward",
        r"early_stop_one_rank\.py:38\b",
        rank=1,
        right=("look-at-missing-rank", "call-on-all-ranks"),
        harmful=(EARLY_RESTART, "even-batches"),  # the number of batches is the same: it stopped
        ready="step 300",
    ),
    _hang(
        "soft_lock_left",
        8,
        "lock",
        "the main thread at a lock file that nobody holds, in filelock's acquire() below fetch()",
        r"soft_lock_left\.py:(16|32)|adapter\.pt\.lock",
        right=("delete-lock-file", "find-lock-file"),
        harmful=("one-order-of-locks", "find-endless-loop", "map-the-checkpoint"),
        seconds=120.0,
        ready="step 60",
        flags=("--hang-after", "30"),
    ),
    _hang(
        "join_full_queues",
        11,
        "lock",
        "the main process in join() of a child, whose feeder thread writes a pipe that only the parent reads",
        r"join_full_queues\.py:30",
        also=(hung("blocked-io"),),
        right=("read-before-join",),
        harmful=("end-left-thread", "look-for-producer", "one-order-of-locks"),
        ready="epoch 2 ",
    ),
    _hang(
        "dead_producer",
        22,
        "lost-batch",
        "the main thread in queue.get() with a time-out of nine minutes, whose only producer has ended",
        r"dead_producer\.py:28",
        also=(hung("lock"), hung("no-progress")),
        right=("look-for-producer",),
        harmful=("bigger-shm", "shorter-queue", *OF_THREADS),
        seconds=120.0,
        ready="frame 499",
    ),
    _hang(
        "unanswered_request",
        24,
        "lost-batch",
        "the main thread in the event loop: train() awaits futures of an engine whose task has ended",
        r"unanswered_request\.py:(25|32)|await",
        also=(hung("lock"), hung("no-progress")),
        right=("look-for-producer",),
        harmful=("no-breakpoint", "limit-the-request"),
        seconds=120.0,
        ready="step 600",
    ),
    Reported(
        name="checkpoint_watcher",
        kind=21,
        label=Label(Kind.IDLE, "polls"),
        also=(UNDECIDED, Label(Kind.PAUSED, "validation")),
        culprit="nobody: it looks every five seconds for a file that another job writes",
        place="",
        seconds=320.0,
        computes=False,
        ready="scored",
        flags=("--interval", "2"),  # half the Frames of five minutes
        group=GROUP,
    ),
)
SPEED = (
    _slow(
        "refused_store",
        6,
        data("network-store"),
        "the workers sleep before they ask again a store that refuses",
        r"refuse|retr(y|ies)|ask (it )?again|refused_store\.py:(30|31|33)",
        right=("fewer-requests", "stage-on-nvme", "cache-in-ram", "shard-files"),
        harmful=(*MORE_WORKERS, "prefetch-factor", "fetch-many"),
        computes=False,
        ready=r"step \d",
    ),
    _slow(
        "few_groups_of_shards",
        5,
        data("uneven-workers"),
        "4 of 6 workers have ended, as there are two groups of shards",
        r"\b[24] of (its |the )?6\b|(few|fewer|more) shards",
        right=("more-shards",),
        harmful=MORE_WORKERS,
        computes=False,
    ),
    _slow(
        "kept_hardest",
        14,
        Label(Kind.LIMITS, "descriptors"),
        "open descriptors grow towards their limit",
        r"descriptor",
        right=("copy-what-is-kept",),
        harmful=("bigger-shm", "close-what-is-opened"),
    ),
    _slow(
        "small_value_net",
        17,
        Label(Kind.PYTHON_BOUND, "small-operators"),
        "operators of microseconds, called from Python; the pool's second thread spins",
        r"operator|spin",
        right=("one-thread",),
        harmful=("more-cores", "use-all-cores"),
        ready=r"step [1-9]\d*00 ",
    ),
    _slow(
        "bound_workers",
        10,
        data("worker-affinity"),
        "all workers may run on one CPU alone, while others are idle",
        r"\bbound\b|binding|affinity|may run on",
        right=("unbind-workers",),
        harmful=(*MORE_WORKERS, "more-cores", "cap-worker-threads", "transform-once"),
    ),
    _slow(
        "permuted_each_batch",
        4,
        data("sampler"),
        "the main thread in the batch sampler's __iter__; the workers have nothing to do",
        r"permuted_each_batch\.py:22\b",
        right=("choose-at-once",),
        harmful=(*MORE_WORKERS, "prefetch-factor", "gpu-transforms", "transform-once", "one-loader"),
    ),
    _slow(
        "failing_start",
        13,
        Label(Kind.FAILED, "restarts"),
        "rank 1 ends with an error at the start of each attempt",
        r"rank 1\b.*(ended|error|exit)|restart",
        run=f"{TWO_RANKS} --max-restarts 100 failing_start.py",
        right=("read-last-words", "stop-at-first-error"),
        harmful=("local-environment", "map-the-checkpoint", "stage-on-nvme"),
        seconds=90.0,
        ready="attempt 2 of rank 1",
    ),
    _slow(
        "long_validation",
        16,
        Label(Kind.PAUSED, "validation-share"),
        "evaluate() takes more time than the ten steps between two of them",
        r"validation|evaluate|long_validation\.py:(20|21|37)",
        right=("cheaper-validation", "part-of-validation"),
        harmful=("more-cores", "use-all-cores", "async-checkpoint", "start-workers"),
    ),
    _slow(
        "blas_in_workers",
        18,
        Label(Kind.OVERSUBSCRIBED, "worker-pool"),
        "four workers, each with a BLAS thread for every CPU",
        r"\bBLAS\b|pool|threads? (each|in each|of each)",
        right=("cap-worker-threads",),
        harmful=(*MORE_WORKERS, "free-the-lock"),
    ),
    _slow(
        "reduced_one_by_one",
        20,
        Label(Kind.COMMS_BOUND, "small-messages"),
        "all ranks in an all-reduce for each small parameter",
        r"all_reduce|reduce_gradients|small messages|reduced_one_by_one\.py:(14|15)",
        run=f"{TWO_RANKS} reduced_one_by_one.py",
        right=("fewer-messages", "larger-steps"),
        harmful=("find-unused-off", "ddp-buckets", "check-network-path", "look-at-late-rank"),
    ),
    _slow(
        "zip_each_item",
        12,
        data("cpu-transform"),
        "both workers open the archive, and parse its directory, for each item",
        r"ZipFile|zip_each_item\.py:(23|24)",
        also=(data("too-few-workers"),),  # by how many CPUs are free
        right=("mend-hot-call",),
        harmful=("gpu-transforms", "decode-on-gpu", "decode-smaller", "free-the-lock"),
    ),
)
ROWS = {"hangs": HANGS, "speed": SPEED}
"""By the folder of their programs."""
BY_NAME = {row.full_name: row for row in (*REPORTS, *(row for rows in ROWS.values() for row in rows))}


def list_own() -> list[Recorded]:
    """List the programs that are kept in the project."""
    return [one for folder, rows in ROWS.items() for one in list_reports(FOLDER / folder, rows)]
