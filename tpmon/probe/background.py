"""Read sources that can block (files on a dead mount, a target's address space) off the tick.

A source that hangs ages; it never stops the loop, the screen or the exit: its thread is a
daemon and nobody joins it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tpmon.model.clean import name_failure
from tpmon.model.known import Known, Missing
from tpmon.probe.process_limit import start_thread

T = TypeVar("T")

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
        self.off = ""
        """Why the source turned itself off; "" while it works."""

    def start(self) -> None:
        """Start the daemon thread."""
        start_thread(threading.Thread(target=self._run, name=f"tpmon-{self._name}", daemon=True))

    def stop(self) -> None:
        """Ask the thread to end after the read it is in; never waits."""
        self._stop.set()

    def latest(self) -> tuple[Known[T], float]:
        """Return the newest value and its age in seconds."""
        return self._value, (time.monotonic_ns() - self._taken_ns) / 1e9

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                value: Known[T] = self._read()
                failures = 0
            except OSError as error:
                value = Missing(error.strerror or str(error))
            except Exception as error:  # noqa: BLE001  # shown as the reason; off after two
                failures += 1
                value = Missing(f"{self._name} failed: {name_failure(error)}")
                if failures == 2:
                    self._value, self._taken_ns = value, time.monotonic_ns()
                    self.off = value.reason
                    return
            self._value, self._taken_ns = value, time.monotonic_ns()
            self._stop.wait(self._every_s)
