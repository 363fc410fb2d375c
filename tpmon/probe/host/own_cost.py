"""Measure what tpmon itself costs, and decide when it must look less often."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from tpmon.model.frame import OwnCost
from tpmon.model.known import Known, Missing
from tpmon.probe.proc.files import parse_stat

BUDGET_MS_PER_S = 15.0
"""CPU of collecting alone; with screen, judge and NVML child the whole stays below 2.5 % of a core."""
RELIEF = 0.5
"""Full rates come back below this share of the budget, so that the mode does not flicker."""
SMOOTHING = 0.2
COUNT_EVERY_NS = 30_000_000_000


def _read_own_rss() -> Known[int]:
    """Read our memory. In a /proc of another PID namespace our number is somebody else's: by /proc/self."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return parse_stat(file.read()).rss_bytes
    except (OSError, ValueError) as error:
        return Missing(f"/proc/self/stat: {error}")


def _read_cpu_and_rss(pid: int) -> tuple[float, int]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        stat = parse_stat(file.read())
    return stat.cpu_s, stat.rss_bytes


class OwnCostMeter:
    """Sum the CPU and memory of this process and its children; watch the cost of collecting."""

    def __init__(self) -> None:
        """Begin; CPU % needs two readings."""
        self._last: tuple[int, float, dict[int, float]] | None = None
        self._stacks_s = 0.0
        self._smooth_ms_per_s = 0.0
        self._met = False
        self._descriptors = (0, -COUNT_EVERY_NS)
        self.shedding = False

    def add_tick(self, tick_ms: float, interval_s: float) -> None:
        """Record the CPU that one Frame took, and turn shedding on over budget, off well below it.

        The first one is left out: it opens every file, which is no rate.
        """
        if not self._met:
            self._met = True
            return
        cost = tick_ms / interval_s
        self._smooth_ms_per_s += SMOOTHING * (cost - self._smooth_ms_per_s)
        if self._smooth_ms_per_s > BUDGET_MS_PER_S:
            self.shedding = True
        elif self._smooth_ms_per_s < BUDGET_MS_PER_S * RELIEF:
            self.shedding = False

    def read(
        self, children: Sequence[int], tick_ms: float, paused_ms: float, stacks: tuple[float, int] = (0.0, 0)
    ) -> OwnCost:
        """Return the cost since the last call; ``children`` are PIDs of tpmon's own processes.

        ``stacks`` are the CPU seconds of every py-spy so far, ended ones too, and the RSS of the present one.
        """
        now_ns = time.monotonic_ns()
        cpu_s, rss = time.process_time(), _read_own_rss()
        children_s: dict[int, float] = {}
        stacks_s, children_rss = stacks
        for pid in children:
            try:
                children_s[pid], child_rss = _read_cpu_and_rss(pid)
            except (OSError, ValueError):
                # The child is being restarted.
                continue
            children_rss += child_rss
        cpu_pct: Known[float] = Missing("needs two readings")
        if self._last is not None and now_ns > self._last[0]:
            last_ns, last_s, last_children_s = self._last
            # A new child counts from its second reading, a dead one no more.
            used_s = cpu_s - last_s
            used_s += stacks_s - self._stacks_s
            used_s += sum(new - last_children_s.get(pid, new) for pid, new in children_s.items())
            cpu_pct = max(0.0, 100e9 * used_s / (now_ns - last_ns))
        self._last = (now_ns, cpu_s, children_s)
        self._stacks_s = stacks_s
        return OwnCost(
            cpu_pct=cpu_pct,
            rss_bytes=rss,
            children_rss_bytes=children_rss,
            target_paused_ms=paused_ms,
            descriptors=self._count_descriptors(now_ns),
            tick_ms=tick_ms,
            shedding=self.shedding,
        )

    def _count_descriptors(self, now_ns: int) -> Known[int]:
        """Count open files: the size of the directory (Linux 6.2), else a listing twice a minute."""
        try:
            size = os.stat("/proc/self/fd").st_size
            if size:
                return size
            if now_ns - self._descriptors[1] >= COUNT_EVERY_NS:
                self._descriptors = (len(os.listdir("/proc/self/fd")), now_ns)
        except OSError as error:
            return Missing(f"/proc/self/fd: {error.strerror}")
        return self._descriptors[0]
