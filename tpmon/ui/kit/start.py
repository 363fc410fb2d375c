"""Draw the first picture of a screen of rows before textual is loaded, then hand over to it (ADR 0010)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from tpmon.errors import TpmonError
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.ui.kit.ink import encode_line, ink_starts
from tpmon.ui.kit.keys import View
from tpmon.ui.terminal_io.terminal import (
    ENTER_SCREEN,
    ScreenResult,
    TerminalGuard,
    in_foreground,
    tell_failure,
    write_now,
)
from tpmon.view.layout import Line, Size

if TYPE_CHECKING:
    from tpmon.ui.kit.shell import Shell

News = TypeVar("News")


class Feed(Generic[News]):
    """Keep the newest of what comes until there is a screen that takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._to: Callable[[News], None] | None = None
        self._newest: Applicable[News] = NOT_APPLICABLE
        self.came = threading.Event()

    def take(self, news: News) -> None:
        """Take something newer, in any thread."""
        with self._lock:
            self._newest = news
            if self._to is not None:
                self._to(news)
        self.came.set()

    def newest(self) -> Applicable[News]:
        """Return the newest."""
        with self._lock:
            return self._newest

    def hand_to(self, take: Callable[[News], None]) -> None:
        """Hand on all that comes."""
        with self._lock:
            self._to = take


def _leave(code: int) -> None:
    raise SystemExit(code)


def draw_rows(
    begin: Callable[[], View],
    paint: Callable[[View, Size], Sequence[Line]],
    load: Callable[[View], Shell[View]],
    stop: Callable[[], None],
) -> ScreenResult:
    """Draw the view that ``begin`` returns at once, then the screen that ``load`` makes of it, until it ends.

    Raises:
        TpmonError: that one of these raised.
        SystemExit: with its exit code, when a signal came before the screen was loaded.
    """
    drawn = opened = False
    with TerminalGuard(_leave, stop) as guard:
        guard.keep_keys()
        try:
            view = begin()
            drawn = _draw_first(lambda size: paint(view, size))
            from tpmon.ui.kit.shell import draw  # noqa: PLC0415  # textual takes longer than the first picture

            app = load(view)
            guard.hand_to(app.leave)
            result = draw(app, guard)
            opened = app.opened
        except TpmonError:
            raise
        except Exception as error:  # noqa: BLE001  # reported like a failure inside the app
            return tell_failure(error)
        finally:
            if drawn and not opened:
                guard.restore()
    return result


def _draw_first(paint: Callable[[Size], Sequence[Line]]) -> bool:
    """Draw once; return whether the terminal shows it now."""
    try:
        size = Size(*os.get_terminal_size(2))
    except OSError:
        return False  # hung up
    if not (size.width and size.height and in_foreground()):
        return False
    starts = ink_starts(colour="NO_COLOR" not in os.environ)
    rows = [f"\x1b[{at + 1};1H{encode_line(line, size.width, starts)}" for at, line in enumerate(paint(size))]
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    write_now((ENTER_SCREEN + "".join(rows)).encode(encoding, "backslashreplace"))
    return True
