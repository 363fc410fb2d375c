"""Hold the offsets of CPython's state by minor version, and check them against the running image.

From the headers of 3.10.13, 3.11.7, 3.12.1 and 3.13.0 on x86-64; 3.13 and 3.14 name most of theirs in a table
of their own. An offset is used only where what lies around it is what CPython keeps there: pointers that lead
back, the ID of the main thread, constants.
"""

from __future__ import annotations

from typing import NamedTuple

from tpmon.inject.memory import TargetMemory, UnmappedError
from tpmon.inject.python import Python
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.frozen import dataclass

_MOST_THREADS = 20_000
_LOCKED, _UNLOCKED = 0, 1
"""The first word of the semaphore that guards the queue."""


class StateLayout(NamedTuple):
    """Hold offsets in the runtime (``of_*``), in an interpreter and in the state of a thread."""

    of_initialized: int
    of_finalizing: int
    of_head: int
    of_main: int
    of_main_thread: int
    next: int
    id: int
    runtime: int
    threads: int
    thread_next: int
    thread_interpreter: int
    thread_id: int


class QueueLayout(NamedTuple):
    """Hold offsets of the queue, from the interpreter (``in_runtime`` False) or the runtime on."""

    in_runtime: bool
    lock: int
    to_do: int
    calls: int
    call_bytes: int
    size: int
    first: int
    last: int


STATES = {
    (3, 10): StateLayout(12, 16, 32, 40, 72, 0, 24, 16, 8, 8, 16, 176),
    (3, 11): StateLayout(16, 24, 40, 48, 80, 0, 48, 40, 16, 8, 16, 152),
    (3, 12): StateLayout(16, 24, 40, 48, 64, 0, 8, 96, 72, 8, 16, 136),
    (3, 13): StateLayout(600, 608, 632, 640, 656, 7264, 7272, 7376, 7344, 8, 16, 152),
}
QUEUES = {
    (3, 10): QueueLayout(False, 80, 88, 96, 16, 32, 608, 612),
    (3, 11): QueueLayout(False, 112, 120, 128, 16, 32, 640, 644),
    (3, 12): QueueLayout(True, 2024, 2032, 2040, 16, 32, 2552, 2556),
    (3, 13): QueueLayout(True, 2648, 2652, 2664, 24, 300, 9864, 9868),
}
BREAKERS = {(3, 10): 68, (3, 11): 100, (3, 12): 368, (3, 13): 24}
"""Offset of ``eval_breaker``: of the interpreter, from 3.13 on of the main thread's state."""

_LIMITS = {(3, 10): 64, (3, 11): 96, (3, 12): 376}
"""Offset of the recursion limit, which lies beside it."""


@dataclass(frozen=True, slots=True)
class State:
    """Hold the addresses of the interpreter and of the main thread's state."""

    interpreter: int
    main_thread: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Hold the addresses of the main thread's queue of pending calls.

    ``counts``: ``to_do`` is how many calls there are; before 3.13 it is a flag.
    """

    to_do: int
    calls: int
    call_bytes: int
    size: int
    first: int
    last: int
    breaker: int
    counts: bool


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise RefusedError(RefusalReason.OFFSETS, what)


def find_state(memory: TargetMemory, python: Python) -> State:
    """Find the one interpreter and its main thread; RefusedError where what is there does not agree."""
    try:
        return _find_state(memory, python, STATES[python.minor])
    except UnmappedError as error:
        raise RefusedError(RefusalReason.OFFSETS, str(error)) from error


def _find_state(memory: TargetMemory, python: Python, at: StateLayout) -> State:
    runtime = python.runtime
    head, main = memory.read_u64(runtime + at.of_head), memory.read_u64(runtime + at.of_main)
    if memory.read_i32(runtime + at.of_initialized) != 1 or memory.read_u64(runtime + at.of_finalizing):
        raise RefusedError(RefusalReason.INTERPRETERS)
    _check(memory.read_u64(main + at.runtime) == runtime, "the interpreter does not name its runtime")
    _check(memory.read_u64(main + at.id) == 0, "the main interpreter has another number")
    if head != main or memory.read_u64(main + at.next):
        raise RefusedError(RefusalReason.INTERPRETERS)
    wanted = memory.read_u64(runtime + at.of_main_thread)
    thread = memory.read_u64(main + at.threads)
    for _ in range(_MOST_THREADS):
        _check(thread != 0, "no state of the main thread")
        _check(memory.read_u64(thread + at.thread_interpreter) == main, "a thread of another interpreter")
        if memory.read_u64(thread + at.thread_id) == wanted:
            return State(main, thread)
        thread = memory.read_u64(thread + at.thread_next)
    raise RefusedError(RefusalReason.OFFSETS, "too many threads")


def find_queue(memory: TargetMemory, python: Python, state: State) -> Queue:
    """Find the queue of pending calls; RefusedError where what is there is none, or not a quiet one."""
    try:
        return _find_queue(memory, python, state, QUEUES[python.minor])
    except UnmappedError as error:
        raise RefusedError(RefusalReason.OFFSETS, str(error)) from error


def _find_queue(memory: TargetMemory, python: Python, state: State, at: QueueLayout) -> Queue:
    base = python.runtime if at.in_runtime else state.interpreter
    _check(not at.in_runtime or at.last + 4 <= python.runtime_bytes, "the runtime is too small")
    counts = python.minor >= (3, 13)
    breaker = (state.main_thread if counts else state.interpreter) + BREAKERS[python.minor]
    queue = Queue(
        base + at.to_do,
        base + at.calls,
        at.call_bytes,
        at.size,
        base + at.first,
        base + at.last,
        breaker,
        counts,
    )
    first, last = memory.read_i32(queue.first), memory.read_i32(queue.last)
    _check(0 <= first < at.size and 0 <= last < at.size, "no queue of pending calls")
    _check(0 <= memory.read_i32(queue.to_do) <= (32 if counts else 1), "no number of pending calls")
    if counts:
        most, most_at_once = memory.unpack("<ii", queue.to_do + 4)
        _check((most, most_at_once) == (32, 0), "no bounds of the queue")
        handler, lock = memory.unpack("<QB", base + at.lock - 8)
        _check(handler == 0 and lock <= 1, "no lock of the queue")
        (version,) = memory.unpack("<Q", state.interpreter)
        _check(memory.read_u64(breaker) >> 8 == version >> 8, "no version of the instrumentation")
    else:
        limit, asked = memory.read_i32(state.interpreter + _LIMITS[python.minor]), memory.read_i32(breaker)
        _check(30 <= limit <= 1 << 30 and asked in (0, 1), "no recursion limit")
        _check(memory.read_i32(queue.to_do + 4) in (0, 1), "no request for an exception")
        semaphore = memory.read_i32(memory.read_u64(base + at.lock))
        _check(semaphore in (_LOCKED, _UNLOCKED), "no lock of the queue")
        if semaphore == _LOCKED:
            raise RefusedError(RefusalReason.QUEUE, "a thread uses it")
    return queue
