"""Follow the DataLoader queues of each rank: how many batches wait, how often none does.

Depths are read from outside, by FIONREAD on the job's own pipes (``queues``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from tpmon.model.host import LoaderSample, WorkerQueue
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.probe.background import Background
from tpmon.probe.queues import (
    PipeEnds,
    QueueMap,
    map_queues,
    read_message_bytes,
    read_pending,
    read_pipes,
    read_queue_pipes,
)

LOOK_EVERY_S = 0.5
LOOK_SPAN_NS = 10_000_000_000
RETRY_NS = 10_000_000_000
BIRTH_SPAN_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class LoaderWorker:
    """Name a worker process of a rank."""

    number: int
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class LoaderRank:
    """Name a rank and its workers, oldest worker first."""

    rank: Applicable[int]
    pid: int
    workers: tuple[LoaderWorker, ...]
    pin_thread: bool


class _RankQueues:
    """Remember the queue map, the looks of the last 10 s and the births of one rank."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self.mapped_ns = 0
        self.complete = False
        self.queues: Known[QueueMap] = Missing("not looked at yet")
        self.looks: deque[tuple[int, int]] = deque()
        self.ready: Known[int] = Missing("not looked at yet")
        self.message_bytes: Known[int] = Missing("no whole batch seen in the data pipe yet")
        self.pending: tuple[Known[int], ...] = ()
        self.births: deque[int] = deque()
        self.known: set[tuple[int, int]] = set()


class LoaderProbe:
    """Look at the queues of every rank twice a second in a daemon thread of its own."""

    def __init__(self, proc: str = "/proc") -> None:
        """Look at nothing until ``watch`` names the ranks and ``start`` starts the thread."""
        self._proc = proc
        self._ranks: tuple[LoaderRank, ...] = ()
        self._queues: dict[int, _RankQueues] = {}
        self._lock = threading.Lock()
        self._source = Background("loader", lambda: self.look(time.monotonic_ns()), LOOK_EVERY_S)

    def start(self) -> None:
        """Start looking."""
        self._source.start()

    def stop(self) -> None:
        """End the thread after the look it is in."""
        self._source.stop()

    def watch(self, ranks: tuple[LoaderRank, ...], now_ns: int) -> None:
        """Name the ranks that have workers; counts the births of workers on the way."""
        with self._lock:
            self._ranks = ranks
            for pid in self._queues.keys() - {rank.pid for rank in ranks}:
                del self._queues[pid]
            for rank in ranks:
                first = rank.pid not in self._queues
                queues = self._queues.setdefault(rank.pid, _RankQueues())
                identities = {(worker.pid, worker.start_ticks) for worker in rank.workers}
                born = identities - queues.known
                queues.known = identities
                if not first:
                    queues.births.extend(now_ns for _ in born)
                while queues.births and now_ns - queues.births[0] > BIRTH_SPAN_NS:
                    queues.births.popleft()

    def latest(self) -> tuple[LoaderSample, ...]:
        """Return one sample for each rank that has workers."""
        with self._lock:
            return tuple(self._sample(rank, self._queues[rank.pid]) for rank in self._ranks if rank.workers)

    def look(self, now_ns: int) -> None:
        """Look at every queue once."""
        for rank in self._ranks:
            queues = self._queues.get(rank.pid)
            if queues is not None and rank.workers:
                self._look_at(rank, queues, now_ns)

    def _look_at(self, rank: LoaderRank, queues: _RankQueues, now_ns: int) -> None:
        pids = tuple(worker.pid for worker in rank.workers)
        # What was found is checked at every look, so only what was not found is searched again.
        if pids != queues.pids or (not queues.complete and now_ns - queues.mapped_ns > RETRY_NS):
            queues.pids, queues.mapped_ns = pids, now_ns
            queues.queues = self._map(rank, queues.queues)
        mapped = queues.queues
        if not is_known(mapped):
            queues.complete = False
            with self._lock:
                queues.ready = mapped
                queues.pending = tuple(mapped for _ in rank.workers)
            return
        data = mapped.data
        ready = read_pending(rank.pid, data, self._proc) if is_known(data) else data
        pending = tuple(
            read_pending(rank.pid, pipe, self._proc) if is_known(pipe) else pipe for pipe in mapped.index
        )
        queues.complete = is_known(ready) and all(is_known(one) for one in pending)
        message = queues.message_bytes
        if is_known(data) and is_known(ready) and ready > 0:
            seen = read_message_bytes(rank.pid, data, self._proc)
            # A look between a reader's two reads finds no header at the head.
            if not is_known(seen) or 4 < seen <= ready:
                message = seen
        with self._lock:
            queues.ready, queues.pending, queues.message_bytes = ready, pending, message
            if is_known(ready):
                queues.looks.append((now_ns, ready))
            while queues.looks and now_ns - queues.looks[0][0] > LOOK_SPAN_NS:
                queues.looks.popleft()

    def _map(self, rank: LoaderRank, before: Known[QueueMap]) -> Known[QueueMap]:
        try:
            held_by_rank = read_queue_pipes(rank.pid, self._proc)
        except OSError as error:
            return Missing((error.strerror or "refused").lower())
        held: list[Known[dict[int, PipeEnds]]] = []
        for worker in rank.workers:
            # The place of one that cannot be read stays, so that numbers stay with their workers.
            try:
                held.append(read_pipes(worker.pid, self._proc))
            except (FileNotFoundError, ProcessLookupError):
                held.append({})
            except OSError as error:
                held.append(Missing((error.strerror or "refused").lower()))
        data = before.data if is_known(before) else before
        return map_queues(held_by_rank, held, data.inode if is_known(data) else -1)

    def _sample(self, rank: LoaderRank, queues: _RankQueues) -> LoaderSample:
        ready = Missing(self._source.off) if self._source.off else queues.ready
        batches: Known[float] = queues.message_bytes
        if not is_known(ready):
            batches = ready
        elif ready == 0:
            batches = 0.0
        elif is_known(queues.message_bytes):
            batches = ready / queues.message_bytes
        looks = len(queues.looks)
        pending = queues.pending if len(queues.pending) == len(rank.workers) else ()
        waiting = Missing("not looked at yet")
        return LoaderSample(
            rank=rank.rank,
            pid=rank.pid,
            workers=len(rank.workers),
            ready_batches=batches,
            ready_bytes=ready,
            empty_ratio=sum(ready == 0 for _, ready in queues.looks) / looks if looks else waiting,
            looks=looks,
            queues=tuple(
                WorkerQueue(worker.number, worker.pid, pending[i] if pending else waiting)
                for i, worker in enumerate(rank.workers)
            ),
            births=len(queues.births),
            pin_thread=rank.pin_thread,
        )
