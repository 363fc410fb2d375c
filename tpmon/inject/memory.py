"""Read and write the memory of another process while it runs: no stop, no ptrace, no signal.

``process_vm_writev`` respects the protection of a page, as /proc/PID/mem does not: what is read-only there
stays as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.frozen import dataclass
from tpmon.probe.base.procread import PROC, read_file

_MOST_BYTES = 1 << 20


class _Piece(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))


class UnmappedError(ValueError):
    """Refuse an address where the process has no memory of that kind."""


class TargetMemory:
    """Hold the calls for one process."""

    def __init__(self, pid: int) -> None:
        """Touch nothing yet."""
        self.pid = pid
        library = ctypes.CDLL(None, use_errno=True)
        self._read, self._write = library.process_vm_readv, library.process_vm_writev
        pieces = (ctypes.c_void_p, ctypes.c_ulong)
        for call in (self._read, self._write):
            call.restype = ctypes.c_ssize_t
            call.argtypes = (ctypes.c_int, *pieces, *pieces, ctypes.c_ulong)

    def read(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes; UnmappedError where there are none, RefusedError where that is forbidden."""
        if not 0 < size <= _MOST_BYTES or not 0 < at < 1 << 47:
            raise UnmappedError(f"{size} bytes at {at:#x}")
        buffer = ctypes.create_string_buffer(size)
        here, there = _Piece(ctypes.addressof(buffer), size), _Piece(at, size)
        done = self._read(self.pid, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0)
        self._check(done, at, size)
        return buffer.raw

    def write(self, *pieces: tuple[int, bytes]) -> None:
        """Write pieces in their order, in one call of the kernel; errors as of ``read``."""
        data = [ctypes.create_string_buffer(one, len(one)) for _, one in pieces]
        here = (_Piece * len(pieces))(*(_Piece(ctypes.addressof(one), len(one)) for one in data))
        there = (_Piece * len(pieces))(*(_Piece(at, len(one)) for at, one in pieces))
        many = len(pieces)
        done = self._write(self.pid, ctypes.addressof(here), many, ctypes.addressof(there), many, 0)
        self._check(done, pieces[0][0], sum(len(one) for _, one in pieces))

    def read_u64(self, at: int) -> int:
        """Return a word of 8 bytes."""
        return int.from_bytes(self.read(at, 8), "little")

    def read_i32(self, at: int) -> int:
        """Return a signed word of 4 bytes."""
        return int.from_bytes(self.read(at, 4), "little", signed=True)

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        """Return what a ``struct`` layout of whole numbers finds there."""
        return struct.unpack(layout, self.read(at, struct.calcsize(layout)))

    def _check(self, done: int, at: int, size: int) -> None:
        if done == size:
            return
        number = ctypes.get_errno() if done < 0 else errno.EFAULT
        if number == errno.ESRCH:
            raise RefusedError(RefusalReason.GONE)
        if number == errno.EFAULT:
            raise UnmappedError(f"{size} bytes at {at:#x}")
        raise RefusedError(RefusalReason.NOT_PERMITTED, os.strerror(number))


@dataclass(frozen=True, slots=True)
class MappedRange:
    """Hold a line of /proc/PID/maps."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str


def parse_mappings(data: bytes) -> Iterator[MappedRange]:
    """Parse /proc/PID/maps."""
    for line in data.splitlines():
        span, permissions, offset, _, _, *path = line.split(maxsplit=5)
        start, _, end = span.partition(b"-")
        name = path[0].decode("utf-8", "surrogateescape") if path else ""
        yield MappedRange(int(start, 16), int(end, 16), permissions.decode(), int(offset, 16), name)


def read_mappings(pid: int, proc: str = PROC) -> tuple[MappedRange, ...]:
    """Read the mappings of a process; RefusedError where they may not be read."""
    try:
        return tuple(parse_mappings(read_file(f"{proc}/{pid}/maps", 64 << 20)))
    except PermissionError as error:
        raise RefusedError(RefusalReason.NOT_PERMITTED, "its mappings") from error
    except OSError as error:
        raise RefusedError(RefusalReason.GONE) from error
