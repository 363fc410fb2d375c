"""What a trace looks like over time, in as many columns as are asked for: any stretch, any device.

Keeps unions of time, which are a part of the trace. Columns are differences of growing unions, as the gaps
are, so that they add up to them.
"""

from __future__ import annotations

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.trace import GAP_CAUSES
from tpmon.model.results.trace_tables import (
    CauseShare,
    CodePlace,
    OperatorGroupRow,
    StepStart,
    Stretch,
    TimeCell,
    Timeline,
)
from tpmon.trace.analysis import Findings, group_operators
from tpmon.trace.figures.breakdown import comm_rows, subtract
from tpmon.trace.figures.gaps import DETAILS, told_causes
from tpmon.trace.figures.kernels import LaunchFigures, fill_sms
from tpmon.trace.figures.program import find_line
from tpmon.trace.reading.columns import Ints, Reals
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import STEP, Category
from tpmon.trace.reading.spans import NOTHING, Spans, grow, split_windows, unite_all, unite_rows

UNTOLD = "idle"
"""What holds a device where the trace does not tell it."""
HOST_CAUSES = ("data", "comms", "sync", "alloc", "other")
MOST_PARTS = 4096
NO_SM = Missing("no kernel of the trace has blocks per SM")
_NO_DEVICE = Missing("no device work in the trace")
_NAME_CHARS = 12


@dataclass(frozen=True, slots=True)
class Level:
    """Hold a value that changes at ``times`` after ``origin``, and its integral up to each of them."""

    origin: int
    times: Ints
    until: Reals

    def within(self, edges: Ints) -> Reals:
        """Return the mean between each two edges; nothing counts outside of the first and last time."""
        sums = np.interp(edges - self.origin, self.times, self.until)
        return np.diff(sums) / np.maximum(np.diff(edges), 1)


@dataclass(frozen=True, slots=True)
class Lane:
    """Hold what was busy, the part that is communication alone, and what explains the rest, set by set."""

    device: Applicable[int]
    causes: tuple[str, ...]
    busy: Spans
    exposed: Spans
    grown: tuple[Spans, ...]
    sm: Known[Level]


@dataclass(frozen=True, slots=True)
class Timelines:
    """Hold the lanes of one trace, and where its steps begin and end; places are counted from ``origin``."""

    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    start: Ints
    end: Ints
    origin: int
    marked: bool

    def look(self, lane: int, stretch: Stretch, cells: int) -> Timeline:
        """Return a stretch in ``cells`` columns; a stretch beyond the trace is moved into it."""
        steps = len(self.names)
        first = min(max(stretch.first, 0), steps - 1)
        last = min(first + max(stretch.count, 1), steps) - 1
        begin, end = int(self.start[first]), int(self.end[last])
        parts = min(max(stretch.parts, 1), MOST_PARTS)
        part = min(max(stretch.part, 0), parts - 1)
        if parts > 1:
            length = end - begin
            begin, end = begin + length * part // parts, begin + length * (part + 1) // parts
        end = max(end, begin + 1)
        # Absolute nanoseconds do not fit a double: the columns are counted from the begin.
        edges = begin + np.linspace(0, end - begin, max(cells, 1) + 1).astype(np.int64)
        shown = self.lanes[min(max(lane, 0), len(self.lanes) - 1)]
        columns, shares = _fill(shown, edges)
        devices = tuple(lane.device for lane in self.lanes if is_known(lane.device))
        return Timeline(
            device=shown.device,
            devices=devices,
            said=self._say(first, last, part, parts),
            steps_in_all=steps if self.marked else 0,
            start_ms=(begin - self.origin) / 1e6,
            end_ms=(end - self.origin) / 1e6,
            cells=columns,
            steps=self._place_steps(first, last, edges) if self.marked else (),
            shares=shares,
            exposed_pct=100 * shown.exposed.within_one(begin, end) / (end - begin),
        )

    def _say(self, first: int, last: int, part: int, parts: int) -> str:
        if not self.marked:
            whole = "the whole trace"
        elif first == 0 and last == len(self.names) - 1:
            whole = f"all {last + 1} steps" if last else "its one step"
        elif first == last:
            whole = f"step {_short(self.names[first])}"
        else:
            whole = f"steps {_short(self.names[first])} to {_short(self.names[last])}"
        return f"part {part + 1} of {parts} of {whole}" if parts > 1 else whole

    def _place_steps(self, first: int, last: int, edges: Ints) -> tuple[StepStart, ...]:
        cells = (np.searchsorted(edges, self.start[first : last + 1], side="right") - 1).tolist()
        named = zip(self.names[first : last + 1], cells, strict=True)
        return tuple(StepStart(_short(name), cell) for name, cell in named if 0 <= cell < len(edges) - 1)


def _short(name: str) -> str:
    return clean_name(name.removeprefix(STEP), _NAME_CHARS)


def _fill(lane: Lane, edges: Ints) -> tuple[tuple[TimeCell, ...], tuple[CauseShare, ...]]:
    start, end = edges[:-1], edges[1:]
    length = np.maximum(end - start, 1)
    table = split_windows(lane.busy, lane.grown, start, end)
    busy = 100 * table[0] / length
    exposed = 100 * lane.exposed.within(start, end) / length
    largest = np.argmax(table[1:], axis=0)
    held = table[1:].max(axis=0) > 0
    sm = lane.sm
    levels: list[Known[float]] = (100 * sm.within(edges)).tolist() if is_known(sm) else [sm] * len(start)
    named = [lane.causes[cause] if rest else "" for cause, rest in zip(largest.tolist(), held, strict=True)]
    cells = tuple(map(TimeCell, busy.tolist(), exposed.tolist(), named, levels))
    whole = max(int(edges[-1] - edges[0]), 1)
    sums = (100 * table.sum(axis=1) / whole).tolist()
    shares = tuple(CauseShare(name, pct) for name, pct in zip(("busy", *lane.causes), sums, strict=True))
    return cells, shares


def lay_timelines(found: Findings) -> Timelines:
    """Keep of a trace what its timelines are drawn from: a lane for each device, or one of the host.

    Steps begin and end with their device work, as the window of the gaps does; without a device with the
    marks.
    """
    trace, steps, activity, causes = found.trace, found.steps, found.activity, found.causes
    work = trace.work
    comms = comm_rows(trace)
    told, _untold = told_causes(trace)
    names = told if GAP_CAUSES[-1] in told else (*told, UNTOLD)
    lanes = []
    for one in found.devices:
        device, busy = one.device, one.busy
        here = work.device == device
        compute = unite_rows(work, trace.select(Category.KERNEL, device) & ~comms)
        communication = unite_rows(work, here & comms)
        exposed = subtract(communication, compute) if len(communication.start) else communication
        sm = _level_sm(trace, found.figures, device)
        # A part of a cause stands right before it.
        grown = tuple(one.grown[DETAILS.index(name) + 1] for name in told if name != GAP_CAUSES[-1])
        lanes.append(Lane(device, names, busy, exposed, grown, sm))
    if not lanes:
        sync = unite_all(causes.layers[1:3])
        on_host = (activity.communication, sync, causes.layers[3])
        data = activity.data_loader
        # Loader and waits come first, as in the split of the host: what operators do there is not compute.
        compute = subtract(activity.cpu, unite_all([data, *on_host[1:]]))
        grown = grow(compute, (data, *on_host))
        lanes.append(Lane(NOT_APPLICABLE, HOST_CAUSES, compute, NOTHING, grown, _NO_DEVICE))
    origin = int(steps.host_start[0])
    edges = (steps.start, steps.end) if len(work.start) else (steps.host_start, steps.host_end)
    return Timelines(tuple(lanes), steps.names, *edges, origin, steps.marked)


def _level_sm(trace: Trace, figures: LaunchFigures, device: int) -> Known[Level]:
    """Return min(sum of blocks per SM of the kernels that run, 1) over time."""
    work = trace.work
    blocks = figures.blocks_per_sm
    rows = trace.select(Category.KERNEL, device) & np.isfinite(blocks) & (blocks > 0) & (work.duration > 0)
    if not rows.any():
        return NO_SM
    times, level = fill_sms(work.start[rows], work.end[rows], blocks[rows])
    until = np.zeros(len(times))
    np.cumsum(level * np.diff(times), out=until[1:])
    return Level(int(times[0]), times - times[0], until)


MOST_KEPT_EVENTS = 12_000_000
"""Traces whose events are kept behind the screen: about 60 bytes each, 0.7 GB."""
_TOO_LARGE = Missing("not kept in memory beside the traces before it: open it alone for its timeline")


class KeptTraces:
    """Hold what the screen may ask of each trace beyond its analysis."""

    def __init__(self) -> None:
        self._events = 0
        self._kept: list[tuple[Timelines, Findings] | None] = []

    def keep(self, found: Findings) -> None:
        """Take what a trace was analysed from, as long as there is room."""
        self._events += found.trace.events
        fits = self._events <= MOST_KEPT_EVENTS or not self._kept
        self._kept.append((lay_timelines(found), found) if fits else None)

    def look(self, file: int, lane: int, stretch: Stretch, cells: int) -> Known[Timeline]:
        """Return a stretch of the timeline of a trace."""
        kept = self._kept[file]
        return _TOO_LARGE if kept is None else kept[0].look(lane, stretch, cells)

    def find_line(self, file: int, name: str) -> Known[CodePlace]:
        """Return the line of Python of what has this name in a trace."""
        kept = self._kept[file]
        return _TOO_LARGE if kept is None else find_line(kept[1].trace, name)

    def group(self, file: int, by: str) -> Applicable[tuple[OperatorGroupRow, ...]]:
        """Return the operators of a trace by input shapes or by line of Python."""
        kept = self._kept[file]
        return _TOO_LARGE if kept is None else group_operators(kept[1], by)
