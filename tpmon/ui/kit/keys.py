"""The keys of any screen: the rows of its table, when they work, what all screens have, footer and help.

The table is a text file beside ``keys.py`` of the screen. It feeds the dispatch (``Shell.press``), the
footer, the help overlay and docs/keys.md. Knows neither textual nor what is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.units import clean_text, count_cells
from tpmon.ui.kit.ink import line_to_ascii
from tpmon.view.layout import (
    Ink,
    Item,
    Line,
    Size,
    Span,
    cut,
    fit_line,
    lay_text,
    pad,
    pad_line,
    paint_rule,
    wrap_words,
)

FILTER_LIMIT = 40


class Move(Enum):
    """Name a step through rows or lines by the id of its key; a page depends on the size of the screen."""

    UP = "up"
    DOWN = "down"
    PAGE_UP = "page-up"
    PAGE_DOWN = "page-down"
    FIRST = "first"
    LAST = "last"


class Effect(Enum):
    """Name what a key does beyond changing the picture, for the app to carry out."""

    QUIT = "quit"
    SUSPEND = "suspend"
    REDRAW = "redraw"
    COPY_TRY = "copy try"
    COPY_FACTS = "copy facts"
    COPY_SCREEN = "copy screen"
    COPY_RESULT = "copy result"
    EDIT = "edit"
    OPEN_TRACE = "open trace"
    NEXT = "next"
    """End this screen for the next of several."""
    ATTACH = "attach"
    BACK = "back to the list"
    FIND = "find"
    FIND_NEXT = "find next"
    FIND_PREVIOUS = "find previous"
    GO = "go"


MATCHES = (Effect.FIND_NEXT, Effect.FIND_PREVIOUS)
"""Their keys have this meaning only while a text is searched for, most of them another one before."""


def moved(place: int, move: Move, page: int, last: int) -> int:
    """Return the place after a step from ``place``, 0 to ``last``."""
    target = {
        Move.UP: place - 1,
        Move.DOWN: place + 1,
        Move.PAGE_UP: place - page,
        Move.PAGE_DOWN: place + page,
        Move.FIRST: 0,
        Move.LAST: last,
    }[move]
    return max(0, min(target, last))


def next_of(all_: Sequence[Any], one: Any, step: int = 1) -> Any:
    """Return the item ``step`` after ``one``, cyclically."""
    return all_[(all_.index(one) + step) % len(all_)]


class Overlay(Enum):
    """Name what may cover the panes or tabs of a screen."""

    NONE = "none"
    HELP = "help"
    FILTER = "filter"
    """The filter line is being typed."""
    TIME = "time"
    """A time of a recording is being typed; what it covers stays in sight."""
    FIND = "find"
    """A text to find is being typed, over what stays in sight."""
    GO = "go"
    """A place to go to is being typed, over what stays in sight."""
    DETAILS = "details"
    """Everything about the row under the cursor."""
    STACK = "stack"
    """The frames of the row under the cursor, with a cursor of their own."""
    ENVIRONMENT = "environment"
    VERDICT = "verdict"
    """The basis of the verdict in full."""
    STACKS = "stacks"
    """The stacks of all threads of the job, in groups."""
    SAMPLE = "sample"
    """The hot functions of some seconds."""
    CAPTURE = "capture"
    """The cost, the progress and the result of a capture."""


LINES = (Overlay.FIND, Overlay.GO)
"""The lines that are typed over anything; ``Search.under`` has what that is."""
OVERVIEWS = (Overlay.STACKS, Overlay.SAMPLE, Overlay.CAPTURE)
"""Help and verdict cover these, and go back to them."""


@dataclass(frozen=True, slots=True)
class Search:
    """Hold what is searched for, and which part of a wide picture is shown."""

    text: str = ""
    """What is found and marked, also while it is typed; "" for nothing."""
    found: int = -1
    """The line that was found last, -1 for none."""
    goal: str = ""
    """The place to go to, while it is typed."""
    under: Overlay = Overlay.NONE
    """What the line that is typed covers."""
    left: int = 0
    """The first column shown of what is wider than the screen."""


@dataclass(frozen=True, slots=True)
class ScreenState:
    """Hold what keys change on any screen."""

    ascii_only: bool
    overlay: Overlay
    behind: Overlay
    """What the help or the verdict covers, to go back there."""
    scroll: int
    """The first line shown of what covers the screen."""
    sort_reversed: bool
    filter_text: str
    message: str
    """The answer to the last key in a line, such as where a copy went; "" for none."""
    search: Search

    @property
    def typed(self) -> str:
        """Return the line that is being typed, else ""."""
        if self.overlay is Overlay.FIND:
            return f"/{self.search.text}_"
        if self.overlay is Overlay.GO:
            return f":{self.search.goal}_"
        return f"/{self.filter_text}_" if self.overlay is Overlay.FILTER else ""

    @property
    def is_bare(self) -> bool:
        """Tell whether nothing covers the panes or tabs."""
        return self.overlay is Overlay.NONE


@dataclass(frozen=True, slots=True)
class RowsState(ScreenState):
    """Hold what the picture of rows that come by themselves depends on; ``now_ns`` is the monotonic clock."""

    now: datetime
    now_ns: int


View = TypeVar("View", bound=ScreenState)
View_contra = TypeVar("View_contra", bound=ScreenState, contravariant=True)
Deed_co = TypeVar("Deed_co", covariant=True)


def action_overlay(view: View, overlay: Overlay) -> View:
    """Open an overlay, or close it and show again what help and verdict covered."""
    if view.overlay is overlay:
        return action_close(view)
    below = view.behind if view.overlay not in OVERVIEWS else view.overlay
    behind = below if below in OVERVIEWS and overlay not in OVERVIEWS else Overlay.NONE
    return replace(view, overlay=overlay, behind=behind, scroll=0)


def action_close(view: View) -> View:
    """Close what covers the screen; a line that is typed loses its text."""
    if view.overlay in LINES:
        return replace(view, overlay=view.search.under, search=Search(left=view.search.left))
    text = "" if view.overlay is Overlay.FILTER else view.filter_text
    return replace(view, overlay=view.behind, behind=Overlay.NONE, filter_text=text, scroll=0)


def action_reverse(view: View) -> View:
    """Reverse the order of the rows."""
    return replace(view, sort_reversed=not view.sort_reversed)


def change(**fields: Any) -> Callable[[Any], Any]:
    """Return a function that gives fields of a view other values."""
    return lambda view: replace(view, **fields)


KEEP_FILTER = change(overlay=Overlay.NONE)
CLEAR_FILTER = change(filter_text="")


def action_filter_type(view: View, text: str) -> View:
    """Add typed or pasted text to the filter, its first line only."""
    line = text.splitlines()[0] if text.splitlines() else ""
    return replace(view, filter_text=(view.filter_text + clean_text(line))[:FILTER_LIMIT])


def action_filter_erase(view: View) -> View:
    """Remove the last character of the filter."""
    return replace(view, filter_text=view.filter_text[:-1])


_SENT = {
    "+": ("+", "="),
    "PgDn": ("pagedown",),
    "PgUp": ("pageup",),
    "backspace": ("backspace", "ctrl+h"),
    "esc": ("escape",),
}
"""The names of keys in terminal events, where they are not the sign in lower case."""


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """Hold one key that works now; ``footer`` is its word there, ``priority`` orders them, 0 keeps it out."""

    keys: tuple[str, ...]
    """For a person: "q", "space", "PgUp"."""
    help: str
    section: str
    footer: str
    priority: int
    brief: str = ""
    """The help for little room; neighbours with the same words share a line."""


@dataclass(frozen=True, slots=True)
class Situation(Generic[View_contra]):
    """Hold a test of the view, and its words."""

    holds: Callable[[View_contra], bool]
    words: str


@dataclass(frozen=True, slots=True)
class ByDigit(Generic[View]):
    """Do something with the number of the pressed digit."""

    act: Callable[[View, int], View]


@dataclass(frozen=True, slots=True)
class Key(Generic[View, Deed_co]):
    """Hold one row of the table; ``footer`` is its word in the footer and the priority there.

    ``signs`` are the keys for a person, with a space between: "q", "PgDn", "j down", "1-5".
    """

    section: str
    id: str
    signs: str
    help: str
    deed: Deed_co
    when: Situation[View]
    footer: tuple[str, int] = ("", 0)
    brief: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the signs, one by one."""
        return tuple(self.signs.split())

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names in terminal events."""
        return tuple(name for sign in self.shown for name in _list_names(sign))


def _list_names(sign: str) -> tuple[str, ...]:
    first, _, last = sign.partition("-")
    if first.isdigit() and last.isdigit():
        return tuple(str(digit) for digit in range(int(first), int(last) + 1))
    return _SENT.get(sign) or (sign if len(sign) == 1 else sign.replace("-", "+").lower(),)


EVER: Situation[ScreenState] = Situation(lambda _view: True, "always")
NOT_TYPING: Situation[ScreenState] = Situation(lambda view: view.typed == "", "always")
TYPING: Situation[ScreenState] = Situation(
    lambda view: view.overlay is Overlay.FILTER, "while the filter is typed"
)
TYPED: Situation[ScreenState] = Situation(
    lambda view: TYPING.holds(view) and view.filter_text != "", "while the filter is typed"
)
STOPS: Mapping[str, tuple[Effect, Situation[ScreenState]]] = {
    "quit": (Effect.QUIT, NOT_TYPING),
    "interrupt": (Effect.QUIT, EVER),
    "suspend": (Effect.SUSPEND, EVER),
    "redraw": (Effect.REDRAW, EVER),
    "copy-screen": (Effect.COPY_SCREEN, NOT_TYPING),
}
"""The keys that every screen has."""


ROWS: Mapping[str, tuple[Any, Situation[Any]]] = {
    **STOPS,
    **{move.value: (move, NOT_TYPING) for move in Move},
    "help": (partial(action_overlay, overlay=Overlay.HELP), NOT_TYPING),
    "filter-keep": (KEEP_FILTER, TYPING),
    "filter-erase": (action_filter_erase, TYPED),
}
"""The keys that every screen of rows has."""


def read_keys(
    page: str, uses: Mapping[str, tuple[Deed_co, Situation[View]]]
) -> tuple[Key[View, Deed_co], ...]:
    """Read the rows of a table from the file ``page``; ``uses`` has what each does, and when."""
    with open(page, encoding="utf-8") as file:
        lines = file.read().splitlines()
    keys, section = [], ""
    for line in lines:
        if line.startswith("# "):
            section = line[2:]
        elif " | " in line:
            name, signs, footer, words, *brief = (cell.strip() for cell in line.split(" | "))
            word, _, priority = footer.rpartition(" ")
            keys.append(
                Key(section, name, signs, words, *uses[name], (word, int(priority or 0)), "".join(brief))
            )
    return tuple(keys)


def find_in(table: Sequence[Key[View, Deed_co]], name: str, view: View) -> Key[View, Deed_co] | None:
    """Return the row that the pressed key means now, if any."""
    return next((key for key in table if name in key.keys and key.when.holds(view)), None)


def say_why_not(table: Sequence[Key[View, Deed_co]], name: str, reason: str) -> str:
    """Say why a key did nothing: the ``reason``, else where it works; "" for keys without a letter."""
    if len(name) != 1 or not name.isprintable():
        return ""
    rows = [key for key in table if name in key.keys]
    rows = [key for key in rows if key.deed not in MATCHES] or rows
    where = tuple(dict.fromkeys(key.when.words for key in rows))
    if not where:
        return f"{'space' if name == ' ' else name} has no meaning, ? shows the keys"
    if reason:
        return reason
    return f"{name} works {where[0]}" if len(where) == 1 else f"{name} does nothing here, ? shows what does"


def list_help(table: Sequence[Key[View, Deed_co]], view: View, below: View) -> list[KeyHelp]:
    """Return the keys that work now and, not in the footer, those ``below`` the help once it is closed."""
    shown = []
    for key in table:
        now = key.when.holds(view)
        if now or key.when.holds(below):
            footer, priority = key.footer
            shown.append(KeyHelp(key.shown, key.help, key.section, footer, priority if now else 0, key.brief))
    return shown


def list_shown(table: Sequence[Key[View, Deed_co]], view: View, prefix: str) -> tuple[KeyHelp, ...]:
    """Return the keys that work now, under an open help also those below it, sections without ``prefix``."""
    below = replace(view, overlay=view.behind) if view.overlay is Overlay.HELP else view
    return tuple(
        replace(key, section=key.section.removeprefix(prefix).capitalize())
        for key in list_help(table, view, below)
    )


def paint_footer(view: ScreenState, keys: Sequence[KeyHelp], width: int) -> list[Line]:
    """Paint the line being typed, else the answer to the last key in all its lines, and the keys."""
    message, head = view.message, [Item(0, view.typed, Ink.STRONG)] if view.typed else []
    said = lay_text(message, width, Ink.STRONG)
    if not head and count_cells(message) > width - 2:
        return said
    text = cut(message, width - 2)
    answer = [Item(0, text, Ink.STRONG)] if text else []
    offered = sorted((key for key in keys if key.priority > 0), key=lambda key: key.priority)
    gap = 3 if width >= 100 else 2
    if head and count_cells(view.typed) + count_cells(message) + 2 * gap > width:
        return [*said, _offer_keys(offered, head, [], width, gap)]
    return [_offer_keys(offered, head, answer, width, gap)]


KEYS_ALONE_WIDTH = 60
"""Below this width the footer has signs without words."""


def _offer_keys(
    offered: Sequence[KeyHelp], head: Sequence[Item], answer: Sequence[Item], width: int, gap: int
) -> Line:
    """Lay the keys that fit between the line typed and the answer, each sign in an ink of its own."""
    line: list[Span] = [(" ", Ink.PLAIN), *((item.text, item.ink) for item in head)]
    room = width - 1 - sum(count_cells(item.text) + gap for item in answer)
    used = sum(count_cells(text) for text, _ in line)
    for key in offered:
        word = f" {key.footer}" if width >= KEYS_ALONE_WIDTH else ""
        before = " " * gap if used > 1 else ""
        cells = count_cells(before + key.keys[0] + word)
        if used + cells > room:
            continue
        line += [(before, Ink.PLAIN), (key.keys[0], Ink.CURSOR), (word, Ink.PLAIN)]
        used += cells
    blanks = width - 1 - used - sum(count_cells(item.text) for item in answer)
    line += [(" " * max(1, blanks), Ink.PLAIN), *((item.text, item.ink) for item in answer)]
    return fit_line(tuple(line), width)


TINY_WIDTH = 30
TINY_HEIGHT = 10


def is_tiny(size: Size) -> bool:
    """Tell whether a screen has room for only a few short lines."""
    return size.width < TINY_WIDTH or size.height < TINY_HEIGHT


def fill_screen(lines: Sequence[Line], size: Size, *, ascii_only: bool) -> list[Line]:
    """Return exactly ``size.height`` lines, none wider than ``size.width`` cells."""
    fitted = [fit_line(line, size.width) for line in lines[: size.height]]
    if ascii_only:
        fitted = [line_to_ascii(line) for line in fitted]
    return fitted + [()] * (size.height - len(fitted))


def frame_rows(
    view: ScreenState,
    size: Size,
    keys: Sequence[KeyHelp],
    paint_head: Callable[[int], Line],
    paint_body: Callable[[Size], Sequence[Line]],
) -> list[Line]:
    """Paint a screen of rows, ``size.height`` lines: a head, what is between, and the footer."""
    tiny = is_tiny(size) and not (view.message or view.typed)
    footer = ([] if tiny else paint_footer(view, keys, size.width))[: max(1, size.height // 2)]
    body = Size(size.width, max(0, size.height - 1 - len(footer)))
    lines = paint_body(body)[: body.height]
    painted = [paint_head(size.width), *lines, *([()] * (body.height - len(lines))), *footer]
    return fill_screen(painted, size, ascii_only=view.ascii_only)


def scroll(text: Sequence[Line], first: int, height: int) -> tuple[int, Sequence[Line]]:
    """Return the first line shown and the lines from there: ``first``, or less where the end fits."""
    height = max(0, height)
    first = max(0, min(first, len(text) - height))
    return first, text[first : first + height]


def paint_scrolled(title: str, text: Sequence[Line], begin: int, body: Size) -> list[Line]:
    """Paint what covers the screen: a rule, and as many lines as fit."""
    first, shown = scroll(text, begin, body.height - 1)
    more = f"lines {first + 1} to {first + len(shown)} of {len(text)}"
    details = [Item(0, more, Ink.WARN)] if len(text) > len(shown) else []
    return [paint_rule(title, details, body.width, focused=True), *shown]


COLUMN_WIDTH = 40
AROUND_HELP = 3
"""Lines of the screen around the overlay: header, rule and footer."""

Entries = list[tuple[str, str]]
Words = Sequence[tuple[str, str, str]]


def paint_help(keys: Sequence[KeyHelp], size: Size, words: Words) -> list[Line]:
    """Paint the keys that work now by section, in columns; in brief where there is little room."""
    columns = max(1, size.width // COLUMN_WIDTH)
    lines = _lay(_list_sections(keys, words, brief=False), columns, size.width)
    if len(lines) <= size.height - AROUND_HELP:
        return lines
    return _lay(_list_sections(keys, words, brief=True), columns, size.width)


def _list_sections(keys: Sequence[KeyHelp], short_words: Words, *, brief: bool) -> dict[str, Entries]:
    sections: dict[str, Entries] = {}
    for key in keys:
        entries = sections.setdefault(key.section, [])
        words = (key.brief if brief else "") or key.help
        if entries and entries[-1][1] == words:
            label = entries[-1][0]
            entries[-1] = (label if key.keys[0] in label.split() else f"{label} {key.keys[0]}", words)
        else:
            entries.append((" ".join(key.keys[:1] if brief else key.keys), words))
    sections["Short words"] = [(word, short if brief else whole) for word, whole, short in short_words]
    return sections


def _lay(sections: dict[str, Entries], columns: int, width: int) -> list[Line]:
    column = width // columns
    blocks = [_paint_section(section, entries, column) for section, entries in sections.items()]
    if columns == 1:
        return [line for block in blocks for line in block]
    share = -(-sum(len(block) for block in blocks) // columns)
    piles = _pile(blocks, share)
    while len(piles) > columns:
        share += 1
        piles = _pile(blocks, share)
    lines = []
    for row in range(max(len(pile) for pile in piles)):
        cells: list[Span] = []
        for pile in piles:
            cells += pad_line(pile[row] if row < len(pile) else (), column)
        lines.append(fit_line(tuple(cells), width))
    return lines


def _pile(blocks: Sequence[Sequence[Line]], height: int) -> list[list[Line]]:
    """Put blocks below each other, in columns of at most ``height`` lines."""
    piles: list[list[Line]] = [[]]
    for block in blocks:
        if piles[-1] and len(piles[-1]) + len(block) > height:
            piles.append([])
        piles[-1] += block
    return piles


def _paint_section(section: str, entries: Entries, width: int) -> list[Line]:
    lines: list[Line] = [fit_line(((f" {section}", Ink.TITLE),), width)]
    indent = min(11, max(8, width // 4))
    for label, words in entries:
        start = max(indent, count_cells(label)) + 3
        texts = wrap_words(words, max(8, width - start)) or [""]
        head = (f"  {pad(label, start - 2)}", Ink.STRONG)
        lines.append(fit_line((head, (texts[0], Ink.PLAIN)), width))
        lines += [fit_line(((" " * start + text, Ink.PLAIN),), width) for text in texts[1:]]
    return lines
