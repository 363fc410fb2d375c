"""When each key of the screen of a fleet works, and what it does; ``keys.txt`` has its signs and its words.

Knows nothing of textual.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Union

from tpmon.model.known import is_known
from tpmon.ui.fleet import state as actions
from tpmon.ui.fleet.state import FleetOrder, FleetView
from tpmon.ui.kit import keys as kit
from tpmon.ui.kit.keys import Overlay

When = kit.Situation[FleetView]
Deed = Union[Callable[[FleetView], FleetView], FleetOrder, kit.Move, kit.Effect]
FleetKey = kit.Key[FleetView, Deed]


def _has_try(view: FleetView) -> bool:
    verdict = view.news.report.verdict
    return is_known(verdict) and is_known(verdict.try_)


def _has_stacks(view: FleetView) -> bool:
    stacks = view.news.stacks
    return view.overlay is Overlay.STACKS and is_known(stacks) and is_known(stacks.folded)


MAP = When(lambda view: view.is_bare, "with nothing over the nodes")
NODE = When(lambda view: view.is_bare and view.cursor != "", "on a node")
OVER = When(lambda view: not view.is_bare, "while something is over the nodes")
FILTERED = When(lambda view: view.is_bare and view.filter_text != "", "while a filter is set")
TRIABLE = When(
    lambda view: kit.NOT_TYPING.holds(view) and not _has_stacks(view) and _has_try(view),
    "while the verdict has something to try",
)
KEPT = When(
    lambda view: (view.is_bare or view.overlay is Overlay.STACKS) and is_known(view.news.stacks),
    "once stacks were asked for",
)
FOLDED = When(_has_stacks, "in the stacks, once they are there")

USES: dict[str, tuple[Deed, When]] = {
    **kit.ROWS,
    "open-node": (kit.Effect.ATTACH, NODE),
    "close": (kit.action_close, OVER),
    "fold-all": (FleetOrder.STACKS, kit.NOT_TYPING),
    "bundle-all": (FleetOrder.BUNDLE, MAP),
    "record-all": (FleetOrder.RECORD, MAP),
    "stacks-read": (partial(kit.action_overlay, overlay=Overlay.STACKS), KEPT),
    "copy-try": (kit.Effect.COPY_TRY, TRIABLE),
    "copy-stacks": (kit.Effect.COPY_RESULT, FOLDED),
    "left": (actions.action_left, MAP),
    "right": (actions.action_right, MAP),
    "form": (actions.action_form, MAP),
    "sort": (actions.action_sort_nodes, MAP),
    "filter": (partial(kit.action_overlay, overlay=Overlay.FILTER), MAP),
    "filter-clear": (kit.CLEAR_FILTER, FILTERED),
}
FLEET_KEYS: tuple[FleetKey, ...] = kit.read_keys(os.path.join(os.path.dirname(__file__), "keys.txt"), USES)


def find_fleet_key(name: str, view: FleetView) -> FleetKey | None:
    """Return the row that the pressed key means now, if any."""
    return kit.find_in(FLEET_KEYS, name, view)


def say_fleet_unused(name: str, _view: FleetView) -> str:
    """Say why a key did nothing; "" for keys without a letter."""
    return kit.say_why_not(FLEET_KEYS, name, "")


def fleet_keys_shown(view: FleetView) -> tuple[kit.KeyHelp, ...]:
    """Return the keys that work now; under an open help also those below it."""
    return kit.list_shown(FLEET_KEYS, view, "Fleet: ")
