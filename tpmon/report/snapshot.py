"""Write memory snapshots as text and CSV: pieces of each device, what lives by stack, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from tpmon.model.known import is_known
from tpmon.model.results.snapshot import (
    DeviceSnapshot,
    OutOfMemory,
    Pieces,
    SnapshotFile,
    SnapshotReport,
    StackBytes,
)
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.text import lay_columns, lay_paragraph, write_csv_rows
from tpmon.view.trace import (
    NA,
    NOTHING_HELD,
    say_free,
    say_line,
    say_lost,
    say_older,
    say_oom,
    say_peak,
    say_pieces,
)

_LINE_CHARS = 400
_CALLERS = 3
"""Lines of each stack that are shown below its own line."""


def write_snapshots(report: SnapshotReport, top: int) -> list[str]:
    """Write every snapshot; ``top`` is the rows of each table."""
    lines: list[str] = []
    for file in report.files:
        lines += [*_write_file(file, top), ""]
    return [clean_text(line, _LINE_CHARS) if line else "" for line in lines[:-1]]


def _write_file(file: SnapshotFile, top: int) -> list[str]:
    lines = lay_paragraph("snapshot", f"{file.path}, {format_bytes(file.file_bytes)}")
    lost = say_lost(file.lost)
    lines += lay_paragraph("lost", lost) if lost else []
    if not file.devices:
        lines.append(f"         {NOTHING_HELD}")
    for device in file.devices:
        lines += ["", *_write_device(device, top)]
    return lines


def _write_device(device: DeviceSnapshot, top: int) -> list[str]:
    lines = [*lay_paragraph(f"gpu {device.device}", say_pieces(device.pieces))]
    lines += lay_paragraph("free", say_free(device.pieces))
    for one in device.out_of_memory[-3:]:
        lines += lay_paragraph("oom", say_oom(one))
    lines += ["", "alive at the end, by stack", *_write_stacks(device.live, top)]
    peak = device.peak
    if is_known(peak):
        lines += ["", *lay_paragraph("peak", f"{say_peak(peak)}; alive then, by stack")]
        lines += _write_stacks(peak.alive, top)
        older = say_older(peak)
        lines += [f"  {older}"] if older else []
    else:
        lines += ["", *lay_paragraph("peak", f"{NA}: {peak.reason}")]
    return lines


def _write_stacks(stacks: Sequence[StackBytes], top: int) -> list[str]:
    if not stacks:
        return ["  nothing"]
    lines = lay_columns(("bytes", "blocks", "where"), [], left=("where",), indent=2)
    for row in stacks[:top]:
        lines.append(f"  {format_bytes(row.bytes):>6}  {row.blocks:>6,}  {say_line(row.line)}")
        rest = [frame for frame in row.frames if frame != row.line and not frame.startswith("??")]
        lines += [f"                  in {frame}" for frame in rest[:_CALLERS]]
    hidden = len(stacks) - top
    return [*lines, f"  {hidden} more (--top, --csv)"] if hidden > 0 else lines


def write_snapshot_csv(report: SnapshotReport, table: str) -> list[str]:
    """Write ``table`` of every snapshot; a value that is not known is an empty cell."""
    kind, more = _KINDS[table]
    rows = (
        (file.path, device.device, *row)
        for file in report.files
        for device in file.devices
        for row in _rows(device, table)
    )
    return write_csv_rows(("path", "device", *(field.name for field in fields(kind)), *more), rows)


_KINDS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "devices": (Pieces, ("events", "peak_requested_bytes")),
    "live": (StackBytes, ()),
    "peak": (StackBytes, ()),
    "oom": (OutOfMemory, ()),
}
"""The class of a row of each table, whose fields are its header, and what stands behind them."""
SNAPSHOT_TABLES = tuple(_KINDS)


def _rows(device: DeviceSnapshot, table: str) -> Iterable[tuple[object, ...]]:
    peak = device.peak
    if table == "devices":
        requested = peak.requested_bytes if is_known(peak) else peak
        return [(*_cells(device.pieces), device.events, requested)]
    if table == "peak":
        return map(_cells, peak.alive if is_known(peak) else ())
    return map(_cells, device.live if table == "live" else device.out_of_memory)


def _cells(row: Any) -> tuple[object, ...]:
    values = (getattr(row, field.name) for field in fields(row))
    return tuple(_join(value) if isinstance(value, tuple) else value for value in values)


def _join(frames: Sequence[str]) -> str:
    return ";".join(frame.replace(";", ",") for frame in frames)
