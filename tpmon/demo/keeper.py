"""Start the demo training, and end all of it when its starter is gone.

Reads one JSON line {"command", "environment", "directory", "log", "seconds"} from stdin, starts the command
and prints its PID. The command and all that it started end when stdin closes (the starter ended in any way),
on SIGTERM, or after ``seconds``. A program of its own, standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LOOK_EVERY_S = 0.5
GRACE_S = 3.0


def read_order() -> dict[str, Any]:
    """Read the one line that says what to start; the pipe stays open to show that the starter lives."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            raise SystemExit("keeper: stdin closed before a command came")
        line += part
    order: dict[str, Any] = json.loads(line)
    return order


def start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the command of the order, its output in the log."""
    with open(order["log"], "ab") as log:
        return subprocess.Popen(
            order["command"],
            env=order["environment"],
            cwd=order["directory"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def reap(root: int) -> int | None:
    """Collect children that ended, adopted ones too; return the exit code of ``root`` if it did."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == root:
                code = os.waitstatus_to_exitcode(status)
    return code


def read_descendants() -> list[int]:
    """List every process below this one, by the parents in /proc/PID/stat (field 4)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                raw = stat.read()
                parent = int(raw[raw.rindex(b")") + 2 :].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_all(root: int) -> None:
    """Ask every descendant to end, kill what is left after a grace, and collect them all.

    As the subreaper this process is the parent of every orphan: none escapes, and no PID is reused before
    it was collected here.
    """
    deadline = time.monotonic() + GRACE_S
    asked = False
    while below := read_descendants():
        kill = time.monotonic() >= deadline
        for pid in below:
            if kill or not asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        asked = True
        time.sleep(0.05)
        reap(root)


def clear(directory: str, log: str) -> None:
    """Remove the folder of the training; the ``log`` of a failed one stays."""
    if not log:
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.path != log:
            os.unlink(entry.path)


def keep() -> int:
    """Run the command until it ends or stdin closes; return the exit code."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    order = read_order()
    try:
        training = start(order)
    except OSError:
        clear(order["directory"], "")
        raise
    print(training.pid, flush=True)
    deadline = time.monotonic() + order["seconds"]
    code = None
    lead = select.poll()
    lead.register(0, select.POLLIN)
    while code is None and not terminated and time.monotonic() < deadline:
        if lead.poll(LOOK_EVERY_S * 1000) and not os.read(0, 4096):
            break
        code = reap(training.pid)
    end_all(training.pid)
    clear(order["directory"], order["log"] if code else "")
    return code or 0


if __name__ == "__main__":
    sys.exit(keep())
