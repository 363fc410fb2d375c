"""Put the calling process under limits of a control group, or give it mounts of its own. Root only."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "tpmon-cause-"
PERIOD_US = 100_000
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 0x40000


class RefusedError(Exception):
    """Say why the kernel or the container does not let a limit be set."""


def enter_cpu_quota(cores: float) -> None:
    """Let this process and all that it starts run ``cores`` CPUs' worth of time, no more."""
    quota = round(cores * PERIOD_US)
    if (ROOT / "cpu").is_dir():
        _enter("cpu", {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)})
    else:
        _enter("", {"cpu.max": f"{quota} {PERIOD_US}"})


def enter_memory_limit(limit_bytes: int) -> None:
    """Let this process and all that it starts have ``limit_bytes`` of memory, page cache included."""
    if (ROOT / "memory").is_dir():
        _enter("memory", {"memory.limit_in_bytes": str(limit_bytes)})
    else:
        _enter("", {"memory.max": str(limit_bytes)})


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    raise RefusedError(f"no control group with {controller or 'version 2'}")


def _enter(controller: str, settings: dict[str, str]) -> None:
    parent = ROOT / controller / _own_path(controller).lstrip("/")
    folder = parent / f"{PREFIX}{os.getpid()}"
    try:
        if not controller:
            (parent / "cgroup.subtree_control").write_text("+cpu +memory")
        folder.mkdir()
        atexit.register(_leave, os.getpid(), parent, folder)
        for name, value in settings.items():
            (folder / name).write_text(value)
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise RefusedError(f"control groups are not writable ({error.strerror})") from error


def _leave(owner: int, parent: Path, folder: Path) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):  # workers may live on for a moment; sweep() takes what is left
            (parent / "cgroup.procs").write_text(str(owner))
            folder.rmdir()


def sweep() -> None:
    """Remove the groups of programs that ended without removing theirs."""
    for name in ("cpu", "memory", ""):
        with contextlib.suppress(OSError, RefusedError):
            for folder in (ROOT / name / _own_path(name).lstrip("/")).glob(f"{PREFIX}*"):
                with contextlib.suppress(OSError):  # still in use
                    folder.rmdir()


def enter_own_mounts() -> None:
    """Give this process mounts that nobody else sees and that go when its last child is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        raise RefusedError(f"no mounts of its own ({os.strerror(ctypes.get_errno())})")


def mount(kind: str, place: str, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), place.encode(), kind.encode(), 0, options.encode()):
        raise RefusedError(f"no {kind} mount ({os.strerror(ctypes.get_errno())})")
