"""Why a device was idle, and what the host did where there is no device.

Each idle moment has one cause, the first of: queued (the next work was launched before the device ran out),
loader, explicit sync, implicit sync, allocator, launches and other calls, operators, communication of the
host (gloo), other. A sync costs the bubble behind it. Parts are differences of growing unions, so they sum
to the idle time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, sum_known
from tpmon.model.results.trace import GAP_CAUSES, DeviceGaps, HostTime, LargeGap
from tpmon.trace.figures.breakdown import Activity, loader_rows, name_calls, subtract, tells_host
from tpmon.trace.figures.operators import Operators
from tpmon.trace.figures.steady import SteadyPart
from tpmon.trace.own_lines import LineOwner, rank_lines
from tpmon.trace.reading.columns import EventTable, Ints, Mask, Small, distinct, find_main
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import (
    CallClass,
    Category,
    begins,
    class_of_call,
    is_comm_host,
    is_optimizer,
    is_step,
)
from tpmon.trace.reading.spans import (
    MOST_NS,
    NOTHING,
    Nest,
    Spans,
    find_cuts,
    grow,
    invert,
    split_windows,
    unite,
    unite_all,
    unite_rows,
)

_waits_for_work = begins(r"(?:cuda|hip|cu)(?:Memcpy|(?:Mem)?Free)")
"""Calls beside a synchronise that return when a device is done: copies that are not asynchronous, frees."""
MOST_GAPS = 10
NO_HOST_EVENTS = Missing("the trace holds no host events")
NO_OPERATORS = Missing("operators were not recorded: activities had no CPU")
CALL_CAUSES = ("queued", "sync_explicit", "sync_implicit", "alloc", "launch")
"""What calls of the runtime tell alone."""
COVERS_SLACK_NS = 1000
"""A call that returns no more than this before its copy ends has waited for it."""
DETAILS = (
    "graph",
    "queued",
    "data",
    "sync_explicit",
    "sync_implicit",
    "alloc",
    "launch",
    "host",
    "cpu_op",
    "comms",
)
"""The causes in their order, with those parts of two of them that a verdict tells apart."""
PART_OF = {"graph": "queued", "host": "cpu_op"}
AHEAD_NS = 5000
"""A launch that returned so long before a device ran out is of queued work: it takes as long to get there."""
RETURN_NS = 100_000
"""A synchronise returns within this of the end of what it waited for: longer, it waits for something else."""
COMPUTES_NS = 100_000
"""An operator that launches no kernel computes on the host where it takes longer than any overhead does."""


@dataclass(frozen=True, slots=True)
class HostCauses:
    """Hold what the host did while a device may have waited, in the order in which the first one counts.

    ``layers`` are loader, explicit and implicit sync, allocator, launches and other calls, operators, and
    communication; ``computing`` are the operators that launch no kernel and take long. Rows of ``waiting``
    are the calls that end when a device is done, on threads that launch work, ``synchronises`` those that do
    no more.
    """

    layers: tuple[Spans, ...]
    call_class: Ints
    computing: Ints
    waiting: Ints
    synchronises: Spans


@dataclass(frozen=True, slots=True)
class DeviceCauses:
    """Hold when one device was busy, and what explains the rest: sets in the order of ``DETAILS``.

    ``grown`` are the unions of ``busy`` with none of them, the first, the first two, and so on.
    """

    device: int
    layers: tuple[Spans, ...]
    grown: tuple[Spans, ...]

    @property
    def busy(self) -> Spans:
        """Return when the device worked."""
        return self.grown[0]

    def _grow(self, cuts: Spans) -> tuple[Spans, ...]:
        if not len(cuts.start):
            return self.grown
        busy = unite_all([self.busy, cuts])
        return (busy, *grow(busy, self.layers))

    def split(self, start: Ints, end: Ints, cuts: Spans = NOTHING) -> dict[str, Ints]:
        """Split windows by cause where the device is idle, but for ``cuts``; none explains "other"."""
        busy, *grown = self._grow(cuts)
        rows = split_windows(busy, grown, start, end)
        return dict(zip(("busy", *DETAILS, "other"), rows, strict=True))

    def split_one(self, window: tuple[int, int], cuts: Spans = NOTHING) -> dict[str, int]:
        """Split one window; what was cut out of it counts as busy."""
        parts = self.split(np.array(window[:1]), np.array(window[1:]), cuts)
        return {name: int(row[0]) for name, row in parts.items()}

    def find_idle(self, cause: str, window: tuple[int, int], cuts: Spans = NOTHING) -> Spans:
        """Return when in a window the device was idle for one of ``DETAILS``, or for "other"."""
        grown = self._grow(cuts)
        rest = invert(grown[DETAILS.index(cause)] if cause in DETAILS else grown[-1], *window)
        return subtract(rest, invert(grown[DETAILS.index(cause) + 1], *window)) if cause in DETAILS else rest


def classify_calls(trace: Trace) -> Ints:
    """Return the class of each call; an asynchronous copy of pageable memory that waits is implicit."""
    names = np.array([int(class_of_call(name)) for name in trace.names] or [0], dtype=np.int64)
    classes = names[trace.calls.name] if len(trace.calls.name) else np.zeros(0, np.int64)
    pageable = np.array(["Pageable" in name for name in trace.names] or [False])
    work = trace.work
    rows = np.flatnonzero((work.category == Category.MEMCPY) & pageable[work.name] & (work.call >= 0))
    calls = work.call[rows]
    covers = trace.calls.end[calls] + COVERS_SLACK_NS >= work.end[rows]
    waits = covers & (classes[calls] == CallClass.COPY)
    classes[calls[waits]] = CallClass.IMPLICIT
    return classes


def find_causes(trace: Trace, activity: Activity, ops: Operators, until: int) -> HostCauses:
    """Unite the host events of each cause; a synchronise from ``until`` on is the profiler's own."""
    calls = trace.calls
    classes = classify_calls(trace)
    launched = trace.work.call[trace.work.call >= 0]
    own = (classes == CallClass.EXPLICIT) & (calls.start >= until)

    def of(*kinds: CallClass) -> Spans:
        return unite_rows(calls, np.isin(classes, kinds) & ~own)

    waits = (of(CallClass.EXPLICIT), of(CallClass.IMPLICIT), of(CallClass.ALLOCATOR))
    launches = of(CallClass.LAUNCH, CallClass.COPY)
    layers = (activity.data_loader, *waits, launches, activity.cpu, activity.host_comms)
    launching = distinct(calls.track[launched])
    ends_with_work = (classes == CallClass.EXPLICIT) | name_calls(trace, _waits_for_work)
    waits_for = ends_with_work & ~own & (classes != CallClass.COPY) & np.isin(calls.track, launching)
    computing = _find_computing(trace, ops, launching)
    waiting = np.flatnonzero(waits_for)
    synchronises = unite_rows(calls, waiting[classes[waiting] == CallClass.EXPLICIT])
    return HostCauses(layers, classes, computing, waiting, synchronises if len(launching) else waits[0])


def _find_computing(trace: Trace, ops: Operators, launching: Small) -> Ints:
    """Return the operators on threads that launch work that take long and launch no kernel."""
    host, calls, work = trace.host, trace.calls, trace.work
    launches = work.call[(work.call >= 0) & trace.select(Category.KERNEL)]
    rows = np.flatnonzero((ops.own > COMPUTES_NS) & ~trace.named(host, is_comm_host)[ops.row])
    tracks = host.track[ops.row[rows]]
    found = []
    for track in distinct(tracks[np.isin(tracks, launching)]).tolist():
        times = np.sort(calls.start[launches[calls.track[launches] == track]])
        here = rows[tracks == track]
        first, last = (
            np.searchsorted(times, edge) for edge in (ops.start[here], ops.start[here] + ops.own[here])
        )
        found.append(here[first == last])
    return np.sort(np.concatenate(found)) if found else rows[:0]


def find_device_causes(trace: Trace, causes: HostCauses, ops: Operators, device: int) -> DeviceCauses:
    """Find what explains the idle time of one device: first of all whether its next work was queued."""
    busy = unite_rows(trace.work, trace.work.device == device)
    start, end = busy.end[:-1], busy.start[1:]
    graph, queued = _find_queued(trace, device, start, end)
    data, _explicit, implicit, alloc, launches, cpu, comms = causes.layers
    queued = unite_all([queued, _find_unknown(causes, busy)])
    bubbles = _find_bubbles(trace, causes, busy)
    own = (causes.synchronises, implicit, alloc)
    waits = [unite_all([one, bubble]) for one, bubble in zip(own, bubbles, strict=True)]
    computing = unite(ops.start[causes.computing], ops.own[causes.computing])
    layers = (graph, queued, data, *waits, launches, computing, cpu, comms)
    return DeviceCauses(device, layers, (busy, *grow(busy, layers)))


def _find_queued(trace: Trace, device: int, start: Ints, end: Ints) -> tuple[Spans, Spans]:
    """Return the gaps inside of a graph, and those whose next work was launched before they began.

    A graph is launched by one call: what holds the device between its kernels is the graph.
    """
    work, calls = trace.work, trace.calls
    rows = np.flatnonzero((work.device == device) & (work.duration > 0))
    call = work.call[rows[np.searchsorted(work.start[rows], end)]]
    told = np.flatnonzero(call >= 0)
    start, end, call = start[told], end[told], call[told]
    first = np.full(len(calls.start), np.iinfo(np.int64).max, dtype=np.int64)
    launched = rows[work.call[rows] >= 0]
    np.minimum.at(first, work.call[launched], work.start[launched])
    graph = name_calls(trace, lambda name: "Graph" in name)[call] & (first[call] < start)
    queued = calls.end[call] + AHEAD_NS <= start
    length = end - start
    return unite(start[graph], length[graph]), unite(start[queued], length[queued])


def _find_unknown(causes: HostCauses, busy: Spans) -> Spans:
    """Return the idle time in synchronises beyond what returning takes: what they wait for is unknown."""
    start, end = np.append(-MOST_NS, busy.end), np.append(busy.start, MOST_NS)
    long = end - start > RETURN_NS
    gaps = unite(start[long], (end - start)[long])
    inside = subtract(gaps, subtract(gaps, causes.synchronises))
    long = inside.end - inside.start > RETURN_NS
    return unite(inside.start[long], (inside.end - inside.start)[long])


def _find_bubbles(trace: Trace, causes: HostCauses, busy: Spans) -> tuple[Spans, ...]:
    """Return the bubbles behind waits: explicit ones, implicit ones, and those of the allocator.

    While the host waits for a device it launches nothing ahead: behind the wait the device is idle for as
    long as the host could have run ahead meanwhile. What is more would be idle without the wait, too.
    """
    calls, rows = trace.calls, causes.waiting
    start, end = busy.end[:-1], busy.start[1:]
    if not len(start):
        rows = rows[:0]
    ended = calls.end[rows]
    at = np.searchsorted(start, ended + COVERS_SLACK_NS, side="right") - 1
    begin = np.maximum(ended, start[at])
    length = np.minimum(end[at] - begin, busy.within(calls.start[rows], ended))
    length[at < 0] = 0
    kinds = causes.call_class[rows]
    waits = (CallClass.EXPLICIT, CallClass.IMPLICIT, CallClass.ALLOCATOR)
    return tuple(unite(begin[kinds == kind], length[kinds == kind]) for kind in waits)


def find_gaps(
    trace: Trace, causes: Sequence[DeviceCauses], ops: Nest, steady: SteadyPart, origin: int
) -> tuple[DeviceGaps, ...]:
    """Attribute the idle time of each device in what is steady; places are counted from ``origin``."""
    window = steady.steps.window
    cuts = unite_all([find_cuts(trace.header, window), steady.cuts])
    told, untold = told_causes(trace)
    found = []
    for one in causes:
        parts = one.split_one(window, cuts)
        busy = parts.pop("busy") - cuts.total
        whole = dict.fromkeys(GAP_CAUSES, 0)
        for name, ns in parts.items():
            whole[PART_OF.get(name, name)] += ns
        known: dict[str, Known[float]] = {
            name: ns / 1000 if name in told else untold for name, ns in whole.items()
        }
        gaps = DeviceGaps(
            device=one.device,
            window=(window[1] - window[0] - cuts.total) / 1000,
            busy=busy / 1000,
            idle=sum(parts.values()) / 1000,
            **known,
            in_graphs=parts["graph"] / 1000 if "queued" in told else untold,
            computing=parts["host"] / 1000 if "cpu_op" in told else untold,
            largest=_name_gaps(trace, one, ops, origin, invert(unite_all([one.busy, cuts]), *window)),
        )
        found.append(gaps)
    return tuple(found)


def name_computing(
    trace: Trace, causes: HostCauses, ops: Operators, idle: Spans
) -> Applicable[tuple[str, float, bool]]:
    """Name the operator that computes longest in ``idle`` by itself, without those inside of it.

    Beside it: its part of that time in percent, and whether it is a step of the optimizer that computes.
    """
    rows = causes.computing
    inside = idle.within(ops.start[rows], ops.start[rows] + ops.own[rows])
    within = np.zeros(len(ops.row) + 1, dtype=np.int64)
    np.add.at(within, ops.parent[rows], inside)  # the last one is for those without a parent
    if not len(rows) or not idle.total:
        return NOT_APPLICABLE
    own = np.maximum(inside - within[rows], 0)
    names = trace.host.name[ops.row[rows]]
    main = find_main(names, own)
    here = names == main
    pct = 100 * float(own[here].sum()) / idle.total
    updates = unite_rows(trace.host, trace.named(trace.host, is_optimizer))
    updated = updates.within(ops.start[rows], ops.start[rows] + 1) > 0
    return clean_name(trace.names[main], 80), pct, 2 * int(own[updated].sum()) > int(own.sum())


def _name_gaps(
    trace: Trace, causes: DeviceCauses, ops: Nest, origin: int, idle: Spans
) -> tuple[LargeGap, ...]:
    """Name what held the longest gaps: the largest cause, and the call, operator and line in the middle."""
    longest = np.argsort(idle.start - idle.end, kind="stable")[:MOST_GAPS]
    start, end = idle.start[longest], idle.end[longest]
    if not len(start):
        return ()
    parts = causes.split(start, end)
    main = find_main_track(trace)
    middle = (start + end) // 2
    places = ops.find(np.full(len(middle), main, dtype=np.int32), middle)
    found = []
    told, untold = told_causes(trace)
    for at in range(len(start)):
        window = int(start[at]), int(end[at])
        most = max((*DETAILS, "other"), key=lambda name: int(parts[name][at]))
        largest = PART_OF.get(most, most)
        cause: Known[str] = largest if largest in told else untold
        operator: Applicable[str] = NOT_APPLICABLE
        call: Applicable[str] = NOT_APPLICABLE
        source: Applicable[str] = NOT_APPLICABLE
        if cause != "queued":  # the host may do what it likes
            if places[at] >= 0:
                operator = clean_name(trace.names[trace.host.name[ops.row[places[at]]]])
            elif cause in ("data", "cpu_op"):
                rows = loader_rows(trace) if cause == "data" else trace.host.category == Category.OP
                operator = _longest(trace, trace.host, rows, *window)
            if cause in CALL_CAUSES:
                call = _longest(trace, trace.calls, True, *window)
            source = _source(trace, main, int(middle[at]))
        begin, length = (window[0] - origin) / 1e6, (window[1] - window[0]) / 1000
        found.append(LargeGap(begin, length, cause, operator, call, source))
    return tuple(found)


def find_main_track(trace: Trace) -> int:
    """Return the thread that marks the steps, else the one with the most operators."""
    host = trace.host
    rows = np.flatnonzero(trace.named(host, is_step) & (host.category != Category.GPU_ANNOTATION))
    if len(rows):
        return int(host.track[rows[0]])
    tracks = host.track[host.category == Category.OP]
    return int(np.bincount(tracks).argmax()) if len(tracks) else -1


def _longest(trace: Trace, table: EventTable, rows: Mask | bool, begin: int, stop: int) -> Applicable[str]:
    """Name the event that has most of the time from ``begin`` to ``stop``."""
    shared = np.where(rows, np.minimum(table.end, stop) - np.maximum(table.start, begin), 0)
    if not len(shared) or shared.max() <= 0:
        return NOT_APPLICABLE
    return clean_name(trace.names[table.name[int(np.argmax(shared))]])


def _source(trace: Trace, main: int, time: int) -> Applicable[str]:
    """Return the innermost line of the program around a time on the main thread, else of a package."""
    lines = rank_lines(list_around(trace, main, time))
    owner, name = min(lines, key=lambda line: line[0], default=(LineOwner.TORCH, ""))
    return clean_name(name) if owner <= LineOwner.PACKAGE else NOT_APPLICABLE


def list_around(trace: Trace, track: int, time: int) -> list[str]:
    """List the Python functions around a time on a thread, the innermost first."""
    python = trace.python
    until = int(np.searchsorted(python.start, time, side="right"))
    around = np.flatnonzero((python.end[:until] > time) & (python.track[:until] == track))
    return [trace.names[python.name[row]] for row in reversed(around.tolist())]


def told_causes(trace: Trace) -> tuple[tuple[str, ...], Missing]:
    """Return the causes of idle time that a trace can tell, and why not the others."""
    if tells_host(trace):
        return GAP_CAUSES, NO_OPERATORS
    return (CALL_CAUSES, NO_OPERATORS) if len(trace.calls.start) else ((), NO_HOST_EVENTS)


def sum_causes(gaps: Sequence[DeviceGaps], *causes: str) -> float:
    """Sum the idle time of some causes over devices, in microseconds; what is not told counts for nothing."""
    return sum_known(dict(gap.causes())[cause] for gap in gaps for cause in causes)


def split_host(
    trace: Trace, activity: Activity, causes: HostCauses, steady: SteadyPart
) -> Applicable[HostTime]:
    """Split the window of a trace without device work by what the host did; NOT_APPLICABLE without either."""
    window, cuts = steady.steps.host_window, steady.cuts
    if not (tells_host(trace) or len(trace.calls.start)):
        return NOT_APPLICABLE
    sync = unite_all(causes.layers[1:3])
    layers = (activity.data_loader, sync, causes.layers[3], activity.cpu, activity.communication)
    parts = split_windows(cuts, grow(cuts, layers), np.array(window[:1]), np.array(window[1:]))
    data, waits, alloc, compute, comms, other = (ns / 1000 for ns in parts[1:, 0].tolist())
    return HostTime(data, comms, waits, alloc, compute, other)
