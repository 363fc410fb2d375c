"""Pythons that are refused by what they are: a real process of each kind, where such a Python is here.

They are looked for on PATH, among pyenv's versions, and in ODD_PYTHONS, paths with ``:`` between them. Stand-ins of
each are in ``test_refusals.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.inject.targets import find, refuse, running
from tpmon.inject.refusal import RefusalReason

ASK = """
import struct, sys, sysconfig
print(struct.calcsize("P") * 8, hasattr(sys, "gettotalrefcount"), bool(sysconfig.get_config_var("Py_GIL_DISABLED")), "%d.%d" % sys.version_info[:2])
"""
KINDS = {
    RefusalReason.ARCHITECTURE: "32 ",
    RefusalReason.DEBUG: "64 True ",
    RefusalReason.FREE_THREADED: r"64 False True 3\.1[34]$",
    RefusalReason.VERSION: r"64 False False 3\.[789]$",
}
"""By the word of the refusal what such a Python says of itself."""

HOLDS = 'import sys; sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.read()'
ON_PATH = ("python3-dbg", *(f"python3.{minor}{kind}" for minor in range(7, 15) for kind in ("", "d", "-dbg", "t")))
BASE, BEGIN = 0x08048000, 84
PAUSES = bytes.fromhex("b804000000 bb01000000 b973800408 ba06000000 cd80 b81d000000 cd80 ebf7")
"""Machine code of the 80386: write(1, TEXT, 6), then pause() for ever."""


def list_candidates() -> Iterator[str]:
    yield from filter(None, os.environ.get("ODD_PYTHONS", "").split(os.pathsep))
    yield from filter(None, map(shutil.which, ON_PATH))
    yield from map(str, sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")))


@cache
def find_odd() -> dict[RefusalReason, str]:
    found: dict[RefusalReason, str] = {}
    for path in list_candidates():
        said = subprocess.run([path, "-c", ASK], capture_output=True, text=True, timeout=60, check=False).stdout
        for reason, kind in KINDS.items():
            if re.match(kind, said.strip()):
                found.setdefault(reason, path)
    return found


@pytest.mark.parametrize("reason", KINDS, ids=lambda reason: reason.value)
def test_a_real_python_that_is_refused(reason):
    python = find_odd().get(reason) or pytest.skip(f"no Python here that is refused by {reason.value}")
    with running([python, "-c", HOLDS]) as job:
        assert refuse(find(job)) is reason


def test_a_program_of_another_architecture(tmp_path):
    """Without any library: where no 32-bit Python is, this is a real process of 32 bits all the same."""
    file = BEGIN + len(PAUSES) + 6
    head = b"\x7fELF\x01\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIIIIIHHHHHH", 2, 3, 1, BASE + BEGIN, 52, 0, 0, 52, 32, 1, 40, 0, 0
    )
    segment = struct.pack("<IIIIIIII", 1, 0, BASE, BASE, file, file, 5, 4096)
    program = tmp_path / "program"
    program.write_bytes(head + segment + PAUSES + b"ready\n")
    program.chmod(0o700)
    try:
        subprocess.run([str(program)], timeout=0.1, stdout=subprocess.DEVNULL, check=False)
    except OSError:
        pytest.skip("this kernel runs no 32-bit program")
    except subprocess.TimeoutExpired:
        pass
    with running([str(program)]) as job:
        assert refuse(find(job)) is RefusalReason.ARCHITECTURE
