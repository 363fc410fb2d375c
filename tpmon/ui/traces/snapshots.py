"""The screen of memory snapshots: its tabs and the lines above them."""

from __future__ import annotations

from typing import ClassVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.results.snapshot import DeviceSnapshot, SnapshotFile, SnapshotReport
from tpmon.model.units import format_bytes
from tpmon.ui.kit.keys import Words
from tpmon.ui.traces.state import AnyTab, Head, SnapshotTab, TabAnswer
from tpmon.view import snapshot
from tpmon.view.blocks import Block
from tpmon.view.layout import Ink, Item

_WORDS = (
    ("stuck", "free, in a segment beside blocks in use: nothing gives it back", "free beside used"),
    (
        "releasable",
        "free, in a segment without blocks in use: the allocator gives it back before a request fails",
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
    tabs: ClassVar[tuple[AnyTab, ...]] = tuple(SnapshotTab)
    first_tab: ClassVar[AnyTab] = SnapshotTab.OVERVIEW
    words: ClassVar[Words] = _WORDS

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the files."""
        return tuple(file.path for file in self.report.files)

    def list_blocks(self, file: int, tab: AnyTab) -> list[Block]:
        """Return the blocks of a tab."""
        shown = self.report.files[file]
        if tab is SnapshotTab.LIVE:
            return snapshot.list_live(shown)
        if tab is SnapshotTab.PEAK:
            return snapshot.list_peak(shown)
        return snapshot.list_failed(shown) if tab is SnapshotTab.OOM else snapshot.list_overview(shown)

    def has_data(self, file: int, tab: AnyTab) -> bool:
        """Tell whether a snapshot holds anything for a tab."""
        devices = self.report.files[file].devices
        if tab is SnapshotTab.LIVE:
            return any(device.live for device in devices)
        if tab is SnapshotTab.PEAK:
            return any(is_known(device.peak) for device in devices)
        return any(device.out_of_memory for device in devices) if tab is SnapshotTab.OOM else bool(devices)

    def head(self, file: int) -> Head:
        """Return the name of the snapshot, and how much of the device it holds."""
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
        if snapshot.say_lost(shown.lost):
            right.append(Item(2, "! not whole", Ink.WARN))
        brief = f"GPU {main.device}" if main else "snapshot"
        return Head(
            left, tuple(right), brief, format_bytes(main.pieces.reserved_bytes) if main else "nothing"
        )

    def answer(self, file: int, tab: AnyTab) -> TabAnswer:
        """Return what holds the memory of the fullest device, or which request failed."""
        main = _find_main(self.report.files[file])
        if main is None:
            return TabAnswer(
                (Item(0, snapshot.NOTHING_HELD, Ink.STRONG),),
                "NOTHING HELD",
                Ink.STRONG,
                (snapshot.NOTHING_HELD,),
            )
        return _answer_device(main, tab)


def _find_main(file: SnapshotFile) -> DeviceSnapshot | None:
    """Return the device that failed a request, else the fullest one; None without any."""
    return max(
        file.devices, key=lambda one: (bool(one.out_of_memory), one.pieces.reserved_bytes), default=None
    )


def _answer_device(device: DeviceSnapshot, tab: AnyTab) -> TabAnswer:
    pieces = device.pieces
    allocated = f"{format_bytes(pieces.allocated_bytes)} allocated"
    most = ""
    if device.live:
        first = device.live[0]
        most = f"{format_bytes(first.bytes)} by {snapshot.shorten_place(snapshot.say_line(first.line))}"
    verdict = device.verdict
    word, ink = verdict.cause.upper(), Ink.STRONG
    items = [Item(0, word, ink), Item(1, allocated, Ink.STRONG)]
    if device.out_of_memory:
        asked = format_bytes(device.out_of_memory[-1].asked_bytes)
        word, ink = f"! {word}, {asked} asked", Ink.WARN
        items[0] = Item(0, f"! {verdict.cause.upper()}, OUT OF MEMORY: {asked} were asked for", ink)
    if is_known(device.peak):
        items.append(Item(2, f"peak {format_bytes(device.peak.requested_bytes)}"))
    if is_known(pieces.fragmentation_pct):
        items.append(Item(4, f"fragmentation {pieces.fragmentation_pct:.0f} %"))
    if most:
        items.append(Item(3, f"most: {most}", Ink.DIM))
    texts = (f"{allocated}, most: {most}" if most else allocated, verdict.summary)
    return TabAnswer(tuple(items), word, ink, texts if tab is SnapshotTab.OVERVIEW else ())
