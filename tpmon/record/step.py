"""A Frame with what the judge made of it, and the last minutes of them that a session keeps at hand."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tpmon.model.frame import FRAME_SPAN_S, PULSE_SPAN_S, Frame
from tpmon.model.known import is_known

if TYPE_CHECKING:
    from tpmon.judge.hysteresis import Standing

MOST_ROWS = 8_000
"""Rows of processes, ranks and cards that are kept, so that they take 6 MB at most beside the Window, which
holds the last minute anyway (docs/overhead.md): eight minutes of three processes, six of ten."""
ROWS_OF_FRAME = 12
"""A Frame without any, with its verdict and what the judge remembers, takes as much as so many rows."""


class JudgedFrame(NamedTuple):
    """Hold what was read in one second, the same as judged, and what the judge remembered before it.

    ``judged`` is ``read`` itself where nothing was judged; ``standing`` is None before the first verdict.
    """

    read: Frame
    judged: Frame
    standing: Standing | None


class Recall:
    """Keep the judged Frames of the last ten minutes, of large jobs fewer; one thread appends."""

    def __init__(self) -> None:
        self._steps: deque[JudgedFrame] = deque()
        self._rows = 0

    def append(self, step: JudgedFrame) -> None:
        """Add a Frame, and let go of what is too old or too much."""
        self._steps.append(step)
        self._rows += _count_rows(step.read)
        while self._is_too_much(step.read.taken_ns - self._steps[0].read.taken_ns):
            self._rows -= _count_rows(self._steps.popleft().read)

    def _is_too_much(self, span_ns: int) -> bool:
        return span_ns > PULSE_SPAN_S * 1e9 or (self._rows > MOST_ROWS and span_ns > FRAME_SPAN_S * 1e9)

    def steps(self) -> tuple[JudgedFrame, ...]:
        """Return them, oldest first; in any thread."""
        return tuple(self._steps)


def _count_rows(frame: Frame) -> int:
    cards = len(frame.gpus) if is_known(frame.gpus) else 0
    return ROWS_OF_FRAME + len(frame.processes) + len(frame.ranks) + cards
