"""Run what can block in daemon threads: requests, repeated steps, many reads at once, one with a deadline.

Nobody joins these threads, so a source that hangs never stops the loop, the screen or the exit. The kernel
may keep the process for one; then ``supervisor`` ends the command.

Threads are limited per container (pids.max of its control group) and per user (ulimit -u). The job shares
these limits, and may fail at its next loader worker.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import resource
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from tpmon.errors import TpmonError, UsageError
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.probe.base.cgroup_tree import JobGroups
from tpmon.probe.base.procread import PROC, read_apart, read_file

S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K")
A = TypeVar("A")

OVERDUE_S = 5.0  # after so long without an answer the last value of a source is no longer shown
NICENESS = 10  # of what packs a trace: the training comes first
UNGUARDED = "not read: "  # begins the reason of a read for which no thread could be started
_NO_THREAD = "can't start new thread"  # CPython's words for any cause (Modules/_threadmodule.c)
_MOST_FAILURES = 2


class Pace(Enum):
    """Name a pace; each probe has its own numbers for it."""

    FULL = "full"
    SHED = "shed"  # tpmon is over its own budget
    SETTLED = "settled"  # the verdict has stood for a minute, and nothing begins to contradict it


def step_aside() -> None:
    """Run as SCHED_BATCH: a fair share, but no preemption of a training thread on wake-up (sched(7)).

    Threads and children started later inherit it, so call this before the first one starts.
    """
    with contextlib.suppress(OSError):  # a sandbox may refuse it; tpmon then runs as any program
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def step_back() -> None:
    """Lower the priority of this thread, which packs a trace and then ends: the training comes first."""
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
        os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def start_thread(name: str, run: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread that calls ``run``; UsageError where the machine lets none be started."""
    thread = threading.Thread(target=run, name=f"tpmon-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise explain_limit(error) or error from None
    return thread


def explain_limit(error: BaseException, proc: str = PROC) -> UsageError | None:
    """Explain by a used-up limit why a thread could not be started; None for any other error."""
    if not isinstance(error, RuntimeError) or _NO_THREAD not in str(error):
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    of_user = "" if soft == resource.RLIM_INFINITY else f"this user may have {soft} (ulimit -u)"
    said = ", ".join(filter(None, (_describe_group_limit(proc), of_user)))
    said = said or "the machine, or its memory limit, lets none be made"
    return UsageError(
        f"no thread can be started: {said}; the job may fail for the same reason, at its next worker",
        "end what is left over, or raise the limit (docker run --pids-limit, TasksMax=, ulimit -u)",
    )


def _describe_group_limit(proc: str) -> str:
    """Say how full the fullest control group above tpmon is; "" where no limit is in view."""
    group = JobGroups((os.getpid(),), proc).common("pids")
    found: list[tuple[int, str]] = []
    for one in group.lineage() if is_known(group) else ():
        try:
            current = int(read_file(f"{one.directory}/pids.current", 64))
            most = int(read_file(f"{one.directory}/pids.max", 64))
        except (OSError, ValueError):
            continue  # the root has no such files, and "max" is no limit
        said = f"{current} of {most} processes and threads of {one.label()} are used (pids.max)"
        found.append((most - current, said))
    return min(found)[1] if found else ""


class Worker(Generic[S]):
    """Do one thing at a time in a daemon thread: a request, or a repeated step; nobody waits for it.

    ``on_change`` is called, in any thread, when ``state`` (how far the newest request is) has changed.
    """

    def __init__(self, name: str) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.stopped = threading.Event()
        self.off = ""  # why a repeated step was given up; "" while it works
        self.failure: TpmonError | None = None  # of the newest request, for a command to end with
        self._name = name
        self._lock = threading.RLock()
        self._state: Applicable[S] = NOT_APPLICABLE
        self.is_busy = False
        self._wake = threading.Event()

    @property
    def state(self) -> Applicable[S]:
        """Return how far the newest request is; not applicable before the first."""
        with self._lock:
            return self._state

    def stop(self) -> None:
        """Begin nothing more, and end the repetition after the current step; never waits."""
        self.stopped.set()
        self._wake.set()

    def wake(self) -> None:
        """Take the next repeated step now."""
        self._wake.set()

    def change(self, make: Callable[[Applicable[S]], S]) -> None:
        """Replace the state by what ``make`` returns for it."""
        with self._lock:
            self._state = make(self._state)
        self.on_change()

    def begin(
        self,
        work: Callable[[], T],
        done: Callable[[Applicable[S], Known[T]], Applicable[S]],
        first: Applicable[S] = NOT_APPLICABLE,
    ) -> bool:
        """Call ``work`` in the thread unless it is busy or stopped; return whether it was begun.

        The state is ``first`` meanwhile, then what ``done`` returns for the last state and the answer
        (Missing after an unforeseen failure). ``done`` is called under the lock. UsageError where no thread
        can be started.
        """
        with self._lock:
            if self.is_busy or self.stopped.is_set():
                return False
            self.is_busy = True
            self._state = first if is_known(first) else self._state

        def attempt() -> T:
            try:
                return work()
            except TpmonError as error:
                self.failure = error
                raise

        def run() -> None:
            self.failure = None
            answer = read_apart(attempt)
            with self._lock:
                self.is_busy = False
                self._state = done(self._state, answer)
            self.on_change()

        try:
            start_thread(self._name, run)
        except UsageError as error:
            with self._lock:
                self.is_busy = False
                self._state = done(self._state, Missing(error.what))
            raise
        if is_known(first):
            self.on_change()
        return True

    def repeat(self, step: Callable[[], float], failed: Callable[[str], float]) -> None:
        """Call ``step`` until ``stop``; each call returns the seconds to the next, which ``wake`` cuts short.

        ``failed`` gets the reason of an unforeseen failure and returns the seconds; two in a row end the
        loop.
        """

        def loop() -> None:
            failures = 0
            while not self.stopped.is_set():
                wait_s = read_apart(step)
                failures = failures + 1 if isinstance(wait_s, Missing) else 0
                if isinstance(wait_s, Missing):
                    reason, wait_s = wait_s.reason, failed(wait_s.reason)
                    if failures == _MOST_FAILURES:
                        self.off = reason
                        return
                if wait_s > 0:
                    self._wake.wait(wait_s)
                    self._wake.clear()

        self.begin(loop, lambda state, _: state)


class Background(Generic[T]):
    """Call ``read`` every ``every_s`` seconds in one daemon thread and keep its newest value.

    OSError becomes Missing and is retried. Two other failures in a row turn the source off, with the reason.
    """

    def __init__(self, name: str, read: Callable[[], T], every_s: float) -> None:
        self._name = name
        self._read = read
        self._every_s = every_s
        self._worker = Worker[T](name)
        self._value: Known[T] = Missing(f"{name} not read yet")
        self._taken_ns = time.monotonic_ns()
        self._begun_ns = 0  # of the read under way

    def start(self) -> None:
        """Start the thread."""
        self._worker.repeat(self._step, self._fail)

    def stop(self) -> None:
        """End the thread after the current read; never waits."""
        self._worker.stop()

    @property
    def off(self) -> str:
        """Say why the source turned itself off; "" while it works."""
        return self._value.reason if self._worker.off and isinstance(self._value, Missing) else ""

    def latest(self) -> tuple[Known[T], float]:
        """Return the newest value and its age in seconds; Missing once a read is overdue."""
        now_ns = time.monotonic_ns()
        overdue = 0 < self._begun_ns < now_ns - OVERDUE_S * 1e9
        value = Missing(f"no answer within {OVERDUE_S:g} s") if overdue else self._value
        return value, (now_ns - self._taken_ns) / 1e9

    def _step(self) -> float:
        self._begun_ns = time.monotonic_ns()
        try:
            self._keep(self._read())
        except OSError as error:
            self._keep(Missing(error.strerror or str(error)))
        return self._every_s

    def _fail(self, reason: str) -> float:
        self._keep(Missing(f"{self._name} failed: {reason}"))
        return self._every_s

    def _keep(self, value: Known[T]) -> None:
        self._value, self._taken_ns, self._begun_ns = value, time.monotonic_ns(), 0


class Turns(Generic[K, A]):
    """Call ``work``, which must not raise, for several things at once, each in a thread that may be left."""

    def __init__(self, name: str, work: Callable[[K], A]) -> None:
        self._name = name
        self._work = work
        self._answers: queue.SimpleQueue[tuple[K, A]] = queue.SimpleQueue()
        self.active: dict[K, float] = {}  # whose answer is awaited, and until when (monotonic seconds)
        self.late: set[K] = set()  # given up, and still without an answer

    def begin(self, one: K, until_s: float) -> None:
        """Start the work for one."""
        self.active[one] = until_s
        start_thread(self._name, lambda: self._answers.put((one, self._work(one))))

    def give_up(self, end_s: float) -> list[K]:
        """Give up those whose time is over, or all after ``end_s``; return them."""
        now_s = time.monotonic()
        late = [one for one, until_s in self.active.items() if now_s >= min(until_s, end_s)]
        for one in late:
            del self.active[one]
            self.late.add(one)
        return late

    def wait(self, until_s: float) -> tuple[K, A] | None:
        """Return the next answer before ``until_s``; None without one, or for one that was given up."""
        try:
            one, answer = self._answers.get(timeout=max(until_s - time.monotonic(), 0.001))
        except queue.Empty:
            return None
        self.late.discard(one)
        return None if self.active.pop(one, None) is None else (one, answer)


def read_all(name: str, reads: Sequence[tuple[Callable[[], A], float]], most: int) -> list[A | None]:
    """Call each of ``reads`` in a thread, ``most`` at once; None without an answer in its seconds."""
    turns = Turns[int, A](name, lambda number: reads[number][0]())
    begun_s = time.monotonic()
    waiting = deque(range(len(reads)))
    answers: list[A | None] = [None] * len(reads)
    while waiting or turns.active:
        while waiting and len(turns.active) < most:
            number = waiting.popleft()
            if (until_s := begun_s + reads[number][1]) > time.monotonic():
                turns.begin(number, until_s)
        if turns.active and (got := turns.wait(min(turns.active.values()))) is not None:
            answers[got[0]] = got[1]
        turns.give_up(math.inf)
    return answers


def read_within(seconds: float, read: Callable[[], T]) -> Known[T]:
    """Run ``read`` in a daemon thread; OSError, no thread and no answer are Missing, other errors raised."""
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
    """Read one byte of a file, or look at its folder where there is none; True whatever happens."""
    with contextlib.suppress(OSError, ValueError):
        if not os.path.lexists(path):
            os.stat(os.path.dirname(path) or os.curdir)
        elif stat.S_ISREG(os.stat(path).st_mode):  # to read a pipe would take from it
            with open(path, "rb", buffering=0) as file:
                file.read(1)
    return True
