"""The table of products by kind and number type: of the device, or of the host without device work."""

from __future__ import annotations

import numpy as np

from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.trace_tables import ProductRow
from tpmon.trace.figures.inputs import name_kind
from tpmon.trace.figures.nesting import Nest
from tpmon.trace.figures.peaks import find_peak
from tpmon.trace.figures.products import (
    DTYPES,
    HALF,
    KINDS,
    NO_SHAPES,
    Counted,
    rate,
    read_calls,
    share_of_peak,
)
from tpmon.trace.reading.columns import Ints, distinct
from tpmon.trace.reading.read import Trace, find_device
from tpmon.trace.reading.schema import Category

MOST_HOST_TFLOP_S = 10.0
"""The largest servers reach a little less in fp32 with all of their cores."""
_NO_TYPE = Missing("neither the inputs nor the name of the kernel tell the type")


def sum_products(trace: Trace, ops: Nest, launchers: Ints, counted: Counted) -> tuple[ProductRow, ...]:
    """Sum the products by kind and number type, the longest first; of the host without device work."""
    if not len(trace.work.start):
        return _sum_on_host(trace, ops)
    work = trace.work
    total = int(work.duration[work.category == Category.KERNEL].sum())
    rows = np.flatnonzero(counted.kind > 0)
    found = []
    for key in distinct(counted.kind[rows].astype(np.int64) * len(DTYPES) + counted.dtype[rows]).tolist():
        kind, dtype = divmod(key, len(DTYPES))
        part = rows[(counted.kind[rows] == kind) & (counted.dtype[rows] == dtype)]
        length = work.duration[part]
        spent = int(length.sum())
        called = launchers[part]
        places, first, place_of = np.unique(called[called >= 0], return_index=True, return_inverse=True)
        flops = counted.call_flops[part[called >= 0]][first]
        span = np.bincount(place_of, weights=length[called >= 0], minlength=len(places)).astype(np.int64)
        reached: Known[float] = NO_SHAPES
        if len(places) and int(span[np.isfinite(flops)].sum()) >= HALF * spent:
            gflop_s = rate(flops, span)
            reached = gflop_s / 1000 if is_known(gflop_s) else gflop_s
        sides = counted.misaligned[part]
        told = int(length[sides >= 0].sum())
        found.append(
            ProductRow(
                KINDS[kind],
                DTYPES[dtype] or _NO_TYPE,
                len(places) + int((called < 0).sum()),
                spent / 1000,
                100 * spent / total if total else 0.0,
                reached,
                share_of_peak(reached, _peak_of(trace, part, DTYPES[dtype])),
                100 * int(length[sides == 1].sum()) / told if told else NO_SHAPES,
            )
        )
    return tuple(sorted(found, key=lambda row: -row.total_us))


def _peak_of(trace: Trace, rows: Ints, dtype: str) -> float | None:
    """Return the TFLOP/s of the card of these rows, None where they are of several kinds of cards."""
    peaks = {
        peak.tflop_s.get(dtype) if peak is not None else None
        for peak in (
            find_peak(find_device(trace, device)) for device in distinct(trace.work.device[rows]).tolist()
        )
    }
    return peaks.pop() if len(peaks) == 1 else None


def _sum_on_host(trace: Trace, ops: Nest) -> tuple[ProductRow, ...]:
    """Sum the innermost products on the host; their type is that of their inputs."""
    if not len(ops.row):
        return ()
    kinds = np.zeros(len(trace.names), np.int8)
    for number in distinct(trace.host.name[ops.row]).tolist():
        kinds[number] = KINDS.index(name_kind(trace.names[number]))
    kind_of = kinds[trace.host.name[ops.row]]
    around = np.zeros(len(ops.row), np.bool_)
    inner = np.flatnonzero((kind_of > 0) & (ops.parent >= 0))
    while len(inner):
        inner = ops.parent[inner]
        inner = distinct(inner[~around[inner]])
        around[inner] = True
        inner = inner[ops.parent[inner] >= 0]
    places = np.flatnonzero((kind_of > 0) & ~around)
    if not len(places):
        return ()
    total = int(trace.host.duration[ops.row[ops.depth == 0]].sum())
    host = ops.row[places]
    widest = len(trace.shapes) + 1
    keys, call_of = np.unique(
        trace.host.name[host].astype(np.int64) * widest + trace.host.shape[host] + 1, return_inverse=True
    )
    calls = read_calls(trace, keys, widest)
    flops = np.array([call.flops for call in calls])[call_of]
    dtypes = np.array([DTYPES.index(call.dtype) if call.dtype in DTYPES else 0 for call in calls])[call_of]
    length = trace.host.duration[host]
    found = []
    for kind, dtype in sorted(set(zip(kind_of[places].tolist(), dtypes.tolist(), strict=True))):
        here = (kind_of[places] == kind) & (dtypes == dtype)
        spent = int(length[here].sum())
        gflop_s = rate(flops[here], length[here])
        found.append(
            ProductRow(
                KINDS[kind],
                DTYPES[dtype] or Missing("the trace has no types of inputs (record_shapes=True)"),
                int(here.sum()),
                spent / 1000,
                100 * spent / total if total else 0.0,
                _believe(gflop_s),
                Missing("peaks are known of cards alone"),
                Missing("it matters to tensor cores alone"),
            )
        )
    return tuple(sorted(found, key=lambda row: -row.total_us))


def _believe(gflop_s: Known[float]) -> Known[float]:
    """Return TFLOP/s of a host, missing where no host is so fast: it only launched what a device computed."""
    if is_known(gflop_s) and gflop_s > MOST_HOST_TFLOP_S * 1000:
        return Missing("faster than a host: the work is of a device that is not in the trace")
    return gflop_s / 1000 if is_known(gflop_s) else gflop_s
