"""When a key of the live screen works, and what it does beyond changing the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Union

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.results.capture import Change, fewer_steps, more_steps, next_kind, other_ranks
from tpmon.ui.kit import keys as key_table
from tpmon.ui.kit.keys import ByDigit, Effect, Key, Move
from tpmon.ui.monitor import requests as ask_capture
from tpmon.ui.monitor.controls import Asked
from tpmon.ui.monitor.panes.stack_rows import frame_under_cursor, list_rows, shown_dump
from tpmon.ui.monitor.requests import has_ended, is_running, list_stoppable
from tpmon.ui.monitor.state import INTERVALS_S, PANES_WITH_ROWS, Overlay, Pane, ViewState

Situation = key_table.Situation[ViewState]


def _no_typing(view: ViewState) -> bool:
    return view.overlay is not Overlay.FILTER


def _panes(view: ViewState) -> bool:
    return view.overlay is Overlay.NONE


def _workers(view: ViewState) -> bool:
    return _panes(view) and (view.zoom is Pane.WORKERS or not is_known(view.zoom))


def _movable(view: ViewState) -> bool:
    over = view.overlay not in (Overlay.NONE, Overlay.FILTER)
    return over or (_panes(view) and (is_known(view.zoom) or view.focus in PANES_WITH_ROWS))


def _openable(view: ViewState) -> bool:
    return _panes(view) and not is_known(view.zoom) and view.focus not in PANES_WITH_ROWS


def _rows(view: ViewState) -> bool:
    over_a_row = view.overlay in (Overlay.DETAILS, Overlay.ENVIRONMENT)
    return over_a_row or (_panes(view) and view.focus in PANES_WITH_ROWS)


def _can_try(view: ViewState) -> bool:
    frame = view.frame
    return is_known(frame) and is_known(frame.verdict) and is_known(frame.verdict.try_)


def _alive(view: ViewState) -> bool:
    return is_known(view.frame) and not has_ended(view.frame)


def _samplable(view: ViewState) -> bool:
    return _no_typing(view) and _alive(view) and not view.no_stacks


def _stacks(view: ViewState) -> bool:
    return view.overlay is Overlay.STACKS


def _dumped(view: ViewState) -> bool:
    """Tell whether something that was read for a key is on the screen."""
    sampled = view.overlay is Overlay.SAMPLE and is_known(view.sample) and is_known(view.sample.hot)
    over_capture = view.overlay is Overlay.CAPTURE
    reported = over_capture and is_known(view.capture) and len(view.capture.report) > 0
    return sampled or reported or (_stacks(view) and is_known(shown_dump(view)))


def _framed(view: ViewState) -> bool:
    return _stacks(view) and is_known(frame_under_cursor(view))


def _to_copy(view: ViewState) -> bool:
    """Tell whether the key of copying means the verdict: over the stacks it means them."""
    return _no_typing(view) and not _dumped(view)


def _paced(view: ViewState) -> bool:
    """Tell whether the keys of the pace mean it: in the plan of a capture they mean its steps."""
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    return _no_typing(view) and _alive(view) and not ask_capture.can_choose(below)


def _changes(change: Change, words: str) -> Situation:
    return Situation(lambda view: is_known(ask_capture.find_change(view, change)), words)


EVER = Situation(lambda _view: True, "always")
NOT_TYPING = Situation(_no_typing, "always")
PANES = Situation(_panes, "with nothing over the panes")
OVER = Situation(
    lambda view: not _panes(view) and not ask_capture.can_leave(view),
    "while something is over the panes",
)
ROWS = Situation(_rows, "in the ranks and workers panes")
NO_ROWS = Situation(_openable, "in the panes without rows")
MOVABLE = Situation(_movable, "in rows, in a pane alone, in what is over the panes")
WORKERS = Situation(_workers, "while the workers pane is shown")
TYPING = Situation(lambda view: not _no_typing(view), "while the filter is typed")
TYPED = Situation(lambda view: not _no_typing(view) and view.filter_text != "", "while the filter is typed")
FILTERED = Situation(lambda view: _panes(view) and view.filter_text != "", "while a filter is set")
ZOOMED = Situation(
    lambda view: _panes(view) and is_known(view.zoom) and view.filter_text == "", "while a pane is alone"
)
READ = Situation(lambda view: _no_typing(view) and is_known(view.frame), "once there is a reading")
TRIABLE = Situation(lambda view: _to_copy(view) and _can_try(view), "while the verdict has something to try")
NOT_TRIABLE = Situation(
    lambda view: _to_copy(view) and is_known(view.frame) and not _can_try(view),
    "while the verdict has nothing to try",
)
FASTER = Situation(
    lambda view: _paced(view) and view.interval_s > INTERVALS_S[0],
    f"above {INTERVALS_S[0]:g} s, while the job is there; not in the plan of a capture",
)
SLOWER = Situation(
    lambda view: _paced(view) and view.interval_s < INTERVALS_S[-1],
    f"below {INTERVALS_S[-1]:g} s, while the job is there; not in the plan of a capture",
)
OVERVIEWS = Situation(
    lambda view: _panes(view) or view.overlay in (Overlay.STACKS, Overlay.SAMPLE, Overlay.CAPTURE),
    "in the panes, the stacks, the hot functions and the capture",
)
ALIVE = Situation(lambda view: _no_typing(view) and _alive(view), "while the job is there")
LIVE_ROWS = Situation(lambda view: _rows(view) and _alive(view), "in the ranks and workers panes")
LIVE_STACKS = Situation(lambda view: _stacks(view) and _alive(view), "in the stacks")
STOPPING_STACKS = Situation(
    lambda view: LIVE_STACKS.holds(view) and not view.readonly, "in the stacks; never with --readonly"
)
IN_GROUPS = Situation(lambda view: _stacks(view) and len(list_rows(view)) > 0, "in the stacks")
DUMPED_STACKS = Situation(
    lambda view: _stacks(view) and is_known(shown_dump(view)), "in the stacks, once some are read"
)
DUMPED = Situation(_dumped, "in the stacks, the hot functions and the capture, once there is something")
FRAMED = Situation(_framed, "on a stack with Python frames")
UNSAMPLED = Situation(
    lambda view: _samplable(view) and view.overlay is not Overlay.SAMPLE,
    "outside of the hot functions; never with --no-stacks",
)
CAPTURABLE = Situation(
    lambda view: (
        ALIVE.holds(view)
        and not view.readonly
        and Overlay.STACKS not in (view.overlay, view.behind)
        and ask_capture.can_plan(view)
    ),
    "outside of the stacks; never with --readonly",
)
CAPTURE_ASKS = Situation(ask_capture.is_asking, "in the capture, while it waits for a yes")
CAPTURE_KINDS = _changes(next_kind, "in the plan of a capture, where more than one kind can be")
CAPTURE_MORE = _changes(more_steps, "in the plan of a capture")
CAPTURE_FEWER = _changes(fewer_steps, "in the plan of a capture")
CAPTURE_RANKS = _changes(other_ranks, "in the plan of a capture, of a job with several ranks here")
CAPTURE_ACTS = Situation(
    lambda view: _no_typing(view) and not _stacks(view) and ask_capture.is_acting(view),
    "outside of the stacks, while a capture is under way",
)
CAPTURE_OPEN = Situation(ask_capture.can_leave, "in the capture, until it has ended")
CAPTURED = Situation(
    lambda view: (_panes(view) or view.overlay is Overlay.CAPTURE) and is_known(view.captured),
    "in the panes and the capture, once one has written a trace",
)
UNSAMPLING = Situation(
    lambda view: _samplable(view) and not is_running(view), "while nothing is sampled; never with --no-stacks"
)
PRICED = Situation(
    lambda view: view.overlay is Overlay.SAMPLE and _samplable(view) and not is_running(view),
    "in the hot functions, once the price is shown",
)
SAMPLING = Situation(
    lambda view: view.overlay is Overlay.SAMPLE and is_running(view), "in the hot functions, while they come"
)
WRITABLE = Situation(
    lambda view: (
        view.overlay is Overlay.SAMPLE
        and is_known(view.sample)
        and is_known(view.sample.hot)
        and len(view.sample.hot.groups) > 0
        and not is_running(view)
    ),
    "in the hot functions, once all are there",
)
STOPPABLE = Situation(
    lambda view: _stacks(view) and _alive(view) and len(list_stoppable(view)) > 0,
    "in the stacks, where py-spy could not read a process; never with --readonly",
)


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Open an overlay for the row under the cursor; which rows there are, the painters know."""

    overlay: Overlay


@dataclass(frozen=True, slots=True)
class Demand:
    """Ask something of the session, or say why not; ``make`` also gets the rows under the cursor."""

    make: Callable[[ViewState, Sequence[int]], Asked]


Action = Callable[[ViewState], ViewState]
LiveKey = Key[ViewState, Union[Action, Demand, ByDigit[ViewState], Move, OpenRow, Effect]]
