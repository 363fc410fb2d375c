"""Communication: how long it ran, how much compute hid of it, and what each collective moved."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.trace import CollectiveRow, Communication
from tpmon.trace.breakdown import Activity, comm_rows
from tpmon.trace.classes import flag, is_comm_host
from tpmon.trace.columns import Collective
from tpmon.trace.read import Trace, clean_name
from tpmon.trace.schema import Category
from tpmon.trace.spans import intersect_total

_BYTES = {
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "byte": 1,
    "char": 1,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
}
_UNKNOWN = Missing("the trace does not say sizes and types")


def dtype_bytes(name: str) -> int:
    """Return the bytes of one element, 0 for a type that is not known."""
    short = name.lower().removeprefix("c10::")
    return 1 if short.startswith("float8") else _BYTES.get(short, 0)


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


def message_bytes(one: Collective) -> int:
    """Return the bytes of one collective: of the larger of input and output; 0 if not known."""
    return max(one.elements_in, one.elements_out, 0) * dtype_bytes(one.dtype)


def sum_communication(trace: Trace, activity: Activity) -> Applicable[Communication]:
    """Sum the communication of the whole trace, device by device; NOT_APPLICABLE where there is none."""
    on_device = len(trace.work.start) > 0
    if not activity.communication.total:
        return NOT_APPLICABLE
    each = [(one.communication, one.kernel if on_device else one.cpu) for one in activity.each()]
    overlap = sum(intersect_total(mine, compute) for mine, compute in each)
    total = sum(mine.total for mine, _compute in each)
    rows = np.flatnonzero(comm_rows(trace)) if on_device else _host_rows(trace)
    return Communication(
        len(rows),
        total / 1000,
        sum(compute.total for _mine, compute in each) / 1000,
        overlap / 1000,
        (total - overlap) / 1000,
        tuple(_collectives(trace, rows.tolist()) if on_device else _host_collectives(trace, rows.tolist())),
    )


def _host_rows(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    host = trace.host
    named = flag(trace.names, is_comm_host)[host.name]
    return np.flatnonzero(
        named & ((host.category == Category.OP) | (host.category == Category.ANNOTATION))
    ).astype(np.int64)


def _collectives(trace: Trace, rows: Iterable[int]) -> list[CollectiveRow]:
    work = trace.work
    groups: dict[str, list[int]] = {}
    for row in rows:
        number = int(work.collective[row])
        said = trace.collectives[number].name if number >= 0 else ""
        groups.setdefault(said or trace.names[work.name[row]].split("(")[0], []).append(row)
    found = []
    for name, members in groups.items():
        total = int(work.duration[members].sum())
        known = [trace.collectives[n] for n in work.collective[members].tolist() if n >= 0]
        moved = sum(map(message_bytes, known))
        bus = sum(message_bytes(one) * bus_factor(one.name, one.group_size) for one in known)
        size: Known[int] = moved or _UNKNOWN
        speed: Known[float] = bus / total if bus and total else _UNKNOWN
        found.append(CollectiveRow(clean_name(name, 120), len(members), total / 1000, size, speed))
    return sorted(found, key=lambda row: -row.total_us)


def _host_collectives(trace: Trace, rows: Iterable[int]) -> list[CollectiveRow]:
    sums: dict[int, tuple[int, int]] = {}
    for row in rows:
        number = int(trace.host.name[row])
        count, total = sums.get(number, (0, 0))
        sums[number] = (count + 1, total + int(trace.host.duration[row]))
    found = [
        CollectiveRow(clean_name(trace.names[number], 120), count, total / 1000, _UNKNOWN, _UNKNOWN)
        for number, (count, total) in sums.items()
    ]
    return sorted(found, key=lambda row: -row.total_us)
