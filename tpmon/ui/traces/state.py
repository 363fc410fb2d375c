"""The state of the screen of traces: the analysis, the place in it, what keys have changed.

Its subject is traces (``subject.py``) or memory snapshots (``snapshots.py``), each with its tabs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Union

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.results.trace_tables import CodePlace, OperatorGroupRow, Stretch, Timeline
from tpmon.ui.kit.keys import Overlay, ScreenState, Search
from tpmon.view.layout import Ink, Item
from tpmon.view.trace import Grouping

if TYPE_CHECKING:
    from tpmon.ui.traces.snapshots import SnapshotSubject
    from tpmon.ui.traces.subject import TraceSubject

    ScreenSubject = Union[TraceSubject, SnapshotSubject]

WHOLE = Stretch(0, 1 << 30)
"""All steps of a trace."""


class Tab(Enum):
    """Name the tabs of a trace by the digit that opens them."""

    OVERVIEW = 1
    GAPS = 2
    OPS = 3
    KERNELS = 4
    MEMORY = 5
    RANKS = 6
    AGAINST = 7
    """The changes from another trace, where one is compared."""


class SnapshotTab(Enum):
    """Name the tabs of a memory snapshot by the digit that opens them."""

    OVERVIEW = 1
    LIVE = 2
    PEAK = 3
    OOM = 4


AnyTab = Union[Tab, SnapshotTab]


@dataclass(frozen=True, slots=True)
class Head:
    """Hold the first line: file and measure, with short forms for small screens: ``brief``, ``measure``."""

    left: tuple[Item, ...]
    right: tuple[Item, ...]
    brief: str
    measure: str


@dataclass(frozen=True, slots=True)
class TabAnswer:
    """Hold the line below: the result. Small screens show ``word``, and below it ``texts``."""

    items: tuple[Item, ...]
    word: str
    ink: Ink
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceView(ScreenState):
    """Hold everything that the picture of a trace depends on.

    ``cursors`` has the paragraph or row under the cursor for each tab, ``scroll`` the first line of what
    covers the tabs. ``sort`` is the column to sort by, 0 for the order of the analysis.
    """

    subject: ScreenSubject
    timeline: Applicable[Timeline] = NOT_APPLICABLE
    file: int = 0
    tab: AnyTab = Tab.OVERVIEW
    cursors: tuple[int, ...] = (0,) * len(Tab)
    stretch: Stretch = WHOLE
    lane: int = 0
    """The number of the timeline's device."""
    sort: int = 0
    grouping: Grouping = Grouping.NAMES
    groups: Applicable[tuple[OperatorGroupRow, ...]] = NOT_APPLICABLE
    """The operators by ``grouping``, where that is not by name."""

    @property
    def path(self) -> str:
        """Return the present file."""
        return self.subject.paths[self.file]

    @property
    def cursor(self) -> int:
        """Return the place of the cursor in the open tab, or in the stack over it."""
        return self.scroll if self.overlay is Overlay.STACK else self.cursors[self.tab.value - 1]


def begin_view(subject: ScreenSubject, *, ascii_only: bool) -> TraceView:
    """Return the first view of a screen."""
    none = Overlay.NONE
    return TraceView(ascii_only, none, none, 0, False, "", "", Search(), subject, tab=subject.first_tab)


@dataclass(frozen=True, slots=True)
class TraceControls:
    """Hold what the screen may ask of the analysis; none of it reads a file.

    ``look`` takes the numbers of file and device, the stretch and the number of columns; ``find_line`` the
    number of the file and the name of an operator, a kernel, a Python function or a frame.
    """

    look: Callable[[int, int, Stretch, int], Applicable[Timeline]]
    find_line: Callable[[int, str], Known[CodePlace]]
    group: Callable[[int, Grouping], Applicable[tuple[OperatorGroupRow, ...]]] = lambda _file, _grouping: (
        NOT_APPLICABLE
    )
    """Group the operators of a file; slow in a large trace, so only on demand."""
