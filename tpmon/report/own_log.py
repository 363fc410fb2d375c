"""Keep a log of what tpmon itself does, for a report of a bug: what a second costs, what is not read and why.

It is bounded, and written in a thread of its own: a slow disk never delays a reading.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from contextlib import suppress

from tpmon import __version__
from tpmon.errors import UsageError
from tpmon.model.frame import EventKind, Frame
from tpmon.model.known import is_known
from tpmon.model.results.doctor import Update
from tpmon.model.units import clean_text, format_bytes, format_clock, say_pct
from tpmon.report.blocks import list_unread
from tpmon.report.text import complain

MOST_BYTES = 1 << 20
"""Of one file; the one before is kept beside it."""
EVERY_S = 30.0
"""How often costs and unread values are looked at; a slow second and an event are written at once."""
SLOW_MS = 250.0
_WAITING = 256
_DRAIN_S = 0.3
_LINE_CHARS = 2000
_MOST_REASONS = 200
_APART = ("verdict", "self_", "ages_s", "target")


class OwnLog:
    """Take each Update of a session, and write the lines that say what tpmon did."""

    def __init__(self, path: str) -> None:
        """Open the log to add to it; UsageError where that cannot be."""
        self._path = path
        self._lines: queue.Queue[str] = queue.Queue(_WAITING)
        self._file = self._open()
        self._next_ns = 0
        self._unread: frozenset[str] = frozenset()
        self._failure = ""
        threading.Thread(target=self._write, name="tpmon-log", daemon=True).start()
        atexit.register(self._drain)
        machine, python = os.uname(), sys.version.split()[0]
        head = f"tpmon {__version__}, Python {python}, {machine.sysname} {machine.release}"
        self._put(time.strftime("%Y-%m-%d %H:%M:%S"), f"begins: {head}")

    def _open(self) -> int:
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self._path, how, 0o600)
        except OSError as error:
            what = f"--log: {clean_text(self._path)}: {error.strerror or error}"
            raise UsageError(what, "name a file in a folder of yours") from error

    def receive(self, update: Update) -> None:
        """Take an Update; never block and never raise."""
        frame = update.frame
        clock = format_clock(frame.taken)
        for event in frame.events:
            if event.kind is EventKind.PROBE:
                self._put(clock, event.text)
        is_due = frame.taken_ns >= self._next_ns
        if is_due or frame.self_.tick_ms >= SLOW_MS:
            self._put(clock, _say_cost(frame))
        if not is_due:
            return
        self._next_ns = frame.taken_ns + int(EVERY_S * 1e9)
        unread = frozenset(list_unread(frame, _APART, _MOST_REASONS))
        for sign, texts in (("not read", unread - self._unread), ("read again", self._unread - unread)):
            for text in sorted(texts):
                self._put(clock, f"{sign}: {text}")
        self._unread = unread

    def _put(self, clock: str, text: str) -> None:
        with suppress(queue.Full):  # the disk hangs: what a session reads matters more
            self._lines.put_nowait(f"{clock} {clean_text(text, _LINE_CHARS)}\n")

    def _drain(self) -> None:
        if self._failure:
            complain(f"tpmon: --log is no longer written: {self._failure}")
            return
        until_s = time.monotonic() + _DRAIN_S
        while not self._lines.empty() and time.monotonic() < until_s:
            time.sleep(0.01)

    def _write(self) -> None:
        while True:
            data = self._lines.get().encode("utf-8", "replace")
            try:
                if os.fstat(self._file).st_size + len(data) > MOST_BYTES:
                    os.close(self._file)
                    os.replace(self._path, f"{self._path}.1")
                    self._file = self._open()
                os.write(self._file, data)
            except (OSError, UsageError) as error:
                self._failure = str(error)  # a full disk: the session goes on without a log
                return


def _say_cost(frame: Frame) -> str:
    own = frame.self_
    cpu = say_pct(own.cpu_pct) if is_known(own.cpu_pct) else "?"
    memory = format_bytes(own.rss_bytes) if is_known(own.rss_bytes) else "?"
    shed = ", over its budget: thread rates are halved" if own.shedding else ""
    return (
        f"this reading took {own.tick_ms:.1f} ms, tpmon {cpu} of a core, {memory}, children"
        f" {format_bytes(own.children_rss_bytes)}, {len(frame.processes)} processes{shed}"
    )


def read_own_log(path: str) -> bytes:
    """Read the end of a log, for a bundle."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
        return file.read(MOST_BYTES)
