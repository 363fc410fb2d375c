"""Word what tpmon attached to as the first event. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tpmon.model.frame import Event, EventKind
from tpmon.model.process import ProcessSample, Role


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def describe_attach(pid: int, processes: Sequence[ProcessSample], taken: datetime) -> Event:
    """Return the first event: what tpmon attached to."""
    ranks = sum(process.role is Role.RANK for process in processes)
    workers = sum(process.role is Role.WORKER for process in processes)
    text = f"attached to pid {pid}: {_count(ranks, 'rank')}, {_count(workers, 'loader worker')}"
    return Event(taken, EventKind.ATTACH, text)
