"""Read one NVIDIA card through NVML, in tiers: each second, every 10 s, every 30 s; the first tier first.

The pynvml module comes as an argument, so that tests pass a small fake. A card is asked about 15 questions a
second; blocking calls (PCIe throughput: 20 ms each) are never used.

GPM needs neither root nor DCGM and does not collide with CUPTI. A metric is the difference of two samples of
one card or MIG instance, at least 100 ms apart (nvml.h). A MIG-enabled card has no NVML utilisation. Handles
go stale when instances are rebuilt, so they are fetched anew.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.gpu import NO_NVLINK, MigInstance
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.probe.gpu.bounds import SHARED, bound
from tpmon.probe.gpu.nvml_queries import (
    NO_PERMISSION,
    NOTHING_STUCK,
    UNSUPPORTED,
    Calls,
    Clock,
    Counted,
    ProcessList,
    Stuck,
    describe_code,
    to_float,
    to_int,
)
from tpmon.probe.gpu.wire import (
    Busy,
    CardIdentity,
    CardLine,
    CardProcessReading,
    Counter,
    Counters,
    Fast,
    Gpm,
    Health,
    Slow,
)

T = TypeVar("T")

MIN_SPAN_S = 0.1
MAX_SPAN_S = 5.0  # a longer gap mixes too much into one mean: sample anew (nvidia_gpu_exporter#466)

# nvml.h, nvmlGpmMetricId_t: SM active, occupancy, any tensor, DRAM; PCIe and NVLink in MiB/s.
_METRICS = (2, 3, 5, 10, 20, 21, 61, 60)
# nvmlGpmMetric_t: id, return code, value, and three pointers to names.
_METRIC = struct.Struct("@4xId3P")
_PERCENT_METRICS = 4
_MIB = 1 << 20
# Cycle ratios may round a little over 100.
_HIGHEST_PCT = 105.0


class GpmSampler:
    """Keep two GPM samples of one card or one of its MIG instances (``instance``), and difference them."""

    def __init__(self, calls: Calls, handle: Any, instance: int | None = None) -> None:
        self._calls = calls
        self._handle = handle
        self._instance = instance
        self._off: Missing | None = None
        self._samples: list[Any] = []
        self._request: Any = None
        self._old_ns = 0
        self._last: Known[Gpm] = Missing("first GPM sample")

    def read(self, now_ns: int) -> Known[Gpm]:
        """Take a sample and return the metrics since the last one; Missing at the first.

        A reading that follows too soon, as after a late one, takes no sample: it returns the last metrics.
        """
        if self._off is not None:
            return self._off
        if not self._samples:
            failed = self._open()
            if failed is not None:
                return failed
        span_s = (now_ns - self._old_ns) / 1e9
        if self._old_ns and span_s < MIN_SPAN_S:
            return self._last
        self._last = self._sample(now_ns, span_s)
        return self._last

    def close(self) -> None:
        """Free the driver's samples."""
        for sample in self._samples:
            self._calls.ask("nvmlGpmSampleFree", sample)
        self._samples = []

    def _sample(self, now_ns: int, span_s: float) -> Known[Gpm]:
        new = self._take(self._samples[1])
        if isinstance(new, Missing):
            self._old_ns = 0
            return new
        self._samples.reverse()
        first, self._old_ns = self._old_ns == 0, now_ns
        if first or span_s > MAX_SPAN_S:
            return Missing("first GPM sample" if first else "GPM sampled again after a gap")
        return self._difference()

    def _open(self) -> Missing | None:
        support = self._calls.ask("nvmlGpmQueryDeviceSupport", self._handle)
        if isinstance(support, Missing):
            if support.reason == describe_code(NO_PERMISSION):
                self._off = support
            return support
        if not support.isSupportedDevice:
            self._off = Missing("no GPM on this card (Hopper and newer have it)")
            return self._off
        for _ in range(2):
            sample = self._calls.ask("nvmlGpmSampleAlloc")
            if isinstance(sample, Missing):
                self.close()
                return sample
            self._samples.append(sample)
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
        # At once: each access to a pynvml structure costs 0.5 us.
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
            # Slots without an instance answer NOT_FOUND.
            if is_known(handle):
                one = self._describe(handle)
                if one is not None:
                    old = known.pop(one.shown.uuid, None)
                    found.append(replace(one, gpm=old.gpm) if old else one)
        for gone in known.values():
            gone.gpm.close()
        self._instances = found

    def read_instances(self, now_ns: int) -> tuple[MigInstance, ...]:
        """Return the instances with their SM activity since the last call."""
        told = ((one.shown, one.gpm.read(now_ns)) for one in self._instances)
        return tuple(
            replace(shown, sm_active_pct=gpm.sm_active_pct if is_known(gpm) else gpm) for shown, gpm in told
        )

    def read_processes(self, lists: ProcessList) -> Known[tuple[CardProcessReading, ...]]:
        """List the processes of the readable instances; listing the whole card needs privileges."""
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
            # Rebuilt meanwhile; the next refresh finds it.
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


SLOW_S = 10.0
HEALTH_S = 30.0
FAST_S = 1.0
IDLE_S = 10.0  # an unused card is asked so rarely: polling keeps a laptop's card awake
CLOSED_S = 30.0  # until a card that is lost or may not be opened is tried again

LOADED_PCT = 50.0
"""SM % from which the PCIe link is read, as an idle card lowers it on purpose. ``rules_link.LINK_LOAD_PCT``
judges from the same load on."""
NOT_LOADED = Missing("not read under load yet")

REASON_IDLE = 0x1
MOST_REASONS = (1 << 31) - 1  # all bits at once are a value that nobody set

_IDLE_PCT = 5
_BUSY_PCT = 80
_FIRST_SPAN_US = 1_000_000  # the first read of the sample buffer returns 10 s; only its newest second counts

_SAMPLES_GPU, _SAMPLES_MEMORY = 1, 2
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_SENSOR_GPU = 0
_THRESHOLD_SLOWDOWN = 1
_UNCORRECTED, _VOLATILE = 1, 0
_POLICY_POWER, _POLICY_THERMAL = 0, 1
_MEMORY_V2 = 0x02000028
_ALL_LINKS = 0xFFFFFFFF
_KIB = 1024
_BUS_PCIE = 2  # NVML_BUS_TYPE_PCIE

# nvml.h field ids, in the order of Counters, then the memory temperature.
_FIELDS = tuple((field, 0) for field in (83, 74, 75, 269, 270, 271, 76, 77, 79, 197, 198))
_MEMORY_TEMPERATURE = (82, 0)
_LINK_COUNT = (91, 0)
_LINK_DATA_KIB = ((138, _ALL_LINKS), (139, _ALL_LINKS))
_LINK_BYTES = ((202, _ALL_LINKS), (204, _ALL_LINKS))
_RECOVERY_ACTION = (230, 0)


def measure_busy(values: Sequence[int]) -> Busy:
    """Reduce utilisation samples (percent, at least one) to their mean and the shares of both ends."""
    count = len(values)
    return Busy(
        mean_pct=sum(values) / count,
        samples=count,
        idle_ratio=sum(value <= _IDLE_PCT for value in values) / count,
        busy_ratio=sum(value >= _BUSY_PCT for value in values) / count,
    )


def _read_violation(status: Any) -> tuple[int, int]:
    return to_int(status.violationTime), to_int(status.referenceTime)


_OLDER_CALLS: tuple[tuple[Counter, str, tuple[int, ...], Callable[[Any], tuple[int, int]]], ...] = (
    (Counter.ENERGY, "nvmlDeviceGetTotalEnergyConsumption", (), lambda energy: (to_int(energy), 0)),
    (Counter.POWER_CAP, "nvmlDeviceGetViolationStatus", (_POLICY_POWER,), _read_violation),
    (Counter.THERMAL, "nvmlDeviceGetViolationStatus", (_POLICY_THERMAL,), _read_violation),
)
"""Read counters from drivers without their field: value, and stamp or 0."""


class CardReader:
    """Read one card. Owned by one thread; a call that hangs holds up that thread alone."""

    def __init__(
        self, nvml: Any, index: int, clock: Clock = time.monotonic_ns, stuck: Stuck = NOTHING_STUCK
    ) -> None:
        """Call nothing until ``read``, and never what is ``stuck``; ``index`` is NVML's."""
        self.calls = Calls(nvml, clock, stuck)
        self._clock = clock
        self.index = index
        self.handle: Any = None
        self.uuid = ""
        self._processes = ProcessList(self.calls)
        self._gpm: GpmSampler | None = None
        self._mig: MigReader | None = None
        self._identity: CardIdentity | None = None
        self._has_links: bool | None = None
        self._link: tuple[Known[int], Known[int]] = (NOT_LOADED, NOT_LOADED)
        self._link_idle = False
        self._seen_us = {_SAMPLES_GPU: 0, _SAMPLES_MEMORY: 0}
        self._slow_due_ns = 0
        self._health_due_ns = 0

    def read(self) -> CardLine:
        """Read what is due; of a card that cannot be opened, the line says why."""
        now_ns = self._clock()
        health_due = now_ns >= self._health_due_ns
        self.calls.start_round(retry_silent=health_due)
        if self.handle is None:
            failed = self._open()
            if failed is not None:
                return self._blank_line(now_ns, failed.reason)
        elif not self.uuid and health_due:
            self.uuid = self._read_uuid(self.handle)
        fast = self._read_fast(now_ns)
        slow: Applicable[Slow] = NOT_APPLICABLE
        idle = is_known(fast.busy) and fast.busy.mean_pct < LOADED_PCT
        slow_due = now_ns >= self._slow_due_ns
        if slow_due or (not idle and self._link_idle):
            slow = self._read_slow()
            self._slow_due_ns = now_ns + int(SLOW_S * 1e9) if slow_due else self._slow_due_ns
            self._link_idle = idle
            if not idle:
                self._link = (slow.pcie_generation, slow.pcie_width)
            slow = replace(slow, pcie_generation=self._link[0], pcie_width=self._link[1])
        fast = self._add_users(fast)
        lost = self.calls.lost_reason(fast.is_blank)
        if lost:
            # A lost card's handle stays dead; if the card comes back it needs a new one.
            self.handle = None
            return self._blank_line(now_ns, lost)
        health: Applicable[Health] = NOT_APPLICABLE
        identity: Applicable[CardIdentity] = NOT_APPLICABLE
        if health_due:
            health = self._read_health()
            identity = self._identity = self._read_identity()
            self._health_due_ns = now_ns + int(HEALTH_S * 1e9)
        next_s = IDLE_S if fast.processes == () and fast.reasons == REASON_IDLE else FAST_S
        return CardLine(self.index, self.uuid, now_ns, next_s, NOT_APPLICABLE, fast, slow, health, identity)

    def close(self) -> None:
        """Free what the driver holds for this reader; the next reading opens the card anew."""
        if self._gpm is not None:
            self._gpm.close()
        self.handle = None

    def _open(self) -> Missing | None:
        handle = self.calls.ask("nvmlDeviceGetHandleByIndex", self.index)
        if isinstance(handle, Missing):
            return handle
        self.handle = handle
        self.uuid = self._read_uuid(handle) or self.uuid
        self._gpm = GpmSampler(self.calls, handle)
        self._mig = self._has_links = None
        self._slow_due_ns = self._health_due_ns = 0
        return None

    def _read_uuid(self, handle: Any) -> str:
        """Return the UUID, "" where it is refused: the card then goes by its index."""
        uuid = self.calls.ask("nvmlDeviceGetUUID", handle)
        return str(uuid) if is_known(uuid) else ""

    def _blank_line(self, now_ns: int, reason: str) -> CardLine:
        lost = self.calls.lost_reason(is_blank=True) or NOT_APPLICABLE
        identity = self._identity or NOT_APPLICABLE
        no, fast = NOT_APPLICABLE, blank_fast(reason)
        return CardLine(self.index, self.uuid, now_ns, CLOSED_S, lost, fast, no, no, identity)

    def _number(self, name: str, *args: Any, kind: int = 0, scale: float = 1.0) -> Known[float]:
        answer = self.calls.ask(name, self.handle, *args, kind=kind)
        return self._checked(answer, lambda value: to_float(value) * scale)

    def _read_engine(self, name: str) -> Known[float]:
        """Return the use of a decoding engine in percent; the answer is a pair with its sampling period."""
        return self._checked(self.calls.ask(name, self.handle), lambda pair: to_float(pair[0]))

    def _whole(self, name: str, *args: Any) -> Known[int]:
        return self._checked(self.calls.ask(name, self.handle, *args), to_int)

    def _checked(self, answer: Known[Any], convert: Any) -> Known[Any]:
        if isinstance(answer, Missing):
            return answer
        try:
            return convert(answer)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            return Missing(f"unexpected answer: {error}")

    def _read_fast(self, now_ns: int) -> Fast:
        busy = self._read_busy(_SAMPLES_GPU)
        memory_busy = self._read_busy(_SAMPLES_MEMORY)
        used, total = self._read_memory()
        counters, memory_temperature = self._read_counters(now_ns)
        # The same bits; drivers before 535 have the second name.
        events, throttle = (f"nvmlDeviceGetCurrentClocks{what}Reasons" for what in ("Event", "Throttle"))
        reasons = self._either(self._whole, events, throttle)
        return replace(
            blank_fast("not read yet"),
            busy=busy,
            memory_busy_pct=map_known(lambda value: value.mean_pct, memory_busy),
            decoder_pct=self._read_engine("nvmlDeviceGetDecoderUtilization"),
            jpeg_pct=self._read_engine("nvmlDeviceGetJpgUtilization"),
            power_w=self._number("nvmlDeviceGetPowerUsage", scale=1e-3),
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", _CLOCK_SM, kind=_CLOCK_SM),
            # CUDA 14 drops the first call.
            temperature_c=self._either(
                self._number, "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV", _SENSOR_GPU
            ),
            memory_temperature_c=map_known(float, memory_temperature),
            reasons=bound(reasons, "as reasons", 0, MOST_REASONS),
            counters=counters,
            memory_used_bytes=used,
            memory_total_bytes=total,
        )

    def _add_users(self, fast: Fast) -> Fast:
        """Add who uses the card, and its GPM, which must not delay what the card says each second."""
        instances: tuple[MigInstance, ...] = ()
        if self._mig is None:
            processes = self._processes.read(self.handle, with_busy=True)
        else:
            processes = self._mig.read_processes(self._processes)
            instances = self._mig.read_instances(self._clock())
        gpm = self._gpm.read(self._clock()) if self._gpm else fast.gpm
        return replace(fast, gpm=gpm, processes=processes, instances=instances)

    def _read_busy(self, kind: int) -> Known[Busy]:
        since_us = self._seen_us[kind]
        answer = self.calls.ask("nvmlDeviceGetSamples", self.handle, kind, since_us, kind=kind)
        pairs: list[tuple[int, int]] = []
        if is_known(answer):
            # Values other than percents are unfilled slots.
            read = [(one.timeStamp, one.sampleValue.uiVal) for one in answer[1]]
            pairs = [pair for pair in read if pair[0] > since_us and pair[1] <= 100]
        if not pairs:
            # Empty or NOT_FOUND when idle; NOT_SUPPORTED on some cards.
            return self._read_busy_once(kind, answer)
        newest_us = max(stamp for stamp, _ in pairs)
        self._seen_us[kind] = newest_us
        if not since_us:
            pairs = [pair for pair in pairs if pair[0] > newest_us - _FIRST_SPAN_US]
        return measure_busy([value for _, value in pairs])

    def _read_busy_once(self, kind: int, samples: Known[Any]) -> Known[Busy]:
        rates = self.calls.ask("nvmlDeviceGetUtilizationRates", self.handle)
        if isinstance(rates, Missing):
            return samples if isinstance(samples, Missing) else rates
        value = self._checked(rates, lambda r: to_float(r.gpu if kind == _SAMPLES_GPU else r.memory))
        one_shot = Missing("a one-shot value has no distribution")
        return map_known(lambda pct: Busy(pct, 0, one_shot, one_shot), value)

    def _read_memory(self) -> tuple[Known[int], Known[int]]:
        # Version 1 counts the driver's own reserve as used (gpustat#141).
        answer = self.calls.ask("nvmlDeviceGetMemoryInfo", self.handle, _MEMORY_V2, kind=2)
        if isinstance(answer, Missing):
            answer = self.calls.ask("nvmlDeviceGetMemoryInfo", self.handle, kind=1)
        total = self._checked(answer, lambda info: to_int(info.total))
        if total in (0, UNSUPPORTED):
            return SHARED, SHARED
        return self._checked(answer, lambda info: to_int(info.used)), total

    def _read_counters(self, now_ns: int) -> tuple[Counters, Known[int]]:
        if self._has_links is None:
            links, _ = self.calls.ask_fields(self.handle, [_LINK_COUNT])[0]
            self._has_links = is_known(links) and links > 0
        links_wanted = (*_LINK_DATA_KIB, *_LINK_BYTES) if self._has_links else ()
        *values, memory = self.calls.ask_fields(self.handle, [*_FIELDS, *links_wanted, _MEMORY_TEMPERATURE])
        counted, of_links = values[: len(_FIELDS)], values[len(_FIELDS) :]
        for counter, name, args, read in _OLDER_CALLS:
            if isinstance(counted[counter][0], Missing):
                counted[counter] = self._count(name, args, read)
        counted += [(NO_NVLINK, memory[1])] * 2
        for place, ((kib, at_ns), in_bytes) in enumerate(zip(of_links[:2], of_links[2:], strict=True)):
            counted[Counter.NVLINK_TX + place] = (kib * _KIB, at_ns) if is_known(kib) else in_bytes
        after_us = tuple((at_ns - now_ns) // 1000 for _, at_ns in counted)
        return Counters(tuple(value for value, _ in counted), after_us), memory[0]

    def _count(self, name: str, args: tuple[int, ...], read: Callable[[Any], tuple[int, int]]) -> Counted:
        both = self._checked(self.calls.ask(name, self.handle, *args, kind=sum(args)), read)
        return (both, 0) if isinstance(both, Missing) else (both[0], self.calls.place(both[1]))

    def _either(self, read: Callable[..., Known[T]], name: str, other: str, *args: Any) -> Known[T]:
        """Read by the first name, else by the other drivers' name; the reason is that of the first."""
        first = read(name, *args)
        if is_known(first):
            return first
        second = read(other, *args)
        return second if is_known(second) else first

    def _read_slow(self) -> Slow:
        mode = self.calls.ask("nvmlDeviceGetMigMode", self.handle)
        mig: Known[bool] = self._checked(mode, lambda pair: to_int(pair[0]) != 0)
        if mig is True:
            self._mig = self._mig or MigReader(self.calls, self.handle)
            self._mig.refresh()
        elif self._mig is not None:
            self._mig.close()
            self._mig = None
        return Slow(
            power_limit_w=self._number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY, kind=_CLOCK_MEMORY),
            margin_c=self._number("nvmlDeviceGetMarginTemperature"),
            pcie_generation=self._whole("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=self._whole("nvmlDeviceGetCurrPcieLinkWidth"),
            mig=mig,
        )

    def _read_health(self) -> Health:
        rows = self.calls.ask("nvmlDeviceGetRemappedRows", self.handle)
        action, _ = self.calls.ask_fields(self.handle, [_RECOVERY_ACTION])[0]
        return Health(
            ecc_uncorrected=self._whole("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            remapped_rows_pending=self._checked(rows, lambda row: to_int(row[2]) != 0),
            remapped_rows_failed=self._checked(rows, lambda row: to_int(row[3]) != 0),
            recovery_action=action,
        )

    def _read_identity(self) -> CardIdentity:
        return CardIdentity(
            name=self._checked(self.calls.ask("nvmlDeviceGetName", self.handle), str),
            minor=self._whole("nvmlDeviceGetMinorNumber"),
            sm_clock_max_mhz=self._number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM, kind=_CLOCK_SM),
            memory_clock_max_mhz=self._number("nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY, kind=_CLOCK_MEMORY),
            pcie_generation_max=self._whole("nvmlDeviceGetMaxPcieLinkGeneration"),
            pcie_width_max=self._whole("nvmlDeviceGetMaxPcieLinkWidth"),
            slowdown_c=self._number("nvmlDeviceGetTemperatureThreshold", _THRESHOLD_SLOWDOWN),
            is_pcie=map_known(lambda bus: bus == _BUS_PCIE, self._whole("nvmlDeviceGetBusType")),
        )


def blank_fast(reason: str) -> Fast:
    """Return a reading in which nothing was read."""
    no = Missing(reason)
    values: dict[str, Any] = {field.name: no for field in fields(Fast)}
    counters = Counters((no,) * len(Counter), (0,) * len(Counter))
    return Fast(**values | {"counters": counters, "instances": ()})
