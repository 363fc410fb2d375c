"""Ask the main thread of a CPython 3.10 to 3.13 to run a script at its next safe point, by a pending call.

These Pythons do not take scripts of others (PEP 768, Python 3.14). So this writes what
``Py_AddPendingCall`` would write: a call of ``PyRun_SimpleString`` into the empty queue of the main thread,
with a text in bytes that no variable uses. The order makes each unfinished state harmless: the text alone is
nothing, the slot is beyond the end of the queue until that is moved, and then the call is whole.
"""

from __future__ import annotations

from collections.abc import Callable

from tpmon.inject.layout import Queue
from tpmon.inject.memory import TargetMemory
from tpmon.inject.python import Python
from tpmon.inject.refusal import RefusalReason, RefusedError

TEXT = (
    "#tpmon\ntry:\n (lambda b,p,x:(lambda f:b['exec'](b['compile']((x.read(f,1<<20),x.close(f))[0],p,'exec'),"
    "{{'__builtins__':b}}))(x.open(p,0)))((lambda:0).__builtins__,'{path}',"
    "(lambda:0).__builtins__['__import__']('posix'))\n"
    "except:\n pass\n"
)
"""It takes no name from ``__main__`` and leaves none there, and raises nothing."""

_MARK = b"tpmon\n"
"""Behind the first byte of the text, which is zero where it was taken back."""

TEXT_BYTES = 384
_SIGNALS, _CALLS, _EXCEPTION = 2, 4, 8
"""Bits of ``eval_breaker`` since 3.13. All three: one that its owner sets between our reading and our writing
would be lost, and one too many only has Python look."""


def ignore(_point: str) -> None:
    """Do nothing after a write."""


class PendingCall:
    """Hold one request to one process."""

    def __init__(
        self, memory: TargetMemory, python: Python, queue: Queue, on_write: Callable[[str], None] = ignore
    ) -> None:
        """Touch nothing; ``on_write`` is told each write once it is done."""
        self._memory, self._python, self._queue, self._on_write = memory, python, queue, on_write
        self._text = python.slack + python.slack_bytes - TEXT_BYTES

    def check(self) -> bool:
        """Return whether the queue is empty; False where all it holds is a call of a tpmon that ended.

        Raises:
            RefusedError: where others use the queue, or the bytes for the text.
        """
        python = self._python
        if python.slack_bytes < TEXT_BYTES:
            raise RefusedError(RefusalReason.SLACK, f"{python.slack_bytes} bytes")
        slack = self._memory.read(python.slack, python.slack_bytes)
        before, text = slack[:-TEXT_BYTES], slack[-TEXT_BYTES:]
        if any(before) or (any(text) and not text[1:].startswith(_MARK)):
            raise RefusedError(RefusalReason.SLACK)
        if self.is_taken():
            return True
        if self._count_left() != 1 or not self._is_ours():
            raise RefusedError(RefusalReason.QUEUE)
        return self._undo_half()

    def _undo_half(self) -> bool:
        """Move back the end that a killed tpmon moved without counting its call; False where it counted."""
        memory, queue = self._memory, self._queue
        if not queue.counts or memory.read_i32(queue.to_do):
            return False
        memory.write((queue.last, memory.read(queue.first, 4)))
        at = queue.calls + memory.read_i32(queue.first) * queue.call_bytes
        memory.write((at, bytes(queue.call_bytes)))
        return True

    def place(self, path: str) -> None:
        """Write the request for the script at ``path``, as the process sees it."""
        memory, queue = self._memory, self._queue
        text = TEXT.format(path=path).encode()
        if len(text) >= TEXT_BYTES:
            raise RefusedError(RefusalReason.NO_PLACE, "its path is too long")
        memory.write((self._text, text.ljust(TEXT_BYTES, b"\0")))
        self._on_write("text")
        at = memory.read_i32(queue.last)
        call = self._call().ljust(queue.call_bytes, b"\0")
        end = _pack((at + 1) % queue.size)
        if not self.is_taken():
            memory.write((self._text, bytes(TEXT_BYTES)))
            raise RefusedError(RefusalReason.QUEUE)
        memory.write((queue.calls + at * queue.call_bytes, call))
        self._on_write("slot")
        if queue.counts:
            memory.write((queue.last, end), (queue.to_do, _pack(1)))
        else:
            memory.write((queue.last, end))
        self._on_write("end")
        self.poke()

    def poke(self) -> None:
        """Have the main thread look into its queue, if the request still waits there."""
        memory, queue = self._memory, self._queue
        if self.is_taken():
            return
        if not queue.counts:  # a count that is written after the call was taken would break the queue
            memory.write((queue.to_do, _pack(1)))
        self._on_write("flag")
        if queue.counts:
            events = memory.read(queue.breaker, 1)[0] | _SIGNALS | _CALLS | _EXCEPTION
            memory.write((queue.breaker, bytes([events])))
        elif memory.read_i32(queue.breaker) == 0:
            memory.write((queue.breaker, _pack(1)))
        self._on_write("breaker")

    def is_taken(self) -> bool:
        """Tell whether the queue is empty: the main thread took the request."""
        memory, queue = self._memory, self._queue
        return memory.read(queue.first, 4) == memory.read(queue.last, 4) and not (
            queue.counts and memory.read_i32(queue.to_do)
        )

    def take_back(self) -> bool:
        """Empty the text, so that the call that waits runs nothing; False where it was taken meanwhile.

        The call stays in the queue: to move the queue's end could meet the main thread as it takes the call.
        The first byte goes first: whoever copies the text at this moment copies all of it.
        """
        self._memory.write((self._text, b"\0"))
        if self.is_taken():
            return False
        self._memory.write((self._text, bytes(TEXT_BYTES)))
        return not any(self._memory.read(self._text, TEXT_BYTES))

    def clean(self) -> None:
        """Make the bytes zero that held the text, once the call was taken."""
        self._memory.write((self._text, bytes(TEXT_BYTES)))

    def _call(self) -> bytes:
        return self._python.run_string.to_bytes(8, "little") + self._text.to_bytes(8, "little")

    def _count_left(self) -> int:
        first, last = self._memory.read_i32(self._queue.first), self._memory.read_i32(self._queue.last)
        return (last - first) % self._queue.size

    def _is_ours(self) -> bool:
        queue = self._queue
        at = queue.calls + self._memory.read_i32(queue.first) * queue.call_bytes
        return self._memory.read(at, len(self._call())) == self._call()


def _pack(number: int) -> bytes:
    return number.to_bytes(4, "little")
