"""What the open tab holds, as filtered and sorted, and which part of it the cursor is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, Unit, cap, choose_rows, list_units
from tpmon.ui.traces.state import Grouping, Tab, TraceOverlay, TraceView


def list_all(view: TraceView) -> list[Block]:
    """Return what the open tab or the stack over it holds, before anything is filtered or sorted."""
    if view.overlay is TraceOverlay.STACK:
        found = find_row(replace(view, overlay=TraceOverlay.NONE))
        return [] if found is None else list(found.sheet.inside(found.row))
    blocks = view.subject.list_blocks(view.file, view.tab)
    if view.tab is Tab.OPS and view.grouping is not Grouping.NAMES:
        from tpmon.ui.traces.trace_more import list_groups  # noqa: PLC0415  # a snapshot does without it

        return [*list_groups(view.groups, view.grouping), *blocks[1:]]
    return blocks


def list_blocks(view: TraceView) -> list[Block]:
    """Return what the open tab holds: tables as filtered, and as sorted where that is asked for.

    All tables with the same columns to sort by as the first one are sorted: of each device there is one.
    """
    blocks = list_all(view)
    if view.overlay is TraceOverlay.STACK:
        return blocks
    orders = _name_orders(blocks)
    chosen: list[Block] = []
    for block in blocks:
        if isinstance(block, Paragraph):
            chosen.append(block)
            continue
        sorts = bool(orders) and _name_orders([block]) == orders
        sort, turned = (view.sort, view.sort_reversed) if sorts else (0, False)
        left = cap(choose_rows(block, view.filter_text, sort, turned))
        if left.rows or not view.filter_text:
            chosen.append(left)
    if view.filter_text and not any(isinstance(block, Sheet) for block in chosen):
        chosen.append(Paragraph("filter", f"no row of this tab is left by {view.filter_text}"))
    return chosen


def find_orders(view: TraceView) -> tuple[str, ...]:
    """Name the columns that the rows of the tab can be sorted by."""
    return _name_orders(list_all(view))


def _name_orders(blocks: Sequence[Block]) -> tuple[str, ...]:
    """Name the columns that the first table with any can be sorted by."""
    found = next((block for block in blocks if isinstance(block, Sheet) and block.orders), None)
    return () if found is None else tuple(name for name, _order in found.orders)


@dataclass(frozen=True, slots=True)
class UnderCursor:
    """Hold the row under the cursor, and its table."""

    sheet: Sheet[Any]
    row: Any


def find_paragraph(view: TraceView, blocks: Sequence[Block]) -> Paragraph | None:
    """Return the paragraph under the cursor; None on a row."""
    unit = find_unit(view, blocks)
    block = blocks[unit.block] if unit is not None else None
    return block if isinstance(block, Paragraph) else None


def find_row(view: TraceView) -> UnderCursor | None:
    """Return the row under the cursor; None on a paragraph."""
    blocks = list_blocks(view)
    unit = find_unit(view, blocks)
    block = blocks[unit.block] if unit is not None else None
    if unit is None or not isinstance(block, Sheet):
        return None
    return UnderCursor(block, block.rows[unit.row])


def find_unit(view: TraceView, blocks: Sequence[Block]) -> Unit | None:
    """Return the place of the cursor; None where the tab is empty."""
    units = list_units(blocks)
    return units[max(0, min(view.cursor, len(units) - 1))] if units else None
