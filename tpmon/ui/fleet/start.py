"""Open the screen of a fleet: draw the nodes that are known so far, and hand over to its screen."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tpmon.model.frozen import dataclass
from tpmon.model.known import known_or
from tpmon.ui.fleet.controls import FleetControls
from tpmon.ui.fleet.keys import fleet_keys_shown
from tpmon.ui.fleet.layout import paint_fleet
from tpmon.ui.fleet.state import FleetNews, FleetView, begin_fleet_view, keep_node_cursor
from tpmon.ui.kit.start import Feed, draw_rows
from tpmon.ui.terminal_io.terminal import ScreenResult
from tpmon.view.layout import Line, Size

if TYPE_CHECKING:
    from tpmon.ui.fleet.app import FleetApp


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Hold how the screen ended: with a node that was chosen, "" as any screen; and what was set in it."""

    screen: ScreenResult
    node: str
    view: FleetView


def first_fleet_view(news: FleetNews, *, ascii_only: bool) -> FleetView:
    """Return the view with which the screen opens."""
    return begin_fleet_view(datetime.now().astimezone(), time.monotonic_ns(), news, ascii_only=ascii_only)


def run_fleet_screen(view: FleetView, controls: FleetControls) -> NodeChoice:
    """Draw a fleet on a terminal until it ends or a node is chosen; it raises what ``draw_rows`` raises."""
    feed, shown = Feed[FleetNews](), list["FleetApp"]()

    def begin() -> FleetView:
        controls.listen(feed.take)
        now, now_ns = datetime.now().astimezone(), time.monotonic_ns()
        news = known_or(feed.newest(), view.news)
        return keep_node_cursor(replace(view, news=news, now=now, now_ns=now_ns, told_ns=now_ns), view)

    def load(first: FleetView) -> FleetApp:
        from tpmon.ui.fleet.app import FleetApp  # noqa: PLC0415  # textual, after the first picture

        app = FleetApp(first, controls)
        shown.append(app)
        feed.hand_to(app.receive)
        return app

    result = draw_rows(begin, _paint, load, controls.stop)
    return NodeChoice(result, shown[0].chosen, shown[0].view) if shown else NodeChoice(result, "", view)


def _paint(view: FleetView, size: Size) -> list[Line]:
    return paint_fleet(view, size, fleet_keys_shown(view))
