"""Start small programs that may get the hook, or must be refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpmon.inject.late_hook import LateHook
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.model.process import Identity
from tpmon.probe.base.procread import read_stat

LOOP = """
import threading
from math import sqrt
from select import select
print("ready", flush=True)
wrong, right = 0, sum(sqrt(number) for number in range(300))
while not select([0], [], [], 0)[0]:
    for _ in range(50):
        wrong += sum(sqrt(number) for number in range(300)) != right
print(wrong, threading.active_count(), sorted(name for name in vars() if name[:2] != "__"), flush=True)
"""
"""Computes one sum until its input ends, and tells how often it was another one, its threads and names."""

LOOP_ENDS = "0 1 ['_', 'right', 'select', 'sqrt', 'threading', 'wrong']\n"


def require_mounts() -> None:
    """Skip the test where a container of its own cannot be made: for any other than root, and in most containers."""
    tried = ["unshare", "-mp", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    if (
        os.geteuid()
        or not shutil.which("unshare")
        or subprocess.run(tried, check=False, capture_output=True).returncode
    ):
        pytest.skip("only root can make a container, and not everywhere")


@contextmanager
def running(command: Sequence[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command that says "ready"; kill it at the end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **(pipes | options)) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n", "it did not start"
            yield job
        finally:
            job.kill()


@contextmanager
def looping(python: str = sys.executable, program: str = LOOP, **more: str) -> Iterator[subprocess.Popen[str]]:
    with running([python, "-c", program], env={**os.environ, **more}) as job:
        yield job


def find(job: subprocess.Popen[str]) -> Identity:
    return Identity(job.pid, read_stat(job.pid).start_ticks)


def refuse(process: Identity, **options: float) -> RefusalReason:
    """Try to put the hook in, and return why that was refused."""
    with pytest.raises(RefusedError) as caught:
        LateHook(process, **options).install()
    return caught.value.reason


STAND_IN = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
char _PyRuntime[4096] = {1};
const unsigned long Py_Version = VERSION;
int PyRun_SimpleString(const char *text) { return !!text; }
MORE
int main(void) { memcpy(_PyRuntime, "xdebugpy", 8); _PyRuntime[16] = THREADED; puts("ready"); fflush(stdout);
  for (;;) pause(); }
"""


def build_stand_in(folder: Path, version: int, more: str = "", threaded: int = 0) -> str:
    """Compile a program with the symbols of a CPython; skip the test where there is no compiler."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    source = folder / "python.c"
    text = STAND_IN.replace("VERSION", f"{version:#x}").replace("MORE", more).replace("THREADED", str(threaded))
    source.write_text(text)
    program = folder / "python3"
    subprocess.run(["gcc", "-rdynamic", "-o", str(program), str(source)], check=True, capture_output=True)
    return str(program)
