"""Memory that runs out or is about to: leak, copy-on-write, swap, shared memory, and full cards as a note.

Memory is a danger beside the speed of a run: the weight of these causes says how near the end is,
except for swap, where it is the time that the job stalls.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from tpmon.judge.advice_needs import Need
from tpmon.judge.rules_shm import judge_shm
from tpmon.judge.scene import Scene
from tpmon.judge.suspicion import Answer, Cleared, Rule, Suspicion, Unsure, reading
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.host import SUMMED_ANON
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known
from tpmon.model.process import ProcessSample, Role
from tpmon.model.units import format_bytes, format_pct
from tpmon.model.verdict import Kind

GROWTH_BYTES_S = 1e6
"""Slope from which memory grows; the allocator's own noise is below it."""
GROWTH_WINDOWS = 3
GROWTH_WINDOW_S = 15.0
"""Growth in three windows one after the other; one alone is a cache that fills or a new epoch."""
EDGE_S = 2.0
ETA_S = 1800.0
"""Time to the limit below which growth is told."""
NEAR_LIMIT = 0.8
FLAT_RSS = 0.25
"""Growth of the sum of RSS over that of anonymous memory below which pages are only copied: 0 was
measured for copy-on-write, a leak shows in both."""
OWN_GROWTH = 0.5
"""Growth of the sum of RSS over that of the control group from which it is this job that grows."""
COPIED_SHARE = 0.2
"""Growth within the Window, of all anonymous memory, that makes copies worth a word; 40 % was measured."""
COPY_FAULTS_S = 500.0
"""Minor faults per second of all workers that go with copied pages; 5,600 each were measured."""
PAGE_BYTES = 4096
"""The smallest page there is: what one minor fault copies at least."""
COPIED_BY_FAULTS = 0.5
"""Part of the growth that the workers' faults must explain: 1.2 was measured of copies, at 290 faults a
second and worker beside other work; another job of the same control group grows without them."""
SWAP_BYTES = 16 * (1 << 20)
"""Pages that were put out once, at start, and never touched again, are no fault."""
SWAP_FAULTS_S = 5.0
"""Major faults per second that say that swapped pages are touched."""
STALLED_PCT = 2.0
"""Stalls for memory below which the faults are those of mapped files and the pages in swap are old ones;
27 to 31 % were measured of a job that thrashed (docs/thresholds.md)."""
CARD_FULL = 0.95
_TAKEN_NS = attrgetter("taken_ns")


@dataclass(frozen=True, slots=True)
class Growth:
    """Hold how one figure grew: bytes per second in each window, oldest first, and over all of them."""

    slopes: tuple[float, ...]
    mean: float
    grown_bytes: float
    newest: float

    @property
    def grows(self) -> bool:
        """Tell whether it grew in every window."""
        return min(self.slopes) > GROWTH_BYTES_S


def _points(
    frames: Sequence[Frame], now_ns: int, read: Callable[[Frame], Known[float]]
) -> Iterator[tuple[float, float]]:
    """Yield age and value of each reading that has one, oldest first."""
    for frame in frames:
        if is_known(value := read(frame)):
            yield (now_ns - frame.taken_ns) / 1e9, value


def _around(
    history: Sequence[Frame], now_ns: int, edge_s: float, read: Callable[[Frame], Known[float]]
) -> tuple[float, float]:
    """Return age and value about ``edge_s`` ago: the median of the readings next to it.

    A batch that comes and goes between two readings is no growth. Only what lies there is read.
    """
    low = bisect_left(history, now_ns - (edge_s + EDGE_S) * 1e9, key=_TAKEN_NS)
    high = bisect_right(history, now_ns - (edge_s - EDGE_S) * 1e9, key=_TAKEN_NS)
    near = list(_points(history[low:high], now_ns, read))
    near = near or [min(_points(history, now_ns, read), key=lambda point: abs(point[0] - edge_s))]
    return statistics.fmean(age for age, _ in near), statistics.median(value for _, value in near)


def _read_growth(scene: Scene, read: Callable[[Frame], Known[float]]) -> Known[Growth]:
    """Return the growth of a figure over the last three windows; Missing for a shorter history."""
    now_ns, history = scene.frame.taken_ns, scene.history
    oldest = next(_points(history, now_ns, read), None)
    if oldest is None:
        return last if isinstance(last := read(scene.frame), Missing) else Missing("not read")
    edges = [GROWTH_WINDOW_S * number for number in range(GROWTH_WINDOWS, -1, -1)]
    if oldest[0] < edges[0]:
        return Missing(f"growth needs {edges[0]:.0f} s of readings")
    values = [_around(history, now_ns, edge, read) for edge in edges]
    slopes = []
    for (older_s, older), (newer_s, newer) in itertools.pairwise(values):
        if older_s <= newer_s:
            return Missing("too few readings")
        slopes.append((newer - older) / (older_s - newer_s))
    grown = values[-1][1] - values[0][1]
    return Growth(tuple(slopes), grown / (values[0][0] - values[-1][0]), grown, values[-1][1])


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


def _about(seconds: float) -> str:
    """Write a time to come as a person says it: "about 14 min"."""
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.0f} h" if seconds < 172_800 else "days"


def _rate(bytes_s: float) -> str:
    return f"{format_bytes(bytes_s)}/s"


def _sum_rss(frame: Frame) -> Known[float]:
    return map_known(float, frame.memory.rss_bytes)


def _sum_anon(frame: Frame) -> Known[float]:
    anon = frame.memory.anon_bytes
    return float(anon) if is_known(anon) else anon


def _is_summed(scene: Scene) -> bool:
    """Tell whether anonymous memory is the sum of the processes': copies of shared pages do not change it."""
    return scene.frame.memory.anon_source == SUMMED_ANON


def _lasts(scene: Scene, anon: Growth) -> bool:
    """Tell whether memory grew in every window, and in the fit over the last minute where there is one."""
    return anon.grows and known_or(scene.frame.memory.anon_growth_bytes_s, anon.mean) > GROWTH_BYTES_S


def _workers(frame: Frame) -> list[ProcessSample]:
    return [process for process in frame.processes if process.role is Role.WORKER]


def _grows_by_copies(scene: Scene, anon: Growth) -> Known[bool]:
    """Tell whether shared pages are copied: anonymous memory grows, the sum of RSS does not."""
    if not _workers(scene.frame) or _is_summed(scene):
        return False
    rss = _read_growth(scene, _sum_rss)
    if not is_known(rss):
        return rss
    return rss.mean < FLAT_RSS * anon.mean


def _urgency(eta_s: float) -> float:
    """Return how near the end is, 0-1: the weight of a danger that costs no time yet."""
    return min(1.0, max(0.2, 1 - eta_s / ETA_S))


def _who_grows(scene: Scene, anon: Growth) -> Role:
    """Return whose resident memory grows most, the loader workers' or the ranks', which it is by default.

    Files that workers map are resident too: where the ranks' growth explains ``anon``, it is the ranks'.
    """

    def mean_of(role: Role) -> float:
        growth = _read_growth(scene, lambda frame: _sum_role(frame, role))
        return growth.mean if is_known(growth) and growth.grows else 0.0

    ranks = mean_of(Role.RANK)
    fed = mean_of(Role.WORKER) > ranks and ranks < OWN_GROWTH * anon.mean
    return Role.WORKER if fed else Role.RANK


def _sum_role(frame: Frame, role: Role) -> float:
    return float(sum(one.rss_bytes for one in frame.processes if one.role is role))


def _copy_faults(scene: Scene) -> float:
    """Return the minor faults per second of all workers over the span, 0 where none was read."""
    faults = [
        sum(known_or(worker.minor_faults_s, 0.0) for worker in _workers(frame)) for frame in scene.frames
    ]
    return statistics.fmean(faults)


def _suspect_growth(
    scene: Scene,
    cause: str,
    growth: Growth,
    *,
    words: str,
    need: Need,
    sources: frozenset[str],
    role: Role = Role.RANK,
) -> Suspicion:
    memory, ages = scene.frame.memory, scene.frame.ages_s
    room = _room(scene)
    eta_s: Known[float] = room if isinstance(room, Missing) else room[0] / growth.mean
    when = f", {room[2]} full in {_about(eta_s)}" if is_known(room) and is_known(eta_s) else ""
    near = is_known(room) and room[1] >= NEAR_LIMIT
    biggest = max(
        (process for process in scene.frame.processes if process.role is role),
        key=lambda process: process.rss_bytes,
        default=None,
    )
    evidence = [
        reading("memory growth", growth.mean / 1e6, "MB/s", memory.anon_source, ages.memory),
        reading("grown", growth.grown_bytes / (1 << 20), "MiB in 45 s", memory.anon_source, ages.memory),
    ]
    if is_known(room):
        evidence.append(reading("used of the limit", 100 * room[1], "%", memory.limit_source, ages.memory))
    return Suspicion(
        kind=Kind.MEMORY_PRESSURE,
        cause=cause,
        weight=_urgency(eta_s) if is_known(eta_s) else 0.2,
        margin=min(growth.slopes) / GROWTH_BYTES_S,
        sources=sources,
        summary=f"{words} by {_rate(growth.mean)}{when}",
        evidence=tuple(evidence),
        observed=frozenset((need, Need.MEMORY_LIMIT_NEAR)) if near else frozenset((need,)),
        pid=biggest.pid if biggest is not None else NOT_APPLICABLE,
        rank=biggest.rank if biggest is not None else NOT_APPLICABLE,
    )


def _is_near_the_end(scene: Scene, growth: Growth) -> Known[bool]:
    room = _room(scene)
    if not is_known(room):
        return room
    return room[0] / growth.mean < ETA_S or room[1] >= NEAR_LIMIT


def judge_leak(scene: Scene) -> Answer:
    """Suspect steady growth of the job's memory that reaches its limit soon."""
    anon = _read_growth(scene, _sum_anon)
    if not is_known(anon):
        return Unsure(f"memory growth ({anon.reason})")
    if not _lasts(scene, anon):
        return Cleared("memory growth (none that lasts)")
    copies = _grows_by_copies(scene, anon)
    if not is_known(copies):
        return Unsure(f"memory growth ({copies.reason})")
    if copies:
        return Cleared("leak (pages are copied, not added)")
    rss = _read_growth(scene, _sum_rss)
    if is_known(rss) and not _is_summed(scene) and rss.mean < OWN_GROWTH * anon.mean:
        # A control group may hold other jobs too: a session's, a container's.
        return Cleared(f"leak ({scene.frame.memory.anon_source} grows, this job's processes do not)")
    near = _is_near_the_end(scene, anon)
    room = _room(scene)
    if not is_known(near) or not is_known(room):
        return Unsure(f"when memory is full (it grows by {_rate(anon.mean)}, limit not known)")
    if not near:
        return Cleared(f"memory growth ({_rate(anon.mean)}, room for {_about(room[0] / anon.mean)})")
    seen = {scene.frame.memory.anon_source}
    if is_known(rss) and rss.grows and not _is_summed(scene):
        seen.add("RSS")
    role = _who_grows(scene, anon)
    fed = role is Role.WORKER
    words = "memory of the loader workers grows" if fed else "memory grows"
    need = Need.WORKERS_GROW if fed else Need.ANON_GROWS
    return _suspect_growth(scene, "leak", anon, words=words, need=need, sources=frozenset(seen), role=role)


def judge_copy_on_write(scene: Scene) -> Answer:
    """Suspect copies of shared pages: anonymous memory grows with the workers, the sum of RSS does not."""
    if not _workers(scene.frame):
        return Cleared("copy-on-write (no workers)")
    anon = _read_growth(scene, _sum_anon)
    if not is_known(anon):
        return Unsure(f"copy-on-write ({anon.reason})")
    if not _lasts(scene, anon):
        return Cleared("copy-on-write (memory does not grow)")
    if _is_summed(scene):
        return Unsure("copy-on-write (copies are counted in a control group only, the job has none)")
    copies = _grows_by_copies(scene, anon)
    if not is_known(copies):
        return Unsure(f"copy-on-write ({copies.reason})")
    if not copies:
        return Cleared("copy-on-write (the processes themselves grow)")
    faults = _copy_faults(scene)
    if faults < COPY_FAULTS_S:
        # Without them the group that grows holds other processes than these.
        return Cleared(f"copy-on-write (the workers touch {faults:.0f} new pages a second)")
    if faults * PAGE_BYTES < COPIED_BY_FAULTS * anon.mean:
        touched = f"{_rate(faults * PAGE_BYTES)} of the {_rate(anon.mean)}"
        return Cleared(f"copy-on-write (the workers touch {touched} by which memory grows)")
    near = _is_near_the_end(scene, anon)
    much = anon.grown_bytes >= COPIED_SHARE * max(anon.newest - anon.grown_bytes, 1.0)
    if not much and not (is_known(near) and near):
        return Cleared(f"copy-on-write ({_rate(anon.mean)}, small beside what is free)")
    seen = {scene.frame.memory.anon_source, "minor faults"}
    return _suspect_growth(
        scene,
        "copy-on-write",
        anon,
        words="workers copy shared pages: memory grows",
        need=Need.PAGES_COPIED,
        sources=frozenset(seen),
    )


def judge_swap(scene: Scene) -> Answer:
    """Suspect swap when the job has pages there and touches them."""
    memory, ages = scene.frame.memory, scene.frame.ages_s
    swap = memory.swap_bytes
    if not is_known(swap):
        return Unsure(f"swap ({swap.reason})")
    if swap < SWAP_BYTES:
        return Cleared(f"swap ({format_bytes(swap)})")
    faults = scene.major_faults_s
    if not is_known(faults):
        return Unsure(f"whether {format_bytes(swap)} in swap are touched ({faults.reason})")
    if faults < SWAP_FAULTS_S:
        return Cleared(f"swap ({format_bytes(swap)} lie there untouched)")
    psi = scene.memory_psi_pct
    if is_known(psi) and psi < STALLED_PCT:
        return Cleared(f"swap ({format_bytes(swap)} lie there, and the job stalls {psi:.1f} % of the time)")
    stalled = min(psi, 100.0) / 100 if is_known(psi) else None
    return Suspicion(
        kind=Kind.MEMORY_PRESSURE,
        cause="swap",
        weight=stalled if stalled is not None else 0.2,
        margin=min(faults / SWAP_FAULTS_S, swap / SWAP_BYTES),
        # Major faults are also those of mapped files: only together with the swap they say something.
        sources=frozenset(("swap and faults", "PSI") if stalled is not None else ("swap and faults",)),
        summary=f"{format_bytes(swap)} of the job lie in swap and are touched {faults:.0f} times a second",
        evidence=(
            reading("in swap", swap / (1 << 20), "MiB", memory.anon_source, ages.memory),
            reading("major faults", faults, "1/s", memory.anon_source, ages.memory),
            reading("stalled for memory", psi, "%", "PSI", ages.memory),
        ),
        share=stalled if stalled is not None else Missing("PSI was not read"),
        observed=frozenset((Need.SWAP_USED,)),
    )


def _fullest_card(scene: Scene) -> Applicable[tuple[int, float]]:
    """Return the index and filled share of the job's fullest card."""
    if not scene.gpus:
        return NOT_APPLICABLE
    fills: list[tuple[float, int]] = []
    for card in scene.gpus:
        ratio = card.memory_ratio
        if is_known(ratio):
            fills.append((ratio, card.index))
    if not fills:
        return Missing("memory of the cards was not read")
    fill, index = max(fills)
    return index, fill


def judge_gpu_memory(scene: Scene) -> Answer:
    """Say that a full card is no fault by itself: its proof is in the allocator, not seen from outside."""
    fullest = _fullest_card(scene)
    if isinstance(fullest, Missing):
        return Unsure(f"GPU memory ({fullest.reason})")
    if not is_known(fullest):
        return Cleared("GPU memory (no GPU)")
    index, fill = fullest
    if fill >= CARD_FULL:
        return Unsure(f"whether the full memory of GPU {index} is a fault (the allocator is not seen)")
    return Cleared(f"GPU memory ({format_pct(100 * fill)} % of GPU {index})")


RULES: tuple[Rule, ...] = (
    judge_leak,
    judge_copy_on_write,
    judge_swap,
    judge_shm,
    judge_gpu_memory,
)
