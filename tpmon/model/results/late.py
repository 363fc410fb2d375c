"""Hold what is planned, and what came of it, where the hook is put into a running process."""

from __future__ import annotations

from enum import Enum

from tpmon.model.frozen import dataclass


class LateWay(Enum):
    """Name how the main thread is asked to run the script."""

    PENDING_CALL = "pending-call"
    SCRIPT = "remote-script"


class LateState(Enum):
    """Name how a process answered."""

    INSTALLED = "installed"
    REMOVED = "removed"
    ABSENT = "absent"
    """There was no hook to take out."""
    PRESENT = "present"
    """Its hook came with the run, and stays as it is."""


@dataclass(frozen=True, slots=True)
class LatePlan:
    """Hold which process would be written into, its CPython's version, and how."""

    pid: int
    python: str
    way: LateWay


@dataclass(frozen=True, slots=True)
class LateResult:
    """Hold how a process answered, how long after it was asked first, and how often it was asked."""

    pid: int
    state: LateState
    waited_ms: float
    tries: int
