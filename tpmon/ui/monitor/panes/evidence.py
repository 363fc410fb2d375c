"""Paint evidence: a row for each reading, with its history where the thin history holds that figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.model.text.verdict_words import say_value
from tpmon.model.units import format_seconds
from tpmon.model.verdict import Evidence
from tpmon.model.window import Pulse
from tpmon.ui.kit.cells import cut, fit_line, pad, width_of
from tpmon.ui.kit.ink import spark
from tpmon.ui.monitor.alerts import age_of
from tpmon.ui.monitor.panes.cpu import mean_of, thin
from tpmon.ui.monitor.state import Ink, Line, ViewState

Read = Callable[[Pulse], Known[float]]
NARROW = 60
"""Below this width a row has no history, and of its source only the age."""
WIDE = 100
"""From this width on sources stand below each other; else they end where the line ends."""
AGE_WIDTH = 6


def _gpu(pulse: Pulse) -> Known[float]:
    busy = [one for one in pulse.gpu_pct if is_known(one)]
    return fmean(busy) if busy else Missing("no card answered")


def _gpu_idle(pulse: Pulse) -> Known[float]:
    return map_known(lambda busy: 100.0 - busy, _gpu(pulse))


SERIES: Mapping[str, tuple[Read, float]] = {
    "CPUs used": (lambda pulse: pulse.used_cores, 0.0),
    "GPU busy": (_gpu, 100.0),
    "GPU idle": (_gpu_idle, 100.0),
    "batches ready": (lambda pulse: pulse.ready_batches, 0.0),
    "queue empty": (lambda pulse: pulse.empty_ratio, 1.0),
    "runnable": (lambda pulse: pulse.runnable, 0.0),
    "used of it": (lambda pulse: pulse.shm_ratio, 1.0),
    "used of the limit": (lambda pulse: pulse.memory_bytes, 0.0),
    "waiting for a CPU": (lambda pulse: pulse.run_delay_ratio, 1.0),
}
"""The names of evidence whose history the Pulses hold: what to read, and the top.

A top of 0 stands for the highest value seen or, of a share, for the whole of it.
"""


@dataclass(frozen=True, slots=True)
class Widths:
    """Hold the cells that each column of evidence takes; ``history`` 0 leaves that column out."""

    name: int
    value: int
    history: int


def fit_widths(rows: Sequence[Evidence], width: int) -> Widths:
    """Give names and values what they need, up to a third of the row each."""
    names = max((width_of(row.name) for row in rows), default=0)
    values = max((width_of(say_value(row)) for row in rows), default=0)
    if width < NARROW:
        room = width - AGE_WIDTH - 7
        value = max(0, min(values, 16, room - 8))
        return Widths(max(8, room - value), value, 0)
    drawn = any(row.name in SERIES for row in rows)
    history = 30 if width >= 150 else 20 if width >= WIDE else 12
    return Widths(min(names, max(14, width // 3)), min(values, max(10, width // 3)), history if drawn else 0)


def _draw(view: ViewState, row: Evidence, cells: int) -> str:
    series = SERIES.get(row.name)
    if series is None:
        return " " * cells
    read, top = series
    values = [mean_of([read(pulse) for pulse in group]) for group in thin(view.pulses, cells)]
    return spark(values, cells, top or _top_of(row, values))


def _top_of(row: Evidence, values: Sequence[Known[float]]) -> float:
    known = [value for value in values if is_known(value)]
    if row.unit == "%" and known and is_known(row.value) and row.value > 0:
        return known[-1] * 100 / row.value
    return max(known, default=0.0)


def say_age(view: ViewState, row: Evidence) -> str:
    """Write how old a reading is at painting."""
    return format_seconds(age_of(view, row.age_s)) if is_known(row.age_s) else "age ?"


def cut_value(row: Evidence, widths: Widths) -> str:
    """Write the value of a reading, cut where it does not fit what its own name leaves."""
    return cut(say_value(row), max(widths.value, widths.name + widths.value - width_of(row.name)))


def write_reading(view: ViewState, row: Evidence, sign: str, widths: Widths) -> str:
    """Write sign, name, value and history; a long name takes what a short value leaves, and the reverse."""
    room = widths.name + widths.value
    value = cut_value(row, widths)
    text = f" {sign} {pad(row.name, room - width_of(value))}  {value}"
    return f"{text}  {_draw(view, row, widths.history)}" if widths.history else text


def paint_evidence(view: ViewState, row: Evidence, sign: str, widths: Widths, width: int) -> Line:
    """Paint one reading: sign, name, value, history, source and age."""
    head = write_reading(view, row, sign, widths)
    age = say_age(view, row)
    if width < NARROW:
        return fit_line(((f"{head}  ", Ink.PLAIN), (age, Ink.DIM)), width)
    head = head if width >= WIDE else head.rstrip()
    source = cut(row.source, max(0, width - width_of(head) - len(age) - 5))
    told = f"{source}, {age}"
    gap = 2 if width >= WIDE else max(2, width - 1 - width_of(head) - width_of(told))
    return fit_line(((head + " " * gap, Ink.PLAIN), (told, Ink.DIM)), width)
