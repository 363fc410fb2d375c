"""Find who holds a lock on a file that somebody waits for: /proc/locks names the holder and who waits."""

from __future__ import annotations

import contextlib

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.probe.base.procread import PROC, read_file

LOCK_CALLS = frozenset(("flock", "fcntl"))
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileLock:
    """Hold one row of /proc/locks. Rows of one ``number`` are a lock and those that wait for it."""

    number: int
    waits: bool
    pid: int
    inode: int


def parse_locks(raw: bytes) -> tuple[FileLock, ...]:
    """Parse /proc/locks (proc(5)); rows that are cut or name no file are left out. Pure."""
    found = []
    for line in raw.splitlines():
        fields = line.split()
        waits = len(fields) > 1 and fields[1] == b"->"
        if waits:
            del fields[1]
        with contextlib.suppress(ValueError, IndexError):
            number, pid = int(fields[0].rstrip(b":")), int(fields[4])
            found.append(FileLock(number, waits, pid, int(fields[5].rsplit(b":", 1)[1])))
    return tuple(found)


def parse_inode(fdinfo: bytes) -> int | None:
    """Return ``ino`` of /proc/PID/fdinfo/N; None before Linux 5.14. Pure."""
    for line in fdinfo.splitlines():
        if line.startswith(b"ino:"):
            return int(line.split()[1])
    return None


def pick_holders(locks: tuple[FileLock, ...], pid: int, inode: int | None) -> tuple[int, ...]:
    """Return the processes that hold what ``pid`` waits for; of several files that with ``inode``. Pure.

    A holder of another PID namespace, or of an open file description alone, has no PID here.
    """
    waits = {one.number for one in locks if one.waits and one.pid == pid and inode in (None, one.inode)}
    holders = (one.pid for one in locks if not one.waits and one.number in waits and one.pid > 0)
    return tuple(dict.fromkeys(holders))


def find_lock_holders(pid: int, fd: int, proc: str = PROC) -> Known[tuple[int, ...]]:
    """Find the processes that hold the lock that ``pid`` waits for on ``fd``; the file is not touched."""
    try:
        locks = parse_locks(read_file(f"{proc}/locks", _MOST_BYTES))
    except OSError as error:
        return Missing(f"locks: {error.strerror}")
    inode = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = parse_inode(read_file(f"{proc}/{pid}/fdinfo/{fd}", 4096))
    return pick_holders(locks, pid, inode)
