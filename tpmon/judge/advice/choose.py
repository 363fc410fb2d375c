"""Choose what to do about a verdict: the catalogue of remedies, and which of them fit a cause, best first.

Knows no reading: what was observed comes in as a set of ``Need``, the numbers as ``RunFacts``.
"""

from __future__ import annotations

from tpmon.judge.advice.catalogue import cards as advice_cards
from tpmon.judge.advice.catalogue import comms as advice_comms
from tpmon.judge.advice.catalogue import compile as advice_compile
from tpmon.judge.advice.catalogue import cpu as advice_cpu
from tpmon.judge.advice.catalogue import data as advice_data
from tpmon.judge.advice.catalogue import gpu as advice_gpu
from tpmon.judge.advice.catalogue import hangs as advice_hangs
from tpmon.judge.advice.catalogue import memory as advice_memory
from tpmon.judge.advice.catalogue import progress as advice_progress
from tpmon.judge.advice.catalogue import storage as advice_storage
from tpmon.judge.advice.entry import Chosen, Remedy
from tpmon.judge.advice.facts import (
    RunFacts,
    count_threads_in_free,
    fill,
    fill_paste,
    list_fields,
    may_exceed_quota,
    size_loader,
)
from tpmon.judge.answers.needs import Need
from tpmon.model.known import NOT_APPLICABLE, NotApplicable, is_known, known_or
from tpmon.model.verdict import Kind

CATALOGUE: dict[str, Remedy] = {
    remedy.id: remedy
    for area in (
        advice_data,
        advice_storage,
        advice_cpu,
        advice_gpu,
        advice_compile,
        advice_cards,
        advice_comms,
        advice_memory,
        advice_progress,
        advice_hangs,
    )
    for remedy in area.REMEDIES
}

Cause = str | NotApplicable
"""A cause of the table, or NOT_APPLICABLE for a kind that has none."""

_NUMERICS = ("tf32", "bf16", "fp16-amp", "sdpa-forced")
_STORAGE = ("stage-on-nvme", "cache-in-ram")
_AWAITED = (
    "free-file-lock",
    "limit-the-request",
    "look-at-other-process",
    "find-other-end",
    "look-for-producer",
)
"""For what one thread waits for, where the rule has seen it."""
_PROGRAM = ("checkpointing-off", "debug-taxes-off", "pin-the-batch")

REMEDIES_FOR: dict[tuple[Kind, Cause], tuple[str, ...]] = {
    (Kind.BALANCED, NOT_APPLICABLE): (
        "async-checkpoint",
        "cheaper-validation",
        "debug-taxes-off",
        "pin-the-batch",
    ),
    (Kind.COMPUTE_BOUND, "gpu-compute"): (
        *_NUMERICS,
        "torch-compile",
        "channels-last",
        "cudnn-benchmark",
        "compile-max-autotune",
        "compile-fullgraph",
        "align-shapes",
        *_PROGRAM,
    ),
    (Kind.COMPUTE_BOUND, "gpu-memory-bandwidth"): (
        "torch-compile",
        "bf16",
        "sdpa-forced",
        "fused-optimizer",
        "channels-last",
        "set-to-none",
        "compile-fullgraph",
        *_PROGRAM,
    ),
    (Kind.COMPUTE_BOUND, "gpu"): (
        *_NUMERICS,
        "torch-compile",
        "fused-optimizer",
        "channels-last",
        "cudnn-benchmark",
        "align-shapes",
        *_PROGRAM,
    ),
    (Kind.COMPUTE_BOUND, "cpu"): (
        "use-all-cores",
        "torch-compile",
        "channels-last",
        "more-cores",
        "pin-the-batch",
    ),
    (Kind.STARTING, "import"): ("local-environment",),
    (Kind.STARTING, "load"): ("map-the-checkpoint", *_STORAGE),
    (Kind.STARTING, "compile"): ("compile-cache", "recompilation-trap"),
    (Kind.STARTING, "autotune"): ("compile-cache",),
    (Kind.STARTING, "first-steps"): (),
    (Kind.PAUSED, "checkpoint"): ("async-checkpoint",),
    (Kind.PAUSED, "validation"): ("cheaper-validation",),
    (Kind.IDLE, "finished"): (),
    (Kind.IDLE, "failed"): ("find-killer", "read-last-words"),
    (Kind.IDLE, "ended"): ("read-last-words",),
    (Kind.IDLE, "waiting-for-input"): ("no-breakpoint",),
    (Kind.DATA_BOUND, "no-workers"): (
        "start-workers",
        "pin-memory",
        "gpu-transforms",
        "transform-once",
        "cache-in-ram",
        "shard-files",
        "more-cores",
    ),
    (Kind.DATA_BOUND, "cpu-transform"): (
        "cap-worker-threads",
        "more-workers",
        "gpu-transforms",
        "decode-on-gpu",
        "transform-once",
        "decode-smaller",
        "more-cores",
    ),
    (Kind.DATA_BOUND, "storage-bandwidth"): (*_STORAGE, "denser-format", "shard-files"),
    (Kind.DATA_BOUND, "storage-latency"): ("more-readers", "shard-files", *_STORAGE, "fetch-many"),
    (Kind.DATA_BOUND, "network-store"): ("more-readers", "fetch-many", *_STORAGE, "shard-files"),
    (Kind.DATA_BOUND, "page-cache-thrash"): (
        "read-in-order",
        "more-memory",
        "denser-format",
        "fewer-workers",
    ),
    (Kind.DATA_BOUND, "too-few-workers"): (
        "look-at-sleepers",
        "more-sleepers",
        "more-workers",
        "more-readers",
        "cap-worker-threads",
        "gpu-transforms",
        "decode-on-gpu",
        "transform-once",
        "decode-smaller",
    ),
    (Kind.DATA_BOUND, "one-slow-worker"): (
        "continue-process",
        "look-at-worker",
        "balance-samples",
        "in-order-off",
    ),
    (Kind.DATA_BOUND, "uneven-workers"): ("more-shards",),
    (Kind.DATA_BOUND, "worker-lock"): ("free-the-lock", "lock-or-threads"),
    (Kind.DATA_BOUND, "own-loader"): ("feed-own-queue",),
    (Kind.DATA_BOUND, "respawn"): ("persistent-workers", "one-loader"),
    (Kind.DATA_BOUND, "killed-workers"): ("find-dead-worker", "bigger-shm"),
    (Kind.DATA_BOUND, "worker-affinity"): ("unbind-workers",),
    (Kind.DATA_BOUND, "periodic"): ("prefetch-factor", "periodic-work-ahead", "persistent-workers"),
    (Kind.DATA_BOUND, "collate"): ("start-workers", "collate-arrays", "more-workers", "transform-once"),
    (Kind.DATA_BOUND, "pin"): ("fewer-bytes-to-pin", "pin-off"),
    (Kind.DATA_BOUND, "drain"): ("fewer-tensors", "non-blocking-copy", "pin-memory"),
    (Kind.PYTHON_BOUND, "gil"): ("processes-not-threads", "profile-python", "log-rarely"),
    (Kind.PYTHON_BOUND, "blocking-call"): ("log-rarely", "feed-event-loop", "call-aside"),
    (Kind.PYTHON_BOUND, "single-thread"): ("log-rarely", "profile-python", "start-workers", "use-all-cores"),
    (Kind.LAUNCH_BOUND, "tiny-kernels"): (
        "debug-taxes-off",
        "more-at-once",
        "bigger-micro-batch",
        "compile-reduce-overhead",
        "torch-compile",
        "fused-optimizer",
        "set-to-none",
    ),
    (Kind.LAUNCH_BOUND, "main-thread"): (
        "debug-taxes-off",
        "log-rarely",
        "sync-rarely",
        "torch-compile",
        "compile-reduce-overhead",
        "profile-python",
        "recompilation-trap",
    ),
    (Kind.SYNC_BOUND, "explicit"): (
        "debug-taxes-off",
        "sync-rarely",
        "scaler-without-wait",
        "nan-filter-off",
        "log-rarely",
    ),
    (Kind.SYNC_BOUND, "implicit"): ("pin-memory", "non-blocking-copy", "find-hidden-syncs", "where-not-mask"),
    (Kind.SYNC_BOUND, "allocator"): (
        "no-empty-cache",
        "debug-taxes-off",
        "expandable-segments",
        "limit-all-gathers",
        "smaller-micro-batch",
    ),
    (Kind.COMMS_BOUND, "straggler"): ("look-at-late-rank", "avoid-card", "even-work"),
    (Kind.COMMS_BOUND, "transfer"): (
        "nccl-paths-on",
        "accumulate-no-sync",
        "fsdp-prefetch",
        "fsdp-keep-parameters",
        "fsdp-hybrid",
        "unlimit-all-gathers",
        "check-network-path",
        "bf16-gradients",
        "exchange-less-often",
        "ddp-buckets",
        "find-unused-off",
        "gradient-as-bucket-view",
    ),
    (Kind.COMMS_BOUND, "unknown"): (
        "look-at-late-rank",
        "accumulate-no-sync",
        "fsdp-prefetch",
        "find-unused-off",
        "ddp-buckets",
        "check-network-path",
    ),
    (Kind.OVERSUBSCRIBED, "rank-pool"): ("cap-rank-threads", "cap-threads-in-script"),
    (Kind.OVERSUBSCRIBED, "worker-pool"): ("cap-worker-threads",),
    (Kind.OVERSUBSCRIBED, "too-many-ranks"): (
        "cap-rank-threads",
        "cap-threads-in-script",
        "fewer-ranks",
        "widen-affinity",
        "more-cores",
    ),
    (Kind.CPU_THROTTLED, "quota"): (
        "raise-quota",
        "cap-rank-threads",
        "cap-worker-threads",
        "fit-workers-to-quota",
    ),
    (Kind.GPU_THROTTLED, "thermal"): ("cool-card", "lower-power-limit", "avoid-card"),
    (Kind.GPU_THROTTLED, "brake"): ("check-power-supply", "avoid-card"),
    (Kind.GPU_THROTTLED, "odd-cap"): ("reset-caps", "check-card", "limit-above-card", "avoid-card"),
    (Kind.GPU_THROTTLED, "pcie"): ("reseat-card", "fewer-bytes-to-pin", "avoid-card"),
    (Kind.GPU_UNHEALTHY, NOT_APPLICABLE): ("retire-card", "avoid-card"),
    (Kind.MEMORY_PRESSURE, "leak"): ("bounded-cache", "detach-history", "find-leak"),
    (Kind.MEMORY_PRESSURE, "copy-on-write"): ("arrays-not-objects", "fewer-workers"),
    (Kind.MEMORY_PRESSURE, "swap"): ("out-of-swap", "fewer-workers", "map-the-data", "more-memory"),
    (Kind.MEMORY_PRESSURE, "shm"): ("bigger-shm", "shorter-queue"),
    (Kind.MEMORY_PRESSURE, "gpu"): (
        "detach-on-card",
        "expandable-segments",
        "limit-all-gathers",
        "smaller-micro-batch",
        "checkpointing-on",
        "memory-snapshot",
    ),
    (Kind.NOT_ENOUGH_EVIDENCE, NOT_APPLICABLE): (),
    (Kind.HUNG, "missing-rank"): (
        "restart-from-checkpoint",
        *_AWAITED,
        "one-order-of-locks",
        "check-mount",
        "find-stuck-kernel",
        "find-endless-loop",
        "look-at-missing-rank",
        "dump-stacks",
    ),
    (Kind.HUNG, "remote-rank"): ("look-on-other-hosts", "dump-stacks"),
    (Kind.HUNG, "lock"): (
        "free-file-lock",
        "look-for-producer",
        "end-left-thread",
        "one-order-of-locks",
        "dump-stacks",
        "no-fork-after-threads",
        "time-limit-for-batches",
    ),
    (Kind.HUNG, "dead-worker"): ("find-dead-worker", "bigger-shm", "time-limit-for-batches"),
    (Kind.HUNG, "lost-batch"): ("bigger-shm", "shorter-queue", "time-limit-for-batches", "dump-stacks"),
    (Kind.HUNG, "blocked-io"): (
        "limit-the-request",
        "look-at-other-process",
        "find-other-end",
        "check-mount",
        "find-stuck-kernel",
        "dump-stacks",
    ),
    (Kind.HUNG, "gpu-wait"): ("dump-stacks", "find-stuck-kernel"),
    (Kind.HUNG, "spin"): ("find-endless-loop",),
    (Kind.HUNG, "stopped"): ("thaw-group", "end-debugger", "continue-process"),
    (Kind.HUNG, "gpu-lost"): ("give-card-up", "dump-stacks"),
    (Kind.HUNG, "no-progress"): (*_AWAITED, "dump-stacks", "time-limit-for-batches"),
}
"""The remedies of every row of the table, best first."""


def _more_workers_help(observed: frozenset[Need], facts: RunFacts) -> bool:
    if Need.WORKERS_CPU_BOUND in observed and Need.CORES_FREE not in observed:
        return False
    proposal = size_loader(facts)
    if not is_known(proposal) or not is_known(facts.workers_per_rank):
        return True
    return proposal > facts.workers_per_rank


_ALWAYS_SEEN = frozenset(
    (
        Need.GPU_PRESENT,
        Need.NO_WORKERS,
        Need.WORKERS_PRESENT,
        Need.BATCHES_PINNED,
        Need.RANKS_ELSEWHERE,
        Need.NCCL_PATH_OFF,
        Need.FROZEN,
        Need.TRACED,
        Need.STOPPED,
        Need.FP16_CORES_ALONE,
    )
)
"""What the process list and the driver always tell: not observed means that it is not so."""
_SEEN_IN_STACKS = frozenset(
    (Need.ONLY_FORWARD, Need.LOGGING_IN_STACK, Need.SAVE_IN_STACK, Need.VALIDATION_IN_STACK)
)
"""The same of what stacks show. A synchronise and a copy are not among them: ``.item()`` and ``.to()`` run in
C and leave no frame."""


_WRAPPERS = frozenset((Need.DDP_IN_STACK, Need.FSDP_IN_STACK))
"""A model is wrapped in one of them: where one was seen, the other is known not to be there."""


def _tells(need: Need, observed: frozenset[Need]) -> bool:
    """Tell whether a need that was not observed is known not to be so."""
    if need in _WRAPPERS:
        return bool(observed & _WRAPPERS)
    return need in _ALWAYS_SEEN or (need in _SEEN_IN_STACKS and Need.STACKS_READ in observed)


def _fits(remedy: Remedy, observed: frozenset[Need], facts: RunFacts) -> bool:
    if observed.intersection(remedy.never_with):
        return False
    if any(need not in observed and _tells(need, observed) for need in remedy.needs):
        return False
    if "rank" in list_fields(remedy.title) and not is_known(facts.rank):
        return False  # nobody is to be sent to look at "rank R"
    if remedy.caps_workers and not may_exceed_quota(facts):
        return False
    if remedy.adds_threads and known_or(count_threads_in_free(facts), 2) <= 1:
        return False
    return not remedy.adds_workers or _more_workers_help(observed, facts)


def fill_remedy(remedy: Remedy, observed: frozenset[Need], facts: RunFacts) -> Chosen:
    """Write one remedy for one run; needs that were not observed come first, after "if"."""
    unseen = [need.value for need in remedy.needs if need not in observed]
    title = fill(remedy.title, facts)
    return Chosen(
        remedy=remedy,
        certain=not unseen,
        text=f"if {' and '.join(unseen)}: {title}" if unseen else title,
        paste=fill_paste(remedy.paste, facts),
        ceiling=fill(remedy.ceiling, facts),
    )


def choose(kind: Kind, cause: Cause, observed: frozenset[Need], facts: RunFacts) -> tuple[Chosen, ...]:
    """Return the remedies of one row of the table for one run, those first of which least is unseen.

    Among these ``first_with`` ones, then those of which most was seen, then the order of the table. What
    would do harm (more workers on cores that are used up) is left out, not put behind an "if".

    Raises:
        KeyError: when the table has no such row.
    """
    filled = [
        fill_remedy(CATALOGUE[name], observed, facts)
        for name in REMEDIES_FOR[kind, cause]
        if _fits(CATALOGUE[name], observed, facts)
    ]
    return tuple(
        sorted(
            filled,
            key=lambda one: (
                sum(need not in observed for need in one.remedy.needs),
                not observed.intersection(one.remedy.first_with),
                0 if one.certain else -len((observed - _ALWAYS_SEEN).intersection(one.remedy.needs)),
            ),
        )
    )
