"""Read which processes use a card, how much of its memory, and how busy each keeps it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tpmon.model.known import Known, Missing, is_known
from tpmon.probe.gpu.calls import (
    FUNCTION_NOT_FOUND,
    NOT_FOUND,
    SUCCESS,
    Calls,
    code_of,
    describe_code,
)
from tpmon.probe.gpu.wire import CardProcessReading

MAX_PROCESSES = 1024
_INSUFFICIENT_SIZE = 7
_NOT_AVAILABLE = 2**64 - 1
_NO_BYTES = Missing("the driver does not say (container)")
_BY_MPS = Missing("the server of MPS computes for it")
_MPS_SERVER = b"nvidia-cuda-mps-server"[:15]
"""As /proc/PID/comm cuts it (proc(5))."""
_NO_ROW = Missing("no sample since the last reading")


class _ProcessV1(ctypes.Structure):
    """Mirror nvmlProcessInfo_v1_t, which pynvml no longer offers."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class ProcessList:
    """Read the process lists of one card in the version that its driver speaks."""

    def __init__(self, calls: Calls, proc: str = "/proc") -> None:
        """Take the calls of the card; ``proc`` replaces the file system in tests."""
        self._calls = calls
        self._proc = proc
        self._servers: dict[int, bool] = {}
        self._read: Callable[[Any], Known[list[Any]]] | None = None
        self._seen_us = 0

    def read(self, handle: Any, with_busy: bool) -> Known[tuple[CardProcessReading, ...]]:
        """List the compute processes of a card or MIG device; ``with_busy`` adds their SM %.

        The server of MPS computes for its clients, and their SM % is not told: it is left out.
        """
        entries = self._list(handle)
        if isinstance(entries, Missing):
            return entries
        busy: Known[dict[int, float]] = Missing("not measured on MIG devices")
        if with_busy:
            busy = self._busy(handle)
        found: dict[int, CardProcessReading] = {}
        entries = entries[:MAX_PROCESSES]
        known, self._servers = self._servers, {}
        for pid in {int(entry.pid) for entry in entries}:
            self._servers[pid] = known[pid] if pid in known else _is_mps_server(pid, self._proc)
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

    def _list(self, handle: Any) -> Known[list[Any]]:
        if self._read is not None:
            return self._read(handle)
        absent = describe_code(FUNCTION_NOT_FOUND)
        answer: Known[list[Any]] = Missing(absent)
        for read in self._versions():
            answer = read(handle)
            if is_known(answer):
                self._read = read
                return answer
            if answer.reason != absent:
                return answer
        return answer

    def _versions(self) -> list[Callable[[Any], Known[list[Any]]]]:
        def ask(version: str) -> Callable[[Any], Known[list[Any]]]:
            name = f"nvmlDeviceGetComputeRunningProcesses_{version}"
            return lambda handle: self._calls.ask(name, handle)

        # Drivers 530 to 535.43 give _v3 a fifth member and so garbled PIDs (nvitop#75); they are
        # told by the symbols they have. Their _v2 is sound.
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
            return Missing(describe_code(FUNCTION_NOT_FOUND))
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
        return [_V1Entry(one.pid, one.used) for one in array[: count.value]]

    def _busy(self, handle: Any) -> Known[dict[int, float]]:
        # The older call answers 0 on Blackwell server cards (HAMi-core#218), so it is second.
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


def _is_mps_server(pid: int, proc: str) -> bool:
    try:
        with open(f"{proc}/{pid}/comm", "rb") as file:
            return file.read(64).strip() == _MPS_SERVER
    except OSError:
        return False


class _V1Entry:
    """Give a v1 entry the names of the newer ones."""

    __slots__ = ("pid", "usedGpuMemory")

    def __init__(self, pid: int, used: int) -> None:
        """Copy the entry out of the array."""
        self.pid = pid
        self.usedGpuMemory = used  # pynvml's name


def _nothing_ran(answer: Missing) -> bool:
    # NOT_FOUND: no row since the time asked for. pynvml raises NVMLError(0) when the size query
    # of an empty answer succeeds.
    return answer.reason in (describe_code(NOT_FOUND), describe_code(SUCCESS))


def _bytes_of(value: Any) -> Known[int]:
    if not isinstance(value, int) or value == _NOT_AVAILABLE:
        return Missing("the driver does not say")
    # Drivers from 535.113 to about 560 say 0 of every process in a container; a context takes 0.3 GB and more
    # (open-gpu-kernel-modules#614).
    return value or _NO_BYTES


def _sum(left: Known[int], right: Known[int]) -> Known[int]:
    if isinstance(left, Missing):
        return left
    return right if isinstance(right, Missing) else left + right
