"""Keep a verdict from flickering: a cause must last to be stated, and must be gone to be dropped.

Every cause has a score, 0 to 1, that rises while its rule suspects it and else falls: a reading at the
threshold drifts and does not toggle. A run at a threshold may cross it for longer than stating takes; flicker
is damped, other causes are stated as ever.

A settled verdict is judged seldom: medians of 10 s move only after half of it, stacks only with the next
slice. A change of what threads do is seen within seconds.
"""

from __future__ import annotations

import math
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
"""Seconds of suspicion before a cause may be stated, after the 10 s medians of its rule."""
FALL_S = 6.0
LINGER_S = 10.0
"""How long a verdict may outlast its cause while there is no other one: one event for one change."""
URGENT_RISE_S = 1.0
"""For kinds that need no median: what a process does right now."""
SWITCH_S = 4.0
"""How long a heavier cause must lead before it replaces the stated one."""
INCUMBENT = 1.25
"""The stated cause weighs this much more, so that two equal ones do not take turns."""
PRESENCE_S = 20.0
"""Seconds over which it is remembered how often a cause was suspected: twice the span of medians."""
FORGOTTEN = 0.05
"""Part of that time below which a cause is forgotten."""
SETTLED_S = 60.0
"""A verdict that stood this long without contradiction needs fewer judgements."""

URGENT = frozenset((Kind.STARTING, Kind.PAUSED, Kind.IDLE, Kind.HUNG))
AT_ONCE = URGENT | {Kind.GPU_UNHEALTHY, Kind.LIMITS}
"""Also what a driver states of a card, and counts that are exact: no median makes them surer."""

SWITCHED_TO = frozenset((Kind.HUNG, Kind.GPU_UNHEALTHY, Kind.FAILED, Kind.LIMITS))
"""What need not lead for some seconds: it was looked at for long enough, or seen."""


@dataclass(frozen=True, slots=True)
class Track:
    """Follow one cause: its score, when this suspicion of it began, its last answer."""

    suspicion: Suspicion
    score: float
    first_ns: int
    seen_after_ns: int
    """How long the history had been without it when it came, nanoseconds; 0 when it was there at first."""
    clear_ns: int = 0
    """How long before that its rule first denied it, ns; 0: never, so it may be older than the history."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Hold how often a cause was suspected of late, 0-1, and whether it came back after it had gone."""

    suspicion: Suspicion
    ratio: float
    is_now: bool
    came_back: bool = False


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
    """When each rule first denied its cause, in the order of the rules; 0: never."""
    rules: tuple[tuple[Key, int], ...] = ()
    """The number of the rule that suspected each followed cause."""
    dropped_ns: int = 0
    """When a cause was last dropped because it was seen to be over."""
    lost_ns: int = 0
    """Since when the stated cause is gone without a successor; 0 while one holds."""
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
    presences: tuple[Presence, ...] = ()
    """Causes of the last half minute, also those that their rules deny now and then."""
    finding: Finding | None = None
    """The last verdict, and the notes beside it."""
    notes: tuple[str, ...] = ()
    watch: WatchedTime = NO_WATCH
    """How long nothing has moved, and the dumps of all stacks."""
    looks: tuple[SliceLook, ...] = ()
    """The stack slices of the Window, read."""


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


def _remember(
    presences: Iterable[Presence], found: Mapping[Key, Suspicion], dt_s: float
) -> tuple[Presence, ...]:
    """Follow how often each cause is suspected: a weighted mean, in which the newest seconds count most."""
    before = {key_of(one.suspicion): one for one in presences}
    fades = math.exp(-dt_s / PRESENCE_S)
    kept = []
    for key in before.keys() | found.keys():
        old, now = before.get(key), found.get(key)
        ratio = (old.ratio if old else 0.0) * fades + (1 - fades) * (now is not None)
        suspicion = now or (old.suspicion if old else None)
        if suspicion is not None and (now is not None or ratio >= FORGOTTEN):
            returns = old is not None and (old.came_back or (now is not None and not old.is_now))
            kept.append(Presence(suspicion, ratio, now is not None, returns))
    return tuple(
        sorted(kept, key=lambda one: (-one.ratio, key_of(one.suspicion)[0].value, str(one.suspicion.cause)))
    )


def note_cleared(standing: Standing, answers: Sequence[Answer], now_ns: int) -> Standing:
    """Note when each rule first denied its cause; "cannot tell" is no denial."""
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
    """Tell whether the verdict has stood for a while, and nothing gains on it.

    What a process does right now (a start, a stop, a hang) never settles. That no cause is found does: what a
    whole Window does not tell, the next one will not either.
    """
    stated = standing.stated
    since_ns = max(standing.stated_ns, standing.begun_ns, standing.dropped_ns)
    if (stated is not None and stated[0] in URGENT) or now_ns - since_ns < SETTLED_S * 1e9:
        return False
    if standing.lost_ns or standing.challenger is not None or standing.pending is not None:
        return False
    return all(track.score >= 1.0 for track in standing.tracks)


def leave_out_own(standing: Standing, answers: Sequence[Answer]) -> list[Answer]:
    """Leave out a denial by the stated cause's own rule: a verdict must not linger beside it."""
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
    """Raise or lower the scores by one Frame, and forget causes at 0; ``cleared_ns`` are first denials."""
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
    presences = _remember(standing.presences, found, dt_s)
    return replace(standing, tracks=kept, begun_ns=begun_ns, judged_ns=now_ns, presences=presences)


def drop(standing: Standing, keys: Collection[Key], now_ns: int) -> Standing:
    """Forget causes that are seen to be over; the stated one among them does not linger."""
    if not keys:
        return standing
    return replace(
        standing,
        tracks=tuple(track for track in standing.tracks if key_of(track.suspicion) not in keys),
        stated=None if standing.stated in keys else standing.stated,
        dropped_ns=now_ns,
    )


def _let_go(standing: Standing, now_ns: int) -> Standing:
    """Keep a verdict whose cause is gone for a while, until there is another; a hang not at all."""
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
    if (
        best[0] in (Kind.HUNG, Kind.GPU_UNHEALTHY, Kind.FAILED, Kind.LIMITS)
        and standing.stated[0] is not best[0]
    ):
        return replace(standing, stated=best, challenger=None)  # it was looked at for long enough, or seen
    if best != standing.challenger:
        return replace(standing, challenger=best, challenged_ns=now_ns)
    if now_ns - standing.challenged_ns < SWITCH_S * 1e9:
        return standing
    return replace(standing, stated=best, challenger=None)


FLICKER_S = 30.0
"""A verdict that replaced another one and gave way to it within this time was flicker."""
DAMPED_S = 60.0
"""How long what flickered must lead without a break before it is stated again."""
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
"""Readings that all must differ: one or two may be a step of another kind."""
BEFORE = 10
"""Readings before them to compare with."""
MANY = 3
"""Ranks above which their samples are also compared together: they share the samples of a second."""
LEAST_DEMAND = 0.15
"""How much the demand of all ranks, or of all their workers, must move, in threads."""


def _count_looks(frames: Sequence[Frame]) -> dict[int, Counter[str]]:
    """Count by rank what the samples found its main thread at."""
    counts: dict[int, Counter[str]] = {}
    for frame in frames:
        for one in frame.main_threads if is_known(frame.main_threads) else ():
            found = {"running": one.running, "batch": one.batch_wait, "io": one.io, "lock": one.lock}
            found[""] = max(one.looks - sum(found.values()), 0)
            counts.setdefault(one.pid, Counter()).update(found)
    return counts


def _has_moved(values: Sequence[float]) -> bool:
    """Tell whether the newest values all lie outside those before, their median by ``LEAST_DEMAND``."""
    before, recent = values[:-RECENT], values[-RECENT:]
    is_outside = min(recent) > max(before) or max(recent) < min(before)
    return is_outside and abs(statistics.median(recent) - statistics.median(before)) >= LEAST_DEMAND


def is_shaken(frames: Sequence[Frame]) -> bool:
    """Tell whether the last ``RECENT`` Frames differ from those before by more than chance."""
    seen = frames[-RECENT - BEFORE :]
    if len(seen) < RECENT + BEFORE:
        return False
    recent, before = _count_looks(seen[-RECENT:]), _count_looks(seen[:-RECENT])
    if any(differs(recent[pid], before[pid]) for pid in recent.keys() & before.keys()):
        return True
    # Each of many ranks has too few samples in ``RECENT`` seconds.
    if len(recent) >= MANY and differs(*(sum(one.values(), Counter[str]()) for one in (recent, before))):
        return True
    demands = [
        [sum(known_or(one.runnable, 0.0) for one in frame.processes if one.role is role) for frame in seen]
        for role in (Role.RANK, Role.WORKER)
    ]
    return any(map(_has_moved, demands))
