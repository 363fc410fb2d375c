"""Read the kernel's log, where it is permitted, and pick what concerns a training: GPU, memory, storage."""

from __future__ import annotations

import ctypes
import os
import re

from tpmon.model.known import Known, Missing
from tpmon.model.text.redaction import admit_text

_READ_ALL, _SIZE = 3, 10  # syslog(2)
_MOST_BYTES = 4 << 20
MOST_LINES = 400
_LINE_CHARS = 300
_CONCERNS = re.compile(
    r"\bNVRM\b|\bXid\b|nvidia|\bnvswitch|oom|out of memory|killed process|hung_task|blocked for more than"
    r"|segfault|general protection|machine check|hardware error|\bmce\b|\bEDAC\b|\bAER\b|pcie.*error"
    r"|i/o error|nfs: server|lustre|mlx5|infiniband|soft lockup|hard lockup|rcu.*stall|throttl",
    re.IGNORECASE,
)
_LEVEL = re.compile(r"^<\d+>")


def _call(action: int, buffer: int | None, size: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.klogctl.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    answer: int = library.klogctl(action, buffer, size)
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def try_log() -> Known[int]:
    """Ask for the size of the log, in bytes, which the same permission guards as its text."""
    try:
        return _call(_SIZE, None, 0)
    except (OSError, AttributeError) as error:
        return Missing(str(getattr(error, "strerror", "") or error))


def read_log() -> Known[str]:
    """Read the newest part of the log; nothing of it is taken away (syslog(2), SYSLOG_ACTION_READ_ALL)."""
    try:
        size = min(_call(_SIZE, None, 0), _MOST_BYTES)
        buffer = ctypes.create_string_buffer(size)
        length = _call(_READ_ALL, ctypes.addressof(buffer), size)
    except (OSError, AttributeError) as error:
        return Missing(str(getattr(error, "strerror", "") or error))
    return buffer.raw[:length].decode("utf-8", "replace")


def pick_lines(log: str) -> tuple[str, ...]:
    """Return the lines that tell of GPUs, killed processes, hung tasks, storage and broken hardware; pure."""
    lines = [_LEVEL.sub("", line) for line in log.splitlines()]
    found = [line for line in lines if _CONCERNS.search(line)]
    return tuple(admit_text(line, _LINE_CHARS) for line in found[-MOST_LINES:])
