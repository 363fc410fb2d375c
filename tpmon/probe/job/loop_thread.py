"""Find the thread of a process that runs the training loop, where the main one only waits for it.

Ray Train and Ray Tune, wandb.agent, and training behind a button of a web page use such a thread; what is
read of a rank's main thread is then read of it.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from functools import lru_cache

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.process import Identity, LoopThread
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.base.procread import PROC, read_file
from tpmon.probe.job.job import Loop, Member
from tpmon.probe.proc.threads import number_stacks

MAIN_S = 120.0  # a main thread that trained so lately may wait for a batch that another thread fetches
QUIET_SAMPLES = 2
"""Samples of the main thread without training before another may be the loop (minutes, with many ranks)."""


class _Trains(IntEnum):
    """Say how surely a frame is of a training loop."""

    NO = 0
    COMPUTES = 1  # a model is called, as in a server or an actor
    MAYBE = 2  # a thread that prefetches batches or saves a checkpoint may show it too
    YES = 3


_COMPUTES = ("torch/nn/modules/module.py",)
_MAYBE = ("torch/utils/data/dataloader.py", "torch/distributed/distributed_c10d.py")
_BACKWARD = (
    "torch/_tensor.py",
    "torch/autograd/__init__.py",
    "torch/autograd/graph.py",
    "megatron/core/pipeline_parallel/schedules.py",
)
_OPTIMIZER = "torch/optim/"
_FEEDS = ("/queue.py", "/multiprocessing/queues.py")
_WAITS_FOR_THREAD = {
    "threading.py": frozenset(("join", "wait", "_wait_for_tstate_lock")),
    "concurrent/futures/_base.py": frozenset(("result", "wait", "exception")),
    "selectors.py": frozenset(("select",)),
    "asyncio/runners.py": frozenset(("run",)),
    "asyncio/base_events.py": frozenset(("run_forever", "_run_once")),
    "uvloop/__init__.py": frozenset(("run",)),
    "ray/_private/worker.py": frozenset(("main_loop",)),
    "gradio/blocks.py": frozenset(("block_thread",)),
}
"""Functions in which a thread waits for others, innermost, by the end of the file's path."""
_ASKS_THREAD = ("ray/train/_internal/session.py", "get_next")
"""Waits at a queue for what the loop's thread reports: the actor of Ray Train v1 and Ray Tune."""
_EXIT = ("threading.py", "_shutdown")
_POOL_WAITS = (("concurrent/futures/thread.py", "_worker"), ("queue.py", "get"), ("threading.py", "wait"))
_OF_LIBRARIES = re.compile(r"/lib/python3|/site-packages/|/dist-packages/|^<frozen")
_AUTOGRAD = b"pt_autograd"


def _is_at(frame: StackFrame, file: str, name: str) -> bool:
    return frame.file.endswith(file) and frame.function.rpartition(".")[2] == name


@lru_cache(maxsize=4096)
def _weigh(file: str, function: str) -> _Trains:
    steps = _OPTIMIZER in file and "step" in function  # not its state, nor its scheduler's
    if steps or (file.endswith(_BACKWARD) and "backward" in function):
        return _Trains.YES
    if file.endswith(_MAYBE):
        return _Trains.MAYBE
    return _Trains.COMPUTES if file.endswith(_COMPUTES) else _Trains.NO


def _trains(stacks: Iterable[StackCount], tid: int) -> _Trains:
    """Say how surely a thread trains, by all of its stacks."""
    return max(
        (_weigh(frame.file, frame.function) for one in stacks if one.tid == tid for frame in one.frames),
        default=_Trains.NO,
    )


def _rests(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a thread waits for another one, but not for data from it, nor at the exit."""
    if any(_is_at(frame, *_EXIT) for frame in frames):
        return False
    if any(_is_at(frame, *_ASKS_THREAD) for frame in frames):
        return True
    if any(frame.file.endswith(_FEEDS) for frame in frames):
        return False
    last = frames[-1]
    return any(_is_at(last, file, name) for file, names in _WAITS_FOR_THREAD.items() for name in names)


def _is_unused(stacks: Sequence[StackCount], tid: int) -> bool:
    """Tell whether a thread waits in a pool for its next task, and runs nothing of the program."""
    own = [one.frames for one in stacks if one.tid == tid and one.frames]
    return bool(own) and all(
        any(_is_at(frames[-1], *place) for place in _POOL_WAITS)
        and all(_OF_LIBRARIES.search(frame.file) for frame in frames)
        for frames in own
    )


def find_loop(stacks: Sequence[StackCount], pid: int, *, sure: bool = False) -> StackCount | None:
    """Return a stack of the thread that trains instead of the main one, None where the main one does. Pure.

    ``stacks`` are of one process, the main thread's under ``pid``. While that one shows no training, an
    optimizer step or a backward in another thread decides; a loader or a collective only where the main
    thread waits for another, and never when it must be ``sure``.
    """
    main = [one for one in stacks if one.tid == pid and one.frames]  # one without was torn while it was read
    if not main or _trains(main, pid):
        return None
    others = [(_trains((one,), one.tid), one) for one in stacks if one.tid != pid]
    rests = not sure and all(_rests(one.frames) for one in main)
    for least in (_Trains.YES, _Trains.MAYBE) if rests else (_Trains.YES,):
        samples: Counter[int] = Counter()
        for trains, one in others:
            if trains >= least:
                samples[one.tid] += one.samples
        if samples:
            most = max(samples, key=lambda tid: (samples[tid], -tid))
            return next(one for one in stacks if one.tid == most)
    return None


@dataclass(slots=True)
class _Seen:
    """Hold what the stacks of one process have shown of its loop."""

    loop: Applicable[Loop] = NOT_APPLICABLE
    main_ns: Applicable[int] = NOT_APPLICABLE  # when the main thread was last seen to train
    quiet_samples: int = 0  # of the main thread since then

    @property
    def is_told(self) -> bool:
        """Tell whether it is known which thread runs the loop."""
        return is_known(self.loop) or is_known(self.main_ns)

    def may_change(self, now_ns: int) -> bool:
        """Tell whether the main thread has not trained for long enough."""
        if not is_known(self.main_ns):
            return True
        return now_ns - self.main_ns >= MAIN_S * 1e9 and self.quiet_samples >= QUIET_SAMPLES


class LoopThreads:
    """Remember which ranks train in a thread of their own. Any thread may ask; nobody waits."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._seen: dict[Identity, _Seen] = {}
        self._marked: tuple[Sequence[Member], tuple[Member, ...]] = ((), ())
        """The members of the last call, and the answer."""

    def learn(self, identity: Identity, stacks: Sequence[StackCount], now_ns: int) -> int:
        """Learn from stacks of a process; return the number of its loop's thread in them."""
        with self._lock:
            seen = replace(self._seen.get(identity) or _Seen())
        before = (seen.loop, seen.is_told)
        self._decide(seen, identity.pid, stacks, now_ns)
        with self._lock:
            self._seen[identity] = seen
            if before != (seen.loop, seen.is_told):
                self._marked = ((), ())
        return seen.loop.said if is_known(seen.loop) else identity.pid

    def _decide(self, seen: _Seen, pid: int, stacks: Sequence[StackCount], now_ns: int) -> None:
        main, loop = _trains(stacks, pid), seen.loop
        if is_known(loop):
            own = _trains(stacks, loop.said)
            unused = own is _Trains.NO and _is_unused(stacks, loop.said)
            # Before Python 3.11 py-spy gives an address, which a new thread may have taken over.
            lives = os.path.exists(f"{self._proc}/{pid}/task/{loop.thread.tid}")
            takes_over = main is _Trains.YES or (main is _Trains.MAYBE and own <= _Trains.COMPUTES)
            if lives and not unused and not takes_over and any(one.tid == loop.said for one in stacks):
                return
            seen.loop = NOT_APPLICABLE
        if main:
            seen.main_ns, seen.quiet_samples = now_ns, 0
            return
        seen.quiet_samples += 1
        # A main thread that trained may wait for its batches, or for its checkpoint.
        found = find_loop(stacks, pid, sure=is_known(seen.main_ns))
        if found is not None and seen.may_change(now_ns):
            seen.loop = read_loop(pid, found, self._proc)

    def tids(self) -> dict[Identity, int]:
        """Return the threads of training loops that are not main threads."""
        with self._lock:
            return {who: one.loop.thread.tid for who, one in self._seen.items() if is_known(one.loop)}

    def said(self, identity: Identity) -> int:
        """Return the number that py-spy has for the thread of a process's loop."""
        with self._lock:
            seen = self._seen.get(identity)
        return seen.loop.said if seen is not None and is_known(seen.loop) else identity.pid

    def mark(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """Return all members with their loops; the same tuple while nothing changes."""
        with self._lock:
            if not self._seen:
                return members
            if self._marked[0] is not members:
                self._marked = (members, tuple(map(self._mark, members)))
                living = {one.identity for one in members}
                self._seen = {who: one for who, one in self._seen.items() if who in living}
            return self._marked[1]

    def mark_some(self, members: Iterable[Member]) -> tuple[Member, ...]:
        """Return some members with what is known of their loops."""
        with self._lock:
            return tuple(map(self._mark, members))

    def _mark(self, member: Member) -> Member:
        seen = self._seen.get(member.identity)
        if seen is None or not seen.is_told:
            return member
        return replace(member, loop=seen.loop, is_loop_told=True)


def read_loop(pid: int, stack: StackCount, proc: str = PROC) -> Applicable[Loop]:
    """Read the TID of a loop; not applicable where its thread is gone or unknown.

    Nor for a thread of autograd, which runs a backward that another thread asked for.
    """
    with suppress(OSError):
        here = {int(name) for name in os.listdir(f"{proc}/{pid}/task") if name.isdigit()}
        tid, _ = number_stacks(pid, (stack,), here, proc)[0]
        if tid in here and not read_file(f"{proc}/{pid}/task/{tid}/comm", 64).startswith(_AUTOGRAD):
            return Loop(LoopThread(tid, stack.thread), stack.tid)
    return NOT_APPLICABLE


def describe_loops(members: Iterable[Member]) -> tuple[str, ...]:
    """Describe the ranks whose loop is not in the main thread."""
    return tuple(
        f"{f'rank {one.rank}' if is_known(one.rank) else one.label} trains in its thread"
        f" {one.loop.thread.name} ({one.loop.thread.tid}): what is said of a main thread is said of that one"
        for one in members
        if is_known(one.loop)
    )
