"""What a memory snapshot of torch holds, summed up: the types behind ``tpmon trace FILE.pickle``.

Bytes are of the device. *Requested* is what the program asked for; the allocator rounds it up.
"""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known

SNAPSHOT_SCHEMA = "tpmon.snapshot/1"


@dataclass(frozen=True, slots=True)
class StackBytes:
    """Hold what a stack allocated; ``line`` is its innermost of no package, ``frames`` innermost first."""

    bytes: int
    requested_bytes: Known[int]
    blocks: int
    line: Known[str]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CategoryBytes:
    """Hold what the bytes of a category take: in use at the end, requested ones at the peak."""

    name: str
    live_bytes: int
    peak_bytes: Known[int]


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Hold what holds the memory of a device: full, fragmented, grows, held or empty; and what to try."""

    cause: str
    summary: str
    try_this: Known[str]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Hold how the reserved memory of a device is cut up.

    ``free_bytes`` is reserved and in no block in use: ``releasable_bytes`` of it lie in segments without any
    such block, or in expandable ones: the allocator itself gives them back to the device before a request
    fails; ``stuck_bytes`` in the others. ``private_bytes``, free in pools of CUDA graphs, are beside these:
    no other request gets them. ``fragmentation_pct`` is the part of the free bytes that no single request
    could get.
    """

    segments: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    free_bytes: int
    free_blocks: int
    largest_free_bytes: int
    releasable_bytes: int
    stuck_bytes: int
    private_bytes: int
    rounding_bytes: Known[int]
    fragmentation_pct: Known[float]


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """Hold the moment of the recorded history at which most was allocated, by requested bytes.

    ``at_event`` counts events from 0; ``older_bytes`` were allocated before the history begins. ``alive`` is
    by stack, the most first.
    """

    requested_bytes: int
    end_bytes: int
    at_event: int
    at_ms: Known[float]
    older_bytes: int
    alive: tuple[StackBytes, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Hold one request that the device could not satisfy."""

    asked_bytes: int
    device_free_bytes: Known[int]
    at_ms: Known[float]
    line: Known[str]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """Hold one device: what holds its memory, what that is, its pieces, what lives by stack, its peak."""

    device: int
    verdict: MemoryVerdict
    categories: tuple[CategoryBytes, ...]
    pieces: Pieces
    live: tuple[StackBytes, ...]
    events: int
    peak: Known[MemoryMoment]
    out_of_memory: tuple[OutOfMemory, ...]


@dataclass(frozen=True, slots=True)
class SnapshotLost:
    """Say what of a snapshot could not be read, or was beyond what is read."""

    segments: int
    blocks: int
    events: int


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Hold the analysis of one snapshot."""

    path: str
    file_bytes: int
    devices: tuple[DeviceSnapshot, ...]
    lost: SnapshotLost


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """Hold what ``tpmon trace FILE.pickle --json`` prints."""

    schema: str
    files: tuple[SnapshotFile, ...]
