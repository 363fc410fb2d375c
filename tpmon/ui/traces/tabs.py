"""The content of each tab of a trace, filtered and sorted, and what keys do to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, is_known
from tpmon.model.results.trace import RankTable, StepRow, TraceFile, TraceRankRow, TraceReport
from tpmon.model.results.trace_tables import Stretch
from tpmon.ui.kit.keys import Move, Overlay, action_filter_type, moved, next_of
from tpmon.ui.traces.state import WHOLE, AnyTab, Tab, TraceView
from tpmon.view import trace_blocks, trace_job
from tpmon.view.blocks import Block, Paragraph, Sheet, Unit, cap, choose_rows, list_units
from tpmon.view.trace import Grouping

_LISTS = {
    Tab.OVERVIEW: trace_blocks.list_overview,
    Tab.GAPS: trace_blocks.list_gaps,
    Tab.OPS: trace_blocks.list_operators,
    Tab.KERNELS: trace_blocks.list_device,
    Tab.MEMORY: trace_blocks.list_memory,
}
"""The blocks of each tab of a single trace."""


def list_tab(report: TraceReport, number: int, tab: Tab) -> list[Block]:
    """Return the blocks of a tab, for the file of this number."""
    file = report.files[number]
    if tab not in _LISTS:
        return [*trace_job.list_job(report), *trace_blocks.list_communication(file)]
    job = report.job
    before = [trace_job.say_job(job)] if tab is Tab.OVERVIEW and is_known(job) else []
    return [*before, *_LISTS[tab](file)]


def has_data(file: TraceFile, ranks: Applicable[RankTable], tab: Tab) -> bool:
    """Tell whether a trace holds anything for a tab."""
    if tab is Tab.OVERVIEW:
        return True
    if tab is Tab.GAPS:
        return bool(file.gaps) or is_known(file.host_us)
    if tab is Tab.OPS:
        return bool(file.operators or file.ranges)
    if tab is Tab.KERNELS:
        return bool(file.kernels or file.copies) or is_known(file.step_work.phases)
    if tab is Tab.MEMORY:
        return bool(file.memory.peaks)
    return is_known(ranks) or is_known(file.communication)


def list_all(view: TraceView) -> list[Block]:
    """Return the blocks of the open tab or of the stack over it, before filtering and sorting."""
    if view.overlay is Overlay.STACK:
        found = find_row(replace(view, overlay=Overlay.NONE))
        return [] if found is None else list(found.sheet.inside(found.row))
    blocks = view.subject.list_blocks(view.file, view.tab)
    if view.tab is Tab.OPS and view.grouping is not Grouping.NAMES:
        return [*trace_blocks.list_groups(view.groups, view.grouping), *blocks[1:]]
    return blocks


def list_blocks(view: TraceView) -> list[Block]:
    """Return the blocks of the open tab, tables filtered, and sorted where the first one's orders fit."""
    blocks = list_all(view)
    if view.overlay is Overlay.STACK:
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
    """Name the columns to sort the tab by."""
    return _name_orders(list_all(view))


def _name_orders(blocks: Sequence[Block]) -> tuple[str, ...]:
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


MOST_PARTS = 4096
"""The smallest part of a step in the timeline: a few microseconds."""


def action_tab(view: TraceView, tab: AnyTab) -> TraceView:
    """Open a tab, in the order of the analysis."""
    return replace(view, tab=tab, sort=0, sort_reversed=False, filter_text="", scroll=0)


def action_next_tab(view: TraceView, step: int) -> TraceView:
    """Open the next tab or the one before."""
    return action_tab(view, next_of(view.subject.tabs, view.tab, step))


def action_next_file(view: TraceView, step: int) -> TraceView:
    """Show the next file or the one before, with the same tab open."""
    return choose_file(view, (view.file + step) % len(view.subject.paths))


def choose_file(view: TraceView, number: int) -> TraceView:
    """Show another file; its rows are others, so the cursors begin anew."""
    return replace(
        view, file=number, cursors=(0,) * len(Tab), stretch=WHOLE, lane=0, filter_text="", scroll=0
    )


def action_next_device(view: TraceView) -> TraceView:
    """Draw the timeline of the next device of the trace."""
    timeline = view.timeline
    lanes = len(timeline.devices) if is_known(timeline) else 1
    return replace(view, lane=(view.lane + 1) % max(lanes, 1))


def action_whole(view: TraceView) -> TraceView:
    """Draw the timeline of all steps."""
    return replace(view, stretch=WHOLE)


def steps_of(view: TraceView) -> int:
    """Count the steps that the timeline can show; a trace without marks is one."""
    return max(1, view.timeline.steps_in_all if is_known(view.timeline) else 1)


def action_closer(view: TraceView) -> TraceView:
    """Draw half of the shown steps, or half of the shown part of one step."""
    now = view.stretch
    count = min(now.count, steps_of(view) - now.first)
    if count > 1:
        return replace(view, stretch=Stretch(now.first, (count + 1) // 2))
    return replace(view, stretch=Stretch(now.first, 1, now.part * 2, min(now.parts * 2, MOST_PARTS)))


def action_wider(view: TraceView) -> TraceView:
    """Draw twice as much."""
    now, steps = view.stretch, steps_of(view)
    if now.parts > 1:
        return replace(view, stretch=Stretch(now.first, 1, now.part // 2, now.parts // 2))
    count = min(now.count * 2, steps)
    if count >= steps:
        return replace(view, stretch=WHOLE)
    return replace(view, stretch=Stretch(min(now.first, steps - count), count))


def action_along(view: TraceView, step: int) -> TraceView:
    """Draw the next stretch or the one before; from all steps go to the first or the last one."""
    now, steps = view.stretch, steps_of(view)
    if now.parts > 1:
        place = now.first * now.parts + now.part + step
        place = max(0, min(place, steps * now.parts - 1))
        return replace(view, stretch=Stretch(place // now.parts, 1, place % now.parts, now.parts))
    if now.count >= steps:
        return replace(view, stretch=Stretch(0 if step > 0 else steps - 1, 1))
    first = max(0, min(now.first + step * now.count, steps - now.count))
    return replace(view, stretch=Stretch(first, now.count))


def action_move(view: TraceView, move: Move, page: int, limit: int) -> TraceView:
    """Move the cursor through paragraphs and rows, or scroll what covers them, at most to ``limit``."""
    if view.overlay in (Overlay.HELP, Overlay.DETAILS):
        return replace(view, scroll=moved(view.scroll, move, page, limit))
    last = max(0, len(list_units(list_blocks(view))) - 1)
    if view.overlay is Overlay.STACK:
        return replace(view, scroll=moved(min(view.scroll, last), move, page, last))
    return with_cursor(view, moved(min(view.cursor, last), move, page, last))


def with_cursor(view: TraceView, place: int) -> TraceView:
    """Put the cursor of the open tab on a paragraph or row."""
    cursors = list(view.cursors)
    cursors[view.tab.value - 1] = place
    return replace(view, cursors=tuple(cursors))


def action_enter(view: TraceView) -> TraceView:
    """Open the row under the cursor: its stack or fields, a rank's trace, a step's timeline."""
    found = find_row(view)
    if found is None:
        return view
    row = found.row
    if isinstance(row, TraceRankRow):
        return action_tab(choose_file(view, view.subject.paths.index(row.path)), Tab.OVERVIEW)
    if isinstance(row, StepRow):
        tables = (block.rows for block in list_all(view) if isinstance(block, Sheet))
        steps = next(rows for rows in tables if row in rows)
        return replace(view, stretch=Stretch(steps.index(row), 1))
    inside = found.sheet.inside(row)
    if inside:
        return replace(view, overlay=Overlay.STACK, scroll=_find_begin(inside))
    return replace(view, overlay=Overlay.DETAILS, scroll=0)


def _find_begin(blocks: Sequence[Block]) -> int:
    for place, unit in enumerate(list_units(blocks)):
        block = blocks[unit.block]
        if isinstance(block, Sheet) and unit.row == block.begin:
            return place
    return 0


def action_group(view: TraceView) -> TraceView:
    """Group the operators by the next criterion."""
    said = {Grouping.NAMES: "name", Grouping.SHAPES: "input shapes", Grouping.LINES: "line of the program"}
    grouping = next_of(tuple(Grouping), view.grouping)
    changed = replace(view, grouping=grouping, sort=0, sort_reversed=False)
    return replace(with_cursor(changed, 0), message=f"operators by {said[grouping]}")


def action_next_table(view: TraceView, step: int) -> TraceView:
    """Put the cursor on the first row of the next table, or of the one before."""
    starts = list_tables(view)
    later = [start for start in starts if start > view.cursor]
    before = [start for start in starts if start < view.cursor]
    if step > 0:
        return with_cursor(view, later[0] if later else starts[0])
    return with_cursor(view, before[-1] if before else starts[-1])


def list_tables(view: TraceView) -> list[int]:
    """Return the places of the first rows of the tab's tables."""
    units = list_units(list_blocks(view))
    return [place for place, unit in enumerate(units) if unit.row == 0]


def action_sort_next(view: TraceView) -> TraceView:
    """Sort by the next column, largest first; after the last one by the analysis."""
    orders = find_orders(view)
    sort = (view.sort + 1) % (len(orders) + 1)
    named = orders[sort - 1] if sort else "as analysed"
    return _to_top(replace(view, sort=sort, sort_reversed=False, message=f"sorted: {named}"))


def _to_top(view: TraceView) -> TraceView:
    return with_cursor(view, next(iter(list_tables(view)), 0))


def then_top(action: Callable[[TraceView], TraceView]) -> Callable[[TraceView], TraceView]:
    """Put the cursor on the first row after an action on the rows."""
    return lambda view: _to_top(action(view))


def action_type(view: TraceView, text: str) -> TraceView:
    """Add typed or pasted text to the filter."""
    return _to_top(action_filter_type(view, text))
