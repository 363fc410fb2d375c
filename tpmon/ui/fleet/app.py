"""The screen of a fleet: what its nodes tell and keys in, lines out, and the node that was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

# before textual: the shell sets what textual reads while it is imported
from tpmon.ui.kit.rows import RowsShell  # isort: skip

from tpmon.model.known import is_known
from tpmon.model.results.fleet import NodeState
from tpmon.own_command import as_called
from tpmon.ui.fleet.controls import FleetControls
from tpmon.ui.fleet.keys import find_fleet_key, fleet_keys_shown, say_fleet_unused
from tpmon.ui.fleet.layout import last_line, paint_fleet, plan_at
from tpmon.ui.fleet.state import (
    FleetNews,
    FleetOrder,
    FleetView,
    action_move_node,
    find_node,
    is_reading,
    keep_node_cursor,
)
from tpmon.ui.kit.keys import Effect, Move, Overlay
from tpmon.view.fleet.nodes import describe_node
from tpmon.view.layout import Line, Size

RESULT_SECONDS = 20.0
"""How long a late result, mostly a path, is shown, unless a key is pressed."""
_SAID = {
    FleetOrder.BUNDLE: "gathers stacks and readings of all nodes for a bundle",
    FleetOrder.RECORD: "recording all nodes: begins or ends",
}


class FleetApp(RowsShell[FleetView]):
    """Show a fleet until a key or a signal ends it, or a node is chosen."""

    def __init__(self, view: FleetView, controls: FleetControls, *clocks: Any) -> None:
        """Begin with a view."""
        super().__init__(view, find_fleet_key, say_fleet_unused, *clocks)
        self._controls = controls
        self.chosen = ""
        """The node whose screen is wanted."""

    def receive(self, news: FleetNews) -> None:
        """Take what is told in any thread; never block and never raise."""
        self.defer(lambda: self._take(news))

    def _take(self, news: FleetNews) -> None:
        said = news.notices[len(self.view.news.notices) :]
        self.show(replace(self.view, news=news, told_ns=self._clock()))
        if said:
            self.say(said[-1], RESULT_SECONDS)

    def settle(self, view: FleetView) -> FleetView:
        """Keep the cursor on its node."""
        return keep_node_cursor(view, self.view)

    def paint(self, view: FleetView, size: Size) -> list[Line]:
        """Paint the whole screen."""
        return paint_fleet(view, size, fleet_keys_shown(view))

    def move(self, view: FleetView, move: Move) -> FleetView:
        """Move the cursor, or scroll."""
        size = self._extent()
        if view.is_bare:
            plan = plan_at(view, size)
            return action_move_node(view, move, plan.room, plan.grid.per_line, 0)
        limit = last_line(view, size, fleet_keys_shown(view))
        return action_move_node(view, move, max(1, size.height - 4), 1, limit)

    def act(self, view: FleetView, deed: FleetOrder | Callable[[FleetView], FleetView]) -> FleetView:
        """Change the view as a key does, and hand on what it asks of the fleet."""
        if not isinstance(deed, FleetOrder):
            return deed(view)
        if deed is not FleetOrder.STACKS:
            self._controls.ask(deed)
            return replace(view, message=_SAID[deed])
        view = replace(view, overlay=Overlay.STACKS, behind=Overlay.NONE, scroll=0)
        if is_reading(view):
            return replace(view, message="the stacks are read already: wait for their end")
        self._controls.ask(deed)
        return view

    def carry_out(self, effect: Effect) -> None:
        """Do what a key does beyond the picture."""
        verdict, stacks = self.view.news.report.verdict, self.view.news.stacks
        if effect is Effect.ATTACH:
            self._choose()
        elif effect is Effect.COPY_TRY and is_known(verdict) and is_known(verdict.try_):
            self.copy_text("what to try", as_called(verdict.try_))
        elif effect is Effect.COPY_RESULT and is_known(stacks) and is_known(stacks.folded):
            self.copy_text("all of it", self._controls.write(stacks.folded))
        else:
            super().carry_out(effect)

    def _choose(self) -> None:
        node = find_node(self.view)
        if node is None:
            return
        if node.state is not NodeState.LIVE:
            self.say(f"only a live node has a screen; {describe_node(node)}")
            return
        self.chosen = node.node
        self.depart()
