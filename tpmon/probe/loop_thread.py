"""Tell which thread of a process runs the training loop: the main one, unless that only waits for another.

Ray Train and Ray Tune, wandb.agent, and training behind a button of a web page run the loop in a
thread. Everything that is read of a rank's main thread is then read of that thread instead.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache

from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity, LoopThread
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.job import Member
from tpmon.probe.procread import PROC
from tpmon.probe.thread_numbers import number_stacks

MAIN_S = 120.0
"""A main thread that trained so lately still does: it waits for a batch that another thread fetches."""


class _Trains(IntEnum):
    """Say how surely a frame is of a training loop."""

    NO = 0
    MAYBE = 1
    """A thread that prefetches batches or saves a checkpoint may show it too."""
    YES = 2


_MAYBE = (
    "torch/utils/data/dataloader.py",
    "torch/nn/modules/module.py",
    "torch/distributed/distributed_c10d.py",
)
_BACKWARD = ("torch/_tensor.py", "torch/autograd/__init__.py", "torch/autograd/graph.py")
_OPTIMIZER = "torch/optim/"
_FEEDS = ("queue.py", "multiprocessing/queues.py")
_RESTS = {
    "threading.py": frozenset(("join", "wait", "_wait_for_tstate_lock")),
    "concurrent/futures/_base.py": frozenset(("result", "wait", "exception")),
    "selectors.py": frozenset(("select",)),
    "ray/_private/worker.py": frozenset(("main_loop",)),
}
"""Functions in which a thread waits for others, by the end of their file's path."""


def _last_name(function: str) -> str:
    return function.rpartition(".")[2]


@lru_cache(maxsize=4096)
def _weigh(file: str, function: str) -> _Trains:
    if _OPTIMIZER in file or (file.endswith(_BACKWARD) and "backward" in function):
        return _Trains.YES
    return _Trains.MAYBE if file.endswith(_MAYBE) else _Trains.NO


def _trains(frames: Sequence[StackFrame]) -> _Trains:
    return max((_weigh(frame.file, frame.function) for frame in frames), default=_Trains.NO)


def _rests(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a thread waits for another one, and not for something that one hands over."""
    if not frames or any(frame.file.endswith(_FEEDS) for frame in frames):
        return False
    last = frames[-1]
    return any(
        last.file.endswith(file) and _last_name(last.function) in names for file, names in _RESTS.items()
    )


def find_loop(stacks: Sequence[StackCount], pid: int) -> StackCount | None:
    """Return a stack of the thread that trains in the main one's place; None where the main one does. Pure.

    ``stacks`` are of one process, the main thread's under its ``pid``. An optimizer's step or a backward in
    another thread tells, while the main one shows nothing of a training; a loader or a module only where
    the main thread waits for another to end.
    """
    main = [one for one in stacks if one.tid == pid]
    if not main or any(_trains(one.frames) for one in main):
        return None
    others = [(_trains(one.frames), one) for one in stacks if one.tid != pid]
    rests = all(_rests(one.frames) for one in main)
    for least in (_Trains.YES, _Trains.MAYBE) if rests else (_Trains.YES,):
        samples: Counter[int] = Counter()
        for trains, one in others:
            if trains >= least:
                samples[one.tid] += one.samples
        if samples:
            most = max(samples, key=lambda tid: (samples[tid], -tid))
            return next(one for one in stacks if one.tid == most)
    return None


class LoopThreads:
    """Remember which ranks train in a thread of their own. Any thread may ask; nobody waits."""

    def __init__(self, proc: str = PROC) -> None:
        """Take the main thread of each process until its stacks tell another."""
        self._proc = proc
        self._lock = threading.Lock()
        self._loops: dict[Identity, tuple[LoopThread, int]] = {}
        """Of a process: its loop's thread, and the number that py-spy gives it."""
        self._main_ns: dict[Identity, int] = {}
        """When the main thread was last seen to train."""
        self._marked: tuple[Sequence[Member], tuple[Member, ...]] = ((), ())
        """The members of the last call, and what was returned."""

    def learn(self, identity: Identity, stacks: Sequence[StackCount], now_ns: int) -> int:
        """Learn from stacks of a process, and return under which number its loop stands in them.

        ``now_ns`` is CLOCK_MONOTONIC.
        """
        pid = identity.pid
        with self._lock:
            known, main_ns = self._loops.get(identity), self._main_ns.get(identity)
        if any(_trains(one.frames) for one in stacks if one.tid == pid):
            self._forget(identity)
            with self._lock:
                self._main_ns[identity] = now_ns
            return pid
        if known is not None and any(one.tid == known[1] for one in stacks):
            return known[1]
        self._forget(identity)
        found = find_loop(stacks, pid)
        if found is None or (main_ns is not None and now_ns - main_ns < MAIN_S * 1e9):
            return pid
        loop = read_loop(pid, found, self._proc)
        if not is_known(loop):
            return pid
        with self._lock:
            self._loops[identity] = loop, found.tid
            self._marked = ((), ())
        return found.tid

    def tids(self) -> dict[Identity, int]:
        """Return the threads of training loops that are no main threads."""
        with self._lock:
            return {identity: loop.tid for identity, (loop, _) in self._loops.items()}

    def mark(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """Return the members, those whose loop runs in a thread with that thread.

        It is one and the same tuple as long as nothing changes.
        """
        with self._lock:
            if not self._loops:
                return members
            if self._marked[0] is not members:
                marked = tuple(self._mark(one) for one in members)
                self._marked = (members, marked)
                living = {one.identity for one in members}
                for gone in [one for one in self._loops if one not in living]:
                    del self._loops[gone]
            return self._marked[1]

    def _mark(self, member: Member) -> Member:
        known = self._loops.get(member.identity)
        return member if known is None else replace(member, loop=known[0])

    def _forget(self, identity: Identity) -> None:
        with self._lock:
            if self._loops.pop(identity, None) is not None:
                self._marked = ((), ())


def read_loop(pid: int, stack: StackCount, proc: str = PROC) -> Applicable[LoopThread]:
    """Read the kernel's number of a loop's thread; not applicable where it cannot be told, or is gone."""
    with suppress(OSError):
        here = {int(name) for name in os.listdir(f"{proc}/{pid}/task") if name.isdigit()}
        tid, _ = number_stacks(pid, (stack,), here, proc)[0]
        if tid in here:
            return LoopThread(tid, stack.thread)
    return NOT_APPLICABLE


def describe_loops(members: Iterable[Member]) -> tuple[str, ...]:
    """Say of which ranks the loop does not run in the main thread."""
    return tuple(
        f"{f'rank {one.rank}' if is_known(one.rank) else one.label} trains in its thread"
        f" {one.loop.name} ({one.loop.tid}): what is said of a main thread is said of that one"
        for one in members
        if is_known(one.loop)
    )
