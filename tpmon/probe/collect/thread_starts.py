"""Tell which library started a thread: from the far end of its stack, without a stop.

A thread of a pool begins in its library (``gomp_thread_start``, ``blas_thread_server``, a worker of
OpenCV), and the return address of that first function stays at the far end of its stack while the
thread lives, wherever it runs. glibc on x86-64 puts the thread's own block above the stack, in the
same mapping: two of its words are the block's own address, and its thread id lies 720 bytes on
(``nptl/descr.h``: ``header.tcb``, ``header.self``, ``tid``). What does not look so (another C library,
another architecture) is not told.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence

from tpmon.model.frozen import dataclass

_TID_AT = 720
_SELF_AT = 16
_BLOCK_BYTES = 8192
"""From the end of a stack, in which glibc's block of 2.3 KB lies."""
_FAR_END_BYTES = 1 << 16
"""Below the block: the thread-local variables of the libraries, some KB, then the first frames."""
_STACK_BYTES = 8 << 20
"""Default size of a stack: where its guard is no mapping of its own (glibc 2.42), neighbours are one."""
_LEAST_STACK_BYTES = 1 << 16
MOST_STACKS = 512


@dataclass(frozen=True, slots=True)
class Stack:
    """Hold one mapping that may be the stack of a thread, or of several."""

    start: int
    end: int


def parse_stacks(raw: bytes) -> tuple[Stack, ...]:
    """Return what may be stacks of threads in /proc/PID/maps: anonymous mappings behind a guard, or large."""
    stacks = []
    guard_end = 0
    for line in raw.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        start, end = (int(number, 16) for number in fields[0].split(b"-"))
        least = _LEAST_STACK_BYTES if guard_end == start else _STACK_BYTES
        if len(fields) == 5 and fields[1].startswith(b"rw") and end - start >= least:
            stacks.append(Stack(start, end))
        guard_end = end if fields[1].startswith(b"---") else 0
    return tuple(stacks)


def find_thread(block: bytes, base: int) -> tuple[int, int] | None:
    """Return the address of glibc's block in ``block``, which lies at ``base``, and its thread id."""
    words = struct.unpack_from(f"={len(block) // 8}Q", block)
    for place in range(len(words) - 1, -1, -1):
        address = base + 8 * place
        if words[place] != address or 8 * place + _TID_AT + 4 > len(block):
            continue
        if words[place + _SELF_AT // 8] == address:
            return address, struct.unpack_from("=i", block, 8 * place + _TID_AT)[0]
    return None


def list_words(block: bytes) -> tuple[int, ...]:
    """Return the words of a block from its far end on, highest address first."""
    return struct.unpack_from(f"={len(block) // 8}Q", block)[::-1]


def _tops(stacks: Iterable[Stack]) -> Iterator[tuple[Stack, int]]:
    for stack in stacks:
        for top in range(stack.end, stack.start + _LEAST_STACK_BYTES, -_STACK_BYTES):
            yield stack, top


def read_far_ends(
    pid: int, tids: Sequence[int], stacks: Sequence[Stack], proc: str = "/proc"
) -> tuple[tuple[int, ...], ...]:
    """Return the words at the far end of the stacks of threads, those of each thread from its beginning on.

    Threads that are not found are left out. Reads the memory of the process, which the kernel permits to whom
    may trace it; it is not stopped.

    Raises:
        OSError: when it may not be read.
    """
    wanted = {_read_inner_tid(pid, tid, proc) for tid in tids}
    found: list[tuple[int, ...]] = []
    memory = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for count, (stack, top) in enumerate(_tops(stacks)):
            if not wanted or count >= MOST_STACKS:
                break
            thread = find_thread(_pread(memory, top - _BLOCK_BYTES, _BLOCK_BYTES), top - _BLOCK_BYTES)
            if thread is None or thread[1] not in wanted:
                continue
            wanted.remove(thread[1])
            low = max(stack.start, thread[0] - _FAR_END_BYTES)
            found.append(list_words(_pread(memory, low, thread[0] - low)))
    finally:
        os.close(memory)
    return tuple(found)


def _pread(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, count, address)
    except OSError:  # the mapping went away since it was listed
        return b""


def _read_inner_tid(pid: int, tid: int, proc: str) -> int:
    """Return the number that a thread has in its own PID namespace, which is what it knows itself by."""
    try:
        with open(f"{proc}/{pid}/task/{tid}/status", "rb") as file:
            line = next((one for one in file if one.startswith(b"NSpid:")), b"")
    except OSError:  # it has ended: no stack has its number any more
        return tid
    return int(line.split()[-1]) if line else tid
