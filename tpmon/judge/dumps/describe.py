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


@dataclass(frozen=True, slots=True)
class Inside:
    """Say what a phase waits for; ``word`` names both, "barrier (checkpoint)", and ``text`` adds the line."""

    phase: Phase
    part: DataPart | None
    word: str
    text: str
    place: tuple[str, str, int]


def read_inside(frames: Sequence[StackFrame], reading: StackReading) -> Inside | None:
    """Read what the phase of a stack waits for; None where the stack shows no wait."""
    if reading.phase not in _KEEPS:
        return None
    marks = [mark_frame(frame.function, frame.file) for frame in frames]
    own = [index for index, mark in enumerate(marks) if mark is not None and mark.phase is reading.phase]
    if not own:
        return None
    # A load and a save share files, so frames of both are left out.
    rest = [
        frame
        for frame, mark in zip(frames[own[0] + 1 :], marks[own[0] + 1 :], strict=True)
        if mark is None or mark.phase not in _KEEPS
    ]
    inner = read_stack(rest)
    if inner.phase not in _WAITS:
        return None
    users = [frame for frame in rest if is_users(frame)]
    word = inner.where
    if users and word.endswith(f" {name_line(users[-1])}"):
        word = word.removesuffix(f" {name_line(users[-1])}")
    word = f"{word} ({reading.phase.value})"
    line = name_line(frames[last]) if (last := find_users(frames)) >= 0 else ""
    text = word if line in word else f"{word} {line}"
    return Inside(inner.phase, inner.part, word, text, (inner.phase.value, *reading.place[1:]))


MOST_NATIVE = 8
"""C frames that are shown at the inner end of a stack; present only where they were asked for."""
_FORKED = "multiprocessing/process.py"
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


_BOILERPLATE = (
    "threading.py",
    "runpy.py",
    "multiprocessing/process.py",
    "multiprocessing/popen_fork.py",
    "multiprocessing/popen_spawn_posix.py",
    "multiprocessing/popen_forkserver.py",
    "multiprocessing/spawn.py",
    "multiprocessing/context.py",
    "multiprocessing/forkserver.py",
    "torch/multiprocessing/spawn.py",
    _WORKER_LOOP,
)
_PHASE_WORDS = {
    Phase.BACKWARD: "backward",
    Phase.FORWARD: "forward",
    Phase.OPTIMIZER: "optimizer step",
    Phase.CHECKPOINT: "checkpoint save",
    Phase.LOAD: "load",
    Phase.COMPILE: "compile",
    Phase.IMPORT: "import",
    Phase.VALIDATION: "validation",
    Phase.INPUT: "waits for input",
}
_DATA_WORDS = {
    DataPart.QUEUE: "next batch",
    DataPart.FETCH: "fetch",
    DataPart.COLLATE: "collate",
    DataPart.START: "worker start or join",
    DataPart.COPY: "copy of the batch",
    DataPart.READ: "read",
    DataPart.SAMPLER: "sampler",
}
_TASK_FILES = (
    _WORKER_LOOP,
    "multiprocessing/pool.py",
    "multiprocess/pool.py",
    "concurrent/futures/process.py",
)
_TASK_LOOPS = ("_worker_loop", "worker", "_process_worker")
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
        if last_name(frames[index].function) == "_bootstrap" and file.endswith(_FORKED):
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
    loops = [
        index
        for index, one in enumerate(frames)
        if one.file.endswith(_TASK_FILES) and last_name(one.function) in _TASK_LOOPS
    ]
    return bool(loops) and any(map(is_users, frames[loops[-1] :]))


def _is_boilerplate(frame: StackFrame) -> bool:
    if is_task_loop(frame) or any(is_at(frame, *place) for place in _AROUND_TASKS):
        return True
    return any(frame.file == path or frame.file.endswith(f"/{path}") for path in _BOILERPLATE)


def _word_of_run(run: Sequence[StackFrame]) -> str:
    """Say what was called to enter these library frames, outermost first."""
    reading = read_stack(run)
    word, call = _word_of_phase(run, reading), _find_call(run)
    if word or call is not None:
        return word or (call.words if call is not None else "")
    first = next((frame for frame in run if not _is_boilerplate(frame)), None)
    if first is None:
        return ""
    package = package_of(first.file)
    name = plain_name(first.function)
    return f"{package}: {name}" if package else f"{name} {name_line(first)}"


def _word_of_phase(run: Sequence[StackFrame], reading: StackReading) -> str:
    """Say in which phase library frames are, by its best known call; "" for none."""
    inside = read_inside(run, reading)
    if inside is not None:
        return inside.word
    phase = reading.phase
    detail = reading.where.partition(": ")[2]
    if phase is Phase.DATA_WAIT and reading.part is not None:
        return _DATA_WORDS[reading.part]
    if phase in (Phase.SYNC, Phase.OPTIMIZER) and detail:
        return detail
    if phase in (Phase.COMMS, Phase.LOGGING, Phase.SYNC):
        return reading.where
    return _PHASE_WORDS.get(phase, "")


def shorten_stack(group: StackGroup) -> tuple[ShownFrame, ...]:
    """Return the collapsed frames of a group; () where they were not read."""
    return collapse_frames(group.frames) if is_known(group.frames) else ()


def collapse_frames(frames: Sequence[StackFrame]) -> tuple[ShownFrame, ...]:
    """Keep the user's frames and put one word in place of each run of library frames.

    C frames stay only at the inner end, where they say what the last line waits for.
    """
    shown: list[ShownFrame] = []
    run: list[StackFrame] = []
    native: list[StackFrame] = []

    def close_run(*, at_end: bool) -> None:
        if not run:
            return
        word = _word_of_run(run)
        # Between two frames of the user, the machinery of a module call is of no interest.
        machinery = word in ("forward", "") or all(map(_is_boilerplate, run))
        if word and (at_end or not machinery):
            shown.append(ShownFrame(word, is_users=False, frame=run[0]))
        run.clear()

    for frame in own_frames(frames):
        if is_native(frame.file):
            native.append(frame)
            continue
        native.clear()
        if is_users(frame):
            close_run(at_end=False)
            shown.append(ShownFrame(say_frame(frame), is_users=True, frame=frame))
        else:
            run.append(frame)
    close_run(at_end=True)
    below = (
        ShownFrame(f"{one.function} {name_line(one)}", is_users=False, frame=one)
        for one in native[-MOST_NATIVE:]
    )
    return (*shown, *below)


def _last_run(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    return frames[find_users(frames) + 1 :]


_WAIT_OF_PHASE = {Phase.COMMS: WaitReason.COLLECTIVE, Phase.SYNC: WaitReason.DEVICE}


def _tell(
    reading: StackReading,
    wait: WaitReason,
    text: str = "",
    call: LibraryCall | None = None,
    *,
    verb: bool = False,
) -> StackDoing:
    """Describe a stack; ``text`` where ``reading`` does not say it."""
    site = (text, *reading.site) if text else reading.site
    return StackDoing(text or reading.where, wait, reading.phase, reading.place, site, call, verb)


def _wait_in(call: LibraryCall | None) -> WaitReason:
    return WaitReason.OTHER if call is None else WaitReason.CALL


def _describe_lock(frames: Sequence[StackFrame]) -> StackDoing | None:
    """Describe a wait for a file that another process removes or unlocks; None where there is none."""
    run = _last_run(frames)
    if LibraryCall.FILE_LOCK not in _calls(run) and not any(package_of(one.file) in _LOCKERS for one in run):
        return None
    reading, index = read_stack(frames), find_users(frames)
    where = f" in {say_frame(frames[index])}" if index >= 0 else ""
    text = f"{LibraryCall.FILE_LOCK.words}{where}"
    site = (text, *reading.site)
    return StackDoing(text, WaitReason.FILE_LOCK, Phase.OTHER, reading.place, site, LibraryCall.FILE_LOCK)


def _describe_worker(frames: Sequence[StackFrame]) -> StackDoing:
    reading = read_stack(frames)
    index, call = find_users(frames), _find_call(_last_run(frames))
    in_loop = any(frame.file.endswith(_WORKER_LOOP) for frame in frames)
    if in_loop and reading.phase is not Phase.DATA_WAIT:
        if call is LibraryCall.QUEUE_GET:
            return _tell(reading, WaitReason.WORK, "waits for work (queue.get)", call, verb=True)
        if call is LibraryCall.QUEUE_PUT:
            return _tell(reading, WaitReason.CALL, "hands over a batch (queue.put)", call, verb=True)
    if index < 0:
        return _tell(reading, WaitReason.OTHER, reading.where.removeprefix(f"{Phase.DATA_WAIT.value}: "))
    where = say_frame(frames[index])
    text = f"{call.words} in {where}" if call is not None else where
    return _tell(reading, _wait_in(call), text, call)


def _describe_main(frames: Sequence[StackFrame]) -> StackDoing:
    reading = read_stack(frames)
    inside = read_inside(frames, reading)
    if inside is not None:
        at_queue = inside.phase is Phase.DATA_WAIT and inside.part in (DataPart.QUEUE, None)
        wait = WaitReason.BATCH if at_queue else _WAIT_OF_PHASE.get(inside.phase, WaitReason.OTHER)
        return StackDoing(inside.text, wait, reading.phase, inside.place, (inside.text,))
    if reading.phase is Phase.DATA_WAIT:
        if reading.part in (DataPart.QUEUE, None):
            return _tell(reading, WaitReason.BATCH)
        index = find_users(frames)
        text = f"{say_frame(frames[index])} ({Phase.DATA_WAIT.value})" if index >= 0 else ""
        return _tell(reading, WaitReason.OTHER, text)
    if reading.phase is not Phase.OTHER:
        return _tell(reading, _WAIT_OF_PHASE.get(reading.phase, WaitReason.OTHER))
    call = _find_call(_last_run(frames))
    verb = call is LibraryCall.EXIT and not any(map(is_users, frames))
    if call is not None and not any(map(is_users, frames)):
        text = f"waits for {call.words}" if verb else call.words
    elif call is not None and call.words not in reading.where:
        text = f"{call.words} in {reading.where}"
    else:
        text = ""
    return _tell(reading, _wait_in(call), text, call, verb=verb)


def _describe_other(frames: Sequence[StackFrame]) -> StackDoing:
    """Describe a thread that no step depends on: a feeder, a progress bar, a logger."""
    reading = read_stack(frames)
    index, call = find_users(frames), _find_call(_last_run(frames))
    wait = WaitReason.WORK if call in _IDLE else _wait_in(call)
    if index >= 0:
        where = say_frame(frames[index])
        return _tell(reading, wait, f"{call.words} in {where}" if call is not None else where, call)
    package = next(
        (name for one in frames if not _is_boilerplate(one) and (name := package_of(one.file))), "threading"
    )
    text = call.words if call is not None else say_frame(frames[-1])
    if package not in ("threading", "multiprocessing", "queue", "torch"):
        text = f"{package}: {text}"
    return _tell(reading, wait, text, call)


@lru_cache(maxsize=4096)
def describe_stack(role: Role, kind: ThreadKind, frames: tuple[StackFrame, ...]) -> StackDoing:
    """Say what a thread of a ``role`` process does; C frames count only if Python's show no wait."""
    own = [frame for frame in own_frames(frames) if not is_native(frame.file)]
    if not own:
        return StackDoing("no Python frames", WaitReason.OTHER, Phase.OTHER, ("", "", 0))
    lock = _describe_lock(own)
    if lock is not None:
        return lock
    if kind is not ThreadKind.MAIN:
        return _describe_other(own)
    if role is Role.WORKER:
        return _describe_worker(own)
    return _name_native(_describe_main(own), frames)


_NATIVE_WAITS = (
    (
        re.compile(r"c10d::(?:\w+::)*Work\w*::(?:wait|synchronize)|ncclWork\w*::"),
        WaitReason.COLLECTIVE,
        "a collective",
    ),
    (re.compile(r"c10d::Reducer::finalize_backward"), WaitReason.COLLECTIVE, "a collective"),
    (
        re.compile(r"cu(?:da)?(?:Stream|Device|Event|Ctx)Synchronize|_local_scalar_dense"),
        WaitReason.DEVICE,
        "the device",
    ),
)
"""Waits without a Python frame: ``work.wait()`` and ``.item()`` show only their line."""


def _name_native(doing: StackDoing, frames: Sequence[StackFrame]) -> StackDoing:
    """Add a wait that only C frames show."""
    if doing.wait is not WaitReason.OTHER or doing.phase not in (Phase.OTHER, Phase.BACKWARD, Phase.FORWARD):
        return doing
    names = [frame.function for frame in frames if is_native(frame.file)]
    for pattern, wait, words in _NATIVE_WAITS:
        if any(pattern.search(name) for name in names):
            return replace(doing, text=f"{words} in {doing.text}", wait=wait, site=(words, *doing.site))
    return doing
