"""Read what is left before a capture could hurt the run: memory up to the nearest limit, and free disk."""

from __future__ import annotations

import os

_FILE_SIGNAL = 25
"""SIGXFSZ: ends a program that neither ignores nor handles it. Python ignores it."""

_CGROUP = "/sys/fs/cgroup"
_UNLIMITED = 1 << 62


def read_memory_left(proc: str = "/proc", cgroup: str = _CGROUP) -> int:
    """Return how many bytes this process may still take: of the machine, and of each cgroup above it."""
    left = _read_available(proc)
    for folder, limit, used, prefix in _list_groups(proc, cgroup):
        most = _read_number(os.path.join(folder, limit))
        taken = _read_number(os.path.join(folder, used))
        if 0 <= most < _UNLIMITED and taken >= 0:
            # File pages go before anybody is killed; a data set that is read again and again fills a group.
            left = min(left, most - taken + _read_cache(folder, prefix))
    return max(left, 0)


def read_disk_left(folder: str) -> int:
    """Return how many bytes this user can still write below a folder.

    Raises:
        OSError: when the folder is not there.
    """
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize


def read_file_limit() -> int:
    """Return how many bytes a file of this process may have (RLIMIT_FSIZE), of memory too."""
    import resource  # noqa: PLC0415

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return _UNLIMITED if most == resource.RLIM_INFINITY else most


def ends_at_limit(proc: str = "/proc") -> bool:
    """Tell whether the kernel ends this process where a file would pass that limit; True where unknown."""
    return not is_set(_FILE_SIGNAL, b"SigIgn:", b"SigCgt:", unknown=False, proc=proc)


def is_set(number: int, *masks: bytes, unknown: bool, proc: str = "/proc") -> bool:
    """Tell whether a signal is in one of the masks of this process; ``unknown`` where they cannot be read."""
    try:
        with open(f"{proc}/self/status", "rb") as file:
            found = [int(line.split()[1], 16) for line in file if line.startswith(masks)]
    except (OSError, ValueError, IndexError):
        return unknown
    return any(mask >> (number - 1) & 1 for mask in found)


def read_resident(proc: str = "/proc") -> int:
    """Return the resident bytes of this process, 0 when they cannot be read."""
    try:
        with open(f"{proc}/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _read_available(proc: str) -> int:
    try:
        with open(f"{proc}/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _list_groups(proc: str, cgroup: str) -> list[tuple[str, str, str, str]]:
    """List folder, files and prefix in memory.stat of each cgroup that bounds the memory, nearest first."""
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
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
    """Return the number in a file, -1 where there is none: no limit, or no such cgroup."""
    try:
        with open(path, "rb") as file:
            text = file.read().strip()
    except OSError:
        return -1
    return int(text) if text.isdigit() else -1


def _read_cache(folder: str, prefix: str) -> int:
    """Return the bytes of file pages of a cgroup, which those of /dev/shm are not; 0 when unreadable."""
    wanted = (f"{prefix}inactive_file", f"{prefix}active_file")
    found = 0
    try:
        with open(f"{folder}/memory.stat", encoding="ascii", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) == 2 and words[0] in wanted and words[1].isdigit():
                    found += int(words[1])
    except OSError:
        return 0
    return found
