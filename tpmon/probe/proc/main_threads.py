"""Sample often what each rank's main thread does: running, waiting for a batch, a lock, a disk.

Sources: /proc/PID/task/PID/syscall and, where that does not decide, stat and wchan, on cached descriptors,
classified by ``wchan``. Stacks show where a thread is; these samples are cheaper, so they come more often,
and show whether it runs and what lock it waits for.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, NotApplicable, is_known
from tpmon.model.process import Identity, MainThreadSample, Role
from tpmon.model.results.doctor import point_to
from tpmon.model.waits import FILES, INPUTS, SOCKETS, WaitReason
from tpmon.probe.base.worker import Pace, Worker
from tpmon.probe.proc.counters import ProcFile
from tpmon.probe.proc.wchan import Syscall, parse_syscall, read_wait

MOST_HZ = 10.0
LEAST_HZ = 2.5
LOOKS_PER_S = 20.0  # of all ranks together, as long as each has ``LEAST_HZ``
MOST_RANKS = 16  # three descriptors each; 16 ranks make 40 looks a second
_FILES = ("stat", "wchan", "syscall")
_GOLDEN = 0.618033988749895
_MACHINE = os.uname().machine
_NO_RANK = Missing("no rank to sample yet")
_NOT_LOOKED = Missing("main threads are not sampled yet")
_NOT_PERMITTED = Missing(
    point_to(
        "a wait for a batch cannot be distinguished from another: system calls may not be read", "syscall"
    )
)
_NOT_TOLD = Missing(f"on {_MACHINE} a wait for a batch cannot be distinguished from another poll")


_COUNTER_OF = {
    WaitReason.RUNNING: "running",
    WaitReason.BATCH: "batch_wait",
    WaitReason.TIMED_LOCK: "timed_lock",
    WaitReason.LOCK: "lock",
    **dict.fromkeys(FILES | (SOCKETS - INPUTS) | {WaitReason.CONNECTION}, "io"),
}


_WAITS_BY_CALL = {202: "futex", 7: "poll_schedule"}  # kernel functions in which these x86-64 calls wait


def classify_call(call: Known[Syscall]) -> str | None:
    """Classify a look by the call alone, if that decides; a thread in state R has no call. Pure."""
    if not is_known(call):
        return "running"
    wchan = _WAITS_BY_CALL.get(call.number) if _MACHINE == "x86_64" else None
    return None if wchan is None else classify_look("S", wchan, call)


def classify_look(state: str, wchan: Known[str], call: Known[Syscall], machine: str = _MACHINE) -> str:
    """Classify what one look found. Pure."""
    if state == "D":
        return "io"
    wait = read_wait(state, wchan, call, Role.RANK, machine)
    return _COUNTER_OF.get(wait.reason, "other") if is_known(wait) else "other"


def pick_rate(ranks: int, pace: Pace) -> float:
    """Return how many looks a second each rank gets."""
    rate = min(max(LOOKS_PER_S / max(ranks, 1), LEAST_HZ), MOST_HZ)
    return rate if pace is Pace.FULL else max(rate / 2, LEAST_HZ / 2)


def stretch(look: int) -> float:
    """Return the pause after look ``look``, 0.5 to 1.5 of the mean: multiples of the golden ratio."""
    return 0.5 + look * _GOLDEN % 1.0


@dataclass(slots=True)
class _MainThread:
    """Hold the descriptors of one rank's main thread; () where there is nothing to read."""

    files: tuple[ProcFile, ...] = ()
    refused: bool = False

    def look(self) -> str | None:
        """Read the thread once; None when it is gone or may not be read."""
        if not self.files:
            return None
        stat_file, wchan_file, syscall_file = self.files
        try:
            call = parse_syscall(syscall_file.read())
            doing = classify_call(call)
            if doing is None:
                stat = stat_file.read()
                state = stat[stat.rindex(b")") + 2 :][:1].decode("ascii", "replace")
                if state not in "ZX":
                    doing = classify_look(state, wchan_file.read().decode("ascii", "replace"), call)
        except PermissionError:
            self.refused = True
            doing = None
        except (OSError, ValueError):
            doing = None
        if doing is None:
            self.close()
        return doing

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = ()


def _meet(pid: int, tid: int, proc: str) -> _MainThread:
    thread = _MainThread()
    try:
        for name in _FILES:
            thread.files += (ProcFile(f"{proc}/{pid}/task/{tid}/{name}", 512),)
    except OSError as error:
        thread.close()
        thread.refused = isinstance(error, PermissionError)
    return thread


class MainThreadProbe:
    """Sample main threads in one daemon thread, which alone touches files; nobody waits for it."""

    def __init__(self, proc: str = "/proc", machine: str = _MACHINE) -> None:
        self._proc = proc
        self._tells_batches = machine == "x86_64"
        self._worker = Worker[None]("main-threads")
        self._named: dict[Identity, Applicable[int]] = {}
        self._pace = Pace.FULL
        self._loops: Mapping[Identity, int] = {}
        self._threads: dict[tuple[Identity, int], _MainThread] = {}  # by process and TID of its loop
        # Held for moments, never while a file is read.
        self._lock = threading.Lock()
        self._counts: dict[Identity, Counter[str]] = {}
        self._refused: frozenset[Identity] = frozenset()
        self._off: Known[str] = ""

    def start(self) -> None:
        """Start the daemon thread."""
        self._worker.begin(self._run, self._close)

    def stop(self) -> None:
        """End the thread after the current look; never waits."""
        self._worker.stop()

    def watch(
        self,
        ranks: Iterable[tuple[Identity, Applicable[int]]],
        pace: Pace = Pace.FULL,
        loops: Mapping[Identity, int] = MappingProxyType({}),
    ) -> None:
        """Name the ranks, and the loop threads that are not main threads."""
        self._named, self._pace, self._loops = dict(islice(ranks, MOST_RANKS)), pace, loops

    def look(self) -> None:
        """Read every rank's main thread once; only for the probe's own thread."""
        loops = self._loops
        named = {(identity, loops.get(identity, identity.pid)) for identity in self._named}
        for gone in self._threads.keys() - named:
            self._threads.pop(gone).close()
            with self._lock:
                self._counts.pop(gone[0], None)  # of another thread
        for identity, tid in named - self._threads.keys():
            self._threads[identity, tid] = _meet(identity.pid, tid, self._proc)
        found = [(identity, thread.look()) for (identity, _), thread in self._threads.items()]
        refused = frozenset(identity for (identity, _), thread in self._threads.items() if thread.refused)
        with self._lock:
            self._refused = refused
            for identity, doing in found:
                if doing is not None:
                    self._counts.setdefault(identity, Counter())[doing] += 1

    def take(self) -> Known[tuple[MainThreadSample, ...]]:
        """Return the counts since the last call, one sample a rank, or why there are none."""
        with self._lock:
            counts, self._counts = self._counts, {}
            refused, off = self._refused, self._off
        if not is_known(off):
            return off
        named = self._named
        if not named:
            return _NO_RANK
        if not self._tells_batches:
            return _NOT_TOLD
        if refused.issuperset(named):
            return _NOT_PERMITTED
        ranks = [one for one in named.items() if one[0] in counts]
        return tuple(_count(identity, rank, counts[identity]) for identity, rank in ranks) or _NOT_LOOKED

    def _run(self) -> None:
        looks = 0
        while not self._worker.stopped.is_set():
            self.look()
            looks += 1
            # Not Event.wait, which costs half as much again.
            time.sleep(stretch(looks) / pick_rate(len(self._threads), self._pace))

    def _close(self, _: object, answer: Known[None]) -> NotApplicable:
        if isinstance(answer, Missing):
            with self._lock:
                self._off = Missing(f"sampling main threads failed: {answer.reason}")
        for thread in self._threads.values():
            thread.close()
        return NOT_APPLICABLE


def _count(identity: Identity, rank: Applicable[int], found: Counter[str]) -> MainThreadSample:
    counts = {name: found[name] for name in (*_COUNTER_OF.values(), "other")}
    return MainThreadSample(pid=identity.pid, rank=rank, looks=found.total(), **counts)
