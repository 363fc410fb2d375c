"""Write hot functions as text, once or while they come."""

from __future__ import annotations

import contextlib
import os
import time

from tpmon.model.results.sample import HotGroup, HotSample
from tpmon.model.units import clean_text, count_of
from tpmon.report.blocks import write_rows
from tpmon.report.dump import write_errors
from tpmon.report.text import complain
from tpmon.view.layout import WIDTH, cut, lay_paragraph, to_ascii
from tpmon.view.stacks import (
    FUNCTIONS,
    MOST_FUNCTIONS,
    Means,
    count_without_turn,
    name_group,
    pick_shown,
    say_cost,
    say_ended,
    say_group,
    say_lost,
    say_phases,
    say_waiting,
    say_what,
)
from tpmon.view.table import list_columns

AGAIN = Means("again: tpmon sample {pid}")
_LINE_CHARS = 400


def write_sample(hot: HotSample, most: int = MOST_FUNCTIONS) -> list[str]:
    """Write every part of the job with its ``most`` functions, main threads first, then what was lost."""
    lines = lay_paragraph("sample", say_what(hot))
    for group in hot.groups:
        lines += ["", *_write_group(group, most)]
    lines += ["", *_write_end(hot)]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines]


def _write_group(group: HotGroup, most: int) -> list[str]:
    if waiting := say_waiting(group):
        return [cut(waiting, WIDTH)]
    lines = [cut(say_group(group), WIDTH)]
    if phases := say_phases(group):
        lines.append(cut(f"  {phases}", WIDTH))
    shown, hidden = pick_shown(group, most)
    lines += write_rows(list_columns(FUNCTIONS), shown)
    if hidden:
        lines.append(f"         {count_of(hidden, 'more function')}")
    return lines


def _write_end(hot: HotSample) -> list[str]:
    """Write what is not in the picture, and what making it cost."""
    lines = []
    lines += write_errors(hot.errors, AGAIN)
    waiting = count_without_turn(hot)
    if waiting:
        lines += lay_paragraph(
            "no turn", f"{waiting} more: the time was over before; more --seconds reach them"
        )
    if hot.ended_processes:
        lines += lay_paragraph("ended", say_ended(hot))
    lines += lay_paragraph("lost", say_lost(hot))
    return [*lines, *lay_paragraph("cost", say_cost(hot))]


def write_progress(hot: HotSample) -> str:
    """Write one line while sampling goes on: the time, and of each part of the job its hottest function."""
    parts = []
    for group in hot.groups:
        if group.main and group.functions:
            first = group.functions[0]
            where = f"{first.function} {first.file.rpartition('/')[2]}:{first.line}"
            parts.append(f"{name_group(group)}: {where} {first.self_pct:.0f} %")
    what = "; ".join(parts) or "nothing yet"
    return clean_text(f"{hot.seconds:.0f} of {hot.asked_seconds:g} s: {what}", _LINE_CHARS)


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
