"""Name the faults. Nothing but the standard library: the programs run where tpmon is not installed."""

from __future__ import annotations

from enum import Enum

WORKERS = 2
CPUS = 2
QUOTA_CORES = 0.6
OMP_THREADS = 64
POOL_THREADS = 16
CHECKPOINT_STEPS = 3
READ_MS = 30.0
"""What one sample takes from a slow store: a batch then takes several steps' time."""


class Fault(str, Enum):
    """Name what is wrong with a program; the values are words of the command line."""

    HEALTHY = "healthy"
    NO_WORKERS = "no-workers"
    SLOW_STORE = "slow-store"
    SLOW_FUSE = "slow-fuse"
    OMP = "omp-64"
    POOL = "threads-16"
    ONE_CPU = "one-cpu"
    QUOTA = "cpu-quota"
    STOPPED_WORKER = "stopped-worker"
    CHECKPOINTS = "checkpoints"

    @property
    def workers(self) -> int:
        return {Fault.NO_WORKERS: 0, Fault.ONE_CPU: WORKERS + 1}.get(self, WORKERS)

    @property
    def load_steps(self) -> float:
        """Return what the transform of a batch costs in CPU, in times of a step."""
        return {Fault.NO_WORKERS: 1.8, Fault.ONE_CPU: 6.0}.get(self, 0.1)

    @property
    def environment(self) -> dict[str, str]:
        """Return what is set in the environment; else the pools have their default size."""
        return {"OMP_NUM_THREADS": str(OMP_THREADS)} if self is Fault.OMP else {}

    def wrap(self, command: list[str], cpus: list[int]) -> list[str]:
        mine = cpus[:1] if self is Fault.ONE_CPU else cpus[:CPUS]
        return ["taskset", "-c", ",".join(map(str, mine)), *command]
