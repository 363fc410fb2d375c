"""The Textual application around the painters: Updates and keys in, lines out.

It holds one ViewState, changes it by the pure functions of ``actions.py`` and draws what
``panes.py`` paints of it. It reads nothing of the target and starts no probe. Only this module,
``driver.py`` and ``canvas.py`` import textual, so that ``--json`` and ``--help`` never pay for it.
"""

from __future__ import annotations

import os

# textual reads these while it is imported. No kitty keys: a killed process would leave them on.
# No in-band resize: one of 0x0 pixels makes the next mouse report divide by zero (textual 6706).
os.environ.update(TEXTUAL_ANIMATIONS="none", TEXTUAL_DISABLE_KITTY_KEY="1", TEXTUAL_SMOOTH_SCROLL="0")
os.environ.setdefault("ESCDELAY", "25")

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from textual import events
from textual.app import App, ComposeResult
from textual.message import Message
from textual.timer import Timer

from tpmon.errors import ExitCode
from tpmon.model.dump import Asker, DumpRequest
from tpmon.model.frame import Event
from tpmon.model.known import Missing, NotApplicable, is_known
from tpmon.model.results import DumpUpdate, SampleUpdate, Update
from tpmon.model.sample import SampleRequest
from tpmon.ui import actions, clipboard, editor, panes, stack_rows
from tpmon.ui.ask_capture import forget_capture
from tpmon.ui.ask_dump import forget_price
from tpmon.ui.canvas import Canvas
from tpmon.ui.controls import Controls, Notice, Result, ScreenOptions, ScreenResult
from tpmon.ui.driver import ScreenDriver
from tpmon.ui.first_view import first_view
from tpmon.ui.inbox import EVENT_LIMIT, Inbox, turns_bad
from tpmon.ui.key_row import Ask, ByDigit, Effect, OpenRow
from tpmon.ui.keys import find_key, keys_shown, say_unused
from tpmon.ui.messages import Planned, Told
from tpmon.ui.terminal import LEAVE_SECONDS, TerminalGuard, lend_terminal, report_crash, require_terminal
from tpmon.ui.view import KeyHelp, Line, Overlay, Pane, Size, ViewState

STALLED_SECONDS = 1.3
"""No Update for this long: repaint all the same, so that ages grow on the screen."""
REPAINT_SECONDS = 1.0
MESSAGE_SECONDS = 6.0
RESULT_SECONDS = 20.0
"""What was asked for and came later, mostly a path: until a key is pressed, or so long."""
_JOINED_SECONDS = 0.5
"""Resizes this close may have been joined."""
_SETTLE_SECONDS = 0.05
"""Textual joins resizes within 1/120 s."""
_BEHIND_SECONDS = 0.2
_BEHIND_WRITES = 3
_MOST_NOTICES = 20

Paint = Callable[[ViewState, Size, Sequence[KeyHelp]], Sequence[Line]]


class MonitorApp(App[None]):
    """Show one job until a key, a signal or a crash ends it."""

    CSS = "Screen { overflow: hidden; }"
    ENABLE_COMMAND_PALETTE = False

    class Arrived(Message):
        """Say that the inbox is no longer empty."""

    def __init__(
        self,
        options: ScreenOptions,
        controls: Controls,
        paint: Paint = panes.paint_screen,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepare an empty screen; ``clock`` is CLOCK_MONOTONIC in nanoseconds."""
        super().__init__(driver_class=ScreenDriver, ansi_color=True)
        self._controls = controls
        self._rings = options.bell
        self._paint = paint
        self._clock = clock
        self._canvas = Canvas(not self.no_color, self._on_tick)
        self._inbox = Inbox()
        self._listening = False
        self._timer: Timer | None = None
        self._newest: Update | None = None
        self._dump: DumpUpdate | None = None
        self._sample: SampleUpdate | None = None
        self._events: deque[Event] = deque(maxlen=EVENT_LIMIT)
        self._rows: tuple[int, ...] = ()
        self._message_until_ns = 0
        self._resized: tuple[object, int] = (None, 0)
        self.crash: Exception | None = None
        self.copied = ""
        self.notices: deque[str] = deque(maxlen=_MOST_NOTICES)
        self.guard: TerminalGuard | None = None
        self.view = first_view(options, clock())

    # Updates in

    def receive(self, update: Update) -> None:
        """Take an Update from any thread; never blocks and never raises."""
        if self._inbox.put(update):
            self._tell_arrival()

    def receive_result(self, result: Result) -> None:
        """Take what came of an order from any thread; never blocks and never raises."""
        if isinstance(result, Notice):
            if not result.passing:
                self.notices.append(result.text)
            with suppress(RuntimeError):  # the screen has ended; the line is printed
                self.post_message(Told(result.text, RESULT_SECONDS))
        elif self._inbox.put_reading(result):
            self._tell_arrival()

    def _tell_arrival(self) -> None:
        if self._listening:
            try:
                self.post_message(self.Arrived())
            except RuntimeError:
                self._listening = False  # the loop is closed: the screen has ended

    def on_mount(self) -> None:
        """Start to listen and paint what has come so far."""
        self._listening = True
        self._take_updates()

    def on_monitor_app_arrived(self, _message: Arrived) -> None:
        """Show what the inbox holds."""
        self._take_updates()

    def _take_updates(self) -> None:
        update, events_since = self._inbox.take()
        self._events.extend(events_since)
        if update is not None:
            self._newest = update
            if self._rings and turns_bad(update, events_since):
                self.bell()
        dump, sample = self._inbox.take_readings()
        self._dump, self._sample = dump or self._dump, sample or self._sample
        self._show(self.view, STALLED_SECONDS)

    # Lines out

    def _show(self, view: ViewState, next_seconds: float = REPAINT_SECONDS) -> None:
        """Bring ``view`` up to date and paint it; paint again in ``next_seconds`` at the latest."""
        now_ns = self._clock()
        if view.message and now_ns > self._message_until_ns:
            view = replace(view, message="")
        if self._newest is not None and not is_known(view.paused_ns):
            newest = self._newest
            view = replace(
                view, frame=newest.frame, pulses=newest.pulses, events=tuple(self._events), now_ns=now_ns
            )
        else:
            view = replace(view, now_ns=now_ns)
        dump = self._dump
        if dump is not None and (not is_known(view.paused_ns) or dump.state.request.asker is Asker.KEY):
            view = replace(view, dump=dump)
        if self._sample is not None:
            view = replace(view, sample=self._sample)
        view = stack_rows.note_seen(view)
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
            self._timer = self.set_timer(_BEHIND_SECONDS, self._on_tick)
            return
        self._timer = self.set_timer(next_seconds, self._on_tick)
        self._canvas.set_lines(self._paint(self.view, self._extent(), keys_shown(self.view)))

    def _extent(self) -> Size:
        return Size(self._canvas.size.width, self._canvas.size.height)

    def _on_tick(self) -> None:
        self._show(self.view)

    def _redraw(self) -> None:
        """Send every cell again: the terminal no longer shows what was sent."""
        self.screen.refresh(layout=True)
        self._show(self.view)

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield self._canvas

    # Keys in

    async def on_event(self, event: events.Event) -> None:
        """Keep keys and pastes for the table of keys; mouse reports were never asked for."""
        if isinstance(event, events.Key):
            typed = event.character is not None and event.is_printable and "alt+" not in event.key
            self.press(event.character if typed and event.character else event.key)
        elif isinstance(event, events.Paste):
            if self.view.overlay is Overlay.FILTER:
                self._show(actions.action_filter_type(self.view, event.text))
        elif not isinstance(event, events.InputEvent):
            if isinstance(event, events.Resize) and self._listening:
                # Smaller and back within a frame is no change to textual, which joins the two, and
                # after fg there is none at all; the terminal has lost cells each time.
                before, before_ns = self._resized
                self._resized = (event.size, self._clock())
                joined = before != event.size and self._resized[1] - before_ns < _JOINED_SECONDS * 1e9
                if event.size == self.size:
                    self._redraw()
                elif joined and before is not None:
                    self.set_timer(_SETTLE_SECONDS, self._redraw)
            await super().on_event(event)

    def press(self, name: str) -> None:
        """Do what the key ``name`` means now."""
        view = replace(self.view, message="", now_ns=self._clock())
        key = find_key(name, view)
        if key is None or not isinstance(key.deed, Ask):
            view = forget_price(view)
        if key is None or key.id != "capture":
            view = forget_capture(view)
        if key is None:
            if view.overlay is Overlay.FILTER and len(name) == 1:
                view = actions.action_filter_type(view, name)
            elif view.overlay is Overlay.HELP:
                view = actions.action_close(view)
            else:
                view = replace(view, message=say_unused(name, view))
        elif isinstance(key.deed, Effect):
            self._show(view)
            self._carry_out(key.deed)
            return
        elif isinstance(key.deed, Ask):
            view, order = key.deed.make(view, self._rows)
            if not isinstance(order, (Missing, NotApplicable)):
                self._dump = None if isinstance(order, DumpRequest) else self._dump
                self._sample = None if isinstance(order, SampleRequest) else self._sample
                self._controls.ask(order)
        elif isinstance(key.deed, actions.Move):
            page, limit = panes.page_of(view, self._extent(), keys_shown(view))
            if view.overlay is Overlay.STACKS:
                view = stack_rows.action_walk(view, key.deed, page)
            else:
                view = actions.action_move(view, key.deed, self._rows, page, limit)
        elif isinstance(key.deed, OpenRow):
            view = actions.action_row_overlay(view, key.deed.overlay, self._rows)
        elif isinstance(key.deed, ByDigit):
            view = key.deed.act(view, Pane(int(name)))
        else:
            view = key.deed(view)
        if view.interval_s != self.view.interval_s:
            self._controls.set_interval(view.interval_s)
            view = replace(view, message=f"reads every {view.interval_s:g} s")
        self._message_until_ns = self._clock() + int(MESSAGE_SECONDS * 1e9)
        self._show(view)

    def _carry_out(self, effect: Effect) -> None:
        if effect is Effect.QUIT:
            self.leave(ExitCode.OK)
        elif effect is Effect.REDRAW:
            self._redraw()
        elif effect is Effect.SUSPEND:
            self.action_suspend_process()
        elif effect is Effect.COPY_SCREEN:
            self._copy("the screen", self._canvas.text())
        elif effect is Effect.COPY_RESULT:
            result = self.view.sample if self.view.overlay is Overlay.SAMPLE else self.view.dump
            if not isinstance(result, (Missing, NotApplicable)):
                self._copy("all of it", self._controls.write(result))
        elif effect is Effect.EDIT:
            self._plan_edit()
        elif is_known(self.view.frame):
            finding = self.view.frame.verdict
            if effect is Effect.COPY_TRY and is_known(finding) and is_known(finding.try_):
                self._copy("what to try", finding.try_)
            else:
                self._copy("the facts", clipboard.facts_text(self.view.frame))

    def _copy(self, what: str, text: str) -> None:
        self.copied = text
        sequence = clipboard.osc_52(text)
        if sequence and self._driver is not None:
            self._driver.write(sequence)

        def tell(line: str) -> None:
            self.post_message(Told(line, MESSAGE_SECONDS))

        clipboard.tell_tmux(what, text, sequence, tell)

    def on_told(self, message: Told) -> None:
        """Say what a thread has found."""
        self._say(message.text, message.seconds)

    def _say(self, text: str, seconds: float = MESSAGE_SECONDS) -> None:
        self._message_until_ns = self._clock() + int(seconds * 1e9)
        self._show(replace(self.view, message=text))

    def _plan_edit(self) -> None:
        """Look at the file in a thread: on a dead mount that never ends."""
        shown = stack_rows.frame_under_cursor(self.view)
        if not is_known(shown):
            return
        frame = shown.frame

        def plan() -> None:
            call = editor.plan_edit(frame, os.environ)
            with suppress(RuntimeError):  # the screen has ended meanwhile
                self.post_message(Planned(call))

        threading.Thread(target=plan, name="tpmon-editor", daemon=True).start()

    def on_planned(self, message: Planned) -> None:
        """Give the terminal to the editor until it ends, or say why not."""
        call = message.call
        if not is_known(call):
            self._say(call.reason)
            return
        with self.suspend(), lend_terminal():
            failure = editor.run_editor(call.command)
        self._redraw()
        self._say(failure or f"was at {call.place}")

    @property
    def text_left(self) -> str:
        """Return what stays when the screen is gone: the last copy, and what became of errands."""
        return "\n".join(filter(None, (self.copied, *self.notices)))

    # The end

    def leave(self, code: int) -> None:
        """End the screen with ``code``; safe in a signal handler, at any time."""
        if self.guard is not None:
            if isinstance(self._driver, ScreenDriver) and self._driver.away:
                self.guard.end_now(code, drawn=False)
            self.guard.leave_within(LEAVE_SECONDS, code)
        if self._loop is None:
            raise SystemExit(code)
        self._loop.call_soon_threadsafe(self.exit, None, code)

    def _handle_exception(self, error: Exception) -> None:
        self.crash = self.crash or error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # textual would print a traceback with all locals, and exit with 0
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()

    def _set_pointer_shape(self, shape: str) -> None:
        pass  # the mouse is off, and textual would write this after it left the screen


def run_screen(
    options: ScreenOptions,
    start: Callable[[Callable[[Update], None], Callable[[Result], None]], None],
    controls: Controls,
    paint: Paint = panes.paint_screen,
) -> ScreenResult:
    """Draw the screen until it ends and say how it ended.

    ``start`` is called once with the sinks of Updates and of results, which any thread may call. After
    an end was asked for, the process is gone within about a second whatever the caller still does.

    Raises:
        NoTerminalError: when stdin, stdout or stderr is not a terminal that can draw.
    """
    require_terminal()
    app = MonitorApp(options, controls, paint)
    gc.freeze()  # a full collection walks all of textual: 70 ms each, a third of the screen's cost
    try:
        with TerminalGuard(app.leave, controls.stop) as app.guard:
            try:
                start(app.receive, app.receive_result)
                app.run(mouse=False)
            except Exception as error:  # noqa: BLE001  # reported like a failure inside the app
                app.crash = app.crash or error
            if app.crash is not None:
                app.guard.restore()
    finally:
        controls.stop()
    if app.crash is not None:
        return ScreenResult(ExitCode.BUG, app.text_left, report_crash(app.crash))
    code = app.return_code
    return ScreenResult(ExitCode.BUG if code is None else code, app.text_left, "")
