"""Sum up a memory snapshot: pieces, what lives by stack, and what lived when most was allocated.

The history is a ring: its beginning may be lost, its end is the moment of the snapshot. So it is
followed backwards from the blocks that are in use at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tpmon.model.known import Known, Missing
from tpmon.model.results.snapshot import (
    SNAPSHOT_SCHEMA,
    DeviceSnapshot,
    MemoryMoment,
    OutOfMemory,
    Pieces,
    SnapshotFile,
    SnapshotReport,
    StackBytes,
)
from tpmon.trace.snapshot_read import Block, Event, Segment, Snapshot, read_snapshot

MOST_STACKS = 1000
"""Rows of a table by stack."""
MOST_FRAMES_SHOWN = 40
MOST_OOM = 100
_NO_HISTORY = Missing("no history: torch.cuda.memory._record_memory_history() was not on")
_NO_STACK = Missing("no stack was recorded")
_NO_OWN_LINE = Missing("no line outside of packages in the stack")
_NO_TIME = Missing("the snapshot has no times")
_NOT_TOLD = Missing("the snapshot does not tell it")
_PACKAGE = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^[<?]|(?:^|/)torch/|\.(?:cpp|cc|cu|h)(?::|$)"
)
_PYTHON_LINE = re.compile(r"^(.*):\d+ ")


def analyze_snapshots(paths: Sequence[str]) -> SnapshotReport:
    """Analyse the snapshots at ``paths``, one after the other.

    Raises:
        UsageError: where one is none.
        NotPermittedError: where one may not be read.
    """
    files = []
    for path in paths:
        snapshot = read_snapshot(path)
        files.append(SnapshotFile(path, snapshot.file_bytes, tuple(sum_devices(snapshot)), snapshot.lost))
        del snapshot
    return SnapshotReport(SNAPSHOT_SCHEMA, tuple(files))


def sum_devices(snapshot: Snapshot) -> Iterable[DeviceSnapshot]:
    """Give each device that has segments or a history, in order."""
    devices = {segment.device for segment in snapshot.segments} | set(snapshot.history)
    for device in sorted(devices):
        segments = [one for one in snapshot.segments if one.device == device]
        events = snapshot.history.get(device, ())
        blocks = [block for segment in segments for block in segment.blocks if block.in_use]
        yield DeviceSnapshot(
            device,
            _cut_up(segments),
            _sum_live(blocks, snapshot),
            len(events),
            _find_peak(blocks, events, snapshot) if events else _NO_HISTORY,
            tuple(_name_oom(event, events, snapshot) for event in events if event.action == "oom")[:MOST_OOM],
        )


def _cut_up(segments: Sequence[Segment]) -> Pieces:
    blocks = [block for segment in segments for block in segment.blocks]
    used = [block for block in blocks if block.in_use]
    shared = [block for segment in segments if not segment.private for block in segment.blocks]
    free = [block.size for block in shared if not (block.in_use or block.pending)]
    releasable = stuck = private = 0
    for segment in segments:
        idle = sum(block.size for block in segment.blocks if not (block.in_use or block.pending))
        if segment.private:  # what a graph may write to when it is replayed: nothing else gets it
            private += idle
        elif any(block.in_use or block.pending for block in segment.blocks):
            stuck += idle
        else:
            releasable += idle
    total, largest = sum(free), max(free, default=0)
    told = all(block.requested >= 0 for block in used)
    return Pieces(
        segments=len(segments),
        reserved_bytes=sum(segment.size for segment in segments),
        allocated_bytes=sum(block.size for block in used),
        pending_bytes=sum(block.size for block in blocks if block.pending),
        free_bytes=total,
        free_blocks=len(free),
        largest_free_bytes=largest,
        releasable_bytes=releasable,
        stuck_bytes=stuck,
        private_bytes=private,
        rounding_bytes=sum(max(block.size - block.requested, 0) for block in used) if told else _NOT_TOLD,
        fragmentation_pct=100 * (1 - largest / total) if total else Missing("nothing is free"),
    )


class _ByStack:
    """Sum bytes by stack."""

    def __init__(self) -> None:
        self._sums: dict[int, list[int]] = {}

    def add(self, stack: int, size: int, requested: int) -> None:
        sums = self._sums.setdefault(stack, [0, 0, 0, 0])
        sums[0] += size
        sums[1] += max(requested, 0)
        sums[2] += 1
        sums[3] += requested < 0

    def rows(self, snapshot: Snapshot) -> tuple[StackBytes, ...]:
        ordered = sorted(self._sums.items(), key=lambda one: (-one[1][0], one[0]))[:MOST_STACKS]
        return tuple(
            StackBytes(
                size,
                requested if not untold else _NOT_TOLD,
                blocks,
                own_line(snapshot.stacks[stack]),
                snapshot.stacks[stack][:MOST_FRAMES_SHOWN],
            )
            for stack, (size, requested, blocks, untold) in ordered
        )


def own_line(frames: Sequence[str]) -> Known[str]:
    """Return the innermost Python line that is of no package."""
    if not frames:
        return _NO_STACK
    for frame in frames:
        place = _PYTHON_LINE.match(frame)
        if place and not _PACKAGE.search(place[1]):
            return frame
    return _NO_OWN_LINE


def _sum_live(blocks: Iterable[Block], snapshot: Snapshot) -> tuple[StackBytes, ...]:
    by_stack = _ByStack()
    for block in blocks:
        by_stack.add(block.stack, block.size, block.requested)
    return by_stack.rows(snapshot)


def _requested(block: Block) -> int:
    return block.requested if block.requested >= 0 else block.size


def _find_peak(blocks: Sequence[Block], events: Sequence[Event], snapshot: Snapshot) -> Known[MemoryMoment]:
    """Follow the history backwards to the moment at which most was allocated, and find what was alive."""
    end = total = sum(map(_requested, blocks))
    peak, peak_at = total, len(events) - 1
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if event.action == "alloc":
            total -= event.size
        elif event.action == "free_requested":
            total += event.size
        if total > peak:
            peak, peak_at = total, at - 1
    if total < 0:
        return Missing("the history does not fit the blocks: more was allocated in it than is there")
    alive = {block.address: (_requested(block), block.stack) for block in blocks}
    for event in reversed(events[peak_at + 1 :]):
        if event.action == "alloc":
            alive.pop(event.address, None)
        elif event.action == "free_requested":
            alive[event.address] = (event.size, -1)  # the stack of an event may be that of the free
    for event in reversed(events[: peak_at + 1]):
        found = alive.get(event.address)
        if event.action == "alloc" and found is not None and found[1] < 0:
            alive[event.address] = (found[0], event.stack)
    by_stack, older = _ByStack(), 0
    for size, stack in alive.values():
        if stack < 0:
            older += size
        else:
            by_stack.add(stack, size, size)
    return MemoryMoment(peak, end, max(peak_at, 0), _time(events, peak_at), older, by_stack.rows(snapshot))


def _time(events: Sequence[Event], at: int) -> Known[float]:
    first, then = events[0].time_us, events[max(at, 0)].time_us
    return (then - first) / 1000 if 0 <= first <= then else _NO_TIME


def _name_oom(event: Event, events: Sequence[Event], snapshot: Snapshot) -> OutOfMemory:
    first = events[0].time_us
    frames = snapshot.stacks[event.stack]
    return OutOfMemory(
        event.size,
        event.device_free if event.device_free >= 0 else _NOT_TOLD,
        (event.time_us - first) / 1000 if 0 <= first <= event.time_us else _NO_TIME,
        own_line(frames),
        frames[:MOST_FRAMES_SHOWN],
    )
