"""Draw the first picture with painters and escape sequences before textual is loaded, then hand over."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tpmon.errors import TpmonError
from tpmon.model.frame import Event
from tpmon.model.results.doctor import Update
from tpmon.ui.kit.ink import encode_line, ink_starts
from tpmon.ui.kit.keys import KeyHelp, Overlay, Search
from tpmon.ui.monitor import layout as panes
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.controls import Controls, Result, ScreenOptions, add_events
from tpmon.ui.monitor.keys import keys_shown
from tpmon.ui.monitor.state import ViewState
from tpmon.ui.terminal_io.terminal import (
    ENTER_SCREEN,
    ScreenResult,
    TerminalGuard,
    in_foreground,
    require_terminal,
    tell_failure,
    write_now,
)
from tpmon.view.layout import Line, Size, fit_line

if TYPE_CHECKING:
    from tpmon.ui.monitor.app import MonitorApp


def first_view(options: ScreenOptions, now_ns: int) -> ViewState:
    """Return the first view of a screen."""
    return ViewState(
        options.ascii_only,
        Overlay.NONE,
        Overlay.NONE,
        scroll=0,
        sort_reversed=False,
        filter_text="",
        message=options.remark,
        search=Search(),
        now_ns=now_ns,
        interval_s=options.interval_s,
        readonly=options.readonly,
        no_stacks=options.no_stacks,
        following=options.following,
        from_list=options.from_list,
        node=options.node,
    )


FIRST_SECONDS = 0.5
"""How long to wait for the first reading: one that blocks must not keep the keys away."""
_MOST_KEPT = 600
"""Updates kept for a screen that takes minutes to load from a slow file system."""

Paint = Callable[[ViewState, Size, Sequence[KeyHelp]], Sequence[Line]]


class Opening:
    """Draw each Update as it comes, in its thread, until the screen does."""

    def __init__(self, options: ScreenOptions, paint: Paint) -> None:
        self._view = first_view(options, time.monotonic_ns())
        self.paint = paint
        self._starts = ink_starts(colour="NO_COLOR" not in os.environ)
        self._encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
        self._lock = threading.RLock()  # a signal handler may interrupt its holder
        self._came = threading.Event()
        self._kept: deque[Update | Result] = deque(maxlen=_MOST_KEPT)
        self._events: tuple[Event, ...] = ()
        self._to: MonitorApp | None = None
        self._ended = False
        self._error: Exception | None = None
        self._shown: tuple[Size, Sequence[str]] = (Size(0, 0), ())
        self.drawn = False
        """Whether the terminal shows our picture, which must be removed."""

    def receive(self, update: Update) -> None:
        """Draw an Update and keep it, or hand it on; never raise, and never block for long."""
        with self._lock:
            if self._to is not None:
                self._to.receive(update)
                return
            self._kept.append(update)
            self._events = add_events(self._events, update)
            try:
                self._draw(update)
            except Exception as error:  # noqa: BLE001  # raised again where it ends the screen
                self._error = self._error or error
        self._came.set()

    def receive_result(self, result: Result) -> None:
        """Keep a result, or hand it on."""
        with self._lock:
            if self._to is not None:
                self._to.receive_result(result)
            else:
                self._kept.append(result)

    def wait(self, seconds: float = FIRST_SECONDS) -> None:
        """Wait for the first picture, and raise what the painters raised."""
        self._came.wait(seconds)
        if self._error is not None:
            raise self._error

    def hand_to(self, audience: MonitorApp) -> None:
        """Hand on all Updates so far and from now on; draw no more."""
        with self._lock:
            for one in self._kept:
                if isinstance(one, Update):
                    audience.receive(one)
                else:
                    audience.receive_result(one)
            self._kept.clear()
            self._to = audience

    def leave(self, code: int) -> None:
        """Raise SystemExit before the screen is loaded; called in a signal handler."""
        self.end()
        raise SystemExit(code)

    def end(self) -> None:
        """Draw no more."""
        with self._lock:
            self._ended = True

    def _draw(self, update: Update) -> None:
        try:
            size = Size(*os.get_terminal_size(2))
        except OSError:
            return  # hung up
        if self._ended or not (size.width and size.height and in_foreground()):
            return
        view = actions.with_update(self._view, update, self._events, time.monotonic_ns())
        view = actions.note_seen(view)
        self._view = actions.keep_cursor(view, panes.rows_of(view), panes.rows_of(self._view))
        lines = self.paint(self._view, size, keys_shown(self._view))[: size.height]
        rows = [encode_line(fit_line(line, size.width), size.width, self._starts) for line in lines]
        shown_size, shown = self._shown
        same = size == shown_size and len(rows) == len(shown)
        parts = [
            f"\x1b[{number + 1};1H{row}"
            for number, row in enumerate(rows)
            if not (same and row == shown[number])
        ]
        begin = "" if same else ENTER_SCREEN
        self.drawn = True
        whole = write_now((begin + "".join(parts)).encode(self._encoding, "backslashreplace"))
        self._shown = (size, rows) if whole else (Size(0, 0), ())


def run_screen(
    options: ScreenOptions,
    start: Callable[[Callable[[Update], None], Callable[[Result], None]], None],
    controls: Controls,
    paint: Paint = panes.paint_screen,
) -> ScreenResult:
    """Draw the screen until it ends and return how it ended.

    ``start`` is called once with the sinks of Updates and of results, which any thread may call. After an end
    was asked for, the process ends within about a second whatever the caller still does.

    Raises:
        NoTerminalError: when stdin, stdout or stderr is not a terminal that can draw.
        TpmonError: that ``start`` raised.
        SystemExit: with its exit code, when a signal came before the screen was loaded.
    """
    require_terminal()
    opening = Opening(options, paint)
    try:
        with TerminalGuard(opening.leave, controls.stop) as guard:
            return _draw_all(options, start, controls, opening, guard)
    finally:
        controls.stop()


def _draw_all(
    options: ScreenOptions,
    start: Callable[[Callable[[Update], None], Callable[[Result], None]], None],
    controls: Controls,
    opening: Opening,
    guard: TerminalGuard,
) -> ScreenResult:
    opened = False
    guard.keep_keys()
    try:
        start(opening.receive, opening.receive_result)
        opening.wait()
        from tpmon.ui.kit.shell import draw  # noqa: PLC0415
        from tpmon.ui.monitor.app import MonitorApp  # noqa: PLC0415  # textual, half of all CPU until keys are answered

        app = MonitorApp(options, controls, opening.paint)
        opening.hand_to(app)
        guard.hand_to(app.leave)
        result = draw(app, guard)
        opened = app.opened
    except TpmonError:
        raise  # it says what to try
    except Exception as error:  # noqa: BLE001  # reported like a failure inside the app
        return tell_failure(error)
    finally:
        opening.end()
        if opening.drawn and not opened:
            guard.restore()
    return result
