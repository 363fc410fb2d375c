"""Tell a process that waits for requests, or for a notebook's next cell, from a training that hangs. Pure.

Both rest forever. A process in the loop of a server has no call of its own open; one that waits at a queue
counts as a server if another of its threads takes requests. Names that the user chose do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpmon.judge.dumps.camps import ThreadSeen
from tpmon.judge.dumps.describe import own_frames
from tpmon.judge.stacks.classify import (
    find_users,
    is_at,
    is_event_loop,
    is_native,
    is_users,
    last_name,
    read_stack,
    rests_in_notebook,
)
from tpmon.judge.stacks.phases import Phase
from tpmon.judge.watch.picture import Picture, find_wait
from tpmon.model.dump import WaitKind
from tpmon.model.frame import Frame
from tpmon.model.known import is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import WaitReason

_OF_TRAINING = frozenset((Phase.BACKWARD, Phase.OPTIMIZER, Phase.DATA_WAIT, Phase.COMMS))
"""Phases that a server never shows: it only computes forward."""

_LOOPS = (
    ("socketserver.py", "serve_forever"),
    ("gradio/blocks.py", "block_thread"),
    ("grpc/_server.py", "wait_for_termination"),
    ("ray/_private/worker.py", "main_loop"),
    ("uvloop/__init__.py", "run"),
)
"""Calls that return only when the server ends, by file and function."""
_QUEUE = ("queue.py", "get")
_ENGINE = (
    ("vllm/v1/engine/core.py", "run_busy_loop"),
    ("vllm/v1/engine/core.py", "_process_input_queue"),
    _QUEUE,
)
"""Where vLLM's engine waits for a request; its steps run below the same loop."""
_WEB = re.compile(r"/(?:uvicorn|hypercorn|tornado|sanic|aiohttp/web)")
"""Libraries that run an event loop for requests; others (loggers) run one in a thread of their own."""
ASKS = (WaitReason.SLEEP, WaitReason.OTHER, WaitReason.LOCK, WaitReason.READ_WRITE)
"""Waits of a process that has sent a request, or waits for one."""
_CLIENTS = re.compile(
    r"/(?:requests|urllib3|httpx|httpcore|aiohttp|grpc|openai|zmq)/"
    r"|/(?:http/client|urllib/request|xmlrpc/client)\.py$"
)
_STORES = re.compile(
    r"/(?:botocore|redis|fsspec|s3fs|gcsfs|smart_open|wandb|comet_ml|neptune|clearml|mlflow"
    r"|huggingface_hub(?!/inference))/"
)
"""Clients of stores for files or records: a store answers soon or never, even on this machine."""
_RAY_CALLS = ("ray/_private/worker.py", ("get", "wait"))


def find_server(frame: Frame, picture: Picture, *, trained: bool) -> ThreadSeen | None:
    """Return the main thread of a process that waits for requests; ``trained``: it was in a step before."""
    mains = picture.scene.ranks
    ranks = [one for one in frame.processes if one.role is Role.RANK]
    world = frame.target.world_size
    if not mains or len(mains) < len(ranks) or (is_known(world) and world > 1):
        return None
    if not all(_may_serve(seen, picture) for seen in mains):
        return None
    seen = mains[0]
    if len(mains) > 1:
        # Several processes of one server: each waits in its loop.
        return None if trained or not all(_is_in_loop(_frames(one)) for one in mains) else seen
    frames = _frames(seen)
    if rests_in_notebook(frames) or _has_no_request(frames):
        return seen
    if trained or shows_training(frames) or waits_for_itself(seen):
        return None
    if _is_in_loop(frames):
        return seen
    if any(one.role is Role.WORKER for one in frame.processes) or frame.loader:
        return None
    at_queue = any(is_at(one, *_QUEUE) for one in _last_call(frames))
    return seen if at_queue and any(map(_takes_requests, picture.threads_of(seen.thread.pid))) else None


def _takes_requests(seen: ThreadSeen) -> bool:
    frames = _frames(seen)
    return _is_in_loop(frames) and (not is_event_loop(frames) or any(_WEB.search(one.file) for one in frames))


def _may_serve(seen: ThreadSeen, picture: Picture) -> bool:
    """Tell whether a main thread rests, and nothing else in its process talks to ranks or trains."""
    if find_wait(seen, picture) not in ASKS or not picture.rests(seen):
        return False
    threads, frames = picture.threads_of(seen.thread.pid), _frames(seen)
    # A cell may have left a process group of size one behind, and an engine has its own.
    apart = rests_in_notebook(frames) or _has_no_request(frames)
    if not apart and any(one.thread.kind is ThreadKind.COMM for one in threads):
        return False
    # A thread that runs code of the program does so for an answer, or for steps.
    return not any(
        shows_training(_frames(one)) or (not picture.rests(one) and any(map(is_users, _frames(one))))
        for one in threads
        if one is not seen
    )


def _has_no_request(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a model's engine waits for its next request, at the queue of its own loop."""
    rows = zip(frames, frames[1:], frames[2:], strict=False)
    return any(all(is_at(one, *place) for one, place in zip(row, _ENGINE, strict=True)) for row in rows)


def _is_in_loop(frames: Sequence[StackFrame]) -> bool:
    loops = (is_at(one, *place) for one in _last_call(frames) for place in _LOOPS)
    return is_event_loop(frames) or _has_no_request(frames) or any(loops)


def waits_for_itself(seen: ThreadSeen) -> bool:
    """Tell whether an event loop waits for nothing but what its own process may send: nobody can ask it."""
    pids = {end.pid for end in seen.ends}
    return pids == {seen.thread.pid} and is_event_loop(_frames(seen))


def asks_another(seen: ThreadSeen) -> bool:
    """Tell whether a thread has asked a server or a ray actor for something that may take long.

    An event loop counts too: the stack of a waiting coroutine cannot be seen.
    """
    frames = _frames(seen)
    clients = any(_CLIENTS.search(one.file) or _STORES.search(one.file) for one in frames)
    return is_event_loop(frames) or asks_actor(seen) or clients


def asks_actor(seen: ThreadSeen) -> bool:
    """Tell whether a thread waits for ray actors: rollouts, or a whole training, may take any time."""
    path, calls = _RAY_CALLS
    return any(one.file.endswith(f"/{path}") and last_name(one.function) in calls for one in _frames(seen))


def asks_here(seen: ThreadSeen) -> bool:
    """Tell whether a thread waits for the answer of another process of this machine, such as a model."""
    target = seen.thread.waits_on
    if any(_STORES.search(one.file) for one in _last_call(_frames(seen))):
        return False
    at_socket = is_known(target) and target.kind in (WaitKind.SOCKET, WaitKind.UNIX)
    return at_socket and any(end.pid != seen.thread.pid for end in seen.ends)


def _frames(seen: ThreadSeen) -> Sequence[StackFrame]:
    return [one for one in own_frames(seen.frames) if not is_native(one.file)]


def _last_call(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    return frames[find_users(frames) + 1 :]


def shows_training(frames: Sequence[StackFrame]) -> bool:
    """Tell whether frames of libraries show a part of a step that a server never runs."""
    reading = read_stack(frames) if frames else None
    return reading is not None and reading.phase in _OF_TRAINING and not reading.is_hint
