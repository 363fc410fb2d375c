"""Say that the Python of a process was deleted or replaced while it runs, and how to read it all the same.

py-spy opens the file that /proc/PID/maps names, among the job's own mounts; of a deleted one the kernel names
"PATH (deleted)". What is still mapped can be copied back to that very name, in the job's root folder.
"""

from __future__ import annotations

import re
import shlex

from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import PROC, read_file

_DELETED = " (deleted)"
_PYTHON = re.compile(r"/(?:libpython3[\d.]*t?\.so[\d.]*|python[\d.]*t?) \(deleted\)$")
_MOST_MAPS_BYTES = 8 << 20
_REASON_CHARS = 400


def parse_deleted(maps: bytes) -> tuple[str, str] | None:
    """Return name and first range of a deleted Python in /proc/PID/maps, the library before the program.

    None where there is none. Pure.
    """
    found = None
    for line in maps.decode("utf-8", "replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and _PYTHON.search(fields[5]):
            begin, _, end = fields[0].partition("-")
            # The names in map_files have no leading zeros.
            found = found or (fields[5], f"{int(begin, 16):x}-{int(end, 16):x}")
            if "/libpython" in fields[5]:
                # Where there is a library, the program is a stub, and py-spy can do without.
                return fields[5], f"{int(begin, 16):x}-{int(end, 16):x}"
    return found


def explain_deleted(pid: int, proc: str = PROC) -> str:
    """Say that the Python of a process is not there any more; "" where it is, or nothing can be told."""
    try:
        found = parse_deleted(read_file(f"{proc}/{pid}/maps", _MOST_MAPS_BYTES))
    except (OSError, ValueError):
        return ""
    if found is None:
        return ""
    name, span = found
    copy = f"cp --remove-destination {proc}/{pid}/map_files/{span} {shlex.quote(f'{proc}/{pid}/root{name}')}"
    gone = f"{name.removesuffix(_DELETED)} was deleted or replaced while it runs"
    whole = f"{gone}; as root: {copy}"
    # A command that is cut, or has other characters than the name, would do something else.
    return whole if admit_text(whole, _REASON_CHARS) == whole else admit_text(gone, _REASON_CHARS)
