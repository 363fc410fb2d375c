"""What the screen of a trace shows, as data: the analysis, where one is in it, what keys have changed.

Knows nothing of textual, and nothing of how a trace is read.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known
from tpmon.model.timeline import CodePlace, Stretch, Timeline
from tpmon.model.trace import TraceFile, TraceReport

WHOLE = Stretch(0, 1 << 30)
"""All steps of a trace, however many there are."""


class Tab(IntEnum):
    """Name the tabs by the digit that opens them."""

    OVERVIEW = 1
    GAPS = 2
    OPS = 3
    KERNELS = 4
    MEMORY = 5
    RANKS = 6


class TraceOverlay(Enum):
    """Name what may lie over the tabs."""

    NONE = "none"
    HELP = "help"
    DETAILS = "details"
    """Everything about the row under the cursor."""
    FILTER = "filter"
    """The filter line is being typed."""


@dataclass(frozen=True, slots=True)
class TraceView:
    """Hold everything that the picture of a trace depends on.

    ``cursors`` has one place for each tab: the paragraph or row under its cursor, counted from 0.
    ``sort`` is the column that rows are sorted by, 0 for the order in which the analysis gives them.
    """

    report: TraceReport
    timeline: Known[Timeline]
    ascii_only: bool
    file: int = 0
    tab: Tab = Tab.OVERVIEW
    cursors: tuple[int, ...] = (0,) * len(Tab)
    stretch: Stretch = WHOLE
    lane: int = 0
    """Which device of the trace the timeline is of."""
    overlay: TraceOverlay = TraceOverlay.NONE
    scroll: int = 0
    sort: int = 0
    sort_reversed: bool = False
    filter_text: str = ""
    message: str = ""

    @property
    def shown(self) -> TraceFile:
        """Return the trace that is looked at."""
        return self.report.files[self.file]

    @property
    def cursor(self) -> int:
        """Return the place of the cursor in the tab that is open."""
        return self.cursors[self.tab - 1]


@dataclass(frozen=True, slots=True)
class TraceControls:
    """Hold what the screen may ask of the traces behind the analysis; none of it reads a file.

    ``look`` takes the number of the file and of the device, the stretch and how many columns;
    ``find_line`` the number of the file and the name of an operator, a kernel or a Python function.
    """

    look: Callable[[int, int, Stretch, int], Known[Timeline]]
    find_line: Callable[[int, str], Known[CodePlace]]
