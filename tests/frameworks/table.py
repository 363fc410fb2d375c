"""Name what tpmon must say of each program with each fault. No torch here: pytest reads this."""

from __future__ import annotations

from dataclasses import dataclass

from tests.frameworks.faults import Fault
from tests.programs.causes.table import HEALTHY, HUNG_S, Label
from tpmon.model.verdict import Kind

LOOK_S = 20.0


@dataclass(frozen=True, slots=True)
class Framework:
    """Hold a program, the packages that it needs besides torch, by their names on an index."""

    program: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Hold a program with a fault, what is right to say of it, and how long tpmon looks."""

    framework: Framework
    fault: Fault
    expected: tuple[Label, ...]

    @property
    def look_s(self) -> float:
        """Return how long tpmon looks: a hang takes 30 s to be one."""
        return HUNG_S if self.expected[0].kind is Kind.HUNG else LOOK_S

    def accepts(self, kind: str, cause: str) -> bool:
        return any(label.fits(kind, cause) for label in self.expected)

    def __str__(self) -> str:
        return f"{self.framework.program} {self.fault.value}"


FRAMEWORKS = (
    Framework("hf_trainer", ("transformers", "accelerate")),
    Framework("lightning_fit", ("lightning",)),
    Framework("accelerate_loop", ("accelerate", "numpy", "pillow")),
)

EXPECTED = {
    Fault.HEALTHY: HEALTHY,
    Fault.NO_WORKERS: (Label(Kind.DATA_BOUND, "no-workers"),),
    Fault.SLOW_STORE: (Label(Kind.DATA_BOUND, "network-store"),),
    Fault.SLOW_FUSE: (Label(Kind.DATA_BOUND, "storage-latency"),),
    Fault.OMP: HEALTHY,  # torch 2.13 makes no larger pool of it than there are CPUs
    Fault.POOL: (Label(Kind.OVERSUBSCRIBED, "rank-pool"),),
    Fault.ONE_CPU: (Label(Kind.DATA_BOUND, "cpu-transform"),),
    Fault.QUOTA: (Label(Kind.CPU_THROTTLED, "quota"),),
    Fault.STOPPED_WORKER: (Label(Kind.HUNG, "stopped"),),
    Fault.CHECKPOINTS: (Label(Kind.PAUSED, "checkpoint"),),
}

ROWS = tuple(Row(framework, fault, EXPECTED[fault]) for fault in Fault for framework in FRAMEWORKS)
