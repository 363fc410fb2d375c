"""What a recording says of itself: its subject, its moments, spans of one verdict, events and holes."""

from __future__ import annotations

from tpmon.model.frame import Event
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.verdict import Confidence, Kind


@dataclass(frozen=True, slots=True)
class Subject:
    """Name the job that a recording is of, and how it was watched."""

    host: str
    user: str
    script: str
    pid: int
    start_ticks: int
    boot: str
    """The boot of the machine: PIDs and clocks of another one say nothing."""
    version: str
    """Of the tpmon that recorded it."""
    interval_s: float
    every_s: float
    """Frames are kept so far apart; 0 for all."""
    hang_after_s: Applicable[float]
    may_look: bool
    log_lines: bool
    node: Applicable[str] = NOT_APPLICABLE
    """The node of a fleet whose agent judged its Frames: what that remembered is not in the recording."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Name one Frame of a recording: its number, CLOCK_MONOTONIC and UNIX time in nanoseconds."""

    n: int
    taken_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class VerdictSpan:
    """Hold a time through which one verdict stood; times are UNIX nanoseconds.

    ``confidence`` and ``summary`` are the last of it. ``kind`` does not apply where nothing was judged.
    """

    first_n: int
    last_n: int
    from_ns: int
    to_ns: int
    kind: Applicable[Kind]
    cause: Applicable[str]
    confidence: Applicable[Confidence]
    summary: str


@dataclass(frozen=True, slots=True)
class Hole:
    """Hold a time without Frames and its reason; times are UNIX nanoseconds."""

    from_ns: int
    to_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """Hold an event, and the number and UNIX time of the Frame that has it."""

    n: int
    wall_ns: int
    event: Event
