"""Where the time goes: what ran in a step, on devices and on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.trace import Breakdown
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Mask, distinct
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


def break_down(activity: Activity, steps: TraceSteps, cuts: Spans = NOTHING) -> tuple[Breakdown, Breakdown]:
    """Return the mean step without ``cuts`` by what ran, in us, twice; of several devices their mean.

    First exclusive: each moment counts for the first kind of the order alone, and the sum is the step.
    Then each kind counts all of its time, so that the sum may be more; other is what none covers.
    """
    each = np.mean(np.array([_break_down_one(one, steps, cuts) for one in activity.each()]), axis=0)
    exclusive, full = (_name_layers(activity, means) for means in each.tolist())
    return exclusive, full


def _name_layers(activity: Activity, us: list[float]) -> Breakdown:
    means = dict(zip((*LAYERS, "other"), us, strict=True))
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


def _break_down_one(activity: Activity, steps: TraceSteps, cuts: Spans) -> tuple[list[float], list[float]]:
    layers = [subtract(getattr(activity, name), cuts) for name in LAYERS]
    # Without a device the host is what computes, and communication behind it is hidden.
    order = tuple(range(8)) if activity.on_device else (0, 1, 2, 4, 5, 6, 3, 7)
    exclusive, full = [0.0] * 9, [0.0] * 9
    covered = [cuts]
    before = cuts.within(steps.start, steps.end)
    for at in order:
        covered = [unite_all([*covered, layers[at]])]
        until = covered[0].within(steps.start, steps.end)
        exclusive[at] = float((until - before).mean()) / 1000
        full[at] = float(layers[at].within(steps.start, steps.end).mean()) / 1000
        before = until
    exclusive[8] = full[8] = float((steps.end - steps.start - before).mean()) / 1000
    return exclusive, full


def name_calls(trace: Trace, test: Callable[[str], bool]) -> Mask:
    """Tell of each call whether its name passes a test, which no other name of the trace is asked."""
    return flag(trace.names, test, trace.calls.name)[trace.calls.name]


def subtract(one: Spans, other: Spans) -> Spans:
    """Return what of ``one`` is not in ``other``."""
    if not len(other.start):
        return one
    times = distinct(np.concatenate((one.start, one.end, other.start, other.end)))
    start, end = times[:-1], times[1:]
    kept = (one.within(start, end) > 0) & (other.within(start, end) == 0)
    return unite(start[kept], (end - start)[kept])
