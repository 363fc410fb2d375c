"""Write the analysis of traces and memory snapshots, as text of the screen's blocks and as CSV tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, Missing, is_known, known_or
from tpmon.model.results import trace as results
from tpmon.model.results import trace_tables
from tpmon.model.results.snapshot import (
    CategoryBytes,
    DeviceSnapshot,
    OutOfMemory,
    Pieces,
    SnapshotReport,
    StackBytes,
)
from tpmon.report.blocks import write_blocks
from tpmon.report.text import write_csv_rows
from tpmon.view.blocks import Block, Paragraph
from tpmon.view.snapshot import list_snapshot
from tpmon.view.trace_blocks import TABLES as TEXT_TABLES
from tpmon.view.trace_blocks import list_changes, list_table, list_trace
from tpmon.view.trace_job import list_job

TOP = 10


def write_comparison(comparison: results.TraceComparison, top: int) -> list[str]:
    """Write whether a change helped, then what changed: at most ``top`` rows a table, but all phases."""
    return write_blocks(list_changes(comparison), max(top, 8))


def write_report(report: results.TraceReport, top: int = TOP, *, whole: bool = True) -> list[str]:
    """Write every file, and first the job and its ranks side by side where there are several.

    Of a job ``whole`` false leaves out the files: then all of it fits one screen.
    """
    if is_known(report.job) and not whole:
        more = Paragraph("more", "of each rank: --top 10, or tpmon trace FILE; --json has all of it")
        return write_blocks([*list_job(report), more], top)
    parts = [list_job(report)] if is_known(report.ranks) else []
    return _write_parts([*parts, *map(list_trace, report.files)], top)


def write_tables(report: results.TraceReport, table: str, top: int) -> list[str]:
    """Write one table of each file."""
    return _write_parts(
        [[Paragraph("trace", file.path), *list_table(file, table)] for file in report.files], top
    )


def _write_parts(parts: list[list[Block]], top: int) -> list[str]:
    return [line for part in parts for line in ("", *write_blocks(part, top))][1:]


CHANGES = "changes"
_LEFT_OUT = ("largest",)


def write_csv(report: results.TraceReport, table: str) -> list[str]:
    """Write ``table`` of every file; an unknown value is an empty cell."""
    if table == "ranks":
        ranks = report.ranks.ranks if is_known(report.ranks) else ()
        return _write_rows(results.TraceRankRow, (((), row) for row in ranks))
    one = _TABLES[table]
    named = (((file.path, file.rank, *first), row) for file in report.files for first, row in one.rows(file))
    return _write_rows(one.kind, named, ("path", "rank", *one.before))


def explain_empty(report: results.TraceReport, table: str) -> str:
    """Say why ``table`` is empty in all files; "" where it is not."""
    if len(write_csv(report, table)) > 1:
        return ""
    if table in TEXT_TABLES:
        firsts = [list_table(file, table)[0] for file in report.files]
        return "; ".join(
            dict.fromkeys(f"{one.label}: {one.text}" for one in firsts if isinstance(one, Paragraph))
        )
    if table == "ranks" and not isinstance(report.ranks, Missing):
        return "ranks: there is one trace alone; name those of several ranks"
    found = [report.ranks] if table == "ranks" else [_TABLES[table].read(file) for file in report.files]
    reasons = dict.fromkeys(one.reason for one in found if isinstance(one, Missing))
    return f"{table}: {'; '.join(reasons) or 'none in what was read'}"


def write_changes_csv(comparison: results.TraceComparison) -> list[str]:
    """Write the changes between two traces, a row for each part."""
    return _write_rows(results.Change, (((), change) for change in comparison.changes))


def _write_rows(
    kind: type[Any], rows: Iterable[tuple[Sequence[object], Any]], before: Sequence[str] = ()
) -> list[str]:
    names = [field.name for field in fields(kind) if field.name not in _LEFT_OUT]
    cells = ((*values, *(getattr(row, name) for name in names)) for values, row in rows)
    return write_csv_rows((*before, *names), cells)


@dataclass(frozen=True, slots=True)
class _Table:
    """Hold the class of a table's rows, whose fields are its header, and a reader of the rows.

    ``before`` are further columns before them: then ``read`` returns pairs.
    """

    kind: type[Any]
    read: Callable[[results.TraceFile], Applicable[Iterable[Any]]]
    before: tuple[str, ...] = ()

    def rows(self, file: results.TraceFile) -> Iterable[tuple[Sequence[object], Any]]:
        """Return the rows of a file, each behind the values of ``before``."""
        found = known_or(self.read(file), ())
        return found if self.before else (((), row) for row in found)


_TABLES = {
    "steps": _Table(results.StepRow, lambda file: file.overview.step_table),
    "breakdown": _Table(results.Breakdown, lambda file: (file.overview.breakdown_us,)),
    "gpus": _Table(results.CardUse, lambda file: file.overview.gpus),
    "gaps": _Table(results.DeviceGaps, lambda file: file.gaps),
    "operators": _Table(results.OperatorRow, lambda file: file.operators),
    "kernels": _Table(results.KernelRow, lambda file: file.kernels),
    "copies": _Table(results.CopyRow, lambda file: file.copies),
    "memory": _Table(results.MemoryPeak, lambda file: file.memory.peaks),
    "patterns": _Table(trace_tables.PatternRow, lambda file: file.patterns),
    "products": _Table(trace_tables.ProductRow, lambda file: file.products),
    "work": _Table(trace_tables.WorkRow, lambda file: file.step_work.categories),
    "phases": _Table(trace_tables.PhaseRow, lambda file: file.step_work.phases),
    "throughput": _Table(trace_tables.StepRates, lambda file: (file.step_work.rates,)),
    "modules": _Table(trace_tables.ModuleRow, lambda file: file.modules),
    "frames": _Table(trace_tables.FrameRow, lambda file: file.frames),
    "allocations": _Table(trace_tables.AllocationRow, lambda file: file.memory.by_operator),
    "curve": _Table(
        trace_tables.CurvePoint,
        lambda file: [((one.kind, one.device), point) for one in file.memory.curves for point in one.points],
        ("kind", "device"),
    ),
    "shapes": _Table(trace_tables.OperatorGroupRow, lambda file: file.shapes),
    "lines": _Table(trace_tables.OperatorGroupRow, lambda file: file.lines),
    "ranges": _Table(trace_tables.RangeRow, lambda file: file.ranges),
    "shares": _Table(trace_tables.CauseShare, lambda file: file.verdict.shares),
    "host": _Table(
        results.HostTime, lambda file: (file.host_us,) if is_known(file.host_us) else file.host_us
    ),
    "idle": _Table(
        results.LargeGap,
        lambda file: [((gaps.device,), gap) for gaps in file.gaps for gap in gaps.largest],
        ("device",),
    ),
    "collectives": _Table(
        results.CollectiveRow,
        lambda file: file.communication.collectives if is_known(file.communication) else file.communication,
    ),
}
TABLES = (*_TABLES, "ranks")


def write_snapshots(report: SnapshotReport, top: int) -> list[str]:
    """Write every snapshot, with at most ``top`` rows a table."""
    return _write_parts([list_snapshot(file) for file in report.files], top)


def write_snapshot_csv(report: SnapshotReport, table: str) -> list[str]:
    """Write ``table`` of every snapshot; an unknown value is an empty cell."""
    kind, read = _KINDS[table]
    names = [field.name for field in fields(kind)]
    more = ("events", "peak_requested_bytes") if table == "devices" else ()
    rows = []
    for file in report.files:
        for device in file.devices:
            asked = device.peak.requested_bytes if is_known(device.peak) else device.peak
            last = (device.events, asked) if more else ()
            for row in read(device):
                cells = (_join(getattr(row, name)) for name in names)
                rows.append((file.path, device.device, *cells, *last))
    return write_csv_rows(("path", "device", *names, *more), rows)


def _join(value: object) -> object:
    return ";".join(one.replace(";", ",") for one in value) if isinstance(value, tuple) else value


_KINDS: dict[str, tuple[type[Any], Callable[[DeviceSnapshot], Iterable[Any]]]] = {
    "devices": (Pieces, lambda device: (device.pieces,)),
    "categories": (CategoryBytes, lambda device: device.categories),
    "live": (StackBytes, lambda device: device.live),
    "peak": (StackBytes, lambda device: device.peak.alive if is_known(device.peak) else ()),
    "oom": (OutOfMemory, lambda device: device.out_of_memory),
}
"""By table the class of its rows, whose fields are its header, and a reader of the rows."""
SNAPSHOT_TABLES = tuple(_KINDS)
