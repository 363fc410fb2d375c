"""Judge what runs out besides memory: descriptors, threads, disk space, inodes.

As for memory, growth counts if it lasts, and the weight is how near the end is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Cleared, Suspicion, Unsure
from tpmon.judge.features.card_use import ETA_S, find_urgency, say_about
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.snapshot import Rule, Scene, once
from tpmon.model.figures import Figure, Origin
from tpmon.model.frozen import dataclass
from tpmon.model.host import LimitSample, Resource
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known, known_or
from tpmon.model.units import format_bytes, format_pct, say_bytes_s
from tpmon.model.verdict import Kind

SHORT_S = 12.0
"""Growth over so short a time is told if the end is near, and a fifth of the limit is used."""
LONG_S = 45.0
WINDOWS = 3
TRUST = 40.0
"""Growth is believed to go on for so many times as long as it was seen: half an hour after 45 s."""
DISK_TRUST = 4.0
"""The same for files, of which a checkpoint writes many in a minute, and then none."""
EARLY_RATIO = 0.2
"""Share of the limit below which descriptors may still be opened by a start."""
FULL_RATIO = 0.97
"""Share of a count from which the next use may fail, whether it grows or not."""
FULL_FREE_BYTES = 256 << 20
GROWS = {Resource.DESCRIPTORS: 0.2, Resource.THREADS: 0.2, Resource.DISK: 1e6, Resource.INODES: 5.0}
"""Per second, in each window: less is noise."""
SHARED = ("/dev/shm", "memfd")  # noqa: S108  # as the probe names them
_WORDS = {
    Resource.DESCRIPTORS: "open descriptors",
    Resource.THREADS: "threads and processes",
    Resource.DISK: "disk space",
    Resource.INODES: "inodes",
}
_NEEDS = {
    Resource.DESCRIPTORS: Need.DESCRIPTORS_NEAR,
    Resource.THREADS: Need.THREADS_NEAR,
    Resource.DISK: Need.DISK_NEAR,
    Resource.INODES: Need.INODES_NEAR,
}


@dataclass(frozen=True, slots=True)
class Course:
    """Hold how the use of a limit grows per second, and for how long that was seen."""

    per_s: float
    over_s: float


def _key(one: LimitSample) -> tuple[Resource, str, int]:
    return one.resource, one.of, one.limit


@once
def _list_points(scene: Scene) -> dict[tuple[Resource, str, int], list[tuple[float, int]]]:
    """Return time and use of each limit in each Frame that has it, oldest first."""
    points: dict[tuple[Resource, str, int], list[tuple[float, int]]] = {}
    for frame in scene.history:
        for one in known_or(frame.limits, ()):
            points.setdefault(_key(one), []).append((frame.taken_ns / 1e9, one.used))
    return points


def measure_course(points: Sequence[tuple[float, int]], span_s: float, least: float) -> Course | None:
    """Return the growth over the last ``span_s`` if it was at least ``least`` in each third of it."""
    if not points or points[-1][0] - points[0][0] < span_s:
        return None
    end_s = points[-1][0]
    edges = [end_s - span_s * part / WINDOWS for part in range(WINDOWS, -1, -1)]
    near = [min(points, key=lambda point, edge=edge: abs(point[0] - edge)) for edge in edges]  # type: ignore[misc]
    for (older_s, older), (newer_s, newer) in itertools.pairwise(near):
        if newer_s <= older_s or (newer - older) / (newer_s - older_s) < least:
            return None
    over_s = near[-1][0] - near[0][0]
    return Course((near[-1][1] - near[0][1]) / over_s, over_s)


def _find_course(scene: Scene, one: LimitSample) -> tuple[Course, float] | None:
    """Return the growth of one limit that ends soon enough to be told, with the seconds until then."""
    points = _list_points(scene).get(_key(one), [])
    files = one.resource in (Resource.DISK, Resource.INODES)
    trust = DISK_TRUST if files else TRUST
    for span_s in (LONG_S,) if files else (SHORT_S, LONG_S):
        course = measure_course(points, span_s, GROWS[one.resource])
        if course is None:
            continue
        eta_s = (one.limit - one.used) / course.per_s
        early = span_s == SHORT_S and one.used < EARLY_RATIO * one.limit
        if not early and eta_s < min(ETA_S, trust * span_s):
            return course, eta_s
    return None


def _is_full(one: LimitSample) -> bool:
    left = one.limit - one.used
    full = one.used >= FULL_RATIO * one.limit
    return full and (one.resource is not Resource.DISK or left < FULL_FREE_BYTES)


def _say_used(one: LimitSample) -> str:
    if one.resource is Resource.DISK:
        return f"{format_bytes(one.used)} of {format_bytes(one.limit)}"
    return f"{one.used:,} of {one.limit:,}"


def _suspect(scene: Scene, one: LimitSample, found: tuple[Course, float] | None) -> Suspicion:
    ratio, words, origins = one.used / one.limit, _WORDS[one.resource], (_origin(one),)
    grows, proof = "", Proof(words, scene)
    margin = max(1.0, ETA_S / max(found[1], 1.0)) if found is not None else ratio / FULL_RATIO
    proof.add(Figure.LIMIT_USED, ratio, margin, of=words, text=_say_used(one), origins=origins)
    if found is not None:
        course, eta_s = found
        rate = say_bytes_s(course.per_s) if one.resource is Resource.DISK else f"{course.per_s:.1f} a second"
        grows = f", growing by {rate}: full in {say_about(eta_s)}"
        proof.add(Figure.LIMIT_GROWTH, course.per_s, of=words, text=rate, origins=origins)
    observed = {_NEEDS[one.resource]}
    if one.groups:
        most = one.groups[0]
        text = ", ".join(f"{group.count:,} {group.target}" for group in one.groups)
        proof.show(Figure.DESCRIPTOR_KINDS, float(most.count), text=text)
        observed.add(Need.DESCRIPTORS_SHARED if most.target in SHARED else Need.DESCRIPTORS_OWN)
        grows += f"; most lead to {most.target}"
    process = next((p for p in scene.frame.processes if is_known(one.pid) and p.pid == one.pid), None)
    rank: Applicable[int] = process.rank if process is not None else NOT_APPLICABLE
    return proof.suspect(
        Kind.LIMITS,
        one.resource.value,
        find_urgency(found[1]) if found is not None else ratio,
        f"{words} of {one.of}: {_say_used(one)} ({format_pct(100 * ratio)} %){grows}",
        observed=frozenset(observed),
        pid=one.pid,
        rank=rank,
    )


def _origin(one: LimitSample) -> Origin:
    if is_known(one.pid):
        return Origin.PROC
    return Origin.FILES if one.resource in (Resource.DISK, Resource.INODES) else Origin.CGROUP


def _judge(scene: Scene, resource: Resource) -> Answer:
    """Suspect a limit that is reached soon, or nearly is."""
    words = _WORDS[resource]
    limits = scene.frame.limits
    if isinstance(limits, Missing):
        return Unsure(f"{words} ({limits.reason})")
    mine = [one for one in known_or(limits, ()) if one.resource is resource and one.limit > 0]
    if not mine:
        return Cleared(f"{words} (no limit was read)")
    found = [(one, course) for one in mine if (course := _find_course(scene, one)) or _is_full(one)]
    if found:
        suspicions = [_suspect(scene, *one) for one in found]
        return max(suspicions, key=lambda one: one.weight)
    fullest = max(mine, key=lambda one: one.used / one.limit)
    return Cleared(f"{words} ({_say_used(fullest)})")


RULES: tuple[Rule, ...] = tuple(partial(_judge, resource=one) for one in Resource)
