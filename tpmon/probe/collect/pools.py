"""Tell whose thread pool it is that wants more CPUs than there are.

Threads of OpenMP, MKL and OpenBLAS carry the name of the thread that made them, so the library is told, where
the kernel allows, from where the threads began (thread_starts.py), else from where blocked ones entered the
kernel (libgomp makes its futex calls itself; the others go through libc), else from what the process maps.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Callable, Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.process import Identity, ProcessSample
from tpmon.probe.base.deadline import read_within
from tpmon.probe.base.each_process import each_process
from tpmon.probe.base.procread import read_file
from tpmon.probe.collect.frame import find_pool
from tpmon.probe.collect.thread_starts import parse_stacks, read_far_ends
from tpmon.probe.proc.wchan import parse_syscall

THREADS_LOOKED_AT = 8
LIBRARY_EVERY_NS = 60_000_000_000
_DEADLINE_S = 0.5
_LIBRARIES = (
    (re.compile(r"/libgomp[-.]"), "OpenMP (libgomp: torch)"),
    (re.compile(r"/libiomp5|/libomp[-.]"), "OpenMP (libiomp5: torch, MKL)"),
    (re.compile(r"/libmkl_\w*thread"), "MKL"),
    (re.compile(r"/libopenblas|/libscipy_openblas"), "OpenBLAS (numpy)"),
    (re.compile(r"/cv2[./]|/libopencv_core"), "OpenCV (cv2)"),
    (re.compile(r"/numexpr/"), "numexpr"),
    (re.compile(r"/libtbb"), "TBB"),
)
_TORCH = re.compile(r"/libtorch_cpu|/libc10[.]")
"""Is mapped in every training: it names only a thread that began in it."""
_C_LIBRARY = re.compile(r"/(libc|libpthread)[.-]")


@dataclass(frozen=True, slots=True)
class Mapping:
    """Hold one executable mapping of a process."""

    start: int
    end: int
    path: str


def parse_maps(raw: bytes) -> tuple[Mapping, ...]:
    """Return the executable file mappings of /proc/PID/maps, by address."""
    mappings = []
    for line in raw.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and b"x" in fields[1] and fields[5].startswith(b"/"):
            start, _, end = fields[0].partition(b"-")
            mappings.append(Mapping(int(start, 16), int(end, 16), fields[5].decode("utf-8", "replace")))
    return tuple(sorted(mappings, key=lambda one: one.start))


def name_library(path: str) -> str:
    """Return a pool library's name for a mapped path, "" for any other file."""
    return next((name for pattern, name in _LIBRARIES if pattern.search(path)), "")


def find_mapping(mappings: Sequence[Mapping], address: int) -> str:
    """Return the path mapped at an address, "" for none."""
    at = bisect.bisect_right([one.start for one in mappings], address) - 1
    return mappings[at].path if at >= 0 and address < mappings[at].end else ""


def name_start(mappings: Sequence[Mapping], words: Sequence[int]) -> str:
    """Name the library in which a thread began, from the words at the far end of its stack; "" for none.

    The first function of a thread is called by the C library. What lies before that are variables of the
    thread, and torch keeps pointers to its own code in some.
    """
    starters = [one for one in mappings if _C_LIBRARY.search(one.path)]
    named = [
        (one.start, one.end, name)
        for one in mappings
        if (name := name_library(one.path) or ("torch" if _TORCH.search(one.path) else ""))
    ]
    started = False
    for word in words:
        started = started or any(one.start <= word < one.end for one in starters)
        for start, end, name in named:
            if started and start <= word < end:
                return name
    return ""


def choose_library(mappings: Sequence[Mapping], blocked_at: Sequence[str]) -> Known[str]:
    """Name the library of a pool from what is mapped and where its blocked threads stand.

    ``blocked_at`` are the paths in which blocked pool threads entered the kernel.
    """
    for path in blocked_at:
        named = name_library(path)
        if named:
            return named
    candidates = list(dict.fromkeys(filter(None, (name_library(one.path) for one in mappings))))
    if not candidates:
        return Missing("no known pool library is mapped")
    return " or ".join(candidates)


def read_pool_library(
    pid: int, tids: Sequence[int], proc: str = "/proc", *, memory: bool = True
) -> Known[str]:
    """Name the library of a pool whose busy threads are ``tids``; bounded by half a second.

    Without ``memory`` nothing of the process's memory is read.
    """

    def read() -> Known[str]:
        with open(f"{proc}/{pid}/maps", "rb") as file:
            raw = file.read()
        mappings = parse_maps(raw)
        begun = _read_starts(pid, tids[:THREADS_LOOKED_AT], raw, mappings, proc) if memory else ""
        if begun:
            return begun
        # One that is gone, or not permitted under Yama: the mapped libraries still tell something.
        path = f"{proc}/{pid}/task/%d/syscall"
        calls = each_process(
            tids[:THREADS_LOOKED_AT], lambda tid: parse_syscall(read_file(path % tid, 256))
        ).values()
        blocked = [find_mapping(mappings, call.user_pc) for call in calls if is_known(call)]
        return choose_library(mappings, blocked)

    return read_within(_DEADLINE_S, read)


def _read_starts(pid: int, tids: Sequence[int], raw: bytes, mappings: Sequence[Mapping], proc: str) -> str:
    """Name the library in which most of the threads began, "" where none is told."""
    try:
        ends = read_far_ends(pid, tids, parse_stacks(raw), proc)
    except OSError:  # not permitted: what is mapped still tells something
        return ""
    names = Counter(filter(None, (name_start(mappings, words) for words in ends)))
    return names.most_common(1)[0][0] if names else ""


class PoolLibraries:
    """Tell the library of the largest pool of a job, each process's once a minute."""

    def __init__(self, busy_tids: Callable[[Identity], Sequence[int]], *, memory: bool = True) -> None:
        """Ask ``busy_tids`` for the busy threads of a process, busiest first."""
        self._busy_tids = busy_tids
        self._memory = memory
        self._known: dict[Identity, tuple[Known[str], int]] = {}

    def read(self, processes: Sequence[ProcessSample], now_ns: int) -> Known[str]:
        """Return whose pool it is that wants most; ``now_ns`` is CLOCK_MONOTONIC."""
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
