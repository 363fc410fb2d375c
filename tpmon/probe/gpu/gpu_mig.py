"""Read the MIG instances of a card: memory, processes, and SM activity by GPM.

NVML utilisation does not exist on a MIG-enabled card. Handles go stale when instances are
rebuilt, so they are fetched anew with the slow tier.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.gpu import MigInstance
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.probe.gpu.calls import Calls
from tpmon.probe.gpu.gpm import GpmSampler
from tpmon.probe.gpu.processes import ProcessList
from tpmon.probe.gpu.wire import ProcessReading


@dataclass(slots=True)
class _Instance:
    handle: Any
    shown: MigInstance
    gpm: GpmSampler


class MigReader:
    """Keep the instances of one MIG-enabled card."""

    def __init__(self, calls: Calls, parent: Any) -> None:
        """Take the handle of the whole card; ``refresh`` finds its instances."""
        self._calls = calls
        self._parent = parent
        self._instances: list[_Instance] = []

    def refresh(self) -> None:
        """Find the instances anew and read their memory."""
        known = {one.shown.uuid: one for one in self._instances}
        count = self._calls.ask("nvmlDeviceGetMaxMigDeviceCount", self._parent)
        found: list[_Instance] = []
        for place in range(count if is_known(count) else 0):
            handle = self._calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._parent, place)
            # Places without an instance answer NOT_FOUND.
            if is_known(handle):
                one = self._describe(handle)
                if one is not None:
                    old = known.pop(one.shown.uuid, None)
                    found.append(replace(one, gpm=old.gpm) if old else one)
        for gone in known.values():
            gone.gpm.close()
        self._instances = found

    def read_instances(self, now_ns: int) -> tuple[MigInstance, ...]:
        """Return the instances with the SM activity since the last call."""
        return tuple(replace(one.shown, sm_active_pct=_sm_active(one.gpm, now_ns)) for one in self._instances)

    def read_processes(self, lists: ProcessList) -> Known[tuple[ProcessReading, ...]]:
        """List the processes of the instances that may be read; the whole card would want privileges."""
        found: list[ProcessReading] = []
        refused: list[Missing] = []
        for one in self._instances:
            listed = lists.read(one.handle, with_busy=False)
            pids = map_known(lambda some: tuple(sorted(process.pid for process in some)), listed)
            one.shown = replace(one.shown, pids=pids)
            if isinstance(listed, Missing):
                refused.append(listed)
            else:
                found.extend(listed)
        return refused[0] if refused and len(refused) == len(self._instances) else tuple(found)

    def close(self) -> None:
        """Free the driver's samples of all instances."""
        for one in self._instances:
            one.gpm.close()
        self._instances = []

    def _describe(self, handle: Any) -> _Instance | None:
        uuid = self._calls.ask("nvmlDeviceGetUUID", handle, kind=3)
        instance = self._calls.ask("nvmlDeviceGetGpuInstanceId", handle)
        if isinstance(uuid, Missing) or isinstance(instance, Missing):
            # Rebuilt while we looked; the next refresh finds it.
            return None
        memory = self._calls.ask("nvmlDeviceGetMemoryInfo", handle, kind=3)
        shown = MigInstance(
            uuid=str(uuid),
            gpu_instance=int(instance),
            memory_used_bytes=map_known(lambda info: int(info.used), memory),
            memory_total_bytes=map_known(lambda info: int(info.total), memory),
            sm_active_pct=Missing("not read yet"),
        )
        return _Instance(handle, shown, GpmSampler(self._calls, self._parent, shown.gpu_instance))


def _sm_active(gpm: GpmSampler, now_ns: int) -> Known[float]:
    metrics = gpm.read(now_ns)
    return metrics if isinstance(metrics, Missing) else metrics.sm_active_pct
