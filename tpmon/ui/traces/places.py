"""The lines of what the screen of traces shows, to find text in, and the places that one can go to. Pure."""

from __future__ import annotations

from dataclasses import replace

from tpmon.ui.kit.find import MOST_COLUMNS, Places, look_under, name_goals, pick_goal, write_text
from tpmon.ui.kit.keys import Overlay
from tpmon.ui.traces.layout import text_over
from tpmon.ui.traces.state import TraceView
from tpmon.ui.traces.tabs import action_tab, list_blocks, with_cursor
from tpmon.view.blocks import Block, Paragraph, Unit, list_units
from tpmon.view.layout import Size, Table


def spot_of(view: TraceView) -> object:
    """Return what names the tab or text that is shown."""
    return look_under(view).overlay, view.tab, view.file


def places_of(view: TraceView, size: Size) -> Places[TraceView]:
    """Return the lines of the text over the tabs, else the rows and paragraphs of the tab or stack."""
    text = text_over(view, Size(size.width + view.search.left, size.height))
    if text is not None:
        above, found = size.height // 3, view.search.found
        return Places(
            [write_text(line) for line in text],
            found if found >= 0 else view.scroll,
            lambda number: replace(view, scroll=max(0, number - above)),
        )
    blocks = list_blocks(view)
    texts = [_write_unit(blocks, unit) for unit in list_units(blocks)]
    return Places(texts, min(view.cursor, max(0, len(texts) - 1)), lambda number: _move_to(view, number))


def _write_unit(blocks: list[Block], unit: Unit) -> str:
    block = blocks[unit.block]
    if isinstance(block, Paragraph):
        return f"{block.label} {block.text}{block.pasted}"
    row = block.rows[unit.row]
    return f"{write_text(Table(block.columns, MOST_COLUMNS).paint_row(row))} {block.name(row)}"


def _move_to(view: TraceView, number: int) -> TraceView:
    return replace(view, scroll=number) if view.overlay is Overlay.STACK else with_cursor(view, number)


def go_to(view: TraceView, goal: str, size: Size) -> TraceView:
    """Go to a line of a text, to a row of the tab by its number from the top, or to a tab by its name."""
    if goal.isdecimal():
        places = places_of(view, size)
        if text_over(view, size) is not None:
            return replace(view, scroll=max(0, min(int(goal), len(places.texts)) - 1))
        return places.show(max(0, min(int(goal), len(places.texts)) - 1))
    tabs = {tab.name.casefold(): tab for tab in view.subject.tabs}
    found = pick_goal(tabs, goal)
    if not found:
        return replace(view, message=f"no such place: a number, {name_goals(tabs)}")
    return action_tab(replace(view, overlay=Overlay.NONE), tabs[found])
