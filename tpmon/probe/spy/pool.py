"""Run py-spy, each with a deadline, a cap on its output and a lead; stop all that run, or keep them waiting.

A request holds the command line and the parser of the output, for one of three kinds: a slice of stacks, a
dump, a slice of a sampling. None stops its target but a dump that was asked to.

The lead is a pipe that is py-spy's stdin: when its other end closes, however this process ended, the kernel
kills py-spy. That needs no code between fork and exec, which a process with threads must not run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from tpmon.model.dump import ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.results.doctor import point_to
from tpmon.model.text.redaction import name_failure
from tpmon.probe.base.procread import PROC, read_or, read_stat
from tpmon.probe.spy.failure import CPU_LIMIT_S, Failure, SpyOutcome, explain_empty, explain_outcome
from tpmon.probe.spy.text import Sampled

MAX_OUTPUT_BYTES = 4 << 20
MAX_ERROR_BYTES = 16 << 10
NICENESS = 5
REAP_S = 1.0
"""How long a killed or finished py-spy may take to end: a read from a silent mount keeps it in the kernel."""
MOST_KEPT = 3  # so many of those at a time; then no further py-spy is started
_kept: list[subprocess.Popen[bytes]] = []
_READ_BYTES = 65536

T = TypeVar("T")


def dump_arguments(
    pid: int, *, nonblocking: bool = True, native: bool = False, variables: bool = False
) -> tuple[str, ...]:
    """Return the arguments for one sample of every thread, as JSON.

    ``native`` adds frames of C, for which py-spy must stop the process; ``variables`` adds those of each
    frame.
    """
    words = (("--nonblocking", nonblocking and not native), ("--native", native), ("--locals", variables))
    how = (word for word, wanted in words if wanted)
    return ("dump", *how, "--full-filenames", "--json", "--pid", str(pid))


def record_arguments(pid: int, rate_hz: int, seconds: int) -> tuple[str, ...]:
    """Return the arguments for folded stacks with idle threads; rate and length are whole numbers."""
    how = ("--nonblocking", "--full-filenames", "--idle", "--threads", "--format", "raw")
    length = ("--rate", str(rate_hz), "--duration", str(seconds))
    return ("record", *how, *length, "--output", "/dev/stdout", "--pid", str(pid))


def _tie(lead: int, pid: int) -> None:
    """Have the kernel kill ``pid`` when the writing end of its stdin closes (fcntl(2), F_SETSIG)."""
    # A sandbox may not support it: py-spy then ends by itself after its slice.
    with contextlib.suppress(OSError):
        fcntl.fcntl(lead, fcntl.F_SETOWN, pid)
        fcntl.fcntl(lead, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lead, fcntl.F_SETFL, fcntl.fcntl(lead, fcntl.F_GETFL) | os.O_ASYNC)


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a child that is not reaped yet; Popen.kill may reap it on the way."""
    # A setuid py-spy is not ours to kill; its slice ends by itself. Where SIGCHLD is ignored the kernel has
    # reaped it, and it may be gone.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.kill(pid, number)


class SpyChild:
    """Run one py-spy at a time in the caller's thread; other threads may stop it and ask its cost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self.stopped = False  # one that is started later is killed
        self._ended_cpu_s = 0.0

    def run(
        self,
        command: tuple[str, ...],
        deadline_s: float,
        cpu_limit_s: int = CPU_LIMIT_S,
        niceness: int = NICENESS,
    ) -> SpyOutcome:
        """Run a command to its end, at most ``deadline_s`` after its start; OSError if it cannot start.

        After ``cpu_limit_s`` of CPU the kernel ends it. One that stops its target gets niceness 0: the longer
        it waits for a CPU, the longer the target stands still.
        """
        _kept[:] = [one for one in _kept if one.poll() is None]
        if len(_kept) >= MOST_KEPT:
            reason = f"process {_kept[0].pid} and others still wait for a file that does not answer"
            raise OSError(errno.EBUSY, reason)
        started_s = time.monotonic()
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                stdin=reader,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Ctrl-C and hang-ups of our terminal are not for it.
                start_new_session=True,
                env={**os.environ, "RUST_BACKTRACE": "0"},
            )
            with self._lock:
                self._pid = process.pid
                _tie(reader, process.pid)
                if self.stopped:
                    _kill(process.pid)
            with contextlib.suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, process.pid, own + niceness)
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 1))
            output, errors, late, flooded = self._read(process, started_s + deadline_s)
            status, cpu_s = self._reap(process)
        finally:
            with self._lock:
                self._pid = 0  # what may still run is on the lead
            os.close(reader)
            os.close(writer)
        return SpyOutcome(output, errors, status, cpu_s, time.monotonic() - started_s, late, flooded)

    def stop(self) -> None:
        """Kill the py-spy that runs and any that is started later; never waits."""
        with self._lock:
            self.stopped = True
            if self._pid:
                _kill(self._pid)

    def finish(self, *, for_good: bool = False) -> None:
        """Ask one that records to print what it has and end; ``for_good``: kill later ones, like ``stop``."""
        with self._lock:
            self.stopped = self.stopped or for_good
            if self._pid:
                _kill(self._pid, signal.SIGINT)

    def cost(self) -> tuple[float, int]:
        """Return the CPU seconds of all runs, the present one included, and its RSS."""
        with self._lock:
            if not self._pid:
                return self._ended_cpu_s, 0
            stat = read_or(None, lambda: read_stat(self._pid))
            return (self._ended_cpu_s + stat.cpu_s, stat.rss_bytes) if stat else (self._ended_cpu_s, 0)

    def _read(self, process: subprocess.Popen[bytes], deadline_s: float) -> tuple[bytes, bytes, bool, bool]:
        if process.stdout is None or process.stderr is None:
            raise AssertionError("py-spy was started with pipes")
        output, errors = process.stdout.fileno(), process.stderr.fileno()
        parts: dict[int, list[bytes]] = {output: [], errors: []}
        room = {output: MAX_OUTPUT_BYTES, errors: MAX_ERROR_BYTES}
        late = flooded = False
        # Not select(): tpmon keeps more than 1,024 descriptors open on a large job.
        readable = select.poll()
        for fd in parts:
            readable.register(fd, select.POLLIN)
        open_fds = set(parts)
        while open_fds:
            ready = readable.poll(max((deadline_s - time.monotonic()) * 1000, 0))
            if not ready:
                late = True
                _kill(process.pid)
                break
            for fd, _ in ready:
                data = os.read(fd, _READ_BYTES)
                if not data:
                    readable.unregister(fd)
                    open_fds.discard(fd)
                    continue
                parts[fd].append(data[: room[fd]])
                room[fd] -= len(data)
                if fd == output and room[fd] < 0 and not flooded:
                    flooded = True
                    _kill(process.pid)
                room[fd] = max(room[fd], 0)
        return b"".join(parts[output]), b"".join(parts[errors]), late, flooded

    def _reap(self, process: subprocess.Popen[bytes]) -> tuple[int, float]:
        """Wait for the end outside the lock and reap inside, so that ``stop`` never hits a reused PID."""
        # Where SIGCHLD is ignored the kernel reaps it and its status is lost; its output decides then.
        returncode, cpu_s = 0, 0.0
        has_ended = _await_end(process.pid)
        with self._lock:
            self._pid = 0
            if has_ended:
                with contextlib.suppress(ChildProcessError):
                    _, status, usage = os.wait4(process.pid, 0)
                    returncode, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
            self._ended_cpu_s += cpu_s
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        if has_ended:
            process.returncode = returncode  # subprocess would otherwise wait for it again
        else:
            _kept.append(process)
        return returncode, cpu_s


def _await_end(pid: int) -> bool:
    """Wait for the end of a child at most ``REAP_S``, without reaping it; return whether it came."""
    end_s = time.monotonic() + REAP_S
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > end_s:
                _kill(pid)
                return False
            time.sleep(0.003)
    return True


@dataclass(frozen=True, slots=True)
class SpyRequest:
    """Say what py-spy is to do at one process and how to parse it; ``may_be_empty``: no stack is fine."""

    pid: int
    arguments: tuple[str, ...]
    parse: Callable[[bytes], Sampled]
    deadline_s: float
    cpu_limit_s: int = CPU_LIMIT_S
    niceness: int = NICENESS
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class SpyAnswer:
    """Hold what py-spy saw of a process, and its cost."""

    sampled: Sampled
    outcome: SpyOutcome


def guard(read: Callable[[], T | Failure]) -> T | Failure:
    """Call ``read`` for one process, which fails alone and says why."""
    try:
        return read()
    except OSError as error:
        return Failure(ErrorKind.GONE, f"it ended: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001  # the others go on
        return Failure(ErrorKind.FAILED, name_failure(error))


class SpyPool:
    """Run the requests of one service, each in its caller's thread; any thread may end them."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._children: set[SpyChild] = set()
        self._spent_s = 0.0
        self.suspended = 0
        self.is_ending = False

    def run(self, spy: str, request: SpyRequest) -> SpyAnswer | Failure:
        """Run py-spy to its end, at the latest at its deadline; say why nothing came of it."""
        child = SpyChild()
        with self._lock:
            if self.is_ending:
                return Failure(ErrorKind.LATE, "it was to begin at the end")
            if self.suspended:
                return Failure(ErrorKind.BUSY, "a dump stops it now")
            self._children.add(child)
        command, limit_s = (spy, *request.arguments), request.cpu_limit_s
        try:
            outcome = child.run(command, request.deadline_s, limit_s, request.niceness)
        except OSError as error:
            why = point_to(f"py-spy cannot be started: {error.strerror or error}", "py-spy")
            return Failure(ErrorKind.NO_SPY, why, is_final=True)
        finally:
            with self._lock:
                self._children.discard(child)
                self._spent_s += child.cost()[0]
        failure = explain_outcome(request.pid, outcome, request.deadline_s, self._proc, limit_s)
        if child.stopped and outcome.status == -signal.SIGKILL:
            failure = Failure(ErrorKind.BUSY, "it was ended for a dump")
        if failure is not None:
            return replace(failure, cpu_s=outcome.cpu_s)
        sampled = request.parse(outcome.output)
        if not sampled.stacks and not request.may_be_empty:
            reason = explain_empty(sampled, outcome.output)
            return Failure(ErrorKind.FAILED, reason, torn=True, cpu_s=outcome.cpu_s)
        return SpyAnswer(sampled, outcome)

    @contextlib.contextmanager
    def suspend(self, *, kill: bool) -> Iterator[None]:
        """Start nothing within, and end what runs; unless killed, it delivers what it has."""
        with self._lock:
            self.suspended += 1
            self._end(kill=kill)
        try:
            yield
        finally:
            with self._lock:
                self.suspended -= 1

    def close(self, *, kill: bool) -> None:
        """Start nothing any more, and end what runs; unless killed, it delivers what it has."""
        with self._lock:
            self.is_ending = True
            self._end(kill=kill)

    def shorten(self) -> None:
        """Ask recordings to end now and print what they have."""
        with self._lock:
            for child in self._children:
                child.finish()

    def kill(self) -> None:
        """Kill what runs; more may begin."""
        with self._lock:
            self._end(kill=True)

    def _end(self, *, kill: bool) -> None:
        for child in self._children:
            child.stop() if kill else child.finish(for_good=True)

    def cost(self) -> tuple[float, int]:
        """Return the CPU seconds of every py-spy so far, and the RSS of the running ones."""
        with self._lock:
            costs = [child.cost() for child in self._children]
            return self._spent_s + sum(cpu_s for cpu_s, _ in costs), sum(rss for _, rss in costs)
