"""Look at what a capture wrote: count its steps, read its conditions, pack it, clear what is left."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from dataclasses import replace
from typing import BinaryIO

from tpmon.capture.conditions import Block, read_block, to_conditions, write_clocks
from tpmon.capture.summary import read_summary
from tpmon.hook import wire_capture
from tpmon.model.capture import CapturedFile, CaptureKind, Conditions, GpuClocks
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.trace import TraceSummary
from tpmon.model.units import clean_text

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Hold a folder twice: as the training names it, and as this shell reaches it."""

    inside: str
    here: str

    def reach(self, name: str) -> str:
        """Return the path of a file for this shell."""
        return os.path.join(self.here, name)


def locate(pid: int, folder: str) -> Place:
    """Say where a folder of the training lies for this shell: below its root where its mounts are others."""
    try:
        same = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        same = True  # not permitted to tell: mostly the same
    return Place(folder, folder if same else f"/proc/{pid}/root{folder}")


def read_free_bytes(folder: str) -> Known[int]:
    """Return how many bytes are free where a folder is, or will be made."""
    place = folder if os.path.isdir(folder) else os.path.dirname(folder.rstrip("/")) or "/"
    try:
        told = os.statvfs(place)
    except OSError as error:
        return Missing(error.strerror or str(error))
    return told.f_bavail * told.f_frsize


def pack(path: str, instead: tuple[Block, bytes] | None = None) -> str:
    """Compress a file beside it and remove it; return the new path, or the old one where that cannot be.

    In the place of a block of the file other bytes are written where they are given.
    """
    packed = f"{path}.gz"
    part = f"{packed}.part"
    if os.path.lexists(packed):
        return path  # of an earlier capture, which is kept
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            open(path, "rb") as source,
            os.fdopen(descriptor, "wb") as target,
            gzip.GzipFile(path, "wb", 5, target) as stream,
        ):
            owner = os.fstat(source.fileno())
            if owner.st_uid != os.geteuid():
                os.fchown(target.fileno(), owner.st_uid, owner.st_gid)
            if instead is not None:
                block, other = instead
                _copy_part(source, stream, block.start)
                stream.write(other)
                source.seek(block.end)
            shutil.copyfileobj(source, stream, _CHUNK)
        os.rename(part, packed)
        os.unlink(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if not isinstance(error, OSError):
            raise  # Ctrl-C: the file stays as it was written
        return path
    return packed


def clear_parts(place: Place, name: str, rank: int) -> list[str]:
    """Remove what a process that ended within its capture left behind, and return the names."""
    start = wire_capture.file_name(name, rank, 0, "")[:-1]
    removed = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(place.here):
            if entry.startswith(start) and entry.endswith((".part", ".part.tmp")):
                os.unlink(place.reach(entry))
                removed.append(clean_text(entry, 255))
    return removed


def look_at_trace(
    place: Place, name: str, rank: int, first_step: int, clocks: Known[tuple[GpuClocks, ...]]
) -> tuple[CapturedFile, TraceSummary | Missing, Known[Conditions]]:
    """Verify the trace of one rank: read it whole, count steps, events and kernels, and pack it.

    The packed file has the clocks of the GPUs among its conditions, which the hook cannot read.
    """
    file = wire_capture.file_name(name, rank, first_step, wire_capture.TRACE_ENDING)
    path = place.reach(file)
    block = read_block(path)
    conditions = replace(to_conditions(block.told), clocks=clocks) if is_known(block) else block
    summary = read_summary(path)
    path = pack(path, (block, write_clocks(block, clocks)) if is_known(block) else None)
    here = os.path.basename(path)
    found = CapturedFile(
        path=os.path.join(place.inside, here),
        host_path=path,
        rank=_rank(rank),
        first_step=first_step,
        steps=summary if isinstance(summary, Missing) else summary.steps,
        events=summary if isinstance(summary, Missing) else summary.events,
        kernels=summary if isinstance(summary, Missing) else summary.kernels,
        bytes=os.stat(path).st_size,
        kind=CaptureKind.TRACE,
    )
    return found, summary, conditions


def look_at_snapshot(place: Place, name: str, rank: int, first_step: int) -> CapturedFile:
    """Name the allocator snapshot of one rank; what is in it is read by pytorch.org/memory_viz."""
    file = wire_capture.file_name(name, rank, first_step, ".pickle")
    reason = Missing("a snapshot is no trace")
    return CapturedFile(
        path=os.path.join(place.inside, file),
        host_path=place.reach(file),
        rank=_rank(rank),
        first_step=first_step,
        steps=reason,
        events=reason,
        kernels=reason,
        bytes=os.stat(place.reach(file)).st_size,
        kind=CaptureKind.SNAPSHOT,
    )


def _rank(rank: int) -> Applicable[int]:
    return rank if rank >= 0 else NOT_APPLICABLE


def _copy_part(source: BinaryIO, target: gzip.GzipFile, size: int) -> None:
    """Copy so many bytes, or fewer where there are no more."""
    while size > 0 and (data := source.read(min(size, _CHUNK))):
        target.write(data)
        size -= len(data)
