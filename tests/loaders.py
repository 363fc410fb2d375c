"""Start a program with DataLoader queues and read what it knows of them itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "loader_queues.py"


@contextmanager
def loader(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[dict[str, object]]]]:
    """Start the program, wait until its queues stand, and end it."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
