"""Look at what a capture wrote: count its steps, read its conditions, pack it, clear what is left."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil

from tpmon.capture.summary import read_summary
from tpmon.hook import wire_capture
from tpmon.model.capture import CapturedFile, CaptureKind, Conditions
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing
from tpmon.model.trace import TraceSummary
from tpmon.model.units import clean_text

_CONDITIONS = b'"tpmon":'
_EDGE = 1 << 16
_NOT_THERE = Missing("the trace does not say it")
_MOST_INPUTS = 16

NOT_READ = Missing("the clocks of the GPU were not read")


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


def pack(path: str) -> str:
    """Compress a file beside it and remove it; return the new path, or the old one where that cannot be."""
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
            shutil.copyfileobj(source, stream, 1 << 20)
        os.rename(part, packed)
        os.unlink(path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
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
    place: Place, name: str, rank: int, first_step: int
) -> tuple[CapturedFile, TraceSummary | Missing, Known[Conditions]]:
    """Verify the trace of one rank: read it whole, count steps, events and kernels, and pack it."""
    file = wire_capture.file_name(name, rank, first_step, wire_capture.TRACE_ENDING)
    path = place.reach(file)
    conditions = read_conditions(path)
    summary = read_summary(path)
    path = pack(path)
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


def read_conditions(path: str) -> Known[Conditions]:
    """Read what the hook wrote into a trace of its surroundings."""
    try:
        with open(path, "rb") as file:
            head = file.read(_EDGE)
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _EDGE, 0))
            tail = file.read(_EDGE)
    except OSError as error:
        return Missing(error.strerror or str(error))
    return parse_conditions(head, tail)


def parse_conditions(head: bytes, tail: bytes) -> Known[Conditions]:
    """Parse the conditions out of the beginning or the end of a trace; what has another type is missing."""
    for edge in (head, tail):
        at = edge.find(_CONDITIONS)
        if at < 0:
            continue
        text = edge[at + len(_CONDITIONS) :].decode("utf-8", "replace").lstrip()
        try:
            told, _ = json.JSONDecoder().raw_decode(text)
            if isinstance(told, str):
                told = json.loads(told)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict):
            return Conditions(
                model=_text(told.get("model")),
                parameters=_int(told.get("parameters")),
                dtype=_text(told.get("dtype")),
                device=_text(told.get("device")),
                training=_bool(told.get("training")),
                mode=_text(told.get("mode")),
                inputs=_texts(told.get("inputs")),
                batch_size=_int(told.get("batch_size")),
                world_size=_int(told.get("world_size")),
                gpu=_text(told.get("gpu")),
                clocks=NOT_READ,
                torch=_text(told.get("torch")),
                python=_text(told.get("python")),
                threads=_int(told.get("threads")),
                autocast=_bool(told.get("autocast")),
                autocast_dtype=_text(told.get("autocast_dtype")),
                matmul_precision=_text(told.get("matmul_precision")),
            )
    return _NOT_THERE


def _rank(rank: int) -> Applicable[int]:
    return rank if rank >= 0 else NOT_APPLICABLE


def _why(value: object) -> Missing:
    if isinstance(value, dict) and isinstance(value.get("missing"), str):
        return Missing(clean_text(value["missing"], 120))
    return _NOT_THERE


def _text(value: object) -> Known[str]:
    return clean_text(value, 120) if isinstance(value, str) else _why(value)


def _texts(value: object) -> Known[tuple[str, ...]]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return _why(value)
    return tuple(clean_text(one, 120) for one in value[:_MOST_INPUTS])


def _int(value: object) -> Known[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else _why(value)


def _bool(value: object) -> Known[bool]:
    return value if isinstance(value, bool) else _why(value)
