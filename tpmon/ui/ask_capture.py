"""Ask for a capture of a few steps: its price first, then the capture. Pure.

It is the one key that has the training do something, so its price stands on the screen before. What
exactly it costs is known once one step was profiled; the progress line says it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.capture import CaptureRequest
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.ui.ask_bundle import OFFER_SECONDS
from tpmon.ui.controls import Asked
from tpmon.ui.view import ViewState


def ask_capture(view: ViewState, rows: Sequence[int]) -> Asked:
    """Say what a capture costs; pressed again, have it done."""
    offered_ns = view.capture_offered_ns
    if is_known(offered_ns) and view.now_ns - offered_ns < OFFER_SECONDS * 1e9:
        asked = replace(
            view, capture_offered_ns=NOT_APPLICABLE, message="captures, says its progress here ..."
        )
        return asked, CaptureRequest(_choose_rank(view, rows))
    offer = "t again profiles 5 steps of one rank: its loop stands still for a moment, longer the first time"
    return replace(view, capture_offered_ns=view.now_ns, message=offer), NOT_APPLICABLE


def forget_capture(view: ViewState) -> ViewState:
    """Take the offer back: another key was pressed."""
    if not is_known(view.capture_offered_ns):
        return view
    return replace(view, capture_offered_ns=NOT_APPLICABLE)


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
