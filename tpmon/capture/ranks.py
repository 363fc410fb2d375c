"""Say what became of a capture on one rank, and how long its steps took around the window."""

from __future__ import annotations

import time

from tpmon.capture.bus import Bus
from tpmon.capture.ends import Outcome
from tpmon.capture.plan import mean_step, mean_step_of
from tpmon.hook import wire_capture
from tpmon.model.capture import CaptureState, RankCapture
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known


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


def _find_rank(at_first: int, told: int) -> Applicable[int]:
    """Return the rank that names the file: the pages' is older, and may be from before the process group."""
    rank = told - 1 if told else at_first
    return rank if rank >= 0 else NOT_APPLICABLE
