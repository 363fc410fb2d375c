"""Ask for a capture of a few steps: what is known of its price, the price itself, then the capture. Pure.

It is the one key that has the training do something. So nothing is asked of the run before what is
known stands on the screen and was agreed to: then one step is profiled, and its price is agreed to again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.capture import (
    CAPTURE_ACTS,
    CAPTURE_WAITS,
    CaptureAnswer,
    CaptureRequest,
    CaptureStage,
    CaptureUpdate,
)
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.ui.actions import action_close, action_overlay
from tpmon.ui.controls import Asked
from tpmon.ui.view import Overlay, ViewState

CANCELS = "cancels at the end of the step; no file is left"


def ask_plan(view: ViewState, rows: Sequence[int]) -> Asked:
    """Have read what a capture would cost, or show again what waits for an answer."""
    if _is_open(view):
        return _open(view), NOT_APPLICABLE
    asked = CaptureUpdate(CaptureStage.ASKED, "reads what is known of its price")
    return _open(replace(view, capture=asked)), CaptureRequest(_choose_rank(view, rows))


def ask_go(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Agree to what stands on the screen."""
    if not is_known(view.capture):
        return view, NOT_APPLICABLE
    return replace(view, message="goes on ..."), CaptureAnswer(view.capture.stage, goes=True)


def ask_end(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Take back a capture that is under way; leave a price that was only read."""
    if not is_known(view.capture):
        return view, NOT_APPLICABLE
    answer = CaptureAnswer(view.capture.stage, goes=False)
    if view.capture.stage in CAPTURE_ACTS:
        return replace(view, message=CANCELS), answer
    return action_close(view), answer


def is_asking(view: ViewState) -> bool:
    """Tell whether a price on the screen waits for an answer."""
    shown = view.overlay is Overlay.CAPTURE
    return shown and is_known(view.capture) and view.capture.stage in CAPTURE_WAITS


def is_acting(view: ViewState) -> bool:
    """Tell whether the run does something for a capture."""
    return is_known(view.capture) and view.capture.stage in CAPTURE_ACTS


def can_leave(view: ViewState) -> bool:
    """Tell whether leaving the capture that is shown also ends it."""
    return view.overlay is Overlay.CAPTURE and _is_open(view)


def can_plan(view: ViewState) -> bool:
    """Tell whether the key means the beginning: nothing is under way, or it waits behind something else."""
    return not is_acting(view) and not can_leave(view)


def say_toast(view: ViewState, update: CaptureUpdate) -> str:
    """Say in the last line what happens, where it is not on the screen; "" for nothing."""
    if view.overlay is Overlay.CAPTURE or update.stage in (CaptureStage.ASKED, CaptureStage.ENDED):
        return ""
    if update.stage in CAPTURE_WAITS:
        return "the capture waits for a yes: 8 shows its price"
    return f"{update.line} (t cancels)"


def _is_open(view: ViewState) -> bool:
    return is_known(view.capture) and view.capture.stage is not CaptureStage.ENDED


def _open(view: ViewState) -> ViewState:
    return view if view.overlay is Overlay.CAPTURE else action_overlay(view, Overlay.CAPTURE)


def _choose_rank(view: ViewState, rows: Sequence[int]) -> Applicable[int]:
    """Return the rank under the cursor, or the lowest here."""
    frame = view.frame
    if not is_known(frame):
        return NOT_APPLICABLE
    if is_known(view.cursor_pid) and view.cursor_pid in rows:
        return view.cursor_pid
    return _lowest(frame)


def _lowest(frame: Frame) -> Applicable[int]:
    numbered = sorted((row.rank, row.pid) for row in frame.ranks if is_known(row.rank))
    if numbered:
        return numbered[0][1]
    return frame.ranks[0].pid if frame.ranks else NOT_APPLICABLE
