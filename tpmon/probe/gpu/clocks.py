"""Read the clocks of the cards that some processes use, once, and whether these kept them busy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from tpmon.model.gpu import GpuSample
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Identity
from tpmon.model.results.capture import GpuClocks
from tpmon.probe.gpu.watch import GpuProbe, GpuReading, open_device_indices

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
