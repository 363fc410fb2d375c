"""Classify one stack: its phase, whose code it is, and whether it waits. Pure.

A stack is walked from the outermost frame inwards. A frame that the tables know takes over if the phase so
far gives way to it (``GIVES_WAY``), so the innermost meaningful frame wins, and what runs inside a region
(torch.load in a dataset) counts for the region.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, takewhile

from tpmon.judge.answers.needs import Need
from tpmon.judge.stacks.phases import (
    GIVES_WAY,
    DataPart,
    FrameKind,
    FrameRule,
    Mark,
    Phase,
    RulesByFile,
    read_frame_rules,
)
from tpmon.model.frozen import dataclass
from tpmon.model.stacks import StackFrame
from tpmon.model.units import clean_text

_LIBRARY = re.compile(
    r"/(site|dist)-packages/|/tpmon/hook/|/lib(64)?/python\d|/python3\d*\.zip/|^<(?!stdin|ipython-input|command-)|torchinductor_|/bin/[^/.]+$"
)
_NATIVE = re.compile(r"\.so(?:\.[\d.]+)?$|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|rs|S)$|^\[|/python[\d.]*$")
_EVENT_LOOP = (("asyncio/base_events.py", "_run_once"), ("selectors.py", "select"))
_EXECUTOR_LOOP = ("concurrent/futures/thread.py", "_worker")
_POOL_LOOP = ("multiprocessing/pool.py", "worker")
_TASK_LOOPS = (("concurrent/futures/process.py", "_process_worker"), _EXECUTOR_LOOP, _POOL_LOOP)
"""Loops of pools over their tasks."""
_TASK_QUEUES = (("multiprocessing/queues.py", "get"), ("queue.py", "get"))


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Say whether a file belongs to Python, to an installed package, to generated code or to C."""
    return _LIBRARY.search(file) is not None or is_native(file)


@lru_cache(maxsize=4096)
def is_native(file: str) -> bool:
    """Say whether a file is a C library or source file, as in stacks with native frames."""
    return _NATIVE.search(file) is not None


def last_name(function: str) -> str:
    """Return the last part of a qualified name; before Python 3.11 it is the whole name."""
    return function.rpartition(".")[2]


def is_at(frame: StackFrame, path: str, function: str) -> bool:
    """Say whether a frame is in this function of a file whose path ends in this one."""
    return last_name(frame.function) == function and (frame.file == path or frame.file.endswith(f"/{path}"))


def is_task_loop(frame: StackFrame) -> bool:
    """Say whether a frame is the loop of a pool's process or thread over its tasks."""
    return any(is_at(frame, *place) for place in _TASK_LOOPS)


def waits_for_task(frames: Sequence[StackFrame], index: int) -> bool:
    """Say whether the pool loop at ``index`` waits for its next task.

    A process waits at its queue; a thread waits in C, which adds no frame. A process whose stack ends in the
    loop runs a task in C.
    """
    if not is_task_loop(frames[index]):
        return False
    if index + 1 < len(frames):
        return any(is_at(frames[index + 1], *place) for place in _TASK_QUEUES)
    in_thread = any(one.file.endswith("/threading.py") for one in frames[:index])
    return is_at(frames[index], *_EXECUTOR_LOOP) or (is_at(frames[index], *_POOL_LOOP) and in_thread)


@lru_cache(maxsize=4096)
def _is_kind(kind: FrameKind, function: str, file: str) -> bool:
    return is_library(file) and _find_rule(read_frame_rules().kinds[kind], function, file) is not None


def is_any(kind: FrameKind, frames: Iterable[StackFrame]) -> bool:
    """Say whether one of these frames is of this kind."""
    return any(_is_kind(kind, frame.function, frame.file) for frame in frames)


def ends_in(kind: FrameKind, frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost Python frame is of this kind."""
    last = _last_python(frames)
    return last is not None and _is_kind(kind, last.function, last.file)


def waits_for_others(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost Python frame is in a file that waits at queues, locks or futures."""
    return ends_in(FrameKind.WAITS, frames)


def receives(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost frames wait for what another thread or process hands over.

    That is the receiving end of a queue, a pipe, a pool or a future, not a full queue, a join or a lock.
    """
    if not waits_for_others(frames):
        return False
    inner = list(takewhile(lambda frame: is_library(frame.file), reversed(frames)))
    return is_any(FrameKind.RECEIVES, inner) and not is_any(FrameKind.ANSWERS, inner)


def retries(frames: Sequence[StackFrame]) -> bool:
    """Say whether the innermost frames are a client's sleep before it asks its server again."""
    inner = (one for one in reversed(frames) if not is_native(one.file))
    sleep = next((one for one in inner if not one.file.endswith("/threading.py")), None)
    return sleep is not None and is_any(FrameKind.RETRIES, [sleep])


def is_event_loop(frames: Sequence[StackFrame]) -> bool:
    """Say whether asyncio's event loop itself waits, outside of callbacks."""
    return len(frames) > 1 and all(map(lambda one, place: is_at(one, *place), frames[-2:], _EVENT_LOOP))


def rests_in_notebook(frames: Sequence[StackFrame]) -> bool:
    """Say whether the kernel of a notebook has no cell to run."""
    return is_event_loop(frames) and is_any(FrameKind.NOTEBOOK, frames)


_INSTALLED = re.compile(
    r"^.*/(?:(?:site|dist)-packages|lib(?:64)?/python\d[\d.]*t?|python3\d*\.zip)/(?:[^/]+\.egg/)?"
)
"""What precedes the name of a library: a home or a project may be called like one."""
_PACKAGES = (
    re.compile(r"/(?:site|dist)-packages/([^/]+)"),
    re.compile(r"/lib(?:64)?/python\d[\d.]*/([^/]+)"),
)
_COLLATES = Mark(Phase.DATA_WAIT, DataPart.COLLATE, Need.COLLATE_IN_STACK, weak=True)
FETCH_FILE = "torch/utils/data/_utils/fetch.py"
_ITEMS = frozenset(("<listcomp>", "__getitem__", "__getitems__", "__next__", "__iter__", "<genexpr>"))
_MODULE = "<module>"
_NAME_CHARS = 40
EVENT_LOOP = "event loop"
"""Begins the place of a stack in which no asyncio task can go on."""


@dataclass(frozen=True, slots=True)
class StackPlace:
    """Hold where a stack is: in words, and in what rules decide by."""

    where: str
    phase: Phase
    is_loop: bool = False
    function: tuple[str, ...] = ()
    """Equal for the lines of one function of a file."""


@dataclass(frozen=True, slots=True)
class StackReading:
    """Say what one stack does; ``place`` is equal for stacks in the same line of the same phase."""

    phase: Phase
    part: DataPart | None
    where: str
    place: tuple[str, str, int]
    needs: frozenset[Need]
    site: tuple[str, ...] = ()
    """The parts of ``where``: equal for stacks of the same words."""
    is_loop: bool = False
    """The event loop waits, and none of its tasks can go on."""
    is_hint: bool = False
    """Only the name of one of the program's functions tells its phase."""
    function: tuple[str, ...] = ()
    """As in ``StackPlace``."""

    @property
    def spot(self) -> StackPlace:
        """Return where it is, with the phase of that place."""
        return StackPlace(self.where, self.phase, self.is_loop, self.function)


@lru_cache(maxsize=4096)
def _within_packages(file: str) -> str:
    """Return the path of an installed file from its library's folder on, "" for others."""
    found = _INSTALLED.match(file)
    return file[found.end() :] if found else ""


def _find_rule(rules: RulesByFile, function: str, file: str) -> FrameRule | None:
    """Return the rule for a function of a file: a file's before a folder's, of the longest path."""
    name = last_name(function)
    those = chain(rules.get(file.rpartition("/")[2], ()), rules[""])
    return next((rule for rule in those if _fits(rule, name, file)), None)


def _fits(rule: FrameRule, name: str, file: str) -> bool:
    if name in rule.but or (rule.functions and name not in rule.functions):
        return False
    if rule.path.endswith("/"):
        return _within_packages(file).startswith(rule.path) if rule.installed else f"/{rule.path}" in file
    found = file == rule.path or file.endswith(f"/{rule.path}")
    return found and (not rule.installed or is_library(file))


@lru_cache(maxsize=8192)
def mark_frame(function: str, file: str) -> Mark | None:
    """Return the mark of a frame of ``function`` in ``file``; None when it says nothing."""
    name = last_name(function)
    if name == _MODULE:
        # A module's own lines run at its import, whatever the file does later.
        return None
    rules = read_frame_rules()
    rule = _find_rule(rules.frames, name, file)
    if rule is not None or is_library(file):
        return rule.mark if rule is not None else None
    return next((mark for mark, pattern in rules.names if pattern.fullmatch(name)), None)


@lru_cache(maxsize=8192)
def _is_collate(fetch: str, name: str, below: str) -> bool:
    """Say whether ``name``, which ``fetch`` called, is the collate function; ``below`` is what that calls.

    A map-style dataset is only asked for items, so any other call is the collate function, except for a
    decorator around the item access. An iterable dataset may be a generator of any name. Before Python 3.11 a
    stack does not tell the two fetchers apart.
    """
    if name in _ITEMS or below in ("__getitem__", "__getitems__"):
        return False
    return fetch.startswith("_Map") or name in ("__call__", "<lambda>") or "collate" in name.lower()


def _last_python(frames: Sequence[StackFrame]) -> StackFrame | None:
    for frame in reversed(frames):
        if not is_native(frame.file):
            return frame
    return None


@dataclass(frozen=True, slots=True)
class _Region:
    """Hold what the walk found: the phase, the frame that began it, and the phase around it."""

    phase: Phase
    part: DataPart | None
    begin: int
    outer: Phase
    marks: tuple[Mark | None, ...]
    needs: frozenset[Need]
    is_hint: bool


def _mark_called(frames: Sequence[StackFrame], index: int, name: str) -> Mark | None:
    """Return the mark that a frame has by the one that called it."""
    caller, rules = frames[index - 1], read_frame_rules().below.get(name)
    if is_at(caller, FETCH_FILE, "fetch"):
        called = last_name(frames[index + 1].function) if index + 1 < len(frames) else ""
        return _COLLATES if _is_collate(caller.function, name, called) else None
    rule = _find_rule(rules, caller.function, caller.file) if rules is not None else None
    return rule.mark if rule is not None else None


def _walk(frames: Sequence[StackFrame]) -> _Region:
    phase, outer, part, begin = Phase.OTHER, Phase.OTHER, None, 0
    marks: list[Mark | None] = []
    needs: set[Need] = set()
    importing, rules, caller = False, read_frame_rules(), ""
    for index, frame in enumerate(frames):
        mark, name = mark_frame(frame.function, frame.file), last_name(frame.function)
        if index and (caller == "fetch" or name in rules.below):
            mark = _mark_called(frames, index, name) or mark
        caller = name
        imports = mark is not None and mark.phase is Phase.IMPORT
        importing = imports or (importing and is_library(frame.file))
        if importing and not imports:
            # What a library does while it is imported is its import.
            mark = None
        marks.append(mark)
        if mark is None:
            continue
        if mark.need is not None:
            needs.add(mark.need)
        if mark.phase is phase:
            # Reading a file for a model that is restored reads no data.
            part = part if phase is Phase.LOAD else mark.part or part
        elif mark.phase in GIVES_WAY[phase] and not (mark.weak and phase is not Phase.OTHER):
            outer, phase, part, begin = phase, mark.phase, mark.part, index
    last = _last_python(frames)
    leaf = _find_rule(rules.leaves, last.function, last.file) if last is not None else None
    if last is not None and leaf is not None and leaf.mark.need is not None and not importing:
        outer, phase, part, begin = phase, Phase.SYNC, None, len(frames) - 1 - frames[::-1].index(last)
        marks[begin] = leaf.mark
        needs.add(leaf.mark.need)
    by_name = False
    if phase is Phase.DATA_WAIT:
        begun = marks[begin]
        by_name = begun is not None and begun.weak  # of the program's function: it may only take the batch
        if (part is None and waits_for_others(frames)) or (by_name and receives(frames)):
            part = DataPart.QUEUE
    # A library frame inside that loads is more than a name.
    told = any(mark is not None and mark.phase is phase and not mark.weak for mark in marks[begin + 1 :])
    return _Region(phase, part, begin, outer, tuple(marks), frozenset(needs), by_name and not told)


def classify(frames: Sequence[StackFrame]) -> tuple[Phase, DataPart | None]:
    """Say which phase the main thread is in; ``frames`` outermost first."""
    region = _walk(frames)
    return region.phase, region.part


def _short(text: str) -> str:
    return clean_text(text, _NAME_CHARS)


def plain_name(function: str) -> str:
    """Return a name that a person knows: the function around a comprehension or a lambda."""
    names = [name for name in function.split(".") if name and not name.startswith("<")]
    return _short(names[-1] if names else function)


def name_line(frame: StackFrame) -> str:
    """Write the file of a frame without its folder, and the line where it is known."""
    name = _short(frame.file.rpartition("/")[2])
    return f"{name}:{frame.line}" if frame.line else name


def say_frame(frame: StackFrame) -> str:
    """Say where a frame is: "decode data.py:88"."""
    return f"{plain_name(frame.function)} {name_line(frame)}"


def package_of(file: str) -> str:
    """Name the installed package or standard module that a file belongs to; "" for others."""
    found = next(filter(None, (pattern.search(file) for pattern in _PACKAGES)), None)
    return _short(found[1].removesuffix(".py")) if found else ""


def _operation(frames: Sequence[StackFrame], region: _Region) -> str:
    """Name what a person called: the outermost named function of the region that is no wrapper.

    Within a forward or backward pass nobody called it by hand: take the innermost public one.
    """
    words = read_frame_rules().words
    names = [
        name
        for index in range(region.begin, len(frames))
        if (mark := region.marks[index]) is not None and mark.named and mark.phase is region.phase
        if "<" not in (name := last_name(frames[index].function)) and words.get(name, name)
    ]
    if region.outer in (Phase.FORWARD, Phase.BACKWARD):
        names = [name for name in reversed(names) if not name.startswith("_")] or names
    if names:
        return words.get(names[0]) or _short(names[0])
    # A generator or a lambda has no name of its own: its caller has.
    begin = frames[: region.begin + 1]
    return plain_name(
        next((one.function for one in reversed(begin) if "<" not in one.function), begin[-1].function)
    )


def _around(region: _Region) -> str:
    """Name the wrapper of the model and the phase that a collective interrupted: " (ddp backward)"."""
    words = [
        word
        for need, word in ((Need.DDP_IN_STACK, "ddp"), (Need.FSDP_IN_STACK, "fsdp"))
        if need in region.needs
    ]
    if region.outer not in (Phase.OTHER, Phase.IMPORT):
        words.append(region.outer.value)
    return f" ({' '.join(words)})" if words else ""


def _word(frames: Sequence[StackFrame], region: _Region) -> str:
    phase = region.phase
    if phase is Phase.COMMS:
        return (_operation(frames, region) or phase.value) + _around(region)
    if phase is Phase.LOGGING:
        logs = (
            frame for frame, mark in zip(frames, region.marks, strict=True) if mark and mark.phase is phase
        )
        detail = package_of(list(logs)[-1].file)
    elif phase is Phase.BACKWARD and Need.RECOMPUTE_IN_STACK in region.needs:
        detail = "recompute"
    elif phase is Phase.IMPORT:
        modules = (package_of(frame.file) for frame in reversed(frames) if frame.function == _MODULE)
        detail = next(filter(None, modules), "")
    elif phase is Phase.DATA_WAIT:
        detail = region.part.value if region.part else ""
    elif any(mark is not None and mark.named and mark.phase is phase for mark in region.marks):
        detail = _operation(frames, region)
    else:
        detail = ""
    return f"{phase.value}: {detail}" if detail else phase.value


def is_users(frame: StackFrame) -> bool:
    """Say whether a frame is the user's own code."""
    if is_library(frame.file):
        return False
    mark = mark_frame(frame.function, frame.file)
    return mark is None or mark in read_frame_rules().marks_of_names


def find_users(frames: Sequence[StackFrame]) -> int:
    """Return the index of the innermost frame of the user's own code, -1 where there is none."""
    return next((i for i in range(len(frames) - 1, -1, -1) if is_users(frames[i])), -1)


_OF_PHASES = frozenset(
    (
        *(Need.LOGGING_IN_STACK, Need.COMPILE_IN_STACK, Need.IMPORT_IN_STACK, Need.LOAD_IN_STACK),
        *(Need.SAVE_IN_STACK, Need.VALIDATION_IN_STACK),
    )
)
"""Proven only by the winning phase: an import within a loader is no wait for imports."""


def _needs_of(region: _Region) -> frozenset[Need]:
    """Return what the stack proves; while a module is imported, only its own phase."""
    own = {mark.need for mark in region.marks if mark and mark.need and mark.phase is region.phase}
    return frozenset(own) if region.phase is Phase.IMPORT else frozenset(own | (region.needs - _OF_PHASES))


def read_stack(frames: Sequence[StackFrame]) -> StackReading:
    """Read one stack, outermost frame first: phase, place in words, and what it proves."""
    if not frames:
        return StackReading(Phase.OTHER, None, "no Python frames", ("", "", 0), frozenset())
    region, index = _walk(frames), find_users(frames)
    frame = frames[index]
    name, line, word = plain_name(frame.function), name_line(frame), _word(frames, region)
    is_loop, site = False, tuple[str, ...]()
    if index < 0:
        where, site = (f"{name} in {line}", (name, line)) if region.phase is Phase.OTHER else (word, (word,))
    elif region.phase is Phase.OTHER:
        is_loop = is_event_loop(frames)
        where, site = f"{f'{EVENT_LOOP} of ' if is_loop else ''}{name} {line}", (name, line)
    elif region.phase is Phase.DATA_WAIT and index > region.begin:
        where, site = f"{region.phase.value}: {name} in {line}", (region.phase.value, name, line)
    else:
        where, site = f"{word} {line}", (word, line)
    place = (region.phase.value, frame.file, frame.line)
    needs, function = _needs_of(region), (*site[:-1], frame.file) if len(site) > 1 else site
    return StackReading(
        region.phase, region.part, where, place, needs, site, is_loop, region.is_hint, function
    )
