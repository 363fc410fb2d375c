"""What was running in a step: kernels, copies, communication, runtime, loader, operators, nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.trace import Breakdown
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Mask
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.schema import (
    MULTI_LOADER,
    SINGLE_LOADER,
    Category,
    flag,
    is_comm_host,
    is_comm_kernel,
    is_host_backend,
    is_loader,
    is_step,
)
from tpmon.trace.reading.spans import NOTHING, Spans, unite, unite_all, unite_rows

MOST_DEVICES = 256
"""No machine has more; a damaged file may name thousands, and they then count as one."""
STRAY_PCT = 1.0
"""Of the work of the busiest device: one with less is a slip (a bare ``.cuda()``), not the training."""
NO_DEVICE = Missing("the trace holds no device work")
NO_HOST = Missing("the trace holds no operators")
NO_CALLS = Missing("the trace holds no calls of runtime or driver")
NO_EVENTS = Missing("the trace holds neither device work nor host events")


@dataclass(frozen=True, slots=True)
class Activity:
    """Hold when each kind of thing ran, over all devices and threads together.

    ``host_comms`` is what gloo and its like do on the host for devices.

    ``devices`` are the same of each device alone, where there are several: work of one hides nothing
    on another. ``on_device``, ``in_calls`` and ``on_host`` tell what was recorded at all: device work,
    calls, operators or annotations. ``strays`` are the devices that are left out of ``devices``.
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

    def layers(self) -> tuple[Spans, ...]:
        """Return the sets in the order in which one hides the next."""
        return (
            self.kernel,
            self.memcpy,
            self.memset,
            self.communication,
            self.runtime,
            self.data_loader,
            self.cpu,
            self.host_comms,
        )


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
    """Tell whether a trace can say what the host did outside of calls.

    Without ``ProfilerActivity.CPU`` torch records neither operators nor annotations, but kineto the calls.
    """
    return bool(host_rows(trace).any())


def host_rows(trace: Trace) -> Mask:
    """Tell which host events are operators or annotations of the host."""
    rows: Mask = (trace.host.category == Category.OP) | (trace.host.category == Category.ANNOTATION)
    return rows


def find_activity(trace: Trace) -> Activity:
    """Unite the events of each kind.

    Communication is kernels where there is a device, else the work of gloo and its like on the host; then
    it counts where no operator computes at the same time. With a device that work is ``host_comms``.
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
    means = np.mean(np.array(each), axis=0)
    kernel, memcpy, memset, communication, runtime, data_loader, cpu, host_comms, other = means.tolist()
    anything = activity.on_device or activity.in_calls or activity.on_host

    device = None if activity.on_device else NO_DEVICE
    host = None if activity.on_host else NO_HOST
    either = None if anything else NO_EVENTS
    calls = None if activity.in_calls else device if activity.on_host else NO_CALLS
    return Breakdown(
        _unless(device, kernel),
        _unless(device, memcpy),
        _unless(device, memset),
        _unless(either, communication + host_comms),
        _unless(calls, runtime),
        _unless(host, data_loader),
        _unless(host, cpu),
        _unless(either, other),
    )


def _unless(why: Missing | None, value: float) -> Known[float]:
    return value if why is None else why


def _break_down_one(activity: Activity, steps: TraceSteps, exclusive: bool) -> list[float]:
    layers = activity.layers()
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
