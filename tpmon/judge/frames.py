"""Say of single frames whose code they are, and of a stack whether it waits for others. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from tpmon.model.stacks import StackFrame

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/tpmon/hook/|/lib(64)?/python\d|/python3\d*\.zip/|^<(?!stdin|ipython-input|command-)|torchinductor_|/bin/[^/.]+$"
)
_NATIVE = re.compile(r"\.so(?:\.[\d.]+)?$|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|rs|S)$|^\[|/python[\d.]*$")
_WAIT_FILES = (
    "/threading.py",
    "/queue.py",
    "/selectors.py",
    "/concurrent/futures/_base.py",
    "/multiprocessing/connection.py",
    "/multiprocessing/queues.py",
)
"""Files of the standard library whose innermost frame waits for other threads or processes."""
_RECEIVES = frozenset(("get", "next", "__next__", "result", "recv", "recv_bytes"))
_RECEIVE_FILES = (*_WAIT_FILES, "/multiprocessing/pool.py")
_REMOTE_CALLS = "/multiprocessing/managers.py"
"""A call of an object that lives in another process waits for its answer, not for what that makes."""


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Say whether a file belongs to Python, to an installed package, to generated code or to C."""
    return _LIBRARY.search(file) is not None or is_native(file)


@lru_cache(maxsize=4096)
def is_native(file: str) -> bool:
    """Say whether a file is a library or a source file of C, as a stack with native frames has them."""
    return _NATIVE.search(file) is not None


def last_name(function: str) -> str:
    """Return the last part of a qualified name; Python 3.10 and older have no other."""
    return function.rpartition(".")[2]


def waits_for_others(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost Python frame waits at a queue, a lock or a future of the standard library."""
    last = next((frame.file for frame in reversed(frames) if not is_native(frame.file)), "")
    return last.endswith(_WAIT_FILES) and is_library(last)


def receives(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost frames wait for what another thread or process hands over.

    That is the taking end of a queue, a pipe, a pool or a future; a full queue, a join or a lock is none.
    """
    if not waits_for_others(frames):
        return False
    inner = []
    for frame in reversed(frames):
        if not is_library(frame.file):
            break
        inner.append(frame)
    if any(frame.file.endswith(_REMOTE_CALLS) for frame in inner):
        return False
    return any(
        last_name(frame.function) in _RECEIVES and frame.file.endswith(_RECEIVE_FILES) for frame in inner
    )
