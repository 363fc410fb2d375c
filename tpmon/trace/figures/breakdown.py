"""Where the time goes: what ran in a step, why a device was idle, and what the host did without a device.

Each idle moment has one cause, the first of: loader, explicit sync, implicit sync, allocator, launches and
other calls, operators, communication of the host (gloo), other. Parts are differences of growing
unions, so they sum to the idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, sum_known
from tpmon.model.results.trace import GAP_CAUSES, Breakdown, DeviceGaps, HostTime, LargeGap
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import EventTable, Ints, Mask
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import (
    MULTI_LOADER,
    SINGLE_LOADER,
    CallClass,
    Category,
    class_of_call,
    flag,
    is_comm_host,
    is_comm_kernel,
    is_host_backend,
    is_loader,
    is_step,
)
from tpmon.trace.reading.spans import (
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

MOST_DEVICES = 256
"""No machine has more; a damaged file may name thousands, and they then count as one."""
STRAY_PCT = 1.0
"""Of the work of the busiest device: one with less is a slip (a bare ``.cuda()``), not the training."""
NO_DEVICE = Missing("the trace holds no device work")
NO_CALLS = Missing("the trace holds no calls of runtime or driver")


@dataclass(frozen=True, slots=True)
class Activity:
    """Hold when each kind of thing ran, over all devices and threads together.

    ``host_comms`` is what gloo and its like do on the host for devices. ``devices`` are the same of each
    device alone, where there are several, but for ``strays``: work of one hides nothing on another.
    ``on_device``, ``in_calls`` and ``on_host`` tell what was recorded at all: device work, calls, operators
    or annotations.
    """

    kernel: Spans
    memcpy: Spans
    memset: Spans
    communication: Spans
    runtime: Spans
    data_loader: Spans
    cpu: Spans
    host_comms: Spans
    on_device: bool
    in_calls: bool
    on_host: bool
    devices: tuple[Activity, ...] = ()
    strays: tuple[int, ...] = ()

    def each(self) -> tuple[Activity, ...]:
        """Return the activity of each device alone, but for strays; itself where there is one or none."""
        return self.devices or (self,)

    def all_communication(self) -> Spans:
        """Return all communication: that of a device, and of the host for it."""
        return unite_all([self.communication, self.host_comms])


LAYERS = ("kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "cpu", "host_comms")
"""The sets of an activity in the order in which one hides the next."""


def comm_rows(trace: Trace) -> Mask:
    """Tell which rows of device work communicate: by name, or because they say their collective."""
    named: Mask = flag(trace.names, is_comm_kernel, trace.work.name)[trace.work.name]
    rows: Mask = (named | (trace.work.collective >= 0)) & trace.select(Category.KERNEL)
    return rows


def loader_rows(trace: Trace) -> Mask:
    """Tell which host events are the wait for the next batch; their shadows on a device are none."""
    rows: Mask = trace.named(trace.host, is_loader) & (trace.host.category != Category.GPU_ANNOTATION)
    return rows


def find_loader(trace: Trace, window: tuple[int, int]) -> str:
    """Name the kind of loader that holds most of the window, with workers or without; "" where none does."""
    host, rows = trace.host, loader_rows(trace)
    spent = {}
    for kind in (MULTI_LOADER, SINGLE_LOADER):
        own = rows & trace.named(host, lambda name, kind=kind: kind in name)  # type: ignore[misc]
        spent[kind] = unite_rows(host, own).within_one(*window)
    most = max(spent, key=lambda kind: spent[kind])
    return most if spent[most] else ""


def tells_host(trace: Trace) -> bool:
    """Tell whether a trace has operators or annotations; ProfilerActivity.CUDA alone gives calls only."""
    return bool(host_rows(trace).any())


def host_rows(trace: Trace) -> Mask:
    """Tell which host events are operators or annotations of the host."""
    rows: Mask = (trace.host.category == Category.OP) | (trace.host.category == Category.ANNOTATION)
    return rows


def find_activity(trace: Trace) -> Activity:
    """Unite the events of each kind.

    Communication is kernels where there is a device, and that of gloo and its like ``host_comms``. Without
    one the latter counts, where no operator computes at the same time.
    """
    host, work = trace.host, trace.work
    comm = comm_rows(trace)
    loader = loader_rows(trace)
    is_op = (host.category == Category.OP) & ~trace.named(host, is_step) & ~loader
    on_host = trace.named(host, is_comm_host) & host_rows(trace)
    for_device = on_host & trace.named(host, is_host_backend)
    has_work = len(work.start) > 0

    copies, sets = trace.select(Category.MEMCPY), trace.select(Category.MEMSET)
    layers = (trace.select(Category.KERNEL) & ~comm, copies, sets, comm)

    def narrow(activity: Activity, here: Mask | bool) -> Activity:
        kernel, memcpy, memset, communication = (unite_rows(work, rows & here) for rows in layers)
        return replace(activity, kernel=kernel, memcpy=memcpy, memset=memset, communication=communication)

    together = Activity(
        *(NOTHING, NOTHING, NOTHING),
        communication=unite_rows(host, on_host),
        runtime=unite(trace.calls.start, trace.calls.duration),
        data_loader=unite_rows(host, loader),
        cpu=unite_rows(host, is_op & ~(for_device if has_work else on_host)),
        host_comms=unite_rows(host, for_device & has_work),
        on_device=has_work,
        in_calls=len(trace.calls.start) > 0,
        on_host=tells_host(trace),
    )
    if has_work:
        together = narrow(together, True)
    numbers = trace.list_devices()
    if not 1 < len(numbers) <= MOST_DEVICES:
        return together
    strays = _find_strays(trace, numbers)
    counted = [device for device in numbers if device not in strays]
    alone = tuple(narrow(together, work.device == device) for device in counted)
    return replace(together, devices=alone, strays=strays)


def _find_strays(trace: Trace, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the devices that do next to nothing beside the busiest one."""
    work = trace.work
    busy = [unite_rows(work, work.device == device).total for device in numbers]
    least = STRAY_PCT / 100 * max(busy)
    return tuple(device for device, spent in zip(numbers, busy, strict=True) if spent < least)


def break_down(activity: Activity, steps: TraceSteps, exclusive: bool) -> Breakdown:
    """Return the mean step by what was running, in microseconds; of several devices their mean.

    Exclusive: each moment counts for the first kind of the order alone, and the sum is the step.
    Else each kind counts all of its time, so that the sum may be more; other is what none covers.
    """
    each = [_break_down_one(one, steps, exclusive) for one in activity.each()]
    means = dict(zip((*LAYERS, "other"), np.mean(np.array(each), axis=0).tolist(), strict=True))
    means["communication"] += means.pop("host_comms")
    anything = activity.on_device or activity.in_calls or activity.on_host

    device = None if activity.on_device else NO_DEVICE
    host = None if activity.on_host else Missing("the trace holds no operators")
    either = None if anything else Missing("the trace holds neither device work nor host events")
    calls = None if activity.in_calls else device if activity.on_host else NO_CALLS
    of_device, of_host = dict.fromkeys(LAYERS[:3], device), {"data_loader": host, "cpu": host}
    untold = {**of_device, **of_host, "runtime": calls, "communication": either, "other": either}
    known: dict[str, Known[float]] = {
        name: us if (why := untold[name]) is None else why for name, us in means.items()
    }
    return Breakdown(**known)


def _break_down_one(activity: Activity, steps: TraceSteps, exclusive: bool) -> list[float]:
    layers: list[Spans] = [getattr(activity, name) for name in LAYERS]
    # Without a device the host is what computes, and communication behind it is hidden.
    order = tuple(range(8)) if activity.on_device else (0, 1, 2, 4, 5, 6, 3, 7)
    means = [0.0] * 9
    covered: list[Spans] = []
    before = np.zeros(len(steps.start), dtype=np.int64)
    for at in order:
        covered = [unite_all([*covered, layers[at]])]
        until = covered[0].within(steps.start, steps.end)
        own = until - before if exclusive else layers[at].within(steps.start, steps.end)
        means[at] = float(own.mean()) / 1000
        before = until
    means[8] = float((steps.end - steps.start - before).mean()) / 1000
    return means


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


def find_causes(trace: Trace, activity: Activity, until: int) -> HostCauses:
    """Unite the host events of each cause; a synchronise from ``until`` on is the profiler's own."""
    calls = trace.calls
    classes = classify_calls(trace)

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
    work, cuts = trace.work, find_cuts(trace.header, window)
    told, untold = told_causes(trace)
    found = []
    for device in trace.list_devices():
        busy = unite_all([unite_rows(work, work.device == device), cuts])
        parts = _split(causes.layers, busy, np.array(window[:1]), np.array(window[1:]))[:, 0].tolist()
        causes_us: dict[str, Known[float]] = {
            name: ns / 1000 if name in told else untold for name, ns in zip(GAP_CAUSES, parts, strict=True)
        }
        idle = invert(busy, *window)
        gaps = DeviceGaps(
            device=device,
            window=(window[1] - window[0] - cuts.total) / 1000,
            busy=(busy.within_one(*window) - cuts.total) / 1000,
            idle=idle.total / 1000,
            **causes_us,
            largest=_name_gaps(trace, causes, ops, origin, idle),
        )
        found.append(gaps)
    return tuple(found)


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
    for name in list_around(trace, main, time):
        if ".py(" in name and not name.startswith(("torch/", "<", "threading.py")):
            return clean_name(name)
    return NOT_APPLICABLE


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
    trace: Trace, activity: Activity, causes: HostCauses, window: tuple[int, int]
) -> Applicable[HostTime]:
    """Split the window of a trace without device work by what the host did; NOT_APPLICABLE without either."""
    if not (tells_host(trace) or len(trace.calls.start)):
        return NOT_APPLICABLE
    sync = unite_all(causes.layers[1:3])
    layers = (activity.data_loader, sync, causes.layers[3], activity.cpu, activity.communication)
    parts = _split(layers, NOTHING, np.array(window[:1]), np.array(window[1:]))[:, 0].tolist()
    data, waits, alloc, compute, comms, other = (ns / 1000 for ns in parts)
    return HostTime(data, comms, waits, alloc, compute, other)
