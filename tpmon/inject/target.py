"""Judge by /proc whether a process may be written into at all, before its memory is looked at."""

from __future__ import annotations

import os

from tpmon.foreign_file import Owner, read_owner
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.probe.base.procread import PROC, parse_field, read_file, read_stat, read_status, read_text
from tpmon.probe.host.limits import parse_limit
from tpmon.probe.proc.suspended import read_freezer

NO_LATE_HOOK = b"TPMON_NO_LATE_HOOK=1"
"""In a job's environment it forbids all of this."""

_MOST_BYTES = 64 << 20

_DESCRIPTORS = 32
"""So many more files must fit under the limit: the hook holds up to four, a capture some for a moment, and
the program's next ones must not fail for them."""


def check_target(process: Identity, proc: str = PROC) -> Owner:
    """Return whose a process is; RefusedError for one that may not, or cannot, be asked."""
    pid = process.pid
    try:
        stat = read_stat(pid, proc)
        status = read_status(pid, proc)
        owner = read_owner(pid, proc)
        tracer = parse_field(read_file(f"{proc}/{pid}/status"), b"TracerPid")
    except (OSError, ValueError) as error:
        raise RefusedError(RefusalReason.GONE) from error
    if stat.start_ticks != process.start_ticks or stat.state in "ZX":
        raise RefusedError(RefusalReason.GONE)
    if os.geteuid() not in (0, status.uid):
        raise RefusedError(RefusalReason.OTHER_USER, f"uid {status.uid}")
    try:
        environment = read_file(f"{proc}/{pid}/environ", _MOST_BYTES).split(b"\0")
    except PermissionError as error:
        raise RefusedError(RefusalReason.NOT_PERMITTED, "its environment") from error
    except OSError as error:
        raise RefusedError(RefusalReason.GONE) from error
    if NO_LATE_HOOK in environment:
        raise RefusedError(RefusalReason.TURNED_OFF)
    if stat.state == "t" or tracer.strip() not in (b"0", b""):
        raise RefusedError(RefusalReason.TRACED, f"pid {tracer.decode().strip()}")
    if is_known(freezer := read_freezer(pid, proc)):
        raise RefusedError(RefusalReason.FROZEN, freezer.group)
    if stat.state == "T":
        raise RefusedError(RefusalReason.STOPPED)
    return owner


def check_descriptors(pid: int, proc: str = PROC) -> None:
    """Refuse a process near its limit of open files: RefusedError."""
    try:
        most = parse_limit(read_text(f"{proc}/{pid}/limits"), "Max open files")
        held = len(os.listdir(f"{proc}/{pid}/fd"))
    except OSError as error:
        raise RefusedError(RefusalReason.GONE) from error
    if most - held < _DESCRIPTORS:
        raise RefusedError(RefusalReason.DESCRIPTORS, f"{held} of {most} are open")
