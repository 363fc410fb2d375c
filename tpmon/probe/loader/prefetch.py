"""Follow the DataLoader queues of each rank: how many batches wait, how often none does.

Depths are read from outside, by FIONREAD on the job's own pipes (``queues``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.host import LoaderSample, WorkerQueue
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.results.doctor import say_refusal
from tpmon.probe.base.deadline import Background
from tpmon.probe.base.procread import each_process
from tpmon.probe.loader.queues import (
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
INDEX_LOOKS = 24
"""Work queues read at one look, 15 us each; where there are more, each has its turn. Those of 128
workers are at most 3 s old; data queues, from which "empty" is told, are read at every look."""
MESSAGE_EVERY_NS = 5_000_000_000
"""How often the size of a batch is read again: it takes twice as long as a look, and seldom changes."""
_WAITING = Missing("not read yet")


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


class _Loader:
    """Remember the queues of one loader of a rank and the looks of the last 10 s."""

    def __init__(self) -> None:
        self.workers: tuple[LoaderWorker, ...] = ()
        self.data: Known[PipeEnds] = _WAITING
        self.looks: deque[tuple[int, int]] = deque()
        self.ready: Known[int] = _WAITING
        self.message_bytes: Known[int] = Missing("no whole batch seen in the data pipe yet")
        self.message_ns = -MESSAGE_EVERY_NS
        self.index: tuple[Known[PipeEnds], ...] = ()
        self.pending: tuple[Known[int], ...] = ()


class _RankQueues:
    """Remember the loaders of one rank, oldest first, and the births of its workers."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self.mapped_ns = 0
        self.complete = False
        self.loaders: tuple[_Loader, ...] = ()
        self.births: deque[int] = deque()
        self.known: set[tuple[int, int]] = set()

    def forget_births(self, now_ns: int) -> None:
        """Keep the births of the last minute."""
        while self.births and now_ns - self.births[0] > BIRTH_SPAN_NS:
            self.births.popleft()


class LoaderProbe:
    """Look at the queues of every rank twice a second in a daemon thread of its own."""

    def __init__(self, proc: str = "/proc") -> None:
        """Look at nothing until ``watch`` names the ranks and ``start`` starts the thread."""
        self._proc = proc
        self._ranks: tuple[LoaderRank, ...] = ()
        self._queues: dict[int, _RankQueues] = {}
        self._lock = threading.Lock()
        self._turn = self._turns = self._place = 0
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
            if ranks == self._ranks:
                for queues in self._queues.values():
                    queues.forget_births(now_ns)
                return
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
                queues.forget_births(now_ns)

    def latest(self) -> tuple[LoaderSample, ...]:
        """Return one sample for each loader of each rank that has workers, the rank's oldest first."""
        with self._lock:
            return tuple(
                self._sample(rank, queues, number, loader)
                for rank in self._ranks
                if rank.workers and (queues := self._queues[rank.pid])
                for number, loader in enumerate(_living(queues, rank))
            )

    def look(self, now_ns: int) -> None:
        """Look at every data queue once, and at the work queues whose turn it is."""
        self._turn += 1
        self._place = 0
        self._turns = -(-sum(len(rank.workers) for rank in self._ranks) // INDEX_LOOKS)
        ranks = [rank for rank in self._ranks if rank.workers and rank.pid in self._queues]
        looks = each_process(ranks, lambda rank: self._look_at(rank, now_ns))
        with self._lock:
            for rank, why in looks.items():
                if isinstance(why, Missing) and rank.pid in self._queues:
                    self._queues[rank.pid].loaders = (_refuse(rank, why),)

    def _look_at(self, rank: LoaderRank, now_ns: int) -> None:
        queues = self._queues.get(rank.pid) or _RankQueues()  # its workers ended meanwhile
        pids = tuple(worker.pid for worker in rank.workers)
        # What was found is checked at every look, so only what was not found is searched again.
        if pids != queues.pids or (not queues.complete and now_ns - queues.mapped_ns > RETRY_NS):
            loaders = self._map(rank, queues.loaders)
            with self._lock:
                queues.pids, queues.mapped_ns, queues.loaders = pids, now_ns, loaders
        for loader in queues.loaders:
            self._look_into(rank.pid, loader, now_ns)
        queues.complete = all(
            is_known(loader.ready) and all(is_known(one) for one in loader.pending)
            for loader in queues.loaders
        )

    def _look_into(self, pid: int, loader: _Loader, now_ns: int) -> None:
        data = loader.data
        ready = read_pending(pid, data, self._proc) if is_known(data) else data
        pending = self._look_for_work(pid, loader)
        message = loader.message_bytes
        due = not is_known(message) or now_ns - loader.message_ns >= MESSAGE_EVERY_NS
        if due and is_known(data) and is_known(ready) and ready > 0:
            loader.message_ns = now_ns
            seen = read_message_bytes(pid, data, self._proc)
            # A look between a reader's two reads finds no header at the head.
            if not is_known(seen) or 4 < seen <= ready:
                message = seen
        with self._lock:
            loader.ready, loader.pending, loader.message_bytes = ready, pending, message
            if is_known(ready):
                loader.looks.append((now_ns, ready))
            while loader.looks and now_ns - loader.looks[0][0] > LOOK_SPAN_NS:
                loader.looks.popleft()

    def _look_for_work(self, pid: int, loader: _Loader) -> tuple[Known[int], ...]:
        """Read the work queues whose turn it is; the others keep what was last read of them."""
        before = loader.pending if len(loader.pending) == len(loader.index) else ()
        pending: list[Known[int]] = []
        for number, pipe in enumerate(loader.index):
            self._place += 1
            its_turn = self._turns <= 1 or (self._place + self._turn) % self._turns == 0
            if not is_known(pipe):
                pending.append(pipe)
            elif before and not its_turn:
                pending.append(before[number])
            else:
                pending.append(read_pending(pid, pipe, self._proc))
        return tuple(pending)

    def _map(self, rank: LoaderRank, before: Sequence[_Loader]) -> tuple[_Loader, ...]:
        """Find the loaders of a rank; one whose data queue was known before goes on as it was."""
        known = {
            worker: loader.data.inode
            for loader in before
            if is_known(loader.data)
            for worker in loader.workers
        }
        try:
            held_by_rank = read_queue_pipes(rank.pid, self._proc)
        except OSError as error:
            return (_refuse(rank, Missing(say_refusal(error, "fd"))),)
        held: list[Known[dict[int, PipeEnds]]] = []
        for worker in rank.workers:
            # The place of one that cannot be read stays, so that numbers stay with their workers.
            try:
                held.append(read_pipes(worker.pid, self._proc))
            except (FileNotFoundError, ProcessLookupError):
                held.append({})
            except OSError as error:
                held.append(Missing(say_refusal(error, "fd")))
        mapped = map_queues(held_by_rank, held, [known.get(worker, -1) for worker in rank.workers])
        return _group(rank.workers, mapped, before)

    def _sample(self, rank: LoaderRank, queues: _RankQueues, number: int, loader: _Loader) -> LoaderSample:
        ready = Missing(self._source.off) if self._source.off else loader.ready
        batches: Known[float] = loader.message_bytes
        if not is_known(ready):
            batches = ready
        elif ready == 0:
            batches = 0.0
        elif is_known(loader.message_bytes):
            batches = ready / loader.message_bytes
        looks = len(loader.looks)
        pending = loader.pending or (_WAITING,) * len(loader.workers)
        seen = list(zip(loader.workers, pending, strict=False))
        if loader.workers != rank.workers:
            alive = set(rank.workers)
            seen = [one for one in seen if one[0] in alive]
        return LoaderSample(
            rank=rank.rank,
            pid=rank.pid,
            loader=number,
            workers=len(seen),
            ready_batches=batches,
            ready_bytes=ready,
            empty_ratio=sum(ready == 0 for _, ready in loader.looks) / looks if looks else _WAITING,
            looks=looks,
            queues=tuple(WorkerQueue(worker.number, worker.pid, waiting) for worker, waiting in seen),
            births=len(queues.births),
            pin_thread=rank.pin_thread,
        )


def _refuse(rank: LoaderRank, why: Missing) -> _Loader:
    refused = _Loader()
    refused.workers, refused.data, refused.ready = rank.workers, why, why
    refused.index = (why,) * len(rank.workers)
    return refused


def _living(queues: _RankQueues, rank: LoaderRank) -> list[_Loader]:
    """List the loaders that have a living worker; before the first look at any, one without figures.

    Whose a worker is that was born since the last look is told by the next one, half a second later.
    """
    if len(queues.loaders) == 1 and queues.loaders[0].workers == rank.workers:
        return list(queues.loaders)
    living = [loader for loader in queues.loaders if not set(rank.workers).isdisjoint(loader.workers)]
    if living:
        return living
    unseen = _Loader()
    unseen.workers = rank.workers
    return [unseen]


def _group(
    workers: Sequence[LoaderWorker], mapped: QueueMap, before: Sequence[_Loader]
) -> tuple[_Loader, ...]:
    """Put the workers that share a data queue together, in the order of their eldest."""
    kept = {loader.data.inode: loader for loader in before if is_known(loader.data)}
    places: dict[int, list[int]] = {}
    for place, data in enumerate(mapped.data):
        places.setdefault(data.inode if is_known(data) else -1, []).append(place)
    loaders = []
    for inode, own in places.items():
        loader, old = _Loader(), kept.get(inode)
        if old is not None:
            loader.looks, loader.ready, loader.message_bytes = old.looks, old.ready, old.message_bytes
        loader.workers = tuple(workers[place] for place in own)
        loader.data = mapped.data[own[0]]
        loader.index = tuple(mapped.index[place] for place in own)
        loaders.append(loader)
    return tuple(loaders)
