"""Order suspicions: which cause explains which others, and which one is said first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from tpmon.judge.answers.result import Key, Suspicion
from tpmon.judge.hysteresis import AT_ONCE, INCUMBENT, Presence, Track, key_of
from tpmon.model.known import NotApplicable, is_known
from tpmon.model.verdict import Kind, pick_code

_ANY = NotApplicable.NOT_APPLICABLE  # in the table below: every cause of the kind


def _of(kind: Kind, *causes: str) -> tuple[Key, ...]:
    return tuple((kind, cause) for cause in causes) or ((kind, _ANY),)


_data, _comms, _cpus = (partial(_of, one) for one in (Kind.DATA_BOUND, Kind.COMMS_BOUND, Kind.OVERSUBSCRIBED))
_LOADING = _data("no-workers", "cpu-transform", "too-few-workers", "collate", "drain", "pin")
_READING = _data("storage-bandwidth", "storage-latency", "network-store")
_WAITING_FOR_ONE = _comms("straggler", "unknown")
_SLOWED = (*_LOADING, *_of(Kind.PYTHON_BOUND), *_comms())  # whatever has too few CPUs

OTHER_TENANTS: Key = (Kind.OVERSUBSCRIBED, "other-tenants")

_ROWS: tuple[tuple[tuple[Key, ...], tuple[Key, ...]], ...] = (
    # A job that stands still waits for something; that is part of the hang.
    (_of(Kind.HUNG), (*_comms(), *_of(Kind.PYTHON_BOUND), *_data())),
    # A call into a driver that does not answer does not return.
    (_of(Kind.HUNG, "gpu-lost"), _of(Kind.HUNG, "blocked-io", "no-progress")),
    # Time that the quota takes is counted as waiting for a CPU (docs/metrics.md).
    (_of(Kind.CPU_THROTTLED, "quota"), (*_cpus(), *_SLOWED)),
    # While the cards are full, nobody waits for the CPUs.
    (
        _of(Kind.COMPUTE_BOUND, "gpu-compute", "gpu-memory-bandwidth", "gpu"),
        (*_cpus(), *_of(Kind.CPU_THROTTLED, "quota")),
    ),
    # Pools that fit the machine do not fit a mask that holds them on a part of it.
    (_cpus("affinity"), (*_cpus("rank-pool", "too-many-ranks", "other-tenants"), *_SLOWED)),
    (_cpus("rank-pool", "worker-pool", "too-many-ranks"), _SLOWED),
    (_of(Kind.MEMORY_PRESSURE, "swap"), (*_LOADING, *_READING)),
    (_data("page-cache-thrash"), (*_LOADING, *_READING)),
    (_data("respawn", "one-slow-worker", "worker-lock"), (*_LOADING, *_READING, *_data("periodic"))),
    (
        _data("killed-workers"),
        (*_LOADING, *_READING, *_data("respawn", "periodic", "one-slow-worker", "uneven-workers")),
    ),
    # Whatever waits for the card to decode waits less only where that decodes less.
    (_data("decode-engine"), (*_LOADING, *_data("own-loader", "periodic"))),
    # More workers, or cheaper ones, would still share their few CPUs, and wait for the same sampler.
    (_data("worker-affinity", "sampler"), (*_LOADING, *_data("periodic"))),
    # A server that refuses few workers refuses more of them, too; a rank without any asks it itself.
    (_data("network-store"), _data("too-few-workers", "no-workers")),
    # However fast they came, no step would be made of them.
    (_data("skipping"), (*_LOADING, *_READING, *_data("periodic"))),
    # Workers without data are no sign that more of them would help.
    (_data("uneven-workers"), (*_LOADING, *_READING, *_data("periodic", "one-slow-worker"))),
    # A thread of the worker hands a batch over, and waits there for the interpreter's lock.
    (_data("collate"), _data("drain")),
    # The stacks show what half of the wait goes into: what workers do meanwhile is not waited for.
    (_data("drain"), _data("cpu-transform", "too-few-workers", "periodic")),
    (_data("periodic"), _data("too-few-workers", "cpu-transform")),
    # A rank that waits for its data is the one that the others wait for; it moves no bytes between them.
    (_data(), _WAITING_FOR_ONE),
    # A slow card comes late; only a slow link slows what all ranks send each other.
    ((*_of(Kind.GPU_THROTTLED), *_of(Kind.GPU_UNHEALTHY)), _WAITING_FOR_ONE),
    (_of(Kind.GPU_THROTTLED, "pcie"), _comms()),
    (_of(Kind.PYTHON_BOUND, "blocking-call"), _WAITING_FOR_ONE),
    (_of(Kind.PAUSED, "validation-share"), (*_of(Kind.PAUSED, "validation"), *_WAITING_FOR_ONE)),
    (_of(Kind.PAUSED, "checkpoint-share"), (*_of(Kind.PAUSED, "checkpoint"), *_WAITING_FOR_ONE)),
    # What a rank pickles longer, or sends in pieces, is a part of the same call.
    (_comms("objects"), _comms("small-messages", "transfer", "unknown")),
    # Threads that hand on many small messages are as busy as those that hand on large ones.
    (_comms("small-messages"), _comms("transfer", "unknown")),
    (
        _of(Kind.PYTHON_BOUND, "gil"),
        (*_of(Kind.PYTHON_BOUND, "single-thread", "small-operators", "blocking-call"), *_data("own-loader")),
    ),
)
# Which causes only follow from another one.
EXPLAINS: Mapping[Key, tuple[Key, ...]] = MappingProxyType(
    {source: explained for sources, explained in _ROWS for source in sources}
)

EXPLAINS_WAIT = 0.5  # share of a wait between ranks that a card must lose to its clock or link to explain it
LEAST_THROTTLE = 0.05  # share of its time that a card must lose before the reason may be the verdict
GIVES_WAY = 0.5  # score of the stated cause (after 3 s) at which another of its kind follows
_NO_WEIGHTS: Mapping[Key, float] = MappingProxyType({})
_FIRST = 1000.0
_BEFORE_SPEED = 100.0
_BESIDE = 0.01  # weight of what others take of the CPUs
_HEALTHY = 0.001


def _is(key: Key, wanted: Key) -> bool:
    return key[0] is wanted[0] and (wanted[1] is _ANY or key[1] == wanted[1])


def _costs(key: Key, shadow: Key, weights: Mapping[Key, float]) -> bool:
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
        one for one in present if any(_is(one, shadow) and _costs(key, one, weights) for key, shadow in pairs)
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


RIVAL_RATIO = 0.4  # how often a second cause must be suspected, over the stated one of late, to be as likely
NOISE = 0.15  # difference of two shares that a window does not tell apart, where no interval is known


def _are_alike(one: Suspicion, other: Suspicion) -> bool:
    """Tell whether two shares of the time differ by less than their windows spread."""
    low, high, other_low, other_high = one.share_low, one.share_high, other.share_low, other.share_high
    if is_known(low) and is_known(high) and is_known(other_low) and is_known(other_high):
        return low <= other_high and other_low <= high
    return abs(one.weight - other.weight) <= NOISE


def find_rivals(stated: Suspicion, presences: Iterable[Presence]) -> tuple[Suspicion, ...]:
    """Return the causes that explain the same wait as well as the stated one, most often suspected first."""
    # One that the stated cause explains is a rival where that comes and goes.
    own, presences = key_of(stated), tuple(presences)
    if stated.kind in AT_ONCE or pick_code(*own) == 0:
        return ()
    mine = next((one for one in presences if key_of(one.suspicion) == own), None)
    wavers = mine is not None and mine.came_back
    least = RIVAL_RATIO * (mine.ratio if mine is not None else 1.0)
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
    may = [one for one in tracks if one.score >= 1 or key_of(one.suspicion) == stated]
    may = [
        one
        for one in may
        if one.suspicion.kind is not Kind.GPU_THROTTLED or one.suspicion.weight >= LEAST_THROTTLE
    ]
    risen = [one for one in may if one.score >= 1]
    may = [*risen, *(one for one in may if one.score < 1 and not _gives_way(one, risen))]
    weights = {key_of(track.suspicion): track.suspicion.weight for track in may}
    explained = find_explained(weights, weights)
    free = [track for track in may if key_of(track.suspicion) not in explained]
    return tuple(sorted(free, key=lambda track: -weigh(track)))
