"""The inputs of the screen: options, updates of the session, and what it may ask of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Union

from tpmon.model.dump import DumpRequest
from tpmon.model.frame import Event, EventKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureRequest, CaptureUpdate
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.replay import TimeJump, TimeMove
from tpmon.model.results.sample import SampleRequest
from tpmon.model.verdict import pick_code
from tpmon.ui.monitor.state import ViewState
from tpmon.view.events import keep_newest


class Errand(Enum):
    """Name a request without arguments."""

    END_SAMPLING = "end the sampling early, and keep what it has"
    WRITE_SAMPLES = "write what was sampled into files for other tools"
    WRITE_BUNDLE = "write a bundle for a ticket"
    RECORD = "record the job into a file, or end that"


@dataclass(frozen=True, slots=True)
class Notice:
    """Hold an errand's result, printed again at the end unless ``passing``, and the ``trace`` it wrote.

    ``records`` tells whether the job is recorded from now on, where that is what has changed.
    """

    text: str
    passing: bool = False
    trace: str = ""
    records: Applicable[bool] = NOT_APPLICABLE


Order = Union[
    DumpRequest, SampleRequest, CaptureRequest, CaptureChoice, CaptureAnswer, Errand, TimeMove, TimeJump
]
"""The requests of keys to the session, or to the player of a recording."""
Reading = Union[DumpUpdate, SampleUpdate, CaptureUpdate]
"""The readings for an order, also while they grow."""
Result = Union[Reading, Notice]
"""The results of an order."""
Asked = tuple[ViewState, Applicable[Order]]
"""The view after a key, and the request to the session, if any."""


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """Hold the options of the command line for the screen."""

    interval_s: float
    ascii_only: bool
    bell: bool = False
    """Ring the terminal bell when the verdict turns bad."""
    readonly: bool = False
    """Offer no key that stops a process of the job."""
    no_stacks: bool = False
    """Offer no sampling of stacks, and write bundles without them."""
    following: str = ""
    """What comes after this screen, which a key ends for it; "" for nothing."""
    from_list: bool = False
    """Whether esc goes back to what this screen was opened from: the list of jobs, a fleet."""
    node: str = ""
    """The node of a fleet that the job runs on, "" for this machine; there some keys are not offered."""
    remark: str = ""
    """What is odd about the job, said once."""


@dataclass(frozen=True, slots=True)
class Controls:
    """Hold what the screen may ask of others; no call may block."""

    set_interval: Callable[[float], None]
    stop: Callable[[], None]
    ask: Callable[[Order], None]
    write: Callable[[Reading], str]
    """Write what was read as text, to paste into a ticket."""
    trace_command: Callable[[str], tuple[str, ...]]
    """Return the command that shows a trace on the terminal."""


def turns_bad(update: Update, events: Sequence[Event]) -> bool:
    """Tell whether a new verdict that accuses is among ``events``: then the bell rings."""
    verdict = update.frame.verdict
    accuses = is_known(verdict) and pick_code(verdict.kind, verdict.cause) in (10, 12)
    return accuses and any(event.kind is EventKind.VERDICT for event in events)


def add_events(before: Sequence[Event], update: Update) -> tuple[Event, ...]:
    """Return the events up to an Update: those of a job that is watched are in its Frames."""
    return keep_newest(known_or(update.events, (*before, *update.frame.events)))


class Inbox:
    """Take Updates in any thread; keep the newest update, dump, sample and capture, and 500 events of all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._update: Update | None = None
        self._readings: dict[type, Reading] = {}
        self._events: tuple[Event, ...] = ()

    def put(self, one: Update | Reading) -> bool:
        """Add one and return whether it is the first since ``take``."""
        with self._lock:
            first = self._update is None and not self._readings
            if isinstance(one, Update):
                self._update = one
                self._events = add_events(self._events, one)
            else:
                self._readings[type(one)] = one
            return first

    def take(self) -> tuple[Update | None, tuple[Reading, ...], tuple[Event, ...]]:
        """Return the newest update and readings, and all events since the last call."""
        with self._lock:
            taken = self._update, tuple(self._readings.values()), self._events
            self._update, self._readings, self._events = None, {}, ()
            return taken
