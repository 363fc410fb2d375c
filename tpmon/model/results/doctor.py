"""What tpmon may read and what not: the result of ``tpmon doctor``, for a person and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from typing import Literal, get_args

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable

DOCTOR_SCHEMA = "tpmon.doctor/1"
CheckName = Literal[
    "py-spy",
    "yama",
    "capability",
    "container",
    "hidepid",
    "seccomp",
    "lsm",
    "perf",
    "kernel-log",
    "nvml",
    "counters",
    "clipboard",
    "stat",
    "io",
    "smaps_rollup",
    "environ",
    "fd",
    "wchan",
    "syscall",
    "memory",
    "stacks",
    "cgroup",
    "cards",
    "ras",
    "place",
]
"""The lines of ``tpmon doctor``: first those of the machine, from "stat" on those of a job."""
CHECK_NAMES: tuple[CheckName, ...] = get_args(CheckName)
NOT_PERMITTED = "not permitted"
_POINTER = re.compile(rf" \(doctor: (?:{'|'.join(CHECK_NAMES)})\)")


class Access(str, Enum):
    """Say whether a source may be read."""

    ALLOWED = "allowed"
    DENIED = "denied"
    ABSENT = "absent"
    """It is not there, so nothing forbids it: no driver, no card, a program that is not installed."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """Say of one source whether it may be read, why, and the one command or flag that would change it.

    ``name`` is one of ``CHECK_NAMES``. ``needed`` marks what the verdict or the stacks cannot do without.
    ``fix`` does not apply where nothing has to be done, or nothing can be.
    """

    name: str
    access: Access
    needed: bool
    why: str
    fix: Applicable[str]


@dataclass(frozen=True, slots=True)
class JobCheckup:
    """Hold what may be read of one job. ``pids`` are the processes that were tried, ranks before others.

    ``remark`` says how the asked PID was understood, "" where it was taken as it stands.
    """

    pid: int
    name: str
    user: str
    pids: tuple[int, ...]
    remark: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Checkup:
    """Hold what ``tpmon doctor`` found: of this machine, and of each job."""

    schema: str
    taken: datetime
    host: str
    user: str
    machine: tuple[Check, ...]
    jobs: tuple[JobCheckup, ...]


def list_checks(checkup: Checkup) -> Iterator[Check]:
    """Yield every check, those of the jobs first."""
    for job in checkup.jobs:
        yield from job.checks
    yield from checkup.machine


def is_obstacle(check: Check) -> bool:
    """Tell whether something that tpmon needs may not be read."""
    return check.needed and check.access in (Access.DENIED, Access.ABSENT)


def list_obstacles(checkup: Checkup) -> tuple[Check, ...]:
    """Return what is needed and may not be read, each once by its name and reason."""
    found: dict[tuple[str, str], Check] = {}
    for check in list_checks(checkup):
        if is_obstacle(check):
            found.setdefault((check.name, check.why), check)
    return tuple(found.values())


def point_to(reason: str, check: CheckName) -> str:
    """End a reason with the line of ``tpmon doctor`` that says why, and what would change it."""
    return f"{reason} (doctor: {check})"


def drop_pointers(reason: str) -> str:
    """Take the pointers to the doctor out of a reason that the doctor itself shows."""
    return _POINTER.sub("", reason)


def say_refusal(error: OSError, check: CheckName) -> str:
    """Say in lower case why something was not read; who was not permitted is sent to a line of the doctor."""
    if isinstance(error, PermissionError):
        return point_to(NOT_PERMITTED, check)
    return (error.strerror or str(error) or "refused").lower()
