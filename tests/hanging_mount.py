"""A mount that can be told to hang, and a job whose log and working directory lie on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.children import MAP_TORCH

SERVER = Path(__file__).with_name("fuse_server.py")
JOB = (
    "import ctypes, os, signal, sys, time\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)\n"
    "signal.alarm(120)\n"
    "print('ready', flush=True)\n"
    + MAP_TORCH
    + """
def train():
    while True:
        time.sleep(0.2)
        if not os.path.exists(sys.argv[1] + "/quiet"):
            print("step", time.time(), flush=True)

train()
"""
)


class HangingMount:
    """Hold a mount; ``hold`` makes it hang."""

    def __init__(self, source: Path, path: Path) -> None:
        self.source, self.path = source, path
        for folder in (source, path):
            folder.mkdir()
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER), str(source), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready = self._server.stdout.readline() == "ready\n"

    def hold(self, at: str = "") -> None:
        """Answer no request from now on, or from the read on that comes as far as ``at`` bytes."""
        self._server.stdin.write(f"hold {at}\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == "held\n"

    def await_reached(self) -> None:
        """Wait for the read from which on none is answered."""
        assert self._server.stdout.readline() == "reached\n"

    def close(self) -> None:
        """End the server, which frees whoever waits for it, and unmount."""
        self._server.communicate()
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


@contextmanager
def job_on(
    mount: HangingMount, tmp_path: Path, python: str = sys.executable, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job that writes its log on the mount and works there; it is taken for a training."""
    with open(mount.path / "train.log", "wb") as log:
        job = subprocess.Popen(
            [python, "-c", JOB, str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=mount.path,
            env={**os.environ, **variables},
        )
    try:
        end_s = time.monotonic() + 30
        while b"step" not in (mount.source / "train.log").read_bytes():
            assert time.monotonic() < end_s
            time.sleep(0.02)
        yield job
    finally:
        job.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(0.1)  # it may stand in a write


def mounts_can_hang() -> str:
    """Say why no such mount can be made here; "" where it can."""
    if not os.access("/dev/fuse", os.W_OK):
        return "no /dev/fuse"
    return "" if os.geteuid() == 0 else "only root may mount"
