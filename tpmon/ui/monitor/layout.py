"""Decide which panes a screen of a given size holds, how high each is, and put them together.

That depends on the size and on what exists, never on values: panes keep their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.text.job_words import JOIN, say_steps_fact
from tpmon.model.verdict import pick_code
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
from tpmon.ui.monitor.panes import cpu, events, header, overlays, stacks, steps, tables, verdict
from tpmon.ui.monitor.requests import has_ended
from tpmon.ui.monitor.state import Pane, ViewState
from tpmon.view.layout import Ink, Item, Line, Size, cut, justify, set_in, wrap, wrap_words
from tpmon.view.ranks import order_ranks

_STEP_LINES = 4
"""Most lines of the steps, where a hook counts them."""
LOW_HEIGHT = 20
"""Below this height what to try comes before the notes and most panes."""
SHORT_LINES_WIDTH = 60
WIDE_WIDTH = 150
"""From this width on the CPU and the GPU pane are side by side."""

_PAINTERS = {
    Pane.RANKS: tables.paint_ranks,
    Pane.CPU: cpu.paint_cpu,
    Pane.WORKERS: tables.paint_workers,
    Pane.GPUS: tables.paint_gpus,
    Pane.EVENTS: events.paint_events,
}
_IN_FULL: dict[Pane | Overlay, tuple[str, Callable[[ViewState, int], list[Line]]]] = {
    Pane.CPU: ("2 CPU and memory in full", cpu.paint_cpu_in_full),
    Pane.GPUS: ("4 GPUs in full", tables.paint_gpus_in_full),
    Pane.EVENTS: ("5 events and logs in full", events.paint_events_in_full),
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
    """Return what is in sight while a time is typed."""
    return replace(view, overlay=view.behind) if view.overlay is Overlay.TIME else view


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
    text = _text_in_full(view, size, keys)
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
        word = Item(0, frame.verdict.kind.value.upper(), verdict.kind_ink(frame.verdict))
        says_word = view.overlay is Overlay.VERDICT  # in its first line
        first = justify([Item(-1 if says_word else 1, state.text, state.ink)], [word], size.width, 1)
    if view.overlay is Overlay.STACKS:
        return [first, *stacks.paint_stacks_tiny(view, Size(size.width, size.height - 1))]
    text = _text_in_full(view, size, keys)
    if text is not None:
        return [first, *scroll(text[1], view.scroll, size.height - 1)[1]]
    if is_known(frame) and is_known(view.zoom):
        return [first, *_PAINTERS[view.zoom](view, Size(size.width, size.height - 1), focused=True)]
    if not is_known(frame):
        return [first, *set_in(wrap_words(f"no reading yet: {frame.reason}", max(1, size.width - 1)))]
    who = Item(2, f"tpmon {frame.target.pid}" if size.width >= TINY_WIDTH else str(frame.target.pid))
    lines = [justify([state], [who], size.width)]
    if is_known(frame.verdict) and not has_ended(frame):
        lines += verdict.paint_verdict_briefly(frame, frame.verdict, Size(size.width, size.height - 1))
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
    if is_known(frame) and not (is_known(frame.verdict) and size.height < LOW_HEIGHT):
        top += header.paint_notes(frame, size.width, 1 if size.height < 30 else 4)
    return top if view.overlay is Overlay.STACKS else [*top, *stacks.paint_hint(view, size.width)]


def _without_steps(view: ViewState) -> ViewState:
    """Leave out of the facts what the lines of the steps repeat."""
    frame = view.frame
    if not is_known(frame) or not is_known(frame.steps):
        return view
    said = say_steps_fact(frame.steps)
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
    if is_known(view.zoom) or view.overlay in _IN_FULL or view.overlay is Overlay.STACKS:
        return verdict.paint_headline(frame, finding, size.width)[:2]
    share = _SHARES[pick_code(finding.kind, finding.cause)] * (1.3 if size.width < SHORT_LINES_WIDTH else 1.0)
    share = 0.6 if size.height < LOW_HEIGHT else share  # more lines where they are short
    return verdict.paint_verdict(view, frame, finding, size.width, max(3, int(size.height * share)))


_SHARES = {0: 0.24, 10: 0.38, 11: 0.38, 12: 0.42}
"""Share of the height for a verdict by exit code: little when all is well."""


def _paint_full(view: ViewState, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    footer = paint_footer(view, keys, size.width)[: size.height // 2]
    view = _look_behind(view)
    top = _paint_top(view, size)
    body = Size(size.width, size.height - len(top) - 1)
    room = size.height - len(footer)
    lines = [*top, *_paint_body(view, body, size, keys)][:room]
    return [*lines, *([()] * (room - len(lines))), *footer]


def _text_in_full(view: ViewState, size: Size, keys: Sequence[KeyHelp]) -> tuple[str, list[Line]] | None:
    """Return title and lines of a text that scrolls, None where something else is shown."""
    if view.overlay is Overlay.HELP:
        return "help", paint_help(keys, size, overlays.HELP_WORDS)
    shown = view.overlay if view.overlay in _IN_FULL else view.zoom
    if not is_known(shown) or shown not in _IN_FULL:
        return None
    title, paint = _IN_FULL[shown]
    return title, paint(view, size.width)


def _paint_body(view: ViewState, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    frame = view.frame
    if view.overlay is Overlay.STACKS:
        return stacks.paint_stacks(view, body)
    text = _text_in_full(view, size, keys)
    if text is not None:
        return paint_scrolled(*text, view.scroll, body)
    if not is_known(frame):
        return []
    if is_known(view.zoom):
        return _PAINTERS[view.zoom](view, body, focused=True)
    if size.width >= WIDE_WIDTH:
        return _paint_wide(view, body)
    heights = share_height(list_wishes(view, body), body.height)
    shown = (pane for pane in Pane if heights.get(pane, 0))
    return [line for pane in shown for line in _paint_pane(view, pane, Size(body.width, heights[pane]))]


def _paint_pane(view: ViewState, pane: Pane, size: Size) -> list[Line]:
    lines = _PAINTERS[pane](view, size, focused=view.focus is pane)[: size.height]
    return lines + [()] * (size.height - len(lines))


def list_wishes(view: ViewState, body: Size) -> list[Wish]:
    """Return the wishes of the panes, the most needed first."""
    third = max(3, body.height // 3)
    ranks = len(view.frame.ranks) if is_known(view.frame) else 0
    workers, cards = tables.count_workers(view), tables.count_cards(view)
    happened = 1 + events.count_events(view)
    wishes = [
        Wish(Pane.RANKS, min(4, 2 + max(1, ranks)), min(2 + ranks, third), 2 + ranks),
        Wish(Pane.CPU, 2, 7, 10),
        Wish(Pane.WORKERS, min(3, 2 + workers), min(6, 2 + workers), 2 + workers),
        Wish(Pane.EVENTS, 2, min(4, happened), max(2, happened)),
        Wish(Pane.GPUS, 1, 1, 2 + cards if cards else 1),
    ]
    frame = view.frame
    accused = is_known(frame) and is_known(frame.verdict) and is_known(frame.verdict.card)
    return [*wishes[-1:], *wishes[:-1]] if accused else wishes


def share_height(wishes: Sequence[Wish], height: int) -> dict[Pane, int]:
    """Share rows among panes: first what each needs, then what each wants soon, then the rest.

    Cards get all or only their need: half a table of cards says less than their summary.
    """
    heights: dict[Pane, int] = {}
    left = height
    for wish in wishes:
        if wish.least <= left:
            heights[wish.pane] = wish.least
            left -= wish.least
    left = _grow(heights, {wish.pane: wish.soon for wish in wishes}, left)
    most = {wish.pane: wish.most for wish in wishes}
    if Pane.GPUS in heights:
        step = min(most[Pane.GPUS] - heights[Pane.GPUS], left)
        if step >= 2:
            heights[Pane.GPUS] += step
            left -= step
    _grow(heights, most, left)
    return heights


def _grow(heights: dict[Pane, int], wanted: dict[Pane, int], left: int) -> int:
    growing = True
    while left > 0 and growing:
        growing = False
        for pane, height in heights.items():
            if left > 0 and height < wanted[pane] and pane is not Pane.GPUS:
                heights[pane] += 1
                left -= 1
                growing = True
    return left


def _paint_wide(view: ViewState, body: Size) -> list[Line]:
    cards = tables.count_cards(view)
    wishes = [wish for wish in list_wishes(view, body) if wish.pane is not Pane.GPUS]
    if not cards:
        wishes.append(Wish(Pane.GPUS, 1, 1, 1))
    else:
        middle = max(9, min(2 + cards, max(9, body.height // 3)))
        wishes = [Wish(w.pane, middle, middle, middle) if w.pane is Pane.CPU else w for w in wishes]
    heights = share_height(wishes, body.height)
    lines: list[Line] = []
    for pane in Pane:
        height = heights.get(pane, 0)
        if pane is Pane.CPU and cards and height:
            left = body.width // 2 - 1
            first = _paint_pane(view, Pane.CPU, Size(left, height))
            gpus = _paint_pane(view, Pane.GPUS, Size(body.width - left - 2, height))
            lines += [events.join_columns(a, b, left) for a, b in zip(first, gpus, strict=True)]
        elif height:
            lines += _paint_pane(view, pane, Size(body.width, height))
    return lines
