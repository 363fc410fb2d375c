"""Hold what the session has sent until the screen looks. Knows nothing of textual."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from tpmon.model.frame import Event, EventKind
from tpmon.model.known import is_known
from tpmon.model.results import DumpUpdate, SampleUpdate, Update
from tpmon.model.verdict import pick_code
from tpmon.ui.controls import Reading

EVENT_LIMIT = 500


def turns_bad(update: Update, events: Sequence[Event]) -> bool:
    """Tell whether a new verdict is among ``events`` and is one that accuses: what a bell is rung for."""
    verdict = update.frame.verdict
    accuses = is_known(verdict) and pick_code(verdict.kind, verdict.cause) in (10, 12)
    return accuses and any(event.kind is EventKind.VERDICT for event in events)


class Inbox:
    """Take Updates in any thread and keep the newest of them with the events of all.

    Bounded: however long the screen does not look, it holds one Update, one dump, one sample and 500 events.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._update: Update | None = None
        self._dump: DumpUpdate | None = None
        self._sample: SampleUpdate | None = None
        self._events: deque[Event] = deque(maxlen=EVENT_LIMIT)

    def put(self, update: Update) -> bool:
        """Add an Update and tell whether it is the first since ``take``."""
        with self._lock:
            first = self._update is None
            self._update = update
            self._events.extend(update.frame.events)
            return first

    def take(self) -> tuple[Update | None, tuple[Event, ...]]:
        """Return the newest Update and all events since the last call."""
        with self._lock:
            taken = self._update, tuple(self._events)
            self._update = None
            self._events.clear()
            return taken

    def put_reading(self, result: Reading) -> bool:
        """Keep the newest dump or sample and tell whether it is the first since ``take_readings``."""
        with self._lock:
            first = self._dump is None and self._sample is None
            if isinstance(result, DumpUpdate):
                self._dump = result
            else:
                self._sample = result
            return first

    def take_readings(self) -> tuple[DumpUpdate | None, SampleUpdate | None]:
        """Return the newest dump and the newest sample since the last call, where there are any."""
        with self._lock:
            taken = self._dump, self._sample
            self._dump = self._sample = None
            return taken
