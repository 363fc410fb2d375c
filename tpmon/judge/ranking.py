"""Order suspicions: which cause explains which others, and which one is said first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tpmon.judge.answers.result import Key, Suspicion
from tpmon.judge.hysteresis import AT_ONCE, INCUMBENT, Presence, Track, key_of
from tpmon.model.known import NotApplicable, is_known
from tpmon.model.verdict import Kind, pick_code

_ANY = NotApplicable.NOT_APPLICABLE
"""In the table below: every cause of the kind."""

_LOADING = tuple(
    (Kind.DATA_BOUND, cause)
    for cause in ("no-workers", "cpu-transform", "too-few-workers", "collate", "drain", "pin")
)
_READING = tuple(
    (Kind.DATA_BOUND, cause) for cause in ("storage-bandwidth", "storage-latency", "network-store")
)
_WAITING_FOR_A_RANK = ((Kind.COMMS_BOUND, _ANY),)
_WAITING_FOR_ONE = ((Kind.COMMS_BOUND, "straggler"), (Kind.COMMS_BOUND, "unknown"))
_SPEED_OF_ONE = ((Kind.PYTHON_BOUND, _ANY),)

OTHER_TENANTS: Key = (Kind.OVERSUBSCRIBED, "other-tenants")

EXPLAINS: Mapping[Key, tuple[Key, ...]] = MappingProxyType(
    {
        # A job that stands still waits for something; that is part of the hang.
        (Kind.HUNG, _ANY): (*_WAITING_FOR_A_RANK, *_SPEED_OF_ONE, (Kind.DATA_BOUND, _ANY)),
        # A call into a driver that does not answer does not return.
        (Kind.HUNG, "gpu-lost"): ((Kind.HUNG, "blocked-io"), (Kind.HUNG, "no-progress")),
        # Time that the quota takes is counted as waiting for a CPU (docs/metrics.md).
        (Kind.CPU_THROTTLED, "quota"): (
            (Kind.OVERSUBSCRIBED, _ANY),
            *_LOADING,
            *_SPEED_OF_ONE,
            *_WAITING_FOR_A_RANK,
        ),
        # While the cards are full, nobody waits for the CPUs.
        **{
            (Kind.COMPUTE_BOUND, cause): ((Kind.OVERSUBSCRIBED, _ANY), (Kind.CPU_THROTTLED, "quota"))
            for cause in ("gpu-compute", "gpu-memory-bandwidth", "gpu")
        },
        # Pools that fit the machine do not fit a mask that holds them on a part of it.
        (Kind.OVERSUBSCRIBED, "affinity"): (
            (Kind.OVERSUBSCRIBED, "rank-pool"),
            (Kind.OVERSUBSCRIBED, "too-many-ranks"),
            OTHER_TENANTS,
            *_LOADING,
            *_SPEED_OF_ONE,
            *_WAITING_FOR_A_RANK,
        ),
        (Kind.OVERSUBSCRIBED, "rank-pool"): (*_LOADING, *_SPEED_OF_ONE, *_WAITING_FOR_A_RANK),
        (Kind.OVERSUBSCRIBED, "worker-pool"): (*_LOADING, *_SPEED_OF_ONE, *_WAITING_FOR_A_RANK),
        (Kind.OVERSUBSCRIBED, "too-many-ranks"): (*_LOADING, *_SPEED_OF_ONE, *_WAITING_FOR_A_RANK),
        (Kind.MEMORY_PRESSURE, "swap"): (*_LOADING, *_READING),
        (Kind.DATA_BOUND, "page-cache-thrash"): (*_LOADING, *_READING),
        (Kind.DATA_BOUND, "respawn"): (*_LOADING, *_READING, (Kind.DATA_BOUND, "periodic")),
        (Kind.DATA_BOUND, "killed-workers"): (
            *_LOADING,
            *_READING,
            (Kind.DATA_BOUND, "respawn"),
            (Kind.DATA_BOUND, "periodic"),
            (Kind.DATA_BOUND, "one-slow-worker"),
            (Kind.DATA_BOUND, "uneven-workers"),
        ),
        # Whatever waits for the card to decode waits less only where that decodes less.
        (Kind.DATA_BOUND, "decode-engine"): (
            *_LOADING,
            (Kind.DATA_BOUND, "own-loader"),
            (Kind.DATA_BOUND, "periodic"),
        ),
        # More of them, or cheaper ones, would still share these few CPUs.
        (Kind.DATA_BOUND, "worker-affinity"): (*_LOADING, (Kind.DATA_BOUND, "periodic")),
        (Kind.DATA_BOUND, "one-slow-worker"): (*_LOADING, *_READING, (Kind.DATA_BOUND, "periodic")),
        (Kind.DATA_BOUND, "worker-lock"): (*_LOADING, *_READING, (Kind.DATA_BOUND, "periodic")),
        # A server that refuses few workers refuses more of them, too.
        (Kind.DATA_BOUND, "network-store"): ((Kind.DATA_BOUND, "too-few-workers"),),
        # Workers without data are no sign that more of them would help.
        (Kind.DATA_BOUND, "uneven-workers"): (
            *_LOADING,
            *_READING,
            (Kind.DATA_BOUND, "periodic"),
            (Kind.DATA_BOUND, "one-slow-worker"),
        ),
        # A thread of the worker hands a batch over, and waits there for the interpreter's lock.
        (Kind.DATA_BOUND, "collate"): ((Kind.DATA_BOUND, "drain"),),
        # The stacks show what half of the wait goes into: what workers do meanwhile is not waited for.
        (Kind.DATA_BOUND, "drain"): tuple(
            (Kind.DATA_BOUND, cause) for cause in ("cpu-transform", "too-few-workers", "periodic")
        ),
        (Kind.DATA_BOUND, "sampler"): (*_LOADING, (Kind.DATA_BOUND, "periodic")),
        (Kind.DATA_BOUND, "periodic"): (
            (Kind.DATA_BOUND, "too-few-workers"),
            (Kind.DATA_BOUND, "cpu-transform"),
        ),
        # A rank that waits for its data is the one that the others wait for; it moves no bytes between them.
        (Kind.DATA_BOUND, _ANY): _WAITING_FOR_ONE,
        # A slow card comes late; only a slow link slows what all ranks send each other.
        (Kind.GPU_THROTTLED, _ANY): _WAITING_FOR_ONE,
        (Kind.GPU_THROTTLED, "pcie"): _WAITING_FOR_A_RANK,
        (Kind.GPU_UNHEALTHY, _ANY): _WAITING_FOR_ONE,
        (Kind.PYTHON_BOUND, "blocking-call"): _WAITING_FOR_ONE,
        **{
            (Kind.PAUSED, f"{pause}-share"): ((Kind.PAUSED, pause), *_WAITING_FOR_ONE)
            for pause in ("validation", "checkpoint")
        },
        # What a rank pickles longer, or sends in pieces, is a part of the same call.
        (Kind.COMMS_BOUND, "objects"): (
            (Kind.COMMS_BOUND, "small-messages"),
            (Kind.COMMS_BOUND, "transfer"),
            (Kind.COMMS_BOUND, "unknown"),
        ),
        # Threads that hand on many small messages are as busy as those that hand on large ones.
        (Kind.COMMS_BOUND, "small-messages"): ((Kind.COMMS_BOUND, "transfer"), (Kind.COMMS_BOUND, "unknown")),
        (Kind.PYTHON_BOUND, "gil"): (
            (Kind.PYTHON_BOUND, "single-thread"),
            (Kind.PYTHON_BOUND, "small-operators"),
            (Kind.PYTHON_BOUND, "blocking-call"),
            (Kind.DATA_BOUND, "own-loader"),
        ),
    }
)
"""Which causes only follow from another one."""

EXPLAINS_WAIT = 0.5
"""Share of a wait between ranks that a card must lose to its clock or link to explain it."""
LEAST_THROTTLE = 0.05
"""Share of its time that a card must lose before the reason may be the verdict."""
GIVES_WAY = 0.5
"""Score of the stated cause (after 3 s) at which another of its kind, the same wait known better, follows."""
_NO_WEIGHTS: Mapping[Key, float] = MappingProxyType({})
_FIRST = 1000.0
_BEFORE_SPEED = 100.0
_BESIDE = 0.01
"""Weight of what others take of the CPUs: it adds to each cause of the job's own, and is said after it."""
_HEALTHY = 0.001


def _is(key: Key, wanted: Key) -> bool:
    return key[0] is wanted[0] and (wanted[1] is _ANY or key[1] == wanted[1])


def _is_enough(key: Key, shadow: Key, weights: Mapping[Key, float]) -> bool:
    """Tell whether a cause costs enough to explain another; only a throttle has to."""
    if key[0] is not Kind.GPU_THROTTLED or key not in weights or shadow not in weights:
        return True
    return weights[key] >= EXPLAINS_WAIT * weights[shadow]


def find_explained(keys: Iterable[Key], weights: Mapping[Key, float] = _NO_WEIGHTS) -> frozenset[Key]:
    """Return those of ``keys`` that another of them explains; ``weights`` are what they cost, 0-1."""
    present = tuple(keys)
    pairs = [
        (key, shadow)
        for key in present
        for source, explained in EXPLAINS.items()
        if _is(key, source)
        for shadow in explained
    ]
    return frozenset(
        one
        for one in present
        if any(_is(one, shadow) and _is_enough(key, one, weights) for key, shadow in pairs)
    )


def weigh(track: Track) -> float:
    """Return what ranks a cause: hangs first, failures, start and pause, then the share of time it costs."""
    kind = track.suspicion.kind
    weight = min(max(track.suspicion.weight, 0.0), 1.0)
    if kind is Kind.HUNG:
        return _FIRST + weight
    if kind is Kind.FAILED:
        return 2 * _BEFORE_SPEED + weight
    costs = pick_code(kind, track.suspicion.cause) != 0
    if kind in (Kind.STARTING, Kind.IDLE) or (kind is Kind.PAUSED and not costs):
        return _BEFORE_SPEED + weight
    if not costs:
        return _HEALTHY * (weight + (kind is Kind.COMPUTE_BOUND))
    return _BESIDE * weight if key_of(track.suspicion) == OTHER_TENANTS else weight


RIVAL_RATIO = 0.4
"""How often a second cause must be suspected, over the stated one of late, to be as likely."""
NOISE = 0.15
"""Difference of two shares of the time that a window does not tell apart, where no interval is known."""


def _are_alike(one: Suspicion, other: Suspicion) -> bool:
    """Tell whether two shares of the time differ by less than their windows spread."""
    low, high, other_low, other_high = one.share_low, one.share_high, other.share_low, other.share_high
    if is_known(low) and is_known(high) and is_known(other_low) and is_known(other_high):
        return low <= other_high and other_low <= high
    return abs(one.weight - other.weight) <= NOISE


def find_rivals(stated: Suspicion, presences: Iterable[Presence]) -> tuple[Suspicion, ...]:
    """Return the causes that explain the same wait as well as the stated one, most often suspected first.

    They are of its kind and of about its share, and were suspected in much of the last half minute: now, or
    again and again. One that the stated cause explains is a rival where that comes and goes.
    """
    own, presences = key_of(stated), tuple(presences)
    if stated.kind in AT_ONCE or pick_code(*own) == 0:
        return ()
    mine = next((one for one in presences if key_of(one.suspicion) == own), None)
    wavers, least = (
        mine is not None and mine.came_back,
        RIVAL_RATIO * (mine.ratio if mine is not None else 1.0),
    )
    return tuple(
        one.suspicion
        for one in presences
        if one.suspicion.kind is stated.kind
        and key_of(one.suspicion) != own
        and one.ratio >= least
        and (one.is_now or one.came_back)
        and _are_alike(stated, one.suspicion)
        and (wavers or key_of(one.suspicion) not in find_explained((own, key_of(one.suspicion))))
    )


def _gives_way(stated: Track, risen: Iterable[Track]) -> bool:
    """Tell whether the stated cause fades while another of its kind and about its weight has risen."""
    kind, least = stated.suspicion.kind, stated.suspicion.weight / INCUMBENT
    others = (one.suspicion for one in risen)
    return stated.score <= GIVES_WAY and any(one.kind is kind and one.weight >= least for one in others)


def rank(tracks: Iterable[Track], stated: Key | None) -> tuple[Track, ...]:
    """Return the causes that may be stated, heaviest first: fully risen, or stated and not fallen yet."""
    tracks = tuple(
        track
        for track in tracks
        if track.suspicion.kind is not Kind.GPU_THROTTLED or track.suspicion.weight >= LEAST_THROTTLE
    )
    risen = [track for track in tracks if track.score >= 1]
    held = [track for track in tracks if track.score < 1 and key_of(track.suspicion) == stated]
    may = risen + [track for track in held if not _gives_way(track, risen)]
    weights = {key_of(track.suspicion): track.suspicion.weight for track in may}
    explained = find_explained(weights, weights)
    free = [track for track in may if key_of(track.suspicion) not in explained]
    return tuple(sorted(free, key=lambda track: -weigh(track)))
