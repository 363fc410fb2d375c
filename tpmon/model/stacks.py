"""Stack samples as they were counted: typed frames, unclassified."""

from __future__ import annotations

from datetime import datetime

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable


@dataclass(frozen=True, slots=True)
class StackFrame:
    """Hold one Python frame; ``line`` is the line that runs."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class StackCount:
    """Say how many samples found a thread in these frames, outermost first; dumps tell ``holds_gil``."""

    tid: int
    thread: str
    frames: tuple[StackFrame, ...]
    samples: int
    holds_gil: Applicable[bool] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Hold the text of one line of the program, cut, with secrets hidden."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class StackSlice:
    """Hold a slice of non-blocking samples of a process; ``samples`` are of its loop, also while idle."""

    pid: int
    rank: Applicable[int]
    ended: datetime
    ended_ns: int
    seconds: float
    rate_hz: float
    samples: int
    stacks: tuple[StackCount, ...]
    loop_tid: Applicable[int] = NOT_APPLICABLE
    """The thread among them that runs the training loop, where that is not the main thread."""
    source: Applicable[tuple[SourceLine, ...]] = NOT_APPLICABLE
    """The busiest lines of the program's own files; absent where none could be read."""
