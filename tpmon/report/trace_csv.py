"""Write one table of analysed traces as CSV: a header, and a row for each line of each file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, is_known
from tpmon.model.trace import TraceFile, TraceReport
from tpmon.model.trace_change import TraceComparison
from tpmon.model.trace_tables import CurvePoint

TABLES = (
    "steps",
    "breakdown",
    "gpus",
    "gaps",
    "operators",
    "kernels",
    "copies",
    "memory",
    "patterns",
    "products",
    "modules",
    "frames",
    "allocations",
    "curve",
    "shapes",
    "lines",
    "ranges",
    "shares",
    "host",
    "idle",
    "collectives",
    "ranks",
)
CHANGES = "changes"
"""The table of a comparison."""
_LEFT_OUT = ("largest",)


def write_csv(report: TraceReport, table: str) -> list[str]:
    """Write ``table`` of every file; a value that is not known is an empty cell."""
    if table == "ranks":
        return _write_rows(report.ranks.ranks if is_known(report.ranks) else ())
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names: list[str] = []
    for file in report.files:
        for row in _rows(file, table):
            if not names:
                names = [field.name for field in fields(row) if field.name not in _LEFT_OUT]
                writer.writerow(["path", "rank", *names])
            values = (getattr(row, name) for name in names)
            rank = file.rank if is_known(file.rank) else ""
            writer.writerow([_safe(file.path), rank, *(_safe(value) for value in values)])
    if not names:
        writer.writerow(["path", "rank"])
    return out.getvalue().splitlines()


def write_changes_csv(comparison: TraceComparison) -> list[str]:
    """Write what changed from one trace to another, a row for each part."""
    return _write_rows(comparison.changes)


def _write_rows(rows: Sequence[Any]) -> list[str]:
    """Write rows of one kind that name their file or rank themselves."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if rows:
        names = [field.name for field in fields(rows[0])]
        writer.writerow(names)
        writer.writerows([_safe(getattr(row, name)) for name in names] for row in rows)
    return out.getvalue().splitlines()


def _rows(file: TraceFile, table: str) -> Iterable[Any]:
    overview = file.overview
    rows: dict[str, Applicable[Iterable[Any]]] = {
        "steps": overview.step_table,
        "breakdown": (overview.breakdown_us,),
        "gpus": overview.gpus,
        "gaps": file.gaps,
        "operators": file.operators,
        "kernels": file.kernels,
        "copies": file.copies,
        "memory": file.memory.peaks,
        "patterns": file.patterns,
        "products": file.products,
        "modules": file.modules,
        "frames": file.frames,
        "allocations": file.memory.by_operator,
        "shapes": file.shapes,
        "lines": file.lines,
        "ranges": file.ranges,
        "shares": file.verdict.shares,
        "host": (file.host_us,) if is_known(file.host_us) else (),
        "collectives": file.communication.collectives if is_known(file.communication) else (),
    }
    if table == "curve":
        return [
            _CurveRow(curve.kind, curve.device, *_cells(point))
            for curve in file.memory.curves
            for point in curve.points
        ]
    if table == "idle":
        return [
            _GapRow(gaps.device, *map(partial(getattr, gap), _GAP))
            for gaps in file.gaps
            for gap in gaps.largest
        ]
    found = rows[table]
    return found if is_known(found) else ()


@dataclass(frozen=True, slots=True)
class _GapRow:
    """Hold one of the longest gaps with the device that idled."""

    device: int
    start_ms: float
    us: float
    cause: str
    operator: Applicable[str]
    call: Applicable[str]
    source: Applicable[str]


_GAP = ("start_ms", "us", "cause", "operator", "call", "source")


@dataclass(frozen=True, slots=True)
class _CurveRow:
    """Hold one point of a memory curve with the device that it is of."""

    kind: str
    device: int
    ms: float
    allocated_bytes: int
    reserved_bytes: Applicable[int]


def _cells(point: CurvePoint) -> tuple[float, int, Applicable[int]]:
    return point.ms, point.allocated_bytes, point.reserved_bytes


def _safe(value: object) -> object:
    """Keep a name from being a formula where the file is opened in a spreadsheet."""
    if not is_known(value):
        return ""
    if isinstance(value, tuple):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
