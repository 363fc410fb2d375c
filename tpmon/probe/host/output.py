"""Read the last lines of the job's output, and when it last wrote a file.

Only files are read: reading a pipe or a terminal would take the text from its reader. Behind a pipe those
are read that its reader writes, as ``tee`` does. They are opened through /proc/PID/fd/N, so a renamed,
deleted or bind-mounted log is still the right one. All of this can hang on a dead network mount: call it off
the tick. Of other open files only those on local file systems (by mountinfo) are asked for their time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.model.frozen import dataclass
from tpmon.model.host import FileWrite, LogPace, OutputSample
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.doctor import NOT_PERMITTED, point_to, say_refusal
from tpmon.model.text.redaction import admit_text, hide_lines, name_failure
from tpmon.model.units import clean_text
from tpmon.probe.base.procread import PROC, date_file, list_pids, parse_field, read_file, read_or
from tpmon.probe.base.worker import Background
from tpmon.probe.host.log_pace import LogFollower, LogTail
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


def _read_tail(path: str, owner: Owner, most_bytes: int = TAIL_BYTES) -> tuple[os.stat_result, bytes]:
    """Return what fstat says of a regular file, and its last bytes up to that size."""
    fd = _open(path, owner)
    try:
        found = os.fstat(fd)
        most_bytes = min(most_bytes, found.st_size)
        return found, os.pread(fd, most_bytes, max(0, found.st_size - most_bytes))
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
        found, raw = _read_tail(place, read_owner(sample.pid, proc), MORE_BYTES)
    except OSError as error:
        return Missing(_mark_unread(error, place))
    return parse_tail(raw, found.st_size > len(raw), most, MORE_LENGTH)


@dataclass(frozen=True, slots=True)
class _File:
    """Hold where a log was found and what it contained."""

    path: str
    identity: _Identity
    stamp: _Stamp
    sample: OutputSample
    owner: Owner
    follower: LogFollower


def _read_output(
    pid: int, fd: int, place: str, path: str, found: os.stat_result,
    *, owner: Owner, before: Mapping[_Identity, _File],
) -> _File:  # fmt: skip
    lines: tuple[str, ...] = ()
    size: Known[int]
    identity, now_s = (found.st_dev, found.st_ino), time.time()
    last = before.get(identity)
    follower = LogFollower() if last is None else last.follower
    pace: Known[LogPace]
    try:
        now, raw = _read_tail(place, owner)
        size = now.st_size
        lines = parse_tail(raw, cut=size > len(raw))
        written_s = max(0.0, now_s - now.st_mtime)
        follower.feed(LogTail(size, raw, now.st_mtime, written_s, time.monotonic_ns()))
        pace = follower.tell(pid, fd)
    except OSError as error:
        pace = size = Missing(f"not readable: {_mark_unread(error, place)}")
    except Exception as error:  # noqa: BLE001  # odd text in one log costs no other log
        pace = size = Missing(f"not understood: {name_failure(error)}")
    stamp = _stamp(found.st_mtime, found.st_size, None if last is None else last.stamp, now_s)
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
        pace=pace,
    )
    return _File(path, identity, stamp, sample, owner, follower)


@dataclass(frozen=True, slots=True)
class _Behind:
    """Hold the files and the pipes behind some descriptors, and the first that was refused."""

    files: dict[_Identity, _File]
    pipes: frozenset[_Identity]
    refused: tuple[int, int] | None


def _find_files(
    descriptors: Iterable[tuple[int, int]], proc: str, before: Mapping[_Identity, _File]
) -> _Behind:
    """Read each regular file behind descriptors (PID and number) once."""
    files: dict[_Identity, _File] = {}
    pipes: set[_Identity] = set()
    refused = None
    for pid, fd in descriptors:
        link = f"{proc}/{pid}/fd/{fd}"
        try:
            found = os.stat(link)
            identity = (found.st_dev, found.st_ino)
            if stat.S_ISFIFO(found.st_mode):
                pipes.add(identity)
            elif stat.S_ISREG(found.st_mode) and identity not in files:
                path, owner = os.readlink(link), read_owner(pid, proc)
                file = _read_output(pid, fd, link, path, found, owner=owner, before=before)
                files[file.identity] = file
        except PermissionError:
            refused = refused or (pid, fd)
        except OSError:
            # Closed, or the process ended: then there is no output.
            continue
    return _Behind(files, frozenset(pipes), refused)


def _reads_from(pid: int, proc: str) -> Applicable[_Identity]:
    """Return the pipe that is a process's standard input, if that is one."""
    found = read_or(None, partial(os.stat, f"{proc}/{pid}/fd/0"))
    is_pipe = found is not None and stat.S_ISFIFO(found.st_mode)
    return (found.st_dev, found.st_ino) if found is not None and is_pipe else NOT_APPLICABLE


MOST_HOPS = 3
"""So many programs of a pipeline are followed: ``| grep | ts | tee``."""
SEARCH_EVERY_S = 10.0
"""How often the readers of pipes are looked for, while there is one without."""


class PipeReaders:
    """Keep which processes read from which pipe: to find them, all processes of the machine are asked."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._by_pipe: dict[_Identity, list[int]] = {}
        self._searched_s = -SEARCH_EVERY_S

    def find(self, pipes: frozenset[_Identity]) -> list[int]:
        """Return the processes whose standard input is one of these pipes."""
        now_s = time.monotonic()
        if not all(map(self._list_alive, pipes)) and now_s - self._searched_s >= SEARCH_EVERY_S:
            self._searched_s = now_s
            found: dict[_Identity, list[int]] = {}
            for pid in list_pids(self._proc):
                pipe = _reads_from(pid, self._proc)
                if is_known(pipe):
                    found.setdefault(pipe, []).append(pid)
            self._by_pipe = found  # at once: the readers of several logs share this
        return [pid for pipe in pipes for pid in self._list_alive(pipe)]

    def _list_alive(self, pipe: _Identity) -> list[int]:
        return [pid for pid in self._by_pipe.get(pipe, ()) if _reads_from(pid, self._proc) == pipe]


class OutputReader:
    """Read the logs of a job, also after its end; none stays open, as that keeps a disk full or busy."""

    def __init__(self, proc: str = PROC, readers: PipeReaders | None = None) -> None:
        """Begin with no file; ``readers`` is what several of these share."""
        self._proc = proc
        self._files: list[_File] = []
        self._readers = PipeReaders(proc) if readers is None else readers

    def read(self, pids: Sequence[int]) -> tuple[OutputSample, ...]:
        """Read the regular files behind descriptors 1 and 2 of ``pids``, and behind their pipes, each once.

        Where none has one any more, the last ones are read by path; where another user owns all, one sample
        says so.
        """
        before = {file.identity: file for file in self._files}
        found = _find_files(((pid, fd) for pid in pids for fd in DESCRIPTORS), self._proc, before)
        files, refused, pipes = found.files, found.refused, found.pipes
        for _ in range(MOST_HOPS):
            readers = self._readers.find(pipes) if pipes else []
            written = (
                (pid, fd) for pid in readers for fd in (1, *(fd for fd, _ in list_written(pid, self._proc)))
            )
            behind = _find_files(written, self._proc, before)
            files, pipes = {**behind.files, **files}, behind.pipes
        if refused and not files:
            why = Missing(point_to(NOT_PERMITTED, "fd"))
            return (OutputSample(*refused, "not known", why, why, why, ()),)
        self._files = list(files.values()) or [_read_again(file) for file in self._files]
        return tuple(file.sample for file in self._files)


def _read_again(file: _File) -> _File:
    """Read a log whose writers have ended; unchanged when its path now leads elsewhere."""
    try:
        found = os.stat(file.path)
    except OSError:
        return file  # removed, or the path of another container
    if (found.st_dev, found.st_ino) != file.identity or not stat.S_ISREG(found.st_mode):
        return file
    pid, fd, before = file.sample.pid, file.sample.fd, {file.identity: file}
    return _read_output(pid, fd, file.path, file.path, found, owner=file.owner, before=before)


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
