"""When each key of the live screen works, and what it does; ``keys.txt`` has its signs and its words.

A key that cannot work now is not shown. Knows nothing of textual; ``python -m tpmon.ui.monitor.keys`` prints
docs/keys.md.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Union

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, is_known, known_or
from tpmon.model.results.capture import Change, fewer_steps, more_steps, next_kind, other_ranks
from tpmon.model.results.replay import SPEEDS, TimeMove
from tpmon.ui.kit import find
from tpmon.ui.kit import keys as kit
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.monitor import replay as times
from tpmon.ui.monitor import requests as asks
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.controls import Asked, Errand
from tpmon.ui.monitor.requests import has_ended, is_running, list_stoppable
from tpmon.ui.monitor.state import (
    INTERVALS_S,
    PANES_WITH_ROWS,
    Pane,
    Price,
    SortBy,
    ViewState,
    frame_under_cursor,
    list_rows,
    shown_dump,
)

When = kit.Situation[ViewState]


def _rows(view: ViewState) -> bool:
    over_a_row = view.overlay in (Overlay.DETAILS, Overlay.ENVIRONMENT)
    return over_a_row or (view.is_bare and view.focus in PANES_WITH_ROWS)


def _can_try(view: ViewState) -> bool:
    frame = view.frame
    return is_known(frame) and is_known(frame.verdict) and is_known(frame.verdict.try_)


def _alive(view: ViewState) -> bool:
    return is_known(view.frame) and not has_ended(view.frame)


def _samplable(view: ViewState) -> bool:
    return kit.NOT_TYPING.holds(view) and _alive(view) and not view.no_stacks


def _stacks(view: ViewState) -> bool:
    return view.overlay is Overlay.STACKS


def _dumped(view: ViewState) -> bool:
    """Tell whether something read on demand is on the screen."""
    sampled = view.overlay is Overlay.SAMPLE and is_known(view.sample) and is_known(view.sample.hot)
    over_capture = view.overlay is Overlay.CAPTURE
    reported = over_capture and is_known(view.capture) and len(view.capture.report) > 0
    return sampled or reported or (_stacks(view) and is_known(shown_dump(view)))


def _to_copy(view: ViewState) -> bool:
    """Tell whether the copy key means the verdict; over the stacks it means these."""
    return kit.NOT_TYPING.holds(view) and not _dumped(view)


def _paced(view: ViewState) -> bool:
    """Tell whether the keys of the pace mean it; in the plan of a capture they mean its steps."""
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    return kit.NOT_TYPING.holds(view) and _alive(view) and not asks.can_choose(below)


def _is_wide(view: ViewState) -> bool:
    """Tell whether what is shown can be wider than the screen: a pane alone, a text over the panes."""
    covers = view.overlay in (Overlay.HELP, Overlay.STACKS)
    return READ.holds(view) and not covers and (not view.is_bare or is_known(view.zoom))


def _changes(change: Change, words: str) -> When:
    return When(lambda view: is_known(asks.find_change(view, change)), words)


PANES = When(lambda view: view.is_bare, "with nothing over the panes")
OVER = When(lambda view: not view.is_bare and not asks.can_leave(view), "while something is over the panes")
ROWS = When(_rows, "in the ranks and workers panes")
NO_ROWS = When(
    lambda view: view.is_bare and not is_known(view.zoom) and view.focus not in PANES_WITH_ROWS,
    "in the panes without rows",
)
MOVABLE = When(
    lambda view: (
        kit.NOT_TYPING.holds(view)
        and (not view.is_bare or is_known(view.zoom) or view.focus in PANES_WITH_ROWS)
    ),
    "in rows, in a pane alone, in what is over the panes",
)
WORKERS = When(
    lambda view: view.is_bare and (view.zoom is Pane.WORKERS or not is_known(view.zoom)),
    "while the workers pane is shown",
)
BESIDE = When(lambda view: view.is_bare and not is_known(view.zoom), "with all panes on the screen")
LEFT_OF_ALL = When(lambda view: _is_wide(view) and view.search.left > 0, "after l")
RIGHT_OF_ALL = When(
    lambda view: _is_wide(view) and view.search.left < find.MOST_COLUMNS,
    "in a pane alone, and in what is over the panes",
)
FILTERED = When(
    lambda view: view.is_bare and view.filter_text != "" and view.search.text == "", "while a filter is set"
)
ZOOMED = When(
    lambda view: view.is_bare and is_known(view.zoom) and view.filter_text == "" and view.search.text == "",
    "while a pane is alone",
)
FROM_LIST = When(
    lambda view: view.from_list and view.is_bare and not is_known(view.zoom) and view.filter_text == "",
    "with nothing over the panes, where one was left for this job",
)
READ = When(lambda view: kit.NOT_TYPING.holds(view) and is_known(view.frame), "once there is a reading")
FILTERABLE = When(
    lambda view: view.is_bare and known_or(view.zoom, view.focus) is Pane.WORKERS, "in the workers pane"
)
FINDABLE = When(
    lambda view: READ.holds(view) and view.overlay is not Overlay.HELP and not FILTERABLE.holds(view),
    "outside of the workers pane, once there is a reading",
)
GOING = When(
    lambda view: READ.holds(view) and not is_known(view.playback),
    "once there is a reading; not in a recording",
)
TRIABLE = When(lambda view: _to_copy(view) and _can_try(view), "while the verdict has something to try")
NOT_TRIABLE = When(
    lambda view: _to_copy(view) and is_known(view.frame) and not _can_try(view),
    "while the verdict has nothing to try",
)
FASTER = When(
    lambda view: _paced(view) and view.interval_s > INTERVALS_S[0],
    f"above {INTERVALS_S[0]:g} s, while the job is there; not in the plan of a capture",
)
SLOWER = When(
    lambda view: _paced(view) and view.interval_s < INTERVALS_S[-1],
    f"below {INTERVALS_S[-1]:g} s, while the job is there; not in the plan of a capture",
)
SUMMARIES = When(
    lambda view: view.is_bare or view.overlay in (Overlay.STACKS, Overlay.SAMPLE, Overlay.CAPTURE),
    "in the panes, the stacks, the hot functions and the capture",
)
ALIVE = When(lambda view: kit.NOT_TYPING.holds(view) and _alive(view), "while the job is there")
LIVE_ROWS = When(lambda view: _rows(view) and _alive(view), "in the ranks and workers panes")
LIVE_STACKS = When(lambda view: _stacks(view) and _alive(view), "in the stacks")
STOPPING_STACKS = When(
    lambda view: LIVE_STACKS.holds(view) and not view.readonly, "in the stacks; never with --readonly"
)
NATIVE_STACKS = When(
    lambda view: STOPPING_STACKS.holds(view) and not find.is_searched(view), STOPPING_STACKS.words
)
IN_GROUPS = When(lambda view: _stacks(view) and len(list_rows(view)) > 0, "in the stacks")
DUMPED_STACKS = When(
    lambda view: _stacks(view) and is_known(shown_dump(view)), "in the stacks, once some are read"
)
DUMPED = When(_dumped, "in the stacks, the hot functions and the capture, once there is something")
FRAMED = When(
    lambda view: _stacks(view) and is_known(frame_under_cursor(view)), "on a stack with Python frames"
)
UNSAMPLED = When(
    lambda view: _samplable(view) and view.overlay is not Overlay.SAMPLE,
    "outside of the hot functions; never with --no-stacks",
)
CAPTURABLE = When(
    lambda view: (
        ALIVE.holds(view)
        and not view.readonly
        and Overlay.STACKS not in (view.overlay, view.behind)
        and not asks.is_acting(view)
        and not asks.can_leave(view)
    ),
    "outside of the stacks; never with --readonly",
)
CAPTURE_ASKS = When(asks.is_asking, "in the capture, while it waits for a yes")
CAPTURE_KINDS = _changes(next_kind, "in the plan of a capture, where more than one kind can be")
CAPTURE_MORE = _changes(more_steps, "in the plan of a capture")
CAPTURE_FEWER = _changes(fewer_steps, "in the plan of a capture")
CAPTURE_RANKS = _changes(other_ranks, "in the plan of a capture, of a job with several ranks here")
CAPTURE_ACTS = When(
    lambda view: kit.NOT_TYPING.holds(view) and not _stacks(view) and asks.is_acting(view),
    "outside of the stacks, while a capture is under way",
)
CAPTURE_OPEN = When(asks.can_leave, "in the capture, until it has ended")
CAPTURED = When(
    lambda view: (view.is_bare or view.overlay is Overlay.CAPTURE) and is_known(view.captured),
    "in the panes and the capture, once one has written a trace",
)
UNSAMPLING = When(
    lambda view: _samplable(view) and not is_running(view), "while nothing is sampled; never with --no-stacks"
)
PRICED = When(
    lambda view: view.overlay is Overlay.SAMPLE and _samplable(view) and not is_running(view),
    "in the hot functions, once the price is shown",
)
SAMPLING = When(
    lambda view: view.overlay is Overlay.SAMPLE and is_running(view), "in the hot functions, while they come"
)
WRITABLE = When(
    lambda view: (
        view.overlay is Overlay.SAMPLE
        and is_known(view.sample)
        and is_known(view.sample.hot)
        and len(view.sample.hot.groups) > 0
        and not view.node
        and not is_running(view)
    ),
    "in the hot functions, once all are there",
)
STOPPABLE = When(
    lambda view: _stacks(view) and _alive(view) and len(list_stoppable(view)) > 0,
    "in the stacks, where py-spy could not read a process; never with --readonly",
)
RECORDED = When(times.is_recorded, "in a recording")
PLAYABLE = When(times.can_play, "in a recording, before its end")
BEFORE_END = When(times.is_before_end, "in a recording, before its end")
AFTER_BEGIN = When(times.is_after_begin, "in a recording, after its start")
SPEEDABLE = When(times.can_speed_up, f"in a recording, below {SPEEDS[-1]:g}x")
SLOWABLE = When(partial(times.is_faster_than, speed=SPEEDS[0]), f"in a recording, above {SPEEDS[0]:g}x")
DEMO = When(lambda view: kit.NOT_TYPING.holds(view) and view.following != "", "in tpmon demo")
TYPING_TIME = When(lambda view: view.overlay is Overlay.TIME, "while a time is typed")
TYPED_TIME = When(lambda view: TYPING_TIME.holds(view) and view.time_text != "", "while a time is typed")
STACKS_KEPT = When(
    lambda view: times.is_recorded(view) and SUMMARIES.holds(view) and is_known(view.dump),
    "in a recording with stacks in it",
)
HOT_KEPT = When(
    lambda view: times.is_recorded(view) and SUMMARIES.holds(view) and is_known(view.sample),
    "in a recording with hot functions in it",
)


@dataclass(frozen=True, slots=True)
class Demand:
    """Ask something of the session, or say why not; ``make`` also gets the rows of the focused pane."""

    make: Callable[[ViewState, Sequence[int]], Asked]


Deed = Union[Callable[[ViewState], ViewState], Demand, kit.ByDigit[ViewState], kit.Move, kit.Effect]
LiveKey = kit.Key[ViewState, Deed]


def _open(overlay: Overlay) -> Callable[[ViewState], ViewState]:
    return partial(kit.action_overlay, overlay=overlay)


def _open_row(overlay: Overlay) -> Demand:
    return Demand(lambda view, rows: (actions.action_row_overlay(view, overlay, rows), NOT_APPLICABLE))


def _change(change: Change) -> Demand:
    return Demand(partial(asks.ask_change, change=change))


def _pay(price: Price) -> Demand:
    return Demand(partial(asks.ask_priced, price=price))


def _send(said: str, errand: Errand) -> Demand:
    return Demand(lambda view, _rows: (replace(view, message=said), errand))


def _sort(sort: SortBy) -> Callable[[ViewState], ViewState]:
    return partial(actions.action_sort, sort=sort)


def _move(move: TimeMove) -> Demand:
    return Demand(partial(times.ask_move, move=move))


Uses = dict[str, tuple[Deed, When]]
LIVE: Uses = {
    "pause": (actions.action_pause, ALIVE),
    "slower": (actions.action_slower, SLOWER),
    "faster": (actions.action_faster, FASTER),
    "dump": (Demand(asks.ask_job), ALIVE),
    "dump-row": (Demand(asks.ask_row), LIVE_ROWS),
    "sample": (Demand(asks.open_price), UNSAMPLED),
    "sample-all": (Demand(asks.price_whole_job), UNSAMPLING),
    "sample-start": (Demand(asks.start_sample), PRICED),
    "sample-end": (_send("ends, and keeps what it has", Errand.END_SAMPLING), SAMPLING),
    "sample-write": (_send("writes files for speedscope and flame graphs", Errand.WRITE_SAMPLES), WRITABLE),
    "stacks": (_open(Overlay.STACKS), SUMMARIES),
    "hot": (_open(Overlay.SAMPLE), SUMMARIES),
    "capture-shown": (_open(Overlay.CAPTURE), SUMMARIES),
    "looks": (Demand(asks.ask_looks), LIVE_STACKS),
    "native": (_pay(Price.NATIVE), NATIVE_STACKS),
    "variables": (_pay(Price.VARIABLES), LIVE_STACKS),
    "stop-and-read": (_pay(Price.STOP), STOPPABLE),
    "bundle": (Demand(asks.ask_bundle), ALIVE),
    "record": (Demand(asks.ask_recording), READ),
    "capture": (Demand(asks.ask_plan), CAPTURABLE),
    "capture-cancel": (Demand(asks.ask_end), CAPTURE_ACTS),
    "open-trace": (kit.Effect.OPEN_TRACE, CAPTURED),
    "capture-go": (Demand(asks.ask_go), CAPTURE_ASKS),
    "capture-kind": (_change(next_kind), CAPTURE_KINDS),
    "capture-more": (_change(more_steps), CAPTURE_MORE),
    "capture-fewer": (_change(fewer_steps), CAPTURE_FEWER),
    "capture-ranks": (_change(other_ranks), CAPTURE_RANKS),
    "capture-leave": (Demand(asks.ask_end), CAPTURE_OPEN),
}
"""What asks something of the job, or of those who read it: no recording has it."""
REPLAY: Uses = {
    "play": (_move(TimeMove.PLAY), PLAYABLE),
    "time": (times.open_time, RECORDED),
    "time-go": (Demand(times.ask_time), TYPING_TIME),
    "time-erase": (times.erase_time, TYPED_TIME),
    "change-back": (_move(TimeMove.CHANGE_BACK), AFTER_BEGIN),
    "change-on": (_move(TimeMove.CHANGE_ON), BEFORE_END),
    "seconds-back": (_move(TimeMove.SECONDS_BACK), AFTER_BEGIN),
    "seconds-on": (_move(TimeMove.SECONDS_ON), BEFORE_END),
    "frame-back": (_move(TimeMove.FRAME_BACK), AFTER_BEGIN),
    "frame-on": (_move(TimeMove.FRAME_ON), BEFORE_END),
    "begin": (_move(TimeMove.BEGIN), AFTER_BEGIN),
    "end": (_move(TimeMove.END), BEFORE_END),
    "play-faster": (_move(TimeMove.FASTER), SPEEDABLE),
    "play-slower": (_move(TimeMove.SLOWER), SLOWABLE),
    "stacks-kept": (_open(Overlay.STACKS), STACKS_KEPT),
    "hot-kept": (_open(Overlay.SAMPLE), HOT_KEPT),
}


NOT_AFAR = frozenset(
    {
        *("slower", "faster", "dump-row", "sample", "sample-end", "native", "variables", "stop-and-read"),
        *("bundle", "record", "capture", "capture-shown"),
    }
)
"""What the agent of a node in a fleet does not do."""


def _while_live(name: str, when: When) -> When:
    may_afar = name not in NOT_AFAR
    return When(
        lambda view: not is_known(view.playback) and (may_afar or not view.node) and when.holds(view),
        when.words,
    )


USES: Uses = {
    **{name: (deed, _while_live(name, when)) for name, (deed, when) in LIVE.items()},
    **REPLAY,
    **kit.STOPS,
    **find.FINDS,
    **{move.value: (move, MOVABLE) for move in kit.Move},
    "help": (_open(Overlay.HELP), kit.NOT_TYPING),
    "demo-next": (kit.Effect.NEXT, DEMO),
    "verdict": (_open(Overlay.VERDICT), READ),
    "zoom": (kit.ByDigit(lambda view, digit: actions.action_zoom(view, Pane(digit))), PANES),
    "focus-next": (partial(actions.action_focus, step=1), PANES),
    "focus-previous": (partial(actions.action_focus, step=-1), PANES),
    "open-pane": (lambda view: actions.action_zoom(view, view.focus), NO_ROWS),
    "close": (kit.action_close, OVER),
    "zoom-close": (kit.change(zoom=NOT_APPLICABLE, scroll=0), ZOOMED),
    "details": (_open_row(Overlay.DETAILS), ROWS),
    "environment": (_open_row(Overlay.ENVIRONMENT), ROWS),
    "turn-stack": (actions.action_fold, IN_GROUPS),
    "open-stack": (partial(actions.action_fold, opens=True), IN_GROUPS),
    "close-stack": (partial(actions.action_fold, opens=False), IN_GROUPS),
    "tree": (actions.action_tree, DUMPED_STACKS),
    "whole": (actions.action_whole, DUMPED_STACKS),
    "edit": (kit.Effect.EDIT, FRAMED),
    "copy-dump": (kit.Effect.COPY_RESULT, DUMPED),
    "sort": (actions.action_sort_next, WORKERS),
    "reverse": (kit.action_reverse, WORKERS),
    "sort-cpu": (_sort(SortBy.CPU), WORKERS),
    "sort-memory": (_sort(SortBy.MEMORY), WORKERS),
    "sort-time": (_sort(SortBy.TIME), WORKERS),
    "filter": (actions.action_filter, FILTERABLE),
    "find": (partial(find.open_line, overlay=Overlay.FIND), FINDABLE),
    "find-erase": (find.erase_last, find.FOUND_TYPED),
    "find-clear": (find.CLEAR_SEARCH, find.MARKED),
    "go": (partial(find.open_line, overlay=Overlay.GO), GOING),
    "go-erase": (find.erase_last, find.GO_TYPED),
    "pane-right": (partial(actions.action_focus, step=1), BESIDE),
    "pane-left": (partial(actions.action_focus, step=-1), BESIDE),
    "side-right": (partial(find.action_sideways, step=1), RIGHT_OF_ALL),
    "side-left": (partial(find.action_sideways, step=-1), LEFT_OF_ALL),
    "filter-keep": (kit.KEEP_FILTER, kit.TYPING),
    "filter-erase": (kit.action_filter_erase, kit.TYPED),
    "filter-clear": (kit.CLEAR_FILTER, FILTERED),
    "back": (kit.Effect.BACK, FROM_LIST),
    "copy-try": (kit.Effect.COPY_TRY, TRIABLE),
    "copy-facts": (kit.Effect.COPY_FACTS, NOT_TRIABLE),
}
KEYS: tuple[LiveKey, ...] = kit.read_keys(os.path.join(os.path.dirname(__file__), "keys.txt"), USES)
_RECORDED = "recorded, not live"


def find_key(name: str, view: ViewState) -> LiveKey | None:
    """Return the row that the pressed key means now, if any."""
    return kit.find_in(KEYS, name, view)


def say_unused(name: str, view: ViewState) -> str:
    """Say where a key works that did nothing, or that it has no meaning; "" for keys without a letter."""
    if is_known(view.playback):
        rows = [key for key in KEYS if key.id not in LIVE]
        has_meaning = any(name in key.keys and key.deed not in kit.MATCHES for key in rows)
        asks_the_job = not has_meaning and any(name in key.keys for key in KEYS)
        return _RECORDED if asks_the_job else kit.say_why_not(rows, name, "")
    reason = ""
    rows = [key for key in KEYS if name in key.keys and key.deed not in kit.MATCHES]
    if view.node and rows and rows[0].id in NOT_AFAR:
        return f"{name} works on {view.node} itself: {_say_attach(view)} there"
    if view.no_stacks and name in ("f", "F"):
        reason = f"{name} samples stacks, and --no-stacks forbids that"
    elif is_known(view.frame) and has_ended(view.frame):
        reason = f"{name} has nothing to do: the job has ended"
    return kit.say_why_not(KEYS, name, reason)


def _say_attach(view: ViewState) -> str:
    return f"tpmon attach {view.frame.target.pid}" if is_known(view.frame) else "tpmon attach"


def keys_shown(view: ViewState) -> tuple[kit.KeyHelp, ...]:
    """Return the keys that work now; under an open help also those below it."""
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    return tuple(kit.list_help(KEYS, view, below))


def _key_line(key: kit.Key[Any, Any], known: str = kit.EVER.words) -> str:
    """Write one key, with when it works unless that is ``known`` or always."""
    when = "" if key.when.words in (known, kit.EVER.words) else f" ({key.when.words})"
    return f"* {' '.join(f'`{name}`' for name in key.shown)} {key.help}{when}"


def keys_markdown() -> str:
    """Write docs/keys.md, with the keys of the screen of traces too."""
    # The live screen does without these.
    from tpmon.ui.fleet.keys import FLEET_KEYS  # noqa: PLC0415
    from tpmon.ui.jobs.keys import JOB_KEYS  # noqa: PLC0415
    from tpmon.ui.traces.keys import TRACE_KEYS  # noqa: PLC0415

    lines = [
        "# Keys",
        "",
        "Written by `python -m tpmon.ui.monitor.keys` from the tables of keys in `tpmon/ui`.",
        "The footer and the help (`?`) show only what works at that moment. The sections from Jobs on are",
        "of the list of jobs (`tpmon`), from Fleet on of `tpmon fleet`, from Trace on of `tpmon trace FILE`.",
        "There the keys above for help, moving, sorting, filters and copying work too.",
    ]
    known = {(key.shown, key.help) for key in KEYS}
    others: list[tuple[kit.Key[Any, Any], ...]] = []
    for table in (JOB_KEYS, FLEET_KEYS, TRACE_KEYS):
        others.append(tuple(key for key in table if (key.shown, key.help) not in known))
        known |= {(key.shown, key.help) for key in table}
    shown: tuple[tuple[kit.Key[Any, Any], ...], ...] = (KEYS, *others)
    for table in shown:
        for section in dict.fromkeys(key.section for key in table):
            lines += ["", f"## {section}"]
            rows = [key for key in table if key.section == section]
            counts = Counter(key.when.words for key in rows)
            shared = {words for words, count in counts.items() if count > 1} - {kit.EVER.words}
            single = [_key_line(key) for key in rows if key.when.words not in shared]
            lines += ["", *single] if single else []
            for words in (one for one in counts if one in shared):
                lines += ["", f"{words[0].upper()}{words[1:]}:", ""]
                lines += [_key_line(key, known=words) for key in rows if key.when.words == words]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(keys_markdown())
