"""Keep a verdict from flickering: a cause must last to be stated, and must be gone to be dropped.

Every cause has a score between 0 and 1 that rises while its rule suspects it and falls while it
does not; a reading at the threshold, suspected half of the time, so drifts and does not toggle.

A run at a threshold crosses it again and again, and each crossing may last longer than any cause needs to be
stated. What never was part of the flicker is stated as ever.

A settled verdict is looked at seldom. What its rules judge moves a median of 10 s only after half of it,
and stacks only with the next slice: a change of what threads do is seen within seconds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tpmon.judge.answers.result import Answer, Cleared, Key, Suspicion
from tpmon.judge.stacks.profile import SliceLook, differs
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime, longest_reading_s
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known, known_or
from tpmon.model.process import Role
from tpmon.model.verdict import Finding, Kind

RISE_S = 4.0
"""Seconds of suspicion until a cause may be stated; its rule has looked at 10 s medians before."""
FALL_S = 6.0
LINGER_S = 10.0
"""How long a verdict may outlast its cause while no other one is there: one event for one change."""
URGENT_RISE_S = 1.0
"""For kinds that no median is needed for: what a process does right now."""
SWITCH_S = 4.0
"""How long a heavier cause must be ahead before it takes the place of the stated one."""
INCUMBENT = 1.25
"""The stated cause weighs this much more, so that two equal ones do not take turns."""
SETTLED_S = 60.0
"""A verdict that has stood for so long, and that nothing begins to contradict, needs fewer looks."""

URGENT = frozenset((Kind.STARTING, Kind.PAUSED, Kind.IDLE, Kind.HUNG))
AT_ONCE = URGENT | {Kind.GPU_UNHEALTHY}
"""With what a driver states of a card: no median makes an error surer, and none is waited for."""


@dataclass(frozen=True, slots=True)
class Track:
    """Follow one cause: its score, when it was first suspected in this run of it, its last answer."""

    suspicion: Suspicion
    score: float
    first_ns: int
    seen_after_ns: int
    """How long the history had been without it when it came, nanoseconds; 0 when it was there at first."""
    clear_ns: int = 0
    """How long before that its rule had said for the first time that it is not there, nanoseconds; 0: it
    never had, so that the cause may be older than the history."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Hold what the judge remembers between two Frames."""

    tracks: tuple[Track, ...] = ()
    stated: Key | None = None
    challenger: Key | None = None
    challenged_ns: int = 0
    begun_ns: int = 0
    """When the first Frame was judged."""
    judged_ns: int = 0
    cleared_ns: tuple[int, ...] = ()
    """When each rule first said that its cause is not there, in the order of the rules; 0: never."""
    rules: tuple[tuple[Key, int], ...] = ()
    """Which rule, by its number, suspected each cause that is followed."""
    dropped_ns: int = 0
    """When a cause was last dropped because it was seen to be over."""
    lost_ns: int = 0
    """Since when the stated cause is gone and no other has taken its place; 0 while one holds."""
    stated_ns: int = 0
    """When the stated cause took its place."""
    previous: tuple[Key | None] | None = None
    """What was stated before it, None in it for no cause; None where that is no flicker."""
    flickers: frozenset[Key | None] = frozenset()
    """Causes that came and went, up to ``damped_ns``."""
    damped_ns: int = 0
    pending: tuple[Key | None] | None = None
    """One of them that would be stated, since ``pending_ns``."""
    pending_ns: int = 0
    finding: Finding | None = None
    """What was said last, and the notes beside it."""
    notes: tuple[str, ...] = ()
    watch: WatchedTime = NO_WATCH
    """How long nothing has moved, and the looks at all stacks."""
    looks: tuple[SliceLook, ...] = ()
    """The samples of stacks of the Window, read."""


def key_of(suspicion: Suspicion) -> Key:
    """Return what makes two suspicions the same verdict."""
    return suspicion.kind, suspicion.cause


def _step(track: Track, found: Mapping[Key, Suspicion], dt_s: float) -> Track:
    now = found.get(key_of(track.suspicion))
    if now is None:
        return replace(track, score=max(0.0, track.score - dt_s / FALL_S))
    rise_s = URGENT_RISE_S if now.kind in AT_ONCE else RISE_S
    before = track.suspicion.since_ns
    if is_known(before):
        # The history that showed the onset is forgotten in time; the onset stays.
        since_ns = min(before, now.since_ns) if is_known(now.since_ns) else before
        now = replace(now, since_ns=since_ns)
    return replace(track, suspicion=now, score=min(1.0, track.score + dt_s / rise_s))


def note_cleared(standing: Standing, answers: Sequence[Answer], now_ns: int) -> Standing:
    """Note when each rule first said that its cause is not there; "cannot tell" is no such word."""
    before = standing.cleared_ns or (0,) * len(answers)
    return replace(
        standing,
        cleared_ns=tuple(
            since_ns or (now_ns if isinstance(answer, Cleared) else 0)
            for since_ns, answer in zip(before, answers, strict=True)
        ),
    )


def note_rules(standing: Standing, answers: Sequence[Answer]) -> Standing:
    """Note which rule suspects which cause, for as long as the cause is followed."""
    followed = {key_of(track.suspicion) for track in standing.tracks}
    known = {key: number for key, number in standing.rules if key in followed}
    now = {key_of(one): number for number, one in enumerate(answers) if isinstance(one, Suspicion)}
    return replace(standing, rules=tuple((known | now).items()))


def is_settled(standing: Standing, now_ns: int) -> bool:
    """Tell whether the verdict has stood for a while, and nothing gains on it or takes its place.

    What a process does right now (a start, a stop, a hang) is never settled. That no cause is found is:
    what a whole Window does not tell, the next one will not either.
    """
    stated = standing.stated
    since_ns = max(standing.stated_ns, standing.begun_ns, standing.dropped_ns)
    if (stated is not None and stated[0] in URGENT) or now_ns - since_ns < SETTLED_S * 1e9:
        return False
    if standing.lost_ns or standing.challenger is not None or standing.pending is not None:
        return False
    return all(track.score >= 1.0 for track in standing.tracks)


def leave_out_own(standing: Standing, answers: Sequence[Answer]) -> list[Answer]:
    """Leave out what the rule of the stated cause says now, where it no longer suspects it.

    A verdict that stands for some seconds more is not shown beside the word that it is ruled out.
    """
    own = dict(standing.rules).get(standing.stated, -1) if standing.stated is not None else -1
    return [one for number, one in enumerate(answers) if number != own or isinstance(one, Suspicion)]


def follow(
    standing: Standing,
    suspicions: Iterable[Suspicion],
    now_ns: int,
    *,
    interval_s: float = 1.0,
    cleared_ns: Mapping[Key, int] = MappingProxyType({}),
) -> Standing:
    """Raise and lower the scores by one Frame; a cause whose score is 0 is forgotten.

    ``cleared_ns`` says of a cause when its rule first said that it is not there.
    """
    begun_ns = standing.begun_ns or now_ns
    longest_s = longest_reading_s(interval_s)
    dt_s = min((now_ns - standing.judged_ns) / 1e9, longest_s) if standing.judged_ns else 0.0
    found = {key_of(one): one for one in suspicions}
    old = {key_of(one.suspicion) for one in standing.tracks}
    tracks = [_step(track, found, dt_s) for track in standing.tracks]
    tracks += [
        Track(
            one,
            1.0 if one.kind in AT_ONCE else 0.0,
            now_ns,
            now_ns - begun_ns,
            now_ns - cleared_ns[key] if key in cleared_ns else 0,
        )
        for key, one in found.items()
        if key not in old
    ]
    kept = tuple(track for track in tracks if track.score > 0 or key_of(track.suspicion) in found)
    return replace(standing, tracks=kept, begun_ns=begun_ns, judged_ns=now_ns)


def drop(standing: Standing, keys: Collection[Key], now_ns: int) -> Standing:
    """Forget causes of which it is seen that they are over; the stated one among them does not linger."""
    if not keys:
        return standing
    return replace(
        standing,
        tracks=tuple(track for track in standing.tracks if key_of(track.suspicion) not in keys),
        stated=None if standing.stated in keys else standing.stated,
        dropped_ns=now_ns,
    )


def _let_go(standing: Standing, now_ns: int) -> Standing:
    """Keep a verdict whose cause is gone until the next one is there, for a while; a hang not at all."""
    lost_ns = standing.lost_ns or now_ns
    hangs = standing.stated is not None and standing.stated[0] is Kind.HUNG
    if standing.stated is None or hangs or now_ns - lost_ns >= LINGER_S * 1e9:
        return replace(standing, stated=None, challenger=None, lost_ns=0)
    return replace(standing, challenger=None, lost_ns=lost_ns)


def state(standing: Standing, ranked: Sequence[Track], weigh: Mapping[Key, float], now_ns: int) -> Standing:
    """Decide which cause is stated; ``ranked`` are those that may be, best first, with their weights."""
    keys = [key_of(track.suspicion) for track in ranked]
    if not keys:
        return _let_go(standing, now_ns)
    standing = replace(standing, lost_ns=0)
    best = keys[0]
    if standing.stated not in keys:
        return replace(standing, stated=best, challenger=None)
    if best == standing.stated or weigh[best] <= INCUMBENT * weigh[standing.stated]:
        return replace(standing, challenger=None)
    if best[0] in (Kind.HUNG, Kind.GPU_UNHEALTHY) and standing.stated[0] is not best[0]:
        return replace(standing, stated=best, challenger=None)  # it was looked at for long enough
    if best != standing.challenger:
        return replace(standing, challenger=best, challenged_ns=now_ns)
    if now_ns - standing.challenged_ns < SWITCH_S * 1e9:
        return standing
    return replace(standing, stated=best, challenger=None)


FLICKER_S = 30.0
"""A verdict that took the place of another one, and gave it back sooner, was flicker."""
DAMPED_S = 60.0
"""How long what flickered must be ahead all the time before it is stated again."""
CALM_S = 300.0
"""How long after the last flicker changes are damped."""


def damp(before: Standing, after: Standing, now_ns: int) -> Standing:
    """Return ``after``, with the verdict of ``before`` where the new one only flickers."""
    old, new = before.stated, after.stated
    if old == new:
        return replace(after, pending=None)
    if _is_urgent(old) or _is_urgent(new):
        return replace(after, pending=None, stated_ns=now_ns, previous=None)
    flickers = after.flickers if now_ns < after.damped_ns else frozenset()
    if new in flickers and old is not None:
        begun_ns = before.pending_ns if before.pending == (new,) else now_ns
        if now_ns - begun_ns < DAMPED_S * 1e9:
            return replace(
                after,
                stated=old,
                lost_ns=before.lost_ns,
                pending=(new,),
                pending_ns=begun_ns,
                flickers=flickers,
            )
    damped_ns = after.damped_ns
    short = now_ns - after.stated_ns < FLICKER_S * 1e9
    if short and after.previous == (new,):
        damped_ns = now_ns + round(CALM_S * 1e9)
    if short and now_ns < damped_ns:
        flickers |= {old, new}
    return replace(
        after, pending=None, stated_ns=now_ns, previous=(old,), damped_ns=damped_ns, flickers=flickers
    )


def _is_urgent(key: Key | None) -> bool:
    return key is not None and key[0] in AT_ONCE


RECENT = 3
"""Readings that all must differ: one or two are a step of another kind."""
BEFORE = 10
"""Readings before them that they are compared with."""
MANY = 3
"""Ranks from which their looks are also compared together: they share the looks of a second."""
LEAST_DEMAND = 0.15
"""By how much the demand of all ranks, or of all their workers, must move, in threads."""


def _count_looks(frames: Sequence[Frame]) -> dict[int, Counter[str]]:
    """Count by rank what the looks found its main thread at."""
    counts: dict[int, Counter[str]] = {}
    for frame in frames:
        for one in frame.main_threads if is_known(frame.main_threads) else ():
            found = {"running": one.running, "batch": one.batch_wait, "io": one.io, "lock": one.lock}
            found[""] = max(one.looks - sum(found.values()), 0)
            counts.setdefault(one.pid, Counter()).update(found)
    return counts


def _has_moved(values: Sequence[float]) -> bool:
    """Tell whether the newest values lie all outside of those before them, and by how much."""
    before, recent = values[:-RECENT], values[-RECENT:]
    is_outside = min(recent) > max(before) or max(recent) < min(before)
    return is_outside and abs(statistics.median(recent) - statistics.median(before)) >= LEAST_DEMAND


def is_shaken(frames: Sequence[Frame]) -> bool:
    """Tell whether the last ``RECENT`` Frames differ from the ``BEFORE`` before them by more than chance.

    Compared are the looks at each main thread, and the demand of the ranks and of their workers.
    """
    seen = frames[-RECENT - BEFORE :]
    if len(seen) < RECENT + BEFORE:
        return False
    recent, before = _count_looks(seen[-RECENT:]), _count_looks(seen[:-RECENT])
    if any(differs(recent[pid], before[pid]) for pid in recent.keys() & before.keys()):
        return True
    # Of many ranks each has too few looks in ``RECENT`` seconds.
    if len(recent) >= MANY and differs(*(sum(one.values(), Counter[str]()) for one in (recent, before))):
        return True
    demands = [
        [sum(known_or(one.runnable, 0.0) for one in frame.processes if one.role is role) for frame in seen]
        for role in (Role.RANK, Role.WORKER)
    ]
    return any(map(_has_moved, demands))
