"""The state of the screen of a fleet: what was told last, the cursor, what keys have changed. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.doctor import GroupStack
from tpmon.model.results.fleet import FleetNode, FleetReport, FleetStacks
from tpmon.ui.kit.keys import Move, Overlay, RowsState, Search, moved, next_of
from tpmon.view.fleet.nodes import NodeOrder, has_text, mark_blamed, sort_nodes


class Form(Enum):
    """Name what a node is drawn as, in words for the last line."""

    ROWS = "a row a node"
    CARDS = "a glyph a card"
    GLYPHS = "a glyph a node"


class FleetOrder(Enum):
    """Name what keys ask of the whole fleet."""

    STACKS = "read the stacks of all nodes"
    BUNDLE = "write the evidence of all nodes for a ticket"
    RECORD = "record all nodes, or end that"


@dataclass(frozen=True, slots=True)
class StacksNews:
    """Say how far the stacks of all nodes are: who has answered, and once all have, their fold.

    ``shown`` are the collapsed stacks of the groups of the fold, one each.
    """

    answered: int
    asked: int
    folded: Applicable[FleetStacks] = NOT_APPLICABLE
    shown: tuple[GroupStack, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetNews:
    """Hold all that is told to the screen: the newest report, and the stacks that were asked for last.

    ``notices`` are all lines about recordings and bundles so far, ``records`` while all nodes are recorded.
    """

    report: FleetReport
    stacks: Applicable[StacksNews] = NOT_APPLICABLE
    notices: tuple[str, ...] = ()
    records: bool = False


@dataclass(frozen=True, slots=True)
class FleetView(RowsState):
    """Hold everything that the picture of a fleet depends on."""

    news: FleetNews
    told_ns: int
    """When that was told, on the monotonic clock."""
    cursor: str = ""
    """The node under the cursor, which stays on it when nodes move; "" where none is shown."""
    order: NodeOrder = NodeOrder.WORST
    form: Applicable[Form] = NOT_APPLICABLE
    """Of the nodes; by the room where no key has chosen one."""


def begin_fleet_view(now: datetime, now_ns: int, news: FleetNews, *, ascii_only: bool) -> FleetView:
    """Return the first view of a fleet."""
    none = Overlay.NONE
    view = FleetView(ascii_only, none, none, 0, False, "", "", Search(), now, now_ns, news, now_ns)
    return keep_node_cursor(view, view)


def list_nodes(view: FleetView) -> tuple[FleetNode, ...]:
    """Return all nodes, that which the verdict accuses with it."""
    return mark_blamed(view.news.report).nodes


def list_shown(view: FleetView) -> list[FleetNode]:
    """Return the nodes that the filter lets through, in their order."""
    nodes = sort_nodes(mark_blamed(view.news.report), view.order)
    return [one for one in nodes if has_text(one, view.filter_text)] if view.filter_text else nodes


def find_node(view: FleetView) -> FleetNode | None:
    """Return the node under the cursor."""
    return next((one for one in list_nodes(view) if one.node == view.cursor), None)


def keep_node_cursor(view: FleetView, before: FleetView) -> FleetView:
    """Keep the cursor on its node; one that the filter hides leaves it to the node in its place."""
    names = [one.node for one in list_shown(view)]
    if view.cursor in names:
        return view
    old = [one.node for one in list_shown(before)] if view.filter_text == before.filter_text else []
    place = old.index(view.cursor) if view.cursor in old else 0
    return replace(view, cursor=names[min(place, len(names) - 1)] if names else "")


def step(view: FleetView, by: int) -> FleetView:
    """Move the cursor by so many nodes in their order."""
    names = [one.node for one in list_shown(view)]
    if view.cursor not in names:
        return view
    return replace(view, cursor=names[max(0, min(names.index(view.cursor) + by, len(names) - 1))])


def action_move_node(view: FleetView, move: Move, page: int, per_line: int, last_line: int) -> FleetView:
    """Move the cursor by lines of ``per_line`` nodes and pages of lines, or scroll what covers the map."""
    if not view.is_bare:
        return replace(view, scroll=moved(view.scroll, move, page, last_line))
    names = [one.node for one in list_shown(view)]
    if view.cursor not in names:
        return view
    place, last = names.index(view.cursor), len(names) - 1
    if move in (Move.FIRST, Move.LAST):
        return replace(view, cursor=names[moved(place, move, page, last)])
    line = moved(place // per_line, move, page, last // per_line)
    return replace(view, cursor=names[min(line * per_line + place % per_line, last)])


def action_left(view: FleetView) -> FleetView:
    """Move the cursor to the node before."""
    return step(view, -1)


def action_right(view: FleetView) -> FleetView:
    """Move the cursor to the next node."""
    return step(view, 1)


def action_sort_nodes(view: FleetView) -> FleetView:
    """Sort by the next order, and say which."""
    order = next_of(list(NodeOrder), view.order)
    return replace(view, order=order, message=f"sorted: {order.value}")


def action_form(view: FleetView) -> FleetView:
    """Draw the nodes in the next form, after the last as the room is, and say which."""
    forms: list[Applicable[Form]] = [NOT_APPLICABLE, *Form]
    form = next_of(forms, view.form)
    said = form.value if is_known(form) else "as the room is"
    return replace(view, form=form, message=f"drawn: {said}")


def is_reading(view: FleetView) -> bool:
    """Tell whether stacks were asked for and not all nodes have answered."""
    stacks = view.news.stacks
    return is_known(stacks) and not is_known(stacks.folded)
