"""Describe what a thread does, and shorten a stack to what matters. Pure.

The words of phases come from ``classify``; here are those of waits in the standard library and
of threads that are no main thread of a rank: loader workers, pin threads, feeders, progress bars.

For a verdict such a phase is one thing, whatever happens in it. In a dump it matters that rank 3 writes a
file while the others wait for it in a barrier of the same save.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from tpmon.judge.stacks.classify import (
    StackReading,
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
    waits_for_task,
)
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.model.dump import ShownFrame, StackGroup
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame

_KEEPS = frozenset((Phase.CHECKPOINT, Phase.VALIDATION, Phase.LOAD))
_WAITS = frozenset((Phase.COMMS, Phase.DATA_WAIT, Phase.SYNC))


@dataclass(frozen=True, slots=True)
class Inside:
    """Say what a phase waits for. ``word`` names both: "barrier (checkpoint)"; ``text`` has the line, too."""

    phase: Phase
    part: DataPart | None
    word: str
    text: str
    place: tuple[str, str, int]


def read_inside(frames: Sequence[StackFrame], reading: StackReading) -> Inside | None:
    """Read what the phase of a stack waits for; None where it waits for nothing that the stack tells."""
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
    last = next((frame for frame in reversed(frames) if is_users(frame)), None)
    text = f"{word} {name_line(last)}" if last is not None and name_line(last) not in word else word
    return Inside(inner.phase, inner.part, word, text, (inner.phase.value, *reading.place[1:]))


MOST_NATIVE = 8
"""Frames of C that are shown at the inner end of a stack; there are some only where they were asked for."""
_FORKED = "multiprocessing/process.py"
_WORKER_LOOP = "torch/utils/data/_utils/worker.py"


class StackWait(Enum):
    """Name what a thread waits for, as far as its stack alone tells."""

    RANKS = "other ranks"
    BATCH = "a batch"
    WORK = "work"
    DEVICE = "the device"
    QUEUE = "a queue, a thread or a process"
    NOTHING = "nothing that the stack tells"


@dataclass(frozen=True, slots=True)
class StackDoing:
    """Say what a thread does. ``place`` is equal for threads at the same line of the user's code."""

    text: str
    wait: StackWait
    phase: Phase
    place: tuple[str, str, int]


_CALLS = (
    ("multiprocessing/queues.py", "get", "queue.get"),
    ("multiprocessing/queues.py", "put", "queue.put"),
    ("multiprocessing/queues.py", "_feed", "queue feeder"),
    ("multiprocessing/process.py", "join", "process join"),
    ("multiprocessing/pool.py", "get wait", "pool result"),
    ("multiprocessing/pool.py", "worker _handle_workers _handle_tasks _handle_results", "process pool"),
    ("multiprocessing/managers.py", "_callmethod serve_forever", "manager call"),
    ("multiprocessing/synchronize.py", "acquire __enter__", "process lock"),
    ("multiprocessing/synchronize.py", "wait wait_for", "process condition or event"),
    ("multiprocessing/connection.py", "recv recv_bytes poll accept wait", "pipe read"),
    ("multiprocessing/connection.py", "send send_bytes", "pipe write"),
    ("torch/multiprocessing/spawn.py", "join", "process join"),
    ("queue.py", "get", "queue.get"),
    ("queue.py", "put", "queue.put"),
    ("queue.py", "join", "queue.join"),
    ("threading.py", "join", "thread join"),
    ("threading.py", "_shutdown", "threads to end (interpreter exit)"),
    ("threading.py", "wait wait_for", "condition or event"),
    ("threading.py", "acquire", "semaphore"),
    ("subprocess.py", "run call check_call check_output communicate wait", "subprocess"),
    ("concurrent/futures/_base.py", "result wait as_completed", "future.result"),
    ("concurrent/futures/thread.py", "_worker", "idle executor thread"),
    ("concurrent/futures/process.py", "_process_worker", "idle executor process"),
    ("asyncio/base_events.py", "_run_once", "event loop"),
    ("socketserver.py", "serve_forever", "connections"),
    ("selectors.py", "select", "select"),
    ("ssl.py", "read recv recv_into do_handshake", "socket read"),
    ("socket.py", "readinto accept create_connection", "socket read"),
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop do_one_step", "pin thread"),
)
_WORD_OF = {(path, name): word for path, names, word in _CALLS for name in names.split()}
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
_AROUND_TASKS = (
    ("concurrent/futures/thread.py", "run"),
    ("concurrent/futures/process.py", "_process_chunk"),
    ("multiprocessing/pool.py", "mapstar"),
    ("multiprocessing/pool.py", "starmapstar"),
)
_IDLE_WORDS = frozenset(("queue feeder", "idle executor thread", "idle executor process", "connections"))


@lru_cache(maxsize=8192)
def _call_word(function: str, file: str) -> str:
    """Return what a person calls the library function, "" where the table does not know it."""
    name = last_name(function)
    parts = file.split("/")
    for depth in range(1, min(len(parts), 6) + 1):
        word = _WORD_OF.get(("/".join(parts[-depth:]), name))
        if word is not None and is_library(file):
            return word
    return ""


def _has_task(run: Sequence[StackFrame], index: int) -> bool:
    """Tell whether a loop over tasks is at one: it tells of a wait only where it is at none."""
    return is_task_loop(run[index]) and not waits_for_task(run, index)


def _find_word(run: Sequence[StackFrame]) -> str:
    """Return what a person calls the outermost call of these frames that has a name, "" for none."""
    words = ((index, _call_word(frame.function, frame.file)) for index, frame in enumerate(run))
    return next((word for index, word in words if word and not _has_task(run, index)), "")


def own_frames(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Drop what a forked process inherited: the stack in which its parent started it."""
    for index in range(len(frames) - 1, 0, -1):
        if last_name(frames[index].function) == "_bootstrap" and frames[index].file.endswith(_FORKED):
            return frames[index:]
    return frames


def _is_boilerplate(frame: StackFrame) -> bool:
    if is_task_loop(frame) or any(is_at(frame, *place) for place in _AROUND_TASKS):
        return True
    return any(frame.file == path or frame.file.endswith(f"/{path}") for path in _BOILERPLATE)


def _word_of_run(run: Sequence[StackFrame]) -> str:
    """Say what a person called when they entered these library frames, outermost first."""
    reading = read_stack(run)
    word = _word_of_phase(run, reading) or _find_word(run)
    if word:
        return word
    first = next((frame for frame in run if not _is_boilerplate(frame)), None)
    if first is None:
        return ""
    package = package_of(first.file)
    name = plain_name(first.function)
    return f"{package}: {name}" if package else f"{name} {name_line(first)}"


def _word_of_phase(run: Sequence[StackFrame], reading: StackReading) -> str:
    """Say in which phase library frames are, in the word of the call that is known best; "" for none."""
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
    """Return the frames of a group as they are shown; none where they were not read."""
    return collapse_frames(group.frames) if is_known(group.frames) else ()


def collapse_frames(frames: Sequence[StackFrame]) -> tuple[ShownFrame, ...]:
    """Keep the user's frames and put one word in the place of each run of library frames.

    Frames of C stay at the inner end alone: there they say what the last line waits for.
    """
    shown: list[ShownFrame] = []
    run: list[StackFrame] = []
    native: list[StackFrame] = []

    def close_run(*, at_end: bool) -> None:
        if not run:
            return
        word = _word_of_run(run)
        # Between two frames of the user, the machinery of a module call tells nothing.
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
            shown.append(
                ShownFrame(f"{plain_name(frame.function)} {name_line(frame)}", is_users=True, frame=frame)
            )
        else:
            run.append(frame)
    close_run(at_end=True)
    below = (
        ShownFrame(f"{one.function} {name_line(one)}", is_users=False, frame=one)
        for one in native[-MOST_NATIVE:]
    )
    return (*shown, *below)


def _last_run(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return the library frames below the user's innermost one."""
    for index in range(len(frames) - 1, -1, -1):
        if is_users(frames[index]):
            return frames[index + 1 :]
    return frames


_WAIT_OF_PHASE = {Phase.COMMS: StackWait.RANKS, Phase.SYNC: StackWait.DEVICE}


def _describe_worker(frames: Sequence[StackFrame]) -> StackDoing:
    """Say what the main thread of a loader worker does."""
    reading = read_stack(frames)
    users = next((frame for frame in reversed(frames) if is_users(frame)), None)
    word = _find_word(_last_run(frames))
    in_loop = any(frame.file.endswith(_WORKER_LOOP) for frame in frames)
    fetching = reading.phase is Phase.DATA_WAIT
    if in_loop and not fetching and word in ("queue.get", "queue.put"):
        text = "waits for work (queue.get)" if word == "queue.get" else "hands over a batch (queue.put)"
        return StackDoing(
            text, StackWait.WORK if word == "queue.get" else StackWait.QUEUE, reading.phase, reading.place
        )
    if users is None:
        text = reading.where.removeprefix(f"{Phase.DATA_WAIT.value}: ")
        return StackDoing(text, StackWait.NOTHING, reading.phase, reading.place)
    where = f"{plain_name(users.function)} {name_line(users)}"
    text = f"{word} in {where}" if word else where
    return StackDoing(text, StackWait.QUEUE if word else StackWait.NOTHING, reading.phase, reading.place)


def _describe_main(frames: Sequence[StackFrame]) -> StackDoing:
    reading = read_stack(frames)
    inside = read_inside(frames, reading)
    if inside is not None:
        at_queue = inside.phase is Phase.DATA_WAIT and inside.part in (DataPart.QUEUE, None)
        wait = StackWait.BATCH if at_queue else _WAIT_OF_PHASE.get(inside.phase, StackWait.NOTHING)
        return StackDoing(inside.text, wait, reading.phase, inside.place)
    if reading.phase is Phase.DATA_WAIT:
        if reading.part in (DataPart.QUEUE, None):
            return StackDoing(reading.where, StackWait.BATCH, reading.phase, reading.place)
        users = next((frame for frame in reversed(frames) if is_users(frame)), None)
        text = (
            f"{plain_name(users.function)} {name_line(users)} ({Phase.DATA_WAIT.value})"
            if users
            else reading.where
        )
        return StackDoing(text, StackWait.NOTHING, reading.phase, reading.place)
    if reading.phase is not Phase.OTHER:
        wait = _WAIT_OF_PHASE.get(reading.phase, StackWait.NOTHING)
        return StackDoing(reading.where, wait, reading.phase, reading.place)
    word = _find_word(_last_run(frames))
    if word and not any(map(is_users, frames)):
        text = f"waits for {word}" if word.startswith("threads") else word
    else:
        text = f"{word} in {reading.where}" if word and word not in reading.where else reading.where
    return StackDoing(text, StackWait.QUEUE if word else StackWait.NOTHING, reading.phase, reading.place)


def _describe_other(frames: Sequence[StackFrame]) -> StackDoing:
    """Say what a thread does that no step depends on as such: a feeder, a progress bar, a logger."""
    reading = read_stack(frames)
    users = next((frame for frame in reversed(frames) if is_users(frame)), None)
    word = _find_word(_last_run(frames))
    wait = StackWait.WORK if word in _IDLE_WORDS else StackWait.QUEUE if word else StackWait.NOTHING
    if users is not None:
        where = f"{plain_name(users.function)} {name_line(users)}"
        return StackDoing(f"{word} in {where}" if word else where, wait, reading.phase, reading.place)
    package = next(
        (name for one in frames if not _is_boilerplate(one) and (name := package_of(one.file))), "threading"
    )
    innermost = frames[-1]
    text = word or f"{plain_name(innermost.function)} {name_line(innermost)}"
    if package not in ("threading", "multiprocessing", "queue", "torch"):
        text = f"{package}: {text}"
    return StackDoing(text, wait, reading.phase, reading.place)


@lru_cache(maxsize=4096)
def describe_stack(role: Role, kind: ThreadKind, frames: tuple[StackFrame, ...]) -> StackDoing:
    """Say what a thread of a process of ``role`` does; ``frames`` outermost first.

    Frames of C count only where those of Python say nothing of a wait.
    """
    own = [frame for frame in own_frames(frames) if not is_native(frame.file)]
    if not own:
        return StackDoing("no Python frames", StackWait.NOTHING, Phase.OTHER, ("", "", 0))
    if kind is not ThreadKind.MAIN:
        return _describe_other(own)
    if role is Role.WORKER:
        return _describe_worker(own)
    return _name_native(_describe_main(own), frames)


_NATIVE_WAITS = (
    (
        re.compile(r"c10d::(?:\w+::)*Work\w*::(?:wait|synchronize)|ncclWork\w*::"),
        StackWait.RANKS,
        "a collective",
    ),
    (re.compile(r"c10d::Reducer::finalize_backward"), StackWait.RANKS, "a collective"),
    (
        re.compile(r"cu(?:da)?(?:Stream|Device|Event|Ctx)Synchronize|_local_scalar_dense"),
        StackWait.DEVICE,
        "the device",
    ),
)
"""Waits that have no frame of Python: ``work.wait()`` and ``.item()`` show their line alone."""


def _name_native(doing: StackDoing, frames: Sequence[StackFrame]) -> StackDoing:
    """Say what frames of C tell of a wait that those of Python leave open."""
    if doing.wait is not StackWait.NOTHING or doing.phase not in (Phase.OTHER, Phase.BACKWARD, Phase.FORWARD):
        return doing
    names = [frame.function for frame in frames if is_native(frame.file)]
    for pattern, wait, words in _NATIVE_WAITS:
        if any(pattern.search(name) for name in names):
            return replace(doing, text=f"{words} in {doing.text}", wait=wait)
    return doing
