"""Start the NVML child, read its lines, start it again when it ends. Never blocks its caller.

A child that hangs is left alone: killing does not free a thread in the driver, and a second
child would hang the same way. What it writes is bounded: lines, lines a second, bytes a second.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.own_command import call_python

BACKOFF_S = (1.0, 5.0, 30.0)
STEADY_S = 60.0
"""A child that lived this long failed anew, not again."""
MAX_LINE_BYTES = 256 * 1024
MAX_LINES_PER_S = 512
MAX_BYTES_PER_S = 512 * 1024
"""16 cards with 200 processes each write 180 KB."""
_READ_BYTES = 65536
_END_WAIT_S = 0.5
_GATHER_S = 0.05


def child_command() -> tuple[str, ...]:
    """Return the command of the real child."""
    return call_python("from tpmon.probe.gpu.child import main; main()")


class LineSplitter:
    """Cut a byte stream into lines; an overlong line is dropped whole and counted."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        """Bound a line to ``limit`` bytes."""
        self._limit = limit
        self._rest = b""
        self._skipping = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes, without their newlines."""
        *ready, self._rest = (self._rest + data).split(b"\n")
        if self._skipping and ready:
            # The end of a line whose beginning was dropped.
            del ready[0]
            self._skipping = False
        if self._skipping:
            self._rest = b""
        elif len(self._rest) > self._limit:
            self._rest = b""
            self._skipping = True
            self.dropped += 1
        kept = [line for line in ready if len(line) <= self._limit]
        self.dropped += len(ready) - len(kept)
        return [line for line in kept if line]


@dataclass(frozen=True, slots=True)
class Listener:
    """Name what is called, all from the link's own thread.

    ``on_end(how, attempt)`` returns after how many seconds to start again; ``attempt`` counts
    from 1 the ends that followed each other closely.
    """

    on_start: Callable[[], None]
    on_lines: Callable[[Sequence[bytes]], None]
    on_end: Callable[[str, int], float]


class ChildLink:
    """Own the child process and the daemon thread that reads it."""

    def __init__(self, command: Sequence[str], listener: Listener) -> None:
        """Keep the command; nothing runs until ``start``."""
        self._command = tuple(command)
        self._listener = listener
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: Known[int] = Missing("the GPU child does not run")
        self.dropped_lines = 0

    def start(self) -> None:
        """Start the thread, which starts the child."""
        threading.Thread(target=self._run, name="tpmon-gpu", daemon=True).start()

    def stop(self) -> None:
        """Kill the child and return, at the latest after half a second."""
        self._stopping.set()
        process = self._process
        if process is not None:
            _kill(process)

    def pid(self) -> Known[int]:
        """Return the PID of the running child."""
        return self._pid

    def _run(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self._listener.on_start()
            how = self._run_once()
            if self._stopping.is_set():
                return
            attempt = 1 if time.monotonic() - started_s >= STEADY_S else attempt + 1
            self._stopping.wait(self._listener.on_end(how, attempt))

    def _run_once(self) -> str:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Libraries write there, and it is the screen's terminal.
                stderr=subprocess.DEVNULL,
                bufsize=0,
                # The keys and hang-ups of our terminal are ours.
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot start: {error.strerror or error}"
        self._process = process
        self._pid = process.pid
        if self._stopping.is_set():
            process.kill()
        flooded = self._read(process)
        code = _kill(process)
        self._pid = Missing("the GPU child does not run")
        # Closed by this thread alone: a descriptor closed under a read may be another file by then.
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return "it flooded its pipe" if flooded else _describe(code)

    def _read(self, process: subprocess.Popen[bytes]) -> bool:
        if process.stdout is None:
            raise AssertionError("the child was started with a pipe")
        descriptor = process.stdout.fileno()
        # Not select(): tpmon itself keeps more than 1,024 descriptors open on a large job.
        readable = select.poll()
        readable.register(descriptor, select.POLLIN)
        splitter = LineSplitter()
        second_s = time.monotonic()
        lines_left, bytes_left = MAX_LINES_PER_S, MAX_BYTES_PER_S
        data = b""
        while True:
            readable.poll()
            if len(data) < _READ_BYTES:
                # The cards write within milliseconds: waking once for all of them halves the cost.
                self._stopping.wait(_GATHER_S)
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                return False
            now_s = time.monotonic()
            if now_s - second_s >= 1:
                second_s = now_s
                lines_left, bytes_left = MAX_LINES_PER_S, MAX_BYTES_PER_S
            bytes_left -= len(data)
            if bytes_left < 0:
                return True
            dropped_before = splitter.dropped
            lines = splitter.feed(data)
            kept = lines[:lines_left]
            lines_left -= len(kept)
            self.dropped_lines += splitter.dropped - dropped_before + len(lines) - len(kept)
            if kept:
                self._listener.on_lines(kept)


def _kill(process: subprocess.Popen[bytes]) -> int | None:
    """Kill a child and reap it; one that hangs in the driver is left to the kernel."""
    process.kill()
    try:
        return process.wait(_END_WAIT_S)
    except subprocess.TimeoutExpired:
        return None


def _describe(code: int | None) -> str:
    if code is None:
        return "it hangs in the driver"
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
