"""What the screen shows, as data: lines of inked text and the state that keys change.

Painters are functions of a ViewState and a size; keys are functions from ViewState to ViewState.
Knows nothing of textual.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from tpmon.model.frame import Event, Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known
from tpmon.model.results.capture import CaptureUpdate
from tpmon.model.results.results import DumpUpdate, SampleUpdate
from tpmon.model.sample import SampleRequest
from tpmon.model.window import Pulse
from tpmon.ui.kit.lines import Ink, KeyHelp, Line, Size, Span

__all__ = ["Ink", "KeyHelp", "Line", "Size", "Span"]  # beside what is made here


class Pane(IntEnum):
    """Name the panes by the digit that zooms them."""

    RANKS = 1
    CPU = 2
    WORKERS = 3
    GPUS = 4
    EVENTS = 5


class Overlay(Enum):
    """Name what may lie over the panes."""

    NONE = "none"
    HELP = "help"
    DETAILS = "details"
    """Everything about the worker or rank under the cursor."""
    ENVIRONMENT = "environment"
    VERDICT = "verdict"
    """Everything that the verdict rests on."""
    STACKS = "stacks"
    """Where every thread of the job is, folded."""
    SAMPLE = "sample"
    """The hot functions of some seconds."""
    CAPTURE = "capture"
    """What a capture costs, how far it is, what came of it."""
    FILTER = "filter"
    """The filter line is being typed."""


class SortBy(Enum):
    """Name the columns that the workers pane can be sorted by."""

    CPU = "cpu"
    MEMORY = "memory"
    TIME = "time"
    """Age, oldest first: the birth order of the workers."""
    PID = "pid"


WHOLE_GROUP = -1
OTHER_THREADS = 0
"""The mark of the row below which all threads beside the main ones are folded."""


@dataclass(frozen=True, slots=True)
class StackRow:
    """Name one row of the stacks: a group by its mark, or one line of its stack by its number."""

    mark: int
    line: int = WHOLE_GROUP


class Price(str, Enum):
    """Name what a look costs that a key asks for twice; the value is that key."""

    STOP = "R"
    NATIVE = "N"
    VARIABLES = "L"


@dataclass(frozen=True, slots=True)
class StacksView:
    """Hold what keys have done to the picture of stacks; times are CLOCK_MONOTONIC.

    The group of the odd one is open until it is in ``closed``, the others are closed until they
    are in ``opened``. ``asked_ns`` is set from the key until the session answers, ``priced_ns``
    while the price of ``priced`` is on the screen, and ``seen_ns`` says which dump was looked at.
    """

    cursor: Applicable[StackRow] = NOT_APPLICABLE
    opened: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    asked_ns: Applicable[int] = NOT_APPLICABLE
    priced_ns: Applicable[int] = NOT_APPLICABLE
    priced: Price = Price.STOP
    seen_ns: Applicable[int] = NOT_APPLICABLE
    as_tree: bool = False
    """Merge the stacks of main threads where they begin alike, instead of group below group."""
    whole: bool = False
    """Show every frame of a group, also those of libraries."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """Hold everything that the picture depends on.

    ``now_ns`` is CLOCK_MONOTONIC at painting: ages are counted from it, so that a stalled
    session shows on the screen. While ``paused_ns`` is set, ``frame`` stays and sampling goes on.
    """

    frame: Known[Frame]
    pulses: tuple[Pulse, ...]
    events: tuple[Event, ...]
    """The events since attaching, oldest first, at most 500: those of every day make way for the others."""
    now_ns: int
    interval_s: float
    paused_ns: Applicable[int]
    zoom: Applicable[Pane]
    focus: Pane
    cursor_pid: Applicable[int]
    """The row under the cursor is named by PID, so that it stays when rows move."""
    scroll: int
    sort: SortBy
    sort_reversed: bool
    filter_text: str
    overlay: Overlay
    message: str
    """One line of answer to the last key, such as where a copy went; "" for none."""
    ascii_only: bool
    readonly: bool = False
    """Offer nothing that stops a process of the job."""
    no_stacks: bool = False
    """Offer no sampling of stacks; one look is read where a key asks for it."""
    behind: Overlay = Overlay.NONE
    """What the help or the verdict lies over, to go back there."""
    dump: Applicable[DumpUpdate] = NOT_APPLICABLE
    """The newest dump of the job's stacks, also while it is read."""
    stacks: StacksView = StacksView()
    offered_ns: Applicable[int] = NOT_APPLICABLE
    """When the key of the bundle said what it does: its next press does it."""
    capture: Applicable[CaptureUpdate] = NOT_APPLICABLE
    """The capture that was asked for last: its price, how far it is, what came of it."""
    sample: Applicable[SampleUpdate] = NOT_APPLICABLE
    """The newest samples of the job's stacks, also while they come."""
    to_sample: Applicable[SampleRequest] = NOT_APPLICABLE
    """What the key of sampling asks for next: its price is on the screen."""
    captured: Applicable[str] = NOT_APPLICABLE
    """The trace that was captured last, to be opened."""
