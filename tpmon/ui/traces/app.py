"""The screen of traces and snapshots: keys in, lines out. It reads no file."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

# before textual: the shell sets what textual reads while it is imported
from tpmon.ui.kit.shell import LINE_CHARS, MESSAGE_SECONDS, Shell, draw  # isort: skip

from textual.timer import Timer

from tpmon.model.known import NOT_APPLICABLE, Known, is_known
from tpmon.model.units import clean_text
from tpmon.ui.kit.find import Places, mark_found
from tpmon.ui.kit.keys import Effect, Move
from tpmon.ui.terminal_io import editor
from tpmon.ui.terminal_io.terminal import ScreenResult, TerminalGuard, require_terminal
from tpmon.ui.traces import tabs as actions
from tpmon.ui.traces.keys import find_trace_key, say_trace_unused, trace_keys_shown
from tpmon.ui.traces.layout import page_of_trace, paint_trace, room_for_time
from tpmon.ui.traces.places import go_to, places_of, spot_of
from tpmon.ui.traces.state import WHOLE, Tab, TraceControls, TraceView, begin_view
from tpmon.ui.traces.tabs import find_paragraph, find_row, list_blocks
from tpmon.view.trace import Grouping

if TYPE_CHECKING:
    from tpmon.ui.traces.state import ScreenSubject


class TraceApp(Shell[TraceView]):
    """Show one analysis until a key or a signal ends it."""

    def __init__(self, subject: ScreenSubject, controls: TraceControls, *, ascii_only: bool) -> None:
        super().__init__(find_trace_key, say_trace_unused)
        self._controls = controls
        self._timer: Timer | None = None
        self._drawn: tuple[object, ...] = ()
        self._grouped: tuple[int, Grouping] = (0, Grouping.NAMES)
        timeline = controls.look(0, 0, WHOLE, room_for_time(80))
        self.view = replace(begin_view(subject, ascii_only=ascii_only), timeline=timeline)

    def on_mount(self) -> None:
        """Paint for the first time."""
        self.repaint()

    def show(self, view: TraceView) -> None:
        """Paint a view, with its timeline and its operators."""
        size = self._extent()
        asked = (view.file, view.lane, view.stretch, room_for_time(size.width))
        if asked != self._drawn and size.width:
            self._drawn = asked
            view = replace(view, timeline=self._controls.look(*asked))
        self.view = view = self._regroup(view)
        if size.width:
            self._canvas.set_lines(mark_found(paint_trace(view, size, trace_keys_shown(view)), view))

    def _regroup(self, view: TraceView) -> TraceView:
        """Ask for the operators as grouped, once for each file and grouping."""
        asked = (view.file, view.grouping)
        if view.tab is Tab.OPS and asked != self._grouped:
            self._grouped = asked
            by_name = view.grouping is Grouping.NAMES
            return replace(view, groups=NOT_APPLICABLE if by_name else self._controls.group(*asked))
        return view

    def say(self, text: str, seconds: float = MESSAGE_SECONDS) -> None:
        """Show one line for some seconds, or until a key is pressed."""
        if self._timer is not None:
            self._timer.stop()
        self._timer = (
            self.set_timer(seconds, lambda: self.show(replace(self.view, message=""))) if text else None
        )
        self.show(replace(self.view, message=clean_text(text, LINE_CHARS)))

    def type(self, view: TraceView, text: str) -> TraceView:
        """Add typed or pasted text to the filter."""
        return actions.action_type(view, text)

    def move(self, view: TraceView, move: Move) -> TraceView:
        """Move the cursor, or scroll what covers the tabs."""
        page, limit = page_of_trace(view, self._extent(), trace_keys_shown(view))
        return actions.action_move(view, move, page, limit)

    def places(self, view: TraceView) -> Places[TraceView]:
        """Return the lines of what is shown, to find text in."""
        return places_of(view, self._extent())

    def go(self, view: TraceView, goal: str) -> TraceView:
        """Go to a place by its name or number."""
        return go_to(view, goal, self._extent())

    def spot(self, view: TraceView) -> object:
        """Return what names the tab or text that is shown."""
        return spot_of(view)

    def answer(self, view: TraceView) -> None:
        """Paint the view after a key, with its message for a while."""
        if view.message:
            self.view = view
            self.say(view.message)
        else:
            self.show(view)

    def carry_out(self, effect: Effect) -> None:
        """Do what a key does beyond the picture."""
        if effect is Effect.COPY_RESULT:
            self._copy_chosen()
        elif effect is Effect.EDIT:
            self._open_line()
        else:
            super().carry_out(effect)

    def _copy_chosen(self) -> None:
        paragraph = find_paragraph(self.view, list_blocks(self.view))
        if paragraph is not None:
            self.copy_text(paragraph.label or "the text", paragraph.text)
            return
        found = find_row(self.view)
        if found is not None:
            self.copy_text("the row", found.sheet.name(found.row))

    def _open_line(self) -> None:
        found = find_row(self.view)
        if found is None:
            return
        name = found.sheet.source(found.row) or found.sheet.name(found.row)
        number, find = self.view.file, self._controls.find_line
        beside = os.path.dirname(os.path.abspath(self.view.path))

        def plan() -> Known[editor.EditorCall]:
            place = find(number, name)
            return editor.plan_place(place, beside, os.environ) if is_known(place) else place

        self.plan_edit(plan)


def run_trace_screen(subject: ScreenSubject, controls: TraceControls, *, ascii_only: bool) -> ScreenResult:
    """Draw an analysis until it ends and return how it ended; raise as ``require_terminal``."""
    require_terminal()
    app = TraceApp(subject, controls, ascii_only=ascii_only)
    with TerminalGuard(app.leave, lambda: None) as guard:
        return draw(app, guard)
