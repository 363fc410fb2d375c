"""Judge what runs out or is about to: memory, shared memory, descriptors, threads, disk space, inodes.

The weight of these causes is how near the end is; for swap it is the time that the job stalls. Growth counts
if it lasts.
"""

from __future__ import annotations

import statistics
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Suspicion, Unsure, by_conditions
from tpmon.judge.features import card_use as use
from tpmon.judge.features import snapshot
from tpmon.judge.features.engine import Proof, proves
from tpmon.judge.features.readings import memory_origin, pressure_origin
from tpmon.judge.features.snapshot import Rule, Scene, once
from tpmon.model.figures import Figure, Origin
from tpmon.model.frame import Frame
from tpmon.model.host import SUMMED_ANON, LimitSample, Resource
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known, sum_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.units import format_bytes, say_bytes_s, say_ratio
from tpmon.model.verdict import Kind


@proves("shared memory")
def judge_shm(memory: Proof, scene: Scene) -> Answer:
    """Suspect /dev/shm when it is small and half full, or has no room for two more steps of growth."""
    shm = memory.known(scene.frame.memory.shm)
    memory.doubt(shm.total_bytes <= 0, "its size reads 0")
    text = f"{format_bytes(shm.used_bytes)} of {format_bytes(shm.total_bytes)}"
    is_idle = not _workers(scene.frame) and len(scene.ranks) < 2
    memory.clear(is_idle, f"{text}, nothing of the job needs it")
    fill, step = shm.used_bytes / shm.total_bytes, snapshot.find_largest_step(scene.history)
    past = snapshot.measure_shm(shm, step)
    memory.clear(past <= 1, text)
    memory.add(Figure.SHM_USED, fill, past)
    memory.add(Figure.SHM_GROWTH, step / (1 << 20))
    words = f"{shm.path} is {say_ratio(fill)} full ({text}): a batch that does not fit is lost"
    return memory.suspect(Kind.MEMORY_PRESSURE, "shm", fill, words, Need.SHM_TIGHT)


NEAR_LIMIT = 0.8
FLAT_RSS = 0.25  # growth of summed RSS over that of anonymous memory below which pages are only copied
OWN_GROWTH = 0.5  # growth of summed RSS over that of the control group above which it is this job that grows
COPIED_SHARE = 0.2  # growth within the Window over all anonymous memory above which copies matter
COPY_FAULTS_S = 500.0  # minor faults per second of all workers that go with copied pages; measured 5,600 each
PAGE_BYTES = 4096  # the smallest page: what one minor fault copies at least
COPIED_BY_FAULTS = 0.5  # part of the growth that the workers' faults must explain


def _room(scene: Scene) -> Known[tuple[float, float, str]]:
    """Return the bytes left, the filled share of the limit, and the limit in words: of the tighter one."""
    memory = scene.frame.memory
    available, total, limit = memory.host_available_bytes, memory.host_total_bytes, memory.limit_bytes
    rooms: list[tuple[float, float, str]] = []
    if is_known(limit) and is_known(memory.used_bytes) and limit > 0:
        left = float(max(0, limit - memory.used_bytes))
        rooms.append((left, memory.used_bytes / limit, f"the limit of {format_bytes(limit)}"))
    if is_known(available) and is_known(total) and total > 0:
        rooms.append((float(available), 1 - available / total, f"the machine's {format_bytes(total)}"))
    unread = available if isinstance(available, Missing) else Missing("memory of the machine not read")
    return min(rooms, key=lambda one: one[0], default=unread)


_sum_rss, _sum_anon = attrgetter("memory.rss_bytes"), attrgetter("memory.anon_bytes")


def _is_summed(scene: Scene) -> bool:
    """Tell whether anonymous memory is summed over processes: copies of shared pages do not change it."""
    return scene.frame.memory.anon_source == SUMMED_ANON


def _lasts(scene: Scene, anon: use.Growth) -> bool:
    """Tell whether memory grew in every window, and in the fit over the last minute if there is one."""
    return anon.grows and known_or(scene.frame.memory.anon_growth_bytes_s, anon.mean) > use.GROWTH_BYTES_S


def _workers(frame: Frame) -> list[ProcessSample]:
    return [process for process in frame.processes if process.role is Role.WORKER]


def _grows_by_copies(scene: Scene, anon: use.Growth) -> Known[bool]:
    """Tell whether shared pages are copied: anonymous memory grows, the sum of RSS does not."""
    if not _workers(scene.frame) or _is_summed(scene):
        return False
    return map_known(lambda rss: rss.mean < FLAT_RSS * anon.mean, use.read_growth(scene, _sum_rss))


def _who_grows(scene: Scene, anon: use.Growth) -> Role:
    """Return whose resident memory grows most, the loader workers' or (by default) the ranks'."""
    # Files that workers map are resident, too: if the ranks' growth explains ``anon``, it is the ranks'.

    def mean_of(role: Role) -> float:
        growth = use.read_growth(
            scene, lambda frame: float(sum(one.rss_bytes for one in frame.processes if one.role is role))
        )
        return growth.mean if is_known(growth) and growth.grows else 0.0

    ranks = mean_of(Role.RANK)
    fed = mean_of(Role.WORKER) > ranks and ranks < OWN_GROWTH * anon.mean
    return Role.WORKER if fed else Role.RANK


def _suspect_growth(proof: Proof, cause: str, growth: use.Growth, need: Need, words: str) -> Suspicion:
    """Suspect growth; the largest process of those that grow is named."""
    role = Role.WORKER if need is Need.WORKERS_GROW else Role.RANK
    memory, room, needs = proof.scene.frame.memory, _room(proof.scene), {need}
    told: dict[str, Any] = {"source": memory.anon_source, "origins": (memory_origin(memory),)}
    proof.add(Figure.MEMORY_GROWTH, growth.mean, min(growth.slopes) / use.GROWTH_BYTES_S, **told)
    proof.add(Figure.GROWN, growth.grown_bytes / (1 << 20), **told)
    weight, summary = 0.2, f"{words} by {say_bytes_s(growth.mean)}"
    if is_known(room):
        eta_s = room[0] / growth.mean
        weight, summary = use.find_urgency(eta_s), f"{summary}, {room[2]} full in {use.say_about(eta_s)}"
        needs |= {Need.MEMORY_LIMIT_NEAR} if room[1] >= NEAR_LIMIT else set()
        proof.show(Figure.MEMORY_USED, room[1], source=memory.limit_source)
    those = [one for one in proof.scene.frame.processes if one.role is role]
    biggest = max(those, key=lambda process: process.rss_bytes, default=None)
    return proof.suspect(Kind.MEMORY_PRESSURE, cause, weight, summary, *needs, process=biggest)


def _is_near_the_end(room: tuple[float, float, str], growth: use.Growth) -> bool:
    return room[0] / growth.mean < use.ETA_S or room[1] >= NEAR_LIMIT


@proves("leak")
def judge_leak(leak: Proof, scene: Scene) -> Answer:
    """Suspect steady growth of the job's memory that reaches its limit soon."""
    growth = Claim("memory growth")
    anon = growth.known(use.read_growth(scene, _sum_anon))
    growth.clear(not _lasts(scene, anon), "none that lasts")
    leak.clear(growth.known(_grows_by_copies(scene, anon)), "pages are copied, not added")
    rss = use.read_growth(scene, _sum_rss)
    # A control group may hold other jobs, too: a session's, a container's.
    is_others = is_known(rss) and not _is_summed(scene) and rss.mean < OWN_GROWTH * anon.mean
    leak.clear(is_others, f"{scene.frame.memory.anon_source} grows, this job's processes do not")
    room, grows = _room(scene), say_bytes_s(anon.mean)
    if not is_known(room):
        return Unsure(f"when memory is full (it grows by {grows}, limit not known)")
    lasts = f"{grows}, room for {use.say_about(room[0] / anon.mean)}"
    growth.clear(not _is_near_the_end(room, anon), lasts)
    if is_known(rss) and rss.grows and not _is_summed(scene):
        leak.add(Figure.RSS_GROWTH, rss.mean)
    if _who_grows(scene, anon) is Role.WORKER:
        words = "memory of the loader workers grows"
        return _suspect_growth(leak, "leak", anon, Need.WORKERS_GROW, words)
    return _suspect_growth(leak, "leak", anon, Need.ANON_GROWS, "memory grows")


@proves("copy-on-write")
def judge_copy_on_write(copying: Proof, scene: Scene) -> Answer:
    """Suspect copies of shared pages: anonymous memory grows with the workers, the sum of RSS does not."""
    copying.clear(not _workers(scene.frame), "no workers")
    anon = copying.known(use.read_growth(scene, _sum_anon))
    copying.clear(not _lasts(scene, anon), "memory does not grow")
    copying.doubt(_is_summed(scene), "copies are counted in a control group only, the job has none")
    copying.clear(not copying.known(_grows_by_copies(scene, anon)), "the processes themselves grow")
    faults = [sum_known(worker.minor_faults_s for worker in _workers(frame)) for frame in scene.frames]
    pages_s, grows = statistics.fmean(faults), say_bytes_s(anon.mean)
    # Without them the group that grows holds other processes than these.
    copying.at_least(Figure.MINOR_FAULTS, pages_s, COPY_FAULTS_S)
    touched = f"the workers touch {say_bytes_s(pages_s * PAGE_BYTES)} of the {grows} by which memory grows"
    copying.clear(pages_s * PAGE_BYTES < COPIED_BY_FAULTS * anon.mean, touched)
    near = known_or(map_known(lambda room: _is_near_the_end(room, anon), _room(scene)), False)
    much = anon.grown_bytes >= COPIED_SHARE * max(anon.newest - anon.grown_bytes, 1.0)
    copying.clear(not much and not near, f"{grows}, small beside what is free")
    words = "workers copy shared pages: memory grows"
    return _suspect_growth(copying, "copy-on-write", anon, Need.PAGES_COPIED, words)


@proves("swap")
def judge_swap(swapped: Proof, scene: Scene) -> Answer:
    """Suspect swap when the job has pages there and touches them."""
    memory, psi = scene.frame.memory, scene.memory_psi_pct
    swap, faults = snapshot.claim_touched_swap(scene)
    told = {"source": memory.anon_source, "origins": (memory_origin(memory),)}
    swapped.add(Figure.IN_SWAP, swap / (1 << 20), swap / snapshot.SWAP_BYTES, **told)
    # Major faults are also those of mapped files: only together with swap do they mean something.
    swapped.add(Figure.MAJOR_FAULTS, faults, faults / snapshot.SWAP_FAULTS_S, **told)
    stalled = map_known(lambda pct: min(pct, 100.0) / 100, psi)
    swapped.add(Figure.MEMORY_STALLS, stalled, origins=(pressure_origin(memory),))
    return swapped.suspect(
        Kind.MEMORY_PRESSURE,
        "swap",
        known_or(stalled, 0.2),
        f"{format_bytes(swap)} of the job lie in swap and are touched {faults:.0f} times a second",
        Need.SWAP_USED,
        share=stalled if is_known(stalled) else Missing("PSI was not read"),
    )


SHORT_S = 12.0  # growth over so short a time is told if the end is near, and a fifth of the limit is used
LONG_S = 45.0
TRUST = 40.0  # growth is believed to go on for so many times as long as it was seen: half an hour after 45 s
DISK_TRUST = 4.0  # the same for files, of which a checkpoint writes many in a minute, and then none
EARLY_RATIO = 0.2  # share of the limit below which descriptors may still be opened by a start
FULL_RATIO = 0.97  # share of a count from which the next use may fail, whether it grows or not
FULL_FREE_BYTES = 256 << 20
SHARED = ("/dev/shm", "memfd")  # noqa: S108  # as the probe names them
_FILES = (Resource.DISK, Resource.INODES)
# Growth per second, in each window, below which it is noise; words; what a remedy needs.
_RESOURCES = {
    Resource.DESCRIPTORS: (0.2, "open descriptors", Need.DESCRIPTORS_NEAR),
    Resource.THREADS: (0.2, "threads and processes", Need.THREADS_NEAR),
    Resource.DISK: (1e6, "disk space", Need.DISK_NEAR),
    Resource.INODES: (5.0, "inodes", Need.INODES_NEAR),
}


def _key(one: LimitSample) -> tuple[Resource, str, int]:
    return one.resource, one.of, one.limit


@once
def _list_points(scene: Scene) -> dict[tuple[Resource, str, int], list[tuple[int, int]]]:
    """Return date (ns) and use of each limit in each Frame that has it, oldest first."""
    points: dict[tuple[Resource, str, int], list[tuple[int, int]]] = {}
    for frame in scene.history:
        for one in known_or(frame.limits, ()):
            points.setdefault(_key(one), []).append((frame.taken_ns, one.used))
    return points


def _find_growth(scene: Scene, one: LimitSample) -> tuple[float, float] | None:
    """Return the growth of one limit that ends soon enough to be told, with the seconds until then."""
    points = _list_points(scene)[_key(one)]
    trust, spans_s = (DISK_TRUST, (LONG_S,)) if one.resource in _FILES else (TRUST, (SHORT_S, LONG_S))
    for span_s in spans_s:
        windows = {"window_s": span_s / use.GROWTH_WINDOWS, "edge_s": 0.0}
        growth = use.measure_growth(points, itemgetter(0), itemgetter(1), **windows)
        if not is_known(growth) or min(growth.slopes) < _RESOURCES[one.resource][0]:
            continue
        eta_s = (one.limit - one.used) / growth.mean
        early = span_s == SHORT_S and one.used < EARLY_RATIO * one.limit
        if not early and eta_s < min(use.ETA_S, trust * span_s):
            return growth.mean, eta_s
    return None


def _is_full(one: LimitSample) -> bool:
    is_much = one.resource is Resource.DISK and one.limit - one.used >= FULL_FREE_BYTES
    return one.used >= FULL_RATIO * one.limit and not is_much


def _say_used(one: LimitSample) -> str:
    if one.resource is Resource.DISK:
        return f"{format_bytes(one.used)} of {format_bytes(one.limit)}"
    return f"{one.used:,} of {one.limit:,}"


def _suspect_limit(scene: Scene, one: LimitSample, found: tuple[float, float] | None) -> Suspicion:
    _, words, need = _RESOURCES[one.resource]
    origin = Origin.FILES if one.resource in _FILES else Origin.CGROUP
    origins = (Origin.PROC if is_known(one.pid) else origin,)
    ratio, proof = one.used / one.limit, Proof(words, scene)
    grows, observed, weight, margin = "", {need}, ratio, ratio / FULL_RATIO
    if found is not None:
        per_s, eta_s = found
        weight, margin = use.find_urgency(eta_s), max(1.0, use.ETA_S / max(eta_s, 1.0))
    proof.add(Figure.LIMIT_USED, ratio, margin, of=words, text=_say_used(one), origins=origins)
    if found is not None:
        rate = say_bytes_s(per_s) if one.resource is Resource.DISK else f"{per_s:.1f} a second"
        grows = f", growing by {rate}: full in {use.say_about(eta_s)}"
        proof.add(Figure.LIMIT_GROWTH, per_s, of=words, text=rate, origins=origins)
    if one.groups:
        most = one.groups[0]
        text = ", ".join(f"{group.count:,} {group.target}" for group in one.groups)
        proof.show(Figure.DESCRIPTOR_KINDS, float(most.count), text=text)
        observed.add(Need.DESCRIPTORS_SHARED if most.target in SHARED else Need.DESCRIPTORS_OWN)
        grows += f"; most lead to {most.target}"
    rank = next((p.rank for p in scene.frame.processes if p.pid == one.pid), NOT_APPLICABLE)
    summary = f"{words} of {one.of}: {_say_used(one)} ({say_ratio(ratio)}){grows}"
    cause = one.resource.value
    return proof.suspect(Kind.LIMITS, cause, weight, summary, *observed, pid=one.pid, rank=rank)


@by_conditions
def _judge_limit(scene: Scene, resource: Resource) -> Answer:
    claim, limits = Claim(_RESOURCES[resource][1]), scene.frame.limits
    if isinstance(limits, Missing):
        return Unsure(f"{claim.what} ({limits.reason})")
    mine = [one for one in known_or(limits, ()) if one.resource is resource and one.limit > 0]
    claim.clear(not mine, "no limit was read")
    found = [(one, growth) for one in mine if (growth := _find_growth(scene, one)) or _is_full(one)]
    fullest = max(mine, key=lambda one: one.used / one.limit)
    claim.clear(not found, _say_used(fullest))
    return max((_suspect_limit(scene, *one) for one in found), key=lambda one: one.weight)


RULES: tuple[Rule, ...] = (judge_leak, judge_copy_on_write, judge_swap, judge_shm)
OTHER_RULES: tuple[Rule, ...] = tuple(partial(_judge_limit, resource=one) for one in Resource)
