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
_FUTURES = "/concurrent/futures/_base.py"
_PIPES = "/multiprocessing/connection.py"
_RAY = "/ray/_private/worker.py"
_WAIT_FILES = (
    "/threading.py",
    "/queue.py",
    "/selectors.py",
    _FUTURES,
    _PIPES,
    "/multiprocessing/queues.py",
    "/joblib/parallel.py",
    "/zmq/sugar/socket.py",
    _RAY,
)
"""Files of libraries whose innermost frame waits for other threads or processes."""
_RECEIVES = frozenset(
    [
        "get",
        "next",
        "__next__",
        "result",
        "as_completed",
        "poll",
        "_retrieve",
        "retrieve",
        "get_objects",
        "recv",
        "recv_bytes",
        "recv_multipart",
        "recv_pyobj",
        "recv_json",
        "recv_string",
    ]
)
"""Functions of these files that take what others hand over."""
_RECEIVE_FILES = (*_WAIT_FILES, "/multiprocessing/pool.py")
_RECEIVES_BY_WAIT = (_FUTURES, _PIPES, _RAY)
"""Files whose function ``wait`` returns what is ready; elsewhere it is a lock or an event."""
_ENDS_OF_PROCESSES = ("/multiprocessing/popen_fork.py", "/multiprocessing/process.py")
"""Who waits for the end of a process asks a pipe, and takes nothing."""
_CALL_FILES = ("/socket.py", "/ssl.py", "/subprocess.py")
"""Files of the standard library whose innermost frame waits for a server or a child."""
_EVENT_LOOP = (("_run_once", "asyncio/base_events.py"), ("select", "selectors.py"))
_NOTEBOOK = re.compile(r"/(?:ipykernel|jupyter_client|nbclient)/|/ipykernel_launcher\.py$")
_EXECUTOR_LOOP = ("concurrent/futures/thread.py", "_worker")
_POOL_LOOP = ("multiprocessing/pool.py", "worker")
_TASK_LOOPS = (("concurrent/futures/process.py", "_process_worker"), _EXECUTOR_LOOP, _POOL_LOOP)
"""Loops of what a pool has, over its tasks."""
_TASK_QUEUES = (("multiprocessing/queues.py", "get"), ("queue.py", "get"))
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


def is_at(frame: StackFrame, path: str, function: str) -> bool:
    """Say whether a frame is in this function of the file that has this path, below whatever folder."""
    return (frame.file == path or frame.file.endswith(f"/{path}")) and last_name(frame.function) == function


def is_task_loop(frame: StackFrame) -> bool:
    """Say whether a frame is the loop of a process or thread of a pool over its tasks."""
    return any(is_at(frame, *place) for place in _TASK_LOOPS)


def waits_for_task(frames: Sequence[StackFrame], index: int) -> bool:
    """Say whether the loop of a pool at ``index`` waits for its next task, and is at none.

    A process waits at its queue, a thread in C, without a frame of that. What looks so in a process is a
    task of C, which the loop calls itself.
    """
    if not is_task_loop(frames[index]):
        return False
    if index + 1 < len(frames):
        return any(is_at(frames[index + 1], *place) for place in _TASK_QUEUES)
    in_thread = any(one.file.endswith("/threading.py") for one in frames[:index])
    return is_at(frames[index], *_EXECUTOR_LOOP) or (is_at(frames[index], *_POOL_LOOP) and in_thread)


def _ends_in(frames: Sequence[StackFrame], files: tuple[str, ...]) -> bool:
    """Say whether the innermost Python frame is in one of these files, as Python or a package has them."""
    last = next((frame.file for frame in reversed(frames) if not is_native(frame.file)), "")
    return last.endswith(files) and is_library(last)


def waits_for_others(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost Python frame waits at a queue, a lock or a future, by the file it is in."""
    return _ends_in(frames, _WAIT_FILES)


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
    if any(frame.file.endswith(_REMOTE_CALLS) or _is_end_of_process(frame) for frame in inner):
        return False
    return any(_takes(frame) for frame in inner)


def _is_end_of_process(frame: StackFrame) -> bool:
    # Every frame of a process that multiprocessing started is below one of these files.
    return frame.file.endswith(_ENDS_OF_PROCESSES) and last_name(frame.function) in ("wait", "join", "poll")


def waits_for_future(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost frames wait for a future of the standard library, of whatever it is."""
    return receives(frames) and any(frame.file.endswith(_FUTURES) for frame in frames[-4:])


def _takes(frame: StackFrame) -> bool:
    name = last_name(frame.function)
    if name == "wait":
        return frame.file.endswith(_RECEIVES_BY_WAIT)
    return name in _RECEIVES and frame.file.endswith(_RECEIVE_FILES)


def calls_out(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost Python frame waits for a server or for a child process."""
    return _ends_in(frames, _CALL_FILES)


def is_event_loop(frames: Sequence[StackFrame]) -> bool:
    """Say whether the event loop of asyncio itself waits, and no callback of it."""
    return len(frames) > 1 and all(
        last_name(frame.function) == name and frame.file.endswith(file)
        for frame, (name, file) in zip(frames[-2:], _EVENT_LOOP, strict=True)
    )


def rests_in_notebook(frames: Sequence[StackFrame]) -> bool:
    """Say whether the kernel of a notebook has no cell to run."""
    return is_event_loop(frames) and any(_NOTEBOOK.search(frame.file) for frame in frames)
