"""Read the hot /proc files of many processes once a second, and turn counters into rates.

A cached descriptor of /proc costs a third of opening the file again and is immune to PID reuse: after the
death of its process every read answers ESRCH, even when the PID is used again. Each one that was read keeps
about 6.4 KiB of kernel memory, so whoever opens them bounds their number.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from contextlib import suppress

from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing

NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
LEAST_DESCRIPTORS = 96  # beside the processes tpmon needs 52 with the screen (measured), briefly more
KEPT_THREADS = 1536  # about 10 MB of kernel memory; further threads are opened for each reading
KEPT_PROCESSES = 256  # seven descriptors each: another 11 MB
_PER_PROCESS = 5
_PER_MEMBER = 2
_RESERVED_DESCRIPTORS = 128
_LEAST_RESERVED = 64


class ProcFile:
    """Keep one /proc file open and read it from the start each time."""

    __slots__ = ("_fd", "_size")

    def __init__(self, path: str, size: int = 1024, dir_fd: int | None = None) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        self._size = size

    def read(self) -> bytes:
        """Return the file's bytes now; ESRCH when the process is gone."""
        return os.pread(self._fd, self._size, 0)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OnceFile:
    """Open one /proc file for each read: three times the CPU, but no descriptor in between."""

    __slots__ = ("_path", "_size")

    def __init__(self, path: str, size: int = 1024) -> None:
        self._path = path
        self._size = size

    def read(self) -> bytes:
        """Return the file's bytes now; the PID may be another process's by now."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, self._size, 0)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Hold nothing, so there is nothing to close."""


def open_file(path: str, size: int, *, keep: bool) -> ProcFile | OnceFile:
    """Open a file to be read often; keep its descriptor where ``keep`` asks and one is left."""
    if keep:
        try:
            return ProcFile(path, size)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
    return OnceFile(path, size)


@dataclass(frozen=True, slots=True)
class Io:
    """Hold the byte counters of /proc/PID/io and the number of read calls."""

    asked_read: int
    asked_write: int
    device_read: int
    device_write: int
    read_calls: int


def parse_io(raw: bytes) -> Io:
    """Parse rchar, wchar, read_bytes, write_bytes, syscr of /proc/PID/io; ValueError where one is absent."""
    values = {}
    for line in raw.splitlines():
        key, _, number = line.partition(b": ")
        values[key] = number
    try:
        return Io(
            int(values[b"rchar"]),
            int(values[b"wchar"]),
            int(values[b"read_bytes"]),
            int(values[b"write_bytes"]),
            int(values[b"syscr"]),
        )
    except KeyError as error:
        raise ValueError(f"io has no {error}") from error


@dataclass(frozen=True, slots=True)
class SchedStat:
    """Hold /proc/PID/task/TID/schedstat: ns on a CPU, ns runnable but waiting, times put on a CPU."""

    run_ns: int
    wait_ns: int
    slices: int


def parse_schedstat(raw: bytes) -> SchedStat:
    """Parse one line (Documentation/scheduler/sched-stats.rst); ValueError where it is cut."""
    fields = raw.split()
    if len(fields) < 3:
        raise ValueError("schedstat line is cut")
    return SchedStat(int(fields[0]), int(fields[1]), int(fields[2]))


@dataclass(frozen=True, slots=True)
class Shares:
    """Say for how many members (two descriptors each), processes (five) and threads (one) files stay open."""

    members: int
    processes: int
    threads: int
    limit: int  # of open files, from which this was computed


def share_descriptors(limit: int, held: int) -> Shares:
    """Divide what a limit of open files leaves beside those held now and other sources. Pure."""
    reserved = max(_LEAST_RESERVED, min(_RESERVED_DESCRIPTORS, limit // 2))
    room = max(0, limit - held - reserved)
    threads = min(KEPT_THREADS, room // 3)
    processes = min(KEPT_PROCESSES, (room - threads) // (_PER_PROCESS + _PER_MEMBER))
    return Shares(processes, processes, threads, limit)


def read_shares() -> Shares:
    """Raise the limit of open files to its maximum and divide it."""
    return share_descriptors(raise_descriptor_limit(), len(os.listdir("/proc/self/fd")))


def require_descriptors() -> None:
    """Raise the limit of open files; UsageError where it is too low for tpmon to work."""
    limit = raise_descriptor_limit()
    if limit < LEAST_DESCRIPTORS:
        raise UsageError(
            f"the limit of open files is {limit}; tpmon needs {LEAST_DESCRIPTORS}, and 1024 to be cheap",
            "ulimit -n 1024, or as root: prlimit --nofile=1024 --pid $$",
        )


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a container may forbid it; the soft limit then holds
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


_ALL_THREADS = 2  # CPUCLOCK_SCHED of a whole process (include/linux/posix-timers_types.h)


def read_cpu_clock(pid: int) -> int:
    """Return what all threads of a process ran since its start, in ns as schedstat has it; -1: not told.

    It costs a fifth of opening one thread's file (clock_getcpuclockid(3)), and no permission.
    """
    try:
        return time.clock_gettime_ns(~pid << 3 | _ALL_THREADS)
    except OSError:
        return -1


CLOCK_APART_S = 0.05
"""The clock and the ticks of one process never differ by as much, where both count the same time."""


def is_clock_of(clock_ns: int, cpu_s: float) -> bool:
    """Tell whether a CPU clock may be of the process whose stat says ``cpu_s``, and counts the same time."""
    return abs(clock_ns / 1e9 - cpu_s) < CLOCK_APART_S


def tell_no_clock(_pid: int) -> int:
    """Stand for ``read_cpu_clock`` where /proc is not that of this PID namespace."""
    return -1


NEEDS_SECOND = Missing("needs a second reading")


class CounterRates:
    """Remember the last value of every counter by its name."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def rate(self, name: str, value: Known[float], now_ns: int) -> Known[float]:
        """Return the growth of counter ``name`` per second since the last reading (monotonic ``now_ns``).

        Missing also when it went back: its group, interface or port was made anew.
        """
        if isinstance(value, Missing):
            self._last.pop(name, None)
            return value
        last = self._last.get(name)
        self._last[name] = (value, now_ns)
        if last is None or now_ns <= last[1]:
            return NEEDS_SECOND
        grown = value - last[0]
        if grown < 0:
            return Missing("counter was reset")
        return grown * 1e9 / (now_ns - last[1])

    def keep_only(self, names: set[str]) -> None:
        """Forget all other counters."""
        self._last = {name: last for name, last in self._last.items() if name in names}
