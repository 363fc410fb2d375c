"""Say what became of a capture on one rank, and how long its steps took around the window."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tpmon.capture.bus import Bus
from tpmon.capture.ends import Outcome
from tpmon.capture.plan import mean_step, mean_step_of, parse_pace
from tpmon.hook.bus import wire_capture
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.capture import CaptureState, RankCapture

_EVERY_S = 0.02

_LEAST_AFTER_S = 2.0
_MOST_AFTER_S = 60.0
"""So long the steps after a window are waited for, at least and at most."""

_STEPS_AFTER = 3
"""In between as long as so many took before: two that end tell a mean, and they vary."""


@dataclass(frozen=True, slots=True)
class EndedWindow:
    """Hold when a window ended on a rank, and how long its steps took before."""

    bus: Bus
    at_ns: int
    before_ms: Known[float]

    @property
    def patience_s(self) -> float:
        """Return how long the steps after it are waited for."""
        if not is_known(self.before_ms):
            return _LEAST_AFTER_S
        return min(_MOST_AFTER_S, max(_LEAST_AFTER_S, _STEPS_AFTER * self.before_ms / 1000))

    def is_told(self) -> bool:
        """Tell whether the steps after it are known, or will never be."""
        return not self.bus.is_alive() or is_known(self.measure_after())

    def measure_after(self) -> Known[float]:
        """Return the mean step in ms since."""
        return mean_step(self.bus.read_records(), self.at_ns, time.monotonic_ns())


def await_steps_after(
    windows: Sequence[EndedWindow], tell: Callable[[str], None], stopped: Callable[[], bool]
) -> None:
    """Wait until each rank ended two steps after its window: as long as the slowest needs, within bounds."""
    wait_s = max((window.patience_s for window in windows), default=0.0)
    if wait_s > _LEAST_AFTER_S:
        tell(f"the window is over; waits for two steps after it, {wait_s:.0f} s at most")
    limit = time.monotonic() + wait_s
    while time.monotonic() < limit and not stopped() and not all(window.is_told() for window in windows):
        time.sleep(_EVERY_S)


def describe_rank(bus: Bus, outcome: Outcome, before: Known[float], probed_ms: float) -> RankCapture:
    """Return the end of a request on one rank, with its steps before, during and after."""
    words = outcome.words
    began, ended = words[wire_capture.CAP_BEGAN_NS], words[wire_capture.CAP_ENDED_NS]
    steps = words[wire_capture.CAP_STEPS_DONE]
    records = bus.read_records()
    nothing = Missing("nothing was recorded")
    done = outcome.state is CaptureState.VERIFIED
    during: Known[float] = nothing
    if done and steps:
        during = mean_step_of(records, words[wire_capture.CAP_FIRST_STEP], steps)
    if done and steps and not is_known(during):
        during = (ended - began) / 1e6 / steps  # too short for records of their own
    after = words[wire_capture.CAP_CHANGED_NS]
    return RankCapture(
        pid=bus.process.pid,
        rank=_find_rank(bus.header.rank, words[wire_capture.CAP_RANK]),
        state=outcome.state,
        reason=outcome.reason,
        first_step=words[wire_capture.CAP_FIRST_STEP] if done else nothing,
        steps=steps,
        paused_ms=words[wire_capture.CAP_PAUSED_NS] / 1e6 + probed_ms,
        step_before_ms=before,
        step_during_ms=during,
        step_after_ms=mean_step(records, after, time.monotonic_ns()) if done else nothing,
    )


def read_steps(bus: Bus) -> int:
    """Return how many steps of a loop ended by now."""
    pace = parse_pace(bus.read_records())
    return pace.steps if is_known(pace) else 0


def _find_rank(at_first: int, told: int) -> Applicable[int]:
    """Return the rank that names the file: the pages' is older, and may be from before the process group."""
    rank = told - 1 if told else at_first
    return rank if rank >= 0 else NOT_APPLICABLE
