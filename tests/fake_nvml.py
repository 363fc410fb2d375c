"""A small stand-in for the pynvml module: real structures and error classes, invented cards, read by a clock.

Used as the argument of the reader and of the child's main; nothing of tpmon imports it. A test sets the clock.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from tpmon.probe.gpu.nvml import CardReader
from tpmon.probe.gpu.wire import CardLine

SECOND_US = 1_000_000


@dataclass
class FakeCard:
    """The state of one card; tests change it between readings."""

    uuid: str = "GPU-0000"
    name: str = "NVIDIA H100 80GB HBM3"
    minor: int = 0
    bus: int = 2
    samples: list[tuple[int, int]] = field(default_factory=lambda: [(10 * SECOND_US, 50)])
    memory_samples: list[tuple[int, int]] = field(default_factory=lambda: [(10 * SECOND_US, 20)])
    used: Any = 30 << 30
    total: int = 80 << 30
    reasons: int = 0
    fields: dict[int, int] = field(
        default_factory=lambda: {
            **dict.fromkeys((74, 75, 76, 77, 79, 269, 270, 271, 197, 198, 91, 230, 138, 139, 202, 204), 0),
            83: 1_000_000,
            82: 70,
        }
    )
    field_errors: dict[int, int] = field(default_factory=dict)
    narrow_fields: frozenset[int] = frozenset()
    processes: list[tuple[int, Any]] = field(default_factory=lambda: [(4242, 20 << 30)])
    busy_rows: list[tuple[int, int, int]] = field(default_factory=lambda: [(4242, 10 * SECOND_US, 40)])
    gpm: dict[int, float] | None = field(
        default_factory=lambda: {2: 91.0, 3: 24.0, 5: 28.0, 10: 20.0, 20: 1.0, 21: 2.0, 61: 3.0, 60: 4.0}
    )
    mig: int = 0
    mig_devices: list[FakeCard] = field(default_factory=list)
    instance: int = 0


class FakeNvml:
    """Answers like pynvml for the names that tpmon uses.

    ``failures`` maps a name to an NVML code, ``absent`` holds names that an old nvidia-ml-py does
    not have, ``hang`` maps a name to the card indices on which the call never returns.
    """

    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815
    NVMLError = pynvml.NVMLError

    def __init__(self, *cards: FakeCard, failures: dict[str, int] | None = None) -> None:
        self.cards = list(cards) or [FakeCard()]
        self.failures = failures or {}
        self.absent: set[str] = set()
        self.hang: dict[str, set[int]] = {}
        self.calls: list[str] = []
        self.symbols: dict[str, Any] = {"nvmlDeviceGetRunningProcessDetailList": None}
        self.xids: list[tuple[FakeCard, int]] = []
        self.registered: list[FakeCard] = []
        self.guards: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name) if not name.startswith("nvml") else None
        if found is not None:
            return found
        if name in self.absent:
            raise AttributeError(name)
        call = object.__getattribute__(self, name)

        def run(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.hang and args and self._index_of(args[0]) in self.hang[name]:
                threading.Event().wait()
            if name in self.failures:
                raise pynvml.NVMLError(self.failures[name])
            return call(*args)

        return run

    @classmethod
    def fail_all(cls, code: int, *starts: str) -> dict[str, int]:
        return {name: code for name in dir(cls) if name.startswith(starts or "nvml")}

    def _index_of(self, card: FakeCard | int) -> int:
        return card if isinstance(card, int) else self.cards.index(card)

    def _nvmlGetFunctionPointer(self, symbol: str) -> Any:
        if symbol not in self.symbols:
            raise pynvml.NVMLError(13)
        return self.symbols[symbol]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        return self.cards[index]

    def nvmlDeviceGetViolationStatus(self, card: FakeCard, policy: int) -> Any:
        return SimpleNamespace(referenceTime=0, violationTime=(policy + 1) * 1000)

    def nvmlDeviceGetSamples(self, card: FakeCard, kind: int, since: int) -> Any:
        ring = {1: card.samples, 2: card.memory_samples}[kind]
        entries = [
            SimpleNamespace(timeStamp=stamp, sampleValue=SimpleNamespace(uiVal=value))
            for stamp, value in ring
            if stamp > since
        ]
        if not entries:
            raise pynvml.NVMLError(6)
        return (1, entries)

    def nvmlDeviceGetFieldValues(self, card: FakeCard, wanted: list[tuple[int, int]]) -> Any:
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        for entry, (number, scope) in zip(values, wanted, strict=True):
            entry.fieldId, entry.scopeId = number, scope
            entry.nvmlReturn = card.field_errors.get(number, 0 if number in card.fields else 3)
            entry.valueType = 1 if number in card.narrow_fields else 3
            entry.value.ullVal = card.fields.get(number, 0)
        # The driver's NVLink fields write one entry past their place.
        for place, (number, _) in enumerate(wanted):
            if number in (138, 139, 202, 204) and place == len(wanted) - 1:
                raise AssertionError("an NVLink field without a guard entry after it")
        self.guards.append(wanted[-1][0])
        return values

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: FakeCard, place: int) -> FakeCard:
        if place >= len(card.mig_devices):
            raise pynvml.NVMLError(6)
        return card.mig_devices[place]

    def nvmlGpmSampleAlloc(self) -> Any:
        return pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())

    def nvmlGpmSampleGet(self, card: FakeCard, sample: Any) -> Any:
        self.gpm_card = card
        return sample

    def nvmlGpmMigSampleGet(self, card: FakeCard, instance: int, sample: Any) -> Any:
        self.gpm_card = next(one for one in card.mig_devices if one.instance == instance)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        old = ctypes.cast(request.sample1, ctypes.c_void_p).value
        new = ctypes.cast(request.sample2, ctypes.c_void_p).value
        if not old or not new or old == new:
            raise pynvml.NVMLError(2)
        for metric in request.metrics[: request.numMetrics]:
            values = self.gpm_card.gpm or {}
            metric.nvmlReturn = 0 if metric.metricId in values else 3
            metric.value = values.get(metric.metricId, 0.0)
        return request

    def nvmlDeviceRegisterEvents(self, card: FakeCard, kinds: int, events: Any) -> None:
        if kinds != 8:
            raise pynvml.NVMLError(2)
        self.registered.append(card)

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        if self.xids and self.xids[0][0] in self.registered:
            card, xid = self.xids.pop(0)
            return SimpleNamespace(device=card, eventData=xid)
        time.sleep(timeout_ms / 1000)
        raise pynvml.NVMLError(10)


def rows_since(card: FakeCard, since: int) -> list[Any]:
    rows = [
        SimpleNamespace(pid=pid, timeStamp=stamp, smUtil=pct) for pid, stamp, pct in card.busy_rows if stamp > since
    ]
    if not rows:
        raise pynvml.NVMLError(6)
    return rows


ANSWERS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlSystemGetDriverVersion": "580.65.06",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetTemperatureV": 62,
    "nvmlDeviceGetMarginTemperature": 25,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerUsage": 412_500,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=33),
    "nvmlDeviceGetDecoderUtilization": [7, 167_000],
    "nvmlDeviceGetJpgUtilization": [3, 20_000],
    "nvmlDeviceGetRemappedRows": (1, 0, 1, 0),
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlGpmSampleFree": None,
    "nvmlEventSetCreate": SimpleNamespace(),
    "nvmlEventSetFree": None,
}
"""What each card answers, whatever else is asked."""
BY_KIND: dict[str, dict[tuple[int, ...], int]] = {
    "nvmlDeviceGetMaxClockInfo": {(1,): 1980, (2,): 2619},
    "nvmlDeviceGetClockInfo": {(1,): 1755, (2,): 2619},
    "nvmlDeviceGetTemperatureThreshold": {(1,): 87},
    "nvmlDeviceGetTotalEccErrors": {(1, 0): 2},
}


def list_processes(card: FakeCard) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes]


OF_CARD: dict[str, Callable[[FakeCard], Any]] = {
    "nvmlDeviceGetUUID": lambda card: card.uuid,
    "nvmlDeviceGetName": lambda card: card.name,
    "nvmlDeviceGetMinorNumber": lambda card: card.minor,
    "nvmlDeviceGetBusType": lambda card: card.bus,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda card: card.reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: card.reasons,
    "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=card.total, used=card.used),
    "nvmlDeviceGetMigMode": lambda card: [card.mig, card.mig],
    "nvmlDeviceGetGpuInstanceId": lambda card: card.instance,
    "nvmlGpmQueryDeviceSupport": lambda card: SimpleNamespace(isSupportedDevice=card.gpm is not None),
    "nvmlDeviceGetComputeRunningProcesses_v3": list_processes,
    "nvmlDeviceGetComputeRunningProcesses_v2": list_processes,
}


for _name, _value in ANSWERS.items():
    setattr(FakeNvml, _name, lambda self, *asked, value=_value: value)
for _name, _values in BY_KIND.items():
    setattr(FakeNvml, _name, lambda self, card, *kind, values=_values: values[kind])
for _name, _read in OF_CARD.items():
    setattr(FakeNvml, _name, lambda self, card, *asked, read=_read: read(card))
for _name in ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"):
    setattr(FakeNvml, _name, lambda self, card, since: rows_since(card, since))


def ring(percents: list[int], end_s: float, per_second: int) -> list[tuple[int, int]]:
    """Build a sample buffer: one entry each 1/per_second s, the last at end_s."""
    step_us = SECOND_US // per_second
    first_us = int(end_s * SECOND_US) - step_us * (len(percents) - 1)
    return [(first_us + place * step_us, percent) for place, percent in enumerate(percents)]


SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns

    def step(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


def make_reader(nvml: FakeNvml) -> tuple[CardReader, Clock]:
    clock = Clock()
    return CardReader(nvml, 0, clock), clock


def read_twice(nvml: FakeNvml) -> tuple[CardLine, CardLine]:
    """Read a card in two seconds; both have new samples."""
    reader, clock = make_reader(nvml)
    first = reader.read()
    clock.step(1)
    for card in nvml.cards:
        card.samples = ring([50], 11, 1)
        card.memory_samples = ring([20], 11, 1)
        card.busy_rows = [(pid, stamp + 1_000_000, pct) for pid, stamp, pct in card.busy_rows]
    return first, reader.read()
