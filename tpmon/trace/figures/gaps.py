"""Where the idle time of a device goes, and where the time of the host goes without one.

Each moment has one cause, the first of: loader, explicit sync, implicit sync, allocator, launches and
other calls, operators, communication of the host (gloo), other. Parts are differences of growing
unions, so they sum to the idle time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.trace import GAP_CAUSES, DeviceGaps, HostTime, LargeGap
from tpmon.trace.figures.breakdown import Activity, loader_rows, tells_host
from tpmon.trace.reading.columns import EventTable, Ints, Mask
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import CallClass, Category, class_of_call, is_step
from tpmon.trace.reading.spans import (
    NOTHING,
    Nest,
    Spans,
    find_cuts,
    grow,
    invert,
    split_windows,
    unite_all,
    unite_rows,
)

MOST_GAPS = 10
NO_HOST_EVENTS = Missing("the trace holds no host events")
NO_OPERATORS = Missing("operators were not recorded: activities had no CPU")
CALL_CAUSES = ("sync_explicit", "sync_implicit", "alloc", "launch")
"""What calls of the runtime tell alone."""
COVERS_SLACK_NS = 1000
"""A call that returns no more than this before its copy ends has waited for it."""


@dataclass(frozen=True, slots=True)
class HostCauses:
    """Hold what may hold a device, in the order in which the first one counts, and the classes of calls."""

    layers: tuple[Spans, ...]
    call_class: Ints


def classify_calls(trace: Trace, launched_by: Ints) -> Ints:
    """Return the class of each call; an asynchronous copy of pageable memory that waits is implicit."""
    names = np.array([int(class_of_call(name)) for name in trace.names] or [0], dtype=np.int64)
    classes = names[trace.calls.name] if len(trace.calls.name) else np.zeros(0, np.int64)
    pageable = np.array(["Pageable" in name for name in trace.names] or [False])
    rows = np.flatnonzero(
        (trace.work.category == Category.MEMCPY) & pageable[trace.work.name] & (launched_by >= 0)
    )
    calls = launched_by[rows]
    covers = trace.calls.end[calls] + COVERS_SLACK_NS >= trace.work.end[rows]
    waits = covers & (classes[calls] == CallClass.COPY)
    classes[calls[waits]] = CallClass.IMPLICIT
    return classes


def find_causes(trace: Trace, launched_by: Ints, activity: Activity, until: int) -> HostCauses:
    """Unite the host events of each cause; a synchronise from ``until`` on is the profiler's own."""
    calls = trace.calls
    classes = classify_calls(trace, launched_by)

    def of(*kinds: CallClass) -> Spans:
        rows = np.isin(classes, kinds) & ((classes != CallClass.EXPLICIT) | (calls.start < until))
        return unite_rows(calls, rows)

    waits = (of(CallClass.EXPLICIT), of(CallClass.IMPLICIT), of(CallClass.ALLOCATOR))
    launches = of(CallClass.LAUNCH, CallClass.COPY)
    layers = (activity.data_loader, *waits, launches, activity.cpu, activity.host_comms)
    return HostCauses(layers, classes)


def _split(layers: Sequence[Spans], busy: Spans, start: Ints, end: Ints) -> Ints:
    """Split windows over ``layers`` where ``busy`` is not; the last row is what no layer covers."""
    return split_windows(busy, grow(busy, layers), start, end)[1:]


def find_gaps(
    trace: Trace, causes: HostCauses, ops: Nest, window: tuple[int, int], origin: int
) -> tuple[DeviceGaps, ...]:
    """Attribute the idle time of each device in ``window``; places of gaps are counted from ``origin``."""
    return tuple(
        _device_gaps(trace, causes, ops, window, origin=origin, device=device)
        for device in trace.list_devices()
    )


def _device_gaps(
    trace: Trace, causes: HostCauses, ops: Nest, window: tuple[int, int], *, origin: int, device: int
) -> DeviceGaps:
    work = trace.work
    cuts = find_cuts(trace.header, window)
    busy = unite_all([unite_rows(work, work.device == device), cuts])
    parts = _split(causes.layers, busy, np.array(window[:1]), np.array(window[1:]))[:, 0].tolist()
    told, untold = told_causes(trace)
    causes_us: dict[str, Known[float]] = {
        name: ns / 1000 if name in told else untold for name, ns in zip(GAP_CAUSES, parts, strict=True)
    }
    idle = invert(busy, *window)
    return DeviceGaps(
        device=device,
        window=(window[1] - window[0] - cuts.total) / 1000,
        busy=(busy.within_one(*window) - cuts.total) / 1000,
        idle=idle.total / 1000,
        **causes_us,
        largest=_name_gaps(trace, causes, ops, origin, idle),
    )


def _name_gaps(trace: Trace, causes: HostCauses, ops: Nest, origin: int, idle: Spans) -> tuple[LargeGap, ...]:
    """Name what held the longest gaps: the largest cause, and the call, operator and line in the middle."""
    longest = np.argsort(idle.start - idle.end, kind="stable")[:MOST_GAPS]
    start, end = idle.start[longest], idle.end[longest]
    if not len(start):
        return ()
    parts = _split(causes.layers, NOTHING, start, end)
    main = _main_track(trace)
    middle = (start + end) // 2
    places = ops.find(np.full(len(middle), main, dtype=np.int32), middle)
    found = []
    told, untold = told_causes(trace)
    for at in range(len(start)):
        window = int(start[at]), int(end[at])
        largest = GAP_CAUSES[int(np.argmax(parts[:, at]))]
        cause: Known[str] = largest if largest in told else untold
        operator: Applicable[str] = NOT_APPLICABLE
        if places[at] >= 0:
            operator = clean_name(trace.names[trace.host.name[ops.row[places[at]]]])
        elif cause in ("data", "cpu_op"):
            rows = loader_rows(trace) if cause == "data" else trace.host.category == Category.OP
            operator = _longest(trace, trace.host, rows, *window)
        call: Applicable[str] = NOT_APPLICABLE
        if cause in CALL_CAUSES:
            call = _longest(trace, trace.calls, True, *window)
        source = _source(trace, main, int(middle[at]))
        begin, length = (window[0] - origin) / 1e6, (window[1] - window[0]) / 1000
        found.append(LargeGap(begin, length, cause, operator, call, source))
    return tuple(found)


def _main_track(trace: Trace) -> int:
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
    """Return the innermost Python line of the main thread around a time that is no line of torch."""
    python = trace.python
    until = int(np.searchsorted(python.start, time, side="right"))
    inside = (python.end[:until] > time) & (python.track[:until] == main)
    around = np.flatnonzero(inside)
    for row in reversed(around.tolist()):
        name = trace.names[python.name[row]]
        if "(" in name and ".py(" in name and not name.startswith(("torch/", "<", "threading.py")):
            return clean_name(name)
    return NOT_APPLICABLE


def told_causes(trace: Trace) -> tuple[tuple[str, ...], Missing]:
    """Return the causes of idle time that a trace can tell, and why not the others."""
    if tells_host(trace):
        return GAP_CAUSES, NO_OPERATORS
    return (CALL_CAUSES, NO_OPERATORS) if len(trace.calls.start) else ((), NO_HOST_EVENTS)


def split_host(
    trace: Trace, activity: Activity, causes: HostCauses, window: tuple[int, int]
) -> Applicable[HostTime]:
    """Split the window of a trace without device work: loader, calls that wait, operators, communication.

    NOT_APPLICABLE where the trace holds nothing of the host either.
    """
    if not (tells_host(trace) or len(trace.calls.start)):
        return NOT_APPLICABLE
    sync = unite_all(causes.layers[1:3])
    layers = (activity.data_loader, sync, causes.layers[3], activity.cpu, activity.communication)
    parts = _split(layers, NOTHING, np.array(window[:1]), np.array(window[1:]))[:, 0].tolist()
    data, waits, alloc, compute, comms, other = (ns / 1000 for ns in parts)
    return HostTime(data, comms, waits, alloc, compute, other)
