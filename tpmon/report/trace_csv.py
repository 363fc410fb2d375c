"""Write one table of analysed traces as CSV: a header, and a row for each line of each file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Known, Missing, is_known, known_or
from tpmon.model.results.trace import (
    Breakdown,
    CardUse,
    CauseShare,
    Change,
    CollectiveRow,
    Communication,
    CopyRow,
    DeviceGaps,
    HostTime,
    KernelRow,
    MemoryPeak,
    OperatorRow,
    StepRow,
    TraceComparison,
    TraceFile,
    TraceRankRow,
    TraceReport,
)
from tpmon.model.results.trace_tables import (
    AllocationRow,
    FrameRow,
    ModuleRow,
    OperatorGroupRow,
    PatternRow,
    ProductRow,
    RangeRow,
)
from tpmon.report.text import write_csv_rows
from tpmon.report.trace import TEXT_TABLES, write_table

CHANGES = "changes"
"""The table of a comparison."""
_LEFT_OUT = ("largest",)


def write_csv(report: TraceReport, table: str) -> list[str]:
    """Write ``table`` of every file; a value that is not known is an empty cell."""
    if table == "ranks":
        return _write_rows(TraceRankRow, (((), row) for row in _ranks(report)))
    kind, read = _TABLES[table].kind, _TABLES[table].read
    named = (((file.path, file.rank), row) for file in report.files for row in known_or(read(file), ()))
    return _write_rows(kind, named, before=("path", "rank"))


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
    found = [report.ranks] if table == "ranks" else [_TABLES[table].read(file) for file in report.files]
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
    cells = ((*values, *(getattr(row, name) for name in names)) for values, row in rows)
    return write_csv_rows((*before, *names), cells)


def _ranks(report: TraceReport) -> tuple[TraceRankRow, ...]:
    return report.ranks.ranks if is_known(report.ranks) else ()


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


def _list_idle(file: TraceFile) -> list[_GapRow]:
    return [
        _GapRow(gaps.device, gap.start_ms, gap.us, gap.cause, gap.operator, gap.call, gap.source)
        for gaps in file.gaps
        for gap in gaps.largest
    ]


def _read_collectives(comms: Applicable[Communication]) -> Applicable[tuple[CollectiveRow, ...]]:
    return comms.collectives if is_known(comms) else comms


def _list_points(file: TraceFile) -> list[_CurveRow]:
    return [
        _CurveRow(curve.kind, curve.device, point.ms, point.allocated_bytes, point.reserved_bytes)
        for curve in file.memory.curves
        for point in curve.points
    ]


@dataclass(frozen=True, slots=True)
class _Table:
    """Hold the class of the rows of a table, whose fields are its header also without a row, and the rows."""

    kind: type[Any]
    read: Callable[[TraceFile], Applicable[Iterable[Any]]]


_TABLES = {
    "steps": _Table(StepRow, lambda file: file.overview.step_table),
    "breakdown": _Table(Breakdown, lambda file: (file.overview.breakdown_us,)),
    "gpus": _Table(CardUse, lambda file: file.overview.gpus),
    "gaps": _Table(DeviceGaps, lambda file: file.gaps),
    "operators": _Table(OperatorRow, lambda file: file.operators),
    "kernels": _Table(KernelRow, lambda file: file.kernels),
    "copies": _Table(CopyRow, lambda file: file.copies),
    "memory": _Table(MemoryPeak, lambda file: file.memory.peaks),
    "patterns": _Table(PatternRow, lambda file: file.patterns),
    "products": _Table(ProductRow, lambda file: file.products),
    "modules": _Table(ModuleRow, lambda file: file.modules),
    "frames": _Table(FrameRow, lambda file: file.frames),
    "allocations": _Table(AllocationRow, lambda file: file.memory.by_operator),
    "curve": _Table(_CurveRow, _list_points),
    "shapes": _Table(OperatorGroupRow, lambda file: file.shapes),
    "lines": _Table(OperatorGroupRow, lambda file: file.lines),
    "ranges": _Table(RangeRow, lambda file: file.ranges),
    "shares": _Table(CauseShare, lambda file: file.verdict.shares),
    "host": _Table(HostTime, lambda file: (file.host_us,) if is_known(file.host_us) else file.host_us),
    "idle": _Table(_GapRow, _list_idle),
    "collectives": _Table(CollectiveRow, lambda file: _read_collectives(file.communication)),
}
TABLES = (*_TABLES, "ranks")
