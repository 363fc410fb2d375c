"""Paint stacks merged into a tree: how many threads pass each line, and who stands where it ends."""

from __future__ import annotations

from collections.abc import Iterator

from tpmon.model.known import is_known
from tpmon.model.results.results import TreeLine
from tpmon.model.text.dump_words import say_end
from tpmon.model.units import clean_text
from tpmon.ui.kit.cells import cut_front, fit_line, pad, width_of, wrap_all
from tpmon.ui.monitor.panes.stack_rows import list_branches
from tpmon.ui.monitor.state import Ink, Line, StackRow, ViewState

_TEXT_CHARS = 400
_WHO_LINES = 3

Block = tuple[StackRow, list[Line]]
"""A row and its lines; those after the first cannot hold the cursor."""


def paint_line(text: str, cursor: bool, width: int, ink: Ink) -> Line:
    """Paint one line that the cursor can be on."""
    if not cursor:
        return fit_line(((text, ink),), width)
    return ((pad(f">{text[1:]}", width), Ink.CURSOR),)


def paint_user_line(line: str, path: str, cursor: bool, width: int) -> Line:
    """Paint a line of the user's code; under the cursor with the path that the editor opens."""
    if cursor:
        room = width - width_of(line) - 2
        line += f"  {cut_front(clean_text(path, _TEXT_CHARS), room)}" if room > 10 else ""
    return paint_line(line, cursor, width, Ink.STRONG)


def paint_branches(view: ViewState, cursor: object, width: int) -> Iterator[Block]:
    """Paint the lines of the tree; those of the user's code stand out."""
    threads: dict[int, int] = {}
    for line in list_branches(view):
        row = StackRow(line.mark)
        threads[line.mark] = line.threads
        is_closed = line.mark in view.stacks.closed
        # A line says how many pass it where that is not what the line above it said.
        told = "" if threads.get(line.parent) == line.threads and not is_closed else f"{line.threads}x "
        sign = "+" if is_closed else " "
        yield (
            row,
            [
                _paint_branch(line, f" {sign} {'  ' * line.depth}{told}", row == cursor, width),
                *(() if is_closed else _paint_ends(line, width)),
            ],
        )


def _paint_branch(line: TreeLine, head: str, cursor: bool, width: int) -> Line:
    if not is_known(line.shown):
        return paint_line(f"{head}{clean_text(line.ends[0].doing, _TEXT_CHARS)}", cursor, width, Ink.DIM)
    text = clean_text(line.shown.text, _TEXT_CHARS)
    if line.shown.is_users:
        return paint_user_line(f"{head}{text}", line.shown.frame.file, cursor, width)
    return paint_line(f"{head}- {text}", cursor, width, Ink.DIM)


def _paint_ends(line: TreeLine, width: int) -> list[Line]:
    """Paint who goes no further than this line."""
    start = " " * (5 + 2 * line.depth)
    room = max(8, width - len(start) - 1)
    lines: list[Line] = []
    for group in line.ends:
        texts = wrap_all(clean_text(f"= {say_end(group)}", _TEXT_CHARS), room)[:_WHO_LINES]
        lines += [fit_line(((f"{start}{text}", Ink.PLAIN),), width) for text in texts]
    return lines
