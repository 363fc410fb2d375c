"""Read a memory snapshot of torch and sum it up.

The history is a ring whose end is the moment of the snapshot: it is followed backwards from the blocks in use
then. The file may be of anyone: ``load_plain`` calls nothing, and what does not fit is left out and counted.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, islice

from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known
from tpmon.model.results.snapshot import (
    SNAPSHOT_SCHEMA,
    CategoryBytes,
    DeviceSnapshot,
    MemoryMoment,
    OutOfMemory,
    Pieces,
    SnapshotFile,
    SnapshotLost,
    SnapshotReport,
    StackBytes,
)
from tpmon.model.text.redaction import admit_text
from tpmon.model.text.unpickle import Limits, PlainError, load_plain
from tpmon.trace import memory_parts
from tpmon.trace.memory_parts import own_line, show_frames, sort_stack
from tpmon.trace.reading.sources import open_bytes

FILE_BYTES = 1 << 30
MOST_VALUES = 60_000_000
VALUES_PER_BYTE = 0.5
"""What torch writes has a third of a value in each byte; more is made to fill the memory of its reader."""
MOST_EVENTS = 5_000_000
"""Of more the newest are read: the history is followed from its end."""
MOST_BLOCKS = 4_000_000
MOST_DEVICES = 256
MOST_FRAMES = 512
"""With those of C++ and of the interpreter a stack of Python has four times as many."""
MOST_BYTES = 1 << 50
_TRY = "give a file that torch.cuda.memory._dump_snapshot wrote"
_IN_USE = "active_allocated"
_PENDING = ("active_pending_free", "active_awaiting_free")
_ACTIONS = ("alloc", "free_requested", "oom")
_BACKWARDS = {"alloc": -1, "free_requested": 1}
_PASSED_BY = (
    *("free_completed", "segment_alloc", "segment_free", "segment_map"),
    *("segment_unmap", "snapshot", "user_defined", "workspace_snapshot"),
)


@dataclass(frozen=True, slots=True)
class AllocatorBlock:
    """Hold a piece of a segment; ``requested`` is -1 where it is not told, ``stack`` a number of a list."""

    address: int
    size: int
    requested: int
    in_use: bool
    pending: bool
    stack: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Hold what the allocator took from the device at once; ``private`` in the pool of a CUDA graph.

    Of an ``expandable`` one the allocator gives back pages in which nothing is in use.
    """

    device: int
    size: int
    private: bool
    expandable: bool
    blocks: tuple[AllocatorBlock, ...]


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """Hold one event of the history: alloc, free_requested or oom; ``time_us`` is -1 where it is not told."""

    action: str
    address: int
    size: int
    time_us: int
    device_free: int
    stack: int


@dataclass(frozen=True, slots=True)
class RawSnapshot:
    """Hold a snapshot: ``stacks`` are lists of frames, innermost first; number 0 is "none recorded"."""

    segments: tuple[Segment, ...]
    history: Mapping[int, Sequence[AllocatorEvent]]
    stacks: Sequence[tuple[str, ...]]
    lost: SnapshotLost
    file_bytes: int


def read_snapshot(path: str) -> RawSnapshot:
    """Read the snapshot at ``path``.

    UsageError where there is no file, or it is no snapshot, or more than plain containers; NotPermittedError
    where it may not be read.
    """
    with open_bytes(path) as (file, size):
        if size > FILE_BYTES:
            raise UsageError(f"{path}: {size:,} bytes, at most {FILE_BYTES:,} are read", _TRY)
        data = bytearray()
        try:
            while len(data) <= FILE_BYTES and (part := file.read(1 << 20)):
                data += part
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}", "tpmon trace FILE...") from error
    looks = gc.isenabled()
    gc.disable()  # millions of containers without cycles: looking for some would double the time
    try:
        return parse_snapshot(bytes(data))
    except PlainError as error:
        raise UsageError(f"{path}: no snapshot that is read: {error}", _TRY) from error
    finally:
        if looks:
            gc.enable()


def parse_snapshot(data: bytes) -> RawSnapshot:
    """Parse a snapshot; PlainError where the bytes are no pickle of plain containers, or no snapshot."""
    values = min(MOST_VALUES, 200_000 + int(len(data) * VALUES_PER_BYTE))
    limits = Limits(file_bytes=FILE_BYTES, values=values, written_out=1 << 62)
    raw = load_plain(data, limits)
    if not isinstance(raw, dict) or not isinstance(raw.get("segments"), (list, tuple)):
        raise PlainError("it has no segments")
    reader = _SnapshotReader()
    segments = tuple(filter(None, map(reader.read_segment, raw["segments"])))
    history = reader.read_history(raw.get("device_traces"))
    lost = SnapshotLost(len(raw["segments"]) - len(segments), reader.lost_blocks, reader.lost_events)
    return RawSnapshot(segments, history, tuple(reader.stacks), lost, len(data))


class _SnapshotReader:
    """Turn plain values into typed ones, each stack once."""

    def __init__(self) -> None:
        self.stacks: list[tuple[str, ...]] = [()]
        self.lost_blocks = self.lost_events = 0
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        self._seen: dict[int, int] = {}
        self._frames: dict[int, str] = {}
        self._blocks = self._events = 0

    def read_segment(self, raw: object) -> Segment | None:
        if not isinstance(raw, dict) or not isinstance(raw.get("blocks"), (list, tuple)):
            return None
        size, device = _size(raw.get("total_size")), _integer(raw.get("device", 0))
        if size < 0 or not 0 <= device < MOST_DEVICES or self._blocks >= MOST_BLOCKS:
            return None
        blocks = []
        at = _integer(raw.get("address"))
        for one in raw["blocks"]:
            self._blocks += 1
            block = self._read_block(one, at) if self._blocks <= MOST_BLOCKS else None
            if block is None:
                self.lost_blocks += 1
                continue
            at = block.address + block.size
            blocks.append(block)
        pool = raw.get("segment_pool_id")  # the default one is (0, 0), and old torch names none
        is_private = isinstance(pool, (list, tuple)) and any(_integer(part) > 0 for part in pool[:2])
        return Segment(device, size, is_private, raw.get("is_expandable") is True, tuple(blocks))

    def _read_block(self, raw: object, at: int) -> AllocatorBlock | None:
        if not isinstance(raw, dict):
            return None
        size, state = _size(raw.get("size")), raw.get("state")
        if size < 0 or not isinstance(state, str):
            return None
        requested, frames = _size(raw.get("requested_size")), raw.get("frames")
        before = raw.get("history")  # torch 2.0 kept both in a list
        if isinstance(before, (list, tuple)) and before and isinstance(before[0], dict):
            requested = _size(before[0].get("real_size"))
            frames = before[0].get("frames", frames)
        address = _integer(raw.get("address", at))  # torch 2.0 tells that of the segment alone
        return AllocatorBlock(
            address, size, requested, state == _IN_USE, state in _PENDING, self._number_stack(frames)
        )

    def read_history(self, raw: object) -> dict[int, list[AllocatorEvent]]:
        found: dict[int, list[AllocatorEvent]] = {}
        for device, events in enumerate(raw if isinstance(raw, (list, tuple)) else ()):
            if isinstance(events, (list, tuple)) and events and device < MOST_DEVICES:
                found[device] = list(self._read_events(events))
        return found

    def _read_events(self, raw: Sequence[object]) -> Iterable[AllocatorEvent]:
        skipped = max(len(raw) - (MOST_EVENTS - self._events), 0)
        self.lost_events += skipped
        self._events += len(raw) - skipped
        for one in islice(raw, skipped, None):
            action = one.get("action") if isinstance(one, dict) else None
            if not isinstance(one, dict) or not isinstance(action, str):
                self.lost_events += 1
            elif action in _ACTIONS and (size := _size(one.get("size"))) >= 0:
                when, free = _integer(one.get("time_us")), _size(one.get("device_free"))
                stack = self._number_stack(one.get("frames"))
                yield AllocatorEvent(action, _integer(one.get("addr")), size, when, free, stack)
            elif action not in _PASSED_BY:
                self.lost_events += 1

    def _number_stack(self, raw: object) -> int:
        """Return the number of a stack; one list that many events share is read once."""
        if not isinstance(raw, (list, tuple)) or not raw:
            return 0
        number = self._seen.get(id(raw))  # the whole pickle is held meanwhile: numbers stay those of one list
        if number is None:
            frames = tuple(filter(None, map(self._name_frame, raw[:MOST_FRAMES])))
            number = self._numbers.setdefault(frames, len(self.stacks))
            if number == len(self.stacks):
                self.stacks.append(frames)
            self._seen[id(raw)] = number
        return number

    def _name_frame(self, raw: object) -> str:
        if not isinstance(raw, dict):
            return ""
        name = self._frames.get(id(raw))
        if name is None:
            file, line, function = raw.get("filename"), raw.get("line"), raw.get("name")
            place = file if isinstance(file, str) else "??"
            number = line if isinstance(line, int) and not isinstance(line, bool) else 0
            called = function if isinstance(function, str) else "??"
            known = f"{admit_text(place, 300)}:{number} " if place not in ("", "??") else ""
            name = self._frames[id(raw)] = known + admit_text(called, 200)
        return name


def _integer(value: object) -> int:
    """Return a number that an address or a time may be, -1 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else -1


def _size(value: object) -> int:
    number = _integer(value)
    return number if number < MOST_BYTES else -1


MOST_STACKS = 1000
"""Rows of a table by stack."""
MOST_OOM = 100
_NO_HISTORY = Missing("no history: torch.cuda.memory._record_memory_history() was not on")
_NO_TIME = Missing("the snapshot has no times")
_NOT_TOLD = Missing("the snapshot does not tell it")


def analyze_snapshots(paths: Sequence[str]) -> SnapshotReport:
    """Analyse the snapshots at ``paths`` one by one; TpmonError where ``read_snapshot`` raises one."""
    files = []
    for path in paths:
        snapshot = read_snapshot(path)
        files.append(SnapshotFile(path, snapshot.file_bytes, tuple(sum_devices(snapshot)), snapshot.lost))
        del snapshot
    return SnapshotReport(SNAPSHOT_SCHEMA, tuple(files))


def sum_devices(snapshot: RawSnapshot) -> Iterable[DeviceSnapshot]:
    """Give each device that has segments or a history, in order."""
    devices = {segment.device for segment in snapshot.segments} | set(snapshot.history)
    for device in sorted(devices):
        segments = [one for one in snapshot.segments if one.device == device]
        events = snapshot.history.get(device, ())
        blocks = [block for segment in segments for block in segment.blocks if block.in_use]
        live = _sum_by_stack(snapshot, ((block.stack, block.size, block.requested) for block in blocks))
        pieces, history = _cut_up(segments), _History(snapshot, events)
        peak, at_peak = _find_peak(blocks, events, snapshot, history)
        now = Counter[str]()
        for block in blocks:
            now[history.sort(block.stack, recorded=block.address in history.kept)] += block.size
        categories = tuple(
            CategoryBytes(name, now[name], at_peak[name] if is_known(peak) else peak)
            for name in memory_parts.CATEGORIES
            if now[name] or at_peak[name]
        )
        failed = tuple(_name_oom(event, events, snapshot) for event in events if event.action == "oom")
        last = (failed[-1], _find_free(blocks, events, pieces)) if failed else None
        yield DeviceSnapshot(
            device,
            memory_parts.judge_memory(
                pieces,
                categories,
                peak.alive if is_known(peak) else live,
                history.list_growing(),
                last,
                expandable=any(one.expandable for one in segments),
            ),
            categories,
            pieces,
            live,
            len(events),
            peak,
            failed[:MOST_OOM],
        )


class _History:
    """Hold which blocks of the history are still there, and what the stacks in it are of.

    ``kept`` are place and event of their allocations by address. Where stacks are of Python alone a thread of
    the backward pass has none: what is recorded without one, beside others, is a gradient.
    """

    def __init__(self, snapshot: RawSnapshot, events: Sequence[AllocatorEvent]) -> None:
        self.kept: dict[int, tuple[int, AllocatorEvent]] = {}
        self._snapshot = snapshot
        self._categories: dict[int, str] = {}
        self._has_stacks = any(event.stack for event in events)
        self._events = events
        for at, event in enumerate(events):
            if event.action == "alloc":
                self.kept[event.address] = at, event
            elif event.action == "free_requested":
                self.kept.pop(event.address, None)

    def sort(self, stack: int, *, recorded: bool) -> str:
        """Tell what a stack allocated; ``recorded``: while the history was on."""
        if not stack:
            return memory_parts.GRADIENTS if recorded and self._has_stacks else memory_parts.UNTOLD
        if stack not in self._categories:
            self._categories[stack] = sort_stack(self._snapshot.stacks[stack])
        return self._categories[stack]

    def list_growing(self) -> tuple[StackBytes, ...]:
        """List the stacks of which one more block stays with each pass."""
        places: dict[int, list[int]] = {}
        for at, event in sorted(self.kept.values(), key=lambda one: one[0]):
            places.setdefault(event.stack, []).append(at)
        trains = (memory_parts.GRADIENTS, memory_parts.OPTIMIZER)
        passes = [*accumulate(self._trains(event, trains) for event in self._events)]
        sorts = {stack: self.sort(stack, recorded=True) for stack in places}
        growing = memory_parts.find_growth(places, passes, sorts)
        kept = (event for _at, event in self.kept.values() if event.stack in growing)
        return _sum_by_stack(self._snapshot, ((event.stack, event.size, event.size) for event in kept))

    def _trains(self, event: AllocatorEvent, trains: Collection[str]) -> bool:
        return event.action == "alloc" and self.sort(event.stack, recorded=True) in trains


def _find_free(
    blocks: Sequence[AllocatorBlock], events: Sequence[AllocatorEvent], pieces: Pieces
) -> Known[int]:
    """Return what of the memory reserved now was not asked for when the last request failed."""
    asked = sum(max(block.requested, 0) or block.size for block in blocks)
    for event in reversed(events):
        if event.action == "oom":
            break
        asked += event.size * _BACKWARDS.get(event.action, 0)
    free = pieces.reserved_bytes - pieces.private_bytes - asked
    return free if free >= 0 else _NOT_TOLD


def _cut_up(segments: Sequence[Segment]) -> Pieces:
    blocks = [block for segment in segments for block in segment.blocks]
    used = [block for block in blocks if block.in_use]
    free: list[int] = []
    stuck = private = 0
    for segment in segments:
        idle = [block.size for block in segment.blocks if not (block.in_use or block.pending)]
        if segment.private:  # what a graph may write to when it is replayed: nothing else gets it
            private += sum(idle)
            continue
        free += idle
        stuck += sum(idle) if len(idle) < len(segment.blocks) and not segment.expandable else 0
    total, largest = sum(free), max(free, default=0)
    reach = max(largest, total - stuck)  # what is given back to the device can come back as one
    told = all(block.requested >= 0 for block in used)
    return Pieces(
        segments=len(segments),
        reserved_bytes=sum(segment.size for segment in segments),
        allocated_bytes=sum(block.size for block in used),
        pending_bytes=sum(block.size for block in blocks if block.pending),
        free_bytes=total,
        free_blocks=len(free),
        largest_free_bytes=largest,
        releasable_bytes=total - stuck,
        stuck_bytes=stuck,
        private_bytes=private,
        rounding_bytes=sum(max(block.size - block.requested, 0) for block in used) if told else _NOT_TOLD,
        fragmentation_pct=100 * (1 - reach / total) if total else Missing("nothing is free"),
    )


def _sum_by_stack(snapshot: RawSnapshot, blocks: Iterable[tuple[int, int, int]]) -> tuple[StackBytes, ...]:
    """Sum stack, size and requested bytes of blocks by stack, the most bytes first."""
    by_stack: dict[int, list[tuple[int, int]]] = {}
    for stack, size, requested in blocks:
        by_stack.setdefault(stack, []).append((size, requested))
    found = []
    for stack, pairs in by_stack.items():
        size, requested = map(sum, zip(*pairs, strict=True))
        told = min(one for _size, one in pairs) >= 0
        frames = snapshot.stacks[stack]
        row = (size, requested if told else _NOT_TOLD, len(pairs), own_line(frames))
        found.append((-size, stack, StackBytes(*row, show_frames(frames))))
    return tuple(row for _size, _stack, row in sorted(found, key=lambda one: one[:2])[:MOST_STACKS])


def _find_peak(
    blocks: Sequence[AllocatorBlock],
    events: Sequence[AllocatorEvent],
    snapshot: RawSnapshot,
    history: _History,
) -> tuple[Known[MemoryMoment], Counter[str]]:
    """Follow the history backwards to the moment at which most was allocated, and sum what was alive."""
    if not events:
        return _NO_HISTORY, Counter()
    sizes = [block.requested if block.requested >= 0 else block.size for block in blocks]
    end = total = sum(sizes)
    peak, peak_at = total, len(events) - 1
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        total += event.size * _BACKWARDS.get(event.action, 0)
        if total > peak:
            peak, peak_at = total, at - 1
    if total < 0:
        return Missing(
            "the history does not fit the blocks: more was allocated in it than is there"
        ), Counter()
    alive = {
        block.address: (size, block.stack, block.address in history.kept)
        for block, size in zip(blocks, sizes, strict=True)
    }
    for event in reversed(events[peak_at + 1 :]):
        if event.action == "alloc":
            alive.pop(event.address, None)
        elif event.action == "free_requested":
            alive[event.address] = (event.size, -1, True)  # the stack of an event may be that of the free
    for event in reversed(events[: peak_at + 1]):
        found = alive.get(event.address)
        if event.action == "alloc" and found is not None and found[1] < 0:
            alive[event.address] = (found[0], event.stack, True)
    older = sum(size for size, stack, _recorded in alive.values() if stack < 0)
    told = [one for one in alive.values() if one[1] >= 0]
    sums = Counter({memory_parts.UNTOLD: older})
    for size, stack, recorded in told:
        sums[history.sort(stack, recorded=recorded)] += size
    at = max(peak_at, 0)
    rows = _sum_by_stack(snapshot, ((stack, size, size) for size, stack, _recorded in told))
    return MemoryMoment(peak, end, at, _time(events, events[at]), older, rows), sums


def _time(events: Sequence[AllocatorEvent], event: AllocatorEvent) -> Known[float]:
    first = events[0].time_us
    return (event.time_us - first) / 1000 if 0 <= first <= event.time_us else _NO_TIME


def _name_oom(event: AllocatorEvent, events: Sequence[AllocatorEvent], snapshot: RawSnapshot) -> OutOfMemory:
    frames, free = snapshot.stacks[event.stack], event.device_free
    told = (free if free >= 0 else _NOT_TOLD, _time(events, event), own_line(frames))
    return OutOfMemory(event.size, *told, show_frames(frames))
