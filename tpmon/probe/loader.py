"""Read the depth of DataLoader queues from outside, by FIONREAD on the job's own pipes.

A rank and its workers share pipes: the data queue is the lowest-inode pipe of which the rank
holds both ends and every worker holds one; the index queue of a worker is a pipe of which the
rank holds both ends and that this worker was the first to hold. Seen for fork, spawn and
forkserver workers. Needs the same user or root; nothing is written, no ptrace.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpmon.model.host import LoaderSample, WorkerQueue
from tpmon.model.known import Applicable, Known, Missing, is_known

LOOK_EVERY_S = 0.5
LOOKS_KEPT = 20
REMAP_NS = 10_000_000_000
BIRTH_SPAN_NS = 60_000_000_000
MAX_DESCRIPTORS_READ = 4096
"""A rank with more open files than this is not searched for pipes."""
_PIPE = re.compile(r"pipe:\[(\d+)\]")


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


@dataclass(frozen=True, slots=True)
class PipeEnds:
    """Hold the descriptors by which a process holds a pipe; -1 for an end that it does not hold."""

    inode: int
    read_fd: int
    write_fd: int


@dataclass(frozen=True, slots=True)
class QueueMap:
    """Say by which descriptor of the rank each queue is looked at."""

    data_fd: Known[int]
    index_fds: tuple[Known[int], ...]


def read_pipes(pid: int, proc: str = "/proc") -> dict[int, PipeEnds]:
    """Return the pipes that a process holds, by inode.

    Raises:
        OSError: when the process is gone or its descriptors may not be read.
    """
    base = f"{proc}/{pid}/fd"
    names = os.listdir(base)
    if len(names) > MAX_DESCRIPTORS_READ:
        raise OSError(0, f"{len(names)} open files, more than {MAX_DESCRIPTORS_READ}")
    pipes: dict[int, PipeEnds] = {}
    for name in names:
        try:
            match = _PIPE.fullmatch(os.readlink(f"{base}/{name}"))
            if match is None:
                continue
            writes = bool(os.lstat(f"{base}/{name}").st_mode & 0o200)
        except OSError:
            # Closed since the listing.
            continue
        inode, fd = int(match[1]), int(name)
        held = pipes.get(inode, PipeEnds(inode, -1, -1))
        pipes[inode] = PipeEnds(inode, held.read_fd if writes else fd, fd if writes else held.write_fd)
    return pipes


def map_queues(rank: Mapping[int, PipeEnds], workers: Sequence[Mapping[int, PipeEnds]]) -> QueueMap:
    """Find the data queue and each worker's index queue. Workers are in birth order. Pure."""
    both = sorted(p.inode for p in rank.values() if p.read_fd >= 0 and p.write_fd >= 0)
    missing = Missing("no pipe with both ends in the rank matches")
    data = [inode for inode in both if workers and all(inode in held for held in workers)]
    data_fd: Known[int] = rank[data[0]].read_fd if data else missing
    taken = set(data[:1])
    index_fds: list[Known[int]] = []
    for held in workers:
        mine = [inode for inode in both if inode in held and inode not in taken]
        taken.update(held)
        index_fds.append(rank[mine[0]].read_fd if mine else missing)
    return QueueMap(data_fd, tuple(index_fds))


def read_pending(pid: int, fd: int, proc: str = "/proc") -> Known[int]:
    """Return the bytes that wait in the pipe behind a descriptor of another process.

    The pipe is opened for this look only: a reader that stayed would hide EPIPE from the job.
    """
    try:
        look = os.open(f"{proc}/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Missing(f"pipe: {(error.strerror or 'refused').lower()}")
    try:
        return int(struct.unpack("i", fcntl.ioctl(look, termios.FIONREAD, b"\0\0\0\0"))[0])
    except OSError as error:
        return Missing(f"pipe: {(error.strerror or 'refused').lower()}")
    finally:
        os.close(look)


class _RankQueues:
    """Remember the queue map, the looks of the last 10 s and the births of one rank."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self.mapped_ns = 0
        self.queues: Known[QueueMap] = Missing("not looked at yet")
        self.looks: deque[int] = deque(maxlen=LOOKS_KEPT)
        self.message_bytes: int | None = None
        self.ready: Known[int] = Missing("not looked at yet")
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
        self._stop = threading.Event()

    def start(self) -> None:
        """Start looking."""
        threading.Thread(target=self._run, name="tpmon-loader", daemon=True).start()

    def stop(self) -> None:
        """End the thread after the look it is in."""
        self._stop.set()

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

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look(time.monotonic_ns())

    def _look_at(self, rank: LoaderRank, queues: _RankQueues, now_ns: int) -> None:
        pids = tuple(worker.pid for worker in rank.workers)
        if pids != queues.pids or now_ns - queues.mapped_ns > REMAP_NS:
            queues.pids, queues.mapped_ns = pids, now_ns
            queues.queues = self._map(rank)
        mapped = queues.queues
        if not is_known(mapped):
            with self._lock:
                queues.ready = mapped
                queues.pending = tuple(mapped for _ in rank.workers)
            return
        data = mapped.data_fd
        ready = read_pending(rank.pid, data, self._proc) if is_known(data) else data
        pending = tuple(
            read_pending(rank.pid, fd, self._proc) if is_known(fd) else fd for fd in mapped.index_fds
        )
        with self._lock:
            queues.ready, queues.pending = ready, pending
            if is_known(ready):
                queues.looks.append(ready)
                if ready > 0 and (queues.message_bytes is None or ready < queues.message_bytes):
                    # All messages of a loader are handles of about one size; the smallest seen is one.
                    queues.message_bytes = ready

    def _map(self, rank: LoaderRank) -> Known[QueueMap]:
        try:
            held_by_rank = read_pipes(rank.pid, self._proc)
        except OSError as error:
            return Missing((error.strerror or "refused").lower())
        held: list[dict[int, PipeEnds]] = []
        for worker in rank.workers:
            try:
                held.append(read_pipes(worker.pid, self._proc))
            except OSError:
                # Dead since the last tick: its place stays, so that numbers stay with their workers.
                held.append({})
        return map_queues(held_by_rank, held)

    def _sample(self, rank: LoaderRank, queues: _RankQueues) -> LoaderSample:
        ready = queues.ready
        batches: Known[float] = Missing("no batch seen in the data pipe yet")
        if not is_known(ready):
            batches = ready
        elif queues.message_bytes is not None:
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
            empty_ratio=sum(look == 0 for look in queues.looks) / looks if looks else waiting,
            looks=looks,
            queues=tuple(
                WorkerQueue(worker.number, worker.pid, pending[i] if pending else waiting)
                for i, worker in enumerate(rank.workers)
            ),
            births=len(queues.births),
            pin_thread=rank.pin_thread,
        )
