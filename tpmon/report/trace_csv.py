"""Write one table of analysed traces as CSV: a header, and a row for each line of each file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.trace import (
    Breakdown,
    CardUse,
    CauseShare,
    CollectiveRow,
    CopyRow,
    KernelRow,
    MemoryPeak,
    OperatorRow,
    RankRow,
    StepRow,
    TraceFile,
    TraceReport,
)
from tpmon.model.trace_change import Change, TraceComparison
from tpmon.model.trace_gaps import DeviceGaps, HostTime
from tpmon.model.trace_tables import (
    AllocationRow,
    FrameRow,
    ModuleRow,
    OperatorGroupRow,
    PatternRow,
    ProductRow,
    RangeRow,
)
from tpmon.report.trace_tables import TEXT_TABLES, write_table

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
        return _write_rows(RankRow, (((), row) for row in _ranks(report)))
    named = (((file.path, file.rank), row) for file in report.files for row in _rows(file, table))
    return _write_rows(_kinds()[table], named, before=("path", "rank"))


def explain_empty(report: TraceReport, table: str) -> str:
    """Say why ``table`` has no row in any file; "" where it has one."""
    if len(write_csv(report, table)) > 1:
        return ""
    if table in TEXT_TABLES:
        return "; ".join(
            dict.fromkeys(line for file in report.files for line in write_table(file, table, 1)[:1])
        )
    if table == "ranks" and not isinstance(report.ranks, Missing):
        return "ranks: there is one trace alone; name those of several ranks"
    found = [report.ranks] if table == "ranks" else [_read_table(file, table) for file in report.files]
    reasons = dict.fromkeys(one.reason for one in found if isinstance(one, Missing))
    return f"{table}: {'; '.join(reasons) or 'none in what was read'}"


def write_changes_csv(comparison: TraceComparison) -> list[str]:
    """Write what changed from one trace to another, a row for each part."""
    return _write_rows(Change, (((), change) for change in comparison.changes))


def _write_rows(
    kind: type[Any], rows: Iterable[tuple[Sequence[object], Any]], before: Sequence[str] = ()
) -> list[str]:
    """Write a header of ``before`` and the fields of ``kind``, and for each row its values of both."""
    names = [field.name for field in fields(kind) if field.name not in _LEFT_OUT]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*before, *names])
    for values, row in rows:
        writer.writerow([_safe(value) for value in (*values, *(getattr(row, name) for name in names))])
    return out.getvalue().splitlines()


def _ranks(report: TraceReport) -> tuple[RankRow, ...]:
    return report.ranks.ranks if is_known(report.ranks) else ()


def _kinds() -> dict[str, type[Any]]:
    """Return the class of a row of each table, whose fields are its header also where there is no row."""
    return {
        "steps": StepRow,
        "breakdown": Breakdown,
        "gpus": CardUse,
        "gaps": DeviceGaps,
        "operators": OperatorRow,
        "kernels": KernelRow,
        "copies": CopyRow,
        "memory": MemoryPeak,
        "patterns": PatternRow,
        "products": ProductRow,
        "modules": ModuleRow,
        "frames": FrameRow,
        "allocations": AllocationRow,
        "curve": _CurveRow,
        "shapes": OperatorGroupRow,
        "lines": OperatorGroupRow,
        "ranges": RangeRow,
        "shares": CauseShare,
        "host": HostTime,
        "idle": _GapRow,
        "collectives": CollectiveRow,
    }


def _rows(file: TraceFile, table: str) -> Iterable[Any]:
    found = _read_table(file, table)
    return found if is_known(found) else ()


def _read_table(file: TraceFile, table: str) -> Applicable[Iterable[Any]]:
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
        "host": (file.host_us,) if is_known(file.host_us) else file.host_us,
        "collectives": file.communication.collectives if is_known(file.communication) else file.communication,
    }
    if table == "curve":
        return [
            _CurveRow(curve.kind, curve.device, point.ms, point.allocated_bytes, point.reserved_bytes)
            for curve in file.memory.curves
            for point in curve.points
        ]
    if table == "idle":
        return [
            _GapRow(gaps.device, gap.start_ms, gap.us, gap.cause, gap.operator, gap.call, gap.source)
            for gaps in file.gaps
            for gap in gaps.largest
        ]
    return rows[table]


@dataclass(frozen=True, slots=True)
class _GapRow:
    """Hold one of the longest gaps with the device that idled."""

    device: int
    start_ms: float
    us: float
    cause: Known[str]
    operator: Applicable[str]
    call: Applicable[str]
    source: Applicable[str]


@dataclass(frozen=True, slots=True)
class _CurveRow:
    """Hold one point of a memory curve with the device that it is of."""

    kind: str
    device: int
    ms: float
    allocated_bytes: int
    reserved_bytes: Applicable[int]


def _safe(value: object) -> object:
    """Keep a name from being a formula where the file is opened in a spreadsheet."""
    if not is_known(value):
        return ""
    if isinstance(value, tuple):
        value = "; ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
