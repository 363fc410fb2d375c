"""Communication: how long it ran, how much compute hid of it, and what each collective moved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.results.trace import CollectiveRow, Communication
from tpmon.trace.figures.breakdown import Activity, comm_rows, host_rows
from tpmon.trace.figures.operators import parse_inputs, read_type
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.read import Trace, clean_name
from tpmon.trace.reading.schema import Category, is_comm_host, is_host_backend
from tpmon.trace.reading.spans import intersect_total, nest

SIZES_UNTOLD = Missing("the trace does not say sizes and types")
_NO_GROUP = Missing("the trace does not say of how many ranks the group is")


_Call = tuple[str, int, int, float]
"""Name, nanoseconds, bytes and bus bytes of one collective."""


def bus_factor(name: str, ranks: int) -> float:
    """Return bus bytes by message byte as nccl-tests count them; 1 where a message crosses once."""
    short = name.lower().replace("_", "")
    if ranks < 2:
        return 0.0
    if "allreduce" in short:
        return 2 * (ranks - 1) / ranks
    if any(word in short for word in ("allgather", "reducescatter", "alltoall")):
        return (ranks - 1) / ranks
    return 1.0


def sum_communication(trace: Trace, activity: Activity) -> Applicable[Communication]:
    """Sum the communication of the whole trace, device by device; NOT_APPLICABLE where there is none."""
    if not activity.all_communication().total:
        return NOT_APPLICABLE
    compute = [one.kernel if activity.on_device else one.cpu for one in activity.each()]
    each = list(zip((one.all_communication() for one in activity.each()), compute, strict=True))
    on_device = activity.communication.total > 0 and activity.on_device
    overlap = sum(intersect_total(mine, compute) for mine, compute in each)
    total = sum(mine.total for mine, _compute in each)
    rows = np.flatnonzero(comm_rows(trace)) if on_device else _host_comms(trace, activity.on_device)
    host = trace.host
    on_host = (
        (trace.names[host.name[row]], int(host.duration[row]), size_of(trace, row), 0.0)
        for row in rows.tolist()
    )
    return Communication(
        len(rows),
        total / 1000,
        sum(compute.total for _mine, compute in each) / 1000,
        overlap / 1000,
        (total - overlap) / 1000,
        _sum_calls(_on_device(trace, rows) if on_device else on_host),
    )


def _host_comms(trace: Trace, on_device: bool = False) -> Ints:
    """Return the communication of the host; beside a device that of gloo and its like alone."""
    named = trace.named(trace.host, is_host_backend if on_device else is_comm_host)
    return np.flatnonzero(named & host_rows(trace))


def size_of(trace: Trace, row: int) -> int:
    """Return the bytes of the tensors of a host event; 0 where not all are told."""
    shape = int(trace.host.shape[row])
    if shape < 0 or "barrier" in trace.names[trace.host.name[row]]:  # its tensor has no meaning
        return 0
    return _count_bytes(trace.shapes[shape])


@lru_cache(maxsize=256)
def _count_bytes(shape: tuple[bytes, bytes]) -> int:  # a training repeats its few shapes
    inputs = parse_inputs(shape)
    sizes = zip(inputs.dims, inputs.element_bytes, strict=True)
    return sum(math.prod(dims) * element for dims, element in sizes if dims) if inputs.whole else 0


def find_annotations(trace: Trace, rows: Ints, *, shaped: bool) -> Ints:
    """Return of each row of work the annotation of communication around its launch, -1 for none.

    ``shaped`` asks for one that tells the shapes of its tensors.
    """
    host, calls = trace.host, trace.calls
    marks = _host_comms(trace)
    marks = marks[host.category[marks] == Category.ANNOTATION]
    if shaped:
        marks = marks[host.shape[marks] >= 0]
    found = np.full(len(rows), -1, dtype=np.int64)
    launched = np.flatnonzero(trace.work.call[rows] >= 0)
    if not len(marks) or not len(launched):
        return found
    call = trace.work.call[rows[launched]]
    around = nest(host, marks)
    place = around.find(calls.track[call], calls.start[call])
    found[launched] = np.where(place >= 0, around.row[place], -1)
    return found


def _on_device(trace: Trace, rows: Ints) -> Iterator[_Call]:
    for row, (name, size, ranks) in zip(rows.tolist(), size_collectives(trace, rows), strict=True):
        bus = size * bus_factor(name, ranks) if ranks > 0 else 0.0
        yield name, int(trace.work.duration[row]), size, bus


def size_collectives(trace: Trace, rows: Ints) -> Iterator[tuple[str, int, int]]:
    """Yield name, bytes and ranks of each row of device work that communicates; 0 for what is not told.

    Where ranks are not told, neither is what is received: bytes are those that the annotation sends.
    """
    work = trace.work
    annotations = find_annotations(trace, rows, shaped=True).tolist()
    for row, number, around in zip(rows.tolist(), work.collective[rows].tolist(), annotations, strict=True):
        said = trace.collectives[number] if number >= 0 else None
        size = max(said.elements_in, said.elements_out, 0) * read_type(said.dtype)[0] if said else 0
        name = (said.name if said else "") or trace.names[work.name[row]].split("(")[0]
        ranks = max(said.group_size, 0) if said and size else 0
        yield name, size or (size_of(trace, around) if around >= 0 else 0), ranks


def _sum_calls(calls: Iterable[_Call]) -> tuple[CollectiveRow, ...]:
    by_name: defaultdict[str, list[_Call]] = defaultdict(list)
    for call in calls:
        by_name[call[0]].append(call)
    found = []
    for name, own in by_name.items():
        total, moved, bus = (sum(column) for column in list(zip(*own, strict=True))[1:])
        speed: Known[float] = bus / total if bus and total else _NO_GROUP if moved else SIZES_UNTOLD
        found.append(
            CollectiveRow(clean_name(name, 120), len(own), total / 1000, moved or SIZES_UNTOLD, speed)
        )
    return tuple(sorted(found, key=lambda row: -row.total_us))
