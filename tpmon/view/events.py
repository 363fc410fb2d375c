"""Tell everyday events from others, and keep the newest of both. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpmon.model.frame import Event, EventKind

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
