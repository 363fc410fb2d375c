"""The base of every screen of tpmon: one canvas, keys in, lines out, copies, the editor, the end.

The ``app.py`` of each screen defines what a key means and what is painted. Only they, ``rows.py``, this,
``driver.py`` and ``canvas.py`` import textual.
"""

from __future__ import annotations

import tpmon.ui.terminal_io.before_textual  # noqa: F401  # isort: skip
import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic

from textual import events
from textual.app import App, ComposeResult
from textual.message import Message

from tpmon.errors import ExitCode
from tpmon.model.known import Known, is_known
from tpmon.model.units import clean_text
from tpmon.ui.kit.canvas import Canvas
from tpmon.ui.kit.find import Places, find_text, look_under, type_line
from tpmon.ui.kit.keys import (
    LINES,
    ByDigit,
    Effect,
    Key,
    Move,
    Overlay,
    View,
    action_close,
    action_filter_type,
)
from tpmon.ui.terminal_io import clipboard, editor
from tpmon.ui.terminal_io.driver import ScreenDriver
from tpmon.ui.terminal_io.editor import EditorCall
from tpmon.ui.terminal_io.terminal import (
    LEAVE_SECONDS,
    ScreenResult,
    TerminalGuard,
    lend_terminal,
    tell_failure,
    write_now,
)
from tpmon.view.layout import Size

MESSAGE_SECONDS = 6.0
LINE_CHARS = 4000
"""Of a message, which is cleaned: it may hold paths and command lines of others."""
_PLAN_SECONDS = 3.0
"""A file that answers later opens no editor."""
_JOINED_SECONDS = 0.5
"""Resizes this close may have been joined."""
_SETTLE_SECONDS = 0.05
"""Textual joins resizes within 1/120 s."""


class Shell(App[None], Generic[View]):
    """Show the lines of a screen until a key, a signal or a crash ends it."""

    CSS = "Screen { overflow: hidden; }"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        find_key: Callable[[str, View], Key[View, Any] | None],
        say_unused: Callable[[str, View], str],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepare an empty screen; ``find_key`` returns a key's meaning now, ``clock`` monotonic ns."""
        super().__init__(driver_class=ScreenDriver, ansi_color=True)
        self._find_key = find_key
        self._say_unused = say_unused
        self._clock = clock
        self._canvas = Canvas(not self.no_color, self.repaint)
        self.opened = False
        """Whether textual has or had the terminal."""
        self._resized: tuple[object, int] = (None, 0)
        self.crash: Exception | None = None
        self.copied = ""
        self.asks_next = ""
        """What a key has ended this screen for."""
        self._planning = False
        self.guard: TerminalGuard | None = None
        self.goes_back = False
        """Whether it was left for the list of jobs."""

    # What a screen says

    view: View

    def repaint(self) -> None:
        """Paint the present view again."""
        self.show(self.view)

    def show(self, view: View) -> None:
        """Paint ``view``, and keep it as the present one."""
        raise NotImplementedError

    def answer(self, view: View) -> None:
        """Paint the view after a key, with its message for a while."""
        raise NotImplementedError

    def type(self, view: View, text: str) -> View:
        """Add typed or pasted text to the filter."""
        return action_filter_type(view, text)

    def places(self, view: View) -> Places[View]:
        """Return the lines of what is shown, to find text in."""
        raise NotImplementedError

    def go(self, view: View, goal: str) -> View:
        """Go to a place by its name or number."""
        raise NotImplementedError

    def spot(self, view: View) -> object:
        """Return what names the pane or text that is shown: another one begins at its first column."""
        raise NotImplementedError

    def begin(self) -> View:
        """Return the view before a key, without the last message."""
        return replace(self.view, message="")

    def move(self, view: View, move: Move) -> View:
        """Move the cursor, or scroll."""
        raise NotImplementedError

    def act(self, view: View, deed: Callable[[View], View]) -> View:
        """Change the view as a key does."""
        return deed(view)

    def say(self, text: str, seconds: float = MESSAGE_SECONDS) -> None:
        """Show one line for some seconds."""
        raise NotImplementedError

    # Lines out

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield self._canvas

    def on_mount(self) -> None:
        """Note that textual has the terminal, and its first state."""
        self.opened = True
        found = self.guard.release_line() if self.guard is not None else None
        if found is not None and isinstance(self._driver, ScreenDriver):
            self._driver.attrs_before = found

    def _extent(self) -> Size:
        return Size(self._canvas.size.width, self._canvas.size.height)

    def redraw(self) -> None:
        """Send every cell again: the terminal no longer shows what was sent."""
        if self.screen_stack:  # a size may change while the screen ends
            self.screen.refresh(layout=True)
            self.repaint()

    # Keys in

    async def on_event(self, event: events.Event) -> None:
        """Keep keys and pastes for the table of keys; nobody asked for mouse reports."""
        if isinstance(event, events.Key):
            typed = event.character is not None and event.is_printable and "alt+" not in event.key
            self.press(event.character if typed and event.character else event.key)
        elif isinstance(event, events.Paste):
            self.paste(event.text)
        elif not isinstance(event, events.InputEvent):
            if isinstance(event, events.Resize) and self.opened:
                # Smaller and back within a frame is no change for textual, which joins the two, nor is
                # there one after fg; the terminal has lost cells each time.
                before, before_ns = self._resized
                self._resized = (event.size, self._clock())
                joined = before != event.size and self._resized[1] - before_ns < _JOINED_SECONDS * 1e9
                if event.size == self.size:
                    self.redraw()
                elif joined and before is not None:
                    self.set_timer(_SETTLE_SECONDS, self.redraw)
            await super().on_event(event)

    def paste(self, text: str) -> None:
        """Add pasted text to the filter that is typed."""
        if self.view.typed:
            self.show(self._type(self.view, text))

    def _type(self, view: View, text: str) -> View:
        return type_line(view, text) if view.overlay in LINES else self.type(view, text)

    def press(self, name: str) -> None:
        """Do what a key means now."""
        view = self.begin()
        key = self._find_key(name, view)
        deed = None if key is None else key.deed
        if isinstance(deed, Effect):
            self.answer(view)
            self.carry_out(deed)
            return
        if isinstance(deed, Move):
            view = self.move(view, deed)
        elif isinstance(deed, ByDigit):
            view = deed.act(view, int(name))
        elif deed is not None:
            view = self.act(view, deed)
        elif view.typed and len(name) == 1:
            view = self._type(view, name)
        elif view.overlay is Overlay.HELP:
            view = action_close(view)
        else:
            view = replace(view, message=self._say_unused(name, view))
        self._answer_at(view)

    def _answer_at(self, view: View) -> None:
        """Answer a key; a pane or text that was not shown before begins at its first column."""
        if self.spot(view) != self.spot(self.view):
            view = replace(view, search=replace(view.search, left=0, found=-1))
        self.answer(view)

    def _end_line(self, effect: Effect) -> None:
        """Find what was typed, or its next match; go where was typed."""
        view, goal = look_under(self.view), self.view.search.goal
        if effect is not Effect.GO:
            self._answer_at(find_text(view, self.places(view), effect))
        elif goal.strip() in ("q", "q!", "quit", "qa"):
            self.leave(ExitCode.OK)
        else:
            view = replace(view, search=replace(view.search, goal=""))
            self._answer_at(self.go(view, goal.strip().casefold()) if goal.strip() else view)

    # Copies and the editor

    def copy_text(self, what: str, text: str) -> None:
        """Give ``text`` to the terminal and to tmux, and say where it went."""
        self.copied = text
        sequence = clipboard.osc_52(text)
        if sequence and self._driver is not None:
            self._driver.write(sequence)

        clipboard.tell_tmux(what, text, sequence, lambda line: self.defer(lambda: self.say(line)))

    def defer(self, deed: Callable[[], None]) -> bool:
        """Run something in the screen's thread, from any thread; return False once that has ended."""
        try:
            return self.post_message(Deferred(deed))
        except RuntimeError:  # its loop is closed
            return False

    def on_deferred(self, message: Deferred) -> None:
        """Do it."""
        message.deed()

    def plan_edit(self, plan: Callable[[], Known[editor.EditorCall]]) -> None:
        """Check the file in a thread: on a dead mount that never ends."""
        if self._planning:
            self.say("the file of the line before has not answered yet")
            return
        self._planning = True
        began_s = time.monotonic()

        def run() -> None:
            try:
                call = plan()
            finally:
                self._planning = False
            is_late = time.monotonic() - began_s > _PLAN_SECONDS
            self.defer(lambda: self._edit(call, is_late=is_late))

        threading.Thread(target=run, name="tpmon-editor", daemon=True).start()

    def _edit(self, call: Known[EditorCall], *, is_late: bool) -> None:
        if not is_known(call):
            self.say(call.reason)
        elif is_late:  # the person may be typing something else by now
            self.say(f"{call.place} answers now: o opens it")
        else:
            failure = self.lend(call.command)
            self.say(failure or f"was at {call.place}")

    def lend(self, command: Sequence[str], said: str = "") -> str:
        """Lend the terminal to another program until it ends; return what went wrong, "" for nothing.

        ``said`` stands on the shell's screen until a program that takes seconds to begin has drawn its own.
        """
        with self.suspend(), lend_terminal():
            if said:
                write_now(f"\r\x1b[Ktpmon: {clean_text(said, LINE_CHARS)}".encode())
            failure = editor.run_editor(command)
        self.redraw()
        return failure

    # What keys do beyond the picture

    def carry_out(self, effect: Effect) -> None:
        """Do what a key means on every screen."""
        if effect is Effect.QUIT:
            self.leave(ExitCode.OK)
        elif effect is Effect.REDRAW:
            self.redraw()
        elif effect is Effect.SUSPEND:
            self.action_suspend_process()
        elif effect is Effect.COPY_SCREEN:
            self.copy_text("the screen", self._canvas.text())
        elif effect is Effect.BACK:
            self.goes_back = True
            self.depart()
        elif effect in (Effect.FIND, Effect.FIND_NEXT, Effect.FIND_PREVIOUS, Effect.GO):
            self._end_line(effect)

    # The end

    @property
    def text_left(self) -> str:
        """Return what to print after the screen: the last copy."""
        return self.copied

    def leave(self, code: int) -> None:
        """End the screen with ``code``; safe in a signal handler, at any time."""
        if self.guard is not None:
            if isinstance(self._driver, ScreenDriver) and self._driver.away:
                self.guard.end_now(code, drawn=False)
            self.guard.leave_within(LEAVE_SECONDS, code)
        if self._loop is None:
            raise SystemExit(code)
        self._loop.call_soon_threadsafe(self.exit, None, code)

    def depart(self) -> None:
        """End the screen for another one of the same process."""
        self.exit(None, ExitCode.OK)

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


def draw(shell: Shell[Any], guard: TerminalGuard) -> ScreenResult:
    """Draw a screen on a guarded terminal and return how it ended; it ends within a second."""
    shell.guard = guard
    gc.freeze()  # a full collection walks all of textual: 70 ms each, a third of the screen's cost
    try:
        shell.run(mouse=False)
    except Exception as error:  # noqa: BLE001  # reported like a failure inside the app
        shell.crash = shell.crash or error
    if shell.crash is not None:
        guard.restore()
        return replace(tell_failure(shell.crash), text=shell.text_left)
    code = shell.return_code
    code = ExitCode.BUG if code is None else code
    return ScreenResult(code, shell.text_left, "", shell.asks_next, shell.goes_back)


class Deferred(Message):
    """Carry a call to the thread of the screen."""

    def __init__(self, deed: Callable[[], None]) -> None:
        super().__init__()
        self.deed = deed
