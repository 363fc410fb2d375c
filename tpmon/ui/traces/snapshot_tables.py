"""What each tab of a memory snapshot holds: pieces, bytes by stack now and at the peak, failed requests."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known
from tpmon.model.results.snapshot import DeviceSnapshot, OutOfMemory, Pieces, SnapshotFile, StackBytes
from tpmon.model.units import clean_text, format_bytes
from tpmon.ui.kit.cells import cut_front
from tpmon.ui.kit.lines import Ink
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, as_number, bar
from tpmon.ui.kit.table import Column
from tpmon.view.snapshot_words import (
    NOTHING_HELD,
    find_frame,
    say_free,
    say_line,
    say_lost,
    say_older,
    say_oom,
    say_peak,
    say_pieces,
)
from tpmon.view.trace_words import NA, number, pct, size

_BAR = 20
_MOST_STACKS = 3
"""Stacks that the overview names; the tab of live bytes has them all."""
_MOST_FAILED = 3
_FILE_WIDTH = 40
_NO_REQUEST = "no request failed in the recorded history"
_NO_STACK = (
    "no stack was recorded: torch.cuda.memory._record_memory_history() was not on when it was allocated"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold one part of what is reserved."""

    name: str
    bytes: int
    share_pct: float


def list_overview(file: SnapshotFile) -> list[Block]:
    """Say what failed, what is held and by whom, and how it is cut up, of each device."""
    blocks: list[Block] = []
    for device in file.devices:
        failed = device.out_of_memory[-_MOST_FAILED:]
        blocks += [Paragraph("oom", say_oom(one), Ink.WARN) for one in reversed(failed)]
        blocks.append(Paragraph(f"gpu {device.device}", say_pieces(device.pieces), Ink.STRONG))
        blocks.append(Paragraph("free", say_free(device.pieces)))
        peak = device.peak
        blocks.append(Paragraph("peak", say_peak(peak) if is_known(peak) else f"{NA}: {peak.reason}"))
        if device.live:
            most = device.live[:_MOST_STACKS]
            more = "; tab 2 has the others" if len(device.live) > len(most) else ""
            title = f"the most on GPU {device.device} by stack{more}"
            blocks.append(_stacks_sheet(title, most, device.pieces.allocated_bytes))
        blocks.append(_pieces_sheet(device))
    said = f"{clean_text(file.path, 1000)}, {format_bytes(file.file_bytes)}"
    about: list[Block] = [Paragraph("snapshot", said)]
    if say_lost(file.lost):
        about.append(Paragraph("lost", say_lost(file.lost), Ink.WARN))
    return [*(blocks or [Paragraph(NA, NOTHING_HELD)]), *about]


def _pieces_sheet(device: DeviceSnapshot) -> Sheet[Piece]:
    return Sheet(
        f"pieces of GPU {device.device}, share of what is reserved",
        (
            Column("", 22, 0, lambda part: part.name, right=False),
            Column("bytes", 8, 1, lambda part: format_bytes(part.bytes)),
            Column("share", 7, 2, lambda part: pct(part.share_pct)),
            Column("", _BAR, 3, lambda part: bar(part.share_pct, _BAR), right=False),
        ),
        _list_pieces(device.pieces),
        lambda part: f"{part.name} {format_bytes(part.bytes)}, {pct(part.share_pct)}",
    )


def _list_pieces(pieces: Pieces) -> tuple[Piece, ...]:
    parts = (
        ("allocated", pieces.allocated_bytes),
        ("pending", pieces.pending_bytes),
        ("free, stuck", pieces.stuck_bytes),
        ("free, releasable", pieces.releasable_bytes),
        *((("free, private", pieces.private_bytes),) if pieces.private_bytes else ()),
        ("largest free block", pieces.largest_free_bytes),
    )
    whole = max(pieces.reserved_bytes, 1)
    return tuple(Piece(name, count, 100 * count / whole) for name, count in parts)


def list_live(file: SnapshotFile) -> list[Block]:
    """List what is allocated when the snapshot was taken, by stack."""
    blocks: list[Block] = []
    for device in file.devices:
        if device.live:
            title = f"alive at the end on GPU {device.device}, by stack"
            blocks.append(_stacks_sheet(title, device.live, device.pieces.allocated_bytes))
        else:
            blocks.append(Paragraph(NA, f"nothing is allocated on GPU {device.device}"))
    return blocks or [Paragraph(NA, NOTHING_HELD)]


def list_peak(file: SnapshotFile) -> list[Block]:
    """Say when most was allocated, and list what was alive then by stack."""
    blocks: list[Block] = []
    for device in file.devices:
        label, peak = f"gpu {device.device}", device.peak
        if not is_known(peak):
            blocks.append(Paragraph(NA, f"GPU {device.device}: {peak.reason}"))
            continue
        blocks.append(Paragraph(label, say_peak(peak), Ink.STRONG))
        if say_older(peak):
            blocks.append(Paragraph("older", say_older(peak)))
        title = f"alive at the peak of GPU {device.device}, by stack"
        blocks.append(_stacks_sheet(title, peak.alive, peak.requested_bytes))
    return blocks or [Paragraph(NA, NOTHING_HELD)]


def list_failed(file: SnapshotFile) -> list[Block]:
    """List the requests that failed, and say where there were none."""
    blocks: list[Block] = []
    for device in file.devices:
        if device.out_of_memory:
            blocks.append(_failed_sheet(device))
        else:
            why = _NO_REQUEST if is_known(device.peak) else device.peak.reason
            blocks.append(Paragraph(NA, f"GPU {device.device}: {why}"))
    return blocks or [Paragraph(NA, NOTHING_HELD)]


def _failed_sheet(device: DeviceSnapshot) -> Sheet[OutOfMemory]:
    return Sheet(
        f"requests that failed on GPU {device.device}",
        (
            Column("at ms", 12, 3, lambda row: number(row.at_ms, 3)),
            Column("asked for", 9, 0, lambda row: format_bytes(row.asked_bytes)),
            Column("had left", 8, 2, lambda row: size(row.device_free_bytes)),
            Column("where", 12, 1, lambda row: shorten_place(say_line(row.line)), right=False, grows=True),
        ),
        device.out_of_memory,
        lambda row: "\n".join((say_oom(row), *_write_frames(row.frames))),
        (("at ms", lambda row: as_number(row.at_ms)), ("asked for", lambda row: row.asked_bytes)),
        source=lambda row: row.line if is_known(row.line) else "",
        inside=lambda row: _open_stack(Paragraph("oom", say_oom(row), Ink.WARN), row.frames, row.line),
    )


def _stacks_sheet(title: str, stacks: tuple[StackBytes, ...], whole: int) -> Sheet[StackBytes]:
    return Sheet(
        title,
        (
            Column("bytes", 6, 0, lambda row: format_bytes(row.bytes)),
            Column("share", 7, 2, lambda row: pct(100 * row.bytes / max(whole, 1))),
            Column("asked for", 9, 4, lambda row: size(row.requested_bytes)),
            Column("blocks", 8, 3, lambda row: f"{row.blocks:,}"),
            Column("where", 12, 1, lambda row: shorten_place(say_line(row.line)), right=False, grows=True),
        ),
        stacks,
        _write_stack,
        (("bytes", lambda row: row.bytes), ("blocks", lambda row: row.blocks)),
        source=lambda row: row.line if is_known(row.line) else "",
        inside=lambda row: _open_stack(Paragraph("bytes", _say_bytes(row)), row.frames, row.line),
    )


def _say_bytes(row: StackBytes) -> str:
    noun = "block" if row.blocks == 1 else "blocks"
    return f"{format_bytes(row.bytes)} in {row.blocks:,} {noun}, {size(row.requested_bytes)} asked for"


def _write_stack(row: StackBytes) -> str:
    return "\n".join((f"{_say_bytes(row)}: {say_line(row.line)}", *_write_frames(row.frames)))


def _write_frames(frames: Sequence[str]) -> list[str]:
    return [f"  in {frame}" for frame in frames]


def _open_stack(said: Paragraph, frames: tuple[str, ...], line: Known[str]) -> tuple[Block, ...]:
    """List the frames of a stack; the cursor begins on the line that the stack is known by."""
    if not frames:
        return said, Paragraph(NA, _NO_STACK)
    return said, Sheet(
        "frames, innermost first",
        (
            Column("line", 20, 0, _name_place, right=False),
            Column("function", 16, 1, _name_function, right=False, grows=True),
            Column("file", _FILE_WIDTH, 2, _name_file, right=False),
        ),
        frames,
        lambda frame: frame,
        source=lambda frame: frame if is_known(find_frame(frame)) else "",
        begin=frames.index(line) if is_known(line) and line in frames else 0,
    )


def _name_place(frame: str) -> str:
    place = find_frame(frame)
    return f"{os.path.basename(place.file)}:{place.line}" if is_known(place) else "-"


def _name_function(frame: str) -> str:
    place = find_frame(frame)
    return place.function if is_known(place) else frame


def _name_file(frame: str) -> str:
    place = find_frame(frame)
    return cut_front(place.file, _FILE_WIDTH) if is_known(place) else "-"


def shorten_place(frame: str) -> str:
    """Write a frame with the end of its path alone, which stays readable where there is little room."""
    place = find_frame(frame)
    if not is_known(place):
        return frame
    folder, name = os.path.split(place.file)
    return f"{os.path.join(os.path.basename(folder), name)}:{place.line} {place.function}"
