"""The inputs of the screen: options, updates of the session, and what it may ask of others."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Union

from tpmon.model.dump import DumpRequest
from tpmon.model.frame import Event, EventKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, is_known
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureRequest, CaptureUpdate
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.sample import SampleRequest
from tpmon.model.verdict import pick_code
from tpmon.ui.monitor.state import ViewState


class Errand(Enum):
    """Name a request without arguments."""

    END_SAMPLING = "end the sampling early, and keep what it has"
    WRITE_SAMPLES = "write what was sampled into files for other tools"
    WRITE_BUNDLE = "write a bundle for a ticket"


@dataclass(frozen=True, slots=True)
class Notice:
    """Hold an errand's result, printed again at the end unless ``passing``, and the ``trace`` it wrote."""

    text: str
    passing: bool = False
    trace: str = ""


Order = Union[DumpRequest, SampleRequest, CaptureRequest, CaptureChoice, CaptureAnswer, Errand]
"""The requests of keys to the session."""
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


EVENT_LIMIT = 500
EVERYDAY_KEPT = 100
"""At least so many everyday events are kept."""
_OF_WORKERS = re.compile(r"epoch respawn: |(?:\d+ )?(?:compile )?workers? ")
_KILLED = re.compile(r" gone: (?!exit 0)")
_EVERYDAY = (EventKind.PROBE, EventKind.OUTPUT, EventKind.COMPILE)


def is_everyday(event: Event) -> bool:
    """Tell whether an event may come each epoch: of a worker, a log, the compiler or tpmon itself."""
    of_worker = event.kind is EventKind.PROCESS and _OF_WORKERS.match(event.text) is not None
    if of_worker and _KILLED.search(event.text):
        return False
    return of_worker or event.kind in _EVERYDAY


def keep_newest(events: Sequence[Event]) -> tuple[Event, ...]:
    """Keep 500 events at most, in their order; everyday ones go first.

    Else 128 workers that start anew each epoch would push out the verdicts of the night within hours.
    """
    if len(events) <= EVENT_LIMIT:
        return tuple(events)
    everyday = [number for number, event in enumerate(events) if is_everyday(event)]
    others = sorted(set(range(len(events))).difference(everyday))
    others = others[min(EVERYDAY_KEPT, len(everyday)) - EVENT_LIMIT :]
    kept = sorted((*others, *everyday[len(others) - EVENT_LIMIT :]))
    return tuple(events[number] for number in kept)


def turns_bad(update: Update, events: Sequence[Event]) -> bool:
    """Tell whether a new verdict that accuses is among ``events``: then the bell rings."""
    verdict = update.frame.verdict
    accuses = is_known(verdict) and pick_code(verdict.kind, verdict.cause) in (10, 12)
    return accuses and any(event.kind is EventKind.VERDICT for event in events)


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
                self._events = keep_newest((*self._events, *one.frame.events))
            else:
                self._readings[type(one)] = one
            return first

    def take(self) -> tuple[Update | None, tuple[Reading, ...], tuple[Event, ...]]:
        """Return the newest update and readings, and all events since the last call."""
        with self._lock:
            taken = self._update, tuple(self._readings.values()), self._events
            self._update, self._readings, self._events = None, {}, ()
            return taken
