"""The picture before the first key and the first reading."""

from __future__ import annotations

from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.ui.monitor.controls import ScreenOptions
from tpmon.ui.monitor.state import Overlay, Pane, SortBy, ViewState


def first_view(options: ScreenOptions, now_ns: int) -> ViewState:
    """Return the view that a screen starts with."""
    return ViewState(
        frame=Missing("waiting for the first reading"),
        pulses=(),
        events=(),
        now_ns=now_ns,
        interval_s=options.interval_s,
        paused_ns=NOT_APPLICABLE,
        zoom=NOT_APPLICABLE,
        focus=Pane.WORKERS,
        cursor_pid=NOT_APPLICABLE,
        scroll=0,
        sort=SortBy.CPU,
        sort_reversed=False,
        filter_text="",
        overlay=Overlay.NONE,
        message="",
        ascii_only=options.ascii_only,
        readonly=options.readonly,
        no_stacks=options.no_stacks,
    )
