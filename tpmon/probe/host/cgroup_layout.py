"""Decide which control group files tell of a job: its quotas, its memory and limit, its pressure."""

from __future__ import annotations

import os

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.probe.base.cgroup_tree import NOT_USED, V2, Group, JobGroups
from tpmon.probe.host.cgroup_budget import HIDDEN_ABOVE, read_quotas

NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as the largest page count, 2^63 rounded down to a page."""

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

    quotas: Known[tuple[Group, ...]]
    """Groups whose quota can throttle the job."""
    local: Applicable[Group]
    """The job's CPU group, where no quota is in view but one may be set above the view."""
    memory: Known[Group]
    limit: Applicable[Limit]
    leaves: tuple[Group, ...]
    """Groups that hold processes of the job: v1 counts an OOM kill only there."""
    pressure: tuple[Known[str], ...]
    """Pressure files in the order of PRESSURES."""
    pressure_source: str


def memory_group(group: Known[Group]) -> Known[Group]:
    """Find the group whose memory is counted: the nearest that has the controller, never the root."""
    if isinstance(group, Missing):
        return group
    name = "memory.usage_in_bytes" if group.version == 1 else "memory.current"
    for one in group.lineage():
        if os.path.exists(f"{one.directory}/{name}"):
            return NO_GROUP if one.is_root() else one
    return NO_GROUP


def read_limit(group: Known[Group]) -> Applicable[Limit]:
    """Find the smallest memory limit up the tree; of equal ones the outermost, which binds first."""
    if isinstance(group, Missing):
        return NOT_APPLICABLE if group in (NO_GROUP, NOT_USED) else group
    found: Limit | None = None
    for one in group.lineage():
        try:
            name = "memory.limit_in_bytes" if one.version == 1 else "memory.max"
            with open(f"{one.directory}/{name}", encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            # The root, or a group without the controller, sets no limit.
            continue
        if text != "max" and int(text) < NO_LIMIT and (found is None or int(text) <= found.limit_bytes):
            found = Limit(int(text), one)
    if found is not None:
        return found
    # v1 tells of limits above the view in memory.stat (hierarchical_memory_limit).
    return NOT_APPLICABLE if group.version == 1 or group.sees_root() else Missing(HIDDEN_ABOVE)


def find_pressure(groups: JobGroups, proc: str) -> tuple[tuple[Known[str], ...], str]:
    """Find the three pressure files: the job's v2 group, the host where the job has no group."""
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
    """Find every control group file that tells of the job."""
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
