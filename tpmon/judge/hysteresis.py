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

RISE_S = 4.0  # seconds of suspicion before a cause may be stated, after the 10 s medians of its rule
FALL_S = 6.0
LINGER_S = 10.0  # how long a verdict may outlast its cause while there is no other one
URGENT_RISE_S = 1.0  # for kinds that need no median: what a process does right now
SWITCH_S = 4.0  # how long a heavier cause must lead before it replaces the stated one
INCUMBENT = 1.25  # the stated cause weighs this much more, so that two equal ones do not take turns
PRESENCE_S = 20.0  # seconds over which it is remembered how often a cause was suspected
FORGOTTEN = 0.05  # part of that time below which a cause is forgotten
SETTLED_S = 60.0  # a verdict that stood this long without contradiction needs fewer judgements

URGENT = frozenset((Kind.STARTING, Kind.PAUSED, Kind.IDLE, Kind.HUNG))
# Also what a driver states of a card, and counts that are exact: no median makes them surer.
AT_ONCE = URGENT | {Kind.GPU_UNHEALTHY, Kind.LIMITS}
# What need not lead for some seconds: it was looked at for long enough, or seen.
SWITCHED_TO = frozenset((Kind.HUNG, Kind.GPU_UNHEALTHY, Kind.FAILED, Kind.LIMITS))


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
    notes: tuple[str, ...] = ()
    watch: WatchedTime = NO_WATCH
    looks: tuple[SliceLook, ...] = ()


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
        now = replace(now, since_ns=min(before, known_or(now.since_ns, before)))
    return replace(track, suspicion=now, score=min(1.0, track.score + dt_s / rise_s))


def _remember(
    presences: Iterable[Presence], found: Mapping[Key, Suspicion], dt_s: float
) -> tuple[Presence, ...]:
    """Follow how often each cause is suspected: a weighted mean, in which the newest seconds count most."""
    before = {key_of(one.suspicion): one for one in presences}
    fades, kept = math.exp(-dt_s / PRESENCE_S), []
    for key in before.keys() | found.keys():
        suspicion, is_now = found.get(key), key in found
        old = before.get(key) or Presence(found[key], 0.0, is_now)
        ratio = old.ratio * fades + (1 - fades) * is_now
        if is_now or ratio >= FORGOTTEN:
            returns = old.came_back or (is_now and not old.is_now)
            kept.append(Presence(suspicion or old.suspicion, ratio, is_now, returns))
    kept.sort(key=lambda one: (-one.ratio, one.suspicion.kind.value, str(one.suspicion.cause)))
    return tuple(kept)


def note_rules(standing: Standing, answers: Sequence[Answer], now_ns: int) -> Standing:
    """Note which rule suspects which cause, while that is followed, and when each first denied its own."""
    # "Cannot tell" is no denial.
    before = standing.cleared_ns or (0,) * len(answers)
    denied = [now_ns if isinstance(answer, Cleared) else 0 for answer in answers]
    followed = {key_of(track.suspicion) for track in standing.tracks}
    known = {key: number for key, number in standing.rules if key in followed}
    known |= {key_of(one): number for number, one in enumerate(answers) if isinstance(one, Suspicion)}
    cleared_ns = tuple(old or new for old, new in zip(before, denied, strict=True))
    return replace(standing, cleared_ns=cleared_ns, rules=tuple(known.items()))


def is_settled(standing: Standing, now_ns: int) -> bool:
    """Tell whether the verdict has stood for a while, and nothing gains on it."""
    # What a process does right now (a start, a stop, a hang) never settles. That no cause is found does: what
    # a whole Window does not tell, the next one will not either.
    is_urgent = standing.stated is not None and standing.stated[0] in URGENT
    since_ns = max(standing.stated_ns, standing.begun_ns, standing.dropped_ns)
    gains = standing.lost_ns or standing.challenger is not None or standing.pending is not None
    if is_urgent or gains or now_ns - since_ns < SETTLED_S * 1e9:
        return False
    return all(track.score >= 1.0 for track in standing.tracks)


def leave_out_own(standing: Standing, answers: Sequence[Answer]) -> list[Answer]:
    """Leave out a denial by the stated cause's own rule: a verdict must not linger beside it."""
    own = {number for key, number in standing.rules if key == standing.stated}
    return [one for number, one in enumerate(answers) if number not in own or isinstance(one, Suspicion)]


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
    for key in (key for key in found if key not in old):
        score = 1.0 if key[0] in AT_ONCE else 0.0
        tracks.append(
            Track(found[key], score, now_ns, now_ns - begun_ns, now_ns - cleared_ns.get(key, now_ns))
        )
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


def state(standing: Standing, ranked: Sequence[Track], weigh: Mapping[Key, float], now_ns: int) -> Standing:
    """Decide which cause is stated; ``ranked`` are those that may be, best first, with their weights."""
    keys, stated = [key_of(track.suspicion) for track in ranked], standing.stated
    if not keys:
        # A verdict whose cause is gone stays for a while, until there is another; a hang not at all.
        lost_ns = standing.lost_ns or now_ns
        if stated is None or stated[0] is Kind.HUNG or now_ns - lost_ns >= LINGER_S * 1e9:
            return replace(standing, stated=None, challenger=None, lost_ns=0)
        return replace(standing, challenger=None, lost_ns=lost_ns)
    standing, best = replace(standing, lost_ns=0), keys[0]
    if stated is None or stated not in keys:
        return replace(standing, stated=best, challenger=None)
    if best == stated or weigh[best] <= INCUMBENT * weigh[stated]:
        return replace(standing, challenger=None)
    at_once = best[0] in SWITCHED_TO and stated[0] is not best[0]
    if best != standing.challenger and not at_once:
        return replace(standing, challenger=best, challenged_ns=now_ns)
    led = best == standing.challenger and now_ns - standing.challenged_ns >= SWITCH_S * 1e9
    return replace(standing, stated=best, challenger=None) if led or at_once else standing


FLICKER_S = 30.0  # a verdict that replaced another one and gave way to it within this time was flicker
DAMPED_S = 60.0  # how long what flickered must lead without a break before it is stated again
CALM_S = 300.0  # how long after the last flicker changes are damped


def damp(before: Standing, after: Standing, now_ns: int) -> Standing:
    """Return ``after``, with the verdict of ``before`` where the new one only flickers."""
    old, new = before.stated, after.stated
    if old == new:
        return replace(after, pending=None)
    if any(key is not None and key[0] in AT_ONCE for key in (old, new)):
        return replace(after, pending=None, stated_ns=now_ns, previous=None)
    flickers = after.flickers if now_ns < after.damped_ns else frozenset()
    begun_ns = before.pending_ns if before.pending == (new,) else now_ns
    if new in flickers and old is not None and now_ns - begun_ns < DAMPED_S * 1e9:
        waits = replace(after, pending=(new,), pending_ns=begun_ns, flickers=flickers)
        return replace(waits, stated=old, lost_ns=before.lost_ns)
    damped_ns = after.damped_ns
    short = now_ns - after.stated_ns < FLICKER_S * 1e9
    if short and after.previous == (new,):
        damped_ns = now_ns + round(CALM_S * 1e9)
    if short and now_ns < damped_ns:
        flickers |= {old, new}
    after = replace(after, pending=None, stated_ns=now_ns, previous=(old,))
    return replace(after, damped_ns=damped_ns, flickers=flickers)


RECENT = 3  # readings that all must differ: one or two may be a step of another kind
BEFORE = 10  # readings before them to compare with
MANY = 3  # ranks above which their samples are also compared together: they share the samples of a second
LEAST_DEMAND = 0.15  # how much the demand of all ranks, or of all their workers, must move, in threads


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
