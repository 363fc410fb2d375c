"""Look often at what each rank's main thread does: running, waiting for a batch, a lock, a disk.

Sources: /proc/PID/task/PID/syscall, and where that does not decide, stat and wchan, on cached
descriptors, in words by ``waits``. Stacks say where a thread is; these looks are cheaper, so they
come more often, and they see what a stack does not: whether it runs, and what lock it waits for.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.process import Identity, MainThreadSample, Role
from tpmon.probe.procfs import ProcFile
from tpmon.probe.waits import RUNNING, Syscall, describe_wait, parse_syscall

MOST_HZ = 10.0
LEAST_HZ = 2.5
LOOKS_PER_S = 20.0
"""Of all ranks together, as long as each has ``LEAST_HZ``."""
MOST_RANKS = 16
"""Each holds three descriptors; 16 ranks are 40 looks a second."""
_FILES = ("stat", "wchan", "syscall")
_GOLDEN = 0.618033988749895
_MACHINE = os.uname().machine
_NO_RANK = Missing("no rank to look at yet")
_NOT_LOOKED = Missing("main threads are not looked at yet")
_NOT_PERMITTED = Missing(
    "the system calls of the main threads may not be read, so a wait for a batch cannot be told from another"
)
_NOT_TOLD = Missing(f"on {_MACHINE} a wait for a batch cannot be told from another poll")


class Doing(Enum):
    """Name what a look can find, by the counter of ``MainThreadSample``."""

    RUNNING = "running"
    BATCH_WAIT = "batch_wait"
    IO = "io"
    TIMED_LOCK = "timed_lock"
    LOCK = "lock"
    OTHER = "other"


_OF_WORDS = {
    RUNNING: Doing.RUNNING,
    "a batch (loader queue)": Doing.BATCH_WAIT,
    "lock with a time-out (futex)": Doing.TIMED_LOCK,
    "lock or queue (futex)": Doing.LOCK,
    "FUSE file system": Doing.IO,
    "NFS": Doing.IO,
    "Ceph file system": Doing.IO,
    "Lustre file system": Doing.IO,
    "page from disk": Doing.IO,
    "direct disk read": Doing.IO,
    "disk": Doing.IO,
    "file system journal": Doing.IO,
    "unix socket": Doing.IO,
    "socket receive": Doing.IO,
    "socket or tty": Doing.IO,
    "TCP socket": Doing.IO,
    "connection": Doing.IO,
    "socket send": Doing.IO,
}


_WAITS_BY_CALL = {202: "futex", 7: "poll_schedule"}
"""Kernel functions in which these system calls of x86-64 wait."""


def classify_call(call: Known[Syscall]) -> Doing | None:
    """Say what a look found where the system call alone decides, None where it does not. Pure.

    The kernel gives no call for a thread whose state is R.
    """
    if not is_known(call):
        return Doing.RUNNING
    wchan = _WAITS_BY_CALL.get(call.number) if _MACHINE == "x86_64" else None
    return None if wchan is None else classify_look("S", wchan, call)


def classify_look(state: str, wchan: Known[str], call: Known[Syscall], machine: str = _MACHINE) -> Doing:
    """Say what one look found. Pure."""
    if state == "D":
        return Doing.IO
    words = describe_wait(state, wchan, call, Role.RANK, machine)
    return _OF_WORDS.get(words, Doing.OTHER) if is_known(words) else Doing.OTHER


def pick_rate(ranks: int, *, halved: bool) -> float:
    """Return how often a second each rank is looked at."""
    rate = min(max(LOOKS_PER_S / max(ranks, 1), LEAST_HZ), MOST_HZ)
    return max(rate / 2, LEAST_HZ / 2) if halved else rate


def stretch(look: int) -> float:
    """Return how much longer or shorter than the mean the pause after look ``look`` is, 0.5 to 1.5.

    Multiples of the golden ratio: spread evenly, in step with nothing.
    """
    return 0.5 + look * _GOLDEN % 1.0


@dataclass(slots=True)
class _MainThread:
    """Hold the descriptors and the counts of one rank's main thread."""

    pid: int
    rank: Applicable[int]
    files: tuple[ProcFile, ProcFile, ProcFile] | None
    counts: dict[Doing, int] = field(default_factory=dict)
    refused: bool = False
    gone: bool = False

    def look(self) -> None:
        """Look once.

        Raises:
            OSError: when the process is gone.
        """
        if self.files is None:
            return
        stat_file, wchan_file, syscall_file = self.files
        try:
            call = parse_syscall(syscall_file.read())
        except PermissionError:
            self.refused = True
            return
        doing = classify_call(call)
        if doing is None:
            stat = stat_file.read()
            state = stat[stat.rindex(b")") + 2 :][:1].decode("ascii", "replace")
            if state in "ZX":
                self.gone = True
                return
            doing = classify_look(state, wchan_file.read().decode("ascii", "replace"), call)
        self.counts[doing] = self.counts.get(doing, 0) + 1

    def close(self) -> None:
        """Close the descriptors."""
        for file in self.files or ():
            file.close()
        self.files = None


def _open(pid: int, proc: str) -> tuple[ProcFile, ProcFile, ProcFile]:
    opened: list[ProcFile] = []
    try:
        opened.extend(ProcFile(f"{proc}/{pid}/task/{pid}/{name}", 512) for name in _FILES)
    except OSError:
        for file in opened:
            file.close()
        raise
    return opened[0], opened[1], opened[2]


class MainThreadProbe:
    """Look at the main threads in one daemon thread. Every method but ``look`` returns at once."""

    def __init__(self, proc: str = "/proc", machine: str = _MACHINE) -> None:
        """Look at nothing until ``watch`` names the ranks and ``start`` starts the thread."""
        self._proc = proc
        self._tells_batches = machine == "x86_64"
        self._lock = threading.Lock()
        self._stopped = False
        self._threads: dict[Identity, _MainThread] = {}
        self._halved = False
        self._looks = 0
        self._off: Known[str] = ""

    def start(self) -> None:
        """Start the daemon thread."""
        threading.Thread(target=self._run, name="tpmon-main-threads", daemon=True).start()

    def stop(self) -> None:
        """End the thread after the look it is in; never waits."""
        self._stopped = True

    def watch(self, ranks: Iterable[tuple[Identity, Applicable[int]]], *, halved: bool = False) -> None:
        """Name the ranks there are now, at most ``MOST_RANKS`` of which are looked at."""
        named = dict(list(ranks)[:MOST_RANKS])
        with self._lock:
            self._halved = halved
            for identity in self._threads.keys() - named.keys():
                self._threads.pop(identity).close()
            for identity, rank in named.items():
                known = self._threads.get(identity)
                if known is None:
                    self._threads[identity] = self._meet(identity.pid, rank)
                else:
                    known.rank = rank

    def look(self) -> None:
        """Look at every rank's main thread once."""
        with self._lock:
            for thread in self._threads.values():
                try:
                    thread.look()
                except (OSError, ValueError):
                    thread.gone = True
                if thread.gone or thread.refused:
                    thread.close()

    def take(self) -> Known[tuple[MainThreadSample, ...]]:
        """Return what was counted since the last call, one sample a rank, or why nothing can be told."""
        with self._lock:
            if not is_known(self._off):
                return self._off
            if not self._threads:
                return _NO_RANK
            if not self._tells_batches:
                return _NOT_TOLD
            threads = [thread for thread in self._threads.values() if not thread.refused]
            if not threads:
                return _NOT_PERMITTED
            samples = tuple(_count(thread) for thread in threads if thread.counts)
            for thread in threads:
                thread.counts.clear()
            return samples or _NOT_LOOKED

    def _meet(self, pid: int, rank: Applicable[int]) -> _MainThread:
        thread = _MainThread(pid, rank, None)
        try:
            thread.files = _open(pid, self._proc)
        except OSError as error:
            thread.refused = error.errno in (errno.EACCES, errno.EPERM)
            thread.gone = not thread.refused
        return thread

    def _run(self) -> None:
        try:
            while not self._stopped:
                self.look()
                self._looks += 1
                rate = pick_rate(len(self._threads), halved=self._halved)
                # Not Event.wait, which costs half as much again.
                time.sleep(stretch(self._looks) / rate)
        except Exception as error:  # noqa: BLE001  # shown as the reason
            self._off = Missing(f"looks at main threads failed: {type(error).__name__}: {error}")
        with self._lock:
            for thread in self._threads.values():
                thread.close()


def _count(thread: _MainThread) -> MainThreadSample:
    counts = {doing.value: thread.counts.get(doing, 0) for doing in Doing}
    return MainThreadSample(pid=thread.pid, rank=thread.rank, looks=sum(counts.values()), **counts)
