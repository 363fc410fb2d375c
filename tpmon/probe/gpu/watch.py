"""Watch the GPUs through the NVML child, and read their clocks.

Nothing here waits for a driver: ``start`` and ``stop`` return at once whatever NVML does, and
``read`` answers from memory (docs/adr/0002-nvml-in-a-child-process.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from tpmon.model.codec import CodecError
from tpmon.model.gpu import GpuSample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.results.capture import GpuClocks
from tpmon.probe.base.deadline import Background
from tpmon.probe.gpu.board import Board, GpuReading
from tpmon.probe.gpu.bounds import read_driver_cards
from tpmon.probe.gpu.link import BACKOFF_S, ChildLink, Listener, child_command
from tpmon.probe.gpu.mapping import DeviceFiles, in_first_pid_namespace, open_device_indices
from tpmon.probe.gpu.wire import decode_line

__all__ = ["GpuProbe", "GpuReading", "open_device_indices"]

SCAN_EVERY_S = 0.9
LIST_EVERY_S = 30.0
"""Cards of the kernel's driver seldom change; those of one that is wedged were read before."""
ABSENT_RETRY_S = 30.0
MAX_ABSENT_RETRY_S = 300.0
"""Where there is no driver, one will not come within seconds. A try costs 0.1 s of CPU: each 30 s
that would be 0.4 % of a core for ever, so the wait doubles up to this."""


class GpuProbe:
    """Own the NVML child and what it said. ``read`` may be called from any one thread."""

    def __init__(
        self,
        command: Sequence[str] | None = None,
        proc: str = "/proc",
        backoff_s: Sequence[float] = BACKOFF_S,
        absent_retry_s: float = ABSENT_RETRY_S,
    ) -> None:
        """Keep the settings; ``command`` replaces the child and ``proc`` the file system in tests."""
        self._backoff_s = tuple(backoff_s)
        self._absent_retry_s = absent_retry_s
        self._lock = threading.Lock()
        self._board = Board(time.monotonic_ns())
        self._unreadable = 0
        self._pids_are_ours = in_first_pid_namespace(proc)
        self._files = DeviceFiles(proc)
        self._held = Background("open device files", self._files.scan, SCAN_EVERY_S)
        self._listed = Background("cards of the driver", partial(read_driver_cards, proc), LIST_EVERY_S)
        listener = Listener(self._on_start, self._on_lines, self._on_end)
        self._link = ChildLink(command or child_command(), listener)

    def start(self) -> None:
        """Start the child; never blocks."""
        self._link.start()
        self._held.start()
        self._listed.start()

    def read(self, job_pids: Mapping[int, int]) -> GpuReading:
        """Return what is known now; ``job_pids`` maps the job's PIDs to their start ticks."""
        self._files.watch(job_pids)
        held, _ = self._held.latest()
        with self._lock:
            reading = self._board.read(
                job_pids,
                held if is_known(held) else {},
                self._pids_are_ours,
                time.monotonic_ns(),
                self._files.has_driver,
                driver_cards=self._listed.latest()[0],
            )
            return self._with_losses(reading)

    def stop(self) -> None:
        """End the child and return, at the latest after half a second."""
        self._held.stop()
        self._listed.stop()
        self._link.stop()

    def child_pid(self) -> Known[int]:
        """Return the PID of the running child."""
        return self._link.pid()

    def _with_losses(self, reading: GpuReading) -> GpuReading:
        losses = []
        if self._link.dropped_lines:
            losses.append(f"{self._link.dropped_lines} lines of the GPU child were too many or too long")
        if self._unreadable:
            losses.append(f"{self._unreadable} lines of the GPU child were not understood")
        if not losses:
            return reading
        return replace(reading, notes=(*reading.notes, *losses))

    def _on_start(self) -> None:
        with self._lock:
            self._board.on_start(time.monotonic_ns())

    def _on_lines(self, lines: Sequence[bytes]) -> None:
        for raw in lines:
            try:
                line = decode_line(raw)
            except CodecError:
                self._unreadable += 1
                continue
            with self._lock:
                self._board.on_line(line, time.monotonic_ns())

    def _on_end(self, how: str, attempt: int) -> float:
        with self._lock:
            if self._board.refused:
                retry_s = min(self._absent_retry_s * 2.0 ** min(attempt - 1, 8), MAX_ABSENT_RETRY_S)
            else:
                retry_s = self._backoff_s[min(attempt, len(self._backoff_s)) - 1]
            self._board.on_end(how, time.monotonic_ns(), retry_s)
        return retry_s


NO_GPU = Missing("the processes use no NVIDIA GPU")
_WAIT_S = 3.0
"""NVML is opened in a child, which takes a second; a reading that does not come then is not there."""

_AGAIN_S = 0.05


class Reader(Protocol):
    """Do what ``GpuProbe`` does."""

    def read(self, job_pids: dict[int, int]) -> GpuReading:
        """Return what is known now."""


@contextmanager
def watch_clocks(processes: Sequence[Identity]) -> Iterator[ClockWatch]:
    """Hold NVML open around a window; where none of the processes has a card open, nothing is started."""
    job = {one.pid: one.start_ticks for one in processes}
    reader = GpuProbe() if any(map(_has_card, job)) else None
    if reader is None:
        yield ClockWatch(job, None)
        return
    reader.start()
    try:
        yield ClockWatch(job, reader)
    finally:
        reader.stop()


class ClockWatch:
    """Read the clocks of the cards that some processes are on."""

    def __init__(self, job: dict[int, int], reader: Reader | None) -> None:
        """Watch the processes of ``job``, PID to start ticks; without a reader they use no card."""
        self._job = job
        self._reader = reader
        self.busy: frozenset[int] = frozenset()
        """The processes for which a card worked, by the last reading."""

    def read(self, wait_s: float = _WAIT_S) -> Known[tuple[GpuClocks, ...]]:
        """Return the clocks of the cards that these processes are on, as of the last second, or why not."""
        if self._reader is None:
            return NO_GPU
        limit = time.monotonic() + wait_s
        while True:
            gpus = self._reader.read(self._job).gpus
            if is_known(gpus):
                found = tuple(
                    GpuClocks(
                        card.index,
                        card.name,
                        card.sm_clock_mhz,
                        card.sm_clock_max_mhz,
                        card.memory_clock_mhz,
                    )
                    for card in gpus
                    if is_known(card.pids) and self._job.keys() & set(card.pids)
                )
                self.busy = frozenset(pid for pid in self._job if any(_works_for(card, pid) for card in gpus))
                if found:
                    return found
            if time.monotonic() > limit:
                return gpus if not is_known(gpus) else Missing("no card lists these processes")
            time.sleep(_AGAIN_S)


def _works_for(card: GpuSample, pid: int) -> bool:
    """Tell whether a card worked for a process: by its own share, else by the card's where it is alone."""
    listed = card.processes if is_known(card.processes) else ()
    share = next((one.sm_pct for one in listed if one.pid == pid), Missing("not listed"))
    alone = [one.pid for one in listed] == [pid] and not is_known(card.lists_only)
    if not is_known(share) and alone:
        share = card.sm_pct
    return is_known(share) and share > 0


def _has_card(pid: int) -> bool:
    held = open_device_indices(pid)
    return is_known(held) and bool(held)
