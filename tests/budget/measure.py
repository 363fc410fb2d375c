"""Measure the CPU, memory and terminal bytes of a command from outside, by its own /proc."""

from __future__ import annotations

import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from itertools import pairwise

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
_ALL_THREADS = 2  # CPUCLOCK_SCHED of a whole process
IMPORT_CPU_S = 0.23
"""What importing textual takes where the first picture of ``bench_cost`` takes its promise of 0.45 s."""
BUSY_BESIDE_PCT = 20.0
"""Of a core; a forgotten loop of a shell once burned one beside a whole evening of figures."""
KEPT_READS = 200
"""Of what was drawn; a read is 4 KiB at most. Nothing is copied for it beside a program whose speed is measured."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Hold what a command and its children used between two moments."""

    cpu_pct: float
    children_cpu_pct: float
    rss_mb: float
    children_rss_mb: float
    descriptors: int
    bytes_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Start:
    """Hold what a command used until its first full picture or its end."""

    cpu_s: float
    wall_s: float


def children_of(pid: int) -> list[int]:
    """Return the direct children of all threads of a process."""
    found: list[int] = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/children") as file:
                found.extend(int(one) for one in file.read().split())
        except OSError:
            continue
    return found


def find_working(pid: int) -> int:
    """Return the process that works for a tpmon that was started as ``pid``: one of the same words, or itself."""
    for kid in children_of(pid):
        with suppress(OSError):
            if _read_words(kid) == _read_words(pid):
                return kid
    return pid


def _read_words(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def list_with_children(pid: int) -> list[int]:
    return [pid, *(one for kid in children_of(pid) for one in list_with_children(kid))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process to the nanosecond, of threads that ended, too; OSError when it is gone.

    stat counts the same in ticks of 10 ms (clock_getcpuclockid(3)).
    """
    return time.clock_gettime_ns(~pid << 3 | _ALL_THREADS) / 1e9


def rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this environment as a user has it: Python may keep what it compiled."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **changes}


class Screen:
    """Run a command in a pseudo terminal of a given size and swallow what it draws."""

    def __init__(self, command: Sequence[str], width: int, height: int, env: Mapping[str, str]) -> None:
        self.started = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), environment({"TERM": "xterm-256color", **env}))
        ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.received = 0
        self._tail = deque[bytes](maxlen=KEPT_READS)

    @property
    def text(self) -> bytes:
        return b"".join(self._tail)

    def drain(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.fd], [], [], left)
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    return
                self.received += len(data)
                self._tail.append(data)

    def until(self, wanted: bytes, seconds: float) -> Start:
        """Read until a text appears; returns the CPU and wall time since the start."""
        end = time.monotonic() + seconds
        while wanted not in self.text:
            if time.monotonic() > end:
                raise TimeoutError(f"{wanted!r} did not appear: {self.text[-500:]!r}")
            self.drain(0.01)
        both = {self.pid, find_working(self.pid)}
        return Start(sum(map(cpu_seconds, both)), time.monotonic() - self.started)

    def cost_over(self, seconds: float) -> Cost:
        return cost_of(self.pid, lambda: self.drain(seconds), lambda: self.received)

    def close(self) -> int:
        try:
            os.write(self.fd, b"q")
            self.drain(0.5)
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            # It ended by itself.
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def cost_of(started: int, wait: Callable[[], object], received: Callable[[], int] = lambda: 0) -> Cost:
    """Measure the command that was started as this process, and its children, while ``wait`` does."""
    pid = find_working(started)
    kids = [*children_of(pid), *{started} - {pid}]
    before, kids_before = cpu_seconds(pid), {kid: cpu_seconds(kid) for kid in kids}
    bytes_before, start = received(), time.monotonic()
    wait()
    spent = time.monotonic() - start
    kids = [kid for kid in kids if os.path.exists(f"/proc/{kid}")]
    return Cost(
        cpu_pct=100 * (cpu_seconds(pid) - before) / spent,
        children_cpu_pct=100 * sum(cpu_seconds(kid) - kids_before[kid] for kid in kids) / spent,
        rss_mb=rss_bytes(pid) / 1e6,
        children_rss_mb=sum(rss_bytes(kid) for kid in kids) / 1e6,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        bytes_s=(received() - bytes_before) / spent,
        seconds=spent,
    )


def run_cpu_seconds(command: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    with subprocess.Popen(
        list(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(env or {})
    ) as process:
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return usage.ru_utime + usage.ru_stime


def measure_import() -> float:
    """Return the CPU seconds of starting Python and importing textual: how fast this machine is now."""
    return run_cpu_seconds([sys.executable, "-c", "import textual.app"])


def cost_in_turns(screen: Screen, seconds: float, turns: int) -> list[tuple[float, Cost]]:
    """Measure a command again and again, each time with the import of textual before and after it, as a mean.

    Neighbours of a machine come and go within seconds.
    """
    imports, costs = [measure_import()], []
    for _ in range(turns):
        costs.append(screen.cost_over(seconds))
        imports.append(measure_import())
    return [(statistics.fmean(pair), cost) for pair, cost in zip(pairwise(imports), costs, strict=True)]


def slowness(imports: Sequence[float]) -> float:
    """Return by how much this machine is slower than the one of the promises; never less than 1.

    ``imports`` are of the same minute as what is judged. The first picture, ``--help`` and a second of
    watching take nearly the same part of them, idle and beside two busy cores (docs/measured/cost.md).
    """
    return max(1.0, statistics.median(imports) / IMPORT_CPU_S)


def read_cpu_ticks() -> dict[int, tuple[str, int]]:
    """Return the name and the CPU ticks of every process that may be read."""
    ticks = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                head, _, rest = file.read().rpartition(b")")
        except OSError:  # it has just ended
            continue
        fields = rest.split()
        comm = head.partition(b"(")[2].decode(errors="replace")
        ticks[int(name)] = (comm, int(fields[11]) + int(fields[12]))
    return ticks


def read_stolen_s() -> float:
    """Return how long the hypervisor kept runnable CPUs of this machine waiting, summed over them, since boot."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / TICKS


def say_neighbours(seconds: float = 1.0) -> str:
    """Say which other processes use a fifth of a core and more now: they are part of what is measured next."""
    before, started = read_cpu_ticks(), time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - started
    busy = []
    for pid, (name, now) in read_cpu_ticks().items():
        pct = 100 * (now - before.get(pid, (name, now))[1]) / TICKS / spent
        if pct >= BUSY_BESIDE_PCT and pid != os.getpid():
            busy.append(f"{name} ({pid}) {pct:.0f} %")
    return f"beside: {', '.join(busy)}" if busy else "beside: nothing that uses a fifth of a core"
