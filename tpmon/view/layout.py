"""Cut, pad, wrap and align text by terminal cells, and lay rows out in columns. Pure.

Columns that do not fit are dropped, least needed first, on a screen and in text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar, Union

from tpmon.model.figures import Bad
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, NotApplicable, is_known
from tpmon.model.units import LINE_WIDTH, count_cells, format_bytes

WIDTH = LINE_WIDTH
"""Columns of a line of a text report."""
LABEL_WIDTH = 9


class Ink(Enum):
    """Name the meaning of a piece of text; ``ink.py`` gives it a terminal style."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    TITLE = "title"
    GOOD = "good"
    NOTICE = "notice"
    WARN = "warn"
    BAD = "bad"
    CURSOR = "cursor"
    BADGE = "badge"
    BADGE_GOOD = "badge good"
    BADGE_NOTICE = "badge notice"
    BADGE_WARN = "badge warn"
    BADGE_BAD = "badge bad"


Span = tuple[str, Ink]
Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """Hold a screen size in cells."""

    width: int
    height: int


CUT_MARK = "…"


def cut(text: str, width: int) -> str:
    """Shorten ``text`` to at most ``width`` cells; a cut text ends in a mark."""
    if count_cells(text) <= width:
        return text
    if width <= 0:
        return ""
    return _head_of(text, width - 1) + CUT_MARK


def cut_front(text: str, width: int) -> str:
    """Shorten ``text`` from its front: the end of a path tells more."""
    if count_cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept = text[-(width - 1) :] if width > 1 else ""
    while count_cells(kept) > width - 1:
        kept = kept[1:]
    return CUT_MARK + kept


def pad(text: str, width: int) -> str:
    """Make ``text`` exactly ``width`` cells wide, text at the left."""
    left = width - count_cells(text)
    if left < 0:
        text = cut(text, width)
        left = width - count_cells(text)
    return text + " " * left


def pad_left(text: str, width: int) -> str:
    """Make ``text`` exactly ``width`` cells wide, text at the right, for numbers."""
    left = width - count_cells(text)
    if left < 0:
        text = cut(text, width)
        left = width - count_cells(text)
    return " " * left + text


def line_width(line: Line) -> int:
    """Count the cells that a line takes."""
    return sum(count_cells(text) for text, _ in line)


def text_of(line: Line) -> str:
    """Return a line without its inks."""
    return "".join(text for text, _ink in line)


def fit_line(line: Line, width: int) -> Line:
    """Cut a line to ``width`` cells and join neighbours of the same ink."""
    out: list[Span] = []
    left = width
    for text, ink in line:
        if not text:
            continue
        shown, cells = text, count_cells(text)
        if cells > left:
            shown = cut(text, left)
            cells = count_cells(shown)
        left -= cells
        if shown and out and out[-1][1] is ink:
            out[-1] = (out[-1][0] + shown, ink)
        elif shown:
            out.append((shown, ink))
        if shown is not text:
            break
    return tuple(out)


def pad_line(line: Line, width: int) -> Line:
    """Make a line exactly ``width`` cells wide."""
    fitted = fit_line(line, width)
    rest = width - line_width(fitted)
    return (*fitted, (" " * rest, Ink.PLAIN)) if rest > 0 else fitted


def wrap(pieces: Sequence[str], width: int, separator: str) -> list[str]:
    """Fill lines with ``pieces`` and break between them; a longer piece is broken within."""
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]}{separator}{piece}" if lines else piece
        if count_cells(joined) <= width:
            lines[-1:] = [joined]
        elif count_cells(piece) <= width:
            lines.append(piece)
        else:
            lines.extend(wrap_all(piece, width))
    return lines


def wrap_words(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` cells; longer words are cut."""
    return wrap([cut(word, width) for word in text.split()], width, " ")


def wrap_all(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces, and within words longer than a line: nothing is cut."""
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if count_cells(joined) <= width:
            lines[-1:] = [joined]
            continue
        rest = word
        while count_cells(rest) > width > 0:
            taken = _head_of(rest, width) or rest[:1]
            lines.append(taken)
            rest = rest[len(taken) :]
        lines.append(rest)
    return lines


def _head_of(text: str, width: int) -> str:
    taken = text[:width]
    while count_cells(taken) > width:
        taken = taken[:-1]
    return taken


def wrap_indented(text: str, width: int) -> list[str]:
    """Break a line of code as ``wrap_all`` does, with its indent before each part."""
    indent = " " * min(len(text) - len(text.lstrip(" ")), width // 3)
    return [f"{indent}{part}" for part in wrap_all(text, width - len(indent))]


def set_in(texts: Iterable[str], ink: Ink = Ink.PLAIN, head: str = " ", hang: str = "") -> list[Line]:
    """Put ``head`` before the first text and ``hang`` before the others, by default as many blanks."""
    rest = hang or " " * count_cells(head)
    return [((f"{rest if number else head}{text}", ink),) for number, text in enumerate(texts)]


def lay_text(text: str, width: int, ink: Ink = Ink.PLAIN, head: str = " ") -> list[Line]:
    """Wrap all of ``text`` behind ``head``, a cell short of ``width``."""
    return set_in(wrap_all(text, max(1, width - count_cells(head) - 1)), ink, head)


def lay_paragraph(label: str, text: str, width: int = WIDTH) -> list[str]:
    """Wrap ``text`` beside a label in the first line."""
    return _lay_beside(label, wrap_all(text, max(width - LABEL_WIDTH, 1)))


def lay_phrases(label: str, phrases: Iterable[str]) -> list[str]:
    """Join ``phrases`` by commas beside a label and wrap between phrases where they fit a line."""
    *others, last = [*phrases] or [""]
    return _lay_beside(label, wrap([*(f"{phrase}," for phrase in others), last], WIDTH - LABEL_WIDTH, " "))


def _lay_beside(label: str, lines: Sequence[str]) -> list[str]:
    first = label.ljust(LABEL_WIDTH) if len(label) < LABEL_WIDTH else label + " "
    return [first + "".join(lines[:1]), *(" " * LABEL_WIDTH + line for line in lines[1:])]


_ASCII = {
    ord(sign): likeness
    for sign, likeness in zip("─═┴·…±×–—→’µ°▓▒░▁▂▃▄▅▆▇█", "-='|~~x-->'u =+:_.:-=+*#", strict=True)  # noqa: RUF001
}


def to_ascii(text: str) -> str:
    """Write text in ASCII, with as many cells for each character as before."""
    translated = text.translate(_ASCII)
    if translated.isascii():
        return translated
    return "".join(char if char.isascii() else "?" * count_cells(char) for char in translated)


LEVELS = "▁▂▃▄▅▆▇█"
NOT_READ = " "
"""A second without a reading leaves a gap: the lowest level means zero."""


def level_of(value: float, top: float) -> str:
    """Draw a value between 0 and ``top``; any above zero is above the lowest level."""
    if value <= 0:
        return LEVELS[0]
    share = min(1.0, value / top) if top > 0 else 0.0
    return LEVELS[max(1, round(share * (len(LEVELS) - 1)))]


def spark(values: Sequence[Known[float]], width: int, top: float) -> str:
    """Draw the last ``width`` values as columns between 0 and ``top``, newest at the right, with gaps."""
    if width <= 0:
        return ""
    drawn = [level_of(value, top) if is_known(value) else NOT_READ for value in values[-width:]]
    return "".join(drawn).rjust(width)


SHADE_FROM = 2 / 3
"""A cell of a bar or a history is coloured from two thirds of the way to bad, or to good."""


def shade(share: float, bad: Bad | None) -> Ink:
    """Return the ink of a share of what is possible; without a side that is bad it says nothing."""
    if bad is None:
        return Ink.NOTICE
    harm = share if bad is Bad.HIGH else 1 - share
    return Ink.BAD if harm >= SHADE_FROM else Ink.GOOD if harm <= 1 - SHADE_FROM else Ink.NOTICE


def draw_history(values: Sequence[Known[float]], width: int, top: float, bad: Bad | None) -> Line:
    """Draw the last values as ``spark`` does, each in the ink of what it means."""
    if width <= 0:
        return ()
    shown = values[-width:]
    spans: list[Span] = [(" " * (width - len(shown)), Ink.PLAIN)]
    for value in shown:
        sign, ink = NOT_READ, Ink.PLAIN
        if is_known(value):
            sign, ink = level_of(value, top), shade(value / top if top > 0 else 0.0, bad)
        if spans[-1][1] is ink:
            spans[-1] = (spans[-1][0] + sign, ink)
        else:
            spans.append((sign, ink))
    return tuple(spans)


FULL_CELL = "█"


def draw_bar(share: float, width: int, ink: Ink, rest: Ink = Ink.DIM) -> Line:
    """Draw a share as a bar of ``width`` cells between brackets; ``rest`` is the ink of what is missing."""
    room = max(1, width - 2)
    full = max(0, min(room, round(share * room)))
    return (("[", Ink.DIM), (FULL_CELL * full, ink), (RULE * (room - full), rest), ("]", Ink.DIM))


Row = TypeVar("Row")
RULE = "─"
FOCUS_RULE = "═"
NA = "n/a"


def number(value: Applicable[float], digits: int = 1) -> str:
    """Write a number, or n/a where it is unknown."""
    return f"{value:,.{digits}f}" if is_known(value) else NA


def ms_of_us(value: Applicable[float]) -> str:
    """Write microseconds as milliseconds."""
    return f"{value / 1000:,.3f}" if is_known(value) else NA


def pct(value: Applicable[float]) -> str:
    """Write a percentage."""
    return f"{value:.1f} %" if is_known(value) else NA


def size(value: Applicable[float]) -> str:
    """Write bytes."""
    return format_bytes(value) if is_known(value) else NA


def thousands(value: int) -> str:
    """Write a count."""
    return f"{value:,}"


def said(value: object) -> str:
    """Write text, or n/a where it is unknown."""
    return str(value) if is_known(value) else NA


@dataclass(frozen=True, slots=True)
class TableFigure(Generic[Row]):
    """Describe one column by what is read of a row and how that is written.

    The least ``keep`` stays longest. ``width`` is the least one; 0 fits the cells. ``sorts``: rows can be
    sorted by it.
    """

    head: str
    read: Callable[[Row], object]
    write: Callable[[Any], str] = str
    keep: int = 0
    width: int = 0
    left: bool = False
    grows: bool = False
    """Whether it takes the rest of the width."""
    sorts: bool = False

    def tell(self, row: Row) -> str:
        """Write the cell of a row."""
        return self.write(self.read(row))


Figures = tuple[TableFigure[Row], ...]

MEASURED_ROWS = 200
Cell = Union[str, Span]
"""Text in the ink of its row, or with an ink of its own."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """Describe one column: the least ``keep`` stays longest when the pane gets narrow.

    ``width`` is the least width; the one column with ``grows`` also takes the rest.
    """

    head: str
    width: int
    keep: int
    read: Callable[[Row], Cell]
    right: bool = True
    grows: bool = False


def fit_column(
    head: str,
    keep: int,
    read: Callable[[Row], str],
    rows: Sequence[Row],
    *,
    right: bool = True,
    most: int = 40,
) -> Column[Row]:
    """Make a column as wide as the cells of its first rows."""
    widest = max((count_cells(read(row)) for row in rows[:MEASURED_ROWS]), default=1)
    return Column(head, max(min(widest, most), count_cells(head)), keep, read, right)


def list_columns(
    figures: Figures[Row], rows: Sequence[Row] = (), unknown: str = ""
) -> tuple[Column[Row], ...]:
    """Make the columns of a table; ``unknown`` replaces n/a for what was not read."""

    def column(one: TableFigure[Row]) -> Column[Row]:
        def read(row: Row) -> str:
            return unknown if unknown and not is_known(one.read(row)) else one.tell(row)

        if one.width:
            return Column(one.head, one.width, one.keep, read, right=not one.left, grows=one.grows)
        return fit_column(one.head, one.keep, read, rows, right=not one.left)

    return tuple(map(column, figures))


@dataclass(frozen=True, slots=True)
class Item:
    """Hold one piece of a line; the least ``keep`` stays longest."""

    keep: int
    text: str
    ink: Ink = Ink.PLAIN


class Table(Generic[Row]):
    """Fit columns to a width once, then paint heads and rows."""

    def __init__(self, columns: Sequence[Column[Row]], width: int) -> None:
        """Drop columns until the rest fits ``width``; the cursor has the first cell of a row."""
        self._gap = 2 if width >= 100 else 1
        kept = list(columns)
        while len(kept) > 1 and self._total(kept) > width:
            kept.remove(max(kept, key=lambda column: column.keep))
        self.dropped = [column for column in columns if column not in kept]
        spare = max(0, width - self._total(kept))
        self._columns = [(column, column.width + (spare if column.grows else 0)) for column in kept]
        self._width = width

    def _total(self, columns: Sequence[Column[Row]]) -> int:
        return 1 + sum(column.width for column in columns) + self._gap * max(0, len(columns) - 1)

    def paint_head(self) -> Line:
        """Paint the column heads."""
        gap = " " * self._gap
        cells = (_pad(column.head, width, column.right) for column, width in self._columns)
        return fit_line(((" " + gap.join(cells).rstrip(), Ink.DIM),), self._width)

    def paint_row(self, row: Row, ink: Ink = Ink.PLAIN, *, cursor: bool = False) -> Line:
        """Paint one row; the cursor marks it by a sign and its ink."""
        spans: list[Span] = [(">" if cursor else " ", ink)]
        gap = " " * self._gap
        for position, (column, width) in enumerate(self._columns):
            cell = column.read(row)
            text, cell_ink = (cell, ink) if isinstance(cell, str) else cell
            if position:
                spans.append((gap, ink))
            spans.append((_pad(text, width, column.right), cell_ink))
        if cursor:
            whole = "".join(text for text, _ in spans)
            return fit_line(((pad(whole, self._width), Ink.CURSOR),), self._width)
        return fit_line(tuple(spans), self._width)


def _pad(text: str, width: int, right: bool) -> str:
    return pad_left(text, width) if right else pad(text, width)


def paint_rule(title: str, details: Sequence[Item], width: int, *, focused: bool = False) -> Line:
    """Paint the rule above a pane: its title, then the details that fit, always the most needed one."""
    mark = FOCUS_RULE if focused else RULE
    needed = sum(count_cells(item.text) + 2 for item in details if item.keep == 0)
    title = cut(title, max(8, width - 5 - needed))
    room = width - count_cells(title) - 4
    spans: list[Span] = [(f"{mark}{mark} ", Ink.DIM), (title, Ink.TITLE)]
    first = min(details, key=lambda item: item.keep, default=None)
    shown = [
        Item(item.keep, cut(item.text, room - 3), item.ink) if item is first else item for item in details
    ]
    chosen = _choose([(item, count_cells(item.text) + 2) for item in shown], room)
    for item in chosen:
        spans += [("  ", Ink.DIM), (item.text, item.ink)]
    spans.append((" ", Ink.DIM))
    rest = width - line_width(tuple(spans))
    return fit_line((*spans, (mark * max(0, rest), Ink.DIM)), width)


def _choose(sized: Sequence[tuple[Item, int]], room: int) -> list[Item]:
    """Take pieces in the order of ``keep`` while they fit; return them in their own order."""
    taken: set[int] = set()
    for place in sorted(range(len(sized)), key=lambda place: sized[place][0].keep):
        if sized[place][1] <= room:
            room -= sized[place][1]
            taken.add(place)
    return [item for place, (item, _) in enumerate(sized) if place in taken]


def justify(left: Sequence[Item], right: Sequence[Item], width: int, gap: int = 2) -> Line:
    """Spread pieces to both ends of a line; those with the least ``keep`` are taken first."""
    pieces = [*left, *right]
    first = min(pieces, key=lambda item: item.keep, default=None)
    sized = [
        (item, min(width, count_cells(item.text) + gap) if item is first else count_cells(item.text) + gap)
        for item in pieces
    ]
    chosen = _choose(sized, max(width, 0))
    head = _join([item for item in chosen if any(item is one for one in left)], gap)
    tail = _join([item for item in chosen if not any(item is one for one in left)], gap)
    room = width - 1 - line_width(tuple(head)) - line_width(tuple(tail))
    least = 1 if head and tail else 0  # at the cost of the margin after the tail
    spaces: Span = (" " * max(least, room - (1 if tail else 0)), Ink.PLAIN)
    return fit_line(((" ", Ink.PLAIN), *head, spaces, *tail), width)


def _join(items: Sequence[Item], gap: int) -> list[Span]:
    spans: list[Span] = []
    for item in items:
        if spans:
            spans.append((" " * gap, Ink.PLAIN))
        spans.append((item.text, item.ink))
    return spans


Value = TypeVar("Value")


def show(value: Value | Missing | NotApplicable, write: Callable[[Value], str]) -> str:
    """Write a reading for a table cell: "?" was not read, "-" does not apply."""
    if isinstance(value, Missing):
        return "?"
    if isinstance(value, NotApplicable):
        return "-"
    return write(value)


def show_pair(
    used: Value | Missing | NotApplicable,
    limit: Value | Missing | NotApplicable,
    write: Callable[[Value], str],
) -> str:
    """Write a reading and its bound: 612/700, 612/?, or ? where neither was read."""
    if isinstance(used, Missing) and isinstance(limit, Missing):
        return "?"
    return f"{show(used, write)}/{show(limit, write)}"


def shared_reason(values: Sequence[object]) -> str:
    """Return the only reason why no value was read, "" where one was or reasons differ."""
    reasons = {value.reason if isinstance(value, Missing) else "" for value in values}
    return reasons.pop() if len(reasons) == 1 else ""


def explain(value: Value | Missing | NotApplicable, write: Callable[[Value], str]) -> str:
    """Write a reading, with the reason where it is missing."""
    return f"? {value.reason}" if isinstance(value, Missing) else show(value, write)


def paint_pairs(pairs: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Paint labels and values below each other; long values are wrapped."""
    label_width = max(1, min(18, width // 2 - 2))
    room = max(8, width - label_width - 2)
    lines: list[Line] = []
    for label, value in pairs:
        ink = Ink.WARN if value.startswith("! ") else Ink.PLAIN
        for number, text in enumerate(wrap_words(value, room) or [""]):
            head = " " * (label_width + 2) if number else f" {pad(label, label_width)} "
            lines.append(fit_line(((head, Ink.DIM), (text, ink)), width))
    return lines


def window_of(pids: Sequence[int], cursor: int | Missing | NotApplicable, rows: int) -> tuple[int, int]:
    """Return first and end of the rows to show: those up to the cursor, or the first ones."""
    rows = max(0, rows)
    first = 0
    if isinstance(cursor, int) and rows and cursor in pids:
        first = max(0, pids.index(cursor) - rows + 1)
    return first, min(len(pids), first + rows)
