"""Stacks of a loop that waits, and the Windows that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.any_windows import make_slice
from tests.frames import make_cpu, make_frame, make_process
from tests.judging import make_looks
from tests.starving import line_up
from tpmon.judge.features.snapshot import Scene, see
from tpmon.judge.stacks.profile import RankPhases
from tpmon.model.stacks import StackFrame, StackSlice

RANK = 4211
LIB = "/usr/lib/python3.11"


def frame_of(function: str, file: str, line: int = 7) -> StackFrame:
    return StackFrame(function, file, line)


def stack(*calls: tuple[Any, ...]) -> tuple[StackFrame, ...]:
    """Build frames, outermost first, below the loop of a program."""
    return (frame_of("<module>", "/home/u/train.py", 90), *(frame_of(*call) for call in calls))


WAIT = ("wait", f"{LIB}/threading.py")


def slice_of(*counted: tuple[tuple[StackFrame, ...], int]) -> StackSlice:
    """Build the slice of one rank from stacks and how often each was met."""
    return replace(make_slice(RANK, 0, dict(counted)), ended_ns=10_000_000_000)


def see_waiting(
    phases: RankPhases | None, *, asleep: int = 8, frame: Mapping[str, Any] | None = None, **looks: int
) -> Scene:
    """See a rank whose main thread is asleep in ``asleep`` of ten looks."""
    kinds = looks or {"lock": asleep}
    fields = {
        "processes": (make_process(RANK, runnable=0.3, waiting=0.0),),
        "loader": (),
        "main_threads": (make_looks(RANK, 10, **kinds),),
        "cpu": make_cpu(),
        **(frame or {}),
    }
    taken = {RANK: phases} if phases is not None else {}
    return see(line_up([make_frame(**fields)] * 12), taken)
