"""Paint a stretch of a trace in characters: steps, how busy, what held the rest, est. SM efficiency.

One column is one part of the time. A letter says what held most of a column's idle time, or that the
device did nothing but communicate, and stands only where that was enough of the column; the legend says
what each letter is, and its share.
"""

from __future__ import annotations

from tpmon.model.known import Known, is_known
from tpmon.model.results.timeline import TimeCell, Timeline
from tpmon.ui.kit.cells import Ink, Line, Span, fit_line, pad, width_of, wrap_words
from tpmon.ui.kit.ink import LEVELS
from tpmon.ui.kit.table import Item, paint_rule
from tpmon.view.trace import CAUSES

LABEL_WIDTH = 9
IDLE_SHOWN_PCT = 10.0
"""A column that is idle for less than this bears no letter."""
IDLE_MOST_PCT = 50.0
"""In one row alone, a column that is idle for more than this bears its letter instead of its level."""
LEAST_SHOWN_PCT = 0.05
LETTERS = {
    "data": "d",
    "sync_explicit": "S",
    "sync_implicit": "s",
    "alloc": "a",
    "launch": "l",
    "cpu_op": "o",
    "comms": "c",
    "sync": "s",
    "idle": ".",
    "other": ".",
}
INKS = {
    "data": Ink.WARN,
    "sync_explicit": Ink.BAD,
    "sync_implicit": Ink.BAD,
    "alloc": Ink.BAD,
    "launch": Ink.TITLE,
    "cpu_op": Ink.STRONG,
    "comms": Ink.WARN,
    "sync": Ink.BAD,
    "idle": Ink.DIM,
    "other": Ink.DIM,
}


def count_cells(width: int) -> int:
    """Return how many columns a screen of this width has for the time."""
    return max(1, width - LABEL_WIDTH - 1)


def paint_timeline(
    timeline: Known[Timeline], width: int, height: int, mark_ms: tuple[float, float] | None = None
) -> list[Line]:
    """Paint at most ``height`` lines; ``mark_ms`` is when the row under the cursor was."""
    if height <= 0:
        return []
    if not is_known(timeline):
        lines = [paint_rule("timeline", [], width)]
        texts = wrap_words(f"n/a: {timeline.reason}", max(1, width - 2))
        return [*lines, *(((f" {text}", Ink.DIM),) for text in texts)][:height]
    if height < 3:
        return [_paint_in_one(timeline, width)]
    lines = [_paint_rule(timeline, width)]
    if height >= 5:
        lines.append(_paint_steps(timeline, width, mark_ms))
    lines += [_paint_levels(timeline, width), _paint_causes(timeline, width)]
    if height >= 6 and is_known(timeline.device):
        lines.append(_paint_sm(timeline, width))
    return [*lines, *_paint_legend(timeline, width, max(0, height - len(lines)))][:height]


def name_lane(timeline: Timeline) -> str:
    """Name what the timeline is of."""
    return f"gpu {timeline.device}" if is_known(timeline.device) else "host"


def _paint_rule(timeline: Timeline, width: int) -> Line:
    length = timeline.end_ms - timeline.start_ms
    column_ms = length / max(len(timeline.cells), 1)
    details = [
        Item(0, timeline.said, Ink.STRONG),
        Item(2, f"{timeline.start_ms:,.3f} to {timeline.end_ms:,.3f} ms"),
        Item(1, f"a column is {say_length(column_ms)}"),
    ]
    if len(timeline.devices) > 1:
        details.append(Item(3, f"{len(timeline.devices)} devices, n"))
    return paint_rule("timeline", details, width)


def say_length(ms: float) -> str:
    """Write a length of time with a unit that suits it."""
    if ms >= 1000:
        return f"{ms / 1000:,.2f} s"
    return f"{ms:.2f} ms" if ms >= 0.1 else f"{ms * 1000:.1f} us"


def _label(text: str) -> Span:
    return (f" {pad(text, LABEL_WIDTH - 1)}", Ink.DIM)


def _row(label: str, cells: list[Span], width: int) -> Line:
    return fit_line((_label(label), *cells), width)


def _level(pct: float) -> str:
    if pct <= 0:
        return LEVELS[0]
    return LEVELS[max(1, round(min(pct, 100.0) / 100 * (len(LEVELS) - 1)))]


def _paint_steps(timeline: Timeline, width: int, mark_ms: tuple[float, float] | None) -> Line:
    """Paint where steps begin, and under the row that the cursor is on a line of its length."""
    ruler = [" "] * len(timeline.cells)
    free = 0
    for step in timeline.steps:
        if step.cell < free:
            continue
        text = f"|{step.name}"
        for at, char in enumerate(text):
            if step.cell + at < len(ruler):
                ruler[step.cell + at] = char
        free = step.cell + len(text) + 1
    marked = _mark(timeline, mark_ms)
    cells: list[Span] = [
        ("^", Ink.WARN) if at in marked else (char, Ink.DIM) for at, char in enumerate(ruler)
    ]
    return _row("step" if timeline.steps_in_all else "", cells, width)


def _mark(timeline: Timeline, mark_ms: tuple[float, float] | None) -> range:
    length = timeline.end_ms - timeline.start_ms
    if mark_ms is None or length <= 0:
        return range(0)
    scale = len(timeline.cells) / length
    first = int((mark_ms[0] - timeline.start_ms) * scale)
    last = int((mark_ms[1] - timeline.start_ms) * scale)
    return range(max(first, 0), min(max(last, first), len(timeline.cells) - 1) + 1)


def _busy_ink(cell: TimeCell) -> Ink:
    return Ink.WARN if cell.exposed_pct * 2 > cell.busy_pct else Ink.GOOD


def _letter(cell: TimeCell, least_pct: float) -> Span | None:
    """Return the letter of a column that is idle, or does nothing but communicate, for more than this."""
    idle_pct = 100.0 - cell.busy_pct
    if cell.exposed_pct > max(idle_pct, least_pct):
        return LETTERS["comms"], INKS["comms"]
    if cell.cause and idle_pct > least_pct:
        return LETTERS[cell.cause], INKS[cell.cause]
    return None


def _paint_levels(timeline: Timeline, width: int) -> Line:
    cells: list[Span] = [(_level(cell.busy_pct), _busy_ink(cell)) for cell in timeline.cells]
    return _row(name_lane(timeline), cells, width)


def _paint_causes(timeline: Timeline, width: int) -> Line:
    cells: list[Span] = [_letter(cell, IDLE_SHOWN_PCT) or (" ", Ink.PLAIN) for cell in timeline.cells]
    return _row("waits" if is_known(timeline.device) else "rest", cells, width)


def _paint_in_one(timeline: Timeline, width: int) -> Line:
    cells: list[Span] = [
        _letter(cell, IDLE_MOST_PCT) or (_level(cell.busy_pct), _busy_ink(cell)) for cell in timeline.cells
    ]
    return _row(name_lane(timeline), cells, width)


def _paint_sm(timeline: Timeline, width: int) -> Line:
    first = timeline.cells[0].sm_pct if timeline.cells else None
    if first is not None and not is_known(first):
        return fit_line((_label("est. SM"), (f"n/a: {first.reason}", Ink.DIM)), width)
    levels = [_level(cell.sm_pct) if is_known(cell.sm_pct) else " " for cell in timeline.cells]
    cells: list[Span] = [(level, Ink.TITLE) for level in levels]
    return _row("est. SM", cells, width)


def _paint_legend(timeline: Timeline, width: int, most: int) -> list[Line]:
    """Paint what the letters are with their shares of the stretch, the largest first."""
    if most <= 0:
        return []
    busy, *rest = timeline.shares
    word = "busy" if is_known(timeline.device) else "CPU operators"
    shown = sorted((share for share in rest if share.pct >= LEAST_SHOWN_PCT), key=lambda share: -share.pct)
    pieces: list[list[Span]] = [[(f"{LEVELS[-1]} ", Ink.GOOD), (f"{word} {busy.pct:.1f} %", Ink.PLAIN)]]
    if timeline.exposed_pct >= LEAST_SHOWN_PCT:
        text = f" of it exposed communication {timeline.exposed_pct:.1f} %"
        pieces.append([(LETTERS["comms"], INKS["comms"]), (text, Ink.PLAIN)])
    for share in shown:
        text = f" {CAUSES[share.name]} {share.pct:.1f} %"
        pieces.append([(LETTERS[share.name], INKS[share.name]), (text, Ink.PLAIN)])
    lines: list[list[Span]] = [[_label("")]]
    left = width - LABEL_WIDTH
    for piece in pieces:
        taken = sum(width_of(text) for text, _ink in piece) + 3
        if taken > left and len(lines[-1]) > 1:
            lines.append([_label("")])
            left = width - LABEL_WIDTH
        lines[-1] += [*piece, ("   ", Ink.PLAIN)]
        left -= taken
    return [fit_line(tuple(line), width) for line in lines[:most]]
