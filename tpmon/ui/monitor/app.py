"""The Textual application around the painters: Updates and keys in, lines out.

It holds one ViewState, changes it by the pure functions of ``state.py`` and draws it by ``layout.py``. It
reads nothing of the target and starts no probe.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

# before textual: the shell sets what textual reads while it is imported
from tpmon.ui.kit.shell import LINE_CHARS, MESSAGE_SECONDS, Shell  # isort: skip

from textual.timer import Timer

from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.frame import Event
from tpmon.model.known import NOT_APPLICABLE, Missing, NotApplicable, is_known, known_or
from tpmon.model.results.capture import CaptureChoice, CaptureRequest, CaptureUpdate
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.sample import SampleRequest
from tpmon.model.units import clean_text
from tpmon.own_command import as_called
from tpmon.ui.kit.find import Places, mark_found
from tpmon.ui.kit.keys import Effect, Move, Overlay
from tpmon.ui.monitor import alerts as paste
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor import replay as times
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.controls import Controls, Inbox, Notice, Result, ScreenOptions, turns_bad
from tpmon.ui.monitor.keys import Demand, find_key, keys_shown, say_unused
from tpmon.ui.monitor.places import go_to, places_of, spot_of
from tpmon.ui.monitor.requests import keep_own_price, say_toast
from tpmon.ui.monitor.start import Paint, first_view
from tpmon.ui.monitor.state import ViewState
from tpmon.ui.terminal_io import editor
from tpmon.ui.terminal_io.driver import ScreenDriver
from tpmon.view.events import keep_newest

STALLED_SECONDS = 1.3
"""Without an Update for this long the screen is repainted, so that ages grow."""
REPAINT_SECONDS = 1.0
RESULT_SECONDS = 20.0
"""How long a late result, mostly a path, is shown, unless a key is pressed."""
_BEHIND_SECONDS = 0.2
_BEHIND_WRITES = 3
_MOST_NOTICES = 20


_NAMES: dict[type, str] = {
    DumpUpdate: "dump",
    SampleUpdate: "sample",
    CaptureUpdate: "capture",
    DumpRequest: "dump",
    SampleRequest: "sample",
    CaptureRequest: "capture",
    CaptureChoice: "capture",
}
"""The field of the view for what is read for an order; a new order clears it."""


class MonitorApp(Shell[ViewState]):
    """Show one job until a key, a signal or a crash ends it."""

    def __init__(
        self,
        options: ScreenOptions,
        controls: Controls,
        paint: Paint = panes.paint_screen,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepare an empty screen; ``clock`` is CLOCK_MONOTONIC in nanoseconds."""
        super().__init__(find_key, say_unused, clock)
        self._controls = controls
        self._rings = options.bell
        self._paint = paint
        self._inbox = Inbox()
        self._listening = False
        self._timer: Timer | None = None
        self._newest: Update | None = None
        self._readings: dict[str, Any] = {}
        self._events: tuple[Event, ...] = ()
        self._rows: tuple[int, ...] = ()
        self._message_until_ns = clock() + int(RESULT_SECONDS * 1e9) if options.remark else 0
        self.notices: deque[str] = deque(maxlen=_MOST_NOTICES)
        self.view = first_view(options, clock())

    # Updates in

    def receive(self, update: Update) -> None:
        """Take an Update from any thread; never block and never raise."""
        if self._inbox.put(update):
            self._tell_arrival()

    def receive_result(self, result: Result) -> None:
        """Take the result of an order from any thread; never block and never raise."""
        if isinstance(result, Notice):
            text = clean_text(result.text, LINE_CHARS)
            if not result.passing:
                self.notices.append(text)
            offer = "  (o opens it)" if result.trace else ""
            if result.trace:
                self.defer(lambda: setattr(self, "view", replace(self.view, captured=result.trace)))
            if is_known(records := result.records):
                self.defer(lambda: setattr(self, "view", replace(self.view, records=records)))
            self.defer(lambda: self.say(text + offer, RESULT_SECONDS))
        elif self._inbox.put(result):
            self._tell_arrival()

    def _tell_arrival(self) -> None:
        if self._listening:
            self._listening = self.defer(self._take_updates)

    def on_mount(self) -> None:
        """Start to listen, and paint what has come."""
        self._listening = True
        self._take_updates()

    def _take_updates(self) -> None:
        update, readings, events_since = self._inbox.take()
        self._events = keep_newest((*self._events, *events_since))
        if update is not None:
            self._newest = update
            self._events = known_or(update.events, self._events)
            if self._rings and turns_bad(update, events_since):
                self.bell()
        view = self.view
        for reading in readings:
            self._readings[_NAMES[type(reading)]] = reading
            if isinstance(reading, CaptureUpdate) and (toast := say_toast(view, reading)):
                self._message_until_ns = self._clock() + int(RESULT_SECONDS * 1e9)
                view = replace(view, message=clean_text(toast, LINE_CHARS))
        self.show(view, STALLED_SECONDS)

    # Lines out

    def show(self, view: ViewState, next_seconds: float = REPAINT_SECONDS) -> None:
        """Bring ``view`` up to date and paint it, again in ``next_seconds`` at the latest."""
        now_ns = self._clock()
        if view.message and now_ns > self._message_until_ns:
            view = replace(view, message="")
        if self._newest is not None and not is_known(view.paused_ns):
            view = actions.with_update(view, self._newest, self._events, now_ns)
        else:
            view = replace(view, now_ns=now_ns)
        for name, reading in self._readings.items():
            by_watch = isinstance(reading, DumpUpdate) and reading.state.request.asker is Asker.WATCH
            if not (by_watch and is_known(view.paused_ns)):
                view = replace(view, **{name: reading})
        view = actions.note_seen(view)
        rows = panes.rows_of(view)
        self.view = actions.keep_cursor(view, rows, self._rows)
        self._rows = rows
        if self._timer is not None:
            self._timer.stop()
        driver = self._driver
        if isinstance(driver, ScreenDriver):
            driver.check_size()
        if isinstance(driver, ScreenDriver) and driver.waiting_writes > _BEHIND_WRITES:
            # the terminal takes no more bytes: writing would block the loop, and the keys with it
            self._timer = self.set_timer(_BEHIND_SECONDS, self.repaint)
            return
        self._timer = self.set_timer(next_seconds, self.repaint)
        lines = self._paint(self.view, self._extent(), keys_shown(self.view))
        self._canvas.set_lines(mark_found(lines, self.view))

    # Keys in

    def begin(self) -> ViewState:
        """Return the view before a key, without the last message."""
        view = replace(self.view, message="")
        return view if is_known(view.playback) else replace(view, now_ns=self._clock())

    def type(self, view: ViewState, text: str) -> ViewState:
        """Add typed or pasted text to the time or to the filter."""
        return times.type_time(view, text) if view.overlay is Overlay.TIME else super().type(view, text)

    def move(self, view: ViewState, move: Move) -> ViewState:
        """Move the cursor, or scroll."""
        page, limit = panes.page_of(view, self._extent(), keys_shown(view))
        if view.overlay is Overlay.STACKS:
            return actions.action_walk(view, move, page)
        return actions.action_move(view, move, self._rows, page, limit)

    def places(self, view: ViewState) -> Places[ViewState]:
        """Return the lines of what is shown, to find text in."""
        return places_of(view, self._extent())

    def go(self, view: ViewState, goal: str) -> ViewState:
        """Go to a place by its name or number."""
        return go_to(view, goal, self._extent())

    def spot(self, view: ViewState) -> object:
        """Return what names the pane or text that is shown."""
        return spot_of(view)

    def act(self, view: ViewState, deed: Demand | Callable[[ViewState], ViewState]) -> ViewState:
        """Change the view as a key does, and send the session its request."""
        if not isinstance(deed, Demand):
            return deed(view)
        view, order = deed.make(view, self._rows)
        if not isinstance(order, (Missing, NotApplicable)):
            self._readings.pop(_NAMES.get(type(order), ""), None)
            self._controls.ask(order)
        return view

    def answer(self, view: ViewState) -> None:
        """Paint the view after a key, with its message for a while; a price stays until the next key."""
        view = keep_own_price(self.view, view)
        if view.interval_s != self.view.interval_s:
            self._controls.set_interval(view.interval_s)
            view = replace(view, message=f"reads every {view.interval_s:g} s")
        self._message_until_ns = self._clock() + int(MESSAGE_SECONDS * 1e9)
        self.show(view)

    def carry_out(self, effect: Effect) -> None:
        """Do what a key does beyond the picture."""
        if effect is Effect.COPY_RESULT:
            others = {Overlay.SAMPLE: self.view.sample, Overlay.CAPTURE: self.view.capture}
            result = others.get(self.view.overlay, self.view.dump)
            if not isinstance(result, (Missing, NotApplicable)):
                self.copy_text("all of it", self._controls.write(result))
        elif effect is Effect.EDIT and is_known(shown := actions.frame_under_cursor(self.view)):
            frame, job = shown.frame, self.view.frame
            pid = job.ranks[0].pid if is_known(job) and job.ranks else NOT_APPLICABLE
            self.plan_edit(lambda: editor.plan_edit(frame, os.environ, pid))
        elif effect is Effect.OPEN_TRACE and is_known(path := self.view.captured):
            said = f"reading {os.path.basename(path)}; q there returns here"
            failure = self.lend(self._controls.trace_command(path), said)  # the session goes on meanwhile
            self.say(f"{clean_text(path)} could not be shown: {failure}" if failure else "")
        elif effect in (Effect.COPY_TRY, Effect.COPY_FACTS) and is_known(self.view.frame):
            finding = self.view.frame.verdict
            if effect is Effect.COPY_TRY and is_known(finding) and is_known(finding.try_):
                self.copy_text("what to try", as_called(finding.try_))
            else:
                self.copy_text("the facts", paste.facts_text(self.view.frame))
        elif effect is Effect.NEXT:
            self.asks_next = self.view.following
            self.depart()
        else:
            super().carry_out(effect)

    def say(self, text: str, seconds: float = MESSAGE_SECONDS) -> None:
        """Show one line for some seconds, or until a key is pressed."""
        self._message_until_ns = self._clock() + int(seconds * 1e9)
        self.show(replace(self.view, message=clean_text(text, LINE_CHARS)))

    @property
    def text_left(self) -> str:
        """Return what to print after the screen: the last copy, and the results of errands."""
        return "\n".join(filter(None, (self.copied, *self.notices)))
