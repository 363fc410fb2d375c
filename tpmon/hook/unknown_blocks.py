"""Keep torch from warning of memory that was allocated before its profiler began to watch allocations.

Each block of the host's memory that is freed while ``profile_memory`` is on, and that torch did not see come,
is counted, and at the 0th, 1000th and so on it writes a line to the program's standard error. It begins anew
at each step, so that only a step that frees a thousand such blocks brings the line. It is private to
torch: it is used only where a look at it before and after torch itself counts a block shows that it is there.
"""

from __future__ import annotations

import os
import sys

from tpmon.hook.surroundings import torch_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REPORTER = "_ZN3c1025profiledCPUMemoryReporterEv"
_FREED = "_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv"
_LEVEL = "FLAGS_caffe2_log_level"
_FATAL, _ABOVE_WARNINGS = 3, 2
"""Of torch's levels: information 0, warning 1, error 2, fatal 3."""

_MOST = 1 << 40
"""More blocks than this nobody freed: the word is something else."""

_NO_BLOCK = 1
"""An address at which no block lies: torch looks it up, and nothing else."""

_PLACES = (40 + 56 + 8, 48 + 56 + 8)
"""Of the count, in bytes: behind a mutex (of x86, of ARM), a table and a sum."""


class UnknownBlocks:
    """Hold torch's count of unknown blocks: ``begin``, ``begin_step`` at each step, ``end``."""

    __slots__ = ("_before", "_count")

    def __init__(self) -> None:
        """Look at nothing yet."""
        self._count: Any = None
        self._before = 0

    def begin(self) -> bool:
        """Find the count, in the thread that records and once it does; False where torch has it elsewhere."""
        try:
            self._count = self._find()
        except (ImportError, OSError, ValueError, AttributeError):
            self._count = None
        return self._count is not None

    def begin_step(self) -> None:
        """Begin the count anew."""
        if self._count is not None:
            self._count.value = 1

    def end(self) -> None:
        """Put back what the program's own profiler would go on from."""
        count, self._count = self._count, None
        if count is not None:
            count.value = self._before

    def _find(self) -> Any:
        import ctypes  # noqa: PLC0415

        if sys.maxsize < _MOST:
            return None  # the words below are those of 64 bits
        library = ctypes.CDLL(f"{torch_folder()}lib/libc10.so", os.RTLD_NOLOAD | os.RTLD_LAZY)
        level = ctypes.c_int.in_dll(library, _LEVEL)
        if not -1 <= level.value <= _FATAL:
            return None
        reporter, freed = library[_REPORTER], library[_FREED]
        reporter.restype = ctypes.c_void_p
        freed.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        freed.restype = None
        place = reporter()
        if not place:
            return None
        words = [ctypes.c_size_t.from_address(place + offset) for offset in _PLACES]
        before = [word.value for word in words]
        told = level.value
        level.value = max(told, _ABOVE_WARNINGS)  # for microseconds, and for this one block
        try:
            freed(place, _NO_BLOCK)
        finally:
            level.value = told
        for word, was in zip(words, before):
            if was < _MOST and word.value == was + 1:
                self._before = was
                return word
        return None
