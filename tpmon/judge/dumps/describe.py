"""Describe what a thread does, and shorten a stack to what matters. Pure.

Words of phases come from ``classify``; here are those of library waits, and of threads other than a rank's
main one. A verdict treats a phase as one thing; in a dump it matters that rank 3 writes a file while the
others wait in a barrier of the same save.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from itertools import groupby, takewhile

from tpmon.judge.stacks.classify import (
    StackReading,
    find_users,
    is_at,
    is_library,
    is_native,
    is_task_loop,
    is_users,
    last_name,
    mark_frame,
    name_line,
    package_of,
    plain_name,
    read_stack,
    say_frame,
    waits_for_task,
)
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.model.dump import ShownFrame, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.waits import WaitReason

_KEEPS = frozenset((Phase.CHECKPOINT, Phase.VALIDATION, Phase.LOAD))
_WAITS = frozenset((Phase.COMMS, Phase.DATA_WAIT, Phase.SYNC))


def _read_inside(frames: Sequence[StackFrame], reading: StackReading) -> tuple[StackReading, str] | None:
    """Read what the phase of a stack waits for, and both in words: "barrier (checkpoint)"; None: nothing."""
    marks = [mark_frame(frame.function, frame.file) for frame in frames]
    begin = next((n for n, mark in enumerate(marks) if mark is not None and mark.phase is reading.phase), -1)
    if reading.phase not in _KEEPS or begin < 0:
        return None
    # A load and a save share files, so frames of both are left out.
    rest = [
        frame
        for frame, mark in list(zip(frames, marks, strict=True))[begin + 1 :]
        if mark is None or mark.phase not in _KEEPS
    ]
    inner = read_stack(rest)
    if inner.phase not in _WAITS:
        return None
    index = find_users(rest)
    word = inner.where.removesuffix(f" {name_line(rest[index])}") if index >= 0 else inner.where
    return inner, f"{word} ({reading.phase.value})"


MOST_NATIVE = 8
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"


class LibraryCall(Enum):
    """Name a library call that waits: in plain words, and its places as "file function ..."."""

    QUEUE_GET = ("queue.get", "multiprocessing/queues.py get", "queue.py get")
    QUEUE_PUT = ("queue.put", "multiprocessing/queues.py put", "queue.py put")
    QUEUE_WRITE = ("queue feeder (pipe write)",)
    """A feeder whose pipe is full."""
    QUEUE_FEEDER = ("queue feeder", "multiprocessing/queues.py _feed")
    FILE_LOCK = ("lock file", "torch/utils/file_baton.py wait", "diskcache/recipes.py acquire")
    PROCESS_JOIN = ("process join", "multiprocessing/process.py join", "torch/multiprocessing/spawn.py join")
    POOL_RESULT = ("pool result", "multiprocessing/pool.py get wait")
    PROCESS_POOL = (
        "process pool",
        "multiprocessing/pool.py worker _handle_workers _handle_tasks _handle_results",
    )
    MANAGER_CALL = ("manager call", "multiprocessing/managers.py _callmethod")
    MANAGER = ("process of a manager", "multiprocessing/managers.py serve_forever")
    PROCESS_LOCK = ("process lock", "multiprocessing/synchronize.py acquire __enter__")
    PROCESS_EVENT = ("process condition or event", "multiprocessing/synchronize.py wait wait_for")
    PIPE_READ = ("pipe read", "multiprocessing/connection.py recv recv_bytes poll accept wait")
    PIPE_WRITE = ("pipe write", "multiprocessing/connection.py send send_bytes")
    QUEUE_JOIN = ("queue.join", "queue.py join")
    THREAD_JOIN = ("thread join", "threading.py join")
    EXIT = ("threads to end (interpreter exit)", "threading.py _shutdown")
    EVENT = ("condition or event", "threading.py wait wait_for")
    SEMAPHORE = ("semaphore", "threading.py acquire")
    SUBPROCESS = ("subprocess", "subprocess.py run call check_call check_output communicate wait")
    FUTURE = ("future.result", "concurrent/futures/_base.py result wait as_completed")
    IDLE_THREAD = ("idle executor thread", "concurrent/futures/thread.py _worker")
    IDLE_PROCESS = ("idle executor process", "concurrent/futures/process.py _process_worker")
    EVENT_LOOP = ("event loop", "asyncio/base_events.py _run_once")
    CONNECTIONS = ("connections", "socketserver.py serve_forever")
    SELECT = ("select", "selectors.py select")
    SOCKET_READ = (
        "socket read",
        "ssl.py read recv recv_into do_handshake",
        "socket.py readinto accept create_connection",
    )
    PIN_THREAD = ("pin thread", "torch/utils/data/_utils/pin_memory.py _pin_memory_loop do_one_step")

    @property
    def words(self) -> str:
        """Return its plain words."""
        return str(self.value[0])


_CALL_OF = {
    (path, name): call
    for call in LibraryCall
    for path, *names in map(str.split, call.value[1:])
    for name in names
}


@dataclass(frozen=True, slots=True)
class StackDoing:
    """Say what a thread does; ``place`` is equal for threads at the same line of the user's code.

    ``text`` is only for display; ``site`` holds its parts, and is equal where ``text`` is. ``call`` is the
    named library call that it waits in.
    """

    text: str
    wait: WaitReason
    phase: Phase
    place: tuple[str, str, int]
    site: tuple[str, ...] = ()
    call: LibraryCall | None = None
    has_verb: bool = False
    """Its text begins with a verb: "waits for work (queue.get)"."""


_STARTERS = "process popen_fork popen_spawn_posix popen_forkserver spawn context forkserver"
_BOILERPLATE = (
    *("/threading.py", "/runpy.py", "/torch/multiprocessing/spawn.py", f"/{_WORKER_LOOP}"),
    *(f"/multiprocessing/{name}.py" for name in _STARTERS.split()),
)
_WORDS = {
    Phase.OPTIMIZER: "optimizer step",
    Phase.CHECKPOINT: "checkpoint save",
    Phase.INPUT: "waits for input",
    DataPart.QUEUE: "next batch",
    DataPart.START: "worker start or join",
    DataPart.COPY: "copy of the batch",
}
"""What is shown of a phase, or a part of it, where that is not its value."""
_FURTHER_LOOPS = ((_WORKER_LOOP, "_worker_loop"), ("multiprocess/pool.py", "worker"))
_AROUND_TASKS = (
    ("concurrent/futures/thread.py", "run"),
    ("concurrent/futures/process.py", "_process_chunk"),
    ("multiprocessing/pool.py", "mapstar"),
    ("multiprocessing/pool.py", "starmapstar"),
)
_IDLE = frozenset(
    (LibraryCall.QUEUE_FEEDER, LibraryCall.IDLE_THREAD, LibraryCall.IDLE_PROCESS, LibraryCall.CONNECTIONS)
)
_LOCKERS = frozenset(("filelock", "fasteners", "portalocker", "lockfile", "oslo_concurrency"))
"""Packages of locks that are files: whoever is in one waits for it."""
_COPIES = re.compile(r"(^|/)(?:multiprocess|billiard)/")
"""Copies of the standard library's multiprocessing, file by file."""


@lru_cache(maxsize=8192)
def _call_at(function: str, file: str) -> LibraryCall | None:
    name = last_name(function)
    parts = _COPIES.sub(r"\1multiprocessing/", file).split("/")
    for depth in range(1, min(len(parts), 6) + 1):
        call = _CALL_OF.get(("/".join(parts[-depth:]), name))
        if call is not None and is_library(file):
            return call
    return None


def _find_call(run: Sequence[StackFrame]) -> LibraryCall | None:
    for index, frame in enumerate(run):
        call = _call_at(frame.function, frame.file)
        # The loop of a pool waits only between tasks.
        if call is not None and (not is_task_loop(frame) or waits_for_task(run, index)):
            # What feeds a queue is idle at its own condition, and not in a write that does not return.
            writes = call is LibraryCall.QUEUE_FEEDER and LibraryCall.PIPE_WRITE in _calls(run[index:])
            return LibraryCall.QUEUE_WRITE if writes else call
    return None


def _calls(run: Sequence[StackFrame]) -> set[LibraryCall | None]:
    return {_call_at(frame.function, frame.file) for frame in run}


def own_frames(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Drop what a forked process inherited: the stack in which its parent started it."""
    for index in range(len(frames) - 1, 0, -1):
        file = _COPIES.sub(r"\1multiprocessing/", frames[index].file)
        if last_name(frames[index].function) == "_bootstrap" and file.endswith("multiprocessing/process.py"):
            return frames[index:]
    return frames


def was_forked(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a stack is of a forked process: it holds the one in which its parent started it."""
    return any(
        one.file.endswith("/popen_fork.py") and last_name(one.function) == "_launch" and is_library(one.file)
        for one in frames
    )


def is_in_task(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a process of a pool, or of a loader, runs the program below the loop over its tasks."""
    for index in range(len(frames) - 1, -1, -1):
        if is_task_loop(frames[index]) or any(is_at(frames[index], *place) for place in _FURTHER_LOOPS):
            return any(map(is_users, frames[index:]))
    return False


def _is_boilerplate(frame: StackFrame) -> bool:
    if is_task_loop(frame) or any(is_at(frame, *place) for place in _AROUND_TASKS):
        return True
    return f"/{frame.file}".endswith(_BOILERPLATE)


def _word_of_run(run: Sequence[StackFrame]) -> str:
    """Say what was called to enter these library frames, outermost first."""
    word, call = _word_of_phase(run), _find_call(run)
    if word or call is not None:
        return word or (call.words if call is not None else "")
    first = next((frame for frame in run if not _is_boilerplate(frame)), None)
    if first is None:
        return ""
    package = package_of(first.file)
    return f"{package}: {plain_name(first.function)}" if package else say_frame(first)


def _word_of_phase(run: Sequence[StackFrame]) -> str:
    """Say in which phase library frames are, by its best known call; "" for none."""
    reading = read_stack(run)
    inside = _read_inside(run, reading)
    if inside is not None:
        return inside[1]
    phase, part = reading.phase, reading.part
    detail = reading.where.partition(": ")[2] if phase in (Phase.SYNC, Phase.OPTIMIZER) else ""
    if phase in (Phase.COMMS, Phase.LOGGING, Phase.SYNC):
        return detail or reading.where
    what = part if phase is Phase.DATA_WAIT else phase
    return "" if what in (Phase.OTHER, None) else detail or _WORDS.get(what, what.value)


def shorten_stack(group: StackGroup) -> tuple[ShownFrame, ...]:
    """Return the collapsed frames of a group; () where they were not read."""
    return collapse_frames(group.frames) if is_known(group.frames) else ()


def collapse_frames(frames: Sequence[StackFrame]) -> tuple[ShownFrame, ...]:
    """Keep the user's frames and put one word in place of each run of library frames.

    C frames stay only at the inner end, where they say what the last line waits for.
    """
    own = own_frames(frames)
    parts = [
        (users, [*part]) for users, part in groupby((one for one in own if not is_native(one.file)), is_users)
    ]
    shown: list[ShownFrame] = []
    for number, (users, part) in enumerate(parts, 1):
        if users:
            shown += (ShownFrame(say_frame(frame), is_users=True, frame=frame) for frame in part)
            continue
        word = _word_of_run(part)
        # Between two frames of the user, the machinery of a module call is of no interest.
        machinery = word == "forward" or all(map(_is_boilerplate, part))
        if word and (number == len(parts) or not machinery):
            shown.append(ShownFrame(word, is_users=False, frame=part[0]))
    native = list(takewhile(lambda one: is_native(one.file), reversed(own)))[:MOST_NATIVE]
    shown += (
        ShownFrame(f"{one.function} {name_line(one)}", is_users=False, frame=one) for one in reversed(native)
    )
    return tuple(shown)


_WAIT_OF_PHASE = {Phase.COMMS: WaitReason.COLLECTIVE, Phase.SYNC: WaitReason.DEVICE}


def _wait_of_phase(reading: StackReading) -> WaitReason:
    if reading.phase is Phase.DATA_WAIT and reading.part in (DataPart.QUEUE, None):
        return WaitReason.BATCH
    return _WAIT_OF_PHASE.get(reading.phase, WaitReason.OTHER)


@dataclass(frozen=True, slots=True)
class _Stack:
    """Hold a stack as it was read; ``own`` is its innermost line of the user in words, "" for none."""

    frames: Sequence[StackFrame]
    reading: StackReading
    own: str
    call: LibraryCall | None

    def tell(self, text: str = "", wait: WaitReason | None = None, *, verb: bool = False) -> StackDoing:
        """Describe it; ``text`` where its reading does not say it, ``wait`` where its call does not."""
        reading = self.reading
        wait = wait or (WaitReason.CALL if self.call else WaitReason.OTHER)
        site = (text, *reading.site) if text else reading.site
        return StackDoing(text or reading.where, wait, reading.phase, reading.place, site, self.call, verb)

    def say(self) -> str:
        """Say its call and its line: "queue.get in train train.py:40"."""
        return " in ".join(filter(None, (self.call.words if self.call else "", self.own)))


def _describe_worker(stack: _Stack) -> StackDoing:
    reading = stack.reading
    in_loop = any(frame.file.endswith(_WORKER_LOOP) for frame in stack.frames)
    if in_loop and reading.phase is not Phase.DATA_WAIT:
        if stack.call is LibraryCall.QUEUE_GET:
            return stack.tell("waits for work (queue.get)", WaitReason.WORK, verb=True)
        if stack.call is LibraryCall.QUEUE_PUT:
            return stack.tell("hands over a batch (queue.put)", verb=True)
    if not stack.own:
        where = reading.where.removeprefix(f"{Phase.DATA_WAIT.value}: ")
        return replace(stack, call=None).tell(where)
    return stack.tell(stack.say())


def _describe_main(stack: _Stack) -> StackDoing:
    reading, own, call = stack.reading, stack.own, stack.call
    inside = _read_inside(stack.frames, reading)
    if inside is not None:
        inner, text = inside
        index = find_users(stack.frames)
        line = name_line(stack.frames[index]) if own else ""
        text = text if line in text else f"{text} {line}"
        place = (inner.phase.value, *reading.place[1:])
        return StackDoing(text, _wait_of_phase(inner), reading.phase, place, (text,))
    if reading.phase is not Phase.OTHER:
        wait = _wait_of_phase(reading)
        loads = reading.phase is Phase.DATA_WAIT and wait is WaitReason.OTHER and own
        text = f"{own} ({Phase.DATA_WAIT.value})" if loads else ""
        return replace(stack, call=None).tell(text, wait)
    if call is None or (own and call.words in reading.where):
        return stack.tell()
    if own:
        return stack.tell(f"{call.words} in {reading.where}")
    ends = call is LibraryCall.EXIT
    return stack.tell(f"waits for {call.words}" if ends else call.words, verb=ends)


def _describe_other(stack: _Stack) -> StackDoing:
    """Describe a thread that no step depends on: a feeder, a progress bar, a logger."""
    text, wait = stack.say(), WaitReason.WORK if stack.call in _IDLE else None
    if not stack.own:
        names = (package_of(one.file) for one in stack.frames if not _is_boilerplate(one))
        package = next(filter(None, names), "threading")
        text = text or say_frame(stack.frames[-1])
        if package not in ("threading", "multiprocessing", "queue", "torch"):
            text = f"{package}: {text}"
    return stack.tell(text, wait)


@lru_cache(maxsize=4096)
def describe_stack(role: Role, kind: ThreadKind, frames: tuple[StackFrame, ...]) -> StackDoing:
    """Say what a thread of a ``role`` process does; C frames count only if Python's show no wait."""
    own = [frame for frame in own_frames(frames) if not is_native(frame.file)]
    if not own:
        return StackDoing("no Python frames", WaitReason.OTHER, Phase.OTHER, ("", "", 0))
    index = find_users(own)
    run = own[index + 1 :]
    stack = _Stack(own, read_stack(own), say_frame(own[index]) if index >= 0 else "", _find_call(run))
    if LibraryCall.FILE_LOCK in _calls(run) or any(package_of(one.file) in _LOCKERS for one in run):
        lock = replace(stack, call=LibraryCall.FILE_LOCK)
        return replace(lock.tell(lock.say(), WaitReason.FILE_LOCK), phase=Phase.OTHER)
    if kind is not ThreadKind.MAIN:
        return _describe_other(stack)
    if role is Role.WORKER:
        return _describe_worker(stack)
    return _name_native(_describe_main(stack), frames)


_WORKS = r"c10d::(?:\w+::)*Work\w*::(?:wait|synchronize)|c10d::Reducer::finalize_backward|ncclWork\w*::"
_SYNCHRONISES = r"cu(?:da)?(?:Stream|Device|Event|Ctx)Synchronize|_local_scalar_dense"
_NATIVE_WAITS = (
    (WaitReason.COLLECTIVE, "a collective", _WORKS),
    (WaitReason.DEVICE, "the device", _SYNCHRONISES),
)
"""Waits without a Python frame: ``work.wait()`` and ``.item()`` show only their line."""


def _name_native(doing: StackDoing, frames: Sequence[StackFrame]) -> StackDoing:
    """Add a wait that only C frames show."""
    if doing.wait is not WaitReason.OTHER or doing.phase not in (Phase.OTHER, Phase.BACKWARD, Phase.FORWARD):
        return doing
    names = [frame.function for frame in frames if is_native(frame.file)]
    for wait, words, pattern in _NATIVE_WAITS:
        if any(re.search(pattern, name) for name in names):
            return replace(doing, text=f"{words} in {doing.text}", wait=wait, site=(words, *doing.site))
    return doing
