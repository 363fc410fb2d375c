"""Decide what the screen of a trace holds at a given size, and put it together.

From top to bottom: which file, its verdict, the tabs, the timeline, the open tab, the keys. Where
there is little room the timeline goes to one line, then the tabs' names go, the verdict last. What the
file is of and comes to, its Subject says; a file without a timeline leaves its lines to the tab.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tpmon.model.known import NotApplicable
from tpmon.model.units import clean_text
from tpmon.ui.kit.cells import Ink, KeyHelp, Line, Size, Span, cut, cut_front, fit_line, width_of, wrap_words
from tpmon.ui.kit.ink import to_ascii
from tpmon.ui.kit.keys import Overlay, paint_footer
from tpmon.ui.kit.sheet import lay_blocks, list_facts
from tpmon.ui.kit.table import Item, justify, paint_pairs, paint_rule
from tpmon.ui.traces.state import AnyTab, TraceView
from tpmon.ui.traces.tabs import find_row, list_blocks
from tpmon.ui.traces.timeline import paint_timeline

TINY_WIDTH = 30
TINY_HEIGHT = 10
LOW_HEIGHT = 20
"""Below this height the timeline is one line."""
HIGH_HEIGHT = 35
_TIMELINE_LINES = 6
_ENDING = re.compile(r"(\.pt)?(\.trace)?\.(json(\.gz)?|pickle)$")


def paint_trace(view: TraceView, size: Size, keys: Sequence[KeyHelp] = ()) -> list[Line]:
    """Paint the whole screen: exactly ``size.height`` lines, none wider than ``size.width`` cells."""
    tiny = size.width < TINY_WIDTH or size.height < TINY_HEIGHT
    lines = _paint_tiny(view, size, keys) if tiny else _paint_full(view, size, keys)
    lines = [fit_line(line, size.width) for line in lines[: size.height]]
    if view.ascii_only:
        lines = [to_ascii(line) for line in lines]
    return lines + [()] * (size.height - len(lines))


def page_of_trace(view: TraceView, size: Size, keys: Sequence[KeyHelp] = ()) -> tuple[int, int]:
    """Return the lines of a page and the greatest ``view.scroll``, for the page keys."""
    tiny = size.width < TINY_WIDTH or size.height < TINY_HEIGHT
    taken = 1 if tiny else len(_paint_top(view, size)) + 2
    height = max(1, size.height - taken)
    text = _text_over(view, size, keys)
    if text is None:
        return max(1, height - 1), 0
    return height, max(0, len(text) - height)


def _paint_full(view: TraceView, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    top = _paint_top(view, size)
    footer = paint_footer(view, keys, size.width)[: size.height // 2]
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
        lines += paint_timeline(view.timeline, size.width, _timeline_height(size), _find_mark(view))
    return lines


def _timeline_height(size: Size) -> int:
    if size.height < LOW_HEIGHT:
        return 1
    rows = _TIMELINE_LINES if size.height >= HIGH_HEIGHT else _TIMELINE_LINES - 1
    return rows + (2 if size.width >= 60 else 3 if size.height >= HIGH_HEIGHT else 1)


def _find_mark(view: TraceView) -> tuple[float, float] | None:
    found = find_row(view)
    return None if found is None else found.sheet.place_ms(found.row)


def _paint_header(view: TraceView, width: int) -> Line:
    head = view.subject.head(view.file)
    name, room = clean_text(os.path.basename(view.path)), max(12, width // 3)
    if width_of(name) > room:  # what every file ends in tells none from the other
        name = cut_front(_ENDING.sub("", name) or name, room)
    left = [head.left[0], Item(1, name, Ink.STRONG), *head.left[1:]]
    right = list(head.right)
    if len(view.subject.paths) > 1:
        right.insert(1, Item(0, f"{view.file + 1} of {len(view.subject.paths)}"))
    return justify([item for item in left if item.text], right, width)


def _paint_tabs(view: TraceView, width: int) -> Line:
    """Paint the tabs, all of them named where there is room, else the open one alone."""
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


def _text_over(view: TraceView, size: Size, keys: Sequence[KeyHelp]) -> list[Line] | None:
    if view.overlay is Overlay.HELP:
        from tpmon.ui.kit.keys import paint_help  # noqa: PLC0415  # the first picture does without it

        return paint_help(keys, size, view.subject.words)
    if view.overlay is Overlay.DETAILS:
        found = find_row(view)
        return [] if found is None else paint_pairs(list_facts(found.row), size.width)
    return None


def _paint_body(view: TraceView, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    text = _text_over(view, size, keys)
    height = max(0, body.height - 1)
    if text is not None:
        first = max(0, min(view.scroll, len(text) - height))
        shown = text[first : first + height]
        title = "help" if view.overlay is Overlay.HELP else "details"
        more = f"lines {first + 1} to {first + len(shown)} of {len(text)}"
        details = [Item(0, more, Ink.WARN)] if len(text) > height else []
        return [paint_rule(title, details, body.width, focused=True), *shown]
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
    text = _text_over(view, size, keys)
    height = max(0, size.height - 1)
    if text is not None:
        begin = max(0, min(view.scroll, len(text) - height))
        return [first, *text[begin : begin + height]]
    answer = view.subject.answer(view.file, view.tab)
    if not answer.texts or view.overlay is Overlay.STACK:
        return [first, *lay_blocks(list_blocks(view), view.cursor, size.width).paint(height)]
    lines: list[Line] = [first, ((f" {answer.word}", answer.ink),)]
    if not isinstance(view.timeline, NotApplicable):
        lines += paint_timeline(view.timeline, size.width, 1)
    room = max(1, size.width - 2)
    words = [*wrap_words(answer.texts[0], room), *answer.texts[1:]]
    return lines + [((f" {cut(text, room)}", Ink.PLAIN),) for text in words]
