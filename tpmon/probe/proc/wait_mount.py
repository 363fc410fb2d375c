"""Find the mount that a file is on, by its descriptor or its path. None of it touches the file itself."""

from __future__ import annotations

import re

from tpmon.model.known import Applicable, Missing
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import read_file
from tpmon.probe.proc.syscall import PATH_CHARS


def parse_mount_id(fdinfo: bytes) -> int | None:
    """Return mnt_id of /proc/PID/fdinfo/N; None where the kernel does not tell. Pure."""
    for line in fdinfo.splitlines():
        if line.startswith(b"mnt_id:"):
            return int(line.split()[1])
    return None


def parse_mount(mountinfo: bytes, mount_id: int) -> tuple[str, str] | None:
    """Return mount point and file system of a mount of /proc/PID/mountinfo (proc(5)). Pure."""
    wanted = b"%d" % mount_id
    for line in mountinfo.splitlines():
        fields = line.split(b" ")
        if fields[0] == wanted and len(fields) > 6 and b"-" in fields[6:]:
            kind = fields[6:].index(b"-") + 7
            if len(fields) > kind:
                return _unescape(fields[4]), _unescape(fields[kind])
    return None


def parse_mount_of(mountinfo: bytes, path: str) -> tuple[str, str] | None:
    """Return mount point and file system of an absolute path; of several mounts the last one. Pure."""
    found: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        mount = parse_mount(line, int(line.split(b" ", 1)[0]))
        if mount is None or (found and len(mount[0]) < len(found[0])):
            continue
        folder = mount[0].rstrip("/")
        if path == mount[0] or path.startswith(f"{folder}/"):
            found = mount
    return found


def _unescape(raw: bytes) -> str:
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8) & 0xFF,)), raw)
    return admit_text(plain.decode("utf-8", "replace"), PATH_CHARS)


def read_mount(pid: int, fd: int, proc: str) -> tuple[Applicable[str], Applicable[str]]:
    """Read mount point and file system of an open file."""
    try:
        mount_id = parse_mount_id(read_file(f"{proc}/{pid}/fdinfo/{fd}", 4096))
        mounts = read_file(f"{proc}/{pid}/mountinfo")
    except (OSError, ValueError, IndexError) as error:
        why = Missing(f"mounts: {error}")
        return why, why
    found = parse_mount(mounts, mount_id) if mount_id is not None else None
    if found is None:
        why = Missing("the kernel does not tell the mount of a descriptor")
        return why, why
    return found
