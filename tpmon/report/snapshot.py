"""Write memory snapshots as text and CSV: pieces of each device, what lives by stack, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpmon.model.known import is_known
from tpmon.model.snapshot import DeviceSnapshot, SnapshotFile, SnapshotLost, SnapshotReport, StackBytes
from tpmon.model.snapshot_words import (
    NOT_KNOWN,
    NOTHING_HELD,
    say_free,
    say_line,
    say_lost,
    say_older,
    say_oom,
    say_peak,
    say_pieces,
)
from tpmon.model.units import clean_text, format_bytes
from tpmon.report.csv_rows import write_csv_rows
from tpmon.report.table import lay_columns, lay_paragraph

SNAPSHOT_TABLES = ("devices", "live", "peak", "oom")
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
    lines += _write_lost(file.lost)
    if not file.devices:
        lines.append(f"         {NOTHING_HELD}")
    for device in file.devices:
        lines += ["", *_write_device(device, top)]
    return lines


def _write_lost(lost: SnapshotLost) -> list[str]:
    said = say_lost(lost)
    return lay_paragraph("lost", said) if said else []


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
        lines += ["", *lay_paragraph("peak", f"{NOT_KNOWN}: {peak.reason}")]
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
    rows = (
        (file.path, device.device, *row)
        for file in report.files
        for device in file.devices
        for row in _rows(device, table)
    )
    return write_csv_rows(("path", "device", *_HEADERS[table]), rows)


_STACK_HEADERS = ("bytes", "requested_bytes", "blocks", "line", "frames")
_HEADERS = {
    "devices": (
        *(
            "segments",
            "reserved_bytes",
            "allocated_bytes",
            "pending_bytes",
            "free_bytes",
            "free_blocks",
            "largest_free_bytes",
            "releasable_bytes",
            "stuck_bytes",
            "private_bytes",
            "rounding_bytes",
            "fragmentation_pct",
        ),
        "events",
        "peak_requested_bytes",
    ),
    "live": _STACK_HEADERS,
    "peak": _STACK_HEADERS,
    "oom": ("asked_bytes", "device_free_bytes", "at_ms", "line", "frames"),
}


def _rows(device: DeviceSnapshot, table: str) -> Iterable[tuple[object, ...]]:
    peak = device.peak
    if table == "devices":
        pieces = tuple(getattr(device.pieces, key) for key in _HEADERS[table][:-2])
        yield (*pieces, device.events, peak.requested_bytes if is_known(peak) else peak)
    elif table == "oom":
        for one in device.out_of_memory:
            yield (one.asked_bytes, one.device_free_bytes, one.at_ms, one.line, _join(one.frames))
    else:
        rows = device.live if table == "live" else peak.alive if is_known(peak) else ()
        for row in rows:
            yield (row.bytes, row.requested_bytes, row.blocks, row.line, _join(row.frames))


def _join(frames: Sequence[str]) -> str:
    return ";".join(frame.replace(";", ",") for frame in frames)
