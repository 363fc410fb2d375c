"""The one table of keys: it feeds the dispatch, the footer, the help overlay and docs/keys.md.

A key that is not in this table does nothing, and a key that cannot work now is not shown.
Knows nothing of textual; ``python -m tpmon.ui.monitor.keys`` prints docs/keys.md.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

from tpmon.model.known import is_known
from tpmon.ui.kit.keys import (
    ByDigit,
    Effect,
    find_in,
    list_help,
    list_moves,
    list_steps,
    list_stops,
    say_why_not,
)
from tpmon.ui.monitor import key_conditions as when
from tpmon.ui.monitor import requests as ask_bundle
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.key_conditions import Action, Demand, LiveKey, OpenRow
from tpmon.ui.monitor.request_keys import CAPTURE_KEYS, STACK_KEYS
from tpmon.ui.monitor.requests import has_ended
from tpmon.ui.monitor.state import INTERVALS_S, KeyHelp, Overlay, Pane, SortBy, ViewState


def _sort(sort: SortBy) -> Action:
    return partial(actions.action_sort, sort=sort)


def _zoom(view: ViewState, digit: int) -> ViewState:
    return actions.action_zoom(view, Pane(digit))


_tpmon = partial(LiveKey, "tpmon")
_panes = partial(LiveKey, "Panes")
_rows = partial(LiveKey, "Rows")
_workers = partial(LiveKey, "Workers")
_copying = partial(LiveKey, "Copying")
_BACK = "close, back, clear filter"
_SORT = "sort: next, reversed"
_SORT_BY = "by CPU, memory, age"

KEYS: tuple[LiveKey, ...] = (
    _tpmon("quit", "q", "quit", Effect.QUIT, when.NOT_TYPING, ("quit", 1), brief="quit"),
    _tpmon("interrupt", "ctrl-c", "quit, also while typing", Effect.QUIT, when.EVER, brief="quit"),
    _tpmon(
        "help",
        "? F1",
        "the keys that work now; any other key closes it",
        partial(actions.action_overlay, overlay=Overlay.HELP),
        when.NOT_TYPING,
        ("help", 2),
        brief="these keys; others close it",
    ),
    _tpmon(
        "verdict",
        "v",
        "the verdict in full: all evidence, what was ruled out, what is unknown",
        partial(actions.action_overlay, overlay=Overlay.VERDICT),
        when.READ,
        ("verdict", 3),
        brief="the verdict in full",
    ),
    _tpmon(
        "pause",
        "p",
        "freeze the picture, or go on; reading goes on meanwhile",
        actions.action_pause,
        when.ALIVE,
        ("pause", 4),
        brief="freeze the picture, go on",
    ),
    _tpmon(
        "slower",
        "+",
        f"read less often, at most every {INTERVALS_S[-1]:g} s",
        actions.action_slower,
        when.SLOWER,
        ("slower", 11),
        brief="read less often, more often",
    ),
    _tpmon(
        "faster",
        "-",
        f"read more often, at least every {INTERVALS_S[0]:g} s",
        actions.action_faster,
        when.FASTER,
        ("faster", 12),
        brief="read less often, more often",
    ),
    *list_stops("tpmon", when.EVER),
    _panes(
        "zoom",
        "1-5",
        "one pane alone, again to return: 1 ranks, 2 CPU and memory, 3 workers, 4 GPUs, 5 events",
        ByDigit(_zoom),
        when.PANES,
        ("zoom", 5),
        brief="one pane alone, and back",
    ),
    *list_steps(
        "Panes",
        ("focus-next", "tab", "next pane"),
        ("focus-previous", "shift-tab", "previous pane"),
        actions.action_focus,
        when=when.PANES,
        footer=("next pane", 6),
        brief="next pane, previous",
    ),
    _panes(
        "open-pane",
        "enter",
        "the focused pane alone on the screen",
        lambda view: actions.action_zoom(view, view.focus),
        when.NO_ROWS,
        ("open", 8),
        brief="this pane alone",
    ),
    _panes(
        "close",
        "esc",
        "close what is over the panes; clears the filter line",
        actions.action_close,
        when.OVER,
        ("close", 1),
        brief=_BACK,
    ),
    _panes(
        "zoom-close",
        "esc",
        "show all panes again",
        actions.action_unzoom,
        when.ZOOMED,
        ("all panes", 3),
        brief=_BACK,
    ),
    *list_moves("Moving", when.MOVABLE),
    _rows(
        "details",
        "enter",
        "everything about the process under the cursor",
        OpenRow(Overlay.DETAILS),
        when.ROWS,
        ("details", 8),
        brief="all about this process",
    ),
    _rows(
        "environment",
        "e",
        "its environment, where it changes training speed, and the settings of its hook",
        OpenRow(Overlay.ENVIRONMENT),
        when.ROWS,
        ("environment", 13),
        brief="its start environment",
    ),
    *STACK_KEYS,
    _workers(
        "sort",
        "s",
        "sort by the next column",
        actions.action_sort_next,
        when.WORKERS,
        ("sort", 10),
        brief=_SORT,
    ),
    _workers("reverse", "S", "reverse the order", actions.action_reverse, when.WORKERS, brief=_SORT),
    _workers("sort-cpu", "P", "sort by CPU", _sort(SortBy.CPU), when.WORKERS, brief=_SORT_BY),
    _workers("sort-memory", "M", "sort by memory", _sort(SortBy.MEMORY), when.WORKERS, brief=_SORT_BY),
    _workers("sort-time", "T", "sort by age, oldest first", _sort(SortBy.TIME), when.WORKERS, brief=_SORT_BY),
    _workers(
        "filter",
        "/",
        "show only rows with this text; a leading ! shows the others",
        actions.action_filter,
        when.WORKERS,
        ("filter", 9),
        brief="only rows with a text",
    ),
    _workers("filter-keep", "enter", "keep the filter", actions.action_filter_keep, when.TYPING, ("keep", 1)),
    _workers("filter-erase", "backspace", "erase a character", actions.action_filter_erase, when.TYPED),
    _panes(
        "filter-clear",
        "esc",
        "clear the filter",
        actions.action_filter_clear,
        when.FILTERED,
        ("no filter", 9),
        brief=_BACK,
    ),
    _copying(
        "copy-try",
        "y",
        "copy what the verdict says to try",
        Effect.COPY_TRY,
        when.TRIABLE,
        ("copy Try", 3),
        brief="copy what to try",
    ),
    _copying(
        "copy-facts",
        "y",
        "copy verdict and facts with host, PID and time",
        Effect.COPY_FACTS,
        when.NOT_TRIABLE,
        ("copy", 9),
        brief="copy verdict and facts",
    ),
    _copying(
        "copy-screen",
        "Y",
        "copy the whole screen as text",
        Effect.COPY_SCREEN,
        when.NOT_TYPING,
        brief="copy the whole screen",
    ),
    _copying(
        "bundle",
        "b",
        "write a bundle for a ticket (three dumps, verdict, readings, logs); b again does it",
        Demand(ask_bundle.ask_bundle),
        when.ALIVE,
        brief="a bundle for a ticket",
    ),
    *CAPTURE_KEYS,
)


def find_key(name: str, view: ViewState) -> LiveKey | None:
    """Return the row of the table that the pressed key means now, if any."""
    return find_in(KEYS, name, view)


def say_unused(name: str, view: ViewState) -> str:
    """Say why a key did nothing: where it works, or that it has no meaning; "" for keys without a letter."""
    reason = ""
    if view.no_stacks and name in ("f", "F"):
        reason = f"{name} samples stacks, and --no-stacks forbids that"
    elif is_known(view.frame) and has_ended(view.frame):
        reason = f"{name} has nothing to do: the job has ended"
    return say_why_not(KEYS, name, reason)


def keys_shown(view: ViewState) -> tuple[KeyHelp, ...]:
    """Return what works now; with the help open also what works below it."""
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    return tuple(list_help(KEYS, view, below))


def keys_markdown() -> str:
    """Write docs/keys.md, which has the keys of a trace's screen too."""
    from tpmon.ui.traces.keys import TRACE_KEYS  # noqa: PLC0415  # the live screen does without them

    lines = [
        "# Keys",
        "",
        "Written by `python -m tpmon.ui.monitor.keys` from the tables of keys in `tpmon/ui`.",
        "The footer and the help overlay (`?`) show only what works at that moment.",
        "While a filter is typed, letters and digits go into the filter. The sections from Trace on are of",
        "the screen of traces and memory snapshots (`tpmon trace FILE`); keys that both screens have mean",
        "the same in both.",
    ]
    for table in (KEYS, TRACE_KEYS):
        for section in dict.fromkeys(key.section for key in table):
            lines += ["", f"## {section}", "", "| key | does | when |", "|---|---|---|"]
            for key in table:
                if key.section == section:
                    shown = " ".join(f"`{name}`" for name in key.shown)
                    lines.append(f"| {shown} | {key.help} | {key.when.words} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(keys_markdown())
