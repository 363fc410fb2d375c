"""Read GPM metrics and MIG instances of a card.

GPM needs neither root nor DCGM and does not collide with CUPTI. A metric is the difference of
two samples of one card or MIG instance; nvml.h wants at least 100 ms between them.

NVML utilisation does not exist on a MIG-enabled card. Handles go stale when instances are
rebuilt, so they are fetched anew with the slow tier.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.gpu import MigInstance
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.probe.gpu.calls import NO_PERMISSION, Calls, describe_code
from tpmon.probe.gpu.processes import ProcessList
from tpmon.probe.gpu.wire import CardProcessReading, Gpm

MIN_SPAN_S = 0.1
MAX_SPAN_S = 5.0
"""A longer gap mixes too much into one mean; sample anew (nvidia_gpu_exporter#466)."""

# nvml.h, nvmlGpmMetricId_t: SM active, occupancy, any tensor, DRAM; PCIe and NVLink in MiB/s.
_METRICS = (2, 3, 5, 10, 20, 21, 61, 60)
# nvmlGpmMetric_t: id, return code, value, and three pointers to names.
_METRIC = struct.Struct("@4xId3P")
_PERCENT_METRICS = 4
_MIB = 1 << 20
# Cycle ratios may round a little over 100.
_HIGHEST_PCT = 105.0


class GpmSampler:
    """Keep two GPM samples of one card, or of one of its MIG instances, and difference them."""

    def __init__(self, calls: Calls, handle: Any, instance: int | None = None) -> None:
        """Take the card's handle; with ``instance``, its GPU instance id."""
        self._calls = calls
        self._handle = handle
        self._instance = instance
        self._off: Missing | None = None
        self._samples: list[Any] = []
        self._request: Any = None
        self._old_ns = 0

    def read(self, now_ns: int) -> Known[Gpm]:
        """Take a sample and return the metrics since the last one; the first returns Missing."""
        if self._off is not None:
            return self._off
        if not self._samples:
            failed = self._open()
            if failed is not None:
                return failed
        span_s = (now_ns - self._old_ns) / 1e9
        if self._old_ns and span_s < MIN_SPAN_S:
            return Missing("GPM samples lie too close together")
        new = self._take(self._samples[1])
        if isinstance(new, Missing):
            self._old_ns = 0
            return new
        self._samples.reverse()
        first, self._old_ns = self._old_ns == 0, now_ns
        if first or span_s > MAX_SPAN_S:
            return Missing("first GPM sample" if first else "GPM sampled again after a gap")
        return self._difference()

    def close(self) -> None:
        """Free the driver's samples."""
        for sample in self._samples:
            self._calls.ask("nvmlGpmSampleFree", sample)
        self._samples = []

    def _open(self) -> Missing | None:
        support = self._calls.ask("nvmlGpmQueryDeviceSupport", self._handle)
        if isinstance(support, Missing):
            if support.reason == describe_code(NO_PERMISSION):
                self._off = support
            return support
        if not support.isSupportedDevice:
            self._off = Missing("no GPM on this card (Hopper and newer have it)")
            return self._off
        samples: list[Any] = []
        for _ in range(2):
            sample = self._calls.ask("nvmlGpmSampleAlloc")
            if isinstance(sample, Missing):
                for one in samples:
                    self._calls.ask("nvmlGpmSampleFree", one)
                return sample
            samples.append(sample)
        self._samples = samples
        # 19 KB, so it is made once.
        request = self._request = self._calls.nvml.c_nvmlGpmMetricsGet_t()
        request.version = 1
        request.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS):
            request.metrics[place].metricId = metric
        return None

    def _take(self, sample: Any) -> Known[Any]:
        if self._instance is None:
            return self._calls.ask("nvmlGpmSampleGet", self._handle, sample)
        return self._calls.ask("nvmlGpmMigSampleGet", self._handle, self._instance, sample)

    def _difference(self) -> Known[Gpm]:
        request = self._request
        request.sample1 = self._samples[1]
        request.sample2 = self._samples[0]
        answer = self._calls.ask("nvmlGpmMetricsGet", request)
        if isinstance(answer, Missing):
            return answer
        # At once: each look into a pynvml structure costs 0.5 us.
        raw = _METRIC.iter_unpack(memoryview(request.metrics).cast("B")[: len(_METRICS) * _METRIC.size])
        return Gpm(*(_value_of(code, value, place) for place, (code, value, *_) in enumerate(raw)))


def _value_of(code: int, value: float, place: int) -> Known[float]:
    if code != 0:
        return Missing(describe_code(code))
    if not math.isfinite(value) or value < 0:
        return Missing("GPM gave no number")
    if place >= _PERCENT_METRICS:
        return value * _MIB
    return min(value, 100.0) if value <= _HIGHEST_PCT else Missing(f"GPM gave {value:.0f} %")


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

    def read_processes(self, lists: ProcessList) -> Known[tuple[CardProcessReading, ...]]:
        """List the processes of the instances that may be read; the whole card would want privileges."""
        found: list[CardProcessReading] = []
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
