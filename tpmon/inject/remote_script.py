"""Ask the main thread of a CPython 3.14 or newer to run a script at its next safe point (PEP 768).

By the documented table at the beginning of its state, so that tpmon's own Python may be another version than
the process has, which ``sys.remote_exec`` does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tpmon.inject.memory import TargetMemory, UnmappedError
from tpmon.inject.python import Python
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.inject.request import ignore

_PLEASE_STOP, _SIGNALS, _CALLS, _EXCEPTION = 32, 2, 4, 8
_MOST_BYTES = 4096


class DebugLayout(NamedTuple):
    """Hold where the table keeps the offsets that are needed, in words of 8 bytes (3.14's version of it).

    From ``pycore_debug_offsets.h`` of 3.14.10 and 3.15.2.
    """

    finalizing: int = 4
    head: int = 5
    interpreter_bytes: int = 6
    id: int = 7
    next: int = 8
    threads: int = 9
    main: int = 10
    thread_bytes: int = 22
    thread_next: int = 24
    interpreter: int = 25
    native_id: int = 28
    breaker: int = 89
    support: int = 90
    is_enabled: int = 91
    pending: int = 92
    path: int = 93
    path_bytes: int = 94


LAYOUTS = {
    (3, 14): DebugLayout(),
    (3, 15): DebugLayout(
        native_id=31, breaker=105, support=106, is_enabled=107, pending=108, path=109, path_bytes=110
    ),
}


class RemoteScript:
    """Hold one request to one process."""

    def __init__(
        self, memory: TargetMemory, python: Python, inner_pid: int, on_write: Callable[[str], None] = ignore
    ) -> None:
        """Find the main thread, whose ID is the process's own.

        Raises:
            RefusedError: where the table does not agree with what it leads to, or scripts are not taken.
        """
        self._memory, self._on_write = memory, on_write
        try:
            self._find(python, inner_pid)
        except UnmappedError as error:
            raise RefusedError(RefusalReason.OFFSETS, str(error)) from error

    def _find(self, python: Python, inner_pid: int) -> None:
        memory, at = self._memory, LAYOUTS[python.minor]
        words = memory.unpack(f"<{at.path_bytes + 1}Q", python.runtime)
        if words[1] >> 16 != python.version[0] << 8 | python.version[1]:
            raise RefusedError(RefusalReason.OFFSETS, f"the table is of version {words[1]:#x}")
        sizes_known = 0 < words[at.thread_bytes] < 1 << 16 and 0 < words[at.interpreter_bytes] < 1 << 22
        if not sizes_known or max(words[at.breaker], words[at.support]) >= words[at.thread_bytes]:
            raise RefusedError(RefusalReason.OFFSETS, "the table holds impossible sizes")
        main = memory.read_u64(python.runtime + words[at.head])
        if memory.read_u64(python.runtime + words[at.finalizing]) or memory.read_u64(main + words[at.next]):
            raise RefusedError(RefusalReason.INTERPRETERS)
        if memory.read_u64(main + words[at.id]):
            raise RefusedError(RefusalReason.OFFSETS, "the main interpreter has another number")
        thread = memory.read_u64(main + words[at.main])
        agrees = thread and memory.read_u64(thread + words[at.interpreter]) == main
        if not agrees or memory.read_u64(thread + words[at.native_id]) != inner_pid:
            raise RefusedError(RefusalReason.OFFSETS, "no state of the main thread")
        if memory.read_i32(main + words[at.is_enabled]) != 1:
            raise RefusedError(RefusalReason.REMOTE_DEBUG)
        support = thread + words[at.support]
        self._pending, self._path = support + words[at.pending], support + words[at.path]
        self._path_bytes = words[at.path_bytes]
        self._breaker = thread + words[at.breaker]
        if not 0 < self._path_bytes <= _MOST_BYTES or memory.read_i32(self._pending) not in (0, 1):
            raise RefusedError(RefusalReason.OFFSETS, "no request of a debugger")

    def check(self) -> bool:
        """Return whether no request waits; False for one of a tpmon that ended.

        Raises:
            RefusedError: for another debugger's.
        """
        if self.is_taken():
            return True
        if b"/.tpmon-" not in self._memory.read(self._path, self._path_bytes).split(b"\0")[0]:
            raise RefusedError(RefusalReason.QUEUE, "a debugger asked for a script")
        return False

    def place(self, path: str) -> None:
        """Write the request for the script at ``path``, as the process sees it."""
        data = path.encode() + b"\0"
        if len(data) > self._path_bytes:
            raise RefusedError(RefusalReason.NO_PLACE, "its path is too long")
        self._memory.write((self._path, data))
        self._on_write("text")
        self._memory.write((self._pending, (1).to_bytes(4, "little")))
        self._on_write("flag")
        self.poke()

    def poke(self) -> None:
        """Have the main thread look for the request, if it still waits."""
        if not self.is_taken():
            events = self._memory.read(self._breaker, 1)[0] | _PLEASE_STOP | _SIGNALS | _CALLS | _EXCEPTION
            self._memory.write((self._breaker, bytes([events])))
            self._on_write("breaker")

    def is_taken(self) -> bool:
        """Tell whether no request waits."""
        return self._memory.read_i32(self._pending) == 0

    def take_back(self) -> bool:
        """Withdraw the request; False where it was taken meanwhile.

        The path stays: the main thread may be reading it.
        """
        if self.is_taken():
            return False
        self._memory.write((self._pending, bytes(4)))
        return self.is_taken()

    def clean(self) -> None:
        """Make the bytes zero that held the path, once the request was taken."""
        self._memory.write((self._path, bytes(1)))
