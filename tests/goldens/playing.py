"""Judge Frames a second apart, as a session does: no word of a golden's verdict is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from tests.judging import SECOND
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import judge
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.frame import Event, Frame
from tpmon.model.known import known_or
from tpmon.model.stacks import StackSlice

SLICE_EVERY_S = 4
WINDOW_S = 60


@dataclass(frozen=True, slots=True)
class Played:
    """Hold the last Frame with its verdict, and what the judge told meanwhile, oldest first."""

    frame: Frame
    events: tuple[Event, ...]


def play(frames: Sequence[Frame]) -> Played:
    """Judge Frames a second apart, the last of them taken when it says."""
    last = len(frames) - 1
    return replay([_place(one, last - at) for at, one in enumerate(frames)])


def replay(frames: Sequence[Frame]) -> Played:
    """Judge Frames as they were taken."""
    standing, told = Standing(watch=WatchedTime(may_ask=True)), list[Event]()
    for at in range(len(frames)):
        judged = judge(frames[max(0, at + 1 - WINDOW_S) : at + 1], standing)
        standing = judged.standing
        told.extend(judged.frame.events)
    return Played(replace(judged.frame, stacks=()), tuple(told))


def _place(frame: Frame, ago_s: int) -> Frame:
    taken, taken_ns = frame.taken - timedelta(seconds=ago_s), frame.taken_ns - ago_s * SECOND
    slices = tuple(replace(one, ended=taken, ended_ns=taken_ns) for one in known_or(frame.stacks, ()))
    stacks = slices if slices or frame.stacks == () else frame.stacks
    return replace(frame, taken=taken, taken_ns=taken_ns, stacks=stacks)


def hold(frame: Frame, seconds: int, slices: Sequence[StackSlice] = ()) -> list[Frame]:
    """Repeat a Frame once a second, with these samples of stacks in every fourth."""
    return [replace(frame, stacks=tuple(slices) if at % SLICE_EVERY_S == 1 else (), events=()) for at in range(seconds)]
