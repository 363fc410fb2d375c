"""Paint hot functions: what it costs or how far it is, then each part of the job with its functions."""

from __future__ import annotations

from tpmon.model.known import is_known
from tpmon.model.sample import HotFunction, HotGroup, HotSample
from tpmon.model.units import clean_text, format_seconds
from tpmon.ui.kit.cells import wrap_all
from tpmon.ui.kit.table import Column, Table, list_columns
from tpmon.ui.monitor.ask_dump import has_ended
from tpmon.ui.monitor.ask_sample import is_running, say_next_price
from tpmon.ui.monitor.panes.paint_dump_errors import paint_errors
from tpmon.ui.monitor.state import Ink, Line, ViewState
from tpmon.view.sample import (
    FUNCTIONS,
    YOURS,
    count_without_turn,
    name_function,
    pick_shown,
    say_cost,
    say_ended,
    say_group,
    say_lost,
    say_phases,
    say_waiting,
    say_what,
)

_ERROR_LINES = 6
_TEXT_CHARS = 400
_ENDED = "the job has ended: no stack is left to sample"


def paint_sample(view: ViewState, width: int) -> list[Line]:
    """Paint all lines of the hot functions; the screen shows the part that fits."""
    update = view.sample
    if not is_known(update):
        ended = is_known(view.frame) and has_ended(view.frame)
        return _wrapped(_ENDED, Ink.WARN, width) if ended else _paint_price(view, Ink.WARN, width)
    lines: list[Line] = []
    if update.state.refused:
        lines += _wrapped(f"! {update.state.refused}", Ink.WARN, width)
    if is_running(view):
        done = update.hot.seconds if is_known(update.hot) else 0.0
        lines += _wrapped(f"sampling: {done:.0f} of {update.state.request.seconds:g} s", Ink.WARN, width)
    hot = update.hot
    if is_known(hot):
        lines += _paint_told(view, hot, width)
    elif not update.state.refused:
        lines += _wrapped("the first samples come within two seconds", Ink.DIM, width)
    if not is_running(view):
        lines += _paint_price(view, Ink.DIM, width)
    if is_known(hot):
        for group in hot.groups:
            lines += [(), *_paint_group(group, width)]
        lines += [(), *_wrapped(say_cost(hot), Ink.DIM, width)]
    return lines


def _paint_told(view: ViewState, hot: HotSample, width: int) -> list[Line]:
    """Paint whom it is of, and what is not in it."""
    lines = _wrapped(f"{say_what(hot)}{_say_age(view, hot)}", Ink.STRONG, width)
    if hot.lost_samples or hot.behind_s:
        lines += _wrapped(f"! lost: {say_lost(hot)}", Ink.WARN, width)
    lines += paint_errors(hot.errors, width, _ERROR_LINES, can_stop=False)
    waiting = count_without_turn(hot)
    if waiting:
        lines += _wrapped(f"no turn for {waiting} more yet", Ink.WARN, width)
    return [*lines, *_wrapped(say_ended(hot), Ink.WARN, width)] if hot.ended_processes else lines


def _paint_price(view: ViewState, ink: Ink, width: int) -> list[Line]:
    if view.no_stacks:
        return _wrapped("no stacks are sampled: --no-stacks", ink, width)
    return _wrapped(say_next_price(view), ink, width)


def _say_age(view: ViewState, hot: HotSample) -> str:
    if is_running(view) or not is_known(view.frame):
        return ""
    now_ns = view.paused_ns if is_known(view.paused_ns) else view.now_ns
    age_s = (view.frame.taken - hot.taken).total_seconds() + (now_ns - view.frame.taken_ns) / 1e9
    return f", {format_seconds(max(0.0, age_s))} ago"


def _wrapped(text: str, ink: Ink, width: int) -> list[Line]:
    return [((f" {line}", ink),) for line in wrap_all(clean_text(text, _TEXT_CHARS), max(1, width - 2))]


def _paint_group(group: HotGroup, width: int) -> list[Line]:
    """Paint who it is and how it did, then its functions, the user's own standing out."""
    if waiting := say_waiting(group):
        return _wrapped(waiting, Ink.DIM, width)
    lines = _wrapped(say_group(group), Ink.TITLE, width)
    phases = say_phases(group)
    if phases:
        lines += [
            ((f"  {text[0][0].strip()}", Ink.PLAIN),) for text in _wrapped(phases, Ink.PLAIN, width - 2)
        ]
    shown, hidden = pick_shown(group)
    if not shown:
        return lines
    table = Table(_list_columns(), width)
    lines.append(table.paint_head())
    lines += [table.paint_row(one, Ink.DIM if one.package else Ink.STRONG) for one in shown]
    return [*lines, ((f"   {hidden} more (tpmon sample --json has them)", Ink.DIM),)] if hidden else lines


def _list_columns() -> list[Column[HotFunction]]:
    return [
        *list_columns(FUNCTIONS),
        Column("code", 10, 4, lambda one: clean_text(one.package or YOURS), right=False),
        Column(
            "function",
            16,
            0,
            lambda one: clean_text(name_function(one), _TEXT_CHARS),
            right=False,
            grows=True,
        ),
    ]
