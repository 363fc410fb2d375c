"""Find and read the pages of a hooked process, as tpmon outside does, for the tests of the hook."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tpmon.hook.bus import wire

ROOT = Path(__file__).parents[1]


def run_program(
    program: str,
    *words: str,
    python: str = sys.executable,
    flags: Sequence[str] = (),
    site: Path | str = "",
    silent: bool = True,
    **environment: str,
) -> str:
    """Run a program that may import tpmon, and what is in ``site``; return what it prints: as an error nothing."""
    done = subprocess.run(
        [python, *flags, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{site}", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not silent or done.stderr == ""
    return done.stdout


def list_pages(pid: int, name: str = wire.TELEMETRY_NAME) -> list[str]:
    """List the descriptors of a process that are pages of that name, lowest first."""
    folder = f"/proc/{pid}/fd"
    found = []
    for number in sorted(os.listdir(folder), key=int):
        try:
            if os.readlink(f"{folder}/{number}") == f"/memfd:{name} (deleted)":
                found.append(f"{folder}/{number}")
        except OSError:
            continue  # closed between listing and reading
    return found


def find_page(pid: int, name: str = wire.TELEMETRY_NAME) -> str:
    """Return one descriptor of that page; fails when there is none."""
    return list_pages(pid, name)[-1]


@contextmanager
def open_page(path: str) -> Iterator[memoryview]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    view = memoryview(mapped)
    try:
        yield view
    finally:
        view.release()
        mapped.close()
