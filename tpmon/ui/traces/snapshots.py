"""The screen of memory snapshots: its tabs and what each holds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known
from tpmon.model.results.snapshot import (
    DeviceSnapshot,
    OutOfMemory,
    Pieces,
    SnapshotFile,
    SnapshotReport,
    StackBytes,
)
from tpmon.model.units import clean_text, format_bytes
from tpmon.ui.kit.cells import Ink, cut_front
from tpmon.ui.kit.sheet import Block, Paragraph, Sheet, as_number, bar
from tpmon.ui.kit.table import Column, Item
from tpmon.ui.traces.state import AnyTab, Head, SnapshotTab, TabAnswer
from tpmon.view.trace import (
    NA,
    NOTHING_HELD,
    find_frame,
    number,
    pct,
    say_free,
    say_line,
    say_lost,
    say_older,
    say_oom,
    say_peak,
    say_pieces,
    size,
)

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
class PieceRow:
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


def _pieces_sheet(device: DeviceSnapshot) -> Sheet[PieceRow]:
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


def _list_pieces(pieces: Pieces) -> tuple[PieceRow, ...]:
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


_WORDS = (
    ("stuck", "free, in a segment beside blocks in use: no empty_cache() gives it back", "free beside used"),
    (
        "releasable",
        "free, in a segment without blocks in use: empty_cache() gives it back",
        "in empty segments",
    ),
    (
        "private",
        "free in the pool of a CUDA graph: empty_cache() gives it back once the graph is gone",
        "of graphs",
    ),
    ("pending", "freed by the program, waiting for a stream", "freed, waits for a stream"),
    ("n/a", "the snapshot does not hold what this needs", "not in the snapshot"),
)


@dataclass(frozen=True, slots=True)
class SnapshotSubject:
    """Hold the analysis of memory snapshots."""

    report: SnapshotReport

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files."""
        return tuple(file.path for file in self.report.files)

    @property
    def tabs(self) -> tuple[AnyTab, ...]:
        """Return the tabs."""
        return tuple(SnapshotTab)

    @property
    def first_tab(self) -> AnyTab:
        """Return the overview."""
        return SnapshotTab.OVERVIEW

    @property
    def words(self) -> tuple[tuple[str, str, str], ...]:
        """Return what the short words of this screen mean."""
        return _WORDS

    def list_blocks(self, file: int, tab: AnyTab) -> list[Block]:
        """Return what a tab holds of a snapshot."""
        shown = self.report.files[file]
        if tab is SnapshotTab.LIVE:
            return list_live(shown)
        if tab is SnapshotTab.PEAK:
            return list_peak(shown)
        return list_failed(shown) if tab is SnapshotTab.OOM else list_overview(shown)

    def has_data(self, file: int, tab: AnyTab) -> bool:
        """Tell whether a snapshot holds anything for a tab."""
        devices = self.report.files[file].devices
        if tab is SnapshotTab.LIVE:
            return any(device.live for device in devices)
        if tab is SnapshotTab.PEAK:
            return any(is_known(device.peak) for device in devices)
        return any(device.out_of_memory for device in devices) if tab is SnapshotTab.OOM else bool(devices)

    def head(self, file: int) -> Head:
        """Return which snapshot this is, and how much of the device it holds."""
        shown = self.report.files[file]
        main = _find_main(shown)
        reserved = f"{format_bytes(main.pieces.reserved_bytes)} reserved" if main else "nothing reserved"
        count = len(shown.devices)
        left = (
            Item(6, "tpmon snapshot", Ink.TITLE),
            Item(3, f"GPU {main.device}{f' and {count - 1} more' if count > 1 else ''}" if main else ""),
            Item(8, format_bytes(shown.file_bytes)),
        )
        right = [Item(2, reserved, Ink.STRONG)]
        if say_lost(shown.lost):
            right.append(Item(2, "! not whole", Ink.WARN))
        brief = f"GPU {main.device}" if main else "snapshot"
        return Head(
            left, tuple(right), brief, format_bytes(main.pieces.reserved_bytes) if main else "nothing"
        )

    def answer(self, file: int, tab: AnyTab) -> TabAnswer:
        """Return what holds the memory of the device that holds most, or what was asked for in vain."""
        main = _find_main(self.report.files[file])
        if main is None:
            return TabAnswer(
                (Item(0, NOTHING_HELD, Ink.STRONG),), "NOTHING HELD", Ink.STRONG, (NOTHING_HELD,)
            )
        return _answer_device(main, tab)


def _find_main(file: SnapshotFile) -> DeviceSnapshot | None:
    """Return the device that failed a request, else the one that holds most; None without any."""
    return max(
        file.devices,
        key=lambda one: (bool(one.out_of_memory), one.pieces.reserved_bytes),
        default=None,
    )


def _answer_device(device: DeviceSnapshot, tab: AnyTab) -> TabAnswer:
    pieces = device.pieces
    allocated = f"{format_bytes(pieces.allocated_bytes)} allocated"
    most = ""
    if device.live:
        first = device.live[0]
        most = f"{format_bytes(first.bytes)} by {shorten_place(say_line(first.line))}"
    items = [Item(1, allocated, Ink.STRONG)]
    word, ink = allocated, Ink.STRONG
    if device.out_of_memory:
        asked = format_bytes(device.out_of_memory[-1].asked_bytes)
        word, ink = f"! OOM, {asked} asked", Ink.WARN
        items = [Item(0, f"! OUT OF MEMORY: {asked} were asked for", ink), *items]
    if is_known(device.peak):
        items.append(Item(2, f"peak {format_bytes(device.peak.requested_bytes)}"))
    if is_known(pieces.fragmentation_pct):
        items.append(Item(4, f"fragmentation {pieces.fragmentation_pct:.0f} %"))
    if most:
        items.append(Item(3, f"most: {most}", Ink.DIM))
    texts = (f"{allocated}, most: {most}" if most else allocated,)
    return TabAnswer(tuple(items), word, ink, texts if tab is SnapshotTab.OVERVIEW else ())
