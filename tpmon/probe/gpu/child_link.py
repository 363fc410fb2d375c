"""Watch the GPUs through the NVML child: start it, read its lines and clocks, restart it when it ends.

Nothing here waits for a driver: ``start`` and ``stop`` return at once, and ``read`` answers from memory
(docs/adr/0002-nvml-in-a-child-process.md). A child that hangs is left alone: killing frees no thread in the
driver, and a second child would hang too. Its output is bounded: line length, lines and bytes a second.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tpmon.model.codec import CodecError
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import GpuSample, list_processes
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known, known_or
from tpmon.model.process import Identity
from tpmon.model.results.capture import GpuClocks
from tpmon.own_command import call_python
from tpmon.probe.base.procread import in_first_pid_namespace, read_apart
from tpmon.probe.base.worker import Background, Worker
from tpmon.probe.gpu.bounds import read_driver_cards
from tpmon.probe.gpu.card_readings import Board, GpuReading
from tpmon.probe.gpu.mapping import DeviceFiles, open_device_indices
from tpmon.probe.gpu.wire import decode_line

BACKOFF_S = (1.0, 5.0, 30.0)
STEADY_S = 60.0  # the end of a child that lived so long counts as a first failure again
MAX_LINE_BYTES = 256 * 1024
MAX_LINES_PER_S = 512
MAX_BYTES_PER_S = 512 * 1024  # 16 cards with 200 processes each write 180 KB
_READ_BYTES = 65536
_NO_CHILD = Missing("the GPU child does not run")
_END_WAIT_S = 0.5
_GATHER_S = 0.05


def child_command() -> tuple[str, ...]:
    """Return the command of the real child."""
    return call_python("from tpmon.probe.gpu.child import main; main()")


class LineSplitter:
    """Cut a byte stream into lines; an overlong line is dropped whole and counted."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._rest = b""
        self._skipping = False
        self.dropped = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes, without newlines."""
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
    """Hold what the link calls, all from its own thread.

    ``on_end(how, attempt)`` returns the seconds until the restart; ``attempt`` counts ends in close
    succession from 1.
    """

    on_start: Callable[[], None]
    on_lines: Callable[[Sequence[bytes]], None]
    on_end: Callable[[str, int], float]


class ChildLink:
    """Own the child process and the daemon thread that reads it."""

    def __init__(self, command: Sequence[str], listener: Listener) -> None:
        self._command = tuple(command)
        self._listener = listener
        self._worker = Worker[None]("gpu")
        self._attempt = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.pid: Known[int] = _NO_CHILD  # of the running child
        self.dropped_lines = 0

    def start(self) -> None:
        """Start the thread, which starts the child."""
        self._worker.repeat(self._run, self._fail)

    def stop(self) -> None:
        """Kill the child; return within half a second."""
        self._worker.stop()
        if (process := self._process) is not None:
            _kill(process)

    def _run(self) -> float:
        """Run one child to its end; return the seconds until the next start."""
        started_s = time.monotonic()
        self._listener.on_start()
        how = read_apart(self._run_once)
        if isinstance(how, Missing):  # an unforeseen failure: the next child may be read
            how = f"reading it failed: {how.reason}"
        if self._worker.stopped.is_set():
            return 0.0
        self._attempt = 1 if time.monotonic() - started_s >= STEADY_S else self._attempt + 1
        return self._listener.on_end(how, self._attempt)

    def _fail(self, reason: str) -> float:
        return self._listener.on_end(f"reading it failed: {reason}", len(BACKOFF_S))

    def _run_once(self) -> str:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Libraries write there, and it is the screen's terminal.
                stderr=subprocess.DEVNULL,
                bufsize=0,
                # Ctrl-C and hang-ups of our terminal are not for the child.
                start_new_session=True,
            )
        except OSError as error:
            return f"cannot start: {error.strerror or error}"
        self._process = process
        self.pid = process.pid
        if self._worker.stopped.is_set():
            process.kill()
        try:
            flooded = self._read(process)
        finally:
            code = _kill(process)
            self.pid = _NO_CHILD
            # Closed by this thread alone: a descriptor closed during a read may be another file by then.
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        return "it flooded its pipe" if flooded else _describe(code)

    def _read(self, process: subprocess.Popen[bytes]) -> bool:
        if process.stdout is None:
            raise AssertionError("the child was started with a pipe")
        descriptor = process.stdout.fileno()
        # Not select(): tpmon keeps more than 1,024 descriptors open on a large job.
        readable = select.poll()
        readable.register(descriptor, select.POLLIN)
        splitter = LineSplitter()
        second_s = time.monotonic()
        lines_left, bytes_left = MAX_LINES_PER_S, MAX_BYTES_PER_S
        data = b""
        while True:
            readable.poll()
            if len(data) < _READ_BYTES:
                # The cards write within milliseconds: waking once for all halves the cost.
                self._worker.stopped.wait(_GATHER_S)
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


SCAN_EVERY_S = 0.9
LIST_EVERY_S = 30.0  # cards of the kernel's driver seldom change, and a wedged one was listed before
ABSENT_RETRY_S = 30.0
MAX_ABSENT_RETRY_S = 300.0
"""A missing driver will not appear within seconds, and a try costs 0.1 s of CPU: 0.4 % of a core for ever
if repeated each 30 s. So the wait doubles up to this."""


class GpuProbe:
    """Own the NVML child and its readings; any thread may call ``read``."""

    def __init__(self, command: Sequence[str] | None = None, backoff_s: Sequence[float] = BACKOFF_S) -> None:
        self._backoff_s = tuple(backoff_s)
        self._lock = threading.Lock()
        self._board = Board(time.monotonic_ns())
        self._unreadable = 0
        self.pids_are_ours = in_first_pid_namespace()
        self._files = DeviceFiles()
        self._shared = False
        self._held = Background("open device files", self._files.scan, SCAN_EVERY_S)
        self._listed = Background("cards of the driver", read_driver_cards, LIST_EVERY_S)
        listener = Listener(self._on_start, self._on_lines, self._on_end)
        self._link = ChildLink(command or child_command(), listener)

    def start(self) -> None:
        """Start the child; never blocks."""
        self._link.start()
        self._held.start()
        self._listed.start()

    def watch(self, pids: Mapping[int, int]) -> None:
        """Name the processes of all jobs at once, where several are read from the one child."""
        self._shared = True
        self._files.watch(pids)

    def read(self, job_pids: Mapping[int, int]) -> GpuReading:
        """Return what is known now; ``job_pids`` maps the job's PIDs to their start ticks."""
        if not self._shared:
            self._files.watch(job_pids)
        held, _ = self._held.latest()
        with self._lock:
            reading = self._board.read(
                job_pids,
                known_or(held, {}),
                self.pids_are_ours,
                time.monotonic_ns(),
                self._files.has_driver,
                driver_cards=self._listed.latest()[0],
            )
        losses = ((self._link.dropped_lines, "too many or too long"), (self._unreadable, "not understood"))
        told = [f"{count} lines of the GPU child were {what}" for count, what in losses if count]
        return replace(reading, notes=(*reading.notes, *told)) if told else reading

    def stop(self) -> None:
        """End the child; return within half a second."""
        self._held.stop()
        self._listed.stop()
        self._link.stop()

    def child_pid(self) -> Known[int]:
        """Return the PID of the running child."""
        return self._link.pid

    def _on_start(self) -> None:
        with self._lock:
            self._board.on_start(time.monotonic_ns())

    def _on_lines(self, lines: Sequence[bytes]) -> None:
        for raw in lines:
            try:
                line = decode_line(raw)
            except CodecError:
                self._unreadable += 1
                continue
            with self._lock:
                self._board.on_line(line, time.monotonic_ns())

    def _on_end(self, how: str, attempt: int) -> float:
        with self._lock:
            retry_s = self._backoff_s[min(attempt, len(self._backoff_s)) - 1]
            if self._board.refused:
                retry_s = min(ABSENT_RETRY_S * 2.0 ** min(attempt - 1, 8), MAX_ABSENT_RETRY_S)
            self._board.on_end(how, time.monotonic_ns(), retry_s)
        return retry_s


NO_GPU = Missing("the processes use no NVIDIA GPU")
_WAIT_S = 3.0  # NVML is opened in a child, which takes a second; a later reading counts as missing

_AGAIN_S = 0.05


@contextmanager
def watch_clocks(processes: Sequence[Identity]) -> Iterator[ClockWatch]:
    """Keep NVML open during a window; start nothing where no process has a card open."""
    job = {one.pid: one.start_ticks for one in processes}
    if not any(known_or(open_device_indices(pid), ()) for pid in job):
        yield ClockWatch(job, None)
        return
    reader = GpuProbe()
    reader.start()
    try:
        yield ClockWatch(job, reader)
    finally:
        reader.stop()


class ClockWatch:
    """Read the clocks of the cards that processes (PID to start ticks) use; no reader: they use none."""

    def __init__(self, job: dict[int, int], reader: GpuProbe | None) -> None:
        self._job = job
        self._reader = reader
        self.busy: frozenset[int] = frozenset()  # for which processes a card worked, by the last reading

    def read(self, wait_s: float = _WAIT_S) -> Known[tuple[GpuClocks, ...]]:
        """Return the clocks of the cards of these processes in the last second, or why not."""
        if self._reader is None:
            return NO_GPU
        limit = time.monotonic() + wait_s
        while True:
            gpus = self._reader.read(self._job).gpus
            mine = [
                card
                for card in known_or(gpus, ())
                if not self._job.keys().isdisjoint(known_or(card.pids, ()))
            ]
            if is_known(gpus):
                self.busy = frozenset(pid for pid in self._job if any(_works_for(card, pid) for card in gpus))
            if mine:
                return tuple(
                    GpuClocks(
                        one.index, one.name, one.sm_clock_mhz, one.sm_clock_max_mhz, one.memory_clock_mhz
                    )
                    for one in mine
                )
            if time.monotonic() > limit:
                return Missing("no card lists these processes") if is_known(gpus) else gpus
            time.sleep(_AGAIN_S)


def _works_for(card: GpuSample, pid: int) -> bool:
    """Tell whether a card worked for a process: by its own share, else the card's where it is alone."""
    shares = {one.pid: one.sm_pct for one in list_processes(card)}
    share = shares.get(pid, NOT_APPLICABLE)
    if not is_known(share) and [*shares] == [pid] and not is_known(card.lists_only):
        share = card.sm_pct
    return known_or(share, 0.0) > 0
