"""Read a job's control groups once a second: where its readings are, its CPU budget, throttling, memory.

Throttling is counted where the quota is set, often above the job's own group, so every group with a quota up
the tree is read. cgroup v1 and v2 count the same under other names (Documentation/admin-guide/cgroup-v1 and
cgroup-v2.rst). What a job without its own group shares with the machine (pressure, refaults, OOM kills) is
the host's, from /proc. Affinity includes cpusets, taskset and Slurm core binding, but never the quota.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.host import BudgetBy
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.model.results.doctor import NOT_PERMITTED, point_to
from tpmon.probe.base.cgroup_tree import NOT_USED, V2, Group, JobGroups
from tpmon.probe.base.procread import PAGE_BYTES, each_process, read_or, read_text
from tpmon.probe.proc.counters import CounterRates, ProcFile

THREADS_READ = 256  # of one process, for their masks: bounds the cost of a pinned job

HIDDEN_ABOVE = "limits above this container are not visible"


@dataclass(frozen=True, slots=True)
class Quota:
    """Hold one CPU quota, in cores, and the group that sets it."""

    cores: float
    group: Group


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """Hold how many CPUs the job may use at once (an upper bound where outer groups are hidden), and why."""

    cores: Known[float]
    reason: str
    by: Applicable[BudgetBy] = NOT_APPLICABLE


def parse_cpu_max(text: str) -> float | None:
    """Parse cpu.max of v2 ("50000 100000", "max 100000") into cores, None without a quota."""
    quota, _, period = text.strip().partition(" ")
    if quota == "max":
        return None
    return int(quota) / (int(period) if period else 100_000)


def parse_cfs_quota(quota: str, period: str) -> float | None:
    """Parse cpu.cfs_quota_us and cpu.cfs_period_us of v1 into cores, None without a quota."""
    return int(quota) / int(period) if int(quota) > 0 else None


def read_quotas(group: Group) -> Iterator[Quota]:
    """Yield the quotas that bind ``group``: its own and those of every visible group above."""
    for one in group.lineage():
        try:
            if one.version == 1:
                quota, period = _read(one, "cpu.cfs_quota_us"), _read(one, "cpu.cfs_period_us")
                cores = parse_cfs_quota(quota, period)
            else:
                cores = parse_cpu_max(_read(one, "cpu.max"))
        except (FileNotFoundError, NotADirectoryError):
            # The root has no quota, nor has a v2 group without the cpu controller.
            continue
        if cores is not None:
            yield Quota(cores, one)


def _read(group: Group, name: str) -> str:
    with open(f"{group.directory}/{name}", encoding="ascii") as file:
        return file.read()


def read_quota(group: Known[Group]) -> Applicable[Quota]:
    """Find the smallest quota in view; not applicable where none is set and the root is in view."""
    if isinstance(group, Missing):
        return group
    try:
        smallest = min(read_quotas(group), key=lambda quota: quota.cores, default=None)
    except (OSError, ValueError) as error:
        return Missing(f"quota of {group.label()} not readable: {error}")
    if smallest is not None:
        return smallest
    return NOT_APPLICABLE if group.sees_root() else Missing(HIDDEN_ABOVE)


def read_affinity(
    pids: Sequence[int],
    proc: str = "/proc",
    mask_of: Callable[[int], set[int]] = os.sched_getaffinity,
    online: int | None = None,
) -> Known[int]:
    """Count the CPUs on which any thread of ``pids`` may run.

    If the main threads cannot reach every CPU, the others are read too: OMP_PROC_BIND and KMP_AFFINITY pin
    the main thread to one core and the rest of its pool to others.
    """

    def join(tids: Iterable[int]) -> set[int]:
        masks = each_process(tids, mask_of).values()  # without those that ended meanwhile
        return set[int]().union(*(mask for mask in masks if is_known(mask)))

    reachable = join(pids)
    if not reachable:
        return Missing("no affinity mask of the job could be read")
    if len(reachable) < (online or os.cpu_count() or 1):
        for pid in pids:
            names = read_or([], partial(os.listdir, f"{proc}/{pid}/task"))
            reachable |= join(map(int, names[:THREADS_READ]))
    return len(reachable)


def combine_budget(affinity: Known[int], quota: Applicable[Quota]) -> CpuBudget:
    """Take the smaller of affinity and quota and say which it was."""
    if is_known(quota) and (isinstance(affinity, Missing) or quota.cores < affinity):
        rest = affinity.reason if isinstance(affinity, Missing) else f"affinity {affinity}"
        reason = f"{_cpus(quota.cores)} by quota of {quota.group.label()} ({rest})"
        return CpuBudget(quota.cores, reason, BudgetBy.QUOTA)
    if isinstance(affinity, Missing):
        return CpuBudget(affinity, affinity.reason)
    rest = f" ({quota.reason})" if isinstance(quota, Missing) else ""
    return CpuBudget(float(affinity), f"{_cpus(affinity)} by affinity{rest}", BudgetBy.AFFINITY)


def _cpus(cores: float) -> str:
    return f"{round(cores, 2):g} CPU{'' if cores == 1 else 's'}"


def read_cpu_budget(
    pids: Sequence[int], proc: str = "/proc", mask_of: Callable[[int], set[int]] = os.sched_getaffinity
) -> CpuBudget:
    """Read min(union of affinity masks, quota up the tree from the lowest group that holds all ``pids``)."""
    group = JobGroups(pids, proc).common("cpu")
    return combine_budget(read_affinity(pids, proc, mask_of), read_quota(group))


NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as the largest page count, 2^63 cut to whole pages

_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
NO_GROUP = Missing("no control group of its own")
HOST = "host"
PRESSURES = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class Limit:
    """Hold a memory limit and the group that sets it."""

    limit_bytes: int
    group: Group


@dataclass(frozen=True, slots=True)
class Layout:
    """Hold where the readings of a job come from."""

    quotas: Known[tuple[Group, ...]]  # whose quota can throttle the job
    local: Applicable[Group]  # the job's CPU group, where a quota may be set above what is in view
    memory: Known[Group]
    limit: Applicable[Limit]
    leaves: tuple[Group, ...]  # hold processes of the job: v1 counts an OOM kill only there
    pressure: tuple[Known[str], ...]  # files in the order of PRESSURES
    pressure_source: str


def memory_group(group: Known[Group]) -> Known[Group]:
    """Find the group whose memory is counted: the nearest with the controller, never the root."""
    if isinstance(group, Missing):
        return group
    for one in group.lineage():
        if os.path.exists(f"{one.directory}/{_USAGE[one.version]}"):
            return NO_GROUP if one.is_root() else one
    return NO_GROUP


def read_limit(group: Known[Group]) -> Applicable[Limit]:
    """Find the smallest memory limit up the tree; of equal ones the outermost, which binds first."""
    if isinstance(group, Missing):
        return NOT_APPLICABLE if group in (NO_GROUP, NOT_USED) else group
    found: Limit | None = None
    for one in group.lineage():
        # The root, or a group without the controller, sets no limit.
        text = read_text(f"{one.directory}/{'memory.limit_in_bytes' if one.version == 1 else 'memory.max'}")
        limit = int(text) if text.strip() not in ("", "max") else NO_LIMIT
        if limit < NO_LIMIT and (found is None or limit <= found.limit_bytes):
            found = Limit(limit, one)
    if found is not None:
        return found
    # v1 shows limits above the view in memory.stat (hierarchical_memory_limit).
    return NOT_APPLICABLE if group.version == 1 or group.sees_root() else Missing(HIDDEN_ABOVE)


def find_pressure(groups: JobGroups, proc: str) -> tuple[tuple[Known[str], ...], str]:
    """Find the three pressure files: the job's v2 group's, or the host's where it has none."""
    unified = groups.common(V2)
    if is_known(unified) and not unified.is_root():
        return tuple(f"{unified.directory}/{name}.pressure" for name in PRESSURES), unified.label()
    files: list[Known[str]] = []
    for name in PRESSURES:
        group = groups.common("blkio" if name == "io" else name)
        if isinstance(group, Missing):
            files.append(f"{proc}/pressure/{name}" if group == NOT_USED else group)
        elif group.is_root():
            files.append(f"{proc}/pressure/{name}")
        else:
            files.append(Missing("control groups v1 have no pressure figures"))
    return tuple(files), HOST


def find_layout(groups: JobGroups, proc: str) -> Layout:
    """Find every control group file with readings of the job."""
    quotas, local = _find_quotas(groups.common("cpu"))
    memory = memory_group(groups.common("memory"))
    leaves = tuple(groups.distinct("memory")) if is_known(memory) and memory.version == 1 else ()
    pressure, source = find_pressure(groups, proc)
    return Layout(quotas, local, memory, read_limit(memory), leaves, pressure, source)


def _find_quotas(cpu: Known[Group]) -> tuple[Known[tuple[Group, ...]], Applicable[Group]]:
    if isinstance(cpu, Missing):
        return (() if cpu == NOT_USED else cpu), NOT_APPLICABLE
    try:
        quotas = tuple(quota.group for quota in read_quotas(cpu))
    except (OSError, ValueError) as error:
        return Missing(f"quota of {cpu.label()} not readable: {error}"), NOT_APPLICABLE
    return quotas, (NOT_APPLICABLE if quotas or cpu.sees_root() else cpu)


REFRESH_EVERY_NS = 10_000_000_000  # for groups, quotas and limits, which change seldom

T = TypeVar("T")

READ_BYTES = 16_384  # enough for /proc/vmstat, the longest file read here

_REASONS = {
    errno.EOPNOTSUPP: "switched off in this kernel",
    errno.ENOENT: "this kernel does not have it",
    errno.EACCES: point_to(NOT_PERMITTED, "cgroup"),
    errno.EPERM: point_to(NOT_PERMITTED, "cgroup"),
    errno.ENODEV: "the control group is gone",
}


@dataclass(frozen=True, slots=True)
class CgroupReading:
    """Hold one reading of the job's control groups; ``*_source`` names the group, or "host".

    ``used_bytes`` is usage less the page cache (active_file and inactive_file, which the kernel reclaims
    before it kills), of the group that sets the limit, else of the job's own. ``throttled_s`` sums all CPUs;
    ``oom_kills`` and ``swap_bytes`` are totals.
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
    """Parse "name number" lines (cpu.stat, memory.stat, /proc/vmstat); ValueError where one is no number."""
    fields = raw.split()
    return dict(zip(fields[::2], map(int, fields[1::2]), strict=False))


def parse_pressure_us(raw: bytes) -> int:
    """Parse the microseconds of "some" in a pressure file (accounting/psi.rst); ValueError without them."""
    for line in raw.splitlines():
        if line.startswith(b"some "):
            return int(line[line.index(b"total=") + 6 :])
    raise ValueError("pressure file has no line for some")


def _pick(stat: Known[dict[bytes, int]], *names: bytes) -> Known[int]:
    """Return the first of ``names`` that exists."""
    if isinstance(stat, Missing):
        return stat
    for name in names:
        if name in stat:
            return stat[name]
    return Missing(f"this kernel does not count {names[0].decode()}")


class CgroupReader:
    """Read the control groups of a job on descriptors that stay open."""

    def __init__(self, pids: Sequence[int], proc: str = "/proc") -> None:
        self._pids = tuple(pids)
        self._proc = proc
        self._files: dict[str, ProcFile | Missing] = {}
        self._rates = CounterRates()
        self._oom_kills_of: dict[str, int] = {}
        self._layout = find_layout(JobGroups(self._pids, proc), proc)
        self._refresh_ns: int | None = None

    def follow(self, pids: Sequence[int]) -> None:
        """Read the groups of ``pids`` from the next read on."""
        if tuple(pids) != self._pids:
            self._pids = tuple(pids)
            self._refresh_ns = 0

    def close(self) -> None:
        """Close every descriptor; the next read opens them again."""
        for file in self._files.values():
            if isinstance(file, ProcFile):
                file.close()
        self._files.clear()

    def read(self, now_ns: int) -> CgroupReading:
        """Read everything once; ``now_ns`` is CLOCK_MONOTONIC. Rates need a second call."""
        if self._refresh_ns is None:
            self._refresh_ns = now_ns + REFRESH_EVERY_NS
        elif now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + REFRESH_EVERY_NS
            self._refresh()
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

    def _refresh(self) -> None:
        groups = JobGroups(self._pids, self._proc)
        if not groups.paths:
            return  # the job ended: its last groups still show an OOM kill
        layout = find_layout(groups, self._proc)
        if layout != self._layout:
            self._layout = layout
            self.close()
        else:
            # What could not be opened may exist now.
            self._files = {path: file for path, file in self._files.items() if isinstance(file, ProcFile)}

    def _parsed(self, parse: Callable[[bytes], T], path: str) -> Known[T]:
        """Read and parse one file; a failure costs one value."""
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
        """Return throttled periods / periods, seconds per second, and the most throttled group."""
        groups = self._layout.quotas
        if isinstance(groups, Missing):
            return groups, groups, ""
        if is_known(self._layout.local):
            seconds = self._local_throttling(self._layout.local, now_ns)
            # Without the period counters of the throttling group only "not at all" is certain.
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
            # An idle group has no periods, so none was throttled.
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

    def _used(self, stat: Known[dict[bytes, int]]) -> Known[int]:
        memory, limit = self._layout.memory, self._layout.limit
        if isinstance(memory, Missing):
            return memory
        group = limit.group if is_known(limit) else memory
        if group != memory:
            stat = self._counters(f"{group.directory}/memory.stat")
        usage = self._parsed(int, f"{group.directory}/{_USAGE[group.version]}")
        # A data set that is read again is in active_file; /dev/shm is in neither, as it is swapped or stays.
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
        # v1 counts a kill only in the victim's own group; a removed group keeps its count.
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
