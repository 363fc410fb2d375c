"""What a session had at hand, written beside the report of a crash of tpmon, in bounded time."""

from __future__ import annotations

from collections.abc import Callable

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, NotApplicable
from tpmon.model.results.recording import Subject
from tpmon.model.units import clean_text
from tpmon.probe.base.worker import read_within
from tpmon.record.step import JudgedFrame

WRITE_S = 4.0
"""Nobody waits longer for it: the crash is told after that."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Hold what a session watches, and how to ask it for the steps at hand."""

    subject: Callable[[], Subject]
    recall: Callable[[], tuple[JudgedFrame, ...]]


_watched: list[Watched] = []
"""The session that was opened last: a crash may be told where nobody knows of it any more."""


def note_watched(watched: Watched) -> None:
    """Note the session whose steps a report of a crash has beside it."""
    _watched[:] = [watched]


def write_watched(path: str) -> Known[str] | NotApplicable:
    """Write the steps at hand into a new recording, and return its path; never raise, nor wait for long."""
    try:
        steps = _watched[0].recall() if _watched else ()
        if not steps:
            return NOT_APPLICABLE
        subject = _watched[0].subject

        def write() -> str:
            from tpmon.record.writer import copy_recording  # noqa: PLC0415  # a crash alone needs it

            copy_recording(path, subject(), steps)
            return path

        return read_within(WRITE_S, write)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # it is the crash that is to be told
        return Missing(clean_text(str(error)) or type(error).__name__)
