"""Lay paragraphs and tables below each other, and paint the part around the cursor.

Only visible rows are written and painted: a table of 2,000 rows costs no more than a screen of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Union

from tpmon.model.frozen import dataclass
from tpmon.model.known import Missing, NotApplicable
from tpmon.model.units import clean_text, count_cells, format_bytes
from tpmon.view.layout import (
    LABEL_WIDTH,
    NA,
    Column,
    Figures,
    Ink,
    Line,
    Row,
    Table,
    fit_line,
    list_columns,
    pad,
    wrap_all,
)

MOST_ROWS = 2000
_FACT_CHARS = 4000
_WORDS = {
    "gb_s": ("memory rate", "GB/s"),
    "gb_s_peak_pct": ("memory, of peak", "%"),
    "tflop_s": ("compute rate", "TFLOP/s"),
    "tflop_s_peak_pct": ("compute, of peak", "%"),
    "peak_pct": ("of the peak", "%"),
    "misaligned_pct": ("misaligned sizes", "%"),
    "bus_gb_s": ("bus", "GB/s"),
    "limited_by": ("occupancy limit", ""),
    "bound_by": ("held by", ""),
    "dtype": ("number type", ""),
    "forward_total_us": ("gpu forward", "us"),
    "forward_self_us": ("gpu forward self", "us"),
    "device_total_us": ("gpu total", "us"),
    "device_self_us": ("gpu self", "us"),
    "at_peak_bytes": ("alive at peak", "bytes"),
    "allocations_bytes": ("allocated in all", "bytes"),
    "frees_bytes": ("freed in all", "bytes"),
    "unused_pct": ("unused at peak", "%"),
    "growth_bytes": ("growth", "bytes"),
    "blocks_per_sm": ("blocks per SM", ""),
    "gpus": ("GPUs", ""),
}
"""Words and unit of fields whose names are no words."""
_UNITS = (("_us", "us"), ("_ms", "ms"), ("_pct", "%"), ("_bytes", "bytes"), ("_gb_s", "GB/s"), ("_s", "s"))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Hold a piece of text with a label before it."""

    label: str
    text: str
    ink: Ink = Ink.PLAIN
    pasted: str = ""
    """The end of the text, to paste: a text report gives it a line of its own."""
    draw: Callable[[int], tuple[Line, ...]] = lambda _width: ()
    """Draw lines of this width below the text."""


@dataclass(frozen=True, slots=True)
class Sheet(Generic[Row]):
    """Hold one table; ``name`` writes the text to copy from a row, by which its source line is found too.

    ``orders`` are the columns to sort by, largest first; ``hidden`` counts the rows left out.
    """

    title: str
    columns: tuple[Column[Row], ...]
    rows: tuple[Row, ...]
    name: Callable[[Row], str]
    orders: tuple[tuple[str, Callable[[Row], float]], ...] = ()
    hidden: int = 0
    source: Callable[[Row], str] = lambda _row: ""
    """Return the Python function that a row names; "" for none."""
    place_ms: Callable[[Row], tuple[float, float] | None] = lambda _row: None
    """Return the time of a row in the timeline."""
    findable: bool = False
    """Whether events in the trace have the ``name`` of a row."""
    inside: Callable[[Row], tuple[Block, ...]] = lambda _row: ()
    """Return what opens over the tab for a row beyond its fields, such as its stack."""
    begin: int = 0
    """The first row of the cursor, where this opens over a tab."""
    table: str = ""
    """The name of its table in CSV."""
    below: Callable[[Row], Sequence[str]] = lambda _row: ()
    """Return the lines below a row in a text report; a screen opens them over the tab."""

    def text(self, row: Row) -> str:
        """Return the text of all cells of a row."""
        return " ".join(
            cell if isinstance(cell := column.read(row), str) else cell[0] for column in self.columns
        )


Block = Union[Paragraph, Sheet[Any]]


@dataclass(frozen=True, slots=True)
class Unit:
    """Hold one place of the cursor: a paragraph, or a row of a table."""

    block: int
    row: int = -1


def list_units(blocks: Sequence[Block]) -> list[Unit]:
    """Return the places of the cursor from top to bottom."""
    units = []
    for number, block in enumerate(blocks):
        if isinstance(block, Paragraph):
            units.append(Unit(number))
        else:
            units += [Unit(number, row) for row in range(len(block.rows))]
    return units


def cap(sheet: Sheet[Row], most: int = MOST_ROWS) -> Sheet[Row]:
    """Leave out the rows beyond ``most``."""
    if len(sheet.rows) <= most:
        return sheet
    return dataclasses.replace(sheet, rows=sheet.rows[:most], hidden=sheet.hidden + len(sheet.rows) - most)


def choose_rows(sheet: Sheet[Row], filter_text: str, sort: int, reverse: bool) -> Sheet[Row]:
    """Keep the rows that contain a text, or after a "!" those that do not, in the chosen order."""
    rows: Iterable[Row] = sheet.rows
    columns = sheet.columns
    if filter_text.strip("!"):
        without = filter_text.startswith("!")
        wanted = filter_text.lstrip("!").lower()
        rows = [row for row in rows if (wanted in sheet.text(row).lower()) is not without]
    if sort and sheet.orders:
        head, order = sheet.orders[min(sort, len(sheet.orders)) - 1]
        rows = sorted(rows, key=order, reverse=not reverse)
        marked = head + ("^" if reverse else "v")
        columns = tuple(
            dataclasses.replace(one, head=marked, width=max(one.width, len(marked)), keep=-1)
            if one.head == head
            else one
            for one in columns
        )
    elif reverse:
        rows = list(rows)[::-1]
    return dataclasses.replace(sheet, rows=tuple(rows), columns=columns)


def bar(share_pct: float, width: int) -> str:
    """Draw a share as a bar."""
    return "█" * round(max(0.0, min(share_pct, 100.0)) * width / 100)


def list_orders(figures: Figures[Row]) -> tuple[tuple[str, Callable[[Row], float]], ...]:
    """Return the columns to sort a table by."""
    return tuple((one.head, partial(_rank, one.read)) for one in figures if one.sorts)


def _rank(read: Callable[[Row], object], row: Row) -> float:
    return as_number(read(row))


def lay_sheet(
    title: str,
    figures: Figures[Row],
    rows: tuple[Row, ...],
    name: Callable[[Row], str] = attrgetter("name"),
    *,
    unknown: str = "",
    findable: bool = True,
    source: Callable[[Row], str] = lambda _row: "",
    table: str = "",
) -> Sheet[Row]:
    """Make a table of rows, which mostly have the names of events in the trace."""
    columns = list_columns(figures, rows, unknown)
    orders = list_orders(figures)
    return Sheet(title, columns, rows, name, orders, source=source, findable=findable, table=table)


def as_number(value: object) -> float:
    """Return a number to sort by: unknown values come last."""
    return float(value) if isinstance(value, (int, float)) else float("-inf")


def list_facts(row: object) -> list[tuple[str, str]]:
    """Write every field of a dataclass with its unit, and why one is missing."""
    return [
        (name_field(field.name), _write(field.name, getattr(row, field.name)))
        for field in dataclasses.fields(row)  # type: ignore[arg-type]  # rows are dataclasses
    ]


def name_field(name: str) -> str:
    """Name a field of a dataclass in words, without its unit."""
    if name in ("us", "ms"):
        return "time"
    if name in _WORDS:
        return _WORDS[name][0]
    for ending, _unit_of in _UNITS:
        name = name.removesuffix(ending)
    return name.rstrip("_").replace("_", " ")


def _write(name: str, value: object) -> str:
    if isinstance(value, Missing):
        return f"{NA}: {value.reason}" if name else NA
    if isinstance(value, NotApplicable):
        return "-" if name else NA
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        ending = next((unit for ending, unit in _UNITS if name.endswith(ending)), "")
        unit = name if name in ("us", "ms", "bytes") else _WORDS.get(name, ("", ending))[1]
        if unit == "bytes":
            return format_bytes(value)
        if unit == "us":
            return f"{value / 1000:,.3f} ms"
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return f"{text} {unit}".rstrip()
    if isinstance(value, tuple):
        return ", ".join(_write("", one) for one in value[:20]) + (" ..." if len(value) > 20 else "")
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{label} {text}" for label, text in list_facts(value))
    return clean_text(str(getattr(value, "value", value)), _FACT_CHARS)


_NARROW_LABEL_WIDTH = 4
_BEFORE = 2
"""Thirds of the lines above the cursor, once it is that far down."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold some lines and how to paint one; ``head`` stays on top when the first lines are scrolled away."""

    height: int
    paint: Callable[[int], Line]
    head: Callable[[], Line] | None = None


@dataclass(frozen=True, slots=True)
class Laid:
    """Hold the pieces that were laid out, and the first and last line under the cursor."""

    pieces: tuple[Piece, ...]
    first: int
    last: int
    place: int
    places: int

    @property
    def height(self) -> int:
        """Return the number of lines."""
        return sum(piece.height for piece in self.pieces)

    def paint(self, height: int) -> list[Line]:
        """Paint ``height`` lines around the cursor; the head of a table stays visible."""
        begin = max(0, self.height - height)
        if self.place < self.places:  # at the last place the lines below it are shown too
            begin = min(begin, max(0, self.last - _BEFORE * height // 3), self.first)
        lines: list[Line] = []
        top = 0
        for piece in self.pieces:
            low, high = max(begin - top, 0), min(begin + height - top, piece.height)
            if low < high:
                shown = [piece.paint(at) for at in range(low, high)]
                if low > 1 and piece.head is not None and len(shown) > 1:
                    shown[0] = piece.head()
                lines += shown
            top += piece.height
            if top >= begin + height:
                break
        return lines


def lay_blocks(blocks: Sequence[Block], cursor: int, width: int) -> Laid:
    """Lay out a tab; ``cursor`` counts paragraphs and rows from the top."""
    units = list_units(blocks)
    place = max(0, min(cursor, len(units) - 1))
    chosen = units[place] if units else None
    pieces: list[Piece] = []
    top = first = last = 0
    for number, block in enumerate(blocks):
        here = chosen is not None and chosen.block == number
        row = chosen.row if chosen is not None and here else -1
        is_text = isinstance(block, Paragraph)
        if pieces and not (is_text and isinstance(blocks[number - 1], Paragraph)):
            pieces.append(Piece(1, lambda _at: ()))
            top += 1
        if isinstance(block, Paragraph):
            piece = _lay_paragraph(block, width, cursor=here)
            first, last = (top, top + piece.height - 1) if here else (first, last)
        else:
            piece = _lay_sheet(block, width, row)
            first, last = (top + 2 + row, top + 2 + row) if here else (first, last)
        if here and place == 0:
            first = 0
        pieces.append(piece)
        top += piece.height
    return Laid(tuple(pieces), first, last, place + 1, len(units))


def _lay_paragraph(block: Paragraph, width: int, *, cursor: bool) -> Piece:
    label_width = LABEL_WIDTH if width >= 60 else max(_NARROW_LABEL_WIDTH, count_cells(block.label) + 1)
    texts = wrap_all(block.text + block.pasted, max(8, width - label_width - 2)) or [""]
    mark = ">" if cursor else " "
    drawn = block.draw(width)

    def paint(at: int) -> Line:
        if at >= len(texts):
            return drawn[at - len(texts)]
        label = pad(block.label if at == 0 else "", label_width)
        if cursor:
            return fit_line(((pad(f"{mark}{label}{texts[at]}", width), Ink.CURSOR),), width)
        return fit_line(((f" {label}", Ink.DIM), (texts[at], block.ink)), width)

    return Piece(len(texts) + len(drawn), paint)


def _lay_sheet(sheet: Sheet[Any], width: int, cursor: int) -> Piece:
    table = Table(sheet.columns, width)
    count = len(sheet.rows)

    def paint(at: int) -> Line:
        if at == 0:
            return fit_line(((f" {sheet.title}", Ink.TITLE),), width)
        if at == 1:
            return table.paint_head()
        if at - 2 < count:
            return table.paint_row(sheet.rows[at - 2], cursor=at - 2 == cursor)
        return fit_line(((f" {sheet.hidden:,} more: --csv has them all", Ink.DIM),), width)

    return Piece(2 + count + (1 if sheet.hidden else 0), paint, table.paint_head)
