"""Lay pieces of text out in lines, and share lines among parts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.units import count_cells
from tpmon.view.layout import CUT_MARK, Ink, Line, Span, fit_line, line_width, pad, wrap_all

NARROW = 60
"""Below this width labels have lines of their own, and what is to be done is its code alone."""
WIDE = 100
LABEL_CELLS = 7


def flow(items: Sequence[Span], width: int, gap: int) -> list[Line]:
    """Lay pieces out in lines, breaking between them; a piece wider than a line is broken at spaces."""
    lines: list[list[Span]] = []
    left = 0
    for text, ink in items:
        if not text:
            continue
        if lines and count_cells(text) + gap <= left:
            lines[-1] += [(" " * gap, Ink.PLAIN), (text, ink)]
            left -= count_cells(text) + gap
            continue
        for piece in wrap_all(text, max(1, width - 1)):
            lines.append([(" ", Ink.PLAIN), (piece, ink)])
            left = width - 1 - count_cells(piece)
    return [tuple(line) for line in lines]


def lay_pieces(
    pieces: Sequence[Line], width: int, gap: int, head: str = " ", indent: int = LABEL_CELLS
) -> list[Line]:
    """Lay pieces out in lines behind ``head``, breaking between them; a piece wider than a line is cut."""
    lines: list[list[Span]] = []
    left = 0
    for piece in pieces:
        cells = line_width(piece)
        if not cells:
            continue
        if lines and cells + gap <= left:
            lines[-1] += [(" " * gap, Ink.PLAIN), *piece]
            left -= cells + gap
            continue
        before = (" " * indent, Ink.PLAIN) if lines else (head, Ink.TITLE)
        left = width - cells - count_cells(before[0])
        lines.append([before, *piece])
    return [fit_line(tuple(line), width) for line in lines]


def write_label(text: str) -> str:
    """Write a label of the first column."""
    return f" {pad(text, LABEL_CELLS - 1)}"


def share_lines(wanted: dict[str, int], most: int, order: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Share ``most`` lines in the order of need."""
    given = dict.fromkeys(wanted, 0)
    left = max(1, most)
    for name, up_to in order:
        share = max(0, min(wanted[name] - given[name], up_to - given[name], left))
        given[name] += share
        left -= share
    return given


def cut_text(lines: Sequence[Line], count: int, width: int) -> list[Line]:
    """Return the first ``count`` lines; the last ends in a mark where there are more."""
    shown = list(lines[:count])
    if shown and len(lines) > count:
        shown[-1] = (*fit_line(shown[-1], width - 2), (f" {CUT_MARK}", Ink.PLAIN))
    return shown
