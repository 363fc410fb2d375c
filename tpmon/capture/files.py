"""Read what a capture wrote: its steps, its conditions, a summary by a niced child.

Conditions are in a trace under ``tpmon``, beside its events. The hook writes them into its own traces; tpmon
writes them into kineto's, from the hook's bus, which holds less.

A tpmon holds a lock on kineto's folder, which the kernel drops with the process. Only folders of this machine
and user with that name and a free lock are removed, and in them only kineto's files.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import re
import shlex
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from tpmon.capture.plan import MOST_BYTES
from tpmon.errors import UsageError
from tpmon.foreign_file import FOLDER, NEW_FILE, Owner, hand_over, open_foreign, own, read_owner
from tpmon.hook.bus import wire_capture
from tpmon.model.codec import CodecError, decode, to_plain
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.capture import CapturedFile, CaptureKind, Conditions, GpuClocks, RankCapture
from tpmon.model.results.trace import (
    STEP_AFTER,
    STEP_BEFORE,
    STEP_DURING,
    STEPS_AFTER,
    STEPS_BEFORE,
    STEPS_DURING,
    SummaryReply,
    TraceSummary,
)
from tpmon.model.text.redaction import admit_text
from tpmon.own_command import TRACE_NEEDS, call_python, find_lack

_CONDITIONS = b'"tpmon":'
_EDGE = 1 << 16
_NOT_THERE = Missing("the trace does not say it")
_MOST_INPUTS = 16
_TEXTS = ("model", "dtype", "device", "mode", "gpu", "torch", "python", "autocast_dtype", "matmul_precision")
_NUMBERS = ("parameters", "batch_size", "world_size", "threads")

NOT_READ = Missing("the clocks of the GPU were not read")


@dataclass(frozen=True, slots=True)
class ConditionBlock:
    """Hold the conditions in a file and their first and last byte; ``quoted``: they are JSON in a string."""

    start: int
    end: int
    told: dict[str, Any]
    quoted: bool


def read_block(file: BinaryIO) -> Known[ConditionBlock]:
    """Find the conditions that the hook wrote into an open trace: at its beginning, or at its end."""
    try:
        head = file.read(_EDGE)
        size = os.fstat(file.fileno()).st_size
        at = file.seek(max(size - _EDGE, 0))
        tail = file.read(_EDGE)
    except OSError as error:
        return Missing(error.strerror or str(error))
    return find_block(head) or find_block(tail, at) or _NOT_THERE


def find_block(edge: bytes, offset: int = 0) -> ConditionBlock | None:
    """Find the conditions in a part of a trace that begins at ``offset``."""
    at = edge.find(_CONDITIONS)
    if at < 0:
        return None
    begin = at + len(_CONDITIONS)
    # One character a byte, so that positions are those in the file.
    text = edge[begin:].decode("latin-1")
    begin += len(text) - len(text := text.lstrip(" \t\r\n"))
    try:
        told, length = json.JSONDecoder().raw_decode(text)
        told = json.loads(text[:length].encode("latin-1"))
        quoted = isinstance(told, str)
        told = json.loads(told) if quoted else told
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    return ConditionBlock(offset + begin, offset + begin + length, told, quoted)


def write_beside(
    block: ConditionBlock, clocks: Known[tuple[GpuClocks, ...]], steps: Mapping[str, Any]
) -> bytes:
    """Return the conditions of a file with the clocks of the GPUs, and the steps around the window."""
    told = json.dumps({**block.told, "clocks": to_plain(clocks), **steps})
    return (json.dumps(told) if block.quoted else told).encode()


def tell_steps(rank: RankCapture) -> dict[str, Any]:
    """Return the steps around a window as they stand in a trace: medians in ms or why not, and counts."""
    medians = {
        STEP_BEFORE: rank.step_before_ms,
        STEP_DURING: rank.step_during_ms,
        STEP_AFTER: rank.step_after_ms,
    }
    counts = {
        STEPS_BEFORE: rank.steps_before,
        STEPS_DURING: rank.steps if is_known(rank.step_during_ms) else 0,
        STEPS_AFTER: rank.steps_after,
    }
    return {**{name: to_plain(value) for name, value in medians.items()}, **counts}


def to_conditions(told: dict[str, Any]) -> Conditions:
    """Take the conditions that have the right type; clocks are tpmon's own reading."""
    texts = {name: _read(told.get(name), str) for name in _TEXTS}
    numbers = {name: _read(told.get(name), int) for name in _NUMBERS}
    switches = {name: _read(told.get(name), bool) for name in ("training", "autocast")}
    inputs = told.get("inputs")
    given: Known[tuple[str, ...]] = _why(inputs)
    if isinstance(inputs, list) and all(isinstance(one, str) for one in inputs):
        given = tuple(admit_text(one, 120) for one in inputs[:_MOST_INPUTS])
    return Conditions(**texts, **numbers, **switches, inputs=given, clocks=NOT_READ)


def _why(value: object) -> Missing:
    if isinstance(value, dict) and isinstance(value.get("missing"), str):
        return Missing(admit_text(value["missing"], 120))
    return _NOT_THERE


def _read(value: object, kind: type) -> Any:
    if type(value) is not kind:
        return _why(value)
    return admit_text(value, 120) if isinstance(value, str) else value


def run_child(module: str, *arguments: str, shared: Sequence[int]) -> tuple[str, int]:
    """Have a child call a module's ``main`` on open files; return its output and exit code; raise OSError.

    Where something ends the wait, nobody waits for the child: its file may be on a mount that hangs.
    """
    files = (f"/proc/self/fd/{one}" for one in shared)
    child = subprocess.Popen(
        call_python(f"from {module} import main; sys.exit(main(*sys.argv[1:]))", *files, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the terminal may be the screen's
        start_new_session=True,  # Ctrl-C is for tpmon, which then closes its standard input
        pass_fds=shared,
    )
    if child.stdin is None or child.stdout is None:
        raise AssertionError("the child was started with pipes")
    with child.stdin, child.stdout:
        return child.stdout.read().decode("utf-8", "replace"), child.wait()


def read_summary(path: str, source: int, rank: Applicable[int]) -> TraceSummary | Missing:
    """Return the summary of an open trace, or why there is none."""
    if refused := find_lack("a summary", TRACE_NEEDS):
        return Missing(f"no summary: {refused.what}: {refused.try_this}")
    try:
        text, code = run_child("tpmon.trace.child", shared=(source,))
        found = decode(SummaryReply, text).summary
    except OSError as error:
        return Missing(f"no summary: {error.strerror or error}")
    except CodecError as error:
        ended = f"the process that read the trace ended with {code}"
        return Missing(f"no summary: {ended if code else error}")
    if isinstance(found, Missing):
        return Missing(found.reason.replace(f"/proc/self/fd/{source}", path))
    return replace(found, path=path, rank=rank if is_known(rank) else found.rank)


MOST_READ = 4 * MOST_BYTES
"""Of a file that was written: its size may differ so much from its price."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class CapturePlace:
    """Hold the path of a folder for the training and for this shell, and its owner."""

    inside: str
    here: str
    owner: Owner = own()

    def reach(self, name: str) -> str:
        """Return the path of a file for this shell."""
        return os.path.join(self.here, name)


def locate(pid: int, folder: str) -> CapturePlace:
    """Return a folder of the training as this shell reaches it: below its root where its mounts differ."""
    try:
        same = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        same = True  # may not be read: mostly the same
    try:
        owner = read_owner(pid)
    except OSError:
        owner = own()  # the process ended: nothing will be written
    return CapturePlace(folder, folder if same else f"/proc/{pid}/root{folder}", owner)


def choose_place(pid: int, root: int, out: str) -> tuple[str, str]:
    """Return the beginning of the files' names, and the folder as the training sees it."""
    when = time.strftime("%Y%m%d-%H%M%S")
    name = f"{write_host()}-{root}"
    if out:
        return name, os.path.abspath(out)
    apart = locate(pid, "/").here != "/"
    base = "/tmp" if apart else os.getcwd()  # noqa: S108 the one folder that every container has
    return name, os.path.join(base, f"{NEW_FOLDER}{name}-{when}")


def check_above(folder: str) -> None:
    """Raise UsageError where the folder above is missing: only the last one is made."""
    above = os.path.dirname(folder.rstrip("/")) or "/"
    try:
        os.stat(f"{above}/")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"--out: {above} is no folder", f"mkdir -p {shlex.quote(above)}") from error
    except OSError:
        return  # the hook may see it, or says why not


@contextlib.contextmanager
def remove_empty(folders: list[str], stays: Callable[[], bool]) -> Iterator[None]:
    """Remove folders made for a capture that left no file, unless it ended and ``stays`` returns True."""
    ended = False
    try:
        yield
        ended = stays()
    finally:
        if not ended:
            for folder in folders:
                with contextlib.suppress(OSError):  # files lie in it, or it was never made
                    os.rmdir(folder)


def make_anew(folder: str, pids: Sequence[int]) -> None:
    """Make the folder of a capture for the user of some processes; UsageError where it is there already."""
    made: set[tuple[int, int]] = set()
    for place in (locate(pid, folder) for pid in pids):
        try:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(place.here)
                if (found.st_dev, found.st_ino) in made:
                    continue  # two ranks see the same one
            made.add(_make_folder(place))
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror or error}", "tpmon capture PID --out DIR") from error


def _make_folder(place: CapturePlace) -> tuple[int, int]:
    """Make a folder by descriptors, which follows no link; return its device and inode."""
    folder, name = os.path.split(place.here)
    with contextlib.ExitStack() as stack:
        above = os.open(folder, FOLDER | os.O_NOFOLLOW)
        stack.callback(os.close, above)
        os.mkdir(name, 0o700, dir_fd=above)
        made = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=above)
        stack.callback(os.close, made)
        found = os.fstat(made)
        if found.st_uid != os.geteuid() or os.listdir(made):
            raise FileExistsError(place.here)  # another was put there since
        hand_over(made, place.owner)
        return found.st_dev, found.st_ino


@contextlib.contextmanager
def hold_folder(place: CapturePlace) -> Iterator[int]:
    """Open the folder of a capture: its files are reached by this descriptor, not by a path."""
    folder = os.open(place.here, FOLDER)
    try:
        yield folder
    finally:
        os.close(folder)


def read_free_bytes(folder: str) -> Known[int]:
    """Return the bytes free where a folder is, or will be made."""
    place = folder if os.path.isdir(folder) else os.path.dirname(folder.rstrip("/")) or "/"
    try:
        told = os.statvfs(place)
    except OSError as error:
        return Missing(error.strerror or str(error))
    return told.f_bavail * told.f_frsize


def pack(
    source: BinaryIO,
    name: str,
    folder: int,
    owner: Owner,
    instead: tuple[ConditionBlock, bytes] | None = None,
) -> str:
    """Compress an open file of a folder beside it and remove it; return the new name, the old one on failure.

    ``instead`` replaces a block of the file by other bytes.
    """
    packed = f"{name}.gz"
    part = f"{packed}.part"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.stat(packed, dir_fd=folder, follow_symlinks=False)
            return name  # of an earlier capture, which is kept
        descriptor = os.open(part, NEW_FILE, 0o600, dir_fd=folder)
    except OSError:
        return name
    try:
        with os.fdopen(descriptor, "wb") as target, gzip.GzipFile(name, "wb", 5, target) as stream:
            source.seek(0)
            left = os.fstat(source.fileno()).st_size  # no more, even if its owner goes on writing
            if instead is not None:
                block, other = instead
                _copy_part(source, stream, block.start)
                stream.write(other)
                left -= source.seek(block.end)
            _copy_part(source, stream, left)
            hand_over(target.fileno(), owner)
        os.rename(part, packed, src_dir_fd=folder, dst_dir_fd=folder)
        os.unlink(name, dir_fd=folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        if not isinstance(error, OSError):
            raise
        return name
    return packed


def clear_parts(place: CapturePlace, name: str, rank: int) -> list[str]:
    """Remove the partial files of a process that ended within its capture; return their names."""
    start = wire_capture.file_name(name, rank, 0, "")[:-1]
    removed = []
    with contextlib.suppress(OSError), hold_folder(place) as folder:
        for entry in os.listdir(folder):
            if entry.startswith(start) and entry.endswith((".part", ".part.tmp")):
                os.unlink(entry, dir_fd=folder)
                removed.append(admit_text(entry, 255))
    return removed


def verify_trace(
    place: CapturePlace,
    name: str,
    rank: int,
    first_step: int,
    clocks: Known[tuple[GpuClocks, ...]],
    *,
    steps: Mapping[str, Any],
) -> tuple[CapturedFile, TraceSummary | Missing, Known[Conditions]]:
    """Verify a rank's trace (steps, events, kernels), add clocks and steps to its conditions, and pack it."""
    file = wire_capture.file_name(name, rank, first_step, wire_capture.TRACE_ENDING)
    with (
        hold_folder(place) as folder,
        os.fdopen(open_foreign(file, place.owner, MOST_READ, folder=folder), "rb") as source,
    ):
        block = read_block(source)
        conditions = replace(to_conditions(block.told), clocks=clocks) if is_known(block) else block
        summary = read_summary(place.reach(file), source.fileno(), _rank(rank))
        instead = (block, write_beside(block, clocks, steps)) if is_known(block) else None
        here = pack(source, file, folder, place.owner, instead)
        size = os.stat(here, dir_fd=folder, follow_symlinks=False).st_size
    path, told = os.path.join(place.inside, here), count_trace(summary)
    found = CapturedFile(
        path, place.reach(here), _rank(rank), first_step, *told, bytes=size, kind=CaptureKind.TRACE
    )
    return found, summary, conditions


def count_trace(summary: TraceSummary | Missing) -> tuple[Known[int], Known[int], Known[int]]:
    """Return the steps, events and kernels of a trace."""
    if isinstance(summary, Missing):
        return summary, summary, summary
    return summary.steps, summary.events, summary.kernels


def describe_snapshot(place: CapturePlace, name: str, rank: int, first_step: int) -> CapturedFile:
    """Describe the allocator snapshot of one rank, a file for pytorch.org/memory_viz."""
    file = wire_capture.file_name(name, rank, first_step, ".pickle")
    reason = Missing("a snapshot is no trace")
    with hold_folder(place) as folder, os.fdopen(open_foreign(file, place.owner, folder=folder)) as found:
        size = os.fstat(found.fileno()).st_size
    where = (os.path.join(place.inside, file), place.reach(file), _rank(rank), first_step)
    return CapturedFile(*where, *(reason, reason, reason), bytes=size, kind=CaptureKind.SNAPSHOT)


def _rank(rank: int) -> Applicable[int]:
    return rank if rank >= 0 else NOT_APPLICABLE


def _copy_part(source: BinaryIO, target: gzip.GzipFile, size: int) -> None:
    while size > 0 and (data := source.read(min(size, _CHUNK))):
        target.write(data)
        size -= len(data)


NEW_FOLDER = "tpmon-capture-"
"""Folders made where none was asked for begin so."""

_KINETOS = ("probe", "trace")


def write_host() -> str:
    """Return the name of this machine in characters fit for a file name."""
    stem = "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in socket.gethostname())[:60]
    return stem.strip(".-_") or "host"


def name_part(pid: int) -> str:
    """Name the folder that kineto writes into for a process."""
    return f"kineto-{write_host()}-{pid}.part"


def hold(folder: int) -> None:
    """Lock a folder by its descriptor until that is closed, where the file system can."""
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: str) -> list[str]:
    """Remove kineto's leftovers in a folder and, where tpmon named it, its neighbours; return their paths."""
    above, name = os.path.split(folder.rstrip("/"))
    removed = _sweep_one(folder, FOLDER)
    if name.startswith(NEW_FOLDER):
        with contextlib.suppress(OSError):
            for other in sorted(os.listdir(above)):
                if not other.startswith(NEW_FOLDER) or other == name:
                    continue
                if found := _sweep_one(os.path.join(above, other), FOLDER | os.O_NOFOLLOW):
                    removed += found
                    with contextlib.suppress(OSError):
                        os.rmdir(os.path.join(above, other))  # if empty
    return removed


def _sweep_one(folder: str, flags: int) -> list[str]:
    removed = []
    ours = re.compile(rf"kineto-{re.escape(write_host())}-[0-9]+\.part")
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        outer = os.open(folder, flags)
        stack.callback(os.close, outer)
        for name in sorted(filter(ours.fullmatch, os.listdir(outer))):
            with contextlib.suppress(OSError):
                _remove(outer, name)
                removed.append(os.path.join(folder, name))
    return removed


def _remove(outer: int, name: str) -> None:
    """Remove a folder; OSError where somebody may hold it, or other files are in it."""
    inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=outer)
    try:
        if os.geteuid() not in (0, os.fstat(inner).st_uid):
            raise PermissionError(name)
        fcntl.flock(inner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry in os.listdir(inner):
            mode = os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode
            if entry.startswith(_KINETOS) and stat.S_ISREG(mode):
                os.unlink(entry, dir_fd=inner)
        os.rmdir(name, dir_fd=outer)
    finally:
        os.close(inner)
