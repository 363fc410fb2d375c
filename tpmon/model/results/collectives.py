"""What a job itself recorded of its collectives, and what is told from it: who waits for whom, and where.

A process group numbers its collectives; every rank of it must call the same one under the same
number. ``RankRecord`` is what one rank recorded, ``Collectives`` all records with what follows.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known
from tpmon.model.stacks import StackFrame


class RecordSource(str, Enum):
    """Name where a record was read."""

    FILE = "flight recorder file"
    PIPE = "flight recorder file, written on request"
    SERVER = "debug server of torch"
    RAS = "NCCL RAS"


class CallState(str, Enum):
    """Say how far one rank is with one collective."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """Hold one call of a collective by one rank; ``line`` is the user's line that made it.

    ``timeout_s`` is how long the backend waits for it. Types are as torch names them: Float.
    """

    sequence: int
    name: str
    is_transfer: bool
    """A send or a receive: numbered apart, and matched by no number."""
    state: CallState
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    created: datetime
    timeout_s: Known[float]
    line: Applicable[StackFrame]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """Hold what one rank recorded of one process group; ``calls`` are those around the first that goes on.

    ``last_called`` and ``last_done`` are 0 before the first. ``batches`` counts batches of sends and
    receives, which torch numbers too: a record from the first call on has them taken out, in others numbers
    cannot be compared between ranks.
    """

    name: str
    description: str
    backend: str
    ranks: Known[tuple[int, ...]]
    last_called: int
    last_done: int
    calls: tuple[CollectiveCall, ...]
    batches: int = 0


@dataclass(frozen=True, slots=True)
class RankRecord:
    """Hold what one rank recorded and when; ``from_start``: it reaches back to its first call."""

    host: str
    pid: int
    rank: Applicable[int]
    source: RecordSource
    taken: datetime
    from_start: bool
    groups: tuple[GroupRecord, ...]


@dataclass(frozen=True, slots=True)
class RasRank:
    """Hold one rank (of its communicator) that NCCL RAS names: what is wrong with it, and its calls."""

    communicator: str
    rank: int
    problem: str
    operation: Applicable[str]
    launched: Applicable[int]
    most_launched: Applicable[int]
    process: Applicable[int]
    node: Applicable[str]


@dataclass(frozen=True, slots=True)
class RasProcess:
    """Name one process that NCCL RAS does not reach, as NCCL names it; ``problem``: dead, or no answer."""

    process: int
    node: str
    problem: str


@dataclass(frozen=True, slots=True)
class RasReport:
    """Hold what NCCL RAS said: ``dead`` processes are not reached, ``silent`` ones gave no answer in time."""

    version: str
    processes: Known[int]
    gpus: Known[int]
    errors: tuple[str, ...]
    ranks: tuple[RasRank, ...]
    dead: int
    silent: int
    lost: tuple[RasProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceNote:
    """Say of one source whether it was read: "" or why not."""

    host: str
    source: RecordSource
    reason: str


@dataclass(frozen=True, slots=True)
class CollectivesReading:
    """Hold all that one look at a job's own records found."""

    records: tuple[RankRecord, ...]
    ras: tuple[RasReport, ...]
    notes: tuple[SourceNote, ...]


@dataclass(frozen=True, slots=True)
class DumpRecords:
    """Hold what was read for the dump whose last look ended at ``dump_ns``, CLOCK_MONOTONIC."""

    dump_ns: int
    reading: CollectivesReading


class CollectiveCause(str, Enum):
    """Name why a collective does not end."""

    MISSING_RANK = "missing-rank"
    """Some ranks called it, others did not."""
    REMOTE_RANK = "remote-rank"
    """All ranks with a record called it; the others have none here."""
    MISMATCH = "mismatch"
    """Ranks called different collectives, or with different sizes or types, under one number."""
    CROSSED = "crossed"
    """Ranks wait for each other in different groups."""
    TRANSFER = "transfer"
    """All ranks called the same one, and it does not end."""


@dataclass(frozen=True, slots=True)
class CallDifference:
    """Say how the call of some ranks differs from that of the most."""

    ranks: tuple[int, ...]
    words: str


@dataclass(frozen=True, slots=True)
class CollectiveFinding:
    """Hold one collective of one process group that some ranks wait in.

    ``waiting`` called it and are not done, ``missing`` did not call it, ``unread`` have no record.
    ``waited_s`` counts from the last call of it. ``abort_s`` is when the backend gives up, from the look on;
    ``abort_assumed``: by its default timeout, which the job may have changed.
    """

    group: str
    backend: str
    cause: CollectiveCause
    sequence: int
    name: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unread: tuple[int, ...]
    differences: tuple[CallDifference, ...]
    waited_s: float
    abort_s: Applicable[float]
    abort_assumed: bool
    summary: str


@dataclass(frozen=True, slots=True)
class Collectives:
    """Hold the records of a job's collectives and what follows from them, the cause first."""

    summary: str
    findings: tuple[CollectiveFinding, ...]
    ras: tuple[RasReport, ...]
    notes: tuple[SourceNote, ...]
    records: tuple[RankRecord, ...]
