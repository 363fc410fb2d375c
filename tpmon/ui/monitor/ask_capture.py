"""Ask for a capture of a few steps: what is known of its price, the price itself, then the capture. Pure.

It is the one key that has the training do something. So nothing is asked of the run before what is
known stands on the screen and was agreed to: then one step is profiled, and its price is agreed to again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.capture import (
    CAPTURE_ACTS,
    CAPTURE_WAITS,
    CaptureAnswer,
    CaptureChoice,
    CaptureRequest,
    CaptureStage,
    CaptureUpdate,
)
from tpmon.model.results.capture_choice import READS, Change, plan_anew
from tpmon.ui.monitor.actions import action_close, action_overlay
from tpmon.ui.monitor.controls import Asked
from tpmon.ui.monitor.state import Overlay, ViewState

CANCELS = "cancels at the end of the step; no file is left"


def ask_plan(view: ViewState, rows: Sequence[int]) -> Asked:
    """Have read what a capture would cost, or show again what waits for an answer."""
    if _is_open(view):
        return _open(view), NOT_APPLICABLE
    asked = CaptureUpdate(CaptureStage.ASKED, READS)
    return _open(replace(view, capture=asked)), CaptureRequest(_choose_rank(view, rows))


def ask_go(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Agree to what stands on the screen."""
    if not is_known(view.capture):
        return view, NOT_APPLICABLE
    answer = CaptureAnswer(view.capture.stage, goes=True, choice=view.capture.choice)
    return replace(view, message="goes on ..."), answer


def ask_end(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Take back a capture that is under way; leave a price that was only read."""
    if not is_known(view.capture):
        return view, NOT_APPLICABLE
    answer = CaptureAnswer(view.capture.stage, goes=False)
    if view.capture.stage in CAPTURE_ACTS:
        return replace(view, message=CANCELS), answer
    return action_close(view), answer


def ask_change(view: ViewState, _rows: Sequence[int], change: Change) -> Asked:
    """Choose otherwise: shown at once, planned anew, and nothing is asked of the run."""
    choice = find_change(view, change)
    if not is_known(view.capture) or not is_known(choice):
        return view, NOT_APPLICABLE
    return replace(view, capture=plan_anew(view.capture, choice), scroll=0), choice


def find_change(view: ViewState, change: Change) -> Applicable[CaptureChoice]:
    """Return what a key would choose; none where it is the same, or the question does not stand any more."""
    update = view.capture
    if not can_choose(view) or not is_known(update) or not is_known(update.offers):
        return NOT_APPLICABLE
    choice = change(update.choice, update.offers)
    return choice if choice != update.choice else NOT_APPLICABLE


def can_choose(view: ViewState) -> bool:
    """Tell whether the plan or the price on the screen can still become another one."""
    update = view.capture
    if view.overlay is not Overlay.CAPTURE or not is_known(update) or not is_known(update.offers):
        return False
    return update.stage is CaptureStage.ASKED or update.stage in CAPTURE_WAITS


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
