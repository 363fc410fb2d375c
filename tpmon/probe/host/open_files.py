"""Find when a rank last wrote into a file that it holds open, besides its log: a sign of life of the past.

Only files of local file systems are asked for their time, by the mount that /proc tells: a dead server
is never asked. Called off the tick all the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from tpmon.model.host import FileWrite
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.deadline import Background
from tpmon.probe.base.procread import PROC, read_file
from tpmon.probe.host.output import DESCRIPTORS, PATH_LENGTH
from tpmon.probe.proc.wait_mount import read_mount

MOST_PROCESSES = 8
MOST_DESCRIPTORS = 256
"""Of one process."""
MOST_FILES = 32
EVERY_S = 10.0
LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "overlay", "tmpfs", "ramfs")
)
_WRITES = 0o200
_APPENDS = 0o2000
"""O_APPEND of include/uapi/asm-generic/fcntl.h: the same on x86-64 and arm64."""
_EVENTS = "events.out.tfevents"
"""TensorFlow's writer keeps its file open without O_APPEND. That of the tensorboard package alone opens it
for each write anew: it is not seen here."""
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/run/user/")


def list_written(pid: int, proc: str = PROC) -> Iterator[tuple[int, str]]:
    """Yield descriptor and path of what a process has open for writing; no file is touched."""
    try:
        names = os.listdir(f"{proc}/{pid}/fd")[:MOST_DESCRIPTORS]
    except OSError:
        return  # it ended, or is another user's
    for name in names:
        link = f"{proc}/{pid}/fd/{name}"
        try:
            # The mode of the link is that of the descriptor.
            writes = os.lstat(link).st_mode & _WRITES
            path = os.readlink(link) if writes and int(name) not in DESCRIPTORS else ""
        except (OSError, ValueError):
            continue  # closed since it was listed
        if path.startswith("/") and not path.startswith(_NO_FILES):
            yield int(name), path


def parse_appends(fdinfo: bytes) -> bool:
    """Tell from /proc/PID/fdinfo/FD whether a descriptor was opened for appending (proc_pid_fdinfo(5)).

    Raises:
        ValueError: when it has no flags.
    """
    for line in fdinfo.splitlines():
        if line.startswith(b"flags:"):
            return bool(int(line[6:], 8) & _APPENDS)
    raise ValueError("no flags")


def is_journal(pid: int, fd: int, path: str, proc: str = PROC) -> bool:
    """Tell whether a file is written piece by piece all through a run, as a log is."""
    if os.path.basename(path).startswith(_EVENTS):
        return True
    try:
        return parse_appends(read_file(f"{proc}/{pid}/fdinfo/{fd}", 4096))
    except (OSError, ValueError):
        return False  # closed since it was listed


def read_newest_write(pids: Sequence[int], proc: str = PROC) -> Applicable[FileWrite]:
    """Read which open file was written last; not applicable where none of a local file system is."""
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
            try:
                found = os.stat(f"{proc}/{pid}/fd/{fd}")
                written = datetime.fromtimestamp(found.st_mtime).astimezone()
            except (OSError, OverflowError, ValueError):
                continue
            if not stat.S_ISREG(found.st_mode):
                continue
            # An empty one may be meant for errors that never came.
            journal = journal or (found.st_size > 0 and is_journal(pid, fd, path, proc))
            if not is_known(newest) or written > newest.last_write:
                newest = FileWrite(pid, admit_text(path, PATH_LENGTH), written)
    return replace(newest, journal=journal) if is_known(newest) else newest


def watch_writes(pids: Callable[[], Sequence[int]]) -> Background[Applicable[FileWrite]]:
    """Look now and then which open file was written last."""
    return Background[Applicable[FileWrite]]("open files", lambda: read_newest_write(pids()), EVERY_S)
