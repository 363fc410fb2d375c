"""Draw lines of inked text with one widget that sends only changed rows.

All use of Textual's line API is in this file: it was renamed twice in two years.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tpmon.ui.kit.ink import STYLES, encode_line, ink_starts, style_words
from tpmon.ui.terminal_io.driver import ScreenDriver
from tpmon.view.layout import Ink, Line, line_width

_SYNC_START, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
_HOME = "\x1b[1;1H"


def ink_styles(colour: bool) -> Mapping[Ink, Style]:
    """Return the terminal style of every ink; without colour only bold and reverse."""
    return {ink: Style.parse(style_words(ink, colour=colour)) for ink in STYLES}


class Canvas(Widget):
    """Show a list of lines, one row each."""

    ALLOW_SELECT = False
    can_focus = False
    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    def __init__(self, colour: bool, resized: Callable[[], None]) -> None:
        """Start empty; ``resized`` is called when the canvas gets a size."""
        super().__init__()
        self._resized = resized
        self._styles = ink_styles(colour)
        self._lines: tuple[Line, ...] = ()
        self._starts = ink_starts(colour=colour)

    def on_resize(self) -> None:
        """Ask for lines of the new size."""
        self._resized()

    def set_lines(self, lines: Sequence[Line]) -> int:
        """Show ``lines`` from the top, repaint changed rows and return their number."""
        new, old = tuple(lines), self._lines
        self._lines = new
        rows = [
            row
            for row in range(max(len(new), len(old)))
            if row >= len(new) or row >= len(old) or new[row] != old[row]
        ]
        size = self.size
        if rows and not self._write(rows, size):
            self.refresh(*(Region(0, row, size.width, 1) for row in rows))
        return len(rows)

    def _write(self, rows: Sequence[int], size: Size) -> bool:
        """Write rows to the terminal directly, unless textual has something else to draw.

        The one widget covers the screen: composing it by textual takes four times as long. What textual draws
        itself, after a resize or ctrl-z, comes from ``render_lines``.
        """
        app = self.app
        driver = app._driver  # noqa: SLF001
        if not isinstance(driver, ScreenDriver) or not driver.takes_writes or not self.is_attached:
            return False
        screen = self.screen
        if not screen.is_current or app._batch_count:  # noqa: SLF001
            return False
        if screen._layout_required or screen._repaint_required or screen._dirty_widgets:  # noqa: SLF001
            return False
        if size != app.size or size != driver.terminal_size:
            return False  # a resize is coming, and with it a whole picture
        parts = [f"\x1b[{row + 1};1H{self._encode(row, size.width)}" for row in rows if row < size.height]
        parts.append(_HOME)
        if app._sync_available:  # noqa: SLF001
            parts = [_SYNC_START, *parts, _SYNC_END]
        driver.write("".join(parts))
        return True

    def _encode(self, row: int, width: int) -> str:
        """Return one row as text for the terminal, exactly ``width`` cells wide."""
        line = self._lines[row] if row < len(self._lines) else ()
        if line_width(line) > width:
            return self.render_line(row).render(self.app.console)
        return encode_line(line, width, self._starts)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the rows of ``crop``, without textual's search for borders and backgrounds."""
        strips = [self.render_line(y) for y in crop.line_range]
        if crop.column_span == (0, self.size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """Return row ``y`` as exactly the width of the widget; a wide character is never halved."""
        line = self._lines[y] if y < len(self._lines) else ()
        strip = Strip([Segment(text, self._styles[ink]) for text, ink in line if text])
        return strip.adjust_cell_length(self.size.width)

    def text(self) -> str:
        """Return the shown text, without trailing blanks."""
        rows = ("".join(text for text, _ in line).rstrip() for line in self._lines)
        return "\n".join(rows).rstrip("\n")
