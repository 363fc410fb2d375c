"""Name who else computes on this machine: the largest users of its CPUs that are not of the job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping

from tpmon.model.host import CpuSample, Tenant
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.probe.base.procread import (
    PROC,
    StatLine,
    each_process,
    list_pids,
    parse_cmdline,
    read_file,
    read_or,
    read_stat,
    read_status,
)
from tpmon.probe.job.job import user_name
from tpmon.probe.job.programs import identify

TENANTS_EVERY_S = 5.0
CROWDED_DELAY_RATIO = 0.2
"""Share of their demand that the job's threads must wait for a CPU, to ask who has it."""
LEAST_CORES = 0.05
"""CPUs below which a process is no tenant worth a name."""
MOST_TENANTS = 4
MOST_PROCESSES = 8_192
"""Processes of a machine above which they are not all read: that takes a tenth of a second."""


def is_crowded(cpu: CpuSample) -> bool:
    """Tell whether the job's threads wait for a CPU often enough to ask who has it."""
    return is_known(cpu.run_delay_ratio) and cpu.run_delay_ratio >= CROWDED_DELAY_RATIO


def _rank_users(
    before: Mapping[int, StatLine], now: Mapping[int, StatLine], span_s: float
) -> list[tuple[float, int]]:
    """Return the CPUs and the PID of each process that used some meanwhile, the largest first.

    Neither tpmon nor what it started is a tenant.
    """
    own = os.getpid()
    used = [
        ((one.cpu_s - before[pid].cpu_s) / span_s, pid)
        for pid, one in now.items()
        if pid in before and before[pid].start_ticks == one.start_ticks and own not in (pid, one.parent)
    ]
    return sorted((one for one in used if one[0] >= LEAST_CORES), reverse=True)


class TenantReader:
    """Compare the CPU times of all processes of this machine, from call to call, while ``asks`` says so."""

    def __init__(
        self, own_pids: Callable[[], Collection[int]], asks: Callable[[], bool], proc: str = PROC
    ) -> None:
        """Read nothing yet; both are called in the thread of ``read``."""
        self._own_pids = own_pids
        self._asks = asks
        self._proc = proc
        self._before: tuple[float, dict[int, StatLine]] | None = None

    def read(self) -> Applicable[tuple[Tenant, ...]]:
        """Return the largest users since the last call; not applicable while nobody asks."""
        if not self._asks():
            self._before = None
            return NOT_APPLICABLE
        pids = set(list_pids(self._proc)).difference(self._own_pids())  # a large job is most of a machine
        if len(pids) > MOST_PROCESSES:
            return Missing(f"more than {MOST_PROCESSES} processes of others run here")
        read = each_process(pids, lambda pid: read_stat(pid, self._proc))
        before, now = (
            self._before,
            (time.monotonic(), {pid: one for pid, one in read.items() if is_known(one)}),
        )
        self._before = now
        if before is None:
            return Missing("rates need a second reading")
        largest = _rank_users(before[1], now[1], now[0] - before[0])[: 4 * MOST_TENANTS]
        return _join([self._name(pid, cores, now[1][pid].name) for cores, pid in largest])

    def _name(self, pid: int, cores: float, name: str) -> Tenant:
        argv = read_or((), lambda: parse_cmdline(read_file(f"{self._proc}/{pid}/cmdline", 4096)))
        user = read_or("", lambda: user_name(read_status(pid, self._proc).uid))
        return Tenant(pid, user, identify(name, argv).label, 1, cores)


def _join(tenants: list[Tenant]) -> tuple[Tenant, ...]:
    """Add up processes of one user and one command, under the PID of the largest."""
    joined: dict[tuple[str, str], Tenant] = {}
    for one in tenants:
        first = joined.setdefault((one.user, one.command), Tenant(one.pid, one.user, one.command, 0, 0.0))
        joined[one.user, one.command] = Tenant(
            first.pid, first.user, first.command, first.processes + 1, round(first.cores + one.cores, 2)
        )
    return tuple(sorted(joined.values(), key=lambda one: -one.cores)[:MOST_TENANTS])
