"""Draw the memory of a device over time in characters: allocated from below, reserved beyond it.

The screen and the text of a trace draw the same; how wide and how high is theirs to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.results.trace import StepRow
from tpmon.model.results.trace_tables import CurvePoint, MemoryCurve
from tpmon.model.units import format_bytes

ROWS = 4
LEVELS = "▁▂▃▄▅▆▇█"
RESERVED = "░"
LEGEND = f"{LEVELS[-1]} allocated, {RESERVED} reserved beyond it"


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """Hold the time that curves are drawn over, in ms from the start of the first mark."""

    begin_ms: float
    end_ms: float

    def column_of(self, ms: float, columns: int) -> int:
        """Return the column of a time; what is outside goes to the first or the last one."""
        length = self.end_ms - self.begin_ms
        at = int((ms - self.begin_ms) * columns / length) if length > 0 else 0
        return max(0, min(at, columns - 1))


def span_curves(curves: Sequence[MemoryCurve], steps: Sequence[StepRow]) -> ChartSpan:
    """Return the time from the first step or point to the last one, so that a peak outside is drawn too."""
    times = [point.ms for curve in curves for point in (curve.points[0], curve.points[-1])]
    marks = [0.0, *(step.start_ms + step.host_ms for step in steps[-1:])]
    return ChartSpan(min([*times, *marks]), max([*times, *marks]))


def say_span(span: ChartSpan) -> str:
    """Say from when to when curves are drawn."""
    return f"{span.begin_ms:,.3f} to {span.end_ms:,.3f} ms"


def find_peak(curve: MemoryCurve) -> CurvePoint:
    """Return the point where most is allocated, the first of several."""
    return max(curve.points, key=lambda point: point.allocated_bytes)


def name_place(kind: str, device: int) -> str:
    """Name the device of a curve or a peak; the CPU has no number."""
    return f"{kind} {device}" if device >= 0 else kind


def describe_curve(curve: MemoryCurve) -> str:
    """Say when most was allocated, what was reserved then, and what is allocated at the end."""
    peak, last = find_peak(curve), curve.points[-1]
    text = f"most is {format_bytes(peak.allocated_bytes)} allocated at {peak.ms:,.3f} ms"
    if is_known(peak.reserved_bytes):
        text += f", {format_bytes(peak.reserved_bytes)} reserved then"
    return f"{text}; {format_bytes(last.allocated_bytes)} at the end"


def top_of(curve: MemoryCurve) -> int:
    """Return the bytes that the highest row stands for."""
    return max(max(point.allocated_bytes, _reserved(point)) for point in curve.points)


def draw_curve(curve: MemoryCurve, span: ChartSpan, columns: int, rows: int = ROWS) -> tuple[str, ...]:
    """Draw a curve from its top row down; a column shows the most of its time, or what was before it."""
    top = top_of(curve) or 1
    drawn = [_draw_column(point, top, rows) for point in _sample(curve, span, columns)]
    return tuple("".join(column[row] for column in drawn) for row in range(rows - 1, -1, -1))


def label_curve(curve: MemoryCurve, span: ChartSpan, columns: int) -> list[tuple[str, str]]:
    """Draw a curve with what its first and its last row stand for before them."""
    labels = [format_bytes(top_of(curve)), *[""] * (ROWS - 2), format_bytes(0)]
    return list(zip(labels, draw_curve(curve, span, columns), strict=True))


def draw_steps(steps: Sequence[StepRow], span: ChartSpan, columns: int) -> str:
    """Draw where steps begin, each with its number as far as there is room."""
    ruler = [" "] * columns
    free = 0
    for step in steps:
        at = span.column_of(step.start_ms, columns)
        text = f"|{step.name.rpartition('#')[2][:12]}"
        if at >= free:
            ruler[at : at + len(text)] = text[: columns - at]
            free = at + len(text) + 1
    return "".join(ruler).rstrip()


def _reserved(point: CurvePoint) -> int:
    return point.reserved_bytes if is_known(point.reserved_bytes) else 0


def _sample(curve: MemoryCurve, span: ChartSpan, columns: int) -> list[CurvePoint | None]:
    highest: dict[int, CurvePoint] = {}
    last: dict[int, CurvePoint] = {}
    for point in curve.points:
        at = span.column_of(point.ms, columns)
        last[at] = point
        if at not in highest or point.allocated_bytes > highest[at].allocated_bytes:
            highest[at] = point
    found: list[CurvePoint | None] = []
    before = None
    for at in range(columns):
        found.append(highest.get(at, before))
        before = last.get(at, before)
    return found


def _draw_column(point: CurvePoint | None, top: int, rows: int) -> str:
    """Draw a column from the bottom up; zero is the lowest level, nothing is before the first reading."""
    if point is None:
        return " " * rows
    steps = len(LEVELS)
    least = 2 if point.allocated_bytes > 0 else 1
    filled = max(least, round(point.allocated_bytes / top * rows * steps))
    reserved = round(_reserved(point) / top * rows)
    cells = []
    for row in range(rows):
        level = min(filled - row * steps, steps)
        cells.append(LEVELS[level - 1] if level > 0 else RESERVED if row < reserved else " ")
    return "".join(cells)
