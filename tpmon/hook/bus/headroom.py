"""Read how much a capture may take without hurting the run: memory up to the nearest limit, and disk."""

from __future__ import annotations

import os

_FILE_SIGNAL = 25
"""SIGXFSZ: ends a program that neither ignores nor handles it. Python ignores it."""

_CGROUP = "/sys/fs/cgroup"
_UNLIMITED = 1 << 62


def read_memory_left(proc: str = "/proc", cgroup: str = _CGROUP) -> int:
    """Return how many bytes this process may still take, by the machine and by each cgroup above it."""
    lines = _read(f"{proc}/meminfo").splitlines()
    left = next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:")), 0)
    for folder, limit, used, prefix in _list_groups(proc, cgroup):
        most = _read_number(os.path.join(folder, limit))
        taken = _read_number(os.path.join(folder, used))
        if 0 <= most < _UNLIMITED and taken >= 0:
            # The kernel drops file pages before it kills; a data set that is read repeatedly fills a group.
            left = min(left, most - taken + _read_cache(folder, prefix))
    return max(left, 0)


def read_disk_left(folder: str) -> int:
    """Return how many bytes this user can still write below a folder; OSError where it is not there."""
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize


def read_file_limit() -> int:
    """Return how many bytes a file of this process may have, memfds included (RLIMIT_FSIZE)."""
    import resource  # noqa: PLC0415

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return _UNLIMITED if most == resource.RLIM_INFINITY else most


def ends_at_limit(proc: str = "/proc") -> bool:
    """Tell whether the kernel ends this process when a file passes that limit; True where unknown."""
    return not is_set(_FILE_SIGNAL, b"SigIgn:", b"SigCgt:", unknown=False, proc=proc)


def is_set(number: int, *masks: bytes, unknown: bool, proc: str = "/proc") -> bool:
    """Tell whether a signal is in one of the masks of this process; ``unknown`` where they cannot be read."""
    lines = _read(f"{proc}/self/status").splitlines()
    found = [int(line.split()[1], 16) for line in lines if line.startswith(masks)]
    return any(mask >> (number - 1) & 1 for mask in found) if found else unknown


def read_resident(proc: str = "/proc") -> int:
    """Return the resident bytes of this process, 0 when they cannot be read."""
    words = _read(f"{proc}/self/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _list_groups(proc: str, cgroup: str) -> list[tuple[str, str, str, str]]:
    """List each cgroup that bounds the memory, nearest first: folder, limit, usage, prefix in memory.stat."""
    groups = []
    for line in _read(f"{proc}/self/cgroup").decode("utf-8", "replace").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "?", "")
        if controllers == "":
            root, names = cgroup, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            root = f"{cgroup}/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        above = [os.path.join(root, *parts[:depth]) for depth in range(len(parts), -1, -1)]
        groups += [(folder, *names) for folder in above]
    return groups


def _read_number(path: str) -> int:
    """Return the number in a file, -1 where there is none (no limit, or no such cgroup)."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else -1


def _read_cache(folder: str, prefix: str) -> int:
    """Return the bytes of a cgroup's file pages, without /dev/shm; 0 when unreadable."""
    wanted = (f"{prefix}inactive_file".encode(), f"{prefix}active_file".encode())
    pairs = [line.split() for line in _read(f"{folder}/memory.stat").splitlines()]
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in wanted and pair[1].isdigit())
