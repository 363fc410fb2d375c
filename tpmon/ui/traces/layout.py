"""Decide what the screen of a trace holds at a given size, and put it together.

From top to bottom: the file, its verdict, the tabs, the timeline, the open tab, the keys. Where there is
little room the timeline shrinks to a line first, then the names of tabs go, the verdict last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpmon.model.known import Known, NotApplicable, is_known
from tpmon.model.results.trace_tables import TimeCell, Timeline
from tpmon.model.units import clean_text, count_cells
from tpmon.ui.kit.find import crop_left, look_under
from tpmon.ui.kit.keys import (
    KeyHelp,
    Overlay,
    fill_screen,
    is_tiny,
    paint_footer,
    paint_help,
    paint_scrolled,
    scroll,
)
from tpmon.ui.traces.state import AnyTab, TraceView
from tpmon.ui.traces.tabs import find_row, list_blocks
from tpmon.view.blocks import lay_blocks, list_facts
from tpmon.view.layout import (
    LABEL_WIDTH,
    LEVELS,
    Ink,
    Item,
    Line,
    Size,
    Span,
    cut,
    cut_front,
    fit_line,
    justify,
    level_of,
    pad,
    paint_pairs,
    paint_rule,
    set_in,
    wrap_words,
)
from tpmon.view.trace import CAUSES, draw_marks

IDLE_SHOWN_PCT = 10.0
"""A column that is idle for less has no letter."""
IDLE_MOST_PCT = 50.0
"""In a timeline of one row, a column that is idle for more has its letter instead of its level."""
LEAST_SHOWN_PCT = 0.05
LETTERS = {
    "queued": "q",
    "data": "d",
    "sync_explicit": "S",
    "sync_implicit": "s",
    "alloc": "a",
    "launch": "l",
    "cpu_op": "o",
    "comms": "c",
    "sync": "s",
    "idle": ".",
    "other": ".",
}
INKS = {
    "queued": Ink.DIM,
    "data": Ink.WARN,
    "sync_explicit": Ink.BAD,
    "sync_implicit": Ink.BAD,
    "alloc": Ink.BAD,
    "launch": Ink.NOTICE,
    "cpu_op": Ink.STRONG,
    "comms": Ink.WARN,
    "sync": Ink.BAD,
    "idle": Ink.DIM,
    "other": Ink.DIM,
}


def room_for_time(width: int) -> int:
    """Return how many columns a screen of this width has for the time."""
    return max(1, width - LABEL_WIDTH - 1)


def paint_timeline(
    timeline: Known[Timeline], width: int, height: int, mark_ms: tuple[float, float] | None = None
) -> list[Line]:
    """Paint at most ``height`` lines; ``mark_ms`` is the time of the row under the cursor."""
    if height <= 0:
        return []
    if not is_known(timeline):
        texts = wrap_words(f"n/a: {timeline.reason}", max(1, width - 2))
        return [paint_rule("timeline", [], width), *set_in(texts, Ink.DIM)][:height]
    if height < 3:
        return [_paint_cells(timeline, width, lambda cell: _letter(cell, IDLE_MOST_PCT) or _busy(cell))]
    lines = [_paint_rule(timeline, width)]
    if height >= 5:
        lines.append(_paint_steps(timeline, width, mark_ms))
    waits = "waits" if is_known(timeline.device) else "rest"
    lines.append(_paint_cells(timeline, width, _busy))
    lines.append(_paint_cells(timeline, width, lambda cell: _letter(cell, IDLE_SHOWN_PCT) or _NOTHING, waits))
    if height >= 6 and is_known(timeline.device):
        lines.append(_paint_sm(timeline, width))
    return [*lines, *_paint_legend(timeline, width, max(0, height - len(lines)))][:height]


def _paint_rule(timeline: Timeline, width: int) -> Line:
    length = timeline.end_ms - timeline.start_ms
    column_ms = length / max(len(timeline.cells), 1)
    details = [
        Item(0, timeline.said, Ink.STRONG),
        Item(2, f"{timeline.start_ms:,.3f} to {timeline.end_ms:,.3f} ms"),
        Item(1, f"a column is {say_length(column_ms)}"),
    ]
    if len(timeline.devices) > 1:
        details.append(Item(3, f"{len(timeline.devices)} devices, n"))
    return paint_rule("timeline", details, width)


def say_length(ms: float) -> str:
    """Write a length of time in a suitable unit."""
    if ms >= 1000:
        return f"{ms / 1000:,.2f} s"
    return f"{ms:.2f} ms" if ms >= 0.1 else f"{ms * 1000:.1f} us"


def _label(text: str) -> Span:
    return (f" {pad(text, LABEL_WIDTH - 1)}", Ink.DIM)


def _row(label: str, cells: list[Span], width: int) -> Line:
    return fit_line((_label(label), *cells), width)


def _paint_steps(timeline: Timeline, width: int, mark_ms: tuple[float, float] | None) -> Line:
    """Paint where steps begin, and a line along the time of the row under the cursor."""
    ruler = draw_marks(((step.cell, f"|{step.name}") for step in timeline.steps), len(timeline.cells))
    marked = _mark(timeline, mark_ms)
    cells: list[Span] = [
        ("^", Ink.WARN) if at in marked else (char, Ink.DIM) for at, char in enumerate(ruler)
    ]
    return _row("step" if timeline.steps_in_all else "", cells, width)


def _mark(timeline: Timeline, mark_ms: tuple[float, float] | None) -> range:
    length = timeline.end_ms - timeline.start_ms
    if mark_ms is None or length <= 0:
        return range(0)
    scale = len(timeline.cells) / length
    first = int((mark_ms[0] - timeline.start_ms) * scale)
    last = int((mark_ms[1] - timeline.start_ms) * scale)
    return range(max(first, 0), min(max(last, first), len(timeline.cells) - 1) + 1)


_NOTHING: Span = (" ", Ink.PLAIN)


def _paint_cells(timeline: Timeline, width: int, draw: Callable[[TimeCell], Span], label: str = "") -> Line:
    lane = f"gpu {timeline.device}" if is_known(timeline.device) else "host"
    return _row(label or lane, [draw(cell) for cell in timeline.cells], width)


def _busy(cell: TimeCell) -> Span:
    return level_of(cell.busy_pct, 100.0), Ink.WARN if cell.exposed_pct * 2 > cell.busy_pct else Ink.GOOD


def _letter(cell: TimeCell, least_pct: float) -> Span | None:
    """Return the letter of a column that is idle, or only communicates, for more than ``least_pct``."""
    idle_pct = 100.0 - cell.busy_pct
    if cell.exposed_pct > max(idle_pct, least_pct):
        return LETTERS["comms"], INKS["comms"]
    if cell.cause and idle_pct > least_pct:
        return LETTERS[cell.cause], INKS[cell.cause]
    return None


def _paint_sm(timeline: Timeline, width: int) -> Line:
    first = timeline.cells[0].sm_pct if timeline.cells else None
    if first is not None and not is_known(first):
        return fit_line((_label("est. SM"), (f"n/a: {first.reason}", Ink.DIM)), width)
    levels = [level_of(cell.sm_pct, 100.0) if is_known(cell.sm_pct) else " " for cell in timeline.cells]
    return _row("est. SM", [("".join(levels), Ink.NOTICE)], width)


def _paint_legend(timeline: Timeline, width: int, most: int) -> list[Line]:
    """Paint the meaning of the letters with their shares of the stretch, the largest first."""
    if most <= 0:
        return []
    busy, *rest = timeline.shares
    word = "busy" if is_known(timeline.device) else "CPU operators"
    shown = sorted((share for share in rest if share.pct >= LEAST_SHOWN_PCT), key=lambda share: -share.pct)
    pieces: list[list[Span]] = [[(f"{LEVELS[-1]} ", Ink.GOOD), (f"{word} {busy.pct:.1f} %", Ink.PLAIN)]]
    if timeline.exposed_pct >= LEAST_SHOWN_PCT:
        text = f" of it exposed communication {timeline.exposed_pct:.1f} %"
        pieces.append([(LETTERS["comms"], INKS["comms"]), (text, Ink.PLAIN)])
    for share in shown:
        text = f" {CAUSES[share.name]} {share.pct:.1f} %"
        pieces.append([(LETTERS[share.name], INKS[share.name]), (text, Ink.PLAIN)])
    lines: list[list[Span]] = [[_label("")]]
    left = width - LABEL_WIDTH
    for piece in pieces:
        taken = sum(count_cells(text) for text, _ink in piece) + 3
        if taken > left and len(lines[-1]) > 1:
            lines.append([_label("")])
            left = width - LABEL_WIDTH
        lines[-1] += [*piece, ("   ", Ink.PLAIN)]
        left -= taken
    return [fit_line(tuple(line), width) for line in lines[:most]]


LOW_HEIGHT = 20
"""Below this height the timeline is one line."""
HIGH_HEIGHT = 35
_TIMELINE_LINES = 6
_ENDING = re.compile(r"(\.pt)?(\.trace)?\.(json(\.gz)?|pickle)$")


def paint_trace(view: TraceView, size: Size, keys: Sequence[KeyHelp] = ()) -> list[Line]:
    """Paint the whole screen: exactly ``size.height`` lines, none wider than ``size.width`` cells."""
    paint = _paint_tiny if is_tiny(size) else _paint_full
    return fill_screen(paint(view, size, keys), size, ascii_only=view.ascii_only)


def page_of_trace(view: TraceView, size: Size, keys: Sequence[KeyHelp] = ()) -> tuple[int, int]:
    """Return the lines of a page and the greatest ``view.scroll``, for the page keys."""
    taken = 1 if is_tiny(size) else len(_paint_top(view, size)) + 2
    height = max(1, size.height - taken)
    text = text_over(view, size, keys)
    if text is None:
        return max(1, height - 1), 0
    return height, max(0, len(text) - height)


def _paint_full(view: TraceView, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    footer = paint_footer(view, keys, size.width)[: size.height // 2]
    view = look_under(view)
    top = _paint_top(view, size)
    height = size.height - len(top) - len(footer)
    body = _paint_body(view, Size(size.width, height), size, keys)[: max(0, height)]
    return [*top, *body, *([()] * (height - len(body))), *footer]


def _paint_top(view: TraceView, size: Size) -> list[Line]:
    lines = [_paint_header(view, size.width)]
    if view.overlay in (Overlay.HELP, Overlay.DETAILS, Overlay.STACK):
        return lines
    answer = view.subject.answer(view.file, view.tab)
    if not answer.texts or size.height >= LOW_HEIGHT:
        lines.append(justify(answer.items, [], size.width))
    lines.append(_paint_tabs(view, size.width))
    if not isinstance(view.timeline, NotApplicable):
        found = find_row(view)
        mark_ms = None if found is None else found.sheet.place_ms(found.row)
        lines += paint_timeline(view.timeline, size.width, _timeline_height(size), mark_ms)
    return lines


def _timeline_height(size: Size) -> int:
    if size.height < LOW_HEIGHT:
        return 1
    rows = _TIMELINE_LINES if size.height >= HIGH_HEIGHT else _TIMELINE_LINES - 1
    return rows + (2 if size.width >= 60 else 3 if size.height >= HIGH_HEIGHT else 1)


def _paint_header(view: TraceView, width: int) -> Line:
    head = view.subject.head(view.file)
    name, room = clean_text(os.path.basename(view.path)), max(12, width // 3)
    if count_cells(name) > room:  # the endings of all files are alike
        name = cut_front(_ENDING.sub("", name) or name, room)
    left = [head.left[0], Item(1, name, Ink.STRONG), *head.left[1:]]
    right = list(head.right)
    if len(view.subject.paths) > 1:
        right.insert(1, Item(0, f"{view.file + 1} of {len(view.subject.paths)}"))
    return justify([item for item in left if item.text], right, width)


def _paint_tabs(view: TraceView, width: int) -> Line:
    tabs = view.subject.tabs
    there = [view.subject.has_data(view.file, tab) for tab in tabs]
    long = [f"{_name_tab(tab)}{'' if full else ' n/a'}" for tab, full in zip(tabs, there, strict=True)]
    short = [_name_tab(tab) if tab is view.tab else str(tab.value) for tab in tabs]
    choices = [long, [_name_tab(tab) for tab in tabs]]
    names = next((one for one in choices if sum(len(name) + 3 for name in one) <= width), short)
    spans: list[Span] = [(" ", Ink.PLAIN)]
    for tab, name, full in zip(tabs, names, there, strict=True):
        ink = Ink.CURSOR if tab is view.tab else Ink.PLAIN if full else Ink.DIM
        spans += [(f" {name} ", ink), (" ", Ink.PLAIN)]
    return fit_line(tuple(spans), width)


def _name_tab(tab: AnyTab) -> str:
    return f"{tab.value} {tab.name.lower()}"


def text_over(view: TraceView, size: Size, keys: Sequence[KeyHelp] = ()) -> list[Line] | None:
    """Return the lines of a text that covers the tabs; None where rows are shown."""
    if view.overlay is Overlay.HELP:
        return paint_help(keys, size, view.subject.words)
    if view.overlay is Overlay.DETAILS:
        found = find_row(view)
        return [] if found is None else paint_pairs(list_facts(found.row), size.width)
    return None


def _paint_body(view: TraceView, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    if left := view.search.left:  # a part of the same at a greater width
        whole = replace(view, search=replace(view.search, left=0))
        wide, whole_size = Size(body.width + left, body.height), Size(size.width + left, size.height)
        return [crop_left(line, left, body.width) for line in _paint_body(whole, wide, whole_size, keys)]
    text = text_over(view, size, keys)
    height = max(0, body.height - 1)
    if text is not None:
        return paint_scrolled(view.overlay.value, text, view.scroll, body)
    laid = lay_blocks(list_blocks(view), view.cursor, body.width)
    details = []
    if view.filter_text and view.overlay is Overlay.NONE:
        details.append(Item(0, f"filter: {view.filter_text}", Ink.WARN))
    if laid.height > height:
        details.append(Item(1, f"{laid.place} of {laid.places}"))
    title = "stack" if view.overlay is Overlay.STACK else _name_tab(view.tab)
    rule = paint_rule(title, details, body.width, focused=True)
    return [rule, *laid.paint(height)]


def _paint_tiny(view: TraceView, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    head = view.subject.head(view.file)
    first = justify([Item(1, head.brief)], [Item(0, head.measure, Ink.STRONG)], size.width, 1)
    if view.message or view.typed:
        first = ((cut(f" {view.message or view.typed}", size.width), Ink.STRONG),)
    view = look_under(view)
    text = text_over(view, size, keys)
    height = max(0, size.height - 1)
    if text is not None:
        return [first, *scroll(text, view.scroll, height)[1]]
    answer = view.subject.answer(view.file, view.tab)
    if not answer.texts or view.overlay is Overlay.STACK:
        return [first, *lay_blocks(list_blocks(view), view.cursor, size.width).paint(height)]
    lines: list[Line] = [first, ((f" {answer.word}", answer.ink),)]
    if not isinstance(view.timeline, NotApplicable):
        lines += paint_timeline(view.timeline, size.width, 1)
    room = max(1, size.width - 2)
    words = [*wrap_words(answer.texts[0], room), *answer.texts[1:]]
    return lines + set_in(cut(text, room) for text in words)
