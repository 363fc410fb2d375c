"""The closed table of verdicts, and the Finding that carries one. Generates docs/verdicts.md.

A kind says what holds the run; a cause says why. Exit codes are those of ``--check`` and ``diagnose``.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum, IntEnum
from types import MappingProxyType

from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import Outcome


class Kind(str, Enum):
    """Name what holds a run, or that nothing does."""

    BALANCED = "balanced"
    COMPUTE_BOUND = "compute-bound"
    STARTING = "starting"
    PAUSED = "paused"
    IDLE = "idle"
    DATA_BOUND = "data-bound"
    PYTHON_BOUND = "python-bound"
    LAUNCH_BOUND = "launch-bound"
    SYNC_BOUND = "sync-bound"
    COMMS_BOUND = "comms-bound"
    OVERSUBSCRIBED = "oversubscribed"
    CPU_THROTTLED = "cpu-throttled"
    GPU_THROTTLED = "gpu-throttled"
    GPU_UNHEALTHY = "gpu-unhealthy"
    MEMORY_PRESSURE = "memory-pressure"
    LIMITS = "limits"
    FAILED = "failed"
    NOT_ENOUGH_EVIDENCE = "not-enough-evidence"
    HUNG = "hung"


class VerdictCode(IntEnum):
    """Name the exit codes that are answers: of a verdict, and of what compares two runs."""

    FINE = 0
    HELD = 10
    """Something holds the run; of a comparison: not better, or another verdict."""
    UNDECIDED = 11
    HUNG = 12


@dataclass(frozen=True, slots=True)
class KindRow:
    """Hold one row of the table: exit code, causes, and one line of meaning."""

    kind: Kind
    exit_code: int
    causes: tuple[str, ...]
    meaning: str


def _row(kind: Kind, code: VerdictCode, meaning: str, *causes: str) -> KindRow:
    return KindRow(kind, int(code), tuple(" ".join(causes).split()), meaning)


TABLE = (
    _row(Kind.BALANCED, VerdictCode.FINE, "no single cause holds the run back"),
    _row(
        Kind.COMPUTE_BOUND,
        VerdictCode.FINE,
        "the hardware that should be busy is busy: the healthy end",
        "gpu-compute gpu-memory-bandwidth gpu cpu",
    ),
    _row(Kind.STARTING, VerdictCode.FINE, "no steady steps yet", "import load compile autotune first-steps"),
    _row(
        Kind.PAUSED,
        VerdictCode.FINE,
        "training waits for something it does on purpose",
        "checkpoint validation checkpoint-share validation-share",
    ),
    _row(
        Kind.IDLE,
        VerdictCode.FINE,
        "nothing is left to do, or a person, a request or a time is waited for",
        "finished failed ended waiting-for-input polls",
    ),
    _row(
        Kind.DATA_BOUND,
        VerdictCode.HELD,
        "the accelerator, or on CPU the compute, idles while the loop waits for a batch",
        "no-workers cpu-transform storage-bandwidth storage-latency network-store",
        "page-cache-thrash too-few-workers one-slow-worker uneven-workers worker-lock respawn",
        "killed-workers worker-affinity periodic sampler collate pin drain own-loader decode-engine skipping",
    ),
    _row(
        Kind.PYTHON_BOUND,
        VerdictCode.HELD,
        "one Python thread sets the pace",
        "gil single-thread small-operators blocking-call",
    ),
    _row(
        Kind.LAUNCH_BOUND, VerdictCode.HELD, "launches do not keep the GPU busy", "tiny-kernels main-thread"
    ),
    _row(
        Kind.SYNC_BOUND,
        VerdictCode.HELD,
        "the host waits for the GPU step by step",
        "explicit implicit allocator",
    ),
    _row(
        Kind.COMMS_BOUND,
        VerdictCode.HELD,
        "ranks wait for each other",
        "straggler objects small-messages transfer unknown",
    ),
    _row(
        Kind.OVERSUBSCRIBED,
        VerdictCode.HELD,
        "more threads want the CPUs than there are for them: pools of the job, a binding, others",
        "rank-pool worker-pool too-many-ranks affinity other-tenants",
    ),
    _row(Kind.CPU_THROTTLED, VerdictCode.HELD, "the CPU quota of the control group stops the job", "quota"),
    _row(
        Kind.GPU_THROTTLED, VerdictCode.HELD, "a card is held below its clocks", "thermal brake odd-cap pcie"
    ),
    _row(Kind.GPU_UNHEALTHY, VerdictCode.HELD, "a card reports errors that want a reset or a replacement"),
    _row(
        Kind.MEMORY_PRESSURE,
        VerdictCode.HELD,
        "memory runs out, or is about to",
        "leak copy-on-write swap shm gpu",
    ),
    _row(
        Kind.LIMITS,
        VerdictCode.HELD,
        "something other than memory runs out, or will soon",
        "descriptors threads disk inodes",
    ),
    _row(
        Kind.FAILED,
        VerdictCode.HELD,
        "ranks end with an error, and the job goes on without its work",
        "restarts",
    ),
    _row(Kind.NOT_ENOUGH_EVIDENCE, VerdictCode.UNDECIDED, "what could be read does not decide"),
    _row(
        Kind.HUNG,
        VerdictCode.HUNG,
        "no step, no line, no queue movement",
        "missing-rank remote-rank lock dead-worker lost-batch blocked-io gpu-wait spin stopped",
        "gpu-lost no-progress",
    ),
)


class Confidence(str, Enum):
    """Say how much to trust a Finding: by physical origins, duration and distance from the threshold."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class SinceIs(str, Enum):
    """Say whether ``since`` is when it began, or the earliest time that is known."""

    ONSET = "onset"
    LOWER_BOUND = "lower-bound"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hold one reading for or against a Finding; ``text`` replaces value and unit: "14 of 25 samples"."""

    name: str
    value: Known[float]
    unit: str
    text: str
    source: str
    age_s: Known[float]


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold one verdict.

    ``share_pct`` is the share of the step time (or of the figure that the kind is about) that it
    costs, with its 95 % interval. ``ceiling`` says what the run gains at most when it goes away.
    """

    kind: Kind
    cause: Applicable[str]
    confidence: Confidence
    share_pct: Applicable[float]
    share_low_pct: Applicable[float]
    share_high_pct: Applicable[float]
    since: datetime
    since_is: SinceIs
    since_source: str
    summary: str
    try_: Applicable[str]
    also_try: Applicable[tuple[str, ...]]
    """What else may help, best first; not applicable where nothing else does."""
    ceiling: Applicable[str]
    evidence: tuple[Evidence, ...]
    against: tuple[Evidence, ...]
    ruled_out: tuple[str, ...]
    unknown: tuple[str, ...]
    pid: Applicable[int]
    rank: Applicable[int]
    card: Applicable[int]
    """What it points at, where it points at one process, one rank, one card (NVML index)."""
    where: Applicable[str]
    """Where the main thread of that process is, by its newest stacks: "backward train.py:88"."""
    try_code: Applicable[str] = NOT_APPLICABLE
    """The end of ``try_`` that is pasted, as it is; older recordings lack it."""
    try_keys: Applicable[str] = NOT_APPLICABLE
    """The same as ``try_`` by the keys of the screen, where they do it."""


IN_WORDS = Missing("in words")
"""The value of a reading that is no number: its text says it."""
BEFORE_THE_END = Figure.BEFORE_THE_END.label
"""Name of the reading that keeps what was said last of a job that has ended."""
EXIT_CODES = {row.kind: row.exit_code for row in TABLE}
"""Of the kinds; ``pick_code`` knows the causes that have another one."""
END_CAUSES = MappingProxyType({Outcome.WELL: "finished", Outcome.FAILED: "failed", Outcome.UNKNOWN: "ended"})
"""The causes of ``idle`` that say that the job is over, by how it ended."""
CAUSE_CODES = MappingProxyType(
    {
        (Kind.IDLE, "failed"): int(VerdictCode.HELD),
        (Kind.IDLE, "ended"): int(VerdictCode.UNDECIDED),
        (Kind.PAUSED, "checkpoint-share"): int(VerdictCode.HELD),
        (Kind.PAUSED, "validation-share"): int(VerdictCode.HELD),
    }
)
"""A job that crashed has not ended well, and one whose exit status nobody saw may not have (ADR 0008).

One pause is healthy, pauses that take a fifth of the time are not."""


def pick_code(kind: Kind, cause: Applicable[str]) -> int:
    """Return the exit code of a verdict: that of its cause where it has one, else of its kind."""
    return CAUSE_CODES.get((kind, cause), EXIT_CODES[kind]) if is_known(cause) else EXIT_CODES[kind]
