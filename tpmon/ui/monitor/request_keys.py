"""The rows of the table of keys that belong to a capture. Knows nothing of textual."""

from __future__ import annotations

from functools import partial

from tpmon.model.results.capture_choice import (
    STEP_CHOICES,
    Change,
    fewer_steps,
    more_steps,
    next_kind,
    other_ranks,
)
from tpmon.ui.kit.moves import Effect
from tpmon.ui.monitor import ask_capture
from tpmon.ui.monitor import key_conditions as when
from tpmon.ui.monitor.key_row import Ask, LiveKey

_capture = partial(LiveKey, "Capture")
_copying = partial(LiveKey, "Copying")


def _change(change: Change) -> Ask:
    return Ask(partial(ask_capture.ask_change, change=change))


CAPTURE_KEYS: tuple[LiveKey, ...] = (
    _copying(
        "capture",
        "t",
        "a capture of some steps: what to choose, and what it would cost; asks nothing of the run yet",
        Ask(ask_capture.ask_plan),
        when.CAPTURABLE,
        brief="a capture; asks first",
    ),
    _copying(
        "capture-cancel",
        "t",
        "cancel the capture that is under way; no file is left",
        Ask(ask_capture.ask_end),
        when.CAPTURE_ACTS,
        ("cancel capture", 1),
        brief="cancel the capture",
    ),
    _copying(
        "open-trace",
        "o",
        "open the trace that was captured last; q comes back here",
        Effect.OPEN_TRACE,
        when.CAPTURED,
        ("open trace", 2),
        brief="open the captured trace",
    ),
    _capture(
        "capture-go",
        "t enter",
        "agree: one step is profiled for the price of a trace; once more at that price: it is recorded",
        Ask(ask_capture.ask_go),
        when.CAPTURE_ASKS,
        ("go on", 1),
        brief="go on at this price",
    ),
    _capture(
        "capture-kind",
        "c",
        "what to capture: a trace, a snapshot of the CUDA allocator, a range for nsys",
        _change(next_kind),
        when.CAPTURE_KINDS,
        ("other kind", 4),
        brief="trace, snapshot, nsys range",
    ),
    _capture(
        "capture-more",
        "+",
        f"more steps, at most {STEP_CHOICES[-1]:,}; of a price that was read: back to the plan",
        _change(more_steps),
        when.CAPTURE_MORE,
        ("more steps", 2),
        brief="more steps, fewer",
    ),
    _capture(
        "capture-fewer",
        "-",
        "fewer steps",
        _change(fewer_steps),
        when.CAPTURE_FEWER,
        ("fewer", 2),
        brief="more steps, fewer",
    ),
    _capture(
        "capture-ranks",
        "a",
        "the same steps of all ranks on this machine, or of this one alone",
        _change(other_ranks),
        when.CAPTURE_RANKS,
        ("all ranks or one", 3),
        brief="all ranks, or this one",
    ),
    _capture(
        "capture-leave",
        "esc",
        "leave the price that was read, or cancel the capture that is under way",
        Ask(ask_capture.ask_end),
        when.CAPTURE_OPEN,
        ("leave, cancel", 1),
        brief="leave or cancel the capture",
    ),
)
