"""Find text in whatever is shown, go to a place by name or number, scroll sideways. Pure.

Nothing here knows panes: a screen says what its lines are and how to show one of them (``Places``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Generic

from tpmon.model.frozen import dataclass
from tpmon.model.units import clean_text
from tpmon.ui.kit.keys import (
    FILTER_LIMIT,
    LINES,
    NOT_TYPING,
    Effect,
    Overlay,
    ScreenState,
    Search,
    Situation,
    View,
    change,
)
from tpmon.view.layout import Ink, Line, Span, fit_line, line_width

SIDE_STEP = 16
"""Columns of one step to the side."""
MOST_COLUMNS = 240
"""The widest picture: every column of a table has room there."""


@dataclass(frozen=True, slots=True)
class Places(Generic[View]):
    """Hold the lines or rows to find text in, the present one, and how to show one by its number."""

    texts: Sequence[str]
    at: int
    show: Callable[[int], View]


def write_text(line: Line) -> str:
    """Return the text of a line without its inks."""
    return "".join(text for text, _ink in line)


# Lines that are typed

FINDING: Situation[ScreenState] = Situation(
    lambda view: view.overlay is Overlay.FIND, "while a text is typed"
)
FOUND_TYPED: Situation[ScreenState] = Situation(
    lambda view: FINDING.holds(view) and view.search.text != "", "while a text is typed"
)
GOING: Situation[ScreenState] = Situation(lambda view: view.overlay is Overlay.GO, "while a place is typed")
GO_TYPED: Situation[ScreenState] = Situation(
    lambda view: GOING.holds(view) and view.search.goal != "", "while a place is typed"
)
SEARCHED: Situation[ScreenState] = Situation(
    lambda view: is_searched(view) and NOT_TYPING.holds(view), "while a text is searched for"
)
MARKED: Situation[ScreenState] = Situation(
    lambda view: view.is_bare and view.search.text != "", "while a text is searched for"
)


def is_searched(view: ScreenState) -> bool:
    """Tell whether there is a text to go to the next match of: that of a filter counts, too."""
    return view.overlay is not Overlay.HELP and bool(view.search.text or (view.is_bare and view.filter_text))


def open_line(view: View, overlay: Overlay) -> View:
    """Open a line to type in, over what is shown."""
    return replace(view, overlay=overlay, search=Search(under=view.overlay, left=view.search.left))


def look_under(view: View) -> View:
    """Return what is in sight while a line is typed."""
    return replace(view, overlay=view.search.under) if view.overlay in LINES else view


def type_line(view: View, text: str) -> View:
    """Add typed or pasted text to the line, its first line only."""
    line = clean_text(next(iter(text.splitlines()), ""))
    search = view.search
    if view.overlay is Overlay.FIND:
        return replace(view, search=replace(search, text=(search.text + line)[:FILTER_LIMIT]))
    return replace(view, search=replace(search, goal=(search.goal + line)[:FILTER_LIMIT]))


def erase_last(view: View) -> View:
    """Remove the last character of the line."""
    search = view.search
    if view.overlay is Overlay.FIND:
        return replace(view, search=replace(search, text=search.text[:-1]))
    return replace(view, search=replace(search, goal=search.goal[:-1]))


CLEAR_SEARCH = change(search=Search())
FINDS: Mapping[str, tuple[Effect, Situation[ScreenState]]] = {
    "find-next": (Effect.FIND_NEXT, SEARCHED),
    "find-previous": (Effect.FIND_PREVIOUS, SEARCHED),
    "find-first": (Effect.FIND, FINDING),
    "go-there": (Effect.GO, GOING),
}
"""The keys of every screen that finds text and goes to places."""

# Matches


def find_text(view: View, places: Places[View], effect: Effect) -> View:
    """Show the first match from the present line on, or the next or previous one, round and round."""
    text = view.search.text or view.filter_text.removeprefix("!")
    # All rows that an inverted filter leaves are without its text, and what was asked for.
    needle = "" if not view.search.text and view.filter_text.startswith("!") else text.casefold()
    found = [number for number, one in enumerate(places.texts) if needle in one.casefold()]
    if not text:
        return view
    if not found:
        return replace(view, message=f"not found here: {text}")
    if effect is Effect.FIND_PREVIOUS:
        chosen = next((number for number in reversed(found) if number < places.at), found[-1])
    else:
        first = places.at + (effect is Effect.FIND_NEXT)
        chosen = next((number for number in found if number >= first), found[0])
    shown = places.show(chosen)
    message = f"match {found.index(chosen) + 1} of {len(found)}"
    return replace(shown, search=replace(view.search, found=chosen), message=message)


def mark_found(lines: Sequence[Line], view: ScreenState) -> Sequence[Line]:
    """Reverse every match in painted lines, but in the line that is typed; in a reversed row make it bold."""
    if not view.search.text:
        return lines
    pattern, typed = re.compile(re.escape(view.search.text), re.IGNORECASE), view.typed
    return [
        line if typed and typed in write_text(line) else tuple(_mark_line(line, pattern)) for line in lines
    ]


def _mark_line(line: Line, pattern: re.Pattern[str]) -> Iterator[Span]:
    edges = [edge for found in pattern.finditer(write_text(line)) for edge in found.span()]
    at = 0
    for text, ink in line:
        cuts = [0, *(edge - at for edge in edges if 0 < edge - at < len(text)), len(text)]
        for first, last in pairwise(cuts):
            inside = sum(edge <= at + first for edge in edges) % 2 == 1
            marked = Ink.STRONG if ink is Ink.CURSOR else Ink.CURSOR
            if first < last:
                yield text[first:last], marked if inside else ink
        at += len(text)


# Sideways


def action_sideways(view: View, step: int) -> View:
    """Show a part further right or left of what is wider than the screen."""
    left = max(0, min(view.search.left + step * SIDE_STEP, MOST_COLUMNS))
    said = f"from column {left + 1}" if left else ""
    return replace(view, search=replace(view.search, left=left), message=said)


def crop_left(line: Line, left: int, width: int) -> Line:
    """Return the part of a line from column ``left`` on; a character of two cells is never halved."""
    rest: list[Span] = []
    for text, ink in line:
        kept = text
        while kept and left > 0:
            left -= line_width(((kept[0], ink),))
            kept = kept[1:]
        if kept:
            rest.append((" " * -min(left, 0) + kept, ink))
            left = max(left, 0)
    return fit_line(tuple(rest), width)


def name_goals(goals: Mapping[str, object]) -> str:
    """Say where one can go."""
    return f"{', '.join(goals)}, or q to quit"


def pick_goal(goals: Mapping[str, object], word: str) -> str:
    """Return the one place whose name begins with a word, "" where none or several do."""
    if word in goals:
        return word
    found = [name for name in goals if word and name.startswith(word)]
    return found[0] if len(found) == 1 else ""
