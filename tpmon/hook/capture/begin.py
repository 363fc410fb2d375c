"""Begin a request: whether it can be meant, and what stands in its way."""

from __future__ import annotations

import os
import re
import sys

from tpmon.hook.bus import wire_capture
from tpmon.hook.bus.headroom import read_resident
from tpmon.hook.capture.recorder import Recorder
from tpmon.hook.capture.recorder_cuda import MemoryRecorder, Range
from tpmon.hook.context import GRAPHS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tpmon.hook.bus.wire_capture import Request
    from tpmon.hook.capture.guard import Guard


def begin_words(words: list[int], request: Request, following: int) -> None:
    """Fill in what is known of a request when it is taken; ``following`` is the loop's next step."""
    asked = request.words
    sequence = words[wire_capture.CAP_SEQUENCE]
    words[:] = [0] * len(words)
    words[wire_capture.CAP_SEQUENCE] = sequence
    words[wire_capture.CAP_REQUEST] = asked[wire_capture.ASK_NUMBER]
    words[wire_capture.CAP_STEPS_ASKED] = asked[wire_capture.ASK_STEPS]
    words[wire_capture.CAP_RSS_BYTES] = read_resident()
    words[wire_capture.CAP_FIRST_STEP] = asked[wire_capture.ASK_START] or following


def is_graph_captured() -> bool:
    """Tell whether a CUDA graph is being captured: to wait for the device, as ends do, would break it."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(GRAPHS) or (
        cuda is not None and bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
    )


def name_obstacle(request: Request, guard: Guard) -> str:
    """Say what forbids a recording just now, "" when nothing does."""
    if is_graph_captured():
        return "a CUDA graph is being captured"
    return guard.name_other() if request.words[wire_capture.ASK_KIND] in wire_capture.PROFILES else ""


def name_tracer(request: Request) -> str:
    """Say that Python stacks would end a profiler of Python's own, "" where they would not.

    torch's tracer takes the one place that Python has for it (PyEval_SetProfile), and does not give it back.
    """
    options = request.words[wire_capture.ASK_OPTIONS]
    if options & wire_capture.OPTION_STACKS and sys.getprofile() is not None:
        return "the program profiles its functions itself, and --stacks would end that"
    return ""


def make_recorder(request: Request) -> Recorder | MemoryRecorder | Range:
    """Return what records a request of this kind."""
    kind = request.words[wire_capture.ASK_KIND]
    if kind == wire_capture.KIND_SNAPSHOT:
        return MemoryRecorder(request.words[wire_capture.ASK_ENTRIES])
    if kind == wire_capture.KIND_RANGE:
        return Range()
    return Recorder(request.words[wire_capture.ASK_OPTIONS])


_MOST_STEPS = 10_000
_LONGEST_NS = 600_000_000_000
_MOST_ENTRIES = 10_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS = (
    wire_capture.KIND_PROBE,
    wire_capture.KIND_CAPTURE,
    wire_capture.KIND_SNAPSHOT,
    wire_capture.KIND_RANGE,
)
_OPTIONS = (
    wire_capture.OPTION_STACKS
    | wire_capture.OPTION_SHAPES
    | wire_capture.OPTION_MEMORY
    | wire_capture.OPTION_TIMED
)


def is_sane(request: wire_capture.Request) -> bool:
    """Tell whether a request asks for something that can be meant."""
    words = request.words
    return (
        words[wire_capture.ASK_KIND] in _KINDS
        and words[wire_capture.ASK_CLOCK] == wire_capture.CLOCK_STEPS
        and (is_timed(request) or 1 <= words[wire_capture.ASK_STEPS] <= _MOST_STEPS)
        and 1 <= words[wire_capture.ASK_LONGEST_NS] <= _LONGEST_NS
        and words[wire_capture.ASK_ENTRIES] <= _MOST_ENTRIES
        and not words[wire_capture.ASK_OPTIONS] & ~_OPTIONS
        and os.path.isabs(request.folder)
        and _NAME.fullmatch(request.name) is not None
    )


def is_timed(request: wire_capture.Request) -> bool:
    """Tell whether a request is bounded by time and not by steps."""
    return bool(request.words[wire_capture.ASK_OPTIONS] & wire_capture.OPTION_TIMED)
