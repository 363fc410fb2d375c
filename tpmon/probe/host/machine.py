"""Read what the whole machine does beside the job, the memory that is left, and tpmon's own cost.

/proc/stat, /proc/loadavg and /proc/meminfo show the host, even inside a container. When tpmon's own cost
exceeds its budget, it reads less often.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tpmon.model.frame import OwnCost
from tpmon.model.frozen import dataclass
from tpmon.model.host import ShmSample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import each_process, parse_field, read_apart, read_stat
from tpmon.probe.host.cgroup import CgroupReader
from tpmon.probe.proc.counters import NEEDS_SECOND, ProcFile

T = TypeVar("T")

SHM = "/dev/shm"  # noqa: S108  # where torch loaders put their batches


@dataclass(frozen=True, slots=True)
class HostReading:
    """Hold one reading of the machine. ``used_cores`` and ``steal_pct`` need a second one."""

    cores: int
    used_cores: Known[float]
    steal_pct: Known[float]
    load: Known[float]
    available_bytes: Known[int]
    total_bytes: Known[int]


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Hold the first line of /proc/stat in clock ticks, and the number of CPUs listed after it."""

    busy: int
    steal: int
    total: int
    cores: int


def parse_ticks(raw: bytes) -> CpuTicks:
    """Parse /proc/stat (proc_stat(5)), ValueError without a CPU line; guest time is part of user time."""
    line, _, rest = raw.partition(b"\n")
    fields = line.split()
    if len(fields) < 8 or fields[0] != b"cpu":
        raise ValueError("no CPU line")
    user, nice, system, idle, iowait, irq, softirq = (int(field) for field in fields[1:8])
    steal = int(fields[8]) if len(fields) > 8 else 0
    busy = user + nice + system + irq + softirq
    cores = sum(one.startswith(b"cpu") for one in rest.split(b"\n"))
    return CpuTicks(busy, steal, busy + idle + iowait + steal, cores)


def parse_loadavg(raw: bytes) -> float:
    """Parse the one-minute load of /proc/loadavg; else ValueError."""
    return float(raw.split(b" ", 1)[0])


def parse_meminfo(raw: bytes, name: bytes) -> Known[int]:
    """Parse one line of /proc/meminfo into bytes; Missing where the kernel does not write it."""
    kib = parse_field(raw, name).split()
    return int(kib[0]) * 1024 if kib else Missing(f"this kernel does not tell {name.decode()}:")


class _HostFile:
    """Keep one file of the machine open; where it cannot be read, say why and open it anew next time.

    A crashed lxcfs answers ENOTCONN until it is mounted again; a /proc with subset=pid has no such files.
    """

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._file: ProcFile | None = None

    def read(self, parse: Callable[[bytes], T]) -> Known[T]:
        """Read and parse it now."""
        try:
            if self._file is None:
                self._file = ProcFile(self._path, self._size or _measure_stat(self._path))
            return parse(self._file.read())
        except OSError as error:
            self.close()
            return Missing(f"{self._path}: {(error.strerror or str(error)).lower()}")
        except (ValueError, IndexError) as error:
            self.close()
            return Missing(f"{self._path} not understood: {error}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _measure_stat(path: str) -> int:
    """Return how many bytes of /proc/stat to read: the interrupt counters behind are ten times as long."""
    with open(path, "rb") as file:
        return len(file.read().partition(b"\nintr")[0]) * 2 + 1024


class HostReader:
    """Read the machine on descriptors that stay open; an unreadable file costs only its own figures."""

    def __init__(self, proc: str = "/proc") -> None:
        self._stat = _HostFile(f"{proc}/stat", 0)
        self._loadavg = _HostFile(f"{proc}/loadavg", 128)
        self._meminfo = _HostFile(f"{proc}/meminfo", 4096)
        self._last: CpuTicks | None = None

    def read(self) -> HostReading:
        """Read once. Shares are of the ticks since the last read, so no clock is needed."""
        ticks = self._stat.read(parse_ticks)
        used: Known[float]
        steal: Known[float]
        if isinstance(ticks, Missing):
            used = steal = ticks
            self._last = None
        else:
            used, steal = _shares(self._last, ticks)
            self._last = ticks
        memory = self._meminfo.read(
            lambda raw: (parse_meminfo(raw, b"MemAvailable"), parse_meminfo(raw, b"MemTotal"))
        )
        available, total = (memory, memory) if isinstance(memory, Missing) else memory
        return HostReading(
            cores=os.cpu_count() or 1 if isinstance(ticks, Missing) else ticks.cores,
            used_cores=used,
            steal_pct=steal,
            load=self._loadavg.read(parse_loadavg),
            available_bytes=available,
            total_bytes=total,
        )

    def close(self) -> None:
        """Close every descriptor; the next read opens them again."""
        for file in (self._stat, self._loadavg, self._meminfo):
            file.close()


def _shares(last: CpuTicks | None, ticks: CpuTicks) -> tuple[Known[float], Known[float]]:
    if last is None or ticks.total <= last.total:
        return NEEDS_SECOND, NEEDS_SECOND
    total = ticks.total - last.total
    # The kernel lets single counters step back by a tick; a share must not be negative.
    busy = max(0, ticks.busy - last.busy) / total
    steal = max(0, ticks.steal - last.steal) / total
    return min(1.0, busy) * ticks.cores, min(1.0, steal) * 100.0


def read_shm(pid: int, proc: str = "/proc") -> Known[ShmSample]:
    """Read how full ``pid``'s /dev/shm is, by statvfs as torch unlinks its files at once; it can block."""
    root = f"{proc}/{pid}/root"
    try:
        if os.path.islink(root + SHM):
            return Missing(f"{SHM} is a link, which would lead to this machine's own")
        room = os.statvfs(root + SHM)
    except PermissionError as error:
        return Missing(say_refusal(error, "environ"))
    except FileNotFoundError:
        gone = not os.path.exists(f"{proc}/{pid}")
        return Missing("the process is gone" if gone else f"the target has no {SHM}")
    except OSError as error:
        return Missing(error.strerror or str(error))
    if room.f_blocks == 0:
        return Missing(f"{SHM} has no size limit")
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    return ShmSample(SHM, used, room.f_blocks * room.f_frsize)


def read_memory_left(pid: int, proc: str = "/proc") -> Known[int]:
    """Return the bytes left by the smallest limit up the tree, else the machine's, or why that is unknown."""
    groups, host = CgroupReader((pid,), proc), HostReader(proc)
    with contextlib.closing(groups), contextlib.closing(host):
        group = groups.read(time.monotonic_ns())
        left = host.read().available_bytes
    if is_known(group.limit_bytes) and is_known(group.used_bytes):
        below = max(0, group.limit_bytes - group.used_bytes)
        return min(left, below) if is_known(left) else below
    return left


_READ_ALL, _SIZE = 3, 10  # syslog(2)
_MOST_BYTES = 4 << 20
MOST_LINES = 400
_LINE_CHARS = 300
_CONCERNS = re.compile(
    r"\bNVRM\b|\bXid\b|nvidia|\bnvswitch|oom|out of memory|killed process|hung_task|blocked for more than"
    r"|segfault|general protection|machine check|hardware error|\bmce\b|\bEDAC\b|\bAER\b|pcie.*error"
    r"|i/o error|nfs: server|lustre|mlx5|infiniband|soft lockup|hard lockup|rcu.*stall|throttl",
    re.IGNORECASE,
)
_LEVEL = re.compile(r"^<\d+>")


def _call(action: int, buffer: int | None, size: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.klogctl.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    answer: int = library.klogctl(action, buffer, size)
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def try_log() -> Known[int]:
    """Ask for the size of the log in bytes, which needs the same permission as its text."""
    return read_apart(lambda: _call(_SIZE, None, 0))


def read_log() -> Known[str]:
    """Read the newest part of the log without consuming it (syslog(2), SYSLOG_ACTION_READ_ALL)."""

    def read() -> str:
        size = min(_call(_SIZE, None, 0), _MOST_BYTES)
        buffer = ctypes.create_string_buffer(size)
        length = _call(_READ_ALL, ctypes.addressof(buffer), size)
        return buffer.raw[:length].decode("utf-8", "replace")

    return read_apart(read)


def pick_lines(log: str) -> tuple[str, ...]:
    """Return the lines about GPUs, killed processes, hung tasks, storage and broken hardware. Pure."""
    lines = [_LEVEL.sub("", line) for line in log.splitlines()]
    found = [line for line in lines if _CONCERNS.search(line)]
    return tuple(admit_text(line, _LINE_CHARS) for line in found[-MOST_LINES:])


BUDGET_MS_PER_S = 15.0  # CPU of collecting; with screen, judge and NVML child all stay below 2.5 % of a core
RELIEF = 0.5  # full rates return below this share of the budget, so that the mode does not flicker
SMOOTHING = 0.2
COUNT_EVERY_NS = 30_000_000_000


class OwnCostMeter:
    """Sum CPU and memory of this process and its children, and watch the cost of collecting."""

    def __init__(self) -> None:
        self._last: tuple[int, float, dict[int, float]] | None = None
        self._stacks_s = 0.0
        self._smooth_ms_per_s = 0.0
        self._met = False
        self._descriptors = (0, -COUNT_EVERY_NS)
        self.shedding = False

    def add_tick(self, tick_ms: float, interval_s: float) -> None:
        """Record the CPU of a Frame, but the first, which opens all files; turn shedding on or off by it."""
        if not self._met:
            self._met = True
            return
        cost = tick_ms / interval_s
        self._smooth_ms_per_s += SMOOTHING * (cost - self._smooth_ms_per_s)
        if self._smooth_ms_per_s > BUDGET_MS_PER_S:
            self.shedding = True
        elif self._smooth_ms_per_s < BUDGET_MS_PER_S * RELIEF:
            self.shedding = False

    def read(
        self, children: Sequence[int], tick_ms: float, paused_ms: float, stacks: tuple[float, int] = (0.0, 0)
    ) -> OwnCost:
        """Return the cost since the last call; ``children`` are PIDs of tpmon's own processes.

        ``stacks``: CPU seconds of every py-spy so far, RSS of the present one.
        """
        now_ns = time.monotonic_ns()
        cpu_s = time.process_time()
        # In the /proc of another PID namespace our number is another process's.
        own = read_apart(lambda: read_stat("self"))
        stacks_s, children_rss = stacks
        # A child that is being restarted is left out.
        told = {pid: one for pid, one in each_process(children, read_stat).items() if is_known(one)}
        children_s = {pid: one.cpu_s for pid, one in told.items()}
        children_rss += sum(one.rss_bytes for one in told.values())
        cpu_pct: Known[float] = Missing("needs two readings")
        if self._last is not None and now_ns > self._last[0]:
            last_ns, last_s, last_children_s = self._last
            # A new child counts from its second reading, a dead one no longer.
            used_s = cpu_s - last_s
            used_s += stacks_s - self._stacks_s
            used_s += sum(new - last_children_s.get(pid, new) for pid, new in children_s.items())
            cpu_pct = max(0.0, 100e9 * used_s / (now_ns - last_ns))
        self._last = (now_ns, cpu_s, children_s)
        self._stacks_s = stacks_s
        return OwnCost(
            cpu_pct=cpu_pct,
            rss_bytes=Missing(f"/proc/self/stat: {own.reason}")
            if isinstance(own, Missing)
            else own.rss_bytes,
            children_rss_bytes=children_rss,
            target_paused_ms=paused_ms,
            descriptors=self._count_descriptors(now_ns),
            tick_ms=tick_ms,
            shedding=self.shedding,
        )

    def _count_descriptors(self, now_ns: int) -> Known[int]:
        """Count open files: the size of the directory (Linux 6.2), else a listing twice a minute."""
        try:
            size = os.stat("/proc/self/fd").st_size
            if size:
                return size
            if now_ns - self._descriptors[1] >= COUNT_EVERY_NS:
                self._descriptors = (len(os.listdir("/proc/self/fd")), now_ns)
        except OSError as error:
            return Missing(f"/proc/self/fd: {error.strerror}")
        return self._descriptors[0]
