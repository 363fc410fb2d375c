"""Judge whether a request can be meant, before it is taken."""

from __future__ import annotations

import os
import re

from tpmon.hook.bus import wire_capture

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
