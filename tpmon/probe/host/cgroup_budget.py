"""Tell how many CPUs the job may use: its affinity masks and the CPU quotas up the tree.

Affinity already includes cpusets, taskset and Slurm core binding; torch sees it too, but never
the quota, which is why both are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.probe.base.cgroup_tree import Group, JobGroups

THREADS_READ = 256
"""Threads of one process whose mask is read: bounds the cost of a pinned job."""

HIDDEN_ABOVE = "limits above this container are not visible"


@dataclass(frozen=True, slots=True)
class Quota:
    """Hold one CPU quota, in cores, and the group that sets it."""

    cores: float
    group: Group


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """Hold the CPUs that the job may use at once, and which limit says so.

    In a container whose outer groups are not in view ``cores`` is an upper bound; ``reason``
    then says so.
    """

    cores: Known[float]
    reason: str


def parse_cpu_max(text: str) -> float | None:
    """Parse cpu.max of cgroup v2 ("50000 100000", "max 100000") into cores, None without a quota.

    Raises:
        ValueError: when it is neither.
    """
    quota, _, period = text.strip().partition(" ")
    if quota == "max":
        return None
    return int(quota) / (int(period) if period else 100_000)


def parse_cfs_quota(quota: str, period: str) -> float | None:
    """Parse cpu.cfs_quota_us and cpu.cfs_period_us of cgroup v1 into cores, None without a quota.

    Raises:
        ValueError: when they are no numbers.
    """
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

    Where the main threads cannot reach every CPU the other threads are asked too: OMP_PROC_BIND
    and KMP_AFFINITY pin the main thread to one core and the rest of its pool to others.
    """
    reachable: set[int] = set()
    for pid in pids:
        reachable |= _mask(pid, mask_of)
    if not reachable:
        return Missing("no affinity mask of the job could be read")
    if len(reachable) < (online or os.cpu_count() or 1):
        for pid in pids:
            for tid in _threads(pid, proc)[:THREADS_READ]:
                reachable |= _mask(tid, mask_of)
    return len(reachable)


def _mask(tid: int, mask_of: Callable[[int], set[int]]) -> set[int]:
    try:
        return mask_of(tid)
    except OSError:
        # Ended since it was listed: it can run nowhere.
        return set()


def _threads(pid: int, proc: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"{proc}/{pid}/task")]
    except OSError:
        return []


def combine_budget(affinity: Known[int], quota: Applicable[Quota]) -> CpuBudget:
    """Take the smaller of affinity and quota and say which it was."""
    if is_known(quota) and (isinstance(affinity, Missing) or quota.cores < affinity):
        rest = affinity.reason if isinstance(affinity, Missing) else f"affinity {affinity}"
        return CpuBudget(quota.cores, f"{_cpus(quota.cores)} by quota of {quota.group.label()} ({rest})")
    if isinstance(affinity, Missing):
        return CpuBudget(affinity, affinity.reason)
    rest = f" ({quota.reason})" if isinstance(quota, Missing) else ""
    return CpuBudget(float(affinity), f"{_cpus(affinity)} by affinity{rest}")


def _cpus(cores: float) -> str:
    return f"{round(cores, 2):g} CPU{'' if cores == 1 else 's'}"


def read_cpu_budget(
    pids: Sequence[int], proc: str = "/proc", mask_of: Callable[[int], set[int]] = os.sched_getaffinity
) -> CpuBudget:
    """Read the CPU budget of the job: min(|union of affinity masks|, quota up the tree).

    The quota is that of the lowest control group that holds all ``pids`` and of those above it.
    """
    group = JobGroups(pids, proc).common("cpu")
    return combine_budget(read_affinity(pids, proc, mask_of), read_quota(group))
