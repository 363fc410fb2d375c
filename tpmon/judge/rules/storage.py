"""Causes that a loader's reads show: bandwidth, latency, a store behind the network, a thrashed cache.

A store behind a network shows only in what the thread waits for, not in D state, iowait or read_bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import partial

from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Answer, Claim, by_conditions
from tpmon.judge.features import starvation, workers
from tpmon.judge.features.engine import Proof, proves, reaches, tells
from tpmon.judge.features.readings import mean_known, memory_origin, pressure_origin
from tpmon.judge.features.snapshot import Rule, Scene, WorkerScene
from tpmon.judge.features.starvation import MOST, Starved, need_late_batches, starves, suspect_loader
from tpmon.judge.features.workers import BLOCKED_WORKER, SOME_BYTES_S, WorkerState, mean_wait, name_state
from tpmon.model.figures import Figure
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or, map_known
from tpmon.model.process import Role
from tpmon.model.units import format_bytes, say_ratio
from tpmon.model.waits import FILE_SYSTEMS, SOCKETS, Wait, WaitReason, describe_wait

# What each number decides, and where it comes from: docs/thresholds.toml.
REFAULT_BYTES_S, MAJOR_FAULTS_S, PSI_MEMORY_PCT = 20e6, 5.0, 10.0
SMALL_READ_BYTES, LARGE_READ_BYTES = 64 * 1024, 256 * 1024
FAST_BYTES_S, MAPPED = 100e6, 4.0

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
    mean = mean_known(map(read, found.workers), starvation.NO_WORKERS)
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
    """Tell whether the workers wait on sockets; a plain poll counts where the job has connections."""
    waits, sockets = mean_wait(found.workers, _REMOTE), scene.frame.sockets
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
    asks = f"they ask a process of this machine: {describe_wait(Wait(_LOCAL[0]))}"
    if server is None or demand < workers.BUSY_WORKER:
        return asks
    return f"{asks}; {server.label} {server.pid} wants {demand:.1f} CPUs"


def _size_up(reads: Reads) -> Known[StoreReading]:
    """Tell waiting for bytes from waiting for answers; Missing when the reads do not decide."""
    size, rate = reads.mean_bytes, reads.bytes_s
    if not is_known(rate):
        return rate
    if rate >= FAST_BYTES_S:
        return StoreReading.BYTES
    if not is_known(size):
        return size
    fast = size >= LARGE_READ_BYTES or (size > SMALL_READ_BYTES and rate >= SOME_BYTES_S)
    return StoreReading.BYTES if fast else StoreReading.ANSWERS


def _name_store(found: Starved, scene: Scene, reads: Reads, *, opens: bool) -> Known[StoreReading]:
    """Say what the reads wait for; opens and look-ups count as answers, however large the few reads are."""
    # A network file system is slow by many small reads, by the bytes of large fast ones, or by its distance.
    if _is_network(found, scene):
        return StoreReading.NETWORK
    if opens:
        return StoreReading.ANSWERS
    store = _size_up(reads)
    if mean_wait(found.workers, FILE_SYSTEMS) < BLOCKED_WORKER:
        return store
    slow = known_or(reads.bytes_s, math.inf) < SOME_BYTES_S
    is_far = not is_known(store) or (slow and store is StoreReading.BYTES)
    return StoreReading.NETWORK if is_far else store


def _say_waits(found: Starved) -> str:
    waits: dict[Wait, float] = {}
    for worker in found.workers:
        for wait in worker.io_waits:
            waits[wait] = waits.get(wait, 0.0) + worker.waits.get(wait, 0.0)
    return describe_wait(max(waits, key=lambda wait: waits[wait])) if waits else "reads"


_WHY = {
    StoreReading.BYTES: "its workers wait for bytes from the storage ({rate})",
    StoreReading.ANSWERS: "its workers wait for many small or slow reads ({size} each)",
    StoreReading.NETWORK: "its workers wait for a store behind the network ({waits})",
}


@by_conditions
def _judge_store(scene: Scene, wanted: StoreReading, name: str) -> Answer:
    found, slow = need_late_batches(scene), Proof(name, scene)
    load, reads = name_state(found), measure_reads(found)
    size, rate = reads.mean_bytes, known_or(reads.bytes_s, 0.0)
    slow.clear(not found.rank.has_workers, "there are no workers")
    slow.doubt(load is WorkerState.UNREAD, "what the workers wait for was not read")
    in_reads = load is WorkerState.READ or (load is WorkerState.OTHER_WAIT and _is_network(found, scene))
    slow.clear(not in_reads, f"workers blocked {say_ratio(known_or(found.blocked, 0.0))} of the time")
    slow.doubt(mean_wait(found.workers, _LOCAL) >= BLOCKED_WORKER, _name_server(found, scene))
    # Stacks show opens, and too few bytes come to be the reason.
    opens = rate < FAST_BYTES_S and workers.is_most(workers.find_open_share(found, scene))
    which = Claim("whether bytes or answers of the storage are slow")
    store = which.known(_name_store(found, scene, reads, opens=opens))
    words = {
        "size": format_bytes(size) if is_known(size) else "unknown size",
        "rate": f"{format_bytes(rate)}/s" if is_known(reads.bytes_s) else "unknown rate",
        "waits": _say_waits(found),
    }
    slow.clear(store is not wanted, f"reads of {words['size']}")
    blocked = known_or(found.blocked, BLOCKED_WORKER) / BLOCKED_WORKER
    slow.add(Figure.WORKERS_BLOCKED, found.blocked, blocked, source=f"state and wchan: {words['waits']}")
    slow.show(Figure.WORKERS_READ, reads.bytes_s)
    kib, why, margin = map_known(lambda one: one / 1024, size), _WHY[store].format(**words), math.inf
    if opens and store is StoreReading.ANSWERS:
        share = slow.at_least(Figure.IN_OPENS, workers.find_open_share(found, scene), MOST)
        slow.show(Figure.READ_SIZE, kib, source=reads.source)
        why = f"its workers wait in open and stat, {say_ratio(share)} of their work: many small files"
    else:
        slow.shown += workers.name_opens(found, scene)
        if is_known(size) and store is StoreReading.ANSWERS:
            margin = LARGE_READ_BYTES / max(size, 1.0)
        elif is_known(size) and store is StoreReading.BYTES:
            margin = max(size / SMALL_READ_BYTES, rate / FAST_BYTES_S)
        slow.add(Figure.READ_SIZE, kib, margin, source=reads.source)
    small = known_or(size, math.inf) <= SMALL_READ_BYTES and store is not StoreReading.BYTES
    far = store is StoreReading.NETWORK or mean_wait(found.workers, FILE_SYSTEMS) >= BLOCKED_WORKER
    needs = {Need.WORKERS_IO_WAIT: True, Need.NETWORK_WAIT: far, Need.SMALL_READS: small or opens}
    observed = [need for need, is_seen in needs.items() if is_seen]
    return suspect_loader(found, slow, store.value, why, observed=observed)


judge_storage_bandwidth = partial(_judge_store, wanted=StoreReading.BYTES, name="storage bandwidth")
judge_storage_latency = partial(_judge_store, wanted=StoreReading.ANSWERS, name="storage latency")
_asks_again = starves(
    "network-store",
    "network store",
    reaches(Figure.WORKERS_BEFORE_RETRY, workers.find_retry_share, BLOCKED_WORKER),
    about=need_late_batches,
    says="its workers sleep before they ask a server again, which refuses or does not answer",
    proves=(Need.WORKERS_IO_WAIT, Need.NETWORK_WAIT, Need.REQUESTS_REFUSED),
    shows=(workers.name_hot_work,),
)
_pauses = starves(
    "network-store",
    "network store",
    # Nothing but the sleep tells that they ask again.
    tells(Figure.WORKERS_PAUSE, workers.find_pause_share, margin=lambda *_: 1.0),
    about=need_late_batches,
    says="its workers sleep in a line of the program, as before they ask again where they were refused",
    proves=(Need.REQUESTS_REFUSED, Need.WORKERS_ASLEEP),
    shows=(workers.name_hot_work,),
)


_asks_itself = starves(
    "network-store",
    "network store",
    reaches(Figure.LOADING_AT_SERVER, workers.find_server_share, MOST),
    says="its main thread waits for a store behind the network itself, there are no workers",
    proves=lambda found, scene: (
        Need.NETWORK_WAIT,
        *((Need.REQUESTS_REFUSED,) if workers.is_most(workers.find_retries(found, scene)) else ()),
    ),
    shows=(starvation.name_hot_load,),
)


@by_conditions
def judge_network_store(scene: Scene) -> Answer:
    """Suspect the way to a distant store: sockets, a slow file system, sleeps before it is asked again."""
    found = starvation.need_starved(scene)
    if not found.rank.has_workers:
        return _asks_itself(scene)
    if name_state(found) in (WorkerState.READ, WorkerState.OTHER_WAIT):
        if known_or(workers.find_retry_share(found, scene), 0.0) >= BLOCKED_WORKER:
            return _asks_again(scene)
        pauses = known_or(workers.find_pause_share(found, scene), 0.0)
        if pauses >= BLOCKED_WORKER and not workers.work_elsewhere(found, scene, pauses):
            return _pauses(scene)
    return _judge_store(scene, StoreReading.NETWORK, "network store")


@proves("page cache")
def judge_page_cache_thrash(cache: Proof, scene: Scene) -> Answer:
    """Suspect a page cache that is too small when pages are read again soon after they were dropped."""
    refault, faults, psi = scene.refault_bytes_s, scene.major_faults_s, scene.memory_psi_pct
    memory = scene.frame.memory
    if not is_known(psi):
        cache.known(refault)
    again, stalled = known_or(refault, 0.0), known_or(psi, 0.0)
    pages = again > REFAULT_BYTES_S and known_or(faults, 0.0) > MAJOR_FAULTS_S
    stalls = stalled > PSI_MEMORY_PCT and not (is_known(refault) and refault <= 0)
    rate = f"{format_bytes(again)}/s"
    words = f"{rate} refaulted" if is_known(refault) else f"PSI {stalled:.0f} %"
    cache.clear(not pages and not stalls, words)
    if pages:
        cache.add(Figure.REFAULTED, refault, origins=(memory_origin(memory),))
    cache.show(Figure.MAJOR_FAULTS, faults)
    if stalls:
        cache.add(Figure.MEMORY_STALLS, stalled / 100, origins=(pressure_origin(memory),))
    cache.margin = max(again / REFAULT_BYTES_S if pages else 1.0, stalled / PSI_MEMORY_PCT if stalls else 1.0)
    amount = f" ({rate})" if is_known(refault) else ""
    why = f"files are read again and again because the page cache is too small{amount}"
    found = starvation.need_starved(scene)
    return suspect_loader(found, cache, "page-cache-thrash", why, observed=(Need.REFAULTS_SEEN,))


RULES: tuple[Rule, ...] = (
    judge_storage_bandwidth,
    judge_storage_latency,
    judge_network_store,
    judge_page_cache_thrash,
)
