"""Show hot functions on standard error while they come: redrawn on a terminal, else now and then a line."""

from __future__ import annotations

import contextlib
import os
import time

from tpmon.model.sample import HotSample
from tpmon.report.sample import write_progress, write_sample
from tpmon.report.text import cut
from tpmon.report.write import complain, to_ascii

DRAW_EVERY_S = 1.0
LINES_OF_A_RUN = 5
"""Where nothing can be redrawn, about so many lines are written in all."""
LINE_EVERY_S = 2.0
LIVE_FUNCTIONS = 5
_ERROR = 2
_UP = "\x1b[{}A"
_CLEAR_BELOW = "\x1b[J"


class Live:
    """Draw what there is so far; a line has the terminal's width at most, so that it can be redrawn."""

    def __init__(self, seconds: float, *, ascii_only: bool, redraw: bool | None = None) -> None:
        """Draw nothing yet; ``redraw`` where standard error is a terminal that can move its cursor."""
        terminal = os.isatty(_ERROR) and os.environ.get("TERM", "dumb") != "dumb"
        self._redraw = terminal if redraw is None else redraw
        self._every_s = DRAW_EVERY_S if self._redraw else max(LINE_EVERY_S, seconds / LINES_OF_A_RUN)
        self._ascii_only = ascii_only
        self._drawn = 0
        self._due_s = time.monotonic() + self._every_s

    @property
    def is_due(self) -> bool:
        """Tell whether it is time to draw again."""
        return time.monotonic() >= self._due_s

    def show(self, hot: HotSample) -> None:
        """Draw what there is."""
        self._due_s = time.monotonic() + self._every_s
        if not self._redraw:
            self._write(f"tpmon: {write_progress(hot)}")
            return
        columns, rows = _read_size()
        lines = [cut(line, columns - 1) for line in write_sample(hot, LIVE_FUNCTIONS)][: rows - 1]
        self._take_back()
        self._write("\n".join(lines))
        self._drawn = len(lines)

    def close(self) -> None:
        """Take away what was drawn, so that the result stands alone."""
        self._take_back()
        self._drawn = 0

    def _take_back(self) -> None:
        back = _UP.format(self._drawn) + "\r" + _CLEAR_BELOW if self._drawn else ""
        with contextlib.suppress(OSError):  # ``complain`` lets no escape sequence pass
            os.write(_ERROR, back.encode())

    def _write(self, text: str) -> None:
        complain(to_ascii(text) if self._ascii_only else text)


def _read_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(_ERROR)
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24
