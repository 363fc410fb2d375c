"""What the ranks' hooks tell of progress: when a loop last got on, and how long its steps take. Pure."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.hook import HookSample, HookState, StepPace
from tpmon.model.known import Known, Missing, is_known, known_or

HOOK = "hook"
"""The name of the source in evidence."""
ABSENT = "no hook"
"""How the reason of a job begins that has no hook: that is known, and nothing is left unread."""
MOST_AGE_S = 366 * 86_400.0
"""No loop waits longer; what a page says beyond it is no time."""


def list_hooks(frame: Frame) -> tuple[HookSample, ...]:
    """Return the hooks that count; one that turned itself off tells nothing."""
    return tuple(one for one in known_or(frame.hook, ()) if one.state is HookState.RUNNING)


def hook_unread(frame: Frame) -> tuple[str, ...]:
    """Say that a hook may be there and was not read; a job without one has none to speak against anything."""
    hook = frame.hook
    if isinstance(hook, Missing) and not hook.reason.startswith(ABSENT):
        return (f"what a hook tells ({hook.reason})",)
    return ()


def find_hook(frame: Frame, pid: int) -> HookSample | None:
    """Return the hook of one process, None where it has none."""
    return next((one for one in list_hooks(frame) if one.pid == pid), None)


def find_pace(frame: Frame, pid: int) -> Known[StepPace]:
    """Return how the steps of one rank go."""
    hook = find_hook(frame, pid)
    if hook is not None:
        return hook.pace
    return frame.hook if isinstance(frame.hook, Missing) else Missing("this rank has no hook")


def event_age_s(frame: Frame) -> float | None:
    """Return how long ago the loop of any rank last got on: began or ended a batch, a backward, an update.

    None where no hook tells; exact also for the time before tpmon came.
    """
    ages = [one.phase_s for one in list_hooks(frame) if is_known(one.phase_s)]
    return min(max(min(ages), 0.0), MOST_AGE_S) if ages else None


def last_event_ns(frame: Frame) -> int:
    """Return the same as CLOCK_MONOTONIC ns, 0 where no hook tells."""
    age_s = event_age_s(frame)
    return frame.taken_ns - round(age_s * 1e9) if age_s is not None else 0


def longest_step_s(frame: Frame) -> float:
    """Return the longest step of the last minute, of any rank: a run that came back from it is no hang."""
    paces = [one.pace for one in list_hooks(frame)]
    return max((known_or(one.longest_ms, 0.0) / 1000 for one in paces if is_known(one)), default=0.0)


def last_stepped(frame: Frame) -> StepPace | None:
    """Return the pace of the rank that took a step last, None where none is known."""
    paces = [one.pace for one in list_hooks(frame) if is_known(one.pace)]
    return min((one for one in paces if is_known(one)), key=lambda one: one.step_age_s, default=None)
