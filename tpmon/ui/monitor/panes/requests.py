"""Paint captures and samples: what they cost, how far they are, what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.results.capture import (
    CAPTURE_ACTS,
    UNKNOWN,
    CaptureKind,
    CaptureStage,
    CaptureUpdate,
    fewer_steps,
    more_steps,
    next_kind,
)
from tpmon.model.results.sample import HotGroup, HotSample
from tpmon.model.units import clean_text, count_cells, format_bytes, format_seconds
from tpmon.ui.monitor.panes.stacks import paint_errors
from tpmon.ui.monitor.requests import has_ended, is_running, say_next_price
from tpmon.ui.monitor.state import ViewState
from tpmon.view.layout import Ink, Line, Table, fit_line, list_columns, pad, wrap_all
from tpmon.view.stacks import (
    FUNCTIONS,
    count_without_turn,
    pick_shown,
    say_cost,
    say_ended,
    say_group,
    say_lost,
    say_phases,
    say_waiting,
    say_what,
)

_TEXT_CHARS = 4_000
_NONE = "no capture yet: t says what one of a few steps costs, and asks nothing of the run"
_FORBIDDEN = "no capture: it has the training record itself, and --readonly forbids that"
_QUESTIONS = {
    CaptureStage.ASKED: "esc leaves; nothing is asked of the run yet",
    CaptureStage.PLANNED: "t or Enter profiles one step and says the price; esc leaves",
    CaptureStage.SIZING: "t or esc cancels it",
    CaptureStage.PRICED: "t or Enter records them at this price; esc leaves, nothing is recorded",
    CaptureStage.DEAR: "t or Enter records them all the same; esc leaves, nothing is recorded",
    CaptureStage.RECORDING: "t or esc cancels it: no file is left then; 8 leaves it to go on",
}
_UNSIZED = {
    CaptureKind.SNAPSHOT: {CaptureStage.PLANNED: "t or Enter records them and writes the file; esc leaves"},
    CaptureKind.NSYS_RANGE: {
        CaptureStage.PLANNED: "t or Enter opens the range for nsys; esc leaves",
        CaptureStage.RECORDING: "t or esc ends the range before its steps are done; 8 leaves it to go on",
    },
}
"""What is asked where no step is profiled first: the plan says all that is known."""
_FIRST = 2
"""Lines of a plan that stand before the question: what is recorded, and how long that is."""
_LABEL = 7
_VALUE = 20


def paint_capture(view: ViewState, width: int) -> list[Line]:
    """Paint all lines of a capture; the screen shows the part that fits."""
    update = view.capture
    if not is_known(update) or (update.stage is CaptureStage.ENDED and not update.line):
        return _wrapped(_FORBIDDEN if view.readonly else _NONE, Ink.DIM, width)
    if update.stage is CaptureStage.ENDED:
        return _paint_end(update, width)
    question = _UNSIZED.get(update.choice.kind, {}).get(update.stage, _QUESTIONS[update.stage])
    asked = _wrapped(update.line, Ink.WARN, width) + _wrapped(question, Ink.STRONG, width)
    choice = _paint_choice(update, width)
    what = _wrap_each(update.plan[:_FIRST], Ink.PLAIN, width)
    rest = update.plan[_FIRST:]
    known = _wrap_each([said for said in rest if not said.startswith(UNKNOWN)], Ink.PLAIN, width)
    known += _paint_memory(view, width) if what else []
    if update.price:  # what was not known before is of the past
        price = _wrap_each(update.price, Ink.STRONG, width)
        return [*price, (), *asked, (), *choice, *what, *known]
    known += _wrap_each([said for said in rest if said.startswith(UNKNOWN)], Ink.PLAIN, width)
    # the question is in sight also where not all that is known fits
    return [*choice, *what, *([()] if what else []), *asked, *([()] if known else []), *known]


def _paint_choice(update: CaptureUpdate, width: int) -> list[Line]:
    """Paint what is chosen with the keys that change it, and why the rest cannot be; nothing once it acts."""
    choice, offers = update.choice, update.offers
    if not is_known(offers) or update.stage in CAPTURE_ACTS:
        return []
    kind, fewer, more = next_kind(choice, offers), fewer_steps(choice, offers), more_steps(choice, offers)
    to_kind = f"c {kind.kind.value}" if kind != choice else ""
    steps = [f"{key} {to.steps:,}" for key, to in (("-", fewer), ("+", more)) if to != choice]
    every = f"all {offers.ranks} here"
    to_ranks = "" if offers.every else f"a {offers.who} alone" if choice.every else f"a {every}"
    lines = _paint_row("what", choice.kind.value, to_kind, width)
    for refused, why in offers.refused:
        lines += _paint_refusal(f"no {refused.value}: {why}", width)
    lines += _paint_row("steps", f"{choice.steps:,}", ", ".join(steps), width)
    lines += _paint_row("ranks", every if choice.every else offers.who, to_ranks, width)
    if offers.every:
        lines += _paint_refusal(f"not all: {offers.every}", width)
    return [*lines, ()]


def _paint_row(label: str, value: str, keys: str, width: int) -> list[Line]:
    """Paint one choice with its keys beside it, or below where there is no room."""
    head = (f" {pad(label, _LABEL)}", Ink.DIM)
    shown = clean_text(value, _VALUE)
    if not keys:
        return [fit_line((head, (shown, Ink.STRONG)), width)]
    if _LABEL + 1 + _VALUE + count_cells(keys) <= width:
        return [fit_line((head, (pad(shown, _VALUE), Ink.STRONG), (keys, Ink.PLAIN)), width)]
    if _LABEL + count_cells(shown) + 3 + count_cells(keys) <= width:
        return [fit_line((head, (f"{shown}  ", Ink.STRONG), (keys, Ink.PLAIN)), width)]
    return [fit_line((head, (shown, Ink.STRONG)), width), *_paint_below(keys, Ink.PLAIN, width)]


def _paint_below(text: str, ink: Ink, width: int) -> list[Line]:
    indent = " " * (_LABEL + 1)
    return [((f"{indent}{line}", ink),) for line in _wrap(text, width - _LABEL)]


def _paint_refusal(text: str, width: int) -> list[Line]:
    return _paint_below(clean_text(text, _TEXT_CHARS), Ink.DIM, width)


def _paint_end(update: CaptureUpdate, width: int) -> list[Line]:
    if not update.report:
        return _wrapped(update.line, Ink.WARN, width)
    lines: list[Line] = []
    for said in update.report:
        lines += _laid(said, Ink.PLAIN, width) if said else [()]
    opens = ", o opens it" if update.trace else ""
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
    return [((f" {cleaned}", ink),)] if count_cells(cleaned) < width else _wrapped(cleaned, ink, width)


def _wrap_each(texts: Sequence[str], ink: Ink, width: int) -> list[Line]:
    return [line for said in texts for line in _wrapped(said, ink, width)]


def _wrapped(text: str, ink: Ink, width: int) -> list[Line]:
    return [((f" {line}", ink),) for line in _wrap(clean_text(text, _TEXT_CHARS), width)]


def _wrap(text: str, width: int) -> Sequence[str]:
    return wrap_all(text, max(1, width - 2))


_ERROR_LINES = 6
_SAMPLE_CHARS = 400
_ENDED = "the job has ended: no stack is left to sample"


def paint_sample(view: ViewState, width: int) -> list[Line]:
    """Paint all lines of the hot functions; the screen shows the part that fits."""
    update = view.sample
    if not is_known(update):
        ended = is_known(view.frame) and has_ended(view.frame)
        return _wrap_sample(_ENDED, Ink.WARN, width) if ended else _paint_price(view, Ink.WARN, width)
    lines: list[Line] = []
    if update.state.refused:
        lines += _wrap_sample(f"! {update.state.refused}", Ink.WARN, width)
    if is_running(view):
        done = update.hot.seconds if is_known(update.hot) else 0.0
        lines += _wrap_sample(f"sampling: {done:.0f} of {update.state.request.seconds:g} s", Ink.WARN, width)
    hot = update.hot
    if is_known(hot):
        lines += _paint_told(view, hot, width)
    elif not update.state.refused:
        lines += _wrap_sample("the first samples come within two seconds", Ink.DIM, width)
    if not is_running(view):
        lines += _paint_price(view, Ink.DIM, width)
    if is_known(hot):
        for group in hot.groups:
            lines += [(), *_paint_group(group, width)]
        lines += [(), *_wrap_sample(say_cost(hot), Ink.DIM, width)]
    return lines


def _paint_told(view: ViewState, hot: HotSample, width: int) -> list[Line]:
    """Paint whom it is of, and what is not in it."""
    lines = _wrap_sample(f"{say_what(hot)}{_say_age(view, hot)}", Ink.STRONG, width)
    if hot.lost_samples or hot.behind_s:
        lines += _wrap_sample(f"! lost: {say_lost(hot)}", Ink.WARN, width)
    lines += paint_errors(hot.errors, width, _ERROR_LINES, can_stop=False)
    waiting = count_without_turn(hot)
    if waiting:
        lines += _wrap_sample(f"no turn for {waiting} more yet", Ink.WARN, width)
    return [*lines, *_wrap_sample(say_ended(hot), Ink.WARN, width)] if hot.ended_processes else lines


def _paint_price(view: ViewState, ink: Ink, width: int) -> list[Line]:
    if view.no_stacks:
        return _wrap_sample("no stacks are sampled: --no-stacks", ink, width)
    return _wrap_sample(say_next_price(view), ink, width)


def _say_age(view: ViewState, hot: HotSample) -> str:
    if is_running(view) or not is_known(view.frame):
        return ""
    now_ns = view.paused_ns if is_known(view.paused_ns) else view.now_ns
    age_s = (view.frame.taken - hot.taken).total_seconds() + (now_ns - view.frame.taken_ns) / 1e9
    return f", {format_seconds(max(0.0, age_s))} ago"


def _wrap_sample(text: str, ink: Ink, width: int) -> list[Line]:
    return [((f" {line}", ink),) for line in wrap_all(clean_text(text, _SAMPLE_CHARS), max(1, width - 2))]


def _paint_group(group: HotGroup, width: int) -> list[Line]:
    """Paint who it is and how it did, then its functions, the user's own standing out."""
    if waiting := say_waiting(group):
        return _wrap_sample(waiting, Ink.DIM, width)
    lines = _wrap_sample(say_group(group), Ink.TITLE, width)
    phases = say_phases(group)
    if phases:
        lines += [
            ((f"  {text[0][0].strip()}", Ink.PLAIN),) for text in _wrap_sample(phases, Ink.PLAIN, width - 2)
        ]
    shown, hidden = pick_shown(group)
    if not shown:
        return lines
    table = Table(list_columns(FUNCTIONS), width)
    lines.append(table.paint_head())
    lines += [table.paint_row(one, Ink.DIM if one.package else Ink.STRONG) for one in shown]
    return [*lines, ((f"   {hidden} more (tpmon sample --json has them)", Ink.DIM),)] if hidden else lines
