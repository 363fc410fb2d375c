"""Causes that a loader's reads show: bandwidth, latency, a store behind the network, a thrashed cache.

A store behind a network shows only in what the thread waits for, not in D state, iowait or read_bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, by_conditions
from tpmon.judge.features.engine import Proof
from tpmon.judge.features.readings import mean_known, memory_origin, pressure_origin
from tpmon.judge.features.snapshot import Rule, Scene, WorkerScene
from tpmon.judge.features.starvation import (
    NO_WORKERS,
    Starved,
    need_late_batches,
    need_starved,
    suspect_loader,
)
from tpmon.judge.features.workers import (
    BLOCKED_WORKER,
    BUSY_WORKER,
    OPENS_RATIO,
    WorkerState,
    find_open_share,
    find_retry_share,
    is_opening,
    is_refused,
    mean_wait,
    name_hot_work,
    name_opens,
    name_state,
)
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Role
from tpmon.model.units import format_bytes, format_pct
from tpmon.model.waits import FILE_SYSTEMS, SOCKETS, Wait, WaitReason, describe_wait

REFAULT_BYTES_S = 20e6
"""Refaults of a thrashed cache; measured 1,200 MB/s, and 0 in every other case."""
MAJOR_FAULTS_S = 5.0
"""Low, because readahead of 8 MB makes only 75 faults/s of 540 MB/s."""
PSI_MEMORY_PCT = 10.0
"""Stalls for memory, some; measured 27-31 % when thrashed, else 0."""
SMALL_READ_BYTES = 64 * 1024
"""A read up to this size costs mostly its latency: 64 KiB take 0.1 ms of a 500 MB/s disk."""
LARGE_READ_BYTES = 256 * 1024
"""From here on a read costs mostly its bytes; the kernel itself reads ahead half of it."""
FAST_BYTES_S = 100e6
"""Bytes/s of all workers above which they wait for bytes, whatever the size of a read."""
SOME_BYTES_S = 20e6
"""Below it, reads of middle size wait for answers, not for bytes."""
MAPPED = 4.0
"""Device bytes over asked bytes above which files are mapped, not read (541 MB/s against 0)."""

_REMOTE = (SOCKETS - {WaitReason.UNIX_SOCKET}) | {WaitReason.CONNECTION}
_LOCAL = (WaitReason.UNIX_SOCKET,)
"""Its other end is a process of this machine: a manager, a cache, a broker."""
_POLLS = (WaitReason.POLL, WaitReason.EPOLL)


class StoreReading(Enum):
    """Name what reads wait for."""

    BYTES = "storage-bandwidth"
    ANSWERS = "storage-latency"
    NETWORK = "network-store"


@dataclass(frozen=True, slots=True)
class Reads:
    """Hold the reads of all workers of a rank: bytes per second, mean size of one, and the source."""

    bytes_s: Known[float]
    mean_bytes: Known[float]
    source: str


def _sum(found: Starved, read: Callable[[WorkerScene], Known[float]]) -> Known[float]:
    mean = mean_known(map(read, found.workers), NO_WORKERS)
    return map_known(lambda each: each * len(found.workers), mean)


def measure_reads(found: Starved) -> Reads:
    """Add up what the workers read; a mapped file is read by page faults, not by calls."""
    asked = _sum(found, lambda one: one.asked_read_bytes_s)
    device = _sum(found, lambda one: one.device_read_bytes_s)
    calls = _sum(found, lambda one: one.read_calls_s)
    faults = _sum(found, lambda one: one.major_faults_s)
    if not is_known(asked):
        return Reads(device, asked, "/proc/PID/io")
    if is_known(device) and device > MAPPED * asked and is_known(faults) and faults > 0:
        return Reads(device, device / faults, "bytes and major faults")
    size: Known[float] = calls
    if is_known(calls):
        size = asked / calls if calls > 0 else Missing("no reads")
    return Reads(max(asked, known_or(device, asked)), size, "bytes and reads of /proc/PID/io")


def _is_network(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers wait on sockets, or for a server that refuses them.

    A plain poll counts where the job has connections.
    """
    if is_refused(found, scene):
        return True
    waits = mean_wait(found.workers, _REMOTE)
    sockets = scene.frame.sockets
    if is_known(sockets) and sockets.connections > 0:
        waits += mean_wait(found.workers, _POLLS)
    return waits >= BLOCKED_WORKER


def _name_server(found: Starved, scene: Scene) -> str:
    """Name the wait, and the busy child of the rank that may be at its other end."""
    helpers = [
        (known_or(process.runnable, 0.0), process)
        for process in scene.frame.processes
        if process.role is Role.HELPER and process.rank_pid == found.rank.process.pid
    ]
    demand, server = max(helpers, key=lambda one: one[0], default=(0.0, None))
    local = describe_wait(Wait(_LOCAL[0]))
    if server is None or demand < BUSY_WORKER:
        return local
    return f"{local}; {server.label} {server.pid} wants {demand:.1f} CPUs"


def _size_up(reads: Reads) -> Known[StoreReading]:
    """Tell waiting for bytes from waiting for answers; Missing when the reads do not decide."""
    size, rate = reads.mean_bytes, reads.bytes_s
    if not is_known(rate):
        return rate
    if rate >= FAST_BYTES_S:
        return StoreReading.BYTES
    if not is_known(size):
        return size
    if size <= SMALL_READ_BYTES:
        return StoreReading.ANSWERS
    if size >= LARGE_READ_BYTES:
        return StoreReading.BYTES
    return StoreReading.BYTES if rate >= SOME_BYTES_S else StoreReading.ANSWERS


def _tell_by_opens(scene: Scene, reads: Reads) -> bool:
    """Tell whether the workers wait for opens: stacks show them, and too few bytes come to be the reason."""
    return is_opening(scene) and known_or(reads.bytes_s, 0.0) < FAST_BYTES_S


def _name_store(found: Starved, scene: Scene, reads: Reads) -> Known[StoreReading]:
    """Say what the reads wait for; opens and look-ups count as answers, however large the few reads are.

    A network file system is slow by many small reads, by the bytes of large fast ones, or by its distance.
    """
    if _is_network(found, scene):
        return StoreReading.NETWORK
    if _tell_by_opens(scene, reads):
        return StoreReading.ANSWERS
    store = _size_up(reads)
    if mean_wait(found.workers, FILE_SYSTEMS) < BLOCKED_WORKER:
        return store
    slow = is_known(reads.bytes_s) and reads.bytes_s < SOME_BYTES_S
    if not is_known(store) or (slow and store is StoreReading.BYTES):
        return StoreReading.NETWORK
    return store


def _network_load(found: Starved, scene: Scene) -> bool:
    """Tell whether the workers mostly wait in reads, a poll for a socket included."""
    load = name_state(found)
    return load is WorkerState.READ or (load is WorkerState.OTHER_WAIT and _is_network(found, scene))


def _observed(found: Starved, scene: Scene, store: StoreReading, reads: Reads) -> frozenset[Need]:
    seen = {Need.WORKERS_IO_WAIT}
    if is_refused(found, scene):
        seen.add(Need.REQUESTS_REFUSED)
    if store is StoreReading.NETWORK or mean_wait(found.workers, FILE_SYSTEMS) >= BLOCKED_WORKER:
        seen.add(Need.NETWORK_WAIT)
    small = is_known(reads.mean_bytes) and reads.mean_bytes <= SMALL_READ_BYTES
    if (small and store is not StoreReading.BYTES) or _tell_by_opens(scene, reads):
        seen.add(Need.SMALL_READS)
    return frozenset(seen)


def _waits_words(found: Starved) -> str:
    waits: dict[Wait, float] = {}
    for worker in found.workers:
        for wait in worker.io_waits:
            waits[wait] = waits.get(wait, 0.0) + worker.waits.get(wait, 0.0)
    return describe_wait(max(waits, key=lambda wait: waits[wait])) if waits else "reads"


def _prove_store(slow: Proof, found: Starved, store: StoreReading, reads: Reads) -> str:
    """Take what decides between the stores as evidence; return why the workers wait.

    For sockets it is the wait itself.
    """
    scene = slow.scene
    if store is StoreReading.NETWORK and is_refused(found, scene):
        slow.at_least(Figure.WORKERS_BEFORE_RETRY, find_retry_share(found, scene), BLOCKED_WORKER)
        slow.shown += name_hot_work(found, scene)
        return "its workers sleep before they ask a server again, which refuses or does not answer"
    blocked = known_or(found.blocked, BLOCKED_WORKER) / BLOCKED_WORKER
    waits = f"state and wchan: {_waits_words(found)}"
    slow.add(Figure.WORKERS_BLOCKED, found.blocked, blocked, source=waits)
    slow.show(Figure.WORKERS_READ, reads.bytes_s)
    opens = store is StoreReading.ANSWERS and _tell_by_opens(scene, reads)
    if opens:
        share = slow.at_least(Figure.IN_OPENS, find_open_share(scene), OPENS_RATIO)
        slow.show(Figure.READ_SIZE, _in_kib(reads), source=reads.source)
        return (
            f"its workers wait in open and stat, {format_pct(100 * share)} % of their work: many small files"
        )
    slow.shown += name_opens(scene)
    size, margin = reads.mean_bytes, math.inf
    if is_known(size) and store is StoreReading.ANSWERS:
        margin = LARGE_READ_BYTES / max(size, 1.0)
    elif is_known(size) and store is StoreReading.BYTES:
        margin = max(size / SMALL_READ_BYTES, known_or(reads.bytes_s, 0.0) / FAST_BYTES_S)
    slow.add(Figure.READ_SIZE, _in_kib(reads), margin, source=reads.source)
    return _WHY[store].format(rate=_rate_text(reads), size=_size_text(reads), waits=_waits_words(found))


def _in_kib(reads: Reads) -> Known[float]:
    return map_known(lambda size: size / 1024, reads.mean_bytes)


_WHY = {
    StoreReading.BYTES: "its workers wait for bytes from the storage ({rate})",
    StoreReading.ANSWERS: "its workers wait for many small or slow reads ({size} each)",
    StoreReading.NETWORK: "its workers wait for a store behind the network ({waits})",
}


@by_conditions
def _judge_store(scene: Scene, wanted: StoreReading, name: str) -> Answer:
    found, slow = need_late_batches(scene), Proof(name, scene)
    slow.clear(not found.rank.has_workers, "there are no workers")
    slow.doubt(name_state(found) is WorkerState.UNREAD, "what the workers wait for was not read")
    blocked = f"workers blocked {format_pct(100 * known_or(found.blocked, 0.0))} % of the time"
    slow.clear(not _network_load(found, scene), blocked)
    asked = Claim("what a process of this machine does that the workers ask")
    asked.doubt(mean_wait(found.workers, _LOCAL) >= BLOCKED_WORKER, _name_server(found, scene))
    reads = measure_reads(found)
    whether = Claim("whether bytes or answers of the storage are slow")
    store = whether.known(_name_store(found, scene, reads))
    slow.clear(store is not wanted, f"reads of {_size_text(reads)}")
    why = _prove_store(slow, found, store, reads)
    return suspect_loader(found, slow, store.value, why, observed=_observed(found, scene, store, reads))


def _size_text(reads: Reads) -> str:
    return format_bytes(reads.mean_bytes) if is_known(reads.mean_bytes) else "unknown size"


def _rate_text(reads: Reads) -> str:
    return f"{format_bytes(reads.bytes_s)}/s" if is_known(reads.bytes_s) else "unknown rate"


def judge_storage_bandwidth(scene: Scene) -> Answer:
    """Suspect the bandwidth of the storage when workers wait in large or fast reads."""
    return _judge_store(scene, StoreReading.BYTES, "storage bandwidth")


def judge_storage_latency(scene: Scene) -> Answer:
    """Suspect the latency of the storage, or many small files, when workers wait in small reads."""
    return _judge_store(scene, StoreReading.ANSWERS, "storage latency")


def judge_network_store(scene: Scene) -> Answer:
    """Suspect the way to a distant store when workers wait on sockets or a slow network file system."""
    return _judge_store(scene, StoreReading.NETWORK, "network store")


@by_conditions
def judge_page_cache_thrash(scene: Scene) -> Answer:
    """Suspect a page cache that is too small when pages are read again soon after they were dropped."""
    refault, faults, psi = scene.refault_bytes_s, scene.major_faults_s, scene.memory_psi_pct
    cache, memory = Proof("page cache", scene), scene.frame.memory
    if not is_known(psi):
        cache.known(refault)
    again, stalled = known_or(refault, 0.0), known_or(psi, 0.0)
    pages = again > REFAULT_BYTES_S and known_or(faults, 0.0) > MAJOR_FAULTS_S
    stalls = stalled > PSI_MEMORY_PCT and not (is_known(refault) and refault <= 0)
    rate = f"{format_bytes(again)}/s refaulted"
    cache.clear(not pages and not stalls, rate if is_known(refault) else f"PSI {stalled:.0f} %")
    if pages:
        cache.add(Figure.REFAULTED, refault, origins=(memory_origin(memory),))
    cache.show(Figure.MAJOR_FAULTS, faults)
    if stalls:
        cache.add(Figure.MEMORY_STALLS, stalled / 100, origins=(pressure_origin(memory),))
    margin = max(again / REFAULT_BYTES_S if pages else 1.0, stalled / PSI_MEMORY_PCT if stalls else 1.0)
    amount = f" ({format_bytes(again)}/s)" if is_known(refault) else ""
    why = f"files are read again and again because the page cache is too small{amount}"
    needs = frozenset((Need.REFAULTS_SEEN,))
    return suspect_loader(need_starved(scene), cache, "page-cache-thrash", why, margin=margin, observed=needs)


RULES: tuple[Rule, ...] = (
    judge_storage_bandwidth,
    judge_storage_latency,
    judge_network_store,
    judge_page_cache_thrash,
)
