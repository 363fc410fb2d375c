"""Paint CPU and memory: a history line for each gauge, the most telling ones where the pane is low."""

from __future__ import annotations

from collections.abc import Sequence

from tpmon.model.known import Known, is_known
from tpmon.model.units import format_seconds
from tpmon.model.window import Pulse
from tpmon.ui.kit.cells import fit_line, pad, width_of
from tpmon.ui.kit.ink import spark
from tpmon.ui.kit.table import Item, paint_rule
from tpmon.ui.monitor.panes.gauges import Gauge, list_gauges
from tpmon.ui.monitor.state import Ink, Line, Pane, Size, ViewState

LABEL_WIDTH = 9
NARROW_WIDTH = 60
SPAN_S = 60
"""A history line spans at least this long, however narrow it is."""


def thin(pulses: Sequence[Pulse], cells: int) -> list[Sequence[Pulse]]:
    """Group the newest Pulses so that ``cells`` groups span a minute or more.

    Groups begin at fixed times, so that a drawn column keeps its value until it leaves.
    """
    if cells <= 0:
        return []
    step_ns = -(-SPAN_S // cells) * 1_000_000_000
    groups: list[list[Pulse]] = []
    last = -1
    for pulse in pulses[-(cells + 1) * (step_ns // 500_000_000) :]:
        slot = pulse.taken_ns // step_ns
        if slot != last:
            groups.append([])
            last = slot
        groups[-1].append(pulse)
    return list(groups[-cells:])


def mean_of(values: Sequence[Known[float]]) -> Known[float]:
    """Return the mean of the values that were read, the first reason when none was."""
    known = [value for value in values if is_known(value)]
    return sum(known) / len(known) if known else values[0]


def _spark_width(width: int) -> int:
    if width < NARROW_WIDTH:
        return max(0, width - 31)
    return min(60, (width - 20) // 4)


def paint_gauge(gauge: Gauge, groups: Sequence[Sequence[Pulse]], width: int, spark_width: int) -> Line:
    """Paint one line; pieces of text that do not fit are left out from the end."""
    head = f" {pad(gauge.label, LABEL_WIDTH)} "
    if gauge.read is not None and not (width < NARROW_WIDTH and gauge.pieces[0].startswith("?")):
        read = gauge.read
        means = [mean_of([read(pulse) for pulse in group]) for group in groups]
        head += f"{spark(means, spark_width, gauge.top)} "
    elif width >= NARROW_WIDTH:
        head += " " * (spark_width + 1)
    room = width - width_of(head)
    text = gauge.pieces[0]
    for piece in gauge.pieces[1:]:
        if width_of(text) + 3 + width_of(piece) > room:
            break
        text += f"   {piece}"
    return fit_line(((head, Ink.PLAIN if gauge.ink is Ink.PLAIN else gauge.ink), (text, gauge.ink)), width)


def span_of(groups: Sequence[Sequence[Pulse]]) -> float:
    """Return the seconds between the oldest and the newest Pulse drawn."""
    return (groups[-1][-1].taken_ns - groups[0][0].taken_ns) / 1e9


def paint_cpu(view: ViewState, size: Size, *, focused: bool) -> list[Line]:
    """Paint the pane: its rule and as many lines as fit, the most telling ones."""
    frame = view.frame
    if not is_known(frame):
        return []
    spark_width = _spark_width(size.width)
    groups = thin(view.pulses, spark_width)
    gauges = list_gauges(frame, groups)
    kept = sorted(gauges, key=lambda gauge: gauge.keep)[: max(0, size.height - 1)]
    details = [Item(3, f"last {format_seconds(span_of(groups))}", Ink.DIM)] if len(groups) > 1 else []
    marked = sum(gauge.ink in (Ink.WARN, Ink.BAD) for gauge in gauges if gauge not in kept)
    if marked:
        details.append(Item(0, f"! {marked} more, key {Pane.CPU.value}", Ink.WARN))
    title = f"{Pane.CPU.value} CPU and memory"
    lines = [paint_rule(title, details, size.width, focused=focused)]
    lines += [paint_gauge(g, groups, size.width, spark_width) for g in gauges if g in kept]
    return lines[: size.height]
