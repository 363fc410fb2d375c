"""Write blocks and tables as text, and what was not read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tpmon.model.known import Missing
from tpmon.model.units import clean_text
from tpmon.view.blocks import Block, Paragraph, Sheet, cap, name_field
from tpmon.view.layout import WIDTH, Column, Row, Table, fit_column, lay_paragraph, text_of

MOST_REASONS = 12
_WHOLE = ("gpus", "ranks")
"""Tables that are shown whole: the slow rank may be the last."""
MOST_NAMES = 10
"""Names of unread values for one reason."""
MOST_CELLS = 40
"""Cells of a name in a table."""
LINE_CHARS = 400
"""A line may hold names that others chose."""


def write_blocks(blocks: Sequence[Block], top: int) -> list[str]:
    """Write paragraphs and tables below each other; at most ``top`` rows of a table that is in CSV too."""
    lines: list[str] = []
    for number, block in enumerate(blocks):
        is_text = isinstance(block, Paragraph)
        if number and not (is_text and isinstance(blocks[number - 1], Paragraph)):
            lines.append("")
        lines += _write_paragraph(block) if isinstance(block, Paragraph) else _write_sheet(block, top)
    return [clean_text(line, LINE_CHARS) if line else "" for line in lines]


def _write_paragraph(block: Paragraph) -> list[str]:
    pasted = [f"  {block.pasted}"] if block.pasted else []
    drawn = [text_of(line)[1:].rstrip() for line in block.draw(WIDTH)]
    return [*lay_paragraph(block.label, block.text), *pasted, *drawn]


def _write_sheet(sheet: Sheet[Any], top: int) -> list[str]:
    shown = cap(sheet, top) if sheet.table and sheet.table not in _WHOLE else sheet
    columns = [_widen(one, shown.rows) if one.grows else one for one in shown.columns]
    lines = [sheet.title, *write_rows(columns, shown.rows, shown.below)]
    return [*lines, f"  {shown.hidden:,} more (--top, --csv {sheet.table})"] if shown.hidden else lines


def _widen(column: Column[Any], rows: Sequence[Any]) -> Column[Any]:
    """Fit a column to its names: other columns can move to a further table, a cut name cannot."""
    fitted = fit_column(column.head, 0, lambda row: str(column.read(row)), rows, most=MOST_CELLS)
    return dataclasses.replace(column, width=max(column.width, fitted.width))


def write_rows(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    below: Callable[[Row], Sequence[str]] | None = None,
    width: int = WIDTH,
) -> list[str]:
    """Write heads and rows; nothing without rows. ``below`` returns the lines below a row.

    Columns without room follow in further tables, behind the first column: text loses no figure.
    """
    if not rows:
        return []
    table = Table(columns, width)
    lines = [text_of(table.paint_head()).rstrip()]
    for row in rows:
        lines.append(text_of(table.paint_row(row)).rstrip())
        lines += [f"    {text}" for text in (below(row) if below is not None else ())]
    if table.dropped and columns[0] not in table.dropped and len(table.dropped) < len(columns) - 1:
        lines += write_rows([columns[0], *table.dropped], rows, None, width)
    return lines


def write_unread(of: object, apart: Sequence[str] = (), width: int = WIDTH) -> list[str]:
    """Write what was not read of dataclasses and why, grouped by reason, without the fields in ``apart``."""
    groups = list_unread(of, apart)
    return lay_paragraph("not read", "; ".join(groups), width) if groups else []


def list_unread(of: object, apart: Sequence[str] = (), most: int = MOST_REASONS) -> list[str]:
    """List at most so many reasons, each with what was not read for it, without the fields in ``apart``."""
    found: dict[str, dict[str, None]] = {}
    _find_unread(of, "", apart, found)
    groups = []
    for reason, names in list(found.items())[:most]:
        more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
        groups.append(f"{', '.join([*list(names)[:MOST_NAMES], *more])} ({reason})")
    if len(found) > most:
        groups.append(f"and for {len(found) - most} more reasons")
    return groups


def _find_unread(value: object, name: str, apart: Sequence[str], found: dict[str, dict[str, None]]) -> None:
    if isinstance(value, Missing):
        found.setdefault(value.reason.removeprefix(f"{name}: "), {})[name] = None
    elif isinstance(value, tuple):
        for one in value:
            _find_unread(one, name, apart, found)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in apart:
                words = f"{name} {name_field(field.name)}".strip()
                _find_unread(getattr(value, field.name), words, (), found)
