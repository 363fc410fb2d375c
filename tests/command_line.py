"""Run tpmon as a person does, and a program with torch for it to look at."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from tpmon.commands.command import read_options
from tpmon.config import resolve

Wanted = TypeVar("Wanted")

SECONDS = 120.0
"""Longest wait for anything; nothing waits it out."""
TPMON = shlex.split(os.environ.get("TPMON_CALL", "")) or [sys.executable, "-m", "tpmon"]
"""How tpmon is called: TPMON_CALL="/usr/bin/python3 -I /path/tpmon.pyz" tries the one file (make test-pyz)."""
ONE_FILE = TPMON[-1].endswith(".pyz")
TRAINING = "import torch, sys; print('ready', flush=True); sys.stdin.read()"


def read(wanted: type[Wanted], environment: Any = (), tables: Any = (), **flags: Any) -> Wanted:
    """Read the options of a command; in the name of a flag "__" stands for a dot and "_" for a dash."""
    keys = {name.replace("__", ".").replace("_", "-"): value for name, value in flags.items()}
    return read_options(wanted, flags | keys, resolve(keys, dict(environment), "config", dict(tables)))


def as_said(hint: str) -> str:
    """Write the commands of a hint as the tpmon that is called says them: the one file by its Python and its path."""
    return re.sub(r"\btpmon(?= |$)", f"{TPMON[0]} {TPMON[-1]}", hint) if ONE_FILE else hint


def call(
    *arguments: str, before: Sequence[str] = (), code: int | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run tpmon with nothing on stdin and no terminal, to the exit code that is given, if one is.

    ``before`` is a command that runs it in another way.
    """
    done = subprocess.run(
        [*before, *TPMON, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        **options,
    )
    assert code in (None, done.returncode), (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def call_behind(before: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tpmon behind a command that takes rights away or builds a wall."""
    env = {**os.environ, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    return call(*arguments, before=before, cwd=Path(__file__).parents[1], env=env)


def start(*arguments: str, before: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
    """Start tpmon and leave it running; ``before`` is a command that runs it in another way, as another user."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([*before, *TPMON, *arguments], text=True, **(pipes | options))


def start_training() -> subprocess.Popen[bytes]:
    """Start a Python process that has loaded torch and waits."""
    training = subprocess.Popen([sys.executable, "-c", TRAINING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert training.stdout.readline() == b"ready\n"
    return training
