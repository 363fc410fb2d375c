"""Lay paragraphs and tables below each other and paint the part of them around the cursor.

Only what is shown is painted, so that a table of two thousand rows costs what a screen of it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.ui.kit.cells import fit_line, pad, width_of, wrap_all
from tpmon.ui.kit.lines import Ink, Line
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, list_units
from tpmon.ui.kit.table import Table

LABEL_WIDTH = 9
_NARROW_LABEL_WIDTH = 4
_BEFORE = 2
"""Thirds of the lines that are before the cursor, once it has come so far."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold lines that belong together: how many, and how one of them is painted.

    ``head`` is the line that stays on top while later lines of the piece are shown.
    """

    height: int
    paint: Callable[[int], Line]
    head: Callable[[], Line] | None = None


@dataclass(frozen=True, slots=True)
class Laid:
    """Hold what was laid out: its pieces, and the first and last line of what the cursor is on."""

    pieces: tuple[Piece, ...]
    first: int
    last: int
    place: int
    places: int

    @property
    def height(self) -> int:
        """Return how many lines there are in all."""
        return sum(piece.height for piece in self.pieces)

    def paint(self, height: int) -> list[Line]:
        """Paint ``height`` lines around the cursor; the head of a table stays in sight."""
        begin = max(0, self.height - height)
        if self.place < self.places:  # at the last place also what is said below it is shown
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
    label_width = LABEL_WIDTH if width >= 60 else max(_NARROW_LABEL_WIDTH, width_of(block.label) + 1)
    texts = wrap_all(block.text, max(8, width - label_width - 2)) or [""]
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
