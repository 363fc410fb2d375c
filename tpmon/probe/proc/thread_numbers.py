"""Tell the kernel's number of the threads that py-spy names by another: in a container, in an old Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from tpmon.model.known import Missing
from tpmon.model.stacks import StackCount
from tpmon.probe.base.procread import PROC, read_file, read_status
from tpmon.probe.proc.syscall import read_memory

_MACHINE = os.uname().machine
_TID_AT = {"x86_64": 720, "aarch64": 208}
"""Where glibc keeps the kernel's number of a thread, behind the address that pthread_self() returns."""
_LOWEST_ADDRESS = 1 << 32


def number_stacks(
    pid: int, stacks: Sequence[StackCount], here: set[int], proc: str = PROC, machine: str = _MACHINE
) -> list[tuple[int, StackCount]]:
    """Give each stack our number of its thread; one that cannot be told keeps what py-spy said.

    py-spy tells the number of the target's PID namespace, and before Python 3.11 an address alone.
    ``here`` are the threads of the process as /proc lists them.
    """
    said = {stack.tid for stack in stacks}
    unknown = said - here
    outer: dict[int, int] = _read_inner_numbers(pid, here, proc) if unknown else {}
    for tid in unknown - outer.keys():
        number = _read_number(pid, tid, here, proc, machine)
        # One thread is never two: a number that is taken is somebody else's.
        if number is not None and number not in said and number not in outer.values():
            outer[tid] = number
    return [(stack.tid if stack.tid in here else outer.get(stack.tid, stack.tid), stack) for stack in stacks]


def _read_number(pid: int, pthread: int, here: set[int], proc: str, machine: str) -> int | None:
    """Read the kernel's number of a thread out of what glibc keeps of it (struct pthread, field tid).

    It counts only where it is the number of a living thread of that process: other C libraries differ.
    """
    at = _TID_AT.get(machine)
    if at is None or pthread < _LOWEST_ADDRESS:
        return None
    data = read_memory(pid, pthread + at, 4, proc)
    if isinstance(data, Missing) or len(data) < 4:
        return None
    number = int.from_bytes(data, sys.byteorder)
    return number if number in here else None


def _read_inner_numbers(pid: int, tids: Iterable[int], proc: str) -> dict[int, int]:
    """Map the numbers that threads have in their container to ours; {} where there is no container."""
    try:
        if len(read_status(pid, proc).ns_pids) < 2:
            return {}
        pairs = [(read_file(f"{proc}/{pid}/task/{tid}/status", 65536), tid) for tid in tids]
    except (OSError, KeyError, ValueError):
        return {}
    inner: dict[int, int] = {}
    for status, tid in pairs:
        for line in status.splitlines():
            if line.startswith(b"NSpid:"):
                inner[int(line.split()[-1])] = tid
    return inner
