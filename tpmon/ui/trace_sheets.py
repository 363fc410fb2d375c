"""What each tab of a trace holds, as filtered and sorted, and whether it holds anything.

What the analysis has and no tab knows stands below, as a plain table of its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.trace import TraceFile
from tpmon.ui.sheet import Block, Paragraph, Sheet, Unit, cap, choose_rows, list_units, plain_sheet
from tpmon.ui.trace_overview import list_gaps, list_overview
from tpmon.ui.trace_tables import list_kernels, list_memory, list_operators, list_ranks
from tpmon.ui.trace_view import Tab, TraceView

_KNOWN: dict[str, frozenset[str]] = {
    "": frozenset(("overview", "gaps", "host_us", "operators", "kernels", "copies", "memory"))
    | {"communication", "conditions", "verdict", "lost", "patterns"},
    "overview": frozenset(("step_table", "breakdown_us", "overlapping_us", "gpus", "notes")),
    "memory": frozenset(("peaks",)),
    "communication": frozenset(("collectives",)),
    "verdict": frozenset(("advice", "shares")),
}
"""What has a table of its own: of a TraceFile, and of its parts."""
_WORDS = (
    (Tab.MEMORY, ("memory", "alloc", "fragment", "curve")),
    (Tab.KERNELS, ("kernel", "dtype", "matmul", "copies", "bandwidth")),
    (Tab.RANKS, ("comm", "rank", "collective")),
    (Tab.GAPS, ("gap", "idle", "sync")),
)
"""Where a result goes by its name; else to the operators."""


def list_all(view: TraceView) -> list[Block]:
    """Return what the open tab holds, before anything is filtered or sorted."""
    file = view.shown
    if view.tab is Tab.OVERVIEW:
        blocks = list_overview(file)
    elif view.tab is Tab.GAPS:
        blocks = list_gaps(file)
    elif view.tab is Tab.OPS:
        blocks = list_operators(file)
    elif view.tab is Tab.KERNELS:
        blocks = list_kernels(file)
    elif view.tab is Tab.MEMORY:
        blocks = list_memory(file)
    else:
        blocks = list_ranks(view.report.ranks, file)
    return [*blocks, *_list_others(file, view.tab)]


def list_blocks(view: TraceView) -> list[Block]:
    """Return what the open tab holds: tables as filtered, the first one with an order as sorted."""
    chosen: list[Block] = []
    first = True
    for block in list_all(view):
        if isinstance(block, Paragraph):
            chosen.append(block)
            continue
        sorts = first and bool(block.orders)
        first = first and not sorts
        sort, turned = (view.sort, view.sort_reversed) if sorts else (0, False)
        left = cap(choose_rows(block, view.filter_text, sort, turned))
        if left.rows or not view.filter_text:
            chosen.append(left)
    if view.filter_text and not any(isinstance(block, Sheet) for block in chosen):
        chosen.append(Paragraph("filter", f"no row of this tab is left by {view.filter_text}"))
    return chosen


def find_orders(view: TraceView) -> tuple[str, ...]:
    """Name the columns that the rows of the tab can be sorted by."""
    sheets = (block for block in list_all(view) if isinstance(block, Sheet) and block.orders)
    found = next(sheets, None)
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


def has_data(view: TraceView, tab: Tab) -> bool:
    """Tell whether the trace holds anything for a tab."""
    file = view.shown
    if tab is Tab.OVERVIEW:
        return True
    if tab is Tab.GAPS:
        return bool(file.gaps) or is_known(file.host_us)
    if tab is Tab.OPS:
        return bool(file.operators) or bool(_list_others(file, tab))
    if tab is Tab.KERNELS:
        return bool(file.kernels or file.copies)
    if tab is Tab.MEMORY:
        return bool(file.memory.peaks)
    return is_known(view.report.ranks) or is_known(file.communication)


def _is_table(value: object) -> bool:
    if isinstance(value, tuple):
        return len(value) > 0 and dataclasses.is_dataclass(value[0])
    return is_known(value) and dataclasses.is_dataclass(value)


def _tab_of(name: str) -> Tab:
    return next((tab for tab, words in _WORDS if any(word in name for word in words)), Tab.OPS)


def is_other(holder: str, name: str, value: object) -> bool:
    """Tell whether a field of a TraceFile, or of its part ``holder``, has no table of its own."""
    return holder in _KNOWN and name not in _KNOWN[holder] and _is_table(value)


def _list_others(file: TraceFile, tab: Tab) -> list[Block]:
    """Make a plain table of each result that has none of its own."""
    found: list[Block] = []
    for name in _KNOWN:
        holder = getattr(file, name) if name else file
        if not is_known(holder):
            continue
        for field in dataclasses.fields(holder):
            value = getattr(holder, field.name)
            if is_other(name, field.name, value) and _tab_of(f"{name} {field.name}") is tab:
                found += _plain_blocks(field.name.replace("_", " "), value)
    return found


def _plain_blocks(title: str, value: object) -> list[Block]:
    if isinstance(value, tuple):
        return [plain_sheet(title, value)]
    inner = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]  # type: ignore[arg-type]
    tables = [(name, one) for name, one in inner if _is_table(one)]
    if not tables:
        return [plain_sheet(title, (value,))]
    return [
        plain_sheet(f"{title}: {name.replace('_', ' ')}", one if isinstance(one, tuple) else (one,))
        for name, one in tables
    ]
