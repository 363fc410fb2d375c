"""Read sources that can block, each within a deadline; how often what is dear may be read.

A source that hangs ages; it never stops the loop, the screen or the exit: its thread is a
daemon and nobody joins it. The kernel may keep the process with it: ``supervisor`` ends the command.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from tpmon.model.known import Known, Missing
from tpmon.model.text.clean import name_failure
from tpmon.probe.base.limits import start_thread

T = TypeVar("T")

OVERDUE_S = 5.0
"""What a source said before is not shown for longer once it does not answer."""
UNGUARDED = "not read: "
"""Begins the reason of a read that was not begun: the system let no thread be started for it."""


def read_within(seconds: float, read: Callable[[], T]) -> Known[T]:
    """Run ``read`` in a daemon thread of its own and wait at most ``seconds`` for it.

    An OSError of ``read`` becomes Missing, and so does a thread that the system refuses; any other
    exception of it is raised here.
    """
    slot: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            slot.append(read())
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            failed.append(error)

    thread = threading.Thread(target=run, name="tpmon-read", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # a limit on processes or memory
        return Missing(f"{UNGUARDED}{error}")
    thread.join(seconds)
    if slot:
        return slot[0]
    if failed:
        if isinstance(failed[0], OSError):
            return Missing(failed[0].strerror or str(failed[0]))
        raise failed[0]
    return Missing(f"no answer within {seconds:g} s")


def find_silent(paths: Iterable[str], seconds: float) -> str:
    """Return the first path without an answer within ``seconds``, as on a mount that hangs; "" for none."""
    for path in paths:
        answer = read_within(seconds, partial(_ask_file, path))
        if isinstance(answer, Missing) and not answer.reason.startswith(UNGUARDED):
            return path
    return ""


def _ask_file(path: str) -> bool:
    """Ask for a file, or for the folder where it will be; True whatever it answers."""
    with suppress(OSError, ValueError):
        if not os.path.lexists(path):
            os.stat(os.path.dirname(path) or os.curdir)
        elif stat.S_ISREG(os.stat(path).st_mode):  # to read a pipe would take from it
            with open(path, "rb", buffering=0) as file:
                file.read(1)
    return True


class Background(Generic[T]):
    """Call ``read`` every ``every_s`` seconds in one daemon thread and keep its newest value.

    ``read`` may raise OSError (becomes Missing, retried). Two other failures in a row turn the
    source off for good; its reason stays as Missing.
    """

    def __init__(self, name: str, read: Callable[[], T], every_s: float) -> None:
        """Name the source; nothing runs until ``start``."""
        self._name = name
        self._read = read
        self._every_s = every_s
        self._stop = threading.Event()
        self._value: Known[T] = Missing(f"{name} not read yet")
        self._taken_ns = time.monotonic_ns()
        self._begun_ns = 0  # of the read under way
        self.off = ""
        """Why the source turned itself off; "" while it works."""

    def start(self) -> None:
        """Start the daemon thread."""
        start_thread(threading.Thread(target=self._run, name=f"tpmon-{self._name}", daemon=True))

    def stop(self) -> None:
        """Ask the thread to end after the read it is in; never waits."""
        self._stop.set()

    def latest(self) -> tuple[Known[T], float]:
        """Return the newest value and its age in seconds; Missing once a read is overdue."""
        now_ns = time.monotonic_ns()
        overdue = 0 < self._begun_ns < now_ns - OVERDUE_S * 1e9
        value = Missing(f"no answer within {OVERDUE_S:g} s") if overdue else self._value
        return value, (now_ns - self._taken_ns) / 1e9

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._begun_ns = time.monotonic_ns()
            try:
                value: Known[T] = self._read()
                failures = 0
            except OSError as error:
                value = Missing(error.strerror or str(error))
            except Exception as error:  # noqa: BLE001  # shown as the reason; off after two
                failures += 1
                value = Missing(f"{self._name} failed: {name_failure(error)}")
            self._value, self._taken_ns, self._begun_ns = value, time.monotonic_ns(), 0
            if failures == 2 and isinstance(value, Missing):
                self.off = value.reason
                return
            self._stop.wait(self._every_s)


class Pace(Enum):
    """Name a pace; each probe says in its own numbers what that means."""

    FULL = "full"
    SHED = "shed"
    """tpmon is over its own budget."""
    SETTLED = "settled"
    """The verdict has stood for a minute, and nothing begins to contradict it."""
