"""Take away what a tpmon that was killed left of a capture by kineto: the folder that it was to write into.

A tpmon holds a lock on its folder, which the kernel gives back with the process, whatever ends it. What
goes is a folder of this machine and user, named so, whose lock is free; and of what is in it kineto's files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat

NEW_FOLDER = "tpmon-capture-"
"""So begins the name of a folder that is made where none was asked for."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINETOS = ("probe", "trace")


def write_host() -> str:
    """Return the name of this machine as it may stand in a file's."""
    stem = "".join(sign if sign.isalnum() or sign in "._-" else "-" for sign in socket.gethostname())[:60]
    return stem.strip(".-_") or "host"


def name_part(pid: int) -> str:
    """Name the folder that kineto writes into, for the process that it records."""
    return f"kineto-{write_host()}-{pid}.part"


def hold(folder: int) -> None:
    """Mark a folder, by its descriptor, as in use until that is closed, where the file system can."""
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: str) -> list[str]:
    """Remove what was left in a folder, and where it is a new one in its neighbours; return what went."""
    above, name = os.path.split(folder.rstrip("/"))
    removed = _sweep_one(folder, _FOLDER)
    if name.startswith(NEW_FOLDER):
        with contextlib.suppress(OSError):
            for other in sorted(os.listdir(above)):
                if not other.startswith(NEW_FOLDER) or other == name:
                    continue
                if found := _sweep_one(os.path.join(above, other), _FOLDER | os.O_NOFOLLOW):
                    removed += found
                    with contextlib.suppress(OSError):
                        os.rmdir(os.path.join(above, other))  # where nothing else is in it
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
    """Remove one folder that nobody holds.

    Raises:
        OSError: where somebody does, where that cannot be told, or where something else is in it.
    """
    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
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
