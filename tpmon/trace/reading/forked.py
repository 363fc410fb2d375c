"""Do tasks in children that fork from this process: they see what it holds, and send their results back."""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

R = TypeVar("R")


class Forked(Generic[R]):
    """Hold a child that does a task, whose result comes back through a pipe."""

    def __init__(self, task: Callable[[], R]) -> None:
        self._task = task
        begin, end = os.pipe()
        self._answer = os.fdopen(begin, "rb")
        try:
            self._pid = os.fork()
        except OSError:  # no room for another process: it is done here
            self._pid = -1
        if self._pid == 0:
            self._work(end)
        os.close(end)

    def _work(self, end: int) -> None:
        try:
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(one, signal.SIG_DFL)
            self._answer.close()  # else it would wait for ever where the parent is killed
            with os.fdopen(end, "wb") as stream:
                pickle.dump(self._task(), stream, pickle.HIGHEST_PROTOCOL)
            os._exit(0)
        finally:
            os._exit(1)

    def receive(self) -> R:
        """Wait for the result; where the child was killed, or the task failed, it is done here."""
        try:
            result: R = pickle.load(self._answer)  # noqa: S301  # of our own child
        except (EOFError, pickle.UnpicklingError):
            return self._task()
        return result

    def end(self) -> None:
        """End the child, whatever it does."""
        self._answer.close()
        if self._pid > 0:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def start_apart(stack: ExitStack, task: Callable[[], R], *, apart: bool) -> Callable[[], R]:
    """Begin a task in a child, and return what waits for its result; not ``apart`` that does the task itself.

    The child ends with ``stack``.
    """
    if not apart:
        return task
    child = Forked(task)
    stack.callback(child.end)
    return child.receive


def each_result(tasks: Sequence[Callable[[], R]], count: int) -> Generator[Callable[[], R], None, None]:
    """Give for each task in turn what waits for its result, while ``count`` children work at a time.

    Close it where not all of them are taken: the children end.
    """
    waiting = deque(tasks)
    begun: deque[Forked[R]] = deque()
    try:
        while waiting or begun:
            while waiting and len(begun) < count:
                begun.append(Forked(waiting.popleft()))
            yield begun[0].receive
            begun.popleft().end()
    finally:
        for child in begun:
            child.end()
