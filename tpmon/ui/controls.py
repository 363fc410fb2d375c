"""What the screen is given and what it gives back: options, what it may ask of others, how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpmon.model.dump import DumpRequest
from tpmon.model.results import DumpUpdate


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """Hold what the command line decides about the screen."""

    interval_s: float
    ascii_only: bool
    bell: bool = False
    """Ring the terminal bell when the verdict turns bad."""
    readonly: bool = False
    """Offer no key that stops a process of the job."""


@dataclass(frozen=True, slots=True)
class Controls:
    """Hold what the screen may ask of others; no call may block."""

    set_interval: Callable[[float], None]
    stop: Callable[[], None]
    ask_dump: Callable[[DumpRequest], None]
    write_dump: Callable[[DumpUpdate], str]
    """Write a dump as text, to be pasted into a ticket."""


@dataclass(frozen=True, slots=True)
class ScreenResult:
    """Hold how the screen ended: ``text`` belongs on stdout, ``complaint`` on stderr."""

    exit_code: int
    text: str
    complaint: str
