"""Sample the Python stacks of the ranks with py-spy, without ever stopping them.

py-spy reads the target's memory (process_vm_readv) and never attaches. One daemon thread runs one py-spy at a
time; ``plan`` bounds its cost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial

from tpmon.model.dump import ErrorKind
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.stacks import StackSlice
from tpmon.probe.base.procread import PROC, read_apart, read_file, read_or
from tpmon.probe.base.worker import Pace, Worker
from tpmon.probe.job.loop_thread import LoopThreads
from tpmon.probe.proc.access import parse_tracer
from tpmon.probe.spy.failure import Failure, confirm, find_gone, find_spy
from tpmon.probe.spy.plan import RETRY_S, SliceTurn, SpySubject, StackPlan
from tpmon.probe.spy.pool import SpyAnswer, SpyPool, SpyRequest, dump_arguments, record_arguments
from tpmon.probe.spy.source import SourceReader
from tpmon.probe.spy.text import parse_dump, parse_raw

OFF = Missing("stacks are off (--no-stacks)")
GRACE_S = 10.0  # after the end of its slice, before py-spy is killed
_HELD_S = 0.2
WAITING_SLICES = 64
SOURCE = "py-spy, without a stop, one slice at a time"
_NO_RANK = Missing("stacks: no rank to sample yet")
_NO_SLICE = Missing("no stack was sampled yet")


class StackSampler:
    """Own the daemon thread and its py-spy. Every method returns at once."""

    def __init__(self, *, enabled: bool = True, loops: LoopThreads | None = None) -> None:
        """Sample nothing until ``start`` and ``watch``; ``loops`` learns which thread runs a rank's loop."""
        self._enabled = enabled
        self._loops = loops or LoopThreads()
        self._plan = StackPlan(time.monotonic_ns())
        self._pool = SpyPool()
        self._source = SourceReader()
        self._worker = Worker[None]("stacks")
        self._slicing = False  # the current turn is a slice
        self._lock = threading.Lock()
        self._slices: deque[StackSlice] = deque(maxlen=WAITING_SLICES)
        self._last_ns: Known[int] = _NO_SLICE
        self._off: Known[str] = "" if enabled else OFF
        self._no_ranks = True

    def start(self) -> None:
        """Start the daemon thread."""
        if self._enabled:
            self._worker.repeat(self._step, self._fail)

    def stop(self) -> None:
        """Kill the py-spy that runs and end the thread; never waits."""
        self._worker.stop()
        self._pool.close(kill=True)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Sample nothing within: a dump that stops a process must not meet a py-spy that reads it."""
        with self._pool.suspend(kill=True):
            yield
        self._worker.wake()

    def watch(self, subjects: Iterable[SpySubject], pace: Pace = Pace.FULL) -> None:
        """Name the ranks there are now, and how much may be spent on them."""
        if not self._enabled:
            return
        named = tuple(subjects)
        with self._lock:
            self._no_ranks = not named
            news = self._plan.watch(named)
            more = self._plan.set_pace(pace)
            if more and self._slicing:
                self._pool.shorten()  # it began before the change
        if news or more:
            self._worker.wake()

    def take(self) -> Known[tuple[StackSlice, ...]]:
        """Return the slices that ended since the last call, or why there can be none."""
        with self._lock:
            if not is_known(self._off):
                return self._off
            if self._slices:
                ended = tuple(self._slices)
                self._slices.clear()
                return ended
            if self._no_ranks:
                return _NO_RANK
            if self._plan.all_refused():
                return Missing(f"stacks: {self._plan.refusals()[0][1]}")
            return ()

    def age_s(self, now_ns: int) -> Known[float]:
        """Return how long ago the last slice ended."""
        with self._lock:
            if not is_known(self._off):
                return self._off
            return (now_ns - self._last_ns) / 1e9 if is_known(self._last_ns) else self._last_ns

    def source(self) -> str:
        """Say how stacks are read, and of which rank they cannot be."""
        with self._lock:
            if not is_known(self._off):
                return self._off.reason
            refused = self._plan.refusals()
        told = [f"rank {rank}: {reason}" if is_known(rank) else reason for rank, reason in refused[:4]]
        return "; ".join((SOURCE, *told))

    def cost(self) -> tuple[float, int]:
        """Return the CPU seconds of every py-spy so far, and the RSS of the running one."""
        return self._pool.cost()

    def _fail(self, reason: str) -> float:
        with self._lock:
            self._off = Missing(f"stacks: failed: {reason}")
        return 1.0

    def _step(self) -> float:
        """Take one turn, or return the seconds to wait before the next."""
        spy = find_spy()
        if not is_known(spy):
            with self._lock:
                self._off = Missing(f"stacks: {spy.reason}")
            return RETRY_S
        with self._lock:
            self._off = ""
            if self._pool.suspended:
                return _HELD_S
            turn = self._plan.next(time.monotonic_ns())
            if not isinstance(turn, SliceTurn):
                return turn
            self._slicing = not turn.is_dump
        begun_s = time.thread_time()
        failure = read_apart(lambda: self._take_turn(turn, spy, begun_s))
        with self._lock:
            self._slicing = False
        if isinstance(failure, Missing):
            failure = Failure(ErrorKind.FAILED, f"failed: {failure.reason}")
        if failure is not None and not self._worker.stopped.is_set():
            self._refuse(turn, failure)
        return 0.0

    def _take_turn(self, turn: SliceTurn, spy: str, begun_s: float) -> Failure | None:
        identity, seconds = turn.subject.identity, turn.seconds
        pid, told = identity.pid, self._loops.said(identity)
        if (gone := find_gone(identity)) is not None:
            return replace(gone, kind=ErrorKind.GONE)
        if tracer := parse_tracer(read_or(b"", lambda: read_file(f"{PROC}/{pid}/status"))):
            return Failure(ErrorKind.TRACED, f"not sampled while pid {tracer} traces the process")
        arguments, parse = record_arguments(pid, turn.rate_hz, seconds), parse_raw
        if turn.is_dump:
            arguments, parse = dump_arguments(pid), parse_dump
        request = SpyRequest(pid, arguments, partial(parse, pid=pid, loop_tid=told), seconds + GRACE_S)
        answer = self._pool.run(spy, request)
        if isinstance(answer, Failure):
            return confirm(identity, answer)
        self._keep(turn, answer, begun_s)
        return None

    def _keep(self, turn: SliceTurn, answer: SpyAnswer, begun_s: float) -> None:
        ended_ns, ended = time.monotonic_ns(), datetime.now().astimezone()
        sampled, identity = answer.sampled, turn.subject.identity
        loop_tid = pid = identity.pid
        if not turn.subject.is_worker:
            loop_tid = self._loops.learn(identity, sampled.stacks, ended_ns)
        cpu_ms = (answer.outcome.cpu_s + time.thread_time() - begun_s) * 1000
        samples = sampled.count(loop_tid)
        piece = StackSlice(
            pid=pid,
            rank=turn.subject.rank,
            ended=ended,
            ended_ns=ended_ns,
            seconds=0.0 if turn.is_dump else answer.outcome.wall_s,
            rate_hz=float(turn.rate_hz),
            samples=samples,
            stacks=sampled.counts,
            loop_tid=loop_tid if loop_tid != pid else NOT_APPLICABLE,
            source=self._source.read(pid, [one for one in sampled.stacks if one.tid == loop_tid]),
        )
        with self._lock:
            self._plan.settle(turn, cpu_ms, samples, sampled.frames, time.monotonic_ns())
            self._slices.append(piece)
            self._last_ns = ended_ns

    def _refuse(self, turn: SliceTurn, failure: Failure) -> None:
        """Charge a run that gave nothing; where the process ended or is held that is no failure."""
        now_ns, cpu_ms = time.monotonic_ns(), failure.cpu_s * 1000
        with self._lock:
            if failure.kind is ErrorKind.TRACED:
                self._plan.postpone(turn, failure.reason, now_ns)
            elif failure.kind is ErrorKind.BUSY:
                self._plan.charge(turn, cpu_ms, now_ns)
            elif failure.kind is ErrorKind.GONE:
                self._plan.charge(turn, cpu_ms, now_ns)
                self._plan.forget(turn)
            else:
                self._plan.refuse(turn, cpu_ms, failure.reason, now_ns, final=failure.is_final)
