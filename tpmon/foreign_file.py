"""Open a file that the owner of another process named, or may put something else in the place of.

A name is looked up once: what it leads to is held (O_PATH, by which nothing happens to it), judged, and
opened through that hold. So no link, FIFO or device is met that was put there after the judgement, and root
reads and writes for a user nothing that is not the user's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from tpmon.model.frozen import dataclass

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Owner:
    """Hold whose a process is."""

    uid: int
    gid: int


def own() -> Owner:
    """Return whose this process is."""
    return Owner(os.geteuid(), os.getegid())


def read_owner(pid: int, proc: str = "/proc") -> Owner:
    """Read the user and group that a process acts as: as /proc/PID itself, also of an undumpable one."""
    found = os.stat(f"{proc}/{pid}")
    return Owner(found.st_uid, found.st_gid)


def open_foreign(
    path: str,
    owner: Owner,
    most_bytes: int | None = None,
    *,
    flags: int = os.O_RDONLY,
    folder: int | None = None,
    follows: bool = False,
    is_kind: Callable[[int], bool] = stat.S_ISREG,
) -> int:
    """Open a file of ``owner``, or one for everybody to read, in an open ``folder``; return its descriptor.

    ``follows`` is for the kernel's own links in /proc/PID/fd alone.

    Raises:
        OSError: when it is of another kind, somebody else's, or larger than ``most_bytes``.
    """
    held = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW), dir_fd=folder)
    try:
        found = os.fstat(held)
        if not is_kind(found.st_mode):
            raise OSError(errno.EINVAL, "no plain file, or a link", path)
        reads = flags & os.O_ACCMODE == os.O_RDONLY
        theirs = found.st_uid == owner.uid or (reads and _is_public(found))
        if os.geteuid() != owner.uid and not theirs:
            raise PermissionError(errno.EACCES, "not a file of the user of that process", path)
        if most_bytes is not None and found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", path)
        return os.open(f"/proc/self/fd/{held}", flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(held)


def hand_over(descriptor: int, owner: Owner) -> None:
    """Give what this process made to the user that it was made for."""
    if os.geteuid() != owner.uid:
        os.fchown(descriptor, owner.uid, owner.gid)


def _is_public(found: os.stat_result) -> bool:
    """Tell whether a plain file may be read by everybody, or a folder is one like /tmp."""
    kind = stat.S_IFMT(found.st_mode)
    return bool(found.st_mode & {stat.S_IFREG: stat.S_IROTH, stat.S_IFDIR: stat.S_ISVTX}.get(kind, 0))
