"""Tell which time between two Frames was watched, and in which the run could go on at all. Pure."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.process import ProcessSample

LONGEST_STEP_S = 3.0
LONGEST_STEP_INTERVALS = 1.5
"""A pause of tpmon itself (suspend) is not evidence that something went on; the asked interval is none."""


def longest_reading_s(interval_s: float) -> float:
    """Return how far apart two Frames may be for all of the time between them to count as watched."""
    return max(LONGEST_STEP_S, LONGEST_STEP_INTERVALS * interval_s)


def find_gap_ns(before_ns: int, frame: Frame) -> int:
    """Return for how long tpmon itself paused between the Frame of ``before_ns`` (0: none) and this one."""
    gap_ns = frame.taken_ns - before_ns - round(longest_reading_s(frame.interval_s) * 1e9)
    return max(0, gap_ns) if before_ns else 0


def is_stopped(process: ProcessSample) -> bool:
    """Tell whether a signal, a debugger or the freezer holds a process."""
    words = process.waits_for
    return process.state in ("T", "t") or (is_known(words) and words.startswith("frozen"))
