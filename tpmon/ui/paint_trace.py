"""Decide what the screen of a trace holds at a given size, and put it together.

From top to bottom: which trace, its verdict, the tabs, the timeline, the open tab, the keys. Where
there is little room the timeline goes to one line, then the tabs' names go, the verdict last.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tpmon.model.known import is_known
from tpmon.model.units import clean_text
from tpmon.model.verdict import EXIT_CODES
from tpmon.ui.cells import cut, cut_front, fit_line, wrap_words
from tpmon.ui.ink import to_ascii
from tpmon.ui.lines import Ink, KeyHelp, Line, Size, Span
from tpmon.ui.paint_keys import paint_key_line
from tpmon.ui.paint_sheet import lay_blocks
from tpmon.ui.paint_timeline import paint_timeline
from tpmon.ui.sheet import list_facts
from tpmon.ui.table import Item, justify, paint_pairs, paint_rule
from tpmon.ui.trace_sheets import find_row, has_data, list_blocks
from tpmon.ui.trace_view import Tab, TraceOverlay, TraceView
from tpmon.ui.trace_words import name_rank, name_verdict

TINY_WIDTH = 30
TINY_HEIGHT = 10
LOW_HEIGHT = 20
"""Below this height the timeline is one line."""
HIGH_HEIGHT = 35
WIDE_TABS = 66
"""From this width on every tab is named, not only the open one."""
_SUMMARY_LINES = 3
_TIMELINE_LINES = 6

TRACE_WORDS = (
    ("self", "without the operators right inside of it", "without what is inside"),
    ("occ.", "est. achieved occupancy as kineto wrote it; recomp.: computed anew", "occupancy as written"),
    ("est. SM", "est. SM efficiency: blocks per SM of what runs, at most 1", "blocks per SM, at most 1"),
    ("n/a", "the trace does not hold what this needs", "not in the trace"),
)
"""What the short words of this screen mean, in full and in brief."""


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
    typed = f"/{view.filter_text}_" if view.overlay is TraceOverlay.FILTER else ""
    footer = paint_key_line(view.message, typed, keys, size.width)[: size.height // 2]
    height = size.height - len(top) - len(footer)
    body = _paint_body(view, Size(size.width, height), size, keys)[: max(0, height)]
    return [*top, *body, *([()] * (height - len(body))), *footer]


def _paint_top(view: TraceView, size: Size) -> list[Line]:
    lines = [_paint_header(view, size.width)]
    if view.overlay in (TraceOverlay.HELP, TraceOverlay.DETAILS):
        return lines
    if view.tab is not Tab.OVERVIEW or size.height >= LOW_HEIGHT:
        lines.append(_paint_headline(view, size.width))
    lines.append(_paint_tabs(view, size.width))
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
    file = view.shown
    overview = file.overview
    cards = [card.name for card in overview.gpus if is_known(card.name)]
    noun = "step" if overview.steps == 1 else "steps"
    steps = f"{overview.steps} {noun} of {overview.step_ms:,.1f} ms" if overview.steps else "no steps marked"
    left = [
        Item(6, "tpmon trace", Ink.TITLE),
        Item(1, cut_front(clean_text(os.path.basename(file.path)), max(12, width // 3)), Ink.STRONG),
        Item(3, name_rank(file)),
        Item(5, cut(cards[0], 30) if cards else "CPU only"),
        Item(8, f"on {file.host}" if is_known(file.host) else ""),
        Item(9, file.versions),
    ]
    right = [Item(2, steps, Ink.STRONG)]
    if len(view.report.files) > 1:
        right.append(Item(4, f"{view.file + 1} of {len(view.report.files)}"))
    lost = file.lost
    if lost.events or lost.bytes or lost.broken_off:
        right.append(Item(2, "! not whole", Ink.WARN))
    return justify([item for item in left if item.text], right, width)


def verdict_ink(view: TraceView) -> tuple[str, Ink]:
    """Return the sign and the ink of the verdict: as the live one would bear them."""
    code = EXIT_CODES.get(view.shown.verdict.kind, 0)
    return ("! ", Ink.WARN) if code == 10 else ("!! ", Ink.BAD) if code == 12 else ("", Ink.GOOD)


def _paint_headline(view: TraceView, width: int) -> Line:
    verdict = view.shown.verdict
    sign, ink = verdict_ink(view)
    second = f"second: {verdict.second}" if is_known(verdict.second) else ""
    name = f"{sign}{name_verdict(verdict)}"
    pieces = [Item(0, name, ink), Item(1, f"{verdict.share_pct:.1f} % of the window", Ink.STRONG)]
    return justify([*pieces, *([Item(2, second, Ink.DIM)] if second else [])], [], width)


def _paint_tabs(view: TraceView, width: int) -> Line:
    spans: list[Span] = [(" ", Ink.PLAIN)]
    for tab in Tab:
        is_open = tab is view.tab
        name = f"{tab.value} {tab.name.lower()}" if is_open or width >= WIDE_TABS else str(tab.value)
        there = has_data(view, tab)
        if not there and width >= WIDE_TABS:
            name += " n/a"
        ink = Ink.CURSOR if is_open else Ink.PLAIN if there else Ink.DIM
        spans += [(f" {name} ", ink), (" ", Ink.PLAIN)]
    return fit_line(tuple(spans), width)


def _text_over(view: TraceView, size: Size, keys: Sequence[KeyHelp]) -> list[Line] | None:
    if view.overlay is TraceOverlay.HELP:
        from tpmon.ui.paint_overlays import paint_help  # noqa: PLC0415  # the first picture does without it

        return paint_help(keys, size, TRACE_WORDS)
    if view.overlay is TraceOverlay.DETAILS:
        found = find_row(view)
        return [] if found is None else paint_pairs(list_facts(found.row), size.width)
    return None


def _paint_body(view: TraceView, body: Size, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    text = _text_over(view, size, keys)
    height = max(0, body.height - 1)
    if text is not None:
        first = max(0, min(view.scroll, len(text) - height))
        shown = text[first : first + height]
        title = "help" if view.overlay is TraceOverlay.HELP else "details"
        more = f"lines {first + 1} to {first + len(shown)} of {len(text)}"
        details = [Item(0, more, Ink.WARN)] if len(text) > height else []
        return [paint_rule(title, details, body.width, focused=True), *shown]
    laid = lay_blocks(list_blocks(view), view.cursor, body.width)
    details = []
    if view.filter_text and view.overlay is not TraceOverlay.FILTER:
        details.append(Item(0, f"filter: {view.filter_text}", Ink.WARN))
    if laid.height > height:
        details.append(Item(1, f"{laid.place} of {laid.places}"))
    rule = paint_rule(f"{view.tab.value} {view.tab.name.lower()}", details, body.width, focused=True)
    return [rule, *laid.paint(height)]


def _paint_tiny(view: TraceView, size: Size, keys: Sequence[KeyHelp]) -> list[Line]:
    file = view.shown
    steps = f"{file.overview.step_ms:,.1f} ms" if file.overview.steps else "no steps"
    rank = f"rank {file.rank}" if is_known(file.rank) else "trace"
    first = justify([Item(1, rank)], [Item(0, steps, Ink.STRONG)], size.width, 1)
    if view.message or view.overlay is TraceOverlay.FILTER:
        first = ((cut(f" {view.message or '/' + view.filter_text + '_'}", size.width), Ink.STRONG),)
    text = _text_over(view, size, keys)
    height = max(0, size.height - 1)
    if text is not None:
        begin = max(0, min(view.scroll, len(text) - height))
        return [first, *text[begin : begin + height]]
    if view.tab is not Tab.OVERVIEW:
        return [first, *lay_blocks(list_blocks(view), view.cursor, size.width).paint(height)]
    sign, ink = verdict_ink(view)
    verdict = file.verdict
    lines: list[Line] = [first, ((f" {sign}{verdict.kind.value.upper()}", ink),)]
    lines += paint_timeline(view.timeline, size.width, 1)
    room = max(1, size.width - 2)
    words = [*wrap_words(verdict.summary, room), *(f"Try: {one}" for one in verdict.advice[:1])]
    return lines + [((f" {cut(text, room)}", Ink.PLAIN),) for text in words]
