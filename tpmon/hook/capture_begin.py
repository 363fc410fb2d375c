"""Begin a request: the words that say what becomes of it, what stands in its way, what records it."""

from __future__ import annotations

import sys

from tpmon.hook import wire_capture
from tpmon.hook.headroom import read_resident
from tpmon.hook.recorder import Recorder
from tpmon.hook.recorder_cuda import Range, Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tpmon.hook.guard import Guard
    from tpmon.hook.wire_capture import Request


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


def name_obstacle(request: Request, guard: Guard) -> str:
    """Say what forbids a recording just now, "" when nothing does."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return guard.name_other() if request.words[wire_capture.ASK_KIND] in wire_capture.PROFILES else ""


def make_recorder(request: Request) -> Recorder | Snapshot | Range:
    """Return what records a request of this kind."""
    kind = request.words[wire_capture.ASK_KIND]
    if kind == wire_capture.KIND_SNAPSHOT:
        return Snapshot(request.words[wire_capture.ASK_ENTRIES])
    if kind == wire_capture.KIND_RANGE:
        return Range()
    return Recorder(request.words[wire_capture.ASK_OPTIONS])
