"""Parse ``py-spy dump --json``: one sample of every thread, with native frames and variables where asked for.

Pure. All of it is text of somebody else's program: nothing in it may raise, and everything is cleaned and
capped before it leaves this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from tpmon.model.dump import FrameLocals, Local
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.model.text.redaction import HIDDEN, admit_text, hide
from tpmon.model.text.secrets import Rating, rate_name
from tpmon.probe.spy.text import MAX_FRAMES, MAX_THREADS, OUTER_FRAMES, Sampled, make_frame, settle

T = TypeVar("T")

MOST_PARSED = 4096
"""Threads of one process; of them ``settle`` keeps ``MAX_THREADS``, the main one first."""
MOST_LOCALS = 40
"""Of one frame."""
CUT_FILE = "<cut>"
"""The file of the frame that stands for those that were left out."""
VALUE_CHARS = 80
NATIVE_CHARS = 80
_NAME_CHARS = 64
_THREAD_CHARS = 64
_MAX_TID = 2**64
_MAX_LINE = 2**31
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
_UNNAMED = re.compile(r"0x[0-9a-f]+")
_TEMPLATE = re.compile(r"<[^<>]*>")
_NUMBER = re.compile(r"-?[0-9][0-9._]*(?:e[-+]?[0-9]+)?")
_MOST_NESTED = 12


@dataclass(frozen=True, slots=True)
class DumpedStack(StackCount):
    """Hold the stack of one thread; ``locals`` only where they were asked for.

    ``active``: the kernel ran it right before its stack was read, or nobody told otherwise.
    """

    locals: Applicable[tuple[FrameLocals, ...]] = NOT_APPLICABLE
    active: bool = True


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any, most: int) -> int:
    return value if isinstance(value, int) and 0 <= value < most else 0


def shorten_native(name: str) -> str:
    """Shorten the name of a C++ function: no arguments, no template parameters; "?" for a bare address.

    Addresses differ from process to process, and with them stacks that are the same.
    """
    if _UNNAMED.fullmatch(name):
        return "?"
    name = name.replace("(anonymous namespace)::", "")
    for _ in range(_MOST_NESTED):
        name, count = _TEMPLATE.subn("", name)
        if not count:
            break
    return admit_text(name.partition("(")[0].strip() or name, NATIVE_CHARS)


def _parse_frame(frame: dict[str, Any]) -> StackFrame:
    name, file, line = _text(frame.get("name")), _text(frame.get("filename")), frame.get("line")
    # A frame of C has the library as its module, and a line only where debug information is there.
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
    """Clean one variable and hide what may be a secret, by its name and by how it looks."""
    rating = rate_name(name)
    if rating > Rating.WEAK:
        shown = value if _is_plain(rating, value) else HIDDEN
    else:
        shown = hide(f"{name}={value}").removeprefix(f"{name}=")
    # Where an object lies differs from rank to rank and tells nobody anything.
    return Local(admit_text(name, _NAME_CHARS), admit_text(_ADDRESS.sub("", shown), VALUE_CHARS))


def _is_plain(rating: Rating, value: str) -> bool:
    """Tell whether the value of a secret's name is none: an object, None, a truth value, a number."""
    if value.startswith("<") or value in ("None", "True", "False"):
        return True
    return rating is Rating.BRIEF and _NUMBER.fullmatch(value) is not None


def _parse_thread(thread: Any) -> DumpedStack | None:
    if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list):
        return None
    raw = [one for one in reversed(thread["frames"]) if isinstance(one, dict)]
    frames = tuple(map(_parse_frame, raw))
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


def _cut_middle(frames: tuple[T, ...], cut: T) -> tuple[T, ...]:
    """Put ``cut`` in the place of the middle of a stack that is deeper than ``MAX_FRAMES``.

    It says how many frames are gone: a recursion that goes deeper would look the same in each look.
    """
    if len(frames) <= MAX_FRAMES:
        return frames
    return (*frames[:OUTER_FRAMES], cut, *frames[OUTER_FRAMES + 1 - MAX_FRAMES :])


def parse_dump(output: bytes, pid: int, loop_tid: int = 0) -> Sampled:
    """Parse ``py-spy dump --json``: one sample of every thread; py-spy lists frames innermost first.

    Where there are too many threads, the main one and ``loop_tid`` are kept first, wherever they are listed.
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
    """Tell whether py-spy lost a stack while it read it: who runs with the interpreter's lock has a frame.

    One in fifty such looks at a loop of short calls is empty (measured), and would show a thread that moves.
    A thread of C++ that holds the lock and waits has none, and nothing of it was lost.
    """
    return any(
        isinstance(one, DumpedStack) and one.active and one.holds_gil is True and not one.frames
        for one in stacks
    )
