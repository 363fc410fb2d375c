"""Say what keeps processes of a job from running."""

from __future__ import annotations

from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.process import ProcessSample, Role


def say_stop(process: ProcessSample) -> str:
    """Say what keeps a process from running, "" where nothing does.

    A frozen process may be stopped by a signal as well: the freezer is said, SIGCONT alone does nothing then.
    """
    frozen, tracer, words = process.frozen, process.tracer, process.waits_for
    if is_known(frozen):
        return f"frozen by control group {frozen.group}"
    if process.state == "T":
        return "stopped by a signal"
    if process.state == "t":
        return (
            f"held by a debugger, {tracer.name} ({tracer.pid})" if is_known(tracer) else "held by a debugger"
        )
    # The kernel's own word, where the control group itself cannot be seen.
    return words if is_known(words) and words.startswith("frozen") else ""


def say_job_stop(frame: Frame) -> str:
    """Say what keeps the first rank that is stopped from running, "" where none is."""
    return next((how for one in frame.processes if one.role is Role.RANK and (how := say_stop(one))), "")
