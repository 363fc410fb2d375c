"""Find the pipes of a loader's queues among a rank's and its workers' files, and look into them.

A rank and its workers share the pipes of multiprocessing queues: one data queue a loader, made
first, and an index queue a worker, made just before that worker. Seen for fork, spawn and
forkserver workers. Needs the same user or root; nothing is written or consumed, no ptrace.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import struct
import termios
from collections.abc import Mapping, Sequence
from functools import cache

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.doctor import say_refusal
from tpmon.probe.base.procread import each_process, read_file

MAX_DESCRIPTORS_READ = 4096
"""A rank with more open files than this is not searched for pipes."""
_PIPE = re.compile(r"pipe:\[(\d+)\]")
_SPLICE_F_NONBLOCK = 2
_AMBIGUOUS = Missing("a dead worker leaves open which pipe is the data queue")


@dataclass(frozen=True, slots=True)
class PipeEnds:
    """Hold the descriptors by which a process holds a pipe; -1 for an end that it does not hold."""

    inode: int
    read_fd: int
    write_fd: int


@dataclass(frozen=True, slots=True)
class QueueMap:
    """Say by which pipes of the rank the queues of each worker are looked at, in birth order.

    ``data`` is the data queue of the worker's loader: workers of one loader share it.
    """

    data: tuple[Known[PipeEnds], ...]
    index: tuple[Known[PipeEnds], ...]


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
        except FileNotFoundError:
            # Closed since the listing.
            continue
        inode, fd = int(match[1]), int(name)
        held = pipes.get(inode, PipeEnds(inode, -1, -1))
        pipes[inode] = PipeEnds(inode, held.read_fd if writes else fd, fd if writes else held.write_fd)
    return pipes


def read_queue_pipes(pid: int, proc: str = "/proc") -> dict[int, PipeEnds]:
    """Return the pipes that can be queues of multiprocessing, by inode.

    Those are held at both ends, block, and are closed on exec. Gloo and libuv hold both ends of
    pipes too, which forked workers inherit, but theirs do not block.

    Raises:
        OSError: when the process is gone or its descriptors may not be read.
    """
    pipes = [pipe for pipe in read_pipes(pid, proc).values() if pipe.read_fd >= 0 and pipe.write_fd >= 0]
    path = f"{proc}/{pid}/fdinfo/%d"
    flags = each_process(pipes, lambda pipe: parse_flags(read_file(path % pipe.read_fd, 4096)))
    told = [(pipe, flag) for pipe, flag in flags.items() if is_known(flag)]
    return {pipe.inode: pipe for pipe, flag in told if flag & os.O_CLOEXEC and not flag & os.O_NONBLOCK}


def parse_flags(raw: bytes) -> int:
    """Return the open flags of /proc/PID/fdinfo/FD (octal), 0 when there are none."""
    for line in raw.splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8)
    return 0


def map_queues(
    rank: Mapping[int, PipeEnds],
    workers: Sequence[Known[Mapping[int, PipeEnds]]],
    before: Sequence[int] = (),
) -> QueueMap:
    """Find the data queue and the index queue of each worker of a rank. Pure.

    ``rank`` are its queue pipes, ``workers`` what each holds in birth order (nothing when it is
    dead, Missing when that may not be read), ``before`` the inodes of their data queues at the
    last look, -1 for one that was not known. A loader makes its data queue, then the index queue of
    its first worker, then that worker: of what a worker is the first to hold, these are the last
    two; of the next workers of that loader it is the index queue alone. Forked workers also hold
    all that is older. The order is that of descriptors, because inode numbers come from a pool for
    each CPU.
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
        # A forked worker also holds the index queues of its elders that were not seen.
        elif shares and len(fresh) > 1 + unseen_before:
            current = fresh[-2] if not unseen_before else _AMBIGUOUS
        elif not shares:
            elders = 0 if is_known(current) else unseen_before
            current = fresh[max(0, len(fresh) - 2 - elders)] if len(fresh) > 1 else missing
        data.append(current)
        index.append(fresh[-1] if is_known(current) and fresh and fresh[-1] != current else missing)
        unseen_before = 0
    # The first ones, where they were not seen, belong to the loader of those that came after them.
    for number, held in enumerate(workers):
        if is_known(held) and held:
            data[:number] = [data[number]] * number
            break
    return QueueMap(tuple(data), tuple(index))


def _open_pipe(pid: int, pipe: PipeEnds, proc: str) -> int:
    path = f"{proc}/{pid}/fd/{pipe.read_fd}"
    if os.readlink(path) != f"pipe:[{pipe.inode}]":
        # The number was given to another file, which may be a device: opening it is no looking.
        raise FileNotFoundError(0, "closed since it was found")
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_pending(pid: int, pipe: PipeEnds, proc: str = "/proc") -> Known[int]:
    """Return the bytes that wait in a pipe of another process.

    The pipe is opened for this look only: a reader that stayed would hide EPIPE from the job.
    """
    try:
        look = _open_pipe(pid, pipe, proc)
        try:
            return int(struct.unpack("i", fcntl.ioctl(look, termios.FIONREAD, b"\0\0\0\0"))[0])
        finally:
            os.close(look)
    except OSError as error:
        return Missing(f"pipe: {say_refusal(error, 'fd')}")


def read_message_bytes(pid: int, pipe: PipeEnds, proc: str = "/proc") -> Known[int]:
    """Return the size of the first message in a queue of another process, its header included.

    multiprocessing writes the length of a message in 4 bytes before it (connection.py). tee(2)
    copies those without consuming them.
    """
    try:
        look = _open_pipe(pid, pipe, proc)
        try:
            header = _copy_head(look)
        finally:
            os.close(look)
    except OSError as error:
        return Missing(f"pipe: {say_refusal(error, 'fd')}")
    return struct.unpack("!i", header)[0] + 4 if len(header) == 4 else Missing("the pipe is empty")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _copy_head(look: int) -> bytes:
    """Copy the first 4 bytes of a pipe, less when it holds less."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        copied = _libc().tee(look, writer, ctypes.c_size_t(4), _SPLICE_F_NONBLOCK)
        number = ctypes.get_errno() if copied < 0 else 0
        if number not in (0, errno.EAGAIN):
            raise OSError(number, os.strerror(number))
        return os.read(reader, 4) if copied > 0 else b""
    finally:
        os.close(reader)
        os.close(writer)
