"""Draw lines of inked text with one widget that sends only the rows that changed.

Everything of Textual's line API stays in this file; it was renamed twice in two years.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tpmon.ui.ink import STYLES
from tpmon.ui.view import Ink, Line


def ink_styles(colour: bool) -> Mapping[Ink, Style]:
    """Return the terminal style of every ink; without colour only bold and reverse are left."""
    styles = {ink: Style.parse(words) if words else Style() for ink, words in STYLES.items()}
    if colour:
        return styles
    return {ink: Style(bold=style.bold, reverse=style.reverse) for ink, style in styles.items()}


class Canvas(Widget):
    """Show a list of lines, one row each."""

    ALLOW_SELECT = False
    can_focus = False
    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    def __init__(self, colour: bool, resized: Callable[[], None]) -> None:
        """Start empty; ``resized`` is called when the canvas has got a size."""
        super().__init__()
        self._resized = resized
        self._styles = ink_styles(colour)
        self._lines: tuple[Line, ...] = ()

    def on_resize(self) -> None:
        """Ask for lines of the new size."""
        self._resized()

    def set_lines(self, lines: Sequence[Line]) -> int:
        """Show ``lines`` from the top, repaint the rows that differ and return their number."""
        new, old = tuple(lines), self._lines
        self._lines = new
        rows = [
            row
            for row in range(max(len(new), len(old)))
            if row >= len(new) or row >= len(old) or new[row] != old[row]
        ]
        if rows:
            self.refresh(*(Region(0, row, self.size.width, 1) for row in rows))
        return len(rows)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the rows of ``crop``; textual's own would look for borders and backgrounds first."""
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
        """Return what is shown as plain text, without trailing blanks."""
        rows = ("".join(text for text, _ in line).rstrip() for line in self._lines)
        return "\n".join(rows).rstrip("\n")
