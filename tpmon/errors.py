"""The errors a person can meet: what was seen, and the one thing to try. Knows no other room."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar


class ExitCode(IntEnum):
    """Name every exit status of the command line (docs/guide.md, "Exit codes")."""

    OK = 0
    BUG = 1
    USAGE = 2
    NO_TARGET = 3
    NOT_PERMITTED = 4
    NO_TERMINAL = 5
    HANG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


_HEAD, _TAIL = 300, 150
"""Of a line that repeats what somebody else wrote, an argument of 5,000 characters as well."""


class TpmonError(Exception):
    """Say what was seen in one line and the one thing to try in another."""

    exit_code = ExitCode.BUG

    def __init__(self, what: str, try_this: str) -> None:
        """Keep both lines, the first in one piece and of bounded length; stderr gets them."""
        if not what.isprintable():
            what = "".join(char if char.isprintable() else "?" for char in what)
        if len(what) > _HEAD + _TAIL:
            what = f"{what[:_HEAD]}…{what[-_TAIL:]}"
        super().__init__(what)
        self.what = what
        self.try_this = try_this


class UsageError(TpmonError):
    """Refuse arguments or a configuration that cannot be used."""

    exit_code = ExitCode.USAGE


def exclude(both: str, why: str = "") -> UsageError:
    """Refuse two options, or settings, that cannot hold together."""
    return UsageError(f"{both} exclude each other{why}", "leave one of the two out")


class NoTargetError(TpmonError):
    """Refuse a PID that is no training job: not there, zombie, kernel thread, no Python, no torch."""

    exit_code = ExitCode.NO_TARGET


class LateStartError(NoTargetError):
    """Refuse a process that is no training job, and too old for one whose imports are not done.

    ``process`` is its PID and its start in clock ticks: whoever waited for it already may go on.
    """

    def __init__(self, what: str, try_this: str, process: tuple[int, int]) -> None:
        """Keep both lines and the process."""
        super().__init__(what, try_this)
        self.process = process


class SeveralJobsError(UsageError):
    """Refuse to choose one of several jobs that are meant as well."""


class StartingError(LateStartError):
    """Refuse a process that is no training job yet, and may become one: its imports are not done."""


class NotPermittedError(TpmonError):
    """Refuse a target that this user may not read."""

    exit_code = ExitCode.NOT_PERMITTED


class NoTerminalError(TpmonError):
    """Refuse to draw a screen where there is no terminal."""

    exit_code = ExitCode.NO_TERMINAL


Raised = TypeVar("Raised", bound=BaseException)


def find_behind(error: BaseException, kind: type[Raised]) -> Raised | None:
    """Find what an error was made of, as by code that a signal's exception interrupts; None for nothing.

    Before Python 3.12 each ``__set_name__`` of a class makes a RuntimeError of whatever is raised in it
    (type_new_set_names of Objects/typeobject.c).
    """
    behind: BaseException | None = error
    seen: set[int] = set()
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, kind):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return None
