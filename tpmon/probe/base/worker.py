"""Run in daemon threads what can block: requests, steps that repeat, many reads at once, one with a deadline.

A source that hangs ages; it never stops the loop, the screen or the exit: nobody joins its thread. The
kernel may keep the process with it: ``supervisor`` ends the command.

A container has a limit of threads of its own (pids.max of its control group), a user another one (ulimit -u).
Who shares them with tpmon is held by them too: the job may fail at its next loader worker.
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

OVERDUE_S = 5.0
"""What a source said before is not shown for longer once it does not answer."""
NICENESS = 10
"""Of what packs a trace: the training beside it comes first."""
UNGUARDED = "not read: "
"""Begins the reason of a read that was not begun: the system let no thread be started for it."""
_NO_THREAD = "can't start new thread"
"""What CPython says, whatever the reason (Modules/_threadmodule.c)."""
_MOST_FAILURES = 2


class Pace(Enum):
    """Name a pace; each probe says in its own numbers what that means."""

    FULL = "full"
    SHED = "shed"
    """tpmon is over its own budget."""
    SETTLED = "settled"
    """The verdict has stood for a minute, and nothing begins to contradict it."""


def step_aside() -> None:
    """Let tpmon never push a training thread off its CPU when it wakes up.

    A SCHED_BATCH task has its fair share but does not preempt on wake-up (sched(7)). Threads and
    children started later inherit it. Call before the first thread is started.
    """
    with contextlib.suppress(OSError):  # a sandbox may refuse it; tpmon then runs as any program
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def step_back() -> None:
    """Leave the CPUs to the training: this thread packs what was written, and then ends."""
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
    """Turn the failure to start a thread into what used the limit up; None for any other error."""
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
    """Say how full the fullest control group above tpmon is; "" where none with a limit may be seen."""
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
    """Do one thing at a time in a daemon thread: a request, or a step again and again; nobody waits for it.

    ``on_change`` is called, in any thread, when ``state`` has changed: how far the newest request is.
    """

    def __init__(self, name: str) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.stopped = threading.Event()
        self.off = ""
        """Why what repeats ended itself; "" while it works."""
        self.failure: TpmonError | None = None
        """What the newest request was refused with, for a command to end with."""
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
        """Begin nothing any more, and end what repeats after the step it is in; never waits."""
        self.stopped.set()
        self._wake.set()

    def wake(self) -> None:
        """Take the next step of what repeats now."""
        self._wake.set()

    def change(self, make: Callable[[Applicable[S]], S]) -> None:
        """Put what ``make`` makes of the state in its place."""
        with self._lock:
            self._state = make(self._state)
        self.on_change()

    def begin(
        self,
        work: Callable[[], T],
        done: Callable[[Applicable[S], Known[T]], Applicable[S]],
        first: Applicable[S] = NOT_APPLICABLE,
    ) -> bool:
        """Call ``work`` in the thread, unless it is busy or was stopped; tell whether it was begun.

        The state is ``first`` meanwhile, and then what ``done`` makes of the last one and the answer, or
        the reason of a failure that nobody foresaw. ``done`` is called under the lock.
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
        """Call ``step`` until ``stop``, each after the seconds that the one before returned, or ``wake``.

        ``failed`` gets the reason of a failure that nobody foresaw, and returns the seconds; the second in
        a row is the last.
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

    ``read`` may raise OSError (becomes Missing, retried). Two other failures in a row turn the
    source off for good; its reason stays as Missing.
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
        """Begin to read."""
        self._worker.repeat(self._step, self._fail)

    def stop(self) -> None:
        """Ask the thread to end after the read it is in; never waits."""
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
    """Call ``work`` for several things at once, each in a daemon thread; who is late is left to itself.

    ``work`` turns its failures into answers itself.
    """

    def __init__(self, name: str, work: Callable[[K], A]) -> None:
        self._name = name
        self._work = work
        self._answers: queue.SimpleQueue[tuple[K, A]] = queue.SimpleQueue()
        self.active: dict[K, float] = {}
        """Whose answer is waited for, and until when (monotonic)."""
        self.late: set[K] = set()
        """Whose answer is not waited for any more and has not come."""

    def begin(self, one: K, until_s: float) -> None:
        """Begin the work for one."""
        self.active[one] = until_s
        start_thread(self._name, lambda: self._answers.put((one, self._work(one))))

    def give_up(self, end_s: float) -> list[K]:
        """Wait no longer for those whose time is over, or for anyone after ``end_s``; return them."""
        now_s = time.monotonic()
        late = [one for one, until_s in self.active.items() if now_s >= min(until_s, end_s)]
        for one in late:
            del self.active[one]
            self.late.add(one)
        return late

    def wait(self, until_s: float) -> tuple[K, A] | None:
        """Return the next answer in time; None where ``until_s`` comes before it, or one that is late."""
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
    """Run ``read`` in a daemon thread of its own and wait at most ``seconds`` for it.

    An OSError of it and a thread that the system refuses are Missing; any other exception is raised here.
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
    with contextlib.suppress(OSError, ValueError):
        if not os.path.lexists(path):
            os.stat(os.path.dirname(path) or os.curdir)
        elif stat.S_ISREG(os.stat(path).st_mode):  # to read a pipe would take from it
            with open(path, "rb", buffering=0) as file:
                file.read(1)
    return True
