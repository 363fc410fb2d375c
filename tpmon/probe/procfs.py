"""Read the hot /proc files of many processes once a second, on descriptors that stay open.

A cached descriptor of /proc costs a third of opening the file again and is immune to PID
reuse: after the death of its process every read answers ESRCH, also when the PID lives again.
Each one that was read keeps about 6.4 KiB of kernel memory, so their number is bounded by
whoever opens them.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESERVED_DESCRIPTORS = 128


class ProcFile:
    """Keep one /proc file open and read it from the start each time."""

    __slots__ = ("_fd", "_size")

    def __init__(self, path: str, size: int = 1024, dir_fd: int | None = None) -> None:
        """Open ``path``.

        Raises:
            OSError: when it is not there or not readable.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        self._size = size

    def read(self) -> bytes:
        """Return the file's bytes now.

        Raises:
            OSError: ESRCH when the process is gone.
        """
        return os.pread(self._fd, self._size, 0)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class Stat:
    """Hold the fields of /proc/PID/stat that tpmon uses; times in seconds of CPU.

    ``children_faults`` (cminflt) grows whenever a child is reaped, and at no other time.
    """

    name: str
    state: str
    parent: int
    minor_faults: int
    children_faults: int
    major_faults: int
    cpu_s: float
    threads: int
    start_ticks: int
    rss_bytes: int


def parse_stat(raw: bytes) -> Stat:
    """Parse /proc/PID/stat (proc(5)); the name may hold spaces and parentheses.

    Raises:
        ValueError: when the text is cut or no stat line.
    """
    close = raw.rindex(b")")
    fields = raw[close + 2 :].split()
    if len(fields) < 22:
        raise ValueError("stat line is cut")
    return Stat(
        name=raw[raw.index(b"(") + 1 : close].decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        minor_faults=int(fields[7]),
        children_faults=int(fields[8]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Io:
    """Hold the byte counters of /proc/PID/io, and how many reads were asked for."""

    asked_read: int
    asked_write: int
    device_read: int
    device_write: int
    read_calls: int


def parse_io(raw: bytes) -> Io:
    """Parse /proc/PID/io: rchar, wchar, read_bytes, write_bytes, syscr.

    Raises:
        ValueError: when a counter is absent.
    """
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
    """Parse one schedstat line (Documentation/scheduler/sched-stats.rst).

    Raises:
        ValueError: when the text is cut.
    """
    fields = raw.split()
    if len(fields) < 3:
        raise ValueError("schedstat line is cut")
    return SchedStat(int(fields[0]), int(fields[1]), int(fields[2]))


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one and return how many tpmon may use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # A container may forbid it; the soft limit then bounds the cache.
            pass
    return max(64, soft - _RESERVED_DESCRIPTORS)
