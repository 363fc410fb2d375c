"""Find the library whose thread pool wants more CPUs than there are, by where its threads began.

Threads of OpenMP, MKL and OpenBLAS inherit their creator's name. So the library is found, where the kernel
allows, by where the threads began, else by where blocked ones entered the kernel (libgomp makes its futex
calls itself; the others use libc), else by what the process maps.

A pool's thread begins in its library (``gomp_thread_start``, ``blas_thread_server``, a worker of OpenCV), and
the return address of that first function stays at the far end of its stack for its whole life. glibc on
x86-64 puts the thread's own block above the stack, in the same mapping: two of its words are the block's own
address, and its thread id lies 720 bytes on (``nptl/descr.h``: ``header.tcb``, ``header.self``, ``tid``).
Where that does not fit (another C library or architecture) nothing is said.
"""

from __future__ import annotations

import bisect
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.host import PoolLibrary
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Identity, ProcessSample
from tpmon.probe.base.procread import each_process, parse_field, read_file, read_or
from tpmon.probe.base.worker import read_within
from tpmon.probe.collect.frame import find_pool
from tpmon.probe.proc.wchan import parse_syscall

_TID_AT = 720
_SELF_AT = 16
_BLOCK_BYTES = 8192  # from the end of a stack; they hold glibc's block of 2.3 KB
_FAR_END_BYTES = 1 << 16  # below the block: thread-local variables, some KB, then the first frames
_STACK_BYTES = 8 << 20  # of a stack by default; if its guard is no mapping (glibc 2.42), neighbours are one
_LEAST_STACK_BYTES = 1 << 16
MOST_STACKS = 512


@dataclass(frozen=True, slots=True)
class Mapping:
    """Hold one mapping: an executable file, or the possible stack of one or several threads."""

    start: int
    end: int
    path: str = ""


def parse_stacks(raw: bytes) -> tuple[Mapping, ...]:
    """Return the possible thread stacks in /proc/PID/maps: anonymous mappings behind a guard, or large."""
    stacks = []
    guard_end = 0
    for line in raw.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        start, end = (int(number, 16) for number in fields[0].split(b"-"))
        least = _LEAST_STACK_BYTES if guard_end == start else _STACK_BYTES
        if len(fields) == 5 and fields[1].startswith(b"rw") and end - start >= least:
            stacks.append(Mapping(start, end))
        guard_end = end if fields[1].startswith(b"---") else 0
    return tuple(stacks)


def _list_words(block: bytes) -> tuple[int, ...]:
    return struct.unpack_from(f"={len(block) // 8}Q", block)


def find_thread(block: bytes, base: int) -> tuple[int, int] | None:
    """Return the address of glibc's block in ``block``, which lies at ``base``, and its thread id."""
    words = _list_words(block)
    for place in range(len(words) - 1, -1, -1):
        address = base + 8 * place
        if words[place] != address or 8 * place + _TID_AT + 4 > len(block):
            continue
        if words[place + _SELF_AT // 8] == address:
            return address, struct.unpack_from("=i", block, 8 * place + _TID_AT)[0]
    return None


def _tops(stacks: Iterable[Mapping]) -> Iterator[tuple[Mapping, int]]:
    for stack in stacks:
        for top in range(stack.end, stack.start + _LEAST_STACK_BYTES, -_STACK_BYTES):
            yield stack, top


def read_far_ends(
    pid: int, tids: Sequence[int], stacks: Sequence[Mapping], proc: str = "/proc"
) -> tuple[tuple[int, ...], ...]:
    """Return the words at the far end of the threads' stacks, each thread's from its beginning on.

    Threads that are not found are left out. Reads memory without stopping the process; OSError where this
    user may not trace it.
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
            found.append(_list_words(_pread(memory, low, thread[0] - low))[::-1])
    finally:
        os.close(memory)
    return tuple(found)


def _pread(memory: int, address: int, count: int) -> bytes:
    return read_or(b"", lambda: os.pread(memory, count, address))  # b"": it went away meanwhile


def _read_inner_tid(pid: int, tid: int, proc: str) -> int:
    """Return a thread's number in its own PID namespace, by which it knows itself."""
    status = read_or(b"", lambda: read_file(f"{proc}/{pid}/task/{tid}/status"))  # "": it has ended
    numbers = parse_field(status, b"NSpid").split()
    return int(numbers[-1]) if numbers else tid


SAMPLED_THREADS = 8
LIBRARY_EVERY_NS = 60_000_000_000
_DEADLINE_S = 0.5
_LIBRARIES = (
    (re.compile(r"/libgomp[-.]"), PoolLibrary.GOMP),
    (re.compile(r"/libiomp5|/libomp[-.]"), PoolLibrary.IOMP),
    (re.compile(r"/libmkl_\w*thread"), PoolLibrary.MKL),
    (re.compile(r"/libopenblas|/libscipy_openblas"), PoolLibrary.OPENBLAS),
    (re.compile(r"/cv2[./]|/libopencv_core"), PoolLibrary.OPENCV),
    (re.compile(r"/numexpr/"), PoolLibrary.NUMEXPR),
    (re.compile(r"/libtbb"), PoolLibrary.TBB),
)
_TORCH = re.compile(r"/libtorch_cpu|/libc10[.]")  # every training maps it: it names only threads begun in it
_C_LIBRARY = re.compile(r"/(libc|libpthread)[.-]")


def parse_maps(raw: bytes) -> tuple[Mapping, ...]:
    """Return the executable file mappings of /proc/PID/maps, by address."""
    mappings = []
    for line in raw.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and b"x" in fields[1] and fields[5].startswith(b"/"):
            start, _, end = fields[0].partition(b"-")
            mappings.append(Mapping(int(start, 16), int(end, 16), fields[5].decode("utf-8", "replace")))
    return tuple(sorted(mappings, key=lambda one: one.start))


def name_library(path: str) -> PoolLibrary | None:
    """Return the pool library of a mapped path; None for any other file."""
    return next((library for pattern, library in _LIBRARIES if pattern.search(path)), None)


def find_mapping(mappings: Sequence[Mapping], address: int) -> str:
    """Return the path mapped at an address, "" for none."""
    at = bisect.bisect_right([one.start for one in mappings], address) - 1
    return mappings[at].path if at >= 0 and address < mappings[at].end else ""


def name_start(mappings: Sequence[Mapping], words: Sequence[int]) -> PoolLibrary | None:
    """Name the library in which a thread began, by the words at the far end of its stack; None for none.

    The C library calls the first function of a thread. What lies before that are the thread's variables, in
    which torch keeps pointers to its own code.
    """
    starters = [one for one in mappings if _C_LIBRARY.search(one.path)]
    named = [
        (one.start, one.end, name)
        for one in mappings
        if (name := name_library(one.path) or (PoolLibrary.TORCH if _TORCH.search(one.path) else None))
    ]
    started = False
    for word in words:
        started = started or any(one.start <= word < one.end for one in starters)
        for start, end, name in named:
            if started and start <= word < end:
                return name
    return None


def choose_library(mappings: Sequence[Mapping], blocked_at: Sequence[str]) -> Known[tuple[PoolLibrary, ...]]:
    """Name a pool's library by what is mapped and by the paths where its blocked threads made their calls."""
    named = tuple(filter(None, map(name_library, blocked_at)))[:1]
    candidates = dict.fromkeys(filter(None, (name_library(one.path) for one in mappings)))
    return named or tuple(candidates) or Missing("no known pool library is mapped")


def read_pool_library(
    pid: int, tids: Sequence[int], proc: str = "/proc", *, memory: bool = True
) -> Known[tuple[PoolLibrary, ...]]:
    """Name the library of a pool by its busy threads within half a second; ``memory``: read that, too."""

    def read() -> Known[tuple[PoolLibrary, ...]]:
        raw = read_file(f"{proc}/{pid}/maps")
        mappings, some = parse_maps(raw), tids[:SAMPLED_THREADS]
        if memory and (begun := _read_starts(pid, some, raw, mappings, proc)) is not None:
            return (begun,)
        # A thread may be gone, or Yama forbids it: the mapped libraries still help.
        path = f"{proc}/{pid}/task/%d/syscall"
        calls = each_process(some, lambda tid: parse_syscall(read_file(path % tid, 256)))
        blocked = [find_mapping(mappings, call.user_pc) for call in calls.values() if is_known(call)]
        return choose_library(mappings, blocked)

    return read_within(_DEADLINE_S, read)


def _read_starts(
    pid: int, tids: Sequence[int], raw: bytes, mappings: Sequence[Mapping], proc: str
) -> PoolLibrary | None:
    """Name the library in which most of the threads began; None where that is unknown."""
    # Where reading is not permitted, what is mapped still helps.
    ends: Sequence[Sequence[int]] = read_or((), lambda: read_far_ends(pid, tids, parse_stacks(raw), proc))
    names = Counter(filter(None, (name_start(mappings, words) for words in ends)))
    return max(names, key=lambda name: names[name], default=None)


class PoolLibraries:
    """Find the library of a job's largest pool, each process's once a minute."""

    def __init__(self, busy_tids: Callable[[Identity], Sequence[int]], *, memory: bool = True) -> None:
        self._busy_tids = busy_tids
        self._memory = memory
        self._known: dict[Identity, tuple[Known[tuple[PoolLibrary, ...]], int]] = {}

    def read(self, processes: Sequence[ProcessSample], now_ns: int) -> Known[tuple[PoolLibrary, ...]]:
        """Return whose pool wants most; ``now_ns`` is CLOCK_MONOTONIC."""
        pool = find_pool(processes)
        if pool is None:
            return Missing("no thread pool is busy")
        for old in self._known.keys() - {Identity(one.pid, one.start_ticks) for one in processes}:
            del self._known[old]
        identity = Identity(pool.pid, pool.start_ticks)
        known = self._known.get(identity)
        if known is None or now_ns - known[1] > LIBRARY_EVERY_NS:
            named = read_pool_library(pool.pid, self._busy_tids(identity), memory=self._memory)
            known = self._known[identity] = (named, now_ns)
        return known[0]
