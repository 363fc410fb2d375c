"""Start small real processes for tests: each speaks by lines, ends in bounded time and with the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

_PRELUDE = """
import ctypes, hashlib, os, signal, sys, threading, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
signal.alarm(60)

def say(word):
    print(word, flush=True)

def hear():
    return sys.stdin.readline().strip()

def burn(stop=None, block=bytes(8 << 20)):
    # Hashing large blocks leaves the interpreter lock alone, so threads compute side by side.
    while stop is None or not stop.is_set():
        hashlib.sha1(block).digest()

def start_burning(count, stop=None):
    for _ in range(count):
        threading.Thread(target=burn, args=(stop,), daemon=True).start()
"""


MAP_TORCH = """
import mmap
with open(sys.argv[1] + "/libtorch_cpu.so", "wb") as file:
    file.write(bytes(4096))
with open(file.name, "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""
"""What a child runs to be taken for one that has loaded torch; its first argument is a folder for the library."""


class Child:
    """Hold a running child; ``say`` and ``hear`` exchange lines with it."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def say(self, word: str) -> None:
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Wait for a line; "" when the child is gone."""
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        """Say a word and wait for the answer."""
        self.say(word)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def child(code: str, *arguments: str) -> Iterator[Child]:
    """Start a child that runs ``code`` after the prelude, wait for its first line, and end it."""
    with closing(Child(code, *arguments)) as one:
        assert one.hear(), "the child did not start"
        yield one


@contextmanager
def started(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program, and kill it after use."""
    with subprocess.Popen(command, **how) as process:
        try:
            yield process
        finally:
            process.kill()
