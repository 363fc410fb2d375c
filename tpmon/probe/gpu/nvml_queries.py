"""Ask NVML one question at a time, and for the processes of a card: an answer, or Missing with the reason.

The pynvml module comes as an argument. One failing call costs one field, never the card, and a call that the
card or driver lacks is not repeated every second.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.doctor import point_to
from tpmon.probe.gpu.wire import CardProcessReading

SUCCESS = 0
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
FUNCTION_NOT_FOUND = 13

# nvml.h, nvmlReturn_t. 15 and 999 come when a card has fallen off the bus, 16 when only a reset helps.
LOST_CODES = frozenset((15, 16, 999))
UNKNOWN = 999  # of a living card too: WSL answers so for the utilisation
# The driver was unloaded or replaced under a running library: only a fresh process helps.
DRIVER_GONE_CODES = frozenset((1, 9, 18))

_MISMATCH = "NVMLLibraryMismatchError"
_SILENT = frozenset((NOT_SUPPORTED, FUNCTION_NOT_FOUND))

_WORDS = {
    SUCCESS: "nothing to report",  # pynvml raises it where an empty answer needs no second call
    1: "NVML is not initialised",
    2: "invalid argument",
    NOT_SUPPORTED: "not supported by this card",
    NO_PERMISSION: point_to("no permission", "nvml"),
    NOT_FOUND: "not found",
    7: "buffer too small",
    9: "NVIDIA driver is not loaded",
    10: "timeout",
    12: "libnvidia-ml.so.1 not found",
    FUNCTION_NOT_FOUND: "this driver does not have the call",
    15: "GPU is lost",
    16: "GPU needs a reset",
    17: "refused by the operating system",
    18: "driver and library versions differ",
    21: "no data",
    25: "this driver wants another version of the call",
    UNKNOWN: "unknown driver error",
}
_ABSENT = Missing(_WORDS[FUNCTION_NOT_FOUND])
UNSUPPORTED = Missing(_WORDS[NOT_SUPPORTED])

# nvml.h, nvmlValueType_t; every field that tpmon reads is a whole number.
_UNSIGNED_INT = 1
_INTEGERS = {kind: struct.Struct(letter) for kind, letter in enumerate("ILQqiH", 1)}
# nvmlFieldValue_t: field, scope, time, latency, type, return code, value (a union of 8 bytes).
_FIELD_VALUE = struct.Struct("@IIqqII8s")
# PCIe and NVLink bytes: at 25 GB/s 32 bits last 0.2 s.
_FAST_COUNTERS = frozenset((138, 139, 197, 198, 202, 204))


def describe_code(code: int) -> str:
    """Describe an NVML return code."""
    return _WORDS.get(code, f"NVML error {code}")


def code_of(error: BaseException) -> int:
    """Return the NVML return code that an exception carries, -1 for none."""
    code = getattr(error, "value", -1)
    return code if isinstance(code, int) else -1


def describe_error(error: BaseException) -> str:
    """Describe an exception of a pynvml call."""
    code = code_of(error)
    if code >= 0:
        return describe_code(code)
    # pynvml raises this outside its NVMLError tree when an unversioned call meets an old driver.
    if type(error).__name__ == _MISMATCH:
        return describe_code(FUNCTION_NOT_FOUND)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def to_int(value: Any) -> int:
    """Return a whole number; TypeError for None and everything else, so that it costs only its field."""
    if not isinstance(value, int):
        raise TypeError(f"no number: {value!r:.40}")
    return value


def to_float(value: Any) -> float:
    """Return a finite number; ValueError for None, NaN and everything else."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"no number: {value!r:.40}")
    return float(value)


Counted = tuple[Known[int], int]  # a counter, and its time (CLOCK_MONOTONIC, ns)
Question = tuple[str, int]  # a name of NVML, and the kind where answers may differ by kind
Clock = Callable[[], int]
Stuck = Mapping[Question, Missing]
NOTHING_STUCK: Stuck = {}
STUCK = Missing("the driver does not return from this call")
_OLDEST_NS = 5_000_000_000  # how old a driver's own reading may be when it hands it out


class Calls:
    """Call NVML for one card, and count how many calls found the card or driver gone."""

    def __init__(self, nvml: Any, clock: Clock = time.monotonic_ns, stuck: Stuck = NOTHING_STUCK) -> None:
        """Take the pynvml module; the driver has not yet returned from the questions in ``stuck``."""
        self.nvml = nvml
        self.asking: tuple[Question, int] | None = None  # the question under way, and since when
        self._clock = clock
        self._span_ns = (0, 0)
        self._stuck = stuck
        self._silent: dict[Question, Missing] = {}
        self._gone_code, self._lost_code = 0, UNKNOWN
        self.start_round(retry_silent=False)

    def ask(self, name: str, *args: Any, kind: int = 0) -> Known[Any]:
        """Call ``nvml.<name>(*args)``; ``kind`` distinguishes calls of one name that may differ."""
        key = (name, kind)
        if (refused := self._silent.get(key, self._stuck.get(key))) is not None:
            return refused
        function = getattr(self.nvml, name, None)
        if function is None:
            missing = self._silent[key] = Missing("this nvidia-ml-py does not have the call")
            return missing
        before_ns = self._clock()
        self.asking = (key, before_ns)
        try:
            answer = function(*args)
        except Exception as error:  # noqa: BLE001  # whatever a call raises costs its field alone
            return self._fail(key, error)
        finally:
            self.asking = None
            self._span_ns = (before_ns, self._clock())
        self._answered += 1
        # pynvml up to 11.4 and nvidia-ml-py3 return C strings as they are.
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    def place(self, stamp_us: int) -> int:
        """Return the time of the counter in the last call, on this object's clock.

        That is its own stamp, in microseconds since 1970 (nvml.h) or since boot, if it lies within the call
        or shortly before; else the middle of the call.
        """
        before_ns, after_ns = self._span_ns
        for stamp_ns in (stamp_us * 1000 - time.time_ns() + self._clock(), stamp_us * 1000):
            if before_ns - _OLDEST_NS <= stamp_ns <= after_ns:
                return stamp_ns
        return (before_ns + after_ns) // 2

    def ask_fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[Counted]:
        """Read field values by (id, scope), in order, each with its time.

        The last entry is a guard that no caller sees: NVLink fields may write one entry past their place
        (nvitop does the same).
        """
        guard = (wanted[0][0], 0)
        answer = self.ask("nvmlDeviceGetFieldValues", handle, [*wanted, guard])
        if isinstance(answer, Missing):
            return [(answer, self.place(0))] * len(wanted)
        # At once: each access to a pynvml structure costs 0.5 us.
        unpacked = cast("Iterator[_Entry]", _FIELD_VALUE.iter_unpack(memoryview(answer).cast("B")))
        entries = zip(unpacked, wanted, strict=False)
        told = [(_value_of(entry, field), self.place(entry[2])) for entry, (field, _) in entries]
        return told + [(Missing("no answer for this field"), self.place(0))] * (len(wanted) - len(told))

    def note_failure(self, error: BaseException) -> Missing:
        """Count and describe the failure of a call that the caller made itself."""
        code = code_of(error)
        reason = describe_error(error)
        if code in LOST_CODES:
            self._lost += 1
            self._lost_code = min(code, self._lost_code)
        elif code in DRIVER_GONE_CODES:
            self._gone += 1
            self._gone_code = code
        else:
            # A refusal is an answer: the card is there.
            self._answered += 1
        return Missing(reason)

    def start_round(self, retry_silent: bool) -> None:
        """Restart the counts; ``retry_silent`` also asks again what was not supported."""
        self._answered = self._lost = self._gone = 0
        self._lost_code = UNKNOWN
        if retry_silent:
            self._silent.clear()

    def lost_reason(self, is_blank: bool) -> str:
        """Say why the card is lost if most calls of a round said so; "" else. ``is_blank``: no answer."""
        lost = self._lost > self._answered and (is_blank or self._lost_code != UNKNOWN)
        return describe_code(self._lost_code) if lost else ""

    def gone_code(self) -> int:
        """Return the NVML code if most calls of this round found no driver, else 0."""
        return self._gone_code if self._gone > self._answered else 0

    def _fail(self, key: Question, error: Exception) -> Missing:
        missing = self.note_failure(error)
        if code_of(error) in _SILENT or type(error).__name__ == _MISMATCH:
            self._silent[key] = missing
        return missing


_Entry = tuple[int, int, int, int, int, int, bytes]


def _value_of(entry: _Entry, field: int) -> Known[int]:
    _, _, _, _, kind, code, raw = entry
    if code != SUCCESS:
        return Missing(describe_code(code))
    if kind == _UNSIGNED_INT and field in _FAST_COUNTERS:
        return Missing("a 32-bit counter: wraps within a second")
    layout = _INTEGERS.get(kind)
    if layout is None:
        return Missing(f"value of unexpected type {kind}")
    value: int = layout.unpack_from(raw)[0]
    return value


MAX_PROCESSES = 1024
_INSUFFICIENT_SIZE = 7
_NOT_AVAILABLE = 2**64 - 1
_NO_BYTES = Missing("the driver does not say (container)")
_BY_MPS = Missing("the server of MPS computes for it")
_MPS_SERVER = b"nvidia-cuda-mps-server"[:15]  # as /proc/PID/comm cuts it (proc(5))
_NO_ROW = Missing("no sample since the last reading")


class _ProcessV1(ctypes.Structure):
    """Mirror nvmlProcessInfo_v1_t, which pynvml no longer offers."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


class ProcessList:
    """Read the process lists of one card in the version that its driver supports."""

    def __init__(self, calls: Calls, proc: str = "/proc") -> None:
        self._calls = calls
        self._proc = proc
        self._servers: dict[int, bool] = {}
        self._read: Callable[[Any], Known[list[Any]]] | None = None
        self._seen_us = 0

    def read(self, handle: Any, with_busy: bool) -> Known[tuple[CardProcessReading, ...]]:
        """List the compute processes of a card or MIG device; ``with_busy`` adds their SM %.

        MPS's server is left out: it computes for its clients, whose SM % is unknown.
        """
        entries = self._list(handle)
        if isinstance(entries, Missing):
            return entries
        busy = self._busy(handle) if with_busy else Missing("not measured on MIG devices")
        found: dict[int, CardProcessReading] = {}
        entries = entries[:MAX_PROCESSES]
        known, self._servers = self._servers, {}
        for pid in {int(entry.pid) for entry in entries}:
            self._servers[pid] = known[pid] if pid in known else self._is_mps_server(pid)
        if any(self._servers.values()):
            entries = [entry for entry in entries if not self._servers[int(entry.pid)]]
            busy = _BY_MPS
        for entry in entries:
            pid = int(entry.pid)
            used = _bytes_of(entry.usedGpuMemory)
            if pid in found:
                # One entry per compute instance of a MIG card.
                found[pid] = replace(found[pid], used_bytes=_sum(found[pid].used_bytes, used))
                continue
            sm_pct = busy.get(pid, _NO_ROW) if is_known(busy) else busy
            found[pid] = CardProcessReading(pid, used, sm_pct)
        return tuple(found.values())

    def _is_mps_server(self, pid: int) -> bool:
        try:
            with open(f"{self._proc}/{pid}/comm", "rb") as file:
                return file.read(64).strip() == _MPS_SERVER
        except OSError:
            return False

    def _list(self, handle: Any) -> Known[list[Any]]:
        if self._read is not None:
            return self._read(handle)
        answer: Known[list[Any]] = _ABSENT
        for read in self._versions():
            answer = read(handle)
            if is_known(answer):
                self._read = read
            if answer != _ABSENT:
                break
        return answer

    def _versions(self) -> list[Callable[[Any], Known[list[Any]]]]:
        def ask(version: str) -> Callable[[Any], Known[list[Any]]]:
            name = f"nvmlDeviceGetComputeRunningProcesses_{version}"
            return lambda handle: self._calls.ask(name, handle)

        # Drivers 530 to 535.43 give _v3 a fifth member and so garbled PIDs (nvitop#75); the symbols they have
        # give them away. Their _v2 is sound.
        garbled = self._has("nvmlDeviceGetConfComputeMemSizeInfo") and not self._has(
            "nvmlDeviceGetRunningProcessDetailList"
        )
        newest = [] if garbled else [ask("v3")]
        return [*newest, ask("v2"), self._list_v1]

    def _has(self, symbol: str) -> bool:
        find = getattr(self._calls.nvml, "_nvmlGetFunctionPointer", None)
        if find is None:
            return False
        try:
            find(symbol)
        except Exception as error:  # noqa: BLE001  # any failure to find it is the answer
            if code_of(error) != FUNCTION_NOT_FOUND:
                self._calls.note_failure(error)
            return False
        return True

    def _list_v1(self, handle: Any) -> Known[list[Any]]:
        find = getattr(self._calls.nvml, "_nvmlGetFunctionPointer", None)
        if find is None:
            return _ABSENT
        try:
            call = find("nvmlDeviceGetComputeRunningProcesses")
            count = ctypes.c_uint(0)
            code = call(handle, ctypes.byref(count), None)
            if code == 0:
                return []
            if code != _INSUFFICIENT_SIZE:
                return Missing(describe_code(code))
            # Processes may start between the two calls.
            count.value = count.value * 2 + 5
            array = (_ProcessV1 * count.value)()
            code = call(handle, ctypes.byref(count), array)
        except Exception as error:  # noqa: BLE001  # whatever it raises costs the list alone
            return self._calls.note_failure(error)
        if code != 0:
            return Missing(describe_code(code))
        return list(array[: count.value])

    def _busy(self, handle: Any) -> Known[dict[int, float]]:
        # The older call answers 0 on Blackwell server cards (HAMi-core#218), so it comes second.
        rows = self._calls.ask("nvmlDeviceGetProcessesUtilizationInfo", handle, self._seen_us)
        if isinstance(rows, Missing) and not _nothing_ran(rows):
            rows = self._calls.ask("nvmlDeviceGetProcessUtilization", handle, self._seen_us)
        if isinstance(rows, Missing):
            return {} if _nothing_ran(rows) else rows
        busy: dict[int, float] = {}
        newest: dict[int, int] = {}
        for row in rows:
            pid, stamp, pct = row.pid, row.timeStamp, row.smUtil
            # Uninitialised rows carry values like 2147483632 (DCGM#83).
            if pct <= 100 and stamp >= newest.get(pid, 0):
                busy[pid], newest[pid] = float(pct), stamp
        self._seen_us = max([self._seen_us, *newest.values()])
        return busy


def _nothing_ran(answer: Missing) -> bool:
    # NOT_FOUND: no row since the time asked for. pynvml raises NVMLError(0) when the size query
    # of an empty answer succeeds.
    return answer.reason in (describe_code(NOT_FOUND), describe_code(SUCCESS))


def _bytes_of(value: Any) -> Known[int]:
    if not isinstance(value, int) or value == _NOT_AVAILABLE:
        return Missing("the driver does not say")
    # Drivers from 535.113 to about 560 report 0 for all in a container (open-gpu-kernel-modules#614);
    # a context takes 0.3 GB and more.
    return value or _NO_BYTES


def _sum(left: Known[int], right: Known[int]) -> Known[int]:
    if isinstance(left, Missing):
        return left
    return right if isinstance(right, Missing) else left + right
