"""Judge Frames a second apart, as a session does: no word of a golden's verdict is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.any_windows import SLICE_EVERY_S, with_slices
from tests.judging import follow, line_up
from tpmon.judge.hysteresis import Standing
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.frame import Event, Frame
from tpmon.model.known import known_or
from tpmon.model.stacks import StackSlice


@dataclass(frozen=True, slots=True)
class Played:
    """Hold the last Frame with its verdict, and what the judge told meanwhile, oldest first."""

    frame: Frame
    events: tuple[Event, ...]


def place(frames: Sequence[Frame]) -> list[Frame]:
    """Put Frames a second apart, each with its stacks, the last of them taken when it says."""
    return [with_slices(one, one.stacks) if known_or(one.stacks, ()) else one for one in line_up(frames)]


def play(frames: Sequence[Frame]) -> Played:
    return replay(place(frames))


def replay(frames: Sequence[Frame]) -> Played:
    judged = list(follow(frames, Standing(watch=WatchedTime(may_ask=True))))
    told = tuple(event for one in judged for event in one.frame.events)
    return Played(replace(judged[-1].frame, stacks=()), told)


def hold(frame: Frame, seconds: int, slices: Sequence[StackSlice] = ()) -> list[Frame]:
    """Repeat a Frame once a second, with these samples of stacks in every fourth."""
    return [replace(frame, stacks=tuple(slices) if at % SLICE_EVERY_S == 1 else (), events=()) for at in range(seconds)]
