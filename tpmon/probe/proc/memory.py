"""Ration the expensive memory readings, and tell what memory is left.

PSS costs the kernel 11 ms per GiB of 4 KiB pages and stalls the target's mmap and munmap meanwhile. So one
small process in turn is read every ten seconds (thirty while the verdict is settled), and a large one never.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Identity, ProcessSample
from tpmon.model.results.doctor import say_refusal
from tpmon.probe.base.procread import PAGE_BYTES, parse_field, read_file, read_stat
from tpmon.probe.base.worker import Background, Pace

PSS_EVERY_S = 10.0
PSS_SETTLED_S = 25.0  # while the verdict is settled every third turn is used: the stall is the target's
PSS_MAX_RSS_BYTES = 1 << 30  # about 11 ms of stall for the target; more is too much
SLOPE_SPAN_NS = 60_000_000_000
SLOPE_MIN_POINTS = 10
SLOPE_MAX_POINTS = 60


_TOO_LARGE = Missing("larger than 1 GiB: reading PSS would stall the process")
_RATIONED = Missing("rationed: one process every 10 s")


@dataclass(frozen=True, slots=True)
class Pss:
    """Hold the proportional set size of one process and when it was read."""

    pss_bytes: int
    taken_ns: int


def parse_anon(raw: bytes) -> int:
    """Return the resident bytes of /proc/PID/statm less file and shared pages; ValueError where it is cut."""
    fields = raw.split()
    if len(fields) < 3:
        raise ValueError("statm is cut")
    return max(0, int(fields[1]) - int(fields[2])) * PAGE_BYTES


def parse_pss(raw: bytes) -> int:
    """Return the Pss line of /proc/PID/smaps_rollup in bytes; ValueError where there is none."""
    kib = parse_field(raw, b"Pss").split()
    if not kib:
        raise ValueError("smaps_rollup has no Pss line")
    return int(kib[0]) * 1024


class PssRation:
    """Read PSS of one process at a time, oldest attempt first, in a daemon thread."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._rss: Mapping[Identity, int] = {}
        self._known: dict[Identity, Known[Pss]] = {}
        self._tried_ns: dict[Identity, int] = {}
        self._pace = Pace.FULL
        self.source = Background("pss", self.read_next, PSS_EVERY_S)

    def watch(self, rss: Mapping[Identity, int], pace: Pace = Pace.FULL) -> None:
        """Name the processes and their resident bytes."""
        self._rss, self._pace = rss, pace
        for gone in self._known.keys() - rss.keys():
            self._known.pop(gone, None)
            self._tried_ns.pop(gone, None)

    def latest(self, process: Identity) -> Known[Pss]:
        """Return the newest PSS of a process."""
        if self._rss.get(process, 0) > PSS_MAX_RSS_BYTES:
            return _TOO_LARGE
        known = self._known.get(process)
        if known is not None:
            return known
        return Missing(self.source.off) if self.source.off else _RATIONED

    def read_next(self) -> None:
        """Read the process whose turn it is, if one is small enough."""
        small = [process for process, rss in self._rss.items() if rss <= PSS_MAX_RSS_BYTES]
        if not small:
            return
        if self._pace is Pace.SETTLED:
            newest_ns = max(self._tried_ns.values(), default=0)
            if time.monotonic_ns() - newest_ns < PSS_SETTLED_S * 1e9:
                return
        # Failed attempts count as turns too: one unreadable process must not starve the others.
        process = min(small, key=lambda one: (self._tried_ns.get(one, 0), one.pid))
        self._tried_ns[process] = time.monotonic_ns()
        self._known[process] = self._read(process)

    def _read(self, process: Identity) -> Known[Pss]:
        try:
            with open(f"{self._proc}/{process.pid}/smaps_rollup", "rb") as file:
                # The open file stays that of the process that had the PID at the time.
                if read_stat(process.pid, self._proc).start_ticks != process.start_ticks:
                    return Missing("PSS: the process is gone")
                return Pss(parse_pss(file.read()), time.monotonic_ns())
        except (OSError, ValueError) as error:
            reason = say_refusal(error, "smaps_rollup") if isinstance(error, OSError) else str(error)
            return Missing(f"PSS: {reason}")


def fit_slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the median slope per second of all pairs of (ns, value) points (Theil-Sen).

    It withstands one outlier (a checkpoint, a freed cache). ValueError for fewer than two moments.
    """
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for i, earlier in enumerate(points)
        for later in points[i + 1 :]
        if later[0] > earlier[0]
    ]
    if not slopes:
        raise ValueError("a slope needs two moments")
    slopes.sort()
    middle = len(slopes) // 2
    median = slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2
    return median * 1e9


class MemoryGrowth:
    """Keep the last minute of one figure, and fit its slope at every fifth reading."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, float]] = deque(maxlen=SLOPE_MAX_POINTS)
        self._since_fit = 0
        self._slope: Known[float] = Missing(f"growth needs {SLOPE_MIN_POINTS} readings")

    def add(self, taken_ns: int, value: float) -> Known[float]:
        """Add a reading and return the slope in units per second."""
        self._points.append((taken_ns, value))
        while taken_ns - self._points[0][0] > SLOPE_SPAN_NS:
            self._points.popleft()
        self._since_fit += 1
        if len(self._points) >= SLOPE_MIN_POINTS and self._since_fit >= 5:
            self._since_fit = 0
            self._slope = fit_slope(tuple(self._points))
        return self._slope


@dataclass(frozen=True, slots=True)
class AnonMemory:
    """Hold a job's anonymous memory and its growth; ``is_summed``: over its processes."""

    anon_bytes: Known[int]
    growth_bytes_s: Known[float]
    is_summed: bool


class AnonReader:
    """Measure anonymous memory and its growth: the control group's, else the sum over the processes.

    RSS would not do: it grows with each touched page of a mapped data set.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[Identity, tuple[int, int]] = {}
        self._growth = MemoryGrowth()

    def read(self, now_ns: int, of_group: Known[int], processes: Sequence[ProcessSample]) -> AnonMemory:
        """Return the control group's memory, else the sum over processes; ``now_ns`` is CLOCK_MONOTONIC."""
        is_summed = not is_known(of_group)
        anon = of_group if is_known(of_group) else self._add(processes)
        growth = self._growth.add(now_ns, anon) if is_known(anon) else anon
        return AnonMemory(anon, growth, is_summed)

    def _add(self, processes: Sequence[ProcessSample]) -> Known[int]:
        """Return the sum over processes; one with unchanged resident bytes is not read again."""
        known: dict[Identity, tuple[int, int]] = {}
        for process in processes:
            identity = Identity(process.pid, process.start_ticks)
            before = self._known.get(identity)
            if before is not None and before[0] == process.rss_bytes:
                known[identity] = before
                continue
            try:
                anon = parse_anon(read_file(f"{self._proc}/{process.pid}/statm", 128))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended in this tick, and its memory with it
            except (OSError, ValueError) as error:
                return Missing(f"anonymous memory of the processes: {error}")
            known[identity] = (process.rss_bytes, anon)
        self._known = known
        return sum(anon for _, anon in known.values()) if known else Missing("no process of the job was read")


_NOWHERE = 64  # an address in the first page, which no process has mapped (vm.mmap_min_addr)


def try_memory(pid: int) -> Known[int]:
    """Call process_vm_readv(2) for one byte; return 1 where it is permitted, else Missing with the reason.

    The kernel checks permission before the address, which leads nowhere: EFAULT means "permitted", and no
    page of the process was touched.
    """
    library = ctypes.CDLL(None, use_errno=True)
    try:
        call = library.process_vm_readv
    except AttributeError:
        return Missing("this C library does not have process_vm_readv")
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
    piece = ctypes.c_size_t * 2  # struct iovec: where, and how many bytes
    buffer = ctypes.create_string_buffer(1)
    here, there = piece(ctypes.addressof(buffer), 1), piece(_NOWHERE, 1)
    if call(pid, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0) >= 0:
        return 1
    number = ctypes.get_errno()
    return 1 if number == errno.EFAULT else Missing(os.strerror(number))


def read_memory(pid: int, address: int, size: int, proc: str) -> Known[bytes]:
    """Read some bytes of the target's memory without stopping it."""
    try:
        fd = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return Missing(f"memory: {say_refusal(error, 'memory')}")
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError) as error:
        return Missing(f"memory: {error}")
    finally:
        os.close(fd)
