"""Ask for a bundle: what it does first, then the bundle. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, is_known
from tpmon.ui.monitor.ask_dump import LOOKS, LOOKS_EVERY_S
from tpmon.ui.monitor.controls import Asked, Errand
from tpmon.ui.monitor.state import ViewState

OFFER_SECONDS = 6.0
"""As long as the offer stands in the last line."""


def ask_bundle(view: ViewState, _rows: Sequence[int]) -> Asked:
    """Say what a bundle is; pressed again, have it written."""
    offered_ns = view.offered_ns
    if is_known(offered_ns) and view.now_ns - offered_ns < OFFER_SECONDS * 1e9:
        asked = replace(view, offered_ns=NOT_APPLICABLE, message="writes a bundle, some seconds ...")
        return asked, Errand.WRITE_BUNDLE
    looks = f"{LOOKS} looks in {LOOKS * LOOKS_EVERY_S:g} s, no stop"
    offer = f"b again writes a bundle here: {'no stacks' if view.no_stacks else looks}, files for a ticket"
    return replace(view, offered_ns=view.now_ns, message=offer), NOT_APPLICABLE
