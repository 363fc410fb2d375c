"""Join looks (one thread in one round or Dump) into where each thread is and whether it moved. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tpmon.judge.stacks.classify import find_users, is_users
from tpmon.model.dump import Dump, DumpRound, DumpThread, FrameLocals, Motion
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import WaitReason, is_wait

RESTS_RATIO = 0.01
SPINS_RATIO = 0.9
LEAST_APART_S = 1.0
MOVES_S = 15.0
WAKES_HZ = 1.0
_ONE_LOOK = Missing("one look tells no rate")
SEEN_ONCE = Missing("seen once: a second look tells whether it moves")
MOVED = Missing("it moved between the looks")
PARTLY_MOVED = Missing("it ran between the looks")


@dataclass(frozen=True, slots=True)
class Look:
    """Hold one thread at ``at_s``, on its own clock; ``since_s`` is how long its stack had been the same."""

    at_s: float
    thread: DumpThread
    frames: Applicable[tuple[StackFrame, ...]]
    motion: Motion
    since_s: float


@dataclass(frozen=True, slots=True)
class Sighting:
    """Hold one thread as all looks together show it."""

    thread: DumpThread
    frames: Applicable[tuple[StackFrame, ...]]
    motion: Motion
    since_s: Known[float]
    wakes: bool = False
    """It slept and woke between the looks, again and again."""

    @property
    def told(self) -> tuple[Motion, Known[float]]:
        """Return what a person is told: what sleeps and wakes at the same line is slow, not frozen."""
        if self.wakes and self.motion is Motion.FROZEN:
            return Motion.SLOW, PARTLY_MOVED
        return self.motion, self.since_s


def looks_of_round(one: DumpRound) -> list[Look]:
    """Turn one round into looks."""
    return [
        Look(
            at_s=one.taken_ns / 1e9,
            thread=DumpThread(
                host=one.host,
                pid=process.pid,
                tid=thread.tid,
                role=process.role,
                rank=process.rank,
                worker=process.worker,
                rank_pid=process.rank_pid,
                name=thread.name,
                kind=thread.kind,
                state=thread.state,
                wchan=thread.wchan,
                call=thread.call,
                waits_for=thread.waits_for,
                waits_on=thread.waits_on,
                cpu_s=map_known(_to_seconds, thread.run_ns),
                delay_s=map_known(_to_seconds, thread.delay_ns),
                cpu_pct=_ONE_LOOK,
                delay_pct=_ONE_LOOK,
                locals=_keep_users(thread.frames, thread.locals),
                holds_gil=thread.holds_gil,
                frozen=process.frozen,
                slices=thread.slices,
            ),
            frames=thread.frames,
            motion=Motion.ONCE,
            since_s=0.0,
        )
        for process in one.processes
        for thread in process.threads
    ]


def _keep_users(
    frames: Applicable[tuple[StackFrame, ...]], found: Applicable[tuple[FrameLocals, ...]]
) -> Applicable[tuple[FrameLocals, ...]]:
    """Keep the variables of the user's own frames; those of libraries are of no use."""
    if not is_known(found) or not is_known(frames):
        return found
    return tuple(one for one in found if one.frame < len(frames) and is_users(frames[one.frame]))


def looks_of_dump(dump: Dump) -> list[Look]:
    """Turn a Dump back into looks; no thread stands still for longer than its clock runs."""
    at_s = dump.taken.timestamp()
    return [
        Look(
            at_s=at_s,
            thread=thread,
            frames=group.frames,
            motion=group.motion,
            since_s=max(0.0, min(known_or(group.since_s, 0.0), at_s)),
        )
        for group in dump.groups
        for thread in group.threads
    ]


class ThreadKey(NamedTuple):
    """Tell threads apart over several looks."""

    host: str
    pid: int
    tid: int
    name: str


def key_thread(thread: DumpThread) -> ThreadKey:
    """Return what is equal for looks at one thread."""
    tid = known_or(thread.tid, -1)
    return ThreadKey(thread.host, thread.pid, tid, thread.name if tid < 0 else "")


def join_looks(
    looks: Iterable[Look], newest: float | None = None, apart_s: float = 0.0, *, begun_s: float = 0.0
) -> tuple[Sighting, ...]:
    """Join the looks at each thread, in the order in which the threads first appear.

    A thread that was not seen at ``newest`` (the last round) has ended and is left out. Looks less than
    ``apart_s`` apart are one; those before ``begun_s`` are of an earlier dump.
    """
    of_thread: dict[ThreadKey, list[Look]] = {}
    for look in looks:
        of_thread.setdefault(key_thread(look.thread), []).append(look)
    found: list[Sighting] = []
    for same in of_thread.values():
        same.sort(key=lambda look: look.at_s)
        if newest is None or same[-1].at_s == newest:
            found.append(_join(_thin(same, apart_s), begun_s))
    return tuple(found)


def _thin(same: Sequence[Look], apart_s: float) -> Sequence[Look]:
    """Keep one of the looks at one time: the newest, but never a single look in place of several."""
    kept: list[Look] = []
    begin_s = 0.0
    for look in same:
        if not kept or look.at_s - begin_s >= apart_s:
            kept.append(look)
            begin_s = look.at_s
        elif kept[-1].motion is Motion.ONCE or look.motion is not Motion.ONCE:
            kept[-1] = look
    return kept


def _users_part(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return the stack down to the user's innermost line; all of it where none is the user's."""
    return frames[: find_users(frames) + 1] or frames


def _compare(same: Sequence[Look]) -> Motion:
    """Say what a thread did between its looks; a native one is judged by its CPU time."""
    if any(look.motion is Motion.MOVING for look in same):
        return Motion.MOVING
    stacks = [look.frames for look in same]
    known = [frames for frames in stacks if is_known(frames)]
    if not known or len(known) < len(stacks):
        counts = [look.thread.cpu_s for look in same]
        if len(same) < 2 or not all(is_known(one) for one in counts):
            return same[-1].motion
        return Motion.FROZEN if len(set(counts)) == 1 else Motion.MOVING
    if len(same) < 2:
        return same[-1].motion
    first = known[0]
    if all(one == first for one in known) and all(look.motion is not Motion.SLOW for look in same):
        return Motion.SLOW if _ran(same) else Motion.FROZEN
    own = _users_part(first)
    return Motion.SLOW if all(_users_part(one) == own for one in known) else Motion.MOVING


def _ran(same: Sequence[Look]) -> bool:
    """Tell whether a thread in the same stack each time ran in between: its wait repeats, as in a poll."""
    first, last = same[0], same[-1]
    seconds = last.at_s - first.at_s
    ran = _used(first.thread.cpu_s, last.thread.cpu_s)
    if not is_known(ran) or seconds <= 0:
        return False
    delayed = known_or(_used(first.thread.delay_s, last.thread.delay_s), 0.0)
    return ran / seconds > RESTS_RATIO and (ran + delayed) / seconds < SPINS_RATIO


def _wakes(same: Sequence[Look]) -> bool:
    """Tell whether a thread woke up between the looks, and went to sleep again: often, for next to no CPU.

    One that never sleeps is put on a CPU again after each one that takes its turn, and one that waits for the
    interpreter's lock looks 200 times a second whether it is free.
    """
    first, last = same[0], same[-1]
    seconds = last.at_s - first.at_s
    before, now = first.thread.slices, last.thread.slices
    ran, delayed = (
        known_or(_used(getattr(first.thread, name), getattr(last.thread, name)), 0.0)
        for name in ("cpu_s", "delay_s")
    )
    if not is_known(before) or not is_known(now) or seconds <= 0:
        return False
    if is_wait(last.thread.waits_for, WaitReason.TIMED_LOCK):
        return False
    return now - before >= max(2.0, WAKES_HZ * seconds) and (ran + delayed) / seconds < SPINS_RATIO


def _used(before: Known[float], now: Known[float]) -> Known[float]:
    if isinstance(before, Missing):
        return before
    return map_known(lambda seconds: max(0.0, seconds - before), now)


def _to_seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


def _pick_telling(same: Sequence[Look], begun_s: float) -> Sequence[Look]:
    """Leave out an old look of an earlier dump where it cannot tell what its thread does now."""
    first, last = same[0], same[-1]
    if first.at_s >= begun_s or last.at_s - first.at_s <= MOVES_S:
        return same
    ran = known_or(_used(first.thread.cpu_s, last.thread.cpu_s), math.inf)
    rested = _compare(same) is Motion.FROZEN and ran / (last.at_s - first.at_s) <= RESTS_RATIO
    return same if rested else [look for look in same if look.at_s >= begun_s]


def _join(same: Sequence[Look], begun_s: float) -> Sighting:
    last = same[-1]
    telling = _pick_telling(same, begun_s)
    motion = _compare(telling)
    since_s: Known[float] = SEEN_ONCE
    if motion is Motion.FROZEN:
        since_s = last.at_s - min(look.at_s - look.since_s for look in telling)
    elif motion is not Motion.ONCE:
        since_s = PARTLY_MOVED if motion is Motion.SLOW else MOVED
    thread = last.thread
    if len(same) == 1:
        return Sighting(thread, last.frames, motion, since_s)
    wakes = _wakes(telling)
    holds = (
        all(look.thread.holds_gil is True for look in telling)
        if is_known(thread.holds_gil)
        else NOT_APPLICABLE
    )
    seconds = last.at_s - same[-2].at_s
    if seconds > 0:
        before = same[-2].thread
        thread = replace(
            thread,
            cpu_pct=map_known(lambda used: 100 * used / seconds, _used(before.cpu_s, thread.cpu_s)),
            delay_pct=map_known(lambda used: 100 * used / seconds, _used(before.delay_s, thread.delay_s)),
            holds_gil=holds,
        )
    return Sighting(thread, last.frames, motion, since_s, wakes)
