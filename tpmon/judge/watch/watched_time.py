"""Tell which time between two Frames was watched, and in which the run could go on at all. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.frame import Frame
from tpmon.model.process import ProcessSample
from tpmon.model.text.stop_words import say_stop

STOPPED_S = 4.0
"""A debugger or a look at the stacks stops a process for less."""
MOST_LOST = 8
"""Of the stops and pauses, the newest: a step that one of them is in ends soon after it."""
LONGEST_STEP_S = 3.0
LONGEST_STEP_INTERVALS = 1.5
"""A pause of tpmon itself (suspend) is not evidence that something went on; the asked interval is none."""


def longest_reading_s(interval_s: float) -> float:
    """Return how far apart two Frames may be for all of the time between them to count as watched."""
    return max(LONGEST_STEP_S, LONGEST_STEP_INTERVALS * interval_s)


def find_gap_ns(before_ns: int, frame: Frame, interval_s: float = 0.0) -> int:
    """Return for how long tpmon itself paused between the Frame of ``before_ns`` (0: none) and this one.

    ``interval_s`` is the interval of that one, which a key may have changed since.
    """
    longest_s = longest_reading_s(max(frame.interval_s, interval_s))
    gap_ns = frame.taken_ns - before_ns - round(longest_s * 1e9)
    return max(0, gap_ns) if before_ns else 0


def is_stopped(process: ProcessSample) -> bool:
    """Tell whether a signal, a debugger or the freezer holds a process."""
    return say_stop(process) != ""


def leave_out_lost(step_s: float, lost_s: Sequence[float], interval_s: float) -> float:
    """Return a step less the longest of the times that were lost, of those that may lie within it.

    When a stop began and ended is known to a reading each.
    """
    blur_s = 2 * longest_reading_s(interval_s)
    return max(0.0, step_s - max((one for one in lost_s if one <= step_s + blur_s), default=0.0))
