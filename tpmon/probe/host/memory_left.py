"""Read from outside how much memory a process may still take: of the machine, and below its limit."""

from __future__ import annotations

import contextlib
import time

from tpmon.model.known import Known, is_known
from tpmon.probe.host.cgroup import CgroupReader
from tpmon.probe.host.machine import HostReader


def read_memory_left(pid: int, proc: str = "/proc") -> Known[int]:
    """Return the bytes that are left, or why nobody knows.

    Of several limits up the tree it is the smallest that counts. Where one may lie above the view of a
    container, or is not readable, what the machine has left is all that is known.
    """
    groups, host = CgroupReader((pid,), proc), HostReader(proc)
    with contextlib.closing(groups), contextlib.closing(host):
        group = groups.read(time.monotonic_ns())
        left = host.read().available_bytes
    if is_known(group.limit_bytes) and is_known(group.used_bytes):
        below = max(0, group.limit_bytes - group.used_bytes)
        return min(left, below) if is_known(left) else below
    return left
