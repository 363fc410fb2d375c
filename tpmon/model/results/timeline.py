"""A stretch of a trace as a row of columns: how busy each one was, and what held the rest.

Times are milliseconds from the start of the first step's mark; shares are percent of a column.
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
