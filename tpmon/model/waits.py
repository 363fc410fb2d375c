"""What a thread waits for: one noun from the probe that reads it to whoever shows it."""

from __future__ import annotations

from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, is_known


class WaitReason(str, Enum):
    """Name what a thread waits for, by the kernel or by its stack; each with its words."""

    words: str

    def __new__(cls, value: str, words: str = "") -> WaitReason:  # noqa: PYI034  # Self is of 3.11
        """Make a reason, which its value alone names in JSON."""
        one = str.__new__(cls, value)
        one._value_, one.words = value, words or value
        return one

    RUNNING = "running"
    """It runs, or waits for a CPU alone (state R)."""
    BATCH = "batch", "a batch (loader queue)"
    WORK = "work", "work from its rank (loader queue)"
    LOCK = "lock", "lock or queue (futex)"
    TIMED_LOCK = "timed-lock", "lock with a time-out (futex)"
    FUSE = "fuse", "FUSE file system"
    NFS = "nfs", "NFS"
    CEPH = "ceph", "Ceph file system"
    LUSTRE = "lustre", "Lustre file system"
    PAGE = "page", "page from disk"
    DIRECT_READ = "direct-read", "direct disk read"
    DISK = "disk"
    JOURNAL = "journal", "file system journal"
    FILE_LOCK = "file-lock"
    PIPE_READ = "pipe-read", "pipe read"
    PIPE_WRITE = "pipe-write", "pipe write (full)"
    FIFO = "fifo", "FIFO without a partner"
    UNIX_SOCKET = "unix-socket", "unix socket"
    SOCKET_RECEIVE = "socket-receive", "socket receive"
    SOCKET_SEND = "socket-send", "socket send"
    SOCKET_OR_TTY = "socket-or-tty", "socket or tty"
    TCP = "tcp", "TCP socket"
    CONNECTION = "connection"
    SLEEP = "sleep"
    CHILD = "child", "child process"
    SIGNAL = "signal"
    EPOLL = "epoll"
    POLL = "poll"
    SELECT = "select"
    TERMINAL = "terminal", "terminal input"
    INPUT_PIPE = "input-pipe", "standard input (pipe)"
    INPUT_SOCKET = "input-socket", "standard input (socket)"
    STOPPED = "stopped", "stopped by a signal"
    TRACED = "traced", "stopped by a debugger"
    FROZEN = "frozen", "frozen by its control group"
    ZOMBIE = "zombie", "zombie: ended, not reaped by its parent"
    KILLED = "killed"
    """The process was killed, and a thread of it does not end."""
    KILLED_IN_DRIVER = "killed-in-driver"
    ENDING = "ending"
    """It was killed or ended. The kernel gives back the memory of a large process for seconds."""
    ENDING_IN_DRIVER = "ending-in-driver"
    DRIVER = "driver"
    """The driver of a card."""
    COLLECTIVE = "collective"
    """Other ranks, by its stack."""
    DEVICE = "device"
    """The card, by its stack."""
    NOTHING = "nothing"
    """It gets on, as several looks at it tell; these and the next ones do."""
    GIL = "gil", "the interpreter's lock"
    THREADS = "threads", "threads of its own to end"
    TASK = "task", "a task"
    READ_WRITE = "read-write", "a read or write"
    CALL = "call"
    """A queue, a thread or a process, by the call of the standard library in its stack."""
    OTHER = "other"
    """A kernel function that no table names; of a stack: nothing that it tells."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold what a thread waits for. ``detail`` replaces the words of ``reason``, for eyes alone."""

    reason: WaitReason
    detail: str = ""

    def __hash__(self) -> int:
        """Return that of the reason: hundreds are counted each second, and few have a detail."""
        return hash(self.reason)


RUNNING = Wait(WaitReason.RUNNING)
FROZEN = Wait(WaitReason.FROZEN)

_R = WaitReason
FILE_SYSTEMS = frozenset((_R.FUSE, _R.NFS, _R.CEPH, _R.LUSTRE))
"""Files behind a network, or another process."""
READS = FILE_SYSTEMS | {_R.PAGE, _R.DIRECT_READ}
"""Reads of files; disk and journal alone are often writes."""
FILES = READS | {_R.DISK, _R.JOURNAL}
SOCKETS = frozenset(
    (_R.UNIX_SOCKET, _R.SOCKET_RECEIVE, _R.SOCKET_SEND, _R.SOCKET_OR_TTY, _R.TCP, _R.INPUT_SOCKET)
)
IO = FILES | SOCKETS | {_R.PIPE_READ, _R.FIFO}
PIPES = frozenset((_R.PIPE_READ, _R.PIPE_WRITE, _R.INPUT_PIPE))
INPUTS = frozenset((_R.TERMINAL, _R.INPUT_PIPE, _R.INPUT_SOCKET))
"""A person, or whoever feeds the program, ends them."""
LOCKS = frozenset((_R.LOCK, _R.TIMED_LOCK))
QUEUES = frozenset((_R.BATCH, _R.WORK))
"""Those of a loader."""
DRIVERS = frozenset((_R.DRIVER, _R.KILLED_IN_DRIVER, _R.ENDING_IN_DRIVER))

_BY_WORDS = {word: one for one in _R for word in (one.value, one.words)}


def describe_wait(wait: Wait) -> str:
    """Say what a thread waits for."""
    return wait.detail or wait.reason.words


def parse_wait(words: str, reason: str = "") -> Wait:
    """Read a wait written as its words, and its reason if that was written; ValueError for an unknown one."""
    told = WaitReason(reason) if reason else _BY_WORDS.get(words, WaitReason.OTHER)
    return Wait(told, "" if words == told.words else words)


def is_wait(wait: Known[Wait], *reasons: WaitReason) -> bool:
    """Tell whether a thread is known to wait for one of ``reasons``."""
    return is_known(wait) and wait.reason in reasons


def is_wait_in(wait: Known[Wait], reasons: frozenset[WaitReason]) -> bool:
    """Tell whether a thread is known to wait for one of a set of reasons."""
    return is_known(wait) and wait.reason in reasons
