"""Decide which panes a screen of a given size holds, how high each is, and put them together.

That depends on the size and on what exists, and hardly on values: panes keep their places. Below 60 columns
``panes/narrow.py`` has the panes without rules, as lines of one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.text.job_words import JOIN, say_log_pace, say_steps_fact, write_kind
from tpmon.model.verdict import VerdictCode, pick_code
from tpmon.ui.kit.find import crop_left, look_under
from tpmon.ui.kit.ink import DOT
from tpmon.ui.kit.keys import (
    TINY_WIDTH,
    KeyHelp,
    Overlay,
    fill_screen,
    is_tiny,
    paint_footer,
    paint_help,
    paint_scrolled,
    scroll,
)
from tpmon.ui.monitor.alerts import tell_most
from tpmon.ui.monitor.panes import (
    cards,
    cpu,
    events,
    header,
    narrow,
    overlays,
    stacks,
    steps,
    tables,
    verdict,
)
from tpmon.ui.monitor.requests import has_ended
from tpmon.ui.monitor.state import PANES_SHOWN, Pane, ViewState
from tpmon.view.finding import block
from tpmon.view.layout import Ink, Item, Line, Size, cut, justify, set_in, wrap, wrap_words
from tpmon.view.ranks import order_ranks

_STEP_LINES = 2
"""Most lines of the steps, where a hook counts them."""
LOW_HEIGHT = 20
"""Below this height what to try comes before the notes and most panes."""

ROOMY_HEIGHT = 14
"""From so many lines for all panes on, eight cards are shown."""

_PAINTERS = {
    Pane.RANKS: tables.paint_ranks,
    Pane.CPU: cpu.paint_cpu,
    Pane.WORKERS: tables.paint_workers,
    Pane.GPUS: cards.paint_gpus,
    Pane.EVENTS: events.paint_events,
}
_IN_FULL: dict[Pane | Overlay, tuple[str, Callable[[ViewState, int], list[Line]]]] = {
    Pane.CPU: ("2 machine in full", cpu.paint_cpu_in_full),
    Pane.GPUS: ("4 GPUs in full", cards.paint_gpus_in_full),
    Pane.EVENTS: ("5 log and events in full", events.paint_events_in_full),
    Overlay.VERDICT: ("verdict in full", verdict.paint_verdict_in_full),
    Overlay.DETAILS: ("details", overlays.paint_details),
    Overlay.SAMPLE: ("7 hot functions", overlays.paint_sample),
    Overlay.CAPTURE: ("8 capture", overlays.paint_capture),
    Overlay.ENVIRONMENT: ("environment", overlays.paint_environment),
}
"""Title and painter of texts that scroll, beside the help."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Hold how many rows a pane needs to be useful, wants soon, and can fill."""

    pane: Pane
    least: int
    soon: int
    most: int


def paint_screen(view: ViewState, size: Size, keys: Sequence[KeyHelp] = ()) -> list[Line]:
    """Paint exactly ``size.height`` lines of at most its width, with the ``keys`` that work now."""
    inner = _leave_strip(view, size)
    first, *others = (_paint_tiny if is_tiny(inner) else _paint_full)(view, inner, keys)
    if inner is not size:
        from tpmon.ui.monitor.panes.strip import paint_strip  # noqa: PLC0415  # of a recording alone

        others = [*paint_strip(view, size.width), *others]
    return fill_screen([first, *others], size, ascii_only=view.ascii_only)


def _leave_strip(view: ViewState, size: Size) -> Size:
    """Return the room beside the strip of a recording, which takes a line that no other pane misses."""
    inner = Size(size.width, size.height - 1)
    return inner if is_known(view.playback) and not is_tiny(inner) else size


def _look_behind(view: ViewState) -> ViewState:
    """Return what is in sight while a line is typed."""
    return replace(view, overlay=view.behind) if view.overlay is Overlay.TIME else look_under(view)


def rows_of(view: ViewState) -> tuple[int, ...]:
    """Return the PIDs of the rows in the focused pane, in the order shown."""
    if not is_known(view.frame):
        return ()
    pane = view.zoom if is_known(view.zoom) else view.focus
    if pane is Pane.RANKS:
        return tuple(rank.row.pid for rank in order_ranks(view.frame))
    if pane is Pane.WORKERS:
        return tuple(process.pid for process in tables.select_workers(view))
    return ()


def page_of(view: ViewState, size: Size, keys: Sequence[KeyHelp] = ()) -> tuple[int, int]:
    """Return the lines of a page and the greatest ``view.scroll``, 0 where rows follow a cursor."""
    size = _leave_strip(view, size)
    taken = 1 if is_tiny(size) else len(_paint_top(view, size)) + 2
    height = max(1, size.height - taken)
    text = text_in_full(view, size, keys)
    if view.overlay is Overlay.STACKS or text is None:
        return max(1, height // 2), 0
    return height, max(0, len(text[1]) - height)


def _paint_tiny(view: ViewState, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    answer = view.message or view.typed
    view = _look_behind(view)
    frame = view.frame
    state = header.name_state(view)
    if answer:
        state = Item(0, answer, Ink.STRONG)
    first: Line = ((cut(f" {state.text}", size.width), state.ink),)
    if not answer and is_known(frame) and is_known(frame.verdict) and not has_ended(frame):
        word = Item(0, write_kind(frame.verdict), block.badge_ink(frame.verdict))
        says_word = view.overlay is Overlay.VERDICT  # in its first line
        first = justify([Item(-1 if says_word else 1, state.text, state.ink)], [word], size.width, 1)
    if view.overlay is Overlay.STACKS:
        return [first, *stacks.paint_stacks_tiny(view, Size(size.width, size.height - 1))]
    text = text_in_full(view, size, keys)
    if text is not None:
        return [first, *scroll(text[1], view.scroll, size.height - 1)[1]]
    if is_known(frame) and is_known(view.zoom):
        return [first, *_PAINTERS[view.zoom](view, Size(size.width, size.height - 1), focused=True)]
    if not is_known(frame):
        return [first, *set_in(wrap_words(f"no reading yet: {frame.reason}", max(1, size.width - 1)))]
    who = Item(2, f"tpmon {frame.target.pid}" if size.width >= TINY_WIDTH else str(frame.target.pid))
    lines = [justify([state], [who], size.width)]
    if is_known(frame.verdict) and not has_ended(frame):
        lines += block.paint_briefly(frame.verdict, frame.taken, Size(size.width, size.height - 1))
    else:
        fact, ink = tell_most(frame)
        sign = "! " if ink in (Ink.WARN, Ink.BAD) else ""
        lines += set_in(wrap_words(sign + fact, max(1, size.width - 1)), ink)
    if size.width >= TINY_WIDTH:
        lines += set_in(wrap(frame.facts.split(f" {DOT} "), size.width - 2, f" {DOT} "))
    return lines


def _paint_top(view: ViewState, size: Size) -> list[Line]:
    top = [header.paint_header(view, size.width)]
    if view.overlay in (Overlay.HELP, Overlay.VERDICT):
        return top
    frame = view.frame
    shows_steps = size.height >= LOW_HEIGHT and view.overlay is Overlay.NONE and not is_known(view.zoom)
    top += _paint_judged(_without_steps(view) if shows_steps else view, size)
    if shows_steps:
        top += steps.paint_steps(view, size.width, _STEP_LINES)
    if is_known(frame) and not _has_block(view, frame):
        top += header.paint_notes(frame, size.width, 1 if size.height < 30 else 4)
    return top if view.overlay is Overlay.STACKS else [*top, *stacks.paint_hint(view, size.width)]


def _has_block(view: ViewState, frame: Frame) -> bool:
    """Tell whether the verdict is told with its notes, not in one line."""
    if not is_known(frame.verdict) or has_ended(frame) or is_known(view.zoom):
        return False
    return view.overlay not in _IN_FULL and view.overlay is not Overlay.STACKS


def _without_steps(view: ViewState) -> ViewState:
    """Leave out of the facts what the header or the lines of the steps repeat."""
    frame = view.frame
    if not is_known(frame):
        return view
    said = say_steps_fact(frame.steps) or [say_log_pace(frame.pace)]
    facts = JOIN.join(fact for fact in frame.facts.split(JOIN) if fact not in said)
    return replace(view, frame=replace(frame, facts=facts))


def _paint_judged(view: ViewState, size: Size) -> list[Line]:
    """Paint the verdict, or the facts where there is none or the job has ended."""
    frame = view.frame
    room = min(2 if size.width >= 120 else 3 if size.width >= 60 else 6, size.height // 5)
    if not is_known(frame) or not is_known(frame.verdict):
        return header.paint_facts(view, size.width, room)
    finding = frame.verdict
    if has_ended(frame):
        return [
            *header.paint_facts(view, size.width, room),
            verdict.paint_last_verdict(frame, finding, size.width),
        ]
    if not _has_block(view, frame):
        return block.paint_headline(finding, frame.taken, size.width)[:2]
    share = _SHARES[VerdictCode(pick_code(finding.kind, finding.cause))] * (
        1.2 if size.width < narrow.WIDTH else 1.0
    )
    share = 0.6 if size.height < LOW_HEIGHT else share  # more lines where they are short
    return verdict.paint_verdict(frame, finding, size.width, max(3, int(size.height * share)))


_SHARES = {
    VerdictCode.FINE: 0.24,
    VerdictCode.HELD: 0.38,
    VerdictCode.UNDECIDED: 0.38,
    VerdictCode.HUNG: 0.38,
}
"""Share of the height for a verdict by exit code: little when all is well."""


def _paint_full(view: ViewState, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    footer = paint_footer(view, keys, size.width)[: size.height // 2]
    view = _look_behind(view)
    top = _paint_top(view, size)
    body = Size(size.width, size.height - len(top) - 1)
    room = size.height - len(footer)
    lines = [*top, *_paint_body(view, body, size, keys)][:room]
    return [*lines, *([()] * (room - len(lines))), *footer]


def text_in_full(view: ViewState, size: Size, keys: Sequence[KeyHelp] = ()) -> tuple[str, list[Line]] | None:
    """Return title and lines of a text that scrolls, None where something else is shown."""
    if view.overlay is Overlay.HELP:
        return "help", paint_help(keys, size, overlays.HELP_WORDS)
    shown = view.overlay if view.overlay in _IN_FULL else view.zoom
    if not is_known(shown) or shown not in _IN_FULL:
        return None
    title, paint = _IN_FULL[shown]
    return title, paint(view, size.width)


def _paint_body(view: ViewState, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    if left := view.search.left:  # a part of the same at a greater width
        whole = replace(view, search=replace(view.search, left=0))
        wide, whole_size = Size(body.width + left, body.height), Size(size.width + left, size.height)
        return [crop_left(line, left, body.width) for line in _paint_body(whole, wide, whole_size, keys)]
    frame = view.frame
    if view.overlay is Overlay.STACKS:
        return stacks.paint_stacks(view, body)
    text = text_in_full(view, size, keys)
    if text is not None:
        return paint_scrolled(*text, view.scroll, body)
    if not is_known(frame):
        return []
    if is_known(view.zoom):
        return _PAINTERS[view.zoom](view, body, focused=True)
    if size.width < narrow.WIDTH:
        return narrow.paint_panes(view, frame, body)
    heights = share_height(list_wishes(view, body), body.height)
    shown = (pane for pane in PANES_SHOWN if heights.get(pane, 0))
    return [line for pane in shown for line in _paint_pane(view, pane, Size(body.width, heights[pane]))]


def _paint_pane(view: ViewState, pane: Pane, size: Size) -> list[Line]:
    lines = _PAINTERS[pane](view, size, focused=view.focus is pane)[: size.height]
    return lines + [()] * (size.height - len(lines))


def list_wishes(view: ViewState, body: Size) -> list[Wish]:
    """Return the wishes of the panes, the most needed first."""
    third = max(3, body.height // 3)
    ranks = 1 + tables.count_rank_lines(view)
    listed, count = tables.filter_workers(view), cards.count_cards(view)
    folds = len(tables.worker_folds(view, listed, third))
    workers = 1 + folds if folds else 2 + len(listed)
    happened = 1 + events.count_events(view, body.width)
    machine = 1 + cpu.count_rows(view)
    least = 2 if count else min(4, machine)
    wishes = [
        Wish(Pane.RANKS, min(4, ranks), min(ranks, third), ranks),
        Wish(Pane.CPU, least, machine, machine),
        Wish(Pane.WORKERS, min(2, workers), min(6, workers), workers),
        Wish(Pane.EVENTS, 2, min(4, happened), max(2, happened)),
    ]
    if not count:
        return wishes
    rows = -(-count // cards.count_columns(body.width, count))
    least = 1 + min(rows, 3 if body.height >= ROOMY_HEIGHT else 1)
    return [Wish(Pane.GPUS, least, min(1 + rows, third), 1 + rows), *wishes]


def share_height(wishes: Sequence[Wish], height: int) -> dict[Pane, int]:
    """Share rows among panes: first what each needs, then what each wants soon, then the rest."""
    heights: dict[Pane, int] = {}
    left = height
    for wish in wishes:
        if wish.least <= left:
            heights[wish.pane] = wish.least
            left -= wish.least
    left = _grow(heights, {wish.pane: wish.soon for wish in wishes}, left)
    _grow(heights, {wish.pane: wish.most for wish in wishes}, left)
    return heights


def _grow(heights: dict[Pane, int], wanted: dict[Pane, int], left: int) -> int:
    growing = True
    while left > 0 and growing:
        growing = False
        for pane, height in heights.items():
            if left > 0 and height < wanted[pane]:
                heights[pane] += 1
                left -= 1
                growing = True
    return left
