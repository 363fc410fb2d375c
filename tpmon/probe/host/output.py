"""Read the last lines of the job's output, and when it last wrote a file.

Only files are read: reading a pipe or a terminal would take the text from its reader. They are opened through
/proc/PID/fd/N, so a renamed, deleted or bind-mounted log is still the right one. All of this can hang on a
dead network mount: call it off the tick. Of other open files only those on local file systems (by mountinfo)
are asked for their time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.model.host import FileWrite, OutputSample
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.doctor import NOT_PERMITTED, point_to, say_refusal
from tpmon.model.text.redaction import admit_text, hide_lines, name_failure
from tpmon.model.units import clean_text
from tpmon.probe.base.procread import PROC, date_file, parse_field, read_file, read_or
from tpmon.probe.base.worker import Background
from tpmon.probe.proc.wait_object import read_mount

TAIL_BYTES = 4096
MORE_BYTES = 128 << 10  # for a bundle; the tail above is read every second
LINES = 3
_FOLLOWED_LINES = 24  # so far above a shown line the text may begin that makes a secret of it
LINE_LENGTH = 200
MORE_LENGTH = 1000
PATH_LENGTH = 300
DESCRIPTORS = (1, 2)

CLOCK_SKEW_S = 5.0  # a file server's clock further ahead of ours makes ages meaningless

_Identity = tuple[int, int]  # device and inode
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"
)


def parse_tail(raw: bytes, cut: bool, most: int = LINES, length: int = LINE_LENGTH) -> tuple[str, ...]:
    """Return the last ``most`` lines of ``raw`` as a terminal would show them, cleaned and redacted.

    Of a progress bar only what follows the last carriage return counts. ``cut``: ``raw`` begins within a
    line; that half is left out, or its first half word where there is no other line.
    """
    lines = raw.decode("utf-8", "replace").split("\n")
    if cut and len(lines) > 1:
        del lines[0]
        cut = False
    texts: list[str] = []
    for line in lines:
        parts = [part for part in _ESCAPES.sub("", line).replace("\b", "").split("\r") if part.strip()]
        text = parts[-1].rstrip() if parts else ""
        if cut and len(parts) == 1:
            # A broken word could be part of a secret that no pattern matches.
            text = text.strip().partition(" ")[2]
        texts.append(text)
    shown = [text.strip() for text in hide_lines(texts, max(most, _FOLLOWED_LINES))]
    wanted = [text for text in shown if any(map(str.isalnum, text))]  # no rulers of ==== or ****
    return tuple(clean_text(text, length) for text in wanted[-most:])


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Hold time (epoch seconds) and size of a file's last write, as of the last look.

    ``ahead_s`` is the most that its server's clock was ahead of ours. If it was, ``written_s`` is by our
    clock when a look found the write, or None before that.
    """

    modified_s: float
    ahead_s: float
    written_s: float | None
    size: int
    cut_s: float = 0.0  # its own time when it was last cut; 0: never


def _stamp(modified_s: float, size: int, before: _Stamp | None, now_s: float) -> _Stamp:
    """Date the last write of a file; ``before`` is the previous result."""
    if before is not None and modified_s > before.modified_s:
        # Log rotation cut it: the job did not write. A file that is written at several places need not grow.
        if size < before.size or modified_s == before.cut_s:
            return replace(before, size=size, cut_s=modified_s)
    elif before is not None:
        size = min(size, before.size)  # the time of what has grown is still to come
    ahead_s = max(modified_s - now_s, before.ahead_s if before is not None else 0.0)
    if ahead_s <= CLOCK_SKEW_S:
        return _Stamp(modified_s, 0.0, modified_s, size)
    if before is None:
        return _Stamp(modified_s, ahead_s, None, size)
    if before.modified_s != modified_s:
        return _Stamp(modified_s, ahead_s, now_s, size)
    return _Stamp(modified_s, ahead_s, before.written_s if before.ahead_s else None, size)


def _open(path: str, owner: Owner) -> int:
    """Open a log; who holds a descriptor cannot always read its file (O_PATH of open(2))."""
    try:
        # Only the owner may leave the access time as it is.
        return open_foreign(path, owner, flags=os.O_NOATIME, follows=True)
    except PermissionError:
        if _was_opened(path):  # by whoever started the job: it writes into that file, whoever owns it
            owner = replace(owner, uid=os.stat(path).st_uid)
        return open_foreign(path, owner, follows=True)


def _was_opened(path: str) -> bool:
    """Tell whether a descriptor in /proc was opened, and is not just a name (O_PATH)."""
    process, _, number = path.rpartition("/fd/")
    return read_or(False, lambda: not read_flags(f"{process}/fdinfo/{number}") & os.O_PATH)


def _read_tail(path: str, owner: Owner, most_bytes: int = TAIL_BYTES) -> tuple[int, bytes]:
    """Return the size of a regular file and its last bytes."""
    fd = _open(path, owner)
    try:
        found = os.fstat(fd)
        return found.st_size, os.pread(fd, most_bytes, max(0, found.st_size - most_bytes))
    finally:
        os.close(fd)


def _mark_unread(error: OSError, place: str) -> str:
    """Say why a log was not read; if its descriptor can be seen, the file itself refuses."""
    if isinstance(error, PermissionError):
        with contextlib.suppress(OSError):
            os.stat(place)
            return "the file itself does not permit it"
    return say_refusal(error, "fd")


def read_more(sample: OutputSample, most: int, proc: str = "/proc") -> Known[tuple[str, ...]]:
    """Return up to ``most`` last lines of a log that was found, cleaned and redacted."""
    place = f"{proc}/{sample.pid}/fd/{sample.fd}"
    try:
        size, raw = _read_tail(place, read_owner(sample.pid, proc), MORE_BYTES)
    except OSError as error:
        return Missing(_mark_unread(error, place))
    return parse_tail(raw, size > len(raw), most, MORE_LENGTH)


@dataclass(frozen=True, slots=True)
class _File:
    """Hold where a log was found and what it contained."""

    path: str
    identity: _Identity
    stamp: _Stamp
    sample: OutputSample
    owner: Owner


def _read_output(
    pid: int, fd: int, place: str, path: str, found: os.stat_result,
    *, owner: Owner, stamps: Mapping[_Identity, _Stamp],
) -> _File:  # fmt: skip
    lines: tuple[str, ...] = ()
    size: Known[int] = found.st_size
    try:
        size, raw = _read_tail(place, owner)
        lines = parse_tail(raw, cut=size > len(raw))
    except OSError as error:
        size = Missing(f"not readable: {_mark_unread(error, place)}")
    except Exception as error:  # noqa: BLE001  # odd text in one log costs no other log
        size = Missing(f"not understood: {name_failure(error)}")
    identity, now_s = (found.st_dev, found.st_ino), time.time()
    stamp = _stamp(found.st_mtime, found.st_size, stamps.get(identity), now_s)
    age_s: Known[float]
    if stamp.written_s is None:
        dated_s, age_s = found.st_mtime, Missing(f"the file's clock is {stamp.ahead_s:.0f} s ahead of ours")
    else:
        dated_s, age_s = stamp.written_s, max(0.0, now_s - stamp.written_s)
    sample = OutputSample(
        pid=pid,
        fd=fd,
        path=admit_text(path, PATH_LENGTH),
        size_bytes=size,
        last_write=date_file(dated_s),
        last_write_age_s=age_s,
        lines=lines,
    )
    return _File(path, identity, stamp, sample, owner)


def _find_files(
    pids: Sequence[int], proc: str, stamps: Mapping[_Identity, _Stamp]
) -> tuple[list[_File], tuple[int, int] | None]:
    """Read each regular file once; also return the first descriptor that was refused."""
    files: dict[_Identity, _File] = {}
    refused = None
    for pid in pids:
        for fd in DESCRIPTORS:
            link = f"{proc}/{pid}/fd/{fd}"
            try:
                found = os.stat(link)
                if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) not in files:
                    path, owner = os.readlink(link), read_owner(pid, proc)
                    file = _read_output(pid, fd, link, path, found, owner=owner, stamps=stamps)
                    files[file.identity] = file
            except PermissionError:
                refused = refused or (pid, fd)
            except OSError:
                # Closed, or the process ended: then there is no output.
                continue
    return list(files.values()), refused


class OutputReader:
    """Read the logs of a job, also after its end; none stays open, as that keeps a disk full or busy."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._files: list[_File] = []

    def read(self, pids: Sequence[int]) -> tuple[OutputSample, ...]:
        """Read the regular files behind descriptors 1 and 2 of ``pids``, each once.

        Where none has one any more, the last ones are read by path; where another user owns all, one sample
        says so.
        """
        stamps = {file.identity: file.stamp for file in self._files}
        files, refused = _find_files(pids, self._proc, stamps)
        if refused and not files:
            why = Missing(point_to(NOT_PERMITTED, "fd"))
            return (OutputSample(*refused, "not known", why, why, why, ()),)
        self._files = files or [_read_again(file) for file in self._files]
        return tuple(file.sample for file in self._files)


def _read_again(file: _File) -> _File:
    """Read a log whose writers have ended; unchanged when its path now leads elsewhere."""
    try:
        found = os.stat(file.path)
    except OSError:
        return file  # removed, or the path of another container
    if (found.st_dev, found.st_ino) != file.identity or not stat.S_ISREG(found.st_mode):
        return file
    stamps = {file.identity: file.stamp}
    pid, fd = file.sample.pid, file.sample.fd
    return _read_output(pid, fd, file.path, file.path, found, owner=file.owner, stamps=stamps)


MOST_PROCESSES = 8
MOST_DESCRIPTORS = 256  # of one process
MOST_FILES = 32
EVERY_S = 10.0
LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "overlay", "tmpfs", "ramfs")
)
_WRITES = 0o200
_APPENDS = 0o2000  # O_APPEND of include/uapi/asm-generic/fcntl.h: the same on x86-64 and arm64
_EVENTS = "events.out.tfevents"
"""TensorFlow's writer keeps its file open without O_APPEND; that of tensorboard opens it for each write,
so it is not seen here."""
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/run/user/")


def list_written(pid: int, proc: str = PROC) -> Iterator[tuple[int, str]]:
    """Yield descriptor and path of each file that a process has open for writing; no file is touched."""
    try:
        names = os.listdir(f"{proc}/{pid}/fd")[:MOST_DESCRIPTORS]
    except OSError:
        return  # it ended, or is another user's
    for name in names:
        link = f"{proc}/{pid}/fd/{name}"
        try:
            # The link's mode is the descriptor's.
            writes = os.lstat(link).st_mode & _WRITES
            path = os.readlink(link) if writes and int(name) not in DESCRIPTORS else ""
        except (OSError, ValueError):
            continue  # closed meanwhile
        if path.startswith("/") and not path.startswith(_NO_FILES):
            yield int(name), path


def read_flags(fdinfo: str) -> int:
    """Read the flags with which a descriptor was opened (proc_pid_fdinfo(5)); ValueError without them."""
    return int(parse_field(read_file(fdinfo, 4096), b"flags"), 8)


def is_journal(pid: int, fd: int, path: str, proc: str = PROC) -> bool:
    """Tell whether a file is written in pieces all through a run, as a log is."""
    if os.path.basename(path).startswith(_EVENTS):
        return True
    return read_or(False, lambda: bool(read_flags(f"{proc}/{pid}/fdinfo/{fd}") & _APPENDS))


def read_newest_write(pids: Sequence[int], proc: str = PROC) -> Applicable[FileWrite]:
    """Read which open file was written last; not applicable where none is on a local file system."""
    newest: Applicable[FileWrite] = NOT_APPLICABLE
    journal = False
    seen: set[str] = set()
    for pid in pids[:MOST_PROCESSES]:
        for fd, path in list_written(pid, proc):
            if path in seen or len(seen) >= MOST_FILES:
                continue
            seen.add(path)
            _, system = read_mount(pid, fd, proc)
            if not is_known(system) or system not in LOCAL:
                continue
            found = read_or(None, partial(os.stat, f"{proc}/{pid}/fd/{fd}"))
            written = date_file(found.st_mtime) if found and stat.S_ISREG(found.st_mode) else None
            if not found or not isinstance(written, datetime):
                continue
            # An empty one may be for errors that never came.
            journal = journal or (found.st_size > 0 and is_journal(pid, fd, path, proc))
            if not is_known(newest) or written > newest.last_write:
                newest = FileWrite(pid, admit_text(path, PATH_LENGTH), written)
    return replace(newest, journal=journal) if is_known(newest) else newest


def watch_writes(pids: Callable[[], Sequence[int]]) -> Background[Applicable[FileWrite]]:
    """Check every ``EVERY_S`` which open file was written last."""
    return Background[Applicable[FileWrite]]("open files", lambda: read_newest_write(pids()), EVERY_S)
