"""What there is of a trace beside its JSON: a stretch as columns, a line of Python, steps of the loop.

A column says how busy it was, and what held the rest. Times are milliseconds from the first step's
mark; shares are percent of a column.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known


@dataclass(frozen=True, slots=True)
class Stretch:
    """Say what of a trace to look at: ``count`` steps from ``first`` on, both counted from 0.

    Of one step a part can be looked at alone: number ``part`` of ``parts`` equal ones.
    """

    first: int
    count: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class TimeCell:
    """Hold one column: ``busy_pct`` is device work, without devices operators of the host.

    ``exposed_pct`` is the part of it that is communication which no computation hides. ``cause`` is what
    held most of the rest, a name of ``Timeline.shares``; "" where there is no rest. ``sm_pct`` is est. SM
    efficiency.
    """

    busy_pct: float
    exposed_pct: float
    cause: str
    sm_pct: Known[float]


@dataclass(frozen=True, slots=True)
class StepStart:
    """Say in which column a step begins; ``name`` is short: the number after "ProfilerStep#"."""

    name: str
    cell: int


@dataclass(frozen=True, slots=True)
class TimeShare:
    """Say how much of the stretch is busy ("busy"), or idle by one cause."""

    name: str
    pct: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Hold a stretch in columns of equal length; ``device`` does not apply to a trace without any.

    ``said`` names the stretch: "5 steps", "step 7", "part 2 of 4 of step 7".
    """

    device: Applicable[int]
    devices: tuple[int, ...]
    said: str
    steps_in_all: int
    start_ms: float
    end_ms: float
    cells: tuple[TimeCell, ...]
    steps: tuple[StepStart, ...]
    shares: tuple[TimeShare, ...]
    exposed_pct: float


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Name a line of Python as a trace names it: ``file`` is cut at an entry of the run's sys.path.

    ``folders`` are the working directory and sys.path of the run, where the trace has them.
    """

    function: str
    file: str
    line: int
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """Hold when steps of the loop had ended (ns since the epoch, oldest first), and how many there were then.

    ``at_update``: a step ends with its update; otherwise when the next batch is asked for, or is told to.
    """

    ends_ns: tuple[int, ...]
    steps: tuple[int, ...]
    at_update: bool


@dataclass(frozen=True, slots=True)
class MarkedSteps:
    """Hold how many steps were marked in a trace, which of the loop the first is, and why there is none."""

    marks: int
    first: Known[int]
    why: str
