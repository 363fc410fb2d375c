"""Go through a recording: what its keys ask of the player, and the line in which a time is typed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.results.replay import SPEEDS, TimeMove
from tpmon.model.units import clean_text
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor.controls import Asked
from tpmon.ui.monitor.state import ViewState

TIME_LIMIT = 40
"""Characters of a time."""


def is_recorded(view: ViewState) -> bool:
    """Tell whether a key means the recording that is shown: no line is being typed."""
    return is_known(view.playback) and view.typed == ""


def is_before_end(view: ViewState) -> bool:
    """Tell whether there is a later Frame to go to."""
    return is_recorded(view) and is_known(view.playback) and view.playback.shown.n < view.playback.end.n


def is_after_begin(view: ViewState) -> bool:
    """Tell whether there is an earlier Frame to go to."""
    return is_recorded(view) and is_known(view.playback) and view.playback.shown.n > view.playback.begin.n


def can_play(view: ViewState) -> bool:
    """Tell whether there is something to pause, or to go on with."""
    playback = view.playback
    return is_recorded(view) and is_known(playback) and not (playback.paused and playback.is_over)


def is_faster_than(view: ViewState, speed: float) -> bool:
    """Tell whether the recording is played faster than ``speed``."""
    return is_recorded(view) and is_known(view.playback) and view.playback.speed > speed


def can_speed_up(view: ViewState) -> bool:
    """Tell whether the recording can be played faster."""
    return is_recorded(view) and is_known(view.playback) and view.playback.speed < SPEEDS[-1]


def ask_move(view: ViewState, _rows: Sequence[int], move: TimeMove) -> Asked:
    """Ask the player for a move; what it shows then is the answer."""
    return view, move


def open_time(view: ViewState) -> ViewState:
    """Open the line in which a time is typed, and leave in sight what is there."""
    behind = view.behind if view.overlay is Overlay.HELP else view.overlay
    return replace(view, overlay=Overlay.TIME, behind=behind, time_text="")


def type_time(view: ViewState, text: str) -> ViewState:
    """Add typed or pasted text to the time, its first line only."""
    line = text.splitlines()[0] if text.splitlines() else ""
    return replace(view, time_text=(view.time_text + clean_text(line))[:TIME_LIMIT])


def erase_time(view: ViewState) -> ViewState:
    """Remove the last character of the time."""
    return replace(view, time_text=view.time_text[:-1])


def ask_time(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Ask for the time that was typed, or say what is wrong with it and leave it to be mended."""
    from tpmon.view.moments import find_time  # noqa: PLC0415  # a live screen does without it

    playback, closed = view.playback, replace(view, overlay=view.behind, behind=Overlay.NONE)
    if not view.time_text or not is_known(playback) or not is_known(view.frame):
        return closed, NOT_APPLICABLE
    zone = view.frame.taken.tzinfo
    found = find_time(view.time_text, playback.begin, playback.end, playback.shown.wall_ns, zone)
    if isinstance(found, Missing):
        return replace(view, message=found.reason), NOT_APPLICABLE
    return closed, found
