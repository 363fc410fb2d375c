"""Paint a capture: what is known of its price, what it waits for, how far it is, what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.capture import UNKNOWN, CaptureStage, CaptureUpdate
from tpmon.model.known import is_known
from tpmon.model.units import clean_text, format_bytes
from tpmon.ui.cells import width_of, wrap_all
from tpmon.ui.view import Ink, Line, ViewState

_TEXT_CHARS = 4_000
_NONE = "no capture yet: t says what one of a few steps costs, and asks nothing of the run"
_FORBIDDEN = "no capture: it has the training record itself, and --readonly forbids that"
_QUESTIONS = {
    CaptureStage.ASKED: "esc leaves; nothing is asked of the run yet",
    CaptureStage.PLANNED: "t or Enter profiles that one step and says the price; esc leaves",
    CaptureStage.SIZING: "t or esc cancels it",
    CaptureStage.PRICED: "t or Enter records them at this price; esc leaves, nothing is recorded",
    CaptureStage.RECORDING: "t or esc cancels it: no file is left then; 8 leaves it to go on",
}


def paint_capture(view: ViewState, width: int) -> list[Line]:
    """Paint all lines of a capture; the screen shows the part that fits."""
    update = view.capture
    if not is_known(update) or (update.stage is CaptureStage.ENDED and not update.line):
        return _wrapped(_FORBIDDEN if view.readonly else _NONE, Ink.DIM, width)
    if update.stage is CaptureStage.ENDED:
        return _paint_end(update, width)
    asked = _wrapped(update.line, Ink.WARN, width) + _wrapped(_QUESTIONS[update.stage], Ink.STRONG, width)
    plan: list[Line] = []
    for said in update.plan:
        # the price has come: what was not known before is of the past
        if not (update.price and said.startswith(UNKNOWN)):
            plan += _wrapped(said, Ink.PLAIN, width)
    plan += _paint_memory(view, width) if plan else []
    if not update.price:
        return [*plan, (), *asked] if plan else asked
    price = [line for said in update.price for line in _wrapped(said, Ink.STRONG, width)]
    return [*price, (), *asked, (), *plan]


def _paint_end(update: CaptureUpdate, width: int) -> list[Line]:
    if not update.report:
        return _wrapped(update.line, Ink.WARN, width)
    lines: list[Line] = []
    for said in update.report:
        lines += _laid(said, Ink.PLAIN, width) if said else [()]
    opens = ", o opens the trace" if update.trace else ""
    return [*lines, (), *_wrapped(f"y copies all of it{opens}, esc closes", Ink.DIM, width)]


def _paint_memory(view: ViewState, width: int) -> list[Line]:
    """Say what the cgroup of the job has left, where it has a limit."""
    memory = view.frame.memory if is_known(view.frame) else None
    if memory is None or not is_known(memory.limit_bytes) or not is_known(memory.used_bytes):
        return []
    left = format_bytes(max(0, memory.limit_bytes - memory.used_bytes))
    return _wrapped(
        f"memory: {left} left of the limit of {format_bytes(memory.limit_bytes)}", Ink.PLAIN, width
    )


def _laid(text: str, ink: Ink, width: int) -> list[Line]:
    """Keep a line as it is laid out where it fits, for tables; else wrap it, so that paths stay whole."""
    cleaned = clean_text(text, _TEXT_CHARS)
    return [((f" {cleaned}", ink),)] if width_of(cleaned) < width else _wrapped(cleaned, ink, width)


def _wrapped(text: str, ink: Ink, width: int) -> list[Line]:
    return [((f" {line}", ink),) for line in _wrap(clean_text(text, _TEXT_CHARS), width)]


def _wrap(text: str, width: int) -> Sequence[str]:
    return wrap_all(text, max(1, width - 2))
