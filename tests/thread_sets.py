"""Make ThreadSets that a test reads when it wants to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tpmon.model.process import ThreadKind
from tpmon.probe.proc.threads import Allowance, ThreadSet


def kind_of(name: str) -> ThreadKind:
    """Tell autograd's threads from others."""
    return ThreadKind.AUTOGRAD if name.startswith("pt_autograd") else ThreadKind.OTHER


@contextmanager
def making_sets() -> Iterator[Callable[..., ThreadSet]]:
    """Give what makes ThreadSets with an allowance, and close them all."""
    made = []

    def make(pid: int, descriptors: int = 1000, names: int = 1000, proc: str = "/proc") -> ThreadSet:
        made.append(ThreadSet(pid, kind_of, Allowance(descriptors, names), proc))
        return made[-1]

    yield make
    for one in made:
        one.close()
