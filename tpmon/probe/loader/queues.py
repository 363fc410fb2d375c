"""Find the pipes of a loader's queues and follow them: how many batches wait, how often none does.

A rank and its workers share the pipes of multiprocessing queues: one data queue a loader, made first, and one
index queue a worker, made just before it (seen with fork, spawn and forkserver). FIONREAD reads depths from
outside. That needs the same user or root, but no ptrace; nothing is written or consumed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.host import LoaderSample, WorkerQueue
from tpmon.model.known import Applicable, Known, Missing, is_known, map_known
from tpmon.model.results.doctor import say_refusal
from tpmon.probe.base.procread import each_process, read_file
from tpmon.probe.base.worker import Background

T = TypeVar("T")

MAX_DESCRIPTORS_READ = 4096  # a rank with more open files is not searched for pipes
_PIPE = re.compile(r"pipe:\[(\d+)\]")
_SPLICE_F_NONBLOCK = 2
_AMBIGUOUS = Missing("a dead worker leaves open which pipe is the data queue")


@dataclass(frozen=True, slots=True)
class PipeEnds:
    """Hold the descriptors of a process for a pipe's ends; -1 for an end that it does not hold."""

    inode: int
    read_fd: int
    write_fd: int


@dataclass(frozen=True, slots=True)
class QueueMap:
    """Hold each worker's pipes of the rank, in birth order; workers of one loader share its ``data``."""

    data: tuple[Known[PipeEnds], ...]
    index: tuple[Known[PipeEnds], ...]


def read_pipes(pid: int) -> dict[int, PipeEnds]:
    """Return the pipes that a process holds, by inode; OSError when it is gone or may not be read."""
    base = f"/proc/{pid}/fd"
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
        except FileNotFoundError:
            # Closed since the listing.
            continue
        inode, fd = int(match[1]), int(name)
        held = pipes.get(inode, PipeEnds(inode, -1, -1))
        pipes[inode] = PipeEnds(inode, held.read_fd if writes else fd, fd if writes else held.write_fd)
    return pipes


def read_queue_pipes(pid: int) -> dict[int, PipeEnds]:
    """Return the pipes that can be queues of multiprocessing, by inode; OSError as in ``read_pipes``.

    These are held at both ends, block, and close on exec. Gloo and libuv also hold both ends of pipes, which
    forked workers inherit, but those do not block.
    """
    pipes = [pipe for pipe in read_pipes(pid).values() if pipe.read_fd >= 0 and pipe.write_fd >= 0]
    path = f"/proc/{pid}/fdinfo/%d"
    flags = each_process(pipes, lambda pipe: parse_flags(read_file(path % pipe.read_fd, 4096)))
    told = [(pipe, flag) for pipe, flag in flags.items() if is_known(flag)]
    return {pipe.inode: pipe for pipe, flag in told if flag & os.O_CLOEXEC and not flag & os.O_NONBLOCK}


def parse_flags(raw: bytes) -> int:
    """Return the open flags of /proc/PID/fdinfo/FD (octal); 0 without them."""
    return next((int(line.split()[1], 8) for line in raw.splitlines() if line.startswith(b"flags:")), 0)


def map_queues(
    rank: Mapping[int, PipeEnds], workers: Sequence[Known[Mapping[int, PipeEnds]]], before: Sequence[int] = ()
) -> QueueMap:
    """Find the data queue and the index queue of each worker of a rank. Pure.

    ``rank`` are its queue pipes, ``workers`` what each holds in birth order (nothing when it is dead, Missing
    when that is unreadable), ``before`` the inodes of their last known data queues or -1. A loader makes its
    data queue, then the first worker's index queue, then that worker: of the pipes that this worker is the
    first to hold they are the last two, for the loader's later workers the index queue alone. Forked workers
    also hold all older ones. The order is that of descriptors, as inode numbers come from a pool for each
    CPU.
    """
    missing = Missing("no pipe with both ends in the rank matches")
    order = sorted(rank.values(), key=lambda pipe: pipe.read_fd)
    data: list[Known[PipeEnds]] = []
    index: list[Known[PipeEnds]] = []
    seen: set[int] = set()
    current: Known[PipeEnds] = missing
    unseen_before = 0
    for number, held in enumerate(workers):
        if not is_known(held) or not held:
            index.append(Missing("the worker is dead") if is_known(held) else held)
            data.append(current)
            unseen_before += 1
            continue
        fresh = [pipe for pipe in order if pipe.inode in held and pipe.inode not in seen]
        seen.update(held)
        known = before[number] if number < len(before) else -1
        shares = is_known(current) and current.inode in held
        if known in rank and known in held:
            current = rank[known]
        # A forked worker also holds the index queues of elders that were not seen.
        elif shares and len(fresh) > 1 + unseen_before:
            current = fresh[-2] if not unseen_before else _AMBIGUOUS
        elif not shares:
            elders = 0 if is_known(current) else unseen_before
            current = fresh[max(0, len(fresh) - 2 - elders)] if len(fresh) > 1 else missing
        data.append(current)
        index.append(fresh[-1] if is_known(current) and fresh and fresh[-1] != current else missing)
        unseen_before = 0
    # First workers whose data queue was not seen belong to the loader of the next ones.
    for number, held in enumerate(workers):
        if is_known(held) and held:
            data[:number] = [data[number]] * number
            break
    return QueueMap(tuple(data), tuple(index))


def count_made(
    data: Sequence[Known[PipeEnds]], queues: Mapping[int, PipeEnds], held: Mapping[int, PipeEnds]
) -> list[Known[int]]:
    """Count the workers that each loader of a rank was made with, by its ``data`` queue, oldest first. Pure.

    For each worker, also one that has ended, the rank keeps an index queue and the reading end of a pipe that
    tells its end. ``queues`` are those of ``held`` that can be queues.
    """
    begins = sorted(one.read_fd for one in data if is_known(one))
    ends = [pipe.read_fd for pipe in held.values() if pipe.write_fd < 0]
    index = [pipe.read_fd for pipe in queues.values() if pipe.read_fd not in begins]
    made: list[Known[int]] = []
    for one in data:
        if not is_known(one):
            made.append(one)
            continue
        until = next((fd for fd in begins if fd > one.read_fd), MAX_DESCRIPTORS_READ)
        made.append(min(sum(one.read_fd < fd < until for fd in some) for some in (index, ends)))
    return made


def _read_pipe(pid: int, pipe: PipeEnds, read: Callable[[int], T]) -> Known[T]:
    """Open another process's pipe for one reading: a reader that stayed would hide EPIPE from the job."""
    path = f"/proc/{pid}/fd/{pipe.read_fd}"
    try:
        if os.readlink(path) != f"pipe:[{pipe.inode}]":
            # The number is another file's now, perhaps a device, which opening would affect.
            raise FileNotFoundError(0, "closed since it was found")
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return read(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return Missing(f"pipe: {say_refusal(error, 'fd')}")


def read_pending(pid: int, pipe: PipeEnds) -> Known[int]:
    """Return the bytes that wait in a pipe of another process."""
    waiting = _read_pipe(pid, pipe, lambda fd: fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return map_known(lambda raw: int(struct.unpack("i", raw)[0]), waiting)


def read_message_bytes(pid: int, pipe: PipeEnds) -> Known[int]:
    """Return the size of the first message in another process's queue, its header included.

    multiprocessing writes the length in 4 bytes before a message (connection.py); tee(2) copies them without
    consuming.
    """
    header = _read_pipe(pid, pipe, _copy_head)
    if isinstance(header, Missing):
        return header
    return struct.unpack("!i", header)[0] + 4 if len(header) == 4 else Missing("the pipe is empty")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _copy_head(pipe: int) -> bytes:
    """Copy the first 4 bytes of a pipe, or fewer."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        copied = _libc().tee(pipe, writer, ctypes.c_size_t(4), _SPLICE_F_NONBLOCK)
        number = ctypes.get_errno() if copied < 0 else 0
        if number not in (0, errno.EAGAIN):
            raise OSError(number, os.strerror(number))
        return os.read(reader, 4) if copied > 0 else b""
    finally:
        os.close(reader)
        os.close(writer)


LOOK_EVERY_S = 0.5
SAMPLE_SPAN_NS = 10_000_000_000
RETRY_NS = 10_000_000_000
BIRTH_SPAN_NS = 60_000_000_000
INDEX_SAMPLES = 24
"""Work queues read each time, 15 us each, in turn if there are more: with 128 workers at most 3 s old. Data
queues, which show "empty", are read every time."""
MESSAGE_EVERY_NS = 5_000_000_000  # reading a batch's size costs two readings, and it seldom changes
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


@dataclass(slots=True)
class _Loader:
    """Remember the queues of one loader and the readings of the last 10 s."""

    workers: tuple[LoaderWorker, ...]
    data: Known[PipeEnds] = _WAITING
    ready: Known[int] = _WAITING
    index: tuple[Known[PipeEnds], ...] = ()
    made: Known[int] = _WAITING
    looks: deque[tuple[int, int]] = field(default_factory=deque)
    message_bytes: Known[int] = Missing("no whole batch seen in the data pipe yet")
    message_ns: int = -MESSAGE_EVERY_NS
    pending: tuple[Known[int], ...] = ()
    shown: tuple[tuple[object, ...], tuple[WorkerQueue, ...]] = ((), ())
    """The queues as last shown, and what they were made from."""

    def show_queues(self, living: tuple[LoaderWorker, ...]) -> tuple[WorkerQueue, ...]:
        """Return what waits for each worker that lives; the same objects while nothing changes."""
        pending = self.pending or (_WAITING,) * len(self.workers)
        told = (self.workers, pending, living)
        if self.shown[0] != told:
            alive = self.workers if self.workers == living else set(living)
            seen = [one for one in zip(self.workers, pending, strict=False) if one[0] in alive]
            self.shown = (told, tuple(WorkerQueue(one.number, one.pid, waiting) for one, waiting in seen))
        return self.shown[1]


@dataclass(slots=True)
class _RankQueues:
    """Remember the loaders of one rank, oldest first, and the births of its workers."""

    pids: tuple[int, ...] = ()
    mapped_ns: int = 0
    complete: bool = False
    loaders: tuple[_Loader, ...] = ()
    births: deque[int] = field(default_factory=deque)
    known: set[tuple[int, int]] = field(default_factory=set)

    def forget_births(self, now_ns: int) -> None:
        """Keep the births of the last minute."""
        while self.births and now_ns - self.births[0] > BIRTH_SPAN_NS:
            self.births.popleft()


class LoaderProbe:
    """Read the queues of every rank twice a second in a daemon thread."""

    def __init__(self) -> None:
        self._ranks: tuple[LoaderRank, ...] = ()
        self._queues: dict[int, _RankQueues] = {}
        self._lock = threading.Lock()
        self._turn = self._turns = self._place = 0
        self._source = Background("loader", lambda: self.look(time.monotonic_ns()), LOOK_EVERY_S)

    def start(self) -> None:
        """Start the thread."""
        self._source.start()

    def stop(self) -> None:
        """End the thread after the current reading."""
        self._source.stop()

    def watch(self, ranks: tuple[LoaderRank, ...], now_ns: int) -> None:
        """Name the ranks with workers, and count the births of workers."""
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
        """Return a sample for each loader of each rank with workers, the rank's oldest first."""
        with self._lock:
            return tuple(
                self._sample(rank, queues, number, loader)
                for rank in self._ranks
                if rank.workers and (queues := self._queues[rank.pid])
                for number, loader in enumerate(_living(queues, rank))
            )

    def look(self, now_ns: int) -> None:
        """Read every data queue once, and the work queues whose turn it is."""
        self._turn += 1
        self._place = 0
        self._turns = -(-sum(len(rank.workers) for rank in self._ranks) // INDEX_SAMPLES)
        ranks = [rank for rank in self._ranks if rank.workers and rank.pid in self._queues]
        looks = each_process(ranks, lambda rank: self._look_at(rank, now_ns))
        with self._lock:
            for rank, why in looks.items():
                if isinstance(why, Missing) and rank.pid in self._queues:
                    self._queues[rank.pid].loaders = (_refuse(rank, why),)

    def _look_at(self, rank: LoaderRank, now_ns: int) -> None:
        queues = self._queues.get(rank.pid) or _RankQueues()  # its workers ended meanwhile
        pids = tuple(worker.pid for worker in rank.workers)
        # Known pipes are checked at every reading, so only unknown ones are searched again.
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
        ready = read_pending(pid, data) if is_known(data) else data
        pending = self._look_for_work(pid, loader)
        message = loader.message_bytes
        due = not is_known(message) or now_ns - loader.message_ns >= MESSAGE_EVERY_NS
        if due and is_known(data) and is_known(ready) and ready > 0:
            loader.message_ns = now_ns
            seen = read_message_bytes(pid, data)
            # Between a reader's two reads there is no header at the head.
            if not is_known(seen) or 4 < seen <= ready:
                message = seen
        with self._lock:
            loader.ready, loader.pending, loader.message_bytes = ready, pending, message
            if is_known(ready):
                loader.looks.append((now_ns, ready))
            while loader.looks and now_ns - loader.looks[0][0] > SAMPLE_SPAN_NS:
                loader.looks.popleft()

    def _look_for_work(self, pid: int, loader: _Loader) -> tuple[Known[int], ...]:
        """Read the work queues whose turn it is; the others keep their last reading."""
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
                pending.append(read_pending(pid, pipe))
        return tuple(pending)

    def _map(self, rank: LoaderRank, before: Sequence[_Loader]) -> tuple[_Loader, ...]:
        """Find the loaders of a rank; one whose data queue was known before goes on."""
        known = {
            worker: loader.data.inode
            for loader in before
            if is_known(loader.data)
            for worker in loader.workers
        }
        try:
            queues, pipes = read_queue_pipes(rank.pid), read_pipes(rank.pid)
        except OSError as error:
            return (_refuse(rank, Missing(say_refusal(error, "fd"))),)
        held: list[Known[dict[int, PipeEnds]]] = []
        for worker in rank.workers:
            # An unreadable one keeps its place, so that numbers stay with their workers.
            try:
                held.append(read_pipes(worker.pid))
            except (FileNotFoundError, ProcessLookupError):
                held.append({})
            except OSError as error:
                held.append(Missing(say_refusal(error, "fd")))
        mapped = map_queues(queues, held, [known.get(worker, -1) for worker in rank.workers])
        loaders = _group(rank.workers, mapped, before)
        made = count_made([loader.data for loader in loaders], queues, pipes)
        for loader, count in zip(loaders, made, strict=True):
            loader.made = count
        return loaders

    def _sample(self, rank: LoaderRank, queues: _RankQueues, number: int, loader: _Loader) -> LoaderSample:
        ready = Missing(self._source.off) if self._source.off else loader.ready
        batches: Known[float] = ready
        if is_known(ready):
            batches = map_known(lambda size: ready / size, loader.message_bytes) if ready else 0.0
        looks = len(loader.looks)
        shown = loader.show_queues(rank.workers)
        return LoaderSample(
            rank=rank.rank,
            pid=rank.pid,
            loader=number,
            workers=len(shown),
            ready_batches=batches,
            ready_bytes=ready,
            empty_ratio=sum(ready == 0 for _, ready in loader.looks) / looks if looks else _WAITING,
            looks=looks,
            queues=shown,
            births=len(queues.births),
            pin_thread=rank.pin_thread,
            made=loader.made,
        )


def _refuse(rank: LoaderRank, why: Missing) -> _Loader:
    return _Loader(rank.workers, data=why, ready=why, index=(why,) * len(rank.workers))


def _living(queues: _RankQueues, rank: LoaderRank) -> list[_Loader]:
    """List the loaders with a living worker; before the first reading one without figures.

    A worker born since the last reading gets its loader at the next, half a second later.
    """
    if len(queues.loaders) == 1 and queues.loaders[0].workers == rank.workers:
        return list(queues.loaders)
    living = [loader for loader in queues.loaders if not set(rank.workers).isdisjoint(loader.workers)]
    return living or [_Loader(rank.workers)]


def _group(
    workers: Sequence[LoaderWorker], mapped: QueueMap, before: Sequence[_Loader]
) -> tuple[_Loader, ...]:
    """Group the workers that share a data queue, in the order of their eldest."""
    kept = {loader.data.inode: loader for loader in before if is_known(loader.data)}
    places: dict[int, list[int]] = {}
    for place, data in enumerate(mapped.data):
        places.setdefault(data.inode if is_known(data) else -1, []).append(place)
    loaders = []
    for inode, own in places.items():
        old = kept.get(inode) or _Loader(())
        loaders.append(
            _Loader(
                tuple(workers[place] for place in own),
                data=mapped.data[own[0]],
                ready=old.ready,
                index=tuple(mapped.index[place] for place in own),
                looks=old.looks,
                message_bytes=old.message_bytes,
            )
        )
    return tuple(loaders)
