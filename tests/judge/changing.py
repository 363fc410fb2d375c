"""Change what must not matter in the Frames of a job: the user's names, numbers of processes, clocks, words."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

from tpmon.judge.stacks.classify import is_users, last_name, mark_frame
from tpmon.judge.stacks.phases import read_frame_rules
from tpmon.model.dump import DeadChild
from tpmon.model.frame import Frame, Target
from tpmon.model.known import is_known
from tpmon.model.process import WORKER_NAME, ProcessSample, Role
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding
from tpmon.model.waits import Wait

HOSTILE = (
    *("barrier", "train_epoch", "queue.get", "threads to end", "lock or queue (futex)", "poll", "recv", "sleep"),
    *("tracker", "subprocess_env", "all_reduce", "DataLoader", "process pool", "socket", "NFS", "load", "backward"),
)
"""Words of tpmon, of the kernel and of libraries, as a user may call a file, a function or a process."""
SECOND = 10**9

Step = Callable[[Any], Any]


def walk(frames: Sequence[Frame], step: Step) -> list[Frame]:
    """Rebuild Frames from the inside out, each part passed through ``step``, once where Frames share it."""
    done: dict[int, Any] = {}

    def rebuild(value: Any) -> Any:
        if id(value) not in done:
            done[id(value)] = rebuild_anew(value)
        return done[id(value)]

    def rebuild_anew(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            new = {name: rebuild(part) for name, part in parts.items()}
            changed = {name: part for name, part in new.items() if part is not parts[name]}
            return step(dataclasses.replace(value, **changed) if changed else value)
        if isinstance(value, tuple):
            rebuilt = tuple(map(rebuild, value))
            return value if all(a is b for a, b in zip(rebuilt, value, strict=True)) else rebuilt
        return step(value)

    return [rebuild(one) for one in frames]


def change_fields(frames: Sequence[Frame], names: Collection[str], step: Step) -> list[Frame]:
    """Pass the fields of these names, of all dataclasses, through ``step``."""

    def change(value: Any) -> Any:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        found = [one.name for one in dataclasses.fields(value) if one.name in names]
        return dataclasses.replace(value, **{name: step(getattr(value, name)) for name in found})

    return walk(frames, change)


def _is_hint(name: str) -> bool:
    """Tell whether a name is one of the few that are taken as a hint where no library's frame tells more."""
    return any(pattern.fullmatch(name) for _, pattern in read_frame_rules().names)


def rename(frames: Sequence[Frame], word: str) -> list[Frame]:
    """Call the user's files, functions, threads and processes by ``word`` and a number each."""

    def call(name: str) -> str:
        return f"{word}_{crc32(name.encode()) % 997}"

    def rename_frame(frame: StackFrame) -> StackFrame:
        if not is_users(frame) or frame.file.startswith("<"):
            return frame
        name, (folder, _, file) = last_name(frame.function), frame.file.rpartition("/")
        function = frame.function if _is_hint(name) or "<" in name else call(frame.function)
        renamed = StackFrame(function, f"{folder}/{call(file)}.py", frame.line)
        same = mark_frame(renamed.function, renamed.file) == mark_frame(frame.function, frame.file)
        return renamed if same else frame

    def step(value: Any) -> Any:
        if isinstance(value, StackFrame):
            return rename_frame(value)
        if isinstance(value, ProcessSample):
            own = value.name.startswith(("python", WORKER_NAME)) or value.role is Role.WORKER
            name = value.name if own else call(value.name)
            return dataclasses.replace(value, name=name, label=call(value.label))
        if isinstance(value, DeadChild) and not value.name.startswith(("python", WORKER_NAME)):
            return dataclasses.replace(value, name=call(value.name))
        if isinstance(value, Target):
            return dataclasses.replace(value, script=f"{call(value.script)}.py")
        return value

    return walk(frames, step)


def pick_number(number: Any) -> Any:
    """Return another number for a process or thread; 0 and 1 are the kernel's own."""
    if isinstance(number, tuple):
        return tuple(map(pick_number, number))
    return 3 * number + 100_000 if isinstance(number, int) and number > 1 else number


def renumber(frames: Sequence[Frame]) -> list[Frame]:
    """Give all processes and threads other numbers."""
    names = ("pid", "parent", "rank_pid", "asked_pid", "tid", "loop_tid", "pids")
    return change_fields(frames, names, pick_number)


def swap_rank(rank: Any) -> Any:
    """Return the other of the first two ranks."""
    return {0: 1, 1: 0}.get(rank, rank) if is_known(rank) else rank


def permute(frames: Sequence[Frame]) -> list[Frame]:
    """Swap the numbers of the first two ranks."""
    return change_fields(frames, ("rank", "local_rank"), swap_rank)


def shift(frames: Sequence[Frame], seconds: int) -> list[Frame]:
    """Move all clocks by a constant."""
    dated = walk(frames, lambda value: value + timedelta(seconds=seconds) if isinstance(value, datetime) else value)
    return change_fields(
        dated, ("taken_ns", "ended_ns"), lambda at: at + seconds * SECOND if is_known(at) and at else at
    )


def reverse(frames: Sequence[Frame]) -> list[Frame]:
    """Turn the order of processes and threads around: it is that of a table of the kernel."""
    names = ("processes", "ranks", "loader", "threads")
    return change_fields(frames, names, lambda part: part[::-1] if isinstance(part, tuple) else part)


def babble(frames: Sequence[Frame]) -> list[Frame]:
    """Put other words in the place of those of waits."""
    return walk(frames, lambda value: Wait(value.reason, "blah, but sleep") if isinstance(value, Wait) else value)


def decided(finding: Finding) -> tuple[Any, ...]:
    """Return what a verdict decides: all of it but its words, and the time."""
    return (
        finding.kind,
        finding.cause,
        finding.pid,
        finding.rank,
        finding.card,
        finding.confidence,
        finding.share_pct,
        finding.since_is,
    )
