"""Describe memory snapshots: memory of each device, live bytes by stack, the peak, requests that failed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results import snapshot as results
from tpmon.model.results.trace_tables import CodePlace
from tpmon.model.units import clean_text, count_of, format_bytes
from tpmon.view.blocks import Block, Paragraph, Sheet, as_number, bar
from tpmon.view.layout import NA, Column, Ink, cut_front, number, pct, size

_BAR = 20
_MOST_STACKS = 3
"""Stacks that the overview names; the tab of live bytes has them all."""
_MOST_FAILED = 3
_CALLERS = 3
"""Least lines of each stack in a text report."""
_FILE_WIDTH = 40
_NO_STACK = (
    "no stack was recorded: torch.cuda.memory._record_memory_history() was not on when it was allocated"
)


NOTHING_HELD = "the allocator held nothing, and no history was recorded"
_FRAME = re.compile(r"^(.*):(\d+) (.*)$")


def say_lost(lost: results.SnapshotLost) -> str:
    """Write what could not be read; "" for nothing."""
    counts = {"segment": lost.segments, "block": lost.blocks, "event": lost.events}
    parts = [count_of(count, noun) for noun, count in counts.items() if count]
    return f"could not be read: {', '.join(parts)}" if parts else ""


def say_pieces(pieces: results.Pieces) -> str:
    """Write how much is reserved, allocated and waiting."""
    return (
        f"{format_bytes(pieces.reserved_bytes)} reserved in {count_of(pieces.segments, 'segment')}, "
        f"{format_bytes(pieces.allocated_bytes)} allocated ({size(pieces.rounding_bytes)} of it by "
        f"rounding up), {format_bytes(pieces.pending_bytes)} freed and waiting for a stream"
    )


def say_free(pieces: results.Pieces) -> str:
    """Write how much is free, and how it is cut up."""
    kept = f"{format_bytes(pieces.private_bytes)} are free in private pools, for CUDA graphs alone"
    if not pieces.free_bytes:
        return kept if pieces.private_bytes else "nothing of what is reserved is free"
    cut_up = known_or(pieces.fragmentation_pct, 0.0)
    return (
        f"{format_bytes(pieces.free_bytes)} in {count_of(pieces.free_blocks, 'block')}, the largest "
        f"{format_bytes(pieces.largest_free_bytes)}: {cut_up:.0f} % of it is out of reach for one request; "
        f"{format_bytes(pieces.stuck_bytes)} are stuck beside blocks in use, "
        f"{format_bytes(pieces.releasable_bytes)} the allocator gives back by itself before a request fails"
        + (f"; {kept}" if pieces.private_bytes else "")
    )


def say_oom(one: results.OutOfMemory) -> str:
    """Write which request failed, and where."""
    when = f"at {one.at_ms:,.3f} ms " if is_known(one.at_ms) else ""
    left = one.device_free_bytes
    free = f", the device had {format_bytes(left)} left" if is_known(left) else ""
    where = f", asked for in {one.line}" if is_known(one.line) else ""
    return f"{when}{format_bytes(one.asked_bytes)} were asked for{free}{where}"


def say_peak(peak: results.MemoryMoment) -> str:
    """Write how much the peak was, and when."""
    when = f"at {peak.at_ms:,.3f} ms of the history" if is_known(peak.at_ms) else f"at event {peak.at_event}"
    return f"{format_bytes(peak.requested_bytes)} requested {when}, {format_bytes(peak.end_bytes)} at the end"


def say_older(peak: results.MemoryMoment) -> str:
    """Write which part of the peak has no stack; "" for none."""
    if not peak.older_bytes:
        return ""
    older = format_bytes(peak.older_bytes)
    return f"{older} more were allocated before the history begins, and freed after the peak"


def say_line(line: Known[str]) -> str:
    """Write the line that names a stack, or why there is none."""
    return line if is_known(line) else f"({line.reason})"


def find_frame(frame: str) -> Known[CodePlace]:
    """Return the line of code in a frame of a stack."""
    found = _FRAME.match(frame)
    if found is None:
        return Missing(f"no file is known of {frame}")
    return CodePlace(found[3], found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class PieceRow:
    """Hold one part of what is reserved."""

    name: str
    bytes: int
    share_pct: float


def list_overview(file: results.SnapshotFile, *, alone: bool = True) -> list[Block]:
    """List for each device what failed, what is held and how it is cut up; ``alone``: also the top stacks."""
    blocks: list[Block] = []
    for device in file.devices:
        failed = device.out_of_memory[-_MOST_FAILED:]
        blocks += [Paragraph("oom", say_oom(one), Ink.WARN) for one in reversed(failed)]
        blocks += _list_verdict(device)
        blocks.append(Paragraph(f"gpu {device.device}", say_pieces(device.pieces), Ink.STRONG))
        blocks.append(Paragraph("free", say_free(device.pieces)))
        peak = device.peak
        blocks.append(Paragraph("peak", say_peak(peak) if is_known(peak) else f"{NA}: {peak.reason}"))
        if alone and device.live:
            most = device.live[:_MOST_STACKS]
            more = "; tab 2 has the others" if len(device.live) > len(most) else ""
            title = f"the most on GPU {device.device} by stack{more}"
            blocks.append(_stacks_sheet(title, most, device.pieces.allocated_bytes, "live"))
        if device.categories:
            blocks.append(_categories_sheet(device))
        blocks.append(_pieces_sheet(device))
    about: list[Block] = [_name_file_of(file)]
    if say_lost(file.lost):
        about.append(Paragraph("lost", say_lost(file.lost), Ink.WARN))
    return [*(blocks or [Paragraph(NA, NOTHING_HELD)]), *about]


def _list_verdict(device: results.DeviceSnapshot) -> list[Block]:
    verdict = device.verdict
    said = Paragraph("verdict", f"{verdict.cause.upper()}: {verdict.summary}", Ink.STRONG)
    tried = verdict.try_this
    return [
        said,
        Paragraph("try", tried) if is_known(tried) else Paragraph(NA, f"nothing to try: {tried.reason}"),
    ]


def _categories_sheet(device: results.DeviceSnapshot) -> Sheet[results.CategoryBytes]:
    whole = sum(row.live_bytes for row in device.categories)
    most = sum(known_or(row.peak_bytes, 0) for row in device.categories)

    def share(row: results.CategoryBytes) -> str:
        return pct(100 * row.peak_bytes / max(most, 1)) if is_known(row.peak_bytes) else NA

    return Sheet(
        f"what GPU {device.device} holds, by the frames that allocated it",
        (
            Column("", 22, 0, lambda row: row.name, right=False),
            Column("at the end", 10, 1, lambda row: format_bytes(row.live_bytes)),
            Column("share", 7, 3, lambda row: pct(100 * row.live_bytes / max(whole, 1))),
            Column("at the peak", 11, 2, lambda row: size(row.peak_bytes)),
            Column("share", 7, 4, share),
        ),
        device.categories,
        lambda row: (
            f"{row.name}: {format_bytes(row.live_bytes)} at the end, {size(row.peak_bytes)} at the peak"
        ),
    )


def _name_file_of(file: results.SnapshotFile) -> Paragraph:
    return Paragraph("snapshot", f"{clean_text(file.path, 1000)}, {format_bytes(file.file_bytes)}")


def list_snapshot(file: results.SnapshotFile) -> list[Block]:
    """Return the text report of one snapshot, its file first."""
    first = _name_file_of(file)
    blocks = (*list_overview(file, alone=False), *list_live(file), *list_peak(file), *list_failed(file))
    return [first, *(block for block in blocks if block != first)]


def _pieces_sheet(device: results.DeviceSnapshot) -> Sheet[PieceRow]:
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


def _list_pieces(pieces: results.Pieces) -> tuple[PieceRow, ...]:
    parts = (
        ("allocated", pieces.allocated_bytes),
        ("pending", pieces.pending_bytes),
        ("free, stuck", pieces.stuck_bytes),
        ("free, releasable", pieces.releasable_bytes),
        *((("free, private", pieces.private_bytes),) if pieces.private_bytes else ()),
        ("largest free block", pieces.largest_free_bytes),
    )
    whole = max(pieces.reserved_bytes, 1)
    return tuple(PieceRow(name, count, 100 * count / whole) for name, count in parts)


def list_live(file: results.SnapshotFile) -> list[Block]:
    """List by stack what was allocated when the snapshot was taken."""
    blocks: list[Block] = []
    for device in file.devices:
        if device.live:
            title = f"alive at the end on GPU {device.device}, by stack"
            blocks.append(_stacks_sheet(title, device.live, device.pieces.allocated_bytes, "live"))
        else:
            blocks.append(Paragraph(NA, f"nothing is allocated on GPU {device.device}"))
    return blocks or [Paragraph(NA, NOTHING_HELD)]


def list_peak(file: results.SnapshotFile) -> list[Block]:
    """List by stack what was alive when most was allocated."""
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
        blocks.append(_stacks_sheet(title, peak.alive, peak.requested_bytes, "peak"))
    return blocks or [Paragraph(NA, NOTHING_HELD)]


def list_failed(file: results.SnapshotFile) -> list[Block]:
    """List the requests that failed, of each device."""
    blocks: list[Block] = []
    for device in file.devices:
        if device.out_of_memory:
            blocks.append(_failed_sheet(device))
        else:
            none = "no request failed in the recorded history"
            why = none if is_known(device.peak) else device.peak.reason
            blocks.append(Paragraph(NA, f"GPU {device.device}: {why}"))
    return blocks or [Paragraph(NA, NOTHING_HELD)]


def _failed_sheet(device: results.DeviceSnapshot) -> Sheet[results.OutOfMemory]:
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
        table="oom",
    )


def _stacks_sheet(
    title: str, stacks: tuple[results.StackBytes, ...], whole: int, table: str
) -> Sheet[results.StackBytes]:
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
        lambda row: "\n".join((f"{_say_bytes(row)}: {say_line(row.line)}", *_write_frames(row.frames))),
        (("bytes", lambda row: row.bytes), ("blocks", lambda row: row.blocks)),
        source=lambda row: row.line if is_known(row.line) else "",
        inside=lambda row: _open_stack(Paragraph("bytes", _say_bytes(row)), row.frames, row.line),
        table=table,
        below=_list_callers,
    )


def _list_callers(row: results.StackBytes) -> list[str]:
    """Write the stack of a row from the innermost line to the one that names it, at least three.

    Where a line names it, those of C and C++ that stand between are left out.
    """
    frames = [frame for frame in row.frames if not frame.startswith("??")]
    if is_known(row.line) and row.line in frames:
        frames = [frame for frame in frames if ".py:" in frame or frame == row.line]
        return _write_frames(frames[: max(_CALLERS, frames.index(row.line) + 1)])
    return _write_frames(frames[:_CALLERS])


def _say_bytes(row: results.StackBytes) -> str:
    blocks = f"{row.blocks:,} {'block' if row.blocks == 1 else 'blocks'}"
    return f"{format_bytes(row.bytes)} in {blocks}, {size(row.requested_bytes)} asked for"


def _write_frames(frames: Sequence[str]) -> list[str]:
    return [f"  in {frame}" for frame in frames]


def _open_stack(said: Paragraph, frames: tuple[str, ...], line: Known[str]) -> tuple[Block, ...]:
    """List the frames of a stack; the cursor begins on the line that names it."""
    if not frames:
        return said, Paragraph(NA, _NO_STACK)
    return said, Sheet(
        "frames, innermost first",
        (
            Column("line", 20, 0, lambda frame: _name_parts(frame)[0], right=False),
            Column("function", 16, 1, lambda frame: _name_parts(frame)[1], right=False, grows=True),
            Column("file", _FILE_WIDTH, 2, lambda frame: _name_parts(frame)[2], right=False),
        ),
        frames,
        lambda frame: frame,
        source=lambda frame: frame if is_known(find_frame(frame)) else "",
        begin=frames.index(line) if is_known(line) and line in frames else 0,
    )


def _name_parts(frame: str) -> tuple[str, str, str]:
    """Return line, function and file of a frame; without a file it is all function."""
    place = find_frame(frame)
    if not is_known(place):
        return "-", frame, "-"
    return f"{os.path.basename(place.file)}:{place.line}", place.function, cut_front(place.file, _FILE_WIDTH)


def shorten_place(frame: str) -> str:
    """Write a frame with only the end of its path, where there is little room."""
    place = find_frame(frame)
    if not is_known(place):
        return frame
    folder, name = os.path.split(place.file)
    return f"{os.path.join(os.path.basename(folder), name)}:{place.line} {place.function}"
