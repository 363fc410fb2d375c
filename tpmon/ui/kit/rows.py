"""The base of a screen of rows that come by themselves: a list with a cursor, of which one row is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, TypeVar

# before textual: the shell sets what textual reads while it is imported
from tpmon.ui.kit.shell import LINE_CHARS, MESSAGE_SECONDS, Shell  # isort: skip

from textual.timer import Timer

from tpmon.model.units import clean_text
from tpmon.ui.kit.keys import Key, RowsState
from tpmon.ui.terminal_io.driver import ScreenDriver
from tpmon.view.layout import Line, Size

REPAINT_SECONDS = 1.0
_BEHIND_WRITES = 3

Rows = TypeVar("Rows", bound=RowsState)


def _now() -> datetime:
    return datetime.now().astimezone()


class RowsShell(Shell[Rows], Generic[Rows]):
    """Show rows until a key or a signal ends it, or one of them is chosen."""

    def __init__(
        self,
        view: Rows,
        find_key: Callable[[str, Rows], Key[Rows, Any] | None],
        say_unused: Callable[[str, Rows], str],
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], datetime] = _now,
    ) -> None:
        """Begin with a view; ``clock`` is CLOCK_MONOTONIC in nanoseconds."""
        super().__init__(find_key, say_unused, clock)
        self.view = view
        self._wall = wall
        self._message_until_ns = clock() + int(MESSAGE_SECONDS * 1e9)
        self._timer: Timer | None = None

    def settle(self, view: Rows) -> Rows:
        """Keep the cursor on its row."""
        raise NotImplementedError

    def paint(self, view: Rows, size: Size) -> Sequence[Line]:
        """Paint the whole screen."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Paint for the first time."""
        self.repaint()

    def show(self, view: Rows) -> None:
        """Paint a view, and again in a second: ages grow."""
        now_ns = self._clock()
        if view.message and now_ns > self._message_until_ns:
            view = replace(view, message="")
        view = self.settle(replace(view, now=self._wall(), now_ns=now_ns))
        self.view = view
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(REPAINT_SECONDS, self.repaint)
        driver = self._driver
        if isinstance(driver, ScreenDriver):
            driver.check_size()
            if driver.waiting_writes > _BEHIND_WRITES:
                return  # the terminal takes no more bytes: writing would block the loop, and the keys with it
        size = self._extent()
        if size.width:
            self._canvas.set_lines(self.paint(view, size))

    def spot(self, view: Rows) -> object:
        """Return what names what is shown."""
        return view.overlay

    def answer(self, view: Rows) -> None:
        """Paint the view after a key, with its message for a while."""
        self._message_until_ns = self._clock() + int(MESSAGE_SECONDS * 1e9)
        self.show(view)

    def say(self, text: str, seconds: float = MESSAGE_SECONDS) -> None:
        """Show one line for some seconds, or until a key is pressed."""
        self._message_until_ns = self._clock() + int(seconds * 1e9)
        self.show(replace(self.view, message=clean_text(text, LINE_CHARS)))
