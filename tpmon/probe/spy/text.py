"""Parse what py-spy prints: raw folded stacks and complaints (``dump_text`` parses its JSON). Pure.

The text comes from names of somebody else's program: nothing in it may raise, and everything is
cleaned and capped before it leaves this module.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.text.redaction import admit_text, hide
from tpmon.model.units import clean_text

T = TypeVar("T")

MAX_STACKS = 200
MAX_FRAMES = 80
OUTER_FRAMES = 30
"""Of a deeper stack the outermost 30 and the innermost 50 stay: both ends say what it does."""
MAX_THREADS = 512
_NAME_CHARS = 120
_PATH_CHARS = 240
_THREAD_CHARS = 64
_MAX_PARTS = 8
"""Of one frame: a file name with more semicolons is no frame."""
_MAX_LINE = 2**31
_HEADER = re.compile(r"thread \((0x[0-9A-Fa-f]{1,16}|\d{1,20})\)(?:: (.*))?", re.DOTALL)
_COUNT = re.compile(r" (\d{1,12})\Z")
_ENDS = re.compile(r"\n+(?=thread \(|py-spy>|\Z)")


class Refusal(Enum):
    """Name why py-spy could not look."""

    PERMISSION = "permission"
    GONE = "gone"
    UNKNOWN_PYTHON = "unknown Python"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sampled:
    """Hold the stacks of one process.

    ``samples`` counts how often the main thread was seen; ``lost`` lines could not be read.
    """

    samples: int
    stacks: tuple[StackCount, ...]
    lost: int

    def count(self, tid: int) -> int:
        """Count how often a thread was seen."""
        return sum(one.samples for one in self.stacks if one.tid == tid)

    @property
    def frames(self) -> int:
        """Count the frames of all stacks: what a sample costs."""
        return sum(len(one.frames) for one in self.stacks)


def _clean_path(path: str) -> str:
    """Clean a path and keep its end, which names the file."""
    shown = hide(path)
    return clean_text(shown if len(shown) <= _PATH_CHARS else "…" + shown[1 - _PATH_CHARS :], _PATH_CHARS)


@lru_cache(maxsize=4096)
def make_frame(function: str, path: str, line: int) -> StackFrame:
    """Make a frame of cleaned and capped text."""
    return StackFrame(admit_text(function, _NAME_CHARS), _clean_path(path), min(max(line, 0), _MAX_LINE))


def _parse_frame(text: str) -> StackFrame | None:
    """Parse "function (file:line)" or "function (file)"; None for anything else."""
    function, opening, place = text.partition(" (")
    if not opening or not place.endswith(")"):
        return None
    path, colon, line = place[:-1].rpartition(":")
    if colon and line.isascii() and line.isdecimal() and len(line) <= 10:
        return make_frame(function, path, int(line))
    return make_frame(function, place[:-1], 0)


class _Frames:
    """Parse frames, each distinct text once."""

    def __init__(self) -> None:
        self._known: dict[str, StackFrame | None] = {}

    def find(self, text: str) -> StackFrame | None:
        """Return the frame that ``text`` spells, None when it spells none."""
        if text not in self._known:
            self._known[text] = _parse_frame(text)
        return self._known[text]

    def split(self, parts: list[str]) -> tuple[str, tuple[StackFrame, ...]]:
        """Join the parts of a line into frames, outermost first; also returns what belongs to the name.

        File and thread names may hold semicolons, so a part need not be a whole frame.
        """
        frames: list[StackFrame] = []
        name = ""
        rest: list[str] = []
        for part in parts:
            frame = self.find(part)
            if rest and not frames and frame is not None and _begins_with_path(frame):
                # What stood before the first frame was the end of the thread's name.
                name = ";" + ";".join(rest)
                rest = []
            rest.append(part)
            if len(rest) > 1:
                frame = self.find(";".join(rest)) if part.endswith(")") else None
            if frame is None and len(rest) == _MAX_PARTS:
                frame = make_frame(";".join(rest), "", 0)
            if frame is not None:
                frames.append(frame)
                rest = []
        if rest:
            frames.append(make_frame(";".join(rest), "", 0))
        return name, tuple(frames)


def _begins_with_path(frame: StackFrame) -> bool:
    return frame.file.startswith(("/", "<", "…"))


def cut_frames(frames: tuple[T, ...]) -> tuple[T, ...]:
    """Drop the middle of a stack that is deeper than ``MAX_FRAMES``: samples of a recursion add up."""
    if len(frames) <= MAX_FRAMES:
        return frames
    return frames[:OUTER_FRAMES] + frames[OUTER_FRAMES - MAX_FRAMES :]


def parse_raw(output: bytes, pid: int, loop_tid: int = 0) -> Sampled:
    """Parse the folded stacks of ``py-spy record --threads --format raw``; lines of its own are skipped.

    Where there are too many stacks, those of the main thread and of ``loop_tid`` are kept first.
    """
    frames = _Frames()
    counts: Counter[tuple[int, str, tuple[StackFrame, ...]]] = Counter()
    lost = 0
    # The name of a thread, function or file may hold a line break: a stack goes on until it is counted.
    for line in _ENDS.split(output.decode("utf-8", "replace")):
        if not line.startswith("thread ("):
            # What py-spy says itself is no stack.
            lost += bool(line) and not line.startswith("py-spy>") and _COUNT.search(line) is not None
            continue
        number = _COUNT.search(line)
        parts = (line[: number.start()] if number else line).split(";")
        header = _HEADER.fullmatch(parts[0])
        if number is None or header is None:
            lost += 1
            continue
        name, stack = frames.split(parts[1:])
        tid = int(header[1], 0)
        thread = admit_text((header[2] or "") + name, _THREAD_CHARS)
        counts[tid, thread, cut_frames(stack)] += int(number[1])
    stacks = [StackCount(tid, thread, stack, count) for (tid, thread, stack), count in counts.items()]
    return settle(stacks, pid, lost, loop_tid=loop_tid)


def _is_main(stack: StackCount, pid: int, tids: set[int]) -> bool:
    return stack.tid == pid if pid in tids else stack.thread == "MainThread"


def settle(
    found: Sequence[StackCount], pid: int, lost: int, most: int = MAX_STACKS, loop_tid: int = 0
) -> Sampled:
    """Give the main thread the number of its process and bound the number of stacks.

    py-spy knows the kernel's number of a thread from Python 3.11 on; in a container it is the
    number of the inside. Stacks beyond the ``most`` stay counted, as one without frames a thread.
    """
    tids = {one.tid for one in found}
    stacks = [replace(one, tid=pid) if _is_main(one, pid, tids) else one for one in found]
    samples = sum(one.samples for one in stacks if one.tid == pid)
    stacks.sort(key=lambda one: (one.tid not in (pid, loop_tid), one.tid != pid, -one.samples))
    rest: Counter[tuple[int, str]] = Counter()
    for one in stacks[most:]:
        rest[one.tid, one.thread] += one.samples
    others = tuple(StackCount(tid, thread, (), count) for (tid, thread), count in rest.most_common(most))
    return Sampled(samples, (*stacks[:most], *others), lost)


def parse_complaint(errors: bytes) -> tuple[Refusal, str]:
    """Tell why py-spy gave up from what it wrote on stderr; the text is its first line, cleaned."""
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
