"""Say in one line how far a request is, by what the hooks of its ranks tell. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tpmon.capture.bus import Progress
from tpmon.capture.ends import STATES
from tpmon.capture.plan import Pace
from tpmon.hook.bus import wire_capture
from tpmon.model.known import Known, is_known
from tpmon.model.results.capture import CaptureState


def say_progress(told: Sequence[Progress | None], pace: Callable[[], Known[Pace]], *, timed: bool) -> str:
    """Say where the slowest rank is; "" where there is nothing new to say; ``pace`` reads its loop."""
    heard = [one for one in told if one is not None]
    if not heard:
        return "waiting for the end of a step"
    slowest = min(heard, key=_list_done)
    words = slowest.words
    state = STATES.get(slowest.state)
    if state is CaptureState.ARMED:
        waits = "armed" if timed else f"armed, begins with step {words[wire_capture.CAP_FIRST_STEP]}"
        now = pace()
        if is_known(now) and now.evaluates:
            waits += ": waits for the next training step, the loop evaluates now"
        return waits
    if state is CaptureState.RECORDING:
        done, all_steps = words[wire_capture.CAP_STEPS_DONE], words[wire_capture.CAP_STEPS_ASKED]
        return "recording" if timed else f"recording step {done + 1} of {all_steps}"
    return state.value if state in (CaptureState.WARMING, CaptureState.WRITING) else ""


def _list_done(one: Progress) -> tuple[int, int, int]:
    return one.state, one.words[wire_capture.CAP_STEPS_DONE], one.words[wire_capture.CAP_STEP_NOW]
