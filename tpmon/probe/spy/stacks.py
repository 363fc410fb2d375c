"""Sample the Python stacks of the ranks with py-spy, without ever stopping them.

py-spy reads the target's memory (process_vm_readv) and never attaches. One daemon thread runs one
py-spy at a time; what it may cost is in ``plan``.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.results.doctor import point_to
from tpmon.model.stacks import StackSlice
from tpmon.model.text.clean import name_failure
from tpmon.probe.base.deadline import Pace
from tpmon.probe.base.procread import PROC, read_apart, read_file, read_stat
from tpmon.probe.job.loop_thread import LoopThreads
from tpmon.probe.proc.access import explain_refusal, parse_tracer, read_refusal
from tpmon.probe.spy.child import (
    CPU_LIMIT_S,
    NO_ANSWER,
    SpyChild,
    SpyOutcome,
    dump_arguments,
    find_spy,
    record_arguments,
    say_unstarted,
)
from tpmon.probe.spy.failure import FLOODED, explain_empty, say_costly, say_failed
from tpmon.probe.spy.plan import RETRY_S, SliceTurn, SpySubject, StackPlan, SubjectKind
from tpmon.probe.spy.text import Refusal, parse_complaint, parse_dump, parse_raw

OFF = Missing("stacks are off (--no-stacks)")
GRACE_S = 10.0
"""A py-spy that is not done so long after the end of its slice is killed."""
ENDING_S = 0.3
_HELD_S = 0.2
WAITING_SLICES = 64
SOURCE = "py-spy, without a stop, one slice at a time"
_NO_RANK = Missing("stacks: no rank to sample yet")
_NO_SLICE = Missing("no stack was sampled yet")


class StackSampler:
    """Own the daemon thread and its py-spy. Every method returns at once."""

    def __init__(self, *, enabled: bool = True, proc: str = PROC, loops: LoopThreads | None = None) -> None:
        """Sample nothing until ``start`` and ``watch``; never, when not ``enabled``.

        ``loops`` learns from each slice which thread of a rank runs its loop.
        """
        self._enabled = enabled
        self._proc = proc
        self._loops = loops or LoopThreads(proc)
        self._plan = StackPlan(time.monotonic_ns())
        self._child = SpyChild()
        self._turn: SliceTurn | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._holds = 0
        self._slices: deque[StackSlice] = deque(maxlen=WAITING_SLICES)
        self._last_ns: Known[int] = _NO_SLICE
        self._off: Known[str] = "" if enabled else OFF
        self._no_ranks = True

    def start(self) -> None:
        """Start the daemon thread."""
        if self._enabled:
            threading.Thread(target=self._run, name="tpmon-stacks", daemon=True).start()

    def stop(self) -> None:
        """Kill the py-spy that runs and end the thread; never waits."""
        self._stopped = True
        self._child.stop()
        self._wake.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Sample nothing within: a dump that stops a process must not meet a py-spy that reads it."""
        with self._lock:
            self._holds += 1
        self._child.stop()
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1
                if not self._holds and not self._stopped:
                    self._child.allow()
            self._wake.set()

    def watch(self, subjects: Iterable[SpySubject], pace: Pace = Pace.FULL) -> None:
        """Name the ranks there are now, and how much may be spent on them."""
        if not self._enabled:
            return
        named = tuple(subjects)
        with self._lock:
            self._no_ranks = not named
            news = self._plan.watch(named)
            more = self._plan.set_pace(pace)
            if more and self._turn is not None and self._turn.kind is SubjectKind.SLICE:
                self._child.finish()  # it began before what has changed
        if news or more:
            self._wake.set()

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
        """Return the CPU seconds of every py-spy so far, and the RSS of the one that runs."""
        return self._child.cost()

    def _run(self) -> None:
        failures = 0
        while not self._stopped:
            try:
                wait_s = self._step()
                failures = 0
            except Exception as error:  # noqa: BLE001  # shown as the reason; off after two
                failures += 1
                wait_s = 1.0
                with self._lock:
                    self._off = Missing(f"stacks: failed: {name_failure(error)}")
                if failures == 2:
                    return
            if wait_s > 0:
                self._wake.wait(wait_s)
                self._wake.clear()

    def _step(self) -> float:
        """Take one turn, or return how many seconds to wait before the next."""
        spy = find_spy()
        if not is_known(spy):
            with self._lock:
                self._off = Missing(f"stacks: {spy.reason}")
            return RETRY_S
        with self._lock:
            self._off = ""
            if self._holds:
                return _HELD_S
            turn = self._plan.next(time.monotonic_ns())
        if not isinstance(turn, SliceTurn):
            return turn
        answer = read_apart(lambda: self._take_turn(turn, spy))
        if isinstance(answer, Missing):
            self._refuse(turn, 0.0, f"failed: {answer.reason}", final=False)
        return 0.0

    def _take_turn(self, turn: SliceTurn, spy: str) -> None:
        pid = turn.subject.identity.pid
        tracer = self._read_tracer(turn.subject)
        if not is_known(tracer):
            with self._lock:
                self._plan.forget(turn)
            return
        if tracer:
            with self._lock:
                held = f"not sampled while pid {tracer} traces the process"
                self._plan.postpone(turn, held, time.monotonic_ns())
            return
        arguments = (
            dump_arguments(pid)
            if turn.kind is SubjectKind.DUMP
            else record_arguments(pid, turn.rate_hz, turn.seconds)
        )
        begun_s = time.thread_time()
        with self._lock:
            self._turn = turn
        try:
            outcome = self._child.run((spy, *arguments), turn.seconds + GRACE_S)
        except OSError as error:
            self._refuse(turn, 0.0, say_unstarted(error), final=True)
            return
        finally:
            with self._lock:
                self._turn = None
        if not self._stopped:
            self._settle(turn, outcome, begun_s)

    def _read_tracer(self, subject: SpySubject) -> Known[int]:
        """Return who traces the process, 0 for nobody; Missing when it is gone."""
        pid = subject.identity.pid
        try:
            stat = read_stat(pid, self._proc)
            tracer = parse_tracer(read_file(f"{self._proc}/{pid}/status"))
        except OSError as error:
            return Missing(str(error))
        if stat.start_ticks != subject.identity.start_ticks or stat.state in "ZX":
            return Missing("it ended")
        return tracer

    def _settle(self, turn: SliceTurn, outcome: SpyOutcome, begun_s: float) -> None:
        ended_ns = time.monotonic_ns()
        ended = datetime.now().astimezone()
        pid = turn.subject.identity.pid
        if self._holds and outcome.status == -signal.SIGKILL:
            with self._lock:
                self._plan.charge(turn, outcome.cpu_s * 1000, ended_ns)
            return
        if outcome.status or outcome.late or outcome.flooded:
            self._complain(turn, outcome)
            return
        parse = parse_dump if turn.kind is SubjectKind.DUMP else parse_raw
        identity = turn.subject.identity
        sampled = parse(outcome.output, pid, self._loops.said(identity))
        loop_tid = pid
        if sampled.stacks and not turn.subject.is_worker:
            loop_tid = self._loops.learn(identity, sampled.stacks, ended_ns)
        cpu_ms = (outcome.cpu_s + time.thread_time() - begun_s) * 1000
        if not sampled.stacks:
            if not is_known(self._read_tracer(turn.subject)):
                self._forget(turn, cpu_ms)
                return
            self._refuse(turn, cpu_ms, explain_empty(sampled, outcome.output), final=False)
            return
        samples = sampled.count(loop_tid)
        piece = StackSlice(
            pid=pid,
            rank=turn.subject.rank,
            ended=ended,
            ended_ns=ended_ns,
            seconds=outcome.wall_s if turn.kind is SubjectKind.SLICE else 0.0,
            rate_hz=float(turn.rate_hz),
            samples=samples,
            stacks=sampled.stacks,
            loop_tid=loop_tid if loop_tid != pid else NOT_APPLICABLE,
        )
        with self._lock:
            self._plan.settle(turn, cpu_ms, samples, sampled.frames, time.monotonic_ns())
            self._slices.append(piece)
            self._last_ns = ended_ns

    def _complain(self, turn: SliceTurn, outcome: SpyOutcome) -> None:
        cpu_ms = outcome.cpu_s * 1000
        if outcome.status == -signal.SIGXCPU:
            self._refuse(turn, cpu_ms, say_costly(CPU_LIMIT_S), final=True)
            return
        if outcome.late:
            self._refuse(turn, cpu_ms, NO_ANSWER, final=False)
            return
        if outcome.flooded:
            self._refuse(turn, cpu_ms, FLOODED, final=True)
            return
        pid = turn.subject.identity.pid
        refusal, text = parse_complaint(outcome.errors)
        if refusal is Refusal.OTHER:
            # One that is just ending takes a moment to be gone.
            time.sleep(ENDING_S)
        if refusal is Refusal.GONE or not is_known(self._read_tracer(turn.subject)):
            self._forget(turn, cpu_ms)
        elif refusal is Refusal.PERMISSION:
            reason = explain_refusal(read_refusal(pid, self._proc))
            self._refuse(turn, cpu_ms, reason, final=True)
        elif refusal is Refusal.UNKNOWN_PYTHON:
            self._refuse(
                turn, cpu_ms, point_to(f"py-spy does not know its Python: {text}", "stacks"), final=False
            )
        else:
            self._refuse(turn, cpu_ms, say_failed(text), final=False)

    def _forget(self, turn: SliceTurn, cpu_ms: float) -> None:
        """Charge a run on a process that ended meanwhile, which is no failure, and leave it out."""
        with self._lock:
            self._plan.refuse(turn, cpu_ms, "", time.monotonic_ns(), final=False)
            self._plan.forget(turn)

    def _refuse(self, turn: SliceTurn, cpu_ms: float, reason: str, *, final: bool) -> None:
        with self._lock:
            self._plan.refuse(turn, cpu_ms, reason, time.monotonic_ns(), final=final)
