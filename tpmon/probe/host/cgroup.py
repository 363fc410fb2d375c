"""Read a job's control groups once a second: throttling, pressure, memory and its limit.

Throttling is counted where the quota is set, which is often above the job's own group, so every
group with a quota up the tree is read. cgroup v1 and v2 count the same things under other names
(Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst). What a job without a group of its own
shares with the whole machine (pressure, refaults, OOM kills) is read from /proc and said to be
the host's.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.model.results.doctor import NOT_PERMITTED, point_to
from tpmon.probe.base.cgroup_tree import NOT_USED, Group, JobGroups
from tpmon.probe.host.cgroup_budget import HIDDEN_ABOVE, CpuBudget, read_cpu_budget
from tpmon.probe.host.cgroup_layout import HOST, NO_GROUP, NO_LIMIT, Limit, find_layout
from tpmon.probe.proc.files import PAGE_BYTES, ProcFile
from tpmon.probe.proc.rates import Rates

__all__ = ["CgroupReader", "CgroupReading", "CpuBudget", "read_cpu_budget"]

LOOK_EVERY_NS = 10_000_000_000
"""How often groups, quotas and limits are looked up again; they change seldom."""

T = TypeVar("T")

READ_BYTES = 16_384
"""Holds /proc/vmstat, the longest file read here."""

_REASONS = {
    errno.EOPNOTSUPP: "switched off in this kernel",
    errno.ENOENT: "this kernel does not have it",
    errno.EACCES: point_to(NOT_PERMITTED, "cgroup"),
    errno.EPERM: point_to(NOT_PERMITTED, "cgroup"),
    errno.ENODEV: "the control group is gone",
}


@dataclass(frozen=True, slots=True)
class CgroupReading:
    """Hold one look at the job's control groups.

    ``*_source`` names the group, or "host". ``used_bytes`` is usage less the page cache (active_file and
    inactive_file, which the kernel gives back before it kills) of the group that sets the limit, else of
    the job's own: the two belong together. ``throttled_s`` counts every CPU. ``oom_kills`` and
    ``swap_bytes`` are totals.
    """

    throttled_ratio: Known[float]
    throttled_s: Known[float]
    throttled_source: str
    psi_cpu_some_pct: Known[float]
    psi_memory_some_pct: Known[float]
    psi_io_some_pct: Known[float]
    psi_source: str
    anon_bytes: Known[int]
    used_bytes: Known[int]
    limit_bytes: Applicable[int]
    limit_source: str
    oom_kills: Known[int]
    refault_bytes_s: Known[float]
    swap_bytes: Known[int]
    memory_source: str


def parse_counters(raw: bytes) -> dict[bytes, int]:
    """Parse "name number" lines (cpu.stat, memory.stat, memory.events, /proc/vmstat).

    Raises:
        ValueError: where a value is no number.
    """
    fields = raw.split()
    return dict(zip(fields[::2], map(int, fields[1::2]), strict=False))


def parse_pressure_us(raw: bytes) -> int:
    """Parse the total of the "some" line of a pressure file, microseconds (accounting/psi.rst).

    Raises:
        ValueError: when there is none.
    """
    for line in raw.splitlines():
        if line.startswith(b"some "):
            return int(line[line.index(b"total=") + 6 :])
    raise ValueError("pressure file has no line for some")


def _pick(stat: Known[dict[bytes, int]], *names: bytes) -> Known[int]:
    """Return the first of ``names`` that is counted."""
    if isinstance(stat, Missing):
        return stat
    for name in names:
        if name in stat:
            return stat[name]
    return Missing(f"this kernel does not count {names[0].decode()}")


class CgroupReader:
    """Read the control groups of a job on descriptors that stay open."""

    def __init__(self, pids: Sequence[int], proc: str = "/proc") -> None:
        """Find the lowest common groups of ``pids``; opens nothing yet."""
        self._pids = tuple(pids)
        self._proc = proc
        self._files: dict[str, ProcFile | Missing] = {}
        self._rates = Rates()
        self._oom_kills_of: dict[str, int] = {}
        self._layout = find_layout(JobGroups(self._pids, proc), proc)
        self._look_ns: int | None = None

    def follow(self, pids: Sequence[int]) -> None:
        """Take ``pids`` as the job from the next read on; does nothing when they are the same."""
        if tuple(pids) != self._pids:
            self._pids = tuple(pids)
            self._look_ns = 0

    def close(self) -> None:
        """Close every descriptor; the next read opens them again."""
        for file in self._files.values():
            if isinstance(file, ProcFile):
                file.close()
        self._files.clear()

    def read(self, now_ns: int) -> CgroupReading:
        """Read everything once; ``now_ns`` is CLOCK_MONOTONIC. Rates need a second call."""
        if self._look_ns is None:
            self._look_ns = now_ns + LOOK_EVERY_NS
        elif now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_EVERY_NS
            self._look_again()
        layout = self._layout
        ratio, seconds, throttled_source = self._throttling(now_ns)
        cpu, memory, io = (self._pressure(file, now_ns) for file in layout.pressure)
        stat = map_known(lambda group: self._counters(f"{group.directory}/memory.stat"), layout.memory)
        limit = self._limit(stat)
        host_wide = layout.memory in (NO_GROUP, NOT_USED)
        vmstat = self._counters(f"{self._proc}/vmstat") if host_wide else stat
        return CgroupReading(
            throttled_ratio=ratio,
            throttled_s=seconds,
            throttled_source=throttled_source,
            psi_cpu_some_pct=cpu,
            psi_memory_some_pct=memory,
            psi_io_some_pct=io,
            psi_source=layout.pressure_source,
            anon_bytes=_pick(stat, b"total_rss", b"anon"),
            used_bytes=self._used(stat),
            limit_bytes=limit[0],
            limit_source=limit[1],
            oom_kills=_pick(vmstat, b"oom_kill") if host_wide else self._oom_kills(),
            refault_bytes_s=self._refaults(vmstat, now_ns),
            swap_bytes=self._swap(stat),
            memory_source=layout.memory.label() if is_known(layout.memory) else HOST if host_wide else "",
        )

    def _look_again(self) -> None:
        groups = JobGroups(self._pids, self._proc)
        if not groups.found():
            # The job ended: its last groups still tell of an OOM kill.
            return
        layout = find_layout(groups, self._proc)
        if layout != self._layout:
            self._layout = layout
            self.close()
        else:
            # What could not be opened may be there now.
            self._files = {path: file for path, file in self._files.items() if isinstance(file, ProcFile)}

    def _parsed(self, parse: Callable[[bytes], T], path: str) -> Known[T]:
        """Read and parse one file; a file that cannot be read or parsed costs one value."""
        try:
            return map_known(parse, self._bytes(path))
        except ValueError as error:
            return Missing(f"{os.path.basename(path)} not understood: {error}")

    def _bytes(self, path: str) -> Known[bytes]:
        try:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = ProcFile(path, READ_BYTES)
            return file if isinstance(file, Missing) else file.read()
        except OSError as error:
            why = Missing(_REASONS.get(error.errno or 0, error.strerror or str(error)))
            if path not in self._files:
                self._files[path] = why
            return why

    def _counters(self, path: str) -> Known[dict[bytes, int]]:
        return self._parsed(parse_counters, path)

    def _throttling(self, now_ns: int) -> tuple[Known[float], Known[float], str]:
        """Return throttled periods / periods, seconds per second, and the group that throttles most."""
        groups = self._layout.quotas
        if isinstance(groups, Missing):
            return groups, groups, ""
        if is_known(self._layout.local):
            seconds = self._local_throttling(self._layout.local, now_ns)
            # Without the period counters of the group that throttles only "not at all" is certain.
            return (0.0 if seconds == 0.0 else Missing(HIDDEN_ABOVE)), seconds, self._layout.local.label()
        worst: tuple[Known[float], Known[float], str] = (0.0, 0.0, "no quota")
        for group in groups:
            stat = self._counters(f"{group.directory}/cpu.stat")
            name = group.directory
            periods = self._rates.rate(f"{name} periods", _pick(stat, b"nr_periods"), now_ns)
            throttled = self._rates.rate(f"{name} throttled", _pick(stat, b"nr_throttled"), now_ns)
            seconds = self._rates.rate(f"{name} time", _throttled_s(stat), now_ns)
            if isinstance(periods, Missing) or isinstance(throttled, Missing):
                return throttled, seconds, group.label()
            # A group that is idle has no periods, and none of them was throttled.
            ratio = min(1.0, throttled / periods) if periods > 0 else 0.0
            if worst[2] == "no quota" or (is_known(worst[0]) and ratio > worst[0]):
                worst = (ratio, seconds, group.label())
        return worst

    def _local_throttling(self, group: Group, now_ns: int) -> Known[float]:
        # cpu.stat.local (Linux 6.6) counts what quotas of groups above did to this one.
        stat = self._counters(f"{group.directory}/cpu.stat.local")
        if isinstance(stat, Missing):
            return Missing(HIDDEN_ABOVE)
        return self._rates.rate(f"{group.directory} local", _throttled_s(stat), now_ns)

    def _pressure(self, path: Known[str], now_ns: int) -> Known[float]:
        if isinstance(path, Missing):
            return path
        total = self._parsed(parse_pressure_us, path)
        return map_known(lambda us_s: min(100.0, us_s / 1e4), self._rates.rate(path, total, now_ns))

    def _usage(self, group: Group) -> Known[int]:
        name = "memory.usage_in_bytes" if group.version == 1 else "memory.current"
        return self._parsed(int, f"{group.directory}/{name}")

    def _used(self, stat: Known[dict[bytes, int]]) -> Known[int]:
        memory, limit = self._layout.memory, self._layout.limit
        if isinstance(memory, Missing):
            return memory
        group = limit.group if is_known(limit) else memory
        if group != memory:
            stat = self._counters(f"{group.directory}/memory.stat")
        usage = self._usage(group)
        # A data set that is read again is in active_file. /dev/shm is in neither: it is swapped or stays.
        idle = _pick(stat, b"total_inactive_file", b"inactive_file")
        warm = _pick(stat, b"total_active_file", b"active_file")
        if isinstance(usage, Missing):
            return usage
        if isinstance(idle, Missing) or isinstance(warm, Missing):
            return idle if isinstance(idle, Missing) else warm
        return max(0, usage - idle - warm)

    def _limit(self, stat: Known[dict[bytes, int]]) -> tuple[Applicable[int], str]:
        limit = self._layout.limit
        if is_known(stat):
            hierarchical = stat.get(b"hierarchical_memory_limit", NO_LIMIT)
            if hierarchical < (limit.limit_bytes if isinstance(limit, Limit) else NO_LIMIT):
                return hierarchical, "a group above this container"
        if isinstance(limit, Limit):
            return limit.limit_bytes, limit.group.label()
        return limit, "no control group limit" if limit is NOT_APPLICABLE else ""

    def _oom_kills(self) -> Known[int]:
        memory = self._layout.memory
        if isinstance(memory, Missing):
            return memory
        if memory.version == 2:
            return _pick(self._counters(f"{memory.directory}/memory.events"), b"oom_kill")
        # v1 counts a kill in the victim's own group only; a group that was removed keeps its count.
        for group in (memory, *self._layout.leaves):
            kills = _pick(self._counters(f"{group.directory}/memory.oom_control"), b"oom_kill")
            if is_known(kills):
                self._oom_kills_of[group.directory] = kills
            elif group.directory not in self._oom_kills_of:
                return kills
        return sum(self._oom_kills_of.values())

    def _refaults(self, stat: Known[dict[bytes, int]], now_ns: int) -> Known[float]:
        # Pages in every file (memcg_page_state_output_unit); one counter for both kinds before 5.9.
        pages = _pick(
            stat, b"total_workingset_refault_file", b"workingset_refault_file", b"workingset_refault"
        )
        return map_known(lambda pages_s: pages_s * PAGE_BYTES, self._rates.rate("refault", pages, now_ns))

    def _swap(self, stat: Known[dict[bytes, int]]) -> Known[int]:
        memory = self._layout.memory
        if is_known(memory) and memory.version == 2:
            return self._parsed(int, f"{memory.directory}/memory.swap.current")
        return _pick(stat, b"total_swap")


def _throttled_s(stat: Known[dict[bytes, int]]) -> Known[float]:
    """Return seconds throttled: nanoseconds in v1, microseconds in v2."""
    if isinstance(stat, Missing):
        return stat
    if b"throttled_time" in stat:
        return stat[b"throttled_time"] / 1e9
    return map_known(lambda us: us / 1e6, _pick(stat, b"throttled_usec"))
