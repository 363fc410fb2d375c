"""Find the file of a process's Python that may not be opened, although its memory may be read.

py-spy opens the program and its library to find the interpreter in them. A FUSE mount without allow_root,
or a home of NFS with root_squash, refuses them to root: the same errno as a process that may not be traced.
"""

from __future__ import annotations

import os
import re

from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import PROC, read_file

_PYTHON = re.compile(r"/(?:libpython3[\d.]*t?\.so[\d.]*|python[\d.]*t?)$")
_MOST_MAPS_BYTES = 8 << 20
_PATH_CHARS = 200


def parse_pythons(maps: bytes) -> tuple[str, ...]:
    """Return the paths of the Python program and library in /proc/PID/maps. Pure."""
    fields = (line.split(None, 5) for line in maps.decode("utf-8", "replace").splitlines())
    return tuple(dict.fromkeys(row[5] for row in fields if len(row) == 6 and _PYTHON.search(row[5])))


def find_unreadable(pid: int, proc: str = PROC) -> str:
    """Return the path of a process's Python that tpmon may not open, "" where there is none."""
    try:
        found = parse_pythons(read_file(f"{proc}/{pid}/maps", _MOST_MAPS_BYTES))
    except OSError:
        return ""
    refused = (path for path in found if _is_refused(f"{proc}/{pid}/root{path}"))
    return admit_text(next(refused, ""), _PATH_CHARS)


def _is_refused(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False  # deleted, or gone with its process
    return False
