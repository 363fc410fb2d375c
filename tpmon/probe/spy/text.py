"""Parse what py-spy prints: folded stacks, dumps, samples and complaints. Pure.

It is text of another program: nothing in it may raise, and all is cleaned and capped before it leaves here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from tpmon.model.dump import FrameLocals, Local
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.text.redaction import HIDDEN, admit_text, hide
from tpmon.model.text.secrets import Rating, rate_name
from tpmon.model.units import clean_text

T = TypeVar("T")

MAX_STACKS = 200
MAX_FRAMES = 80
OUTER_FRAMES = 30  # a deeper stack keeps its outermost 30 and innermost 50: both ends say what it does
MAX_THREADS = 512
_NAME_CHARS = 120
_PATH_CHARS = 240
_THREAD_CHARS = 64
_MAX_PARTS = 8  # of one frame: a file name with more semicolons is no frame
_MAX_LINE = 2**31
_HEADER = re.compile(r"thread \((0x[0-9A-Fa-f]{1,16}|\d{1,20})\)(?:: (.*))?", re.DOTALL)
_COUNT = re.compile(r" (\d{1,12})\Z")
_ENDS = re.compile(r"\n+(?=thread \(|py-spy>|\Z)")


class Refusal(Enum):
    """Name why py-spy could not read a process."""

    PERMISSION = "permission"
    GONE = "gone"
    UNKNOWN_PYTHON = "unknown Python"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sampled:
    """Hold the stacks of one process, how often its main thread was seen, and the ``lost`` lines."""

    samples: int
    stacks: tuple[StackCount, ...]
    lost: int

    def count(self, tid: int) -> int:
        """Count how often a thread was seen."""
        return sum(one.samples for one in self.stacks if one.tid == tid)

    @property
    def counts(self) -> tuple[StackCount, ...]:
        """The stacks as a Frame holds them: without what a dump alone has."""
        return tuple(
            StackCount(one.tid, one.thread, one.frames, one.samples, one.holds_gil) for one in self.stacks
        )

    @property
    def frames(self) -> int:
        """Count the frames of all stacks: what a sample costs."""
        return sum(len(one.frames) for one in self.stacks)


@lru_cache(maxsize=4096)
def make_frame(function: str, path: str, line: int) -> StackFrame:
    """Make a frame of cleaned and capped text; a path keeps its end, which names the file."""
    shown = hide(path)
    file = clean_text(shown if len(shown) <= _PATH_CHARS else "…" + shown[1 - _PATH_CHARS :], _PATH_CHARS)
    return StackFrame(admit_text(function, _NAME_CHARS), file, min(max(line, 0), _MAX_LINE))


@lru_cache(maxsize=4096)
def _parse_frame(text: str) -> StackFrame | None:
    """Parse "function (file:line)" or "function (file)"; None for anything else."""
    function, opening, place = text.partition(" (")
    if not opening or not place.endswith(")"):
        return None
    path, colon, line = place[:-1].rpartition(":")
    if colon and line.isascii() and line.isdecimal() and len(line) <= 10:
        return make_frame(function, path, int(line))
    return make_frame(function, place[:-1], 0)


def _split_frames(parts: Sequence[str]) -> tuple[str, tuple[StackFrame, ...]]:
    """Join the parts of a line into frames, outermost first; also return what belongs to the name.

    File and thread names may hold semicolons, so a part need not be a whole frame.
    """
    frames: list[StackFrame] = []
    name = ""
    rest: list[str] = []
    for part in parts:
        frame = _parse_frame(part)
        if rest and not frames and frame is not None and frame.file.startswith(("/", "<", "…")):
            # What came before the first frame was the end of the thread's name.
            name = ";" + ";".join(rest)
            rest = []
        rest.append(part)
        if len(rest) > 1:
            frame = _parse_frame(";".join(rest)) if part.endswith(")") else None
        if frame is None and len(rest) == _MAX_PARTS:
            frame = make_frame(";".join(rest), "", 0)
        if frame is not None:
            frames.append(frame)
            rest = []
    if rest:
        frames.append(make_frame(";".join(rest), "", 0))
    return name, tuple(frames)


def _cut_middle(frames: tuple[T, ...], *cut: T) -> tuple[T, ...]:
    """Drop the middle of a stack that is deeper than ``MAX_FRAMES``, or put ``cut`` in its place.

    Samples of a recursion then add up. In a dump ``cut`` has the number of dropped frames, or a recursion
    that goes deeper would look the same each time.
    """
    if len(frames) <= MAX_FRAMES:
        return frames
    return (*frames[:OUTER_FRAMES], *cut, *frames[OUTER_FRAMES + len(cut) - MAX_FRAMES :])


def parse_raw(output: bytes, pid: int, loop_tid: int = 0) -> Sampled:
    """Parse the folded stacks of ``py-spy record --threads --format raw``, without py-spy's own lines.

    Of too many stacks those of the main thread and of ``loop_tid`` are kept first.
    """
    counts: Counter[tuple[int, str, tuple[StackFrame, ...]]] = Counter()
    lost = 0
    # Names of threads, functions and files may hold line breaks: a stack ends with its count.
    for line in _ENDS.split(output.decode("utf-8", "replace")):
        if not line.startswith("thread ("):
            # py-spy's own remarks are no stack.
            lost += bool(line) and not line.startswith("py-spy>") and _COUNT.search(line) is not None
            continue
        number = _COUNT.search(line)
        parts = (line[: number.start()] if number else line).split(";")
        header = _HEADER.fullmatch(parts[0])
        if number is None or header is None:
            lost += 1
            continue
        name, stack = _split_frames(parts[1:])
        tid = int(header[1], 0)
        thread = admit_text((header[2] or "") + name, _THREAD_CHARS)
        counts[tid, thread, _cut_middle(stack)] += int(number[1])
    stacks = [StackCount(tid, thread, stack, count) for (tid, thread, stack), count in counts.items()]
    return settle(stacks, pid, lost, loop_tid=loop_tid)


def settle(
    found: Sequence[StackCount], pid: int, lost: int, most: int = MAX_STACKS, loop_tid: int = 0
) -> Sampled:
    """Give the main thread the number of its process and bound the number of stacks.

    py-spy knows a thread's TID from Python 3.11 on, in a container the inner one. Stacks beyond ``most`` stay
    counted, as one without frames for each thread.
    """
    stacks = list(found)
    if all(one.tid != pid for one in found):
        stacks = [replace(one, tid=pid) if one.thread == "MainThread" else one for one in found]
    samples = sum(one.samples for one in stacks if one.tid == pid)
    stacks.sort(key=lambda one: (one.tid not in (pid, loop_tid), one.tid != pid, -one.samples))
    rest: Counter[tuple[int, str]] = Counter()
    for one in stacks[most:]:
        rest[one.tid, one.thread] += one.samples
    others = tuple(StackCount(tid, thread, (), count) for (tid, thread), count in rest.most_common(most))
    return Sampled(samples, (*stacks[:most], *others), lost)


def parse_complaint(errors: bytes) -> tuple[Refusal, str]:
    """Return why py-spy gave up by its stderr, and the first line of that, cleaned."""
    text = errors.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = admit_text(lines[0].removeprefix("Error: ") if lines else "no reason given", 160)
    lowered = text.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered or "os error 1)" in lowered:
        return Refusal.PERMISSION, first
    if "failed to get process executable name" in lowered or "no such process" in lowered:
        return Refusal.GONE, first
    if "python version" in lowered or "unsupported version" in lowered or "find python" in lowered:
        return Refusal.UNKNOWN_PYTHON, first
    return Refusal.OTHER, first


MOST_PARSED = 4096  # threads of one process, of which ``settle`` keeps ``MAX_THREADS``, the main one first
MOST_LOCALS = 40  # of one frame
CUT_FILE = "<cut>"  # the file of the frame that stands for those left out
VALUE_CHARS = 80
NATIVE_CHARS = 80
_THREAD_NAME_CHARS = 64
_MAX_TID = 2**64
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
_UNNAMED = re.compile(r"0x[0-9a-f]+")
_TEMPLATE = re.compile(r"<[^<>]*>")
_NUMBER = re.compile(r"-?[0-9][0-9._]*(?:e[-+]?[0-9]+)?")
_MOST_NESTED = 12


@dataclass(frozen=True, slots=True)
class DumpedStack(StackCount):
    """Hold the stack of one thread."""

    locals: Applicable[tuple[FrameLocals, ...]] = NOT_APPLICABLE  # unless they were asked for
    active: bool = True  # the kernel ran it right before its stack was read, or nothing says otherwise


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any, most: int) -> int:
    return value if isinstance(value, int) and 0 <= value < most else 0


def shorten_native(name: str) -> str:
    """Shorten a C++ function's name: no arguments or template parameters; "?" for an address: it varies."""
    if _UNNAMED.fullmatch(name):
        return "?"
    name = name.replace("(anonymous namespace)::", "")
    for _ in range(_MOST_NESTED):
        name, count = _TEMPLATE.subn("", name)
        if not count:
            break
    return admit_text(name.partition("(")[0].strip() or name, NATIVE_CHARS)


def _parse_dump_frame(frame: dict[str, Any]) -> StackFrame:
    name, file, line = _text(frame.get("name")), _text(frame.get("filename")), frame.get("line")
    # A frame of C has the library as its module, and a line only with debug information.
    if _text(frame.get("module")):
        name = shorten_native(name)
    return make_frame(name, file, _number(line, _MAX_LINE))


def _parse_locals(frame: dict[str, Any]) -> tuple[Local, ...]:
    found = frame.get("locals")
    if not isinstance(found, list):
        return ()
    rows = [one for one in found[:MOST_LOCALS] if isinstance(one, dict) and _text(one.get("name"))]
    return tuple(_parse_local(_text(one["name"]), _text(one.get("repr"))) for one in rows)


def _parse_local(name: str, value: str) -> Local:
    """Clean one variable and hide a possible secret, by its name and its form."""
    rating = rate_name(name)
    if rating > Rating.WEAK:
        shown = value if _is_plain(rating, value) else HIDDEN
    else:
        shown = hide(f"{name}={value}").removeprefix(f"{name}=")
    # The address of an object differs from rank to rank and means nothing.
    return Local(admit_text(name, _THREAD_NAME_CHARS), admit_text(_ADDRESS.sub("", shown), VALUE_CHARS))


def _is_plain(rating: Rating, value: str) -> bool:
    """Tell whether the value of a secret's name is none: an object, None, a truth value, a number."""
    if value.startswith("<") or value in ("None", "True", "False"):
        return True
    return rating is Rating.BRIEF and _NUMBER.fullmatch(value) is not None


def _parse_thread(thread: Any) -> DumpedStack | None:
    if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
        return None
    raw = [one for one in reversed(thread["frames"]) if isinstance(one, dict)]
    frames = tuple(map(_parse_dump_frame, raw))
    tid = _number(thread.get("os_thread_id"), _MAX_TID) or _number(thread.get("thread_id"), _MAX_TID)
    name = admit_text(_text(thread.get("thread_name")), _THREAD_CHARS)
    found: Applicable[tuple[FrameLocals, ...]] = NOT_APPLICABLE
    if any(one.get("locals") is not None for one in raw):
        kept = _cut_middle(tuple(raw), {})
        every = ((place, _parse_locals(one)) for place, one in enumerate(kept))
        found = tuple(FrameLocals(place, variables) for place, variables in every if variables)
    owns = thread.get("owns_gil")
    holds: Applicable[bool] = owns if isinstance(owns, bool) else NOT_APPLICABLE
    cut = make_frame(f"[{len(frames) - MAX_FRAMES + 1} frames left out]", CUT_FILE, 0)
    active = thread.get("active") is not False
    return DumpedStack(tid, name, _cut_middle(frames, cut), 1, holds, found, active)


def parse_dump(output: bytes, pid: int, loop_tid: int = 0) -> Sampled:
    """Parse ``py-spy dump --json``: one sample of every thread; py-spy lists frames innermost first.

    Of too many threads the main one and ``loop_tid`` are kept first, wherever they are listed.
    """
    try:
        threads = json.loads(output)
    except (ValueError, RecursionError):
        return Sampled(0, (), 1)
    if not isinstance(threads, list):
        return Sampled(0, (), 1)
    parsed = [_parse_thread(one) for one in threads[:MOST_PARSED]]
    stacks = [one for one in parsed if one is not None]
    return settle(stacks, pid, parsed.count(None), MAX_THREADS, loop_tid)


def is_torn(stacks: Iterable[StackCount]) -> bool:
    """Tell whether py-spy lost a stack while it read it: a running thread with the GIL has a frame.

    One in fifty samples of a loop of short calls is empty (measured), and would show a thread that moves. A
    C++ thread that holds the lock and waits has no frame, and lost none.
    """
    return any(
        isinstance(one, DumpedStack) and one.active and one.holds_gil is True and not one.frames
        for one in stacks
    )


_SUMMARY = re.compile(rb"Samples: (\d{1,12}) Errors: (\d{1,12})")
_BEHIND = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?)s behind in sampling")
"""py-spy says so from one second on, as a Rust Duration in seconds."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """Hold py-spy's own count: ``errors`` gave no stack; ``behind_s`` is the worst delay that it reported."""

    errors: int
    behind_s: float


def parse_remarks(output: bytes) -> Remarks:
    """Find the remarks in the output of ``py-spy record``; the last is the summary, behind all stacks."""
    lines = [line for line in output.split(b"\n") if not line.startswith(b"thread (")]
    summaries = [found for line in lines if (found := _SUMMARY.search(line))]
    delays = [float(found[1]) for line in lines for found in _BEHIND.finditer(line)]
    return Remarks(int(summaries[-1][2]) if summaries else 0, max(delays, default=0.0))
