"""The recordings of this user: listed, ended, moved elsewhere."""

from __future__ import annotations

import glob
import os
import select
import signal
import sqlite3
from collections.abc import Iterator

from tpmon.errors import NoTargetError, UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable
from tpmon.model.results.recording import Subject
from tpmon.record.recording import Recording
from tpmon.record.schema import FLEET, SUFFIX, create_file, naming, refuse_file

STOP_S = 10.0
"""A recorder that was asked to end writes what waits and closes its file in less."""


@dataclass(frozen=True, slots=True)
class Shelved:
    """Hold one recording: what it is of, how far it goes (UNIX ns), its size, and who writes it."""

    path: str
    subject: Subject
    from_ns: int
    to_ns: int
    frames: int
    size_bytes: int
    writer: Applicable[int]


def read_shelved(path: str) -> Shelved:
    """Read what a recording is; UsageError for what is none."""
    with Recording(path) as recording:
        writer = recording.read_writer() if recording.is_live() else NOT_APPLICABLE
        size = sum(os.path.getsize(one) for one in (path, f"{path}-wal") if os.path.exists(one))
        first, last = recording.first, recording.last
        return Shelved(
            path, recording.subject, first.wall_ns, last.wall_ns, recording.count_frames(), size, writer
        )


def list_recordings(folder: str) -> Iterator[Shelved | UsageError]:
    """Yield the recordings of a folder, oldest first, and the errors for those that cannot be read."""
    own = glob.escape(folder)
    paths = [path for at in ("*", f"{FLEET}*/*") for path in glob.glob(f"{own}/{at}{SUFFIX}")]
    for path in sorted(paths, key=lambda one: os.lstat(one).st_mtime):
        try:
            yield read_shelved(path)
        except UsageError as error:
            yield error


def stop_recorder(wanted: str, folder: str) -> Shelved:
    """Ask the tpmon that writes a recording to end, by its PID or by the file, and wait until it has.

    Raises:
        NoTargetError: where no tpmon of this user writes it.
        UsageError: for what is no recording, and for a recorder that does not end.
    """
    found = list_recordings(folder) if wanted.isdecimal() else iter((read_shelved(wanted),))
    for one in found:
        if isinstance(one, Shelved) and (not wanted.isdecimal() or one.writer == int(wanted)):
            _end_writer(one)
            return one
    raise NoTargetError(f"no recording in {folder} is written by {wanted}", "tpmon record --list")


def _end_writer(one: Shelved) -> None:
    writer = one.writer
    if not isinstance(writer, int):
        raise NoTargetError(f"{one.path} is not being recorded", f"tpmon replay {one.path}")
    try:
        descriptor = os.pidfd_open(writer)
    except OSError as error:
        raise NoTargetError(f"its recorder {writer}: {error.strerror}", f"tpmon replay {one.path}") from error
    try:
        # The hold is taken first: what has the file open is then the process that is sent the signal.
        if not _has_open(writer, one.path):
            raise NoTargetError(f"process {writer} does not write {one.path}", f"tpmon replay {one.path}")
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(STOP_S * 1000):
            raise UsageError(f"process {writer} did not end within {STOP_S:g} s", "again, or kill it")
    finally:
        os.close(descriptor)


def _has_open(pid: int, path: str) -> bool:
    wanted = os.stat(path)
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            found = os.stat(os.path.join(folder, name))
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:
        return False  # of another user, or gone
    return False


def move_recording(path: str, to: str) -> int:
    """Write a recording as one compact file elsewhere, remove it here, and return the bytes of the new one.

    Raises:
        UsageError: while it is written, where something is in the way, and where the copy fails.
    """
    with Recording(path) as recording:
        if recording.is_live():
            raise refuse_file(path, "is being recorded", f"tpmon record --stop {path}")
    os.close(create_file(to))
    try:
        with naming(to):
            base = sqlite3.connect(path)
            try:
                base.execute("VACUUM INTO ?", (to,))
            finally:
                base.close()
    except BaseException:
        os.unlink(to)
        raise
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name):
            os.unlink(name)
    return os.path.getsize(to)
