"""Judge memory that runs out or is about to: leak, copy-on-write, swap, shared memory.

The weight of these causes is how near the end is; for swap it is the time that the job stalls.
"""

from __future__ import annotations

import statistics

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, Suspicion, Unsure, by_conditions
from tpmon.judge.features.card_use import ETA_S, GROWTH_BYTES_S, Growth, find_urgency, read_growth, say_about
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import memory_origin, pressure_origin
from tpmon.judge.features.snapshot import (
    SHM_FULL,
    SHM_STEPS,
    SWAP_BYTES,
    SWAP_FAULTS_S,
    Rule,
    Scene,
    claim_touched_swap,
    find_largest_step,
    is_shm_small_and_full,
    lacks_shm_room,
)
from tpmon.model.figures import Figure
from tpmon.model.frame import Frame
from tpmon.model.host import SUMMED_ANON
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or, map_known, sum_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.units import format_bytes, format_pct, say_bytes_s
from tpmon.model.verdict import Kind


@by_conditions
def judge_shm(scene: Scene) -> Answer:
    """Suspect /dev/shm when it is small and half full, or has no room for two more steps of growth."""
    memory = Proof("shared memory", scene)
    shm = memory.known(scene.frame.memory.shm)
    memory.doubt(shm.total_bytes <= 0, "its size reads 0")
    text = f"{format_bytes(shm.used_bytes)} of {format_bytes(shm.total_bytes)}"
    is_used = bool(_workers(scene.frame)) or len(scene.ranks) > 1
    memory.clear(not is_used, f"{text}, nothing of the job needs it")
    fill, free = shm.used_bytes / shm.total_bytes, shm.total_bytes - shm.used_bytes
    step = find_largest_step(scene.history)
    small, tight = is_shm_small_and_full(shm), lacks_shm_room(shm, step)
    memory.clear(not small and not tight, text)
    by_growth = SHM_STEPS * step / max(free, 1) if tight else 1.0
    memory.add(Figure.SHM_USED, fill, max(1.0, fill / SHM_FULL if small else 1.0, by_growth))
    memory.add(Figure.SHM_GROWTH, step / (1 << 20))
    words = f"{shm.path} is {format_pct(100 * fill)} % full ({text}): a batch that does not fit is lost"
    needs = frozenset((Need.SHM_TIGHT,))
    return memory.suspect(Kind.MEMORY_PRESSURE, "shm", fill, words, observed=needs)


NEAR_LIMIT = 0.8
FLAT_RSS = 0.25
"""Growth of summed RSS over that of anonymous memory below which pages are only copied: measured 0 for
copy-on-write; a leak shows in both."""
OWN_GROWTH = 0.5
"""Growth of summed RSS over that of the control group above which it is this job that grows."""
COPIED_SHARE = 0.2
"""Growth within the Window over all anonymous memory above which copies matter; measured 40 %."""
COPY_FAULTS_S = 500.0
"""Minor faults per second of all workers that go with copied pages; measured 5,600 each."""
PAGE_BYTES = 4096
"""The smallest page: what one minor fault copies at least."""
COPIED_BY_FAULTS = 0.5
"""Part of the growth that the workers' faults must explain: measured 1.2 for copies, at 290 faults a second
and worker beside other work. Another job in the same control group grows without them."""


def _room(scene: Scene) -> Known[tuple[float, float, str]]:
    """Return the bytes left, the filled share of the limit, and the limit in words."""
    memory = scene.frame.memory
    available, total = memory.host_available_bytes, memory.host_total_bytes
    host: Known[tuple[float, float, str]]
    if is_known(available) and is_known(total) and total > 0:
        host = (float(available), 1 - available / total, f"the machine's {format_bytes(total)}")
    else:
        host = available if isinstance(available, Missing) else Missing("memory of the machine not read")
    limit, used = memory.limit_bytes, memory.used_bytes
    if is_known(limit) and is_known(used) and limit > 0:
        left = float(max(0, limit - used))
        group = (left, used / limit, f"the limit of {format_bytes(limit)}")
        return group if not is_known(host) or left <= host[0] else host
    return host


def _sum_rss(frame: Frame) -> Known[float]:
    return map_known(float, frame.memory.rss_bytes)


def _sum_anon(frame: Frame) -> Known[float]:
    return map_known(float, frame.memory.anon_bytes)


def _is_summed(scene: Scene) -> bool:
    """Tell whether anonymous memory is summed over processes: copies of shared pages do not change it."""
    return scene.frame.memory.anon_source == SUMMED_ANON


def _lasts(scene: Scene, anon: Growth) -> bool:
    """Tell whether memory grew in every window, and in the fit over the last minute if there is one."""
    return anon.grows and known_or(scene.frame.memory.anon_growth_bytes_s, anon.mean) > GROWTH_BYTES_S


def _workers(frame: Frame) -> list[ProcessSample]:
    return [process for process in frame.processes if process.role is Role.WORKER]


def _grows_by_copies(scene: Scene, anon: Growth) -> Known[bool]:
    """Tell whether shared pages are copied: anonymous memory grows, the sum of RSS does not."""
    if not _workers(scene.frame) or _is_summed(scene):
        return False
    rss = read_growth(scene, _sum_rss)
    if not is_known(rss):
        return rss
    return rss.mean < FLAT_RSS * anon.mean


def _who_grows(scene: Scene, anon: Growth) -> Role:
    """Return whose resident memory grows most, the loader workers' or (by default) the ranks'.

    Files that workers map are resident, too: if the ranks' growth explains ``anon``, it is the ranks'.
    """

    def mean_of(role: Role) -> float:
        def sum_rss(frame: Frame) -> float:
            return float(sum(one.rss_bytes for one in frame.processes if one.role is role))

        growth = read_growth(scene, sum_rss)
        return growth.mean if is_known(growth) and growth.grows else 0.0

    ranks = mean_of(Role.RANK)
    fed = mean_of(Role.WORKER) > ranks and ranks < OWN_GROWTH * anon.mean
    return Role.WORKER if fed else Role.RANK


def _suspect_growth(
    proof: Proof, cause: str, growth: Growth, words: str, need: Need, *, role: Role = Role.RANK
) -> Suspicion:
    """Suspect growth; ``role`` is whose: the largest process of it is named."""
    frame, room = proof.scene.frame, _room(proof.scene)
    memory, origins = frame.memory, (memory_origin(frame.memory),)
    margin, source = min(growth.slopes) / GROWTH_BYTES_S, memory.anon_source
    proof.add(Figure.MEMORY_GROWTH, growth.mean, margin, source=source, origins=origins)
    proof.add(Figure.GROWN, growth.grown_bytes / (1 << 20), source=source, origins=origins)
    weight, when, near = 0.2, "", False
    if is_known(room):
        eta_s = room[0] / growth.mean
        weight, when = find_urgency(eta_s), f", {room[2]} full in {say_about(eta_s)}"
        near = room[1] >= NEAR_LIMIT
        proof.show(Figure.MEMORY_USED, room[1], source=memory.limit_source)
    those = (process for process in frame.processes if process.role is role)
    biggest = max(those, key=lambda process: process.rss_bytes, default=None)
    return proof.suspect(
        Kind.MEMORY_PRESSURE,
        cause,
        weight,
        f"{words} by {say_bytes_s(growth.mean)}{when}",
        observed=frozenset((need, Need.MEMORY_LIMIT_NEAR) if near else (need,)),
        pid=biggest.pid if biggest is not None else NOT_APPLICABLE,
        rank=biggest.rank if biggest is not None else NOT_APPLICABLE,
    )


def _is_near_the_end(room: tuple[float, float, str], growth: Growth) -> bool:
    return room[0] / growth.mean < ETA_S or room[1] >= NEAR_LIMIT


@by_conditions
def judge_leak(scene: Scene) -> Answer:
    """Suspect steady growth of the job's memory that reaches its limit soon."""
    growth, leak = Claim("memory growth"), Proof("leak", scene)
    anon = growth.known(read_growth(scene, _sum_anon))
    growth.clear(not _lasts(scene, anon), "none that lasts")
    leak.clear(growth.known(_grows_by_copies(scene, anon)), "pages are copied, not added")
    rss = read_growth(scene, _sum_rss)
    # A control group may hold other jobs, too: a session's, a container's.
    is_others = is_known(rss) and not _is_summed(scene) and rss.mean < OWN_GROWTH * anon.mean
    leak.clear(is_others, f"{scene.frame.memory.anon_source} grows, this job's processes do not")
    room = _room(scene)
    if not is_known(room):
        return Unsure(f"when memory is full (it grows by {say_bytes_s(anon.mean)}, limit not known)")
    lasts = f"{say_bytes_s(anon.mean)}, room for {say_about(room[0] / anon.mean)}"
    growth.clear(not _is_near_the_end(room, anon), lasts)
    if is_known(rss) and rss.grows and not _is_summed(scene):
        leak.add(Figure.RSS_GROWTH, rss.mean)
    role = _who_grows(scene, anon)
    if role is Role.WORKER:
        words = "memory of the loader workers grows"
        return _suspect_growth(leak, "leak", anon, words, Need.WORKERS_GROW, role=role)
    return _suspect_growth(leak, "leak", anon, "memory grows", Need.ANON_GROWS)


@by_conditions
def judge_copy_on_write(scene: Scene) -> Answer:
    """Suspect copies of shared pages: anonymous memory grows with the workers, the sum of RSS does not."""
    copying = Proof("copy-on-write", scene)
    copying.clear(not _workers(scene.frame), "no workers")
    anon = copying.known(read_growth(scene, _sum_anon))
    copying.clear(not _lasts(scene, anon), "memory does not grow")
    copying.doubt(_is_summed(scene), "copies are counted in a control group only, the job has none")
    copying.clear(not copying.known(_grows_by_copies(scene, anon)), "the processes themselves grow")
    faults = [sum_known(worker.minor_faults_s for worker in _workers(frame)) for frame in scene.frames]
    pages_s, grows = statistics.fmean(faults), say_bytes_s(anon.mean)
    # Without them the group that grows holds other processes than these.
    copying.at_least(Figure.MINOR_FAULTS, pages_s, COPY_FAULTS_S)
    touched = f"the workers touch {say_bytes_s(pages_s * PAGE_BYTES)} of the {grows} by which memory grows"
    copying.clear(pages_s * PAGE_BYTES < COPIED_BY_FAULTS * anon.mean, touched)
    room = _room(scene)
    near = is_known(room) and _is_near_the_end(room, anon)
    much = anon.grown_bytes >= COPIED_SHARE * max(anon.newest - anon.grown_bytes, 1.0)
    copying.clear(not much and not near, f"{grows}, small beside what is free")
    words = "workers copy shared pages: memory grows"
    return _suspect_growth(copying, "copy-on-write", anon, words, Need.PAGES_COPIED)


@by_conditions
def judge_swap(scene: Scene) -> Answer:
    """Suspect swap when the job has pages there and touches them."""
    memory, psi, swapped = scene.frame.memory, scene.memory_psi_pct, Proof("swap", scene)
    swap, faults = claim_touched_swap(scene)
    told = {"source": memory.anon_source, "origins": (memory_origin(memory),)}
    swapped.add(Figure.IN_SWAP, swap / (1 << 20), swap / SWAP_BYTES, **told)
    # Major faults are also those of mapped files: only together with swap do they mean something.
    swapped.add(Figure.MAJOR_FAULTS, faults, faults / SWAP_FAULTS_S, **told)
    stalled = map_known(lambda pct: min(pct, 100.0) / 100, psi)
    swapped.add(Figure.MEMORY_STALLS, stalled, origins=(pressure_origin(memory),))
    return swapped.suspect(
        Kind.MEMORY_PRESSURE,
        "swap",
        known_or(stalled, 0.2),
        f"{format_bytes(swap)} of the job lie in swap and are touched {faults:.0f} times a second",
        share=stalled if is_known(stalled) else Missing("PSI was not read"),
        observed=frozenset((Need.SWAP_USED,)),
    )


RULES: tuple[Rule, ...] = (judge_leak, judge_copy_on_write, judge_swap, judge_shm)
