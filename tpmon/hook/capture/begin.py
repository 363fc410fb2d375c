"""Begin a request: the words that say what becomes of it, what stands in its way, what records it."""

from __future__ import annotations

import sys

from tpmon.hook.bus import wire_capture
from tpmon.hook.bus.headroom import read_resident
from tpmon.hook.capture.recorder import Recorder
from tpmon.hook.capture.recorder_cuda import Range, Snapshot
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


def make_recorder(request: Request) -> Recorder | Snapshot | Range:
    """Return what records a request of this kind."""
    kind = request.words[wire_capture.ASK_KIND]
    if kind == wire_capture.KIND_SNAPSHOT:
        return Snapshot(request.words[wire_capture.ASK_ENTRIES])
    if kind == wire_capture.KIND_RANGE:
        return Range()
    return Recorder(request.words[wire_capture.ASK_OPTIONS])
